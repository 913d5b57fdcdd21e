"""Holds the lock of a file, says so, and lets go of it when its standard input ends: PATH."""

import sys
from pathlib import Path

from wildood.data.files import locked

if __name__ == "__main__":
    with locked(Path(sys.argv[1])) as held:
        print(held, flush=True)  # noqa: T201 - the test waits for it
        sys.stdin.read()
