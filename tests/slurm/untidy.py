"""`paceline` where memory is full when MPI starts: behind the small blocks that it is given lies other data."""

from __future__ import annotations

import ctypes
import sys


def fill(holes: int = 60) -> None:
    """Leaves free blocks of a network address's size, `holes` of each, and 4 KB that are not zero behind each."""
    c = ctypes.CDLL(None)
    c.malloc.restype = ctypes.c_void_p
    free = []
    for size in range(200, 1000, 16):
        for _ in range(holes):
            free.append(c.malloc(size))
            c.memset(ctypes.c_void_p(c.malloc(4400)), 0xAB, 4400)
    for hole in free:
        c.free(ctypes.c_void_p(hole))


def main() -> int:
    import mpi4py

    mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
    from mpi4py import MPI

    from paceline.cli import main as command

    start = MPI.Init_thread

    def filled() -> int:
        fill()
        return start()

    MPI.Init_thread = filled
    return command()


if __name__ == "__main__":
    sys.exit(main())
