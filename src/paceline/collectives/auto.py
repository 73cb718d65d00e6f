"""Auto: the fastest of the others for this many bytes and ranks, from a small table of measurements.

    several nodes, some with more than one rank: hierarchical; else the first row whose limits hold

The verdict depends on the size, the number of ranks and the nodes only: it is the same on every rank.
"""

from __future__ import annotations

from types import ModuleType

from paceline.collectives import hierarchical, native, recursive_doubling, ring, shared_memory
from paceline.collectives._buffers import Array, collective
from paceline.collectives._cost import Case, Cost
from paceline.collectives._layout import Nodes
from paceline.collectives._nodes import nodes
from paceline.collectives._operation import Operation
from paceline.comm import Channel


def choose(nbytes: int, ranks: int, layout: Nodes) -> ModuleType:
    """The collective's module for a message of `nbytes` among `ranks`."""
    if layout.count == 1:
        return native if nbytes <= 16 << 10 else shared_memory
    if layout.largest > 1:
        return hierarchical
    return recursive_doubling if nbytes <= 32 << 10 else ring


@collective
def allreduce(send: Array, recv: Array, comm: Channel, op: Operation) -> None:
    """Combine `send` of all ranks into `recv` on each, the fastest way known."""
    choose(recv.nbytes, comm.size, nodes(comm)).allreduce(send, recv, comm, op)


def cost(case: Case) -> Cost:
    """That of the one chosen."""
    chosen: Cost = choose(case.n * case.itemsize, case.p, case.nodes).cost(case)
    return chosen
