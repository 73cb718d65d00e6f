"""Native: MPI's own Allreduce, with whatever algorithm the library chooses.

    MPI_Allreduce

What MPI sends is not visible; the call and the n elements handed to it are counted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from paceline.collectives import rabenseifner
from paceline.collectives._buffers import Array, collective
from paceline.collectives._cost import Cost, CostCase
from paceline.comm import Channel, Operation
from paceline.comm.operations import UFUNCS

# The kinds of numbers for which MPI's operation does what the ufunc does: maximum and minimum of floats are
# left out, as NumPy's let a NaN through and MPI's may not.
ARITHMETIC, INTEGERS = "iufc", "iu"
AS_MPI = {"SUM": ARITHMETIC, "PROD": ARITHMETIC} | dict.fromkeys(
    ("MAX", "MIN", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR"), INTEGERS
)


@collective
def allreduce(send: Array, recv: Array, comm: Channel, op: Operation) -> None:
    """Combine `send` of all ranks into `recv` on each, by MPI's own Allreduce."""
    MPI = comm.MPI
    source = MPI.IN_PLACE if send is recv else send
    for name, kinds in AS_MPI.items():
        if op.ufunc is UFUNCS[name] and recv.dtype.kind in kinds:
            comm.comm.Allreduce(source, recv, getattr(MPI, name))
            return

    def combine(incoming: Any, into: Any, datatype: Any) -> None:
        a, b = np.frombuffer(incoming, recv.dtype), np.frombuffer(into, recv.dtype)
        op(a, b, b)

    element = MPI.BYTE.Create_contiguous(recv.itemsize).Commit()
    made = MPI.Op.Create(combine, commute=True)
    try:
        given = source if send is recv else [send, send.size, element]
        comm.comm.Allreduce(given, [recv, recv.size, element], made)
    finally:
        made.Free()
        element.Free()


def cost(case: CostCase) -> Cost:
    """Return one call with n elements; for the time, Rabenseifner's rounds and bytes, the fewest known."""
    return replace(rabenseifner.cost(case), messages=1, sent=case.n)
