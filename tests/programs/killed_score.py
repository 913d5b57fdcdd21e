"""`wildood score`, killed at the N-th time that it puts a file on the disk: killed_score.py N WORD..."""

import os
import signal
import sys

from wildood.cli.main import main


def kill_at(moment):
    number, really = 0, os.fsync

    def fsync(file):
        nonlocal number
        number += 1
        really(file)
        if number == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = fsync


if __name__ == "__main__":
    kill_at(int(sys.argv[1]))
    main(sys.argv[2:])
