"""Run a command that ends together with the process that started it, however that one ends.

python -I -S _tether.py PARENT COMMAND…
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # stays with the process through exec
    if os.getppid() != int(parent):  # the parent ended before it could be watched
        sys.exit(128 + signal.SIGTERM)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
