"""`wildood serve` with a clock that is moved, which does within a second what takes a minute.

impatient_serve.py OFFSET ARRIVAL WORD...: the file OFFSET says how many seconds the clock is ahead; ARRIVAL is the number of
seconds after which a request must be there.
"""

import sys
import time
from pathlib import Path


def main():
    offset, really = Path(sys.argv[1]), time.time
    time.time = lambda: really() + float(offset.read_text())

    from wildood.cli.main import main as wildood  # noqa: PLC0415 - default arguments shall be the moved clock
    from wildood.habitat import connections, recorder  # noqa: PLC0415 - same

    recorder.RETRY, recorder.SWEEP, connections.DRAIN = 0.3, 0.5, 0.5
    connections.ARRIVAL = connections.READING = float(sys.argv[2])
    wildood(sys.argv[3:])


if __name__ == "__main__":
    main()
