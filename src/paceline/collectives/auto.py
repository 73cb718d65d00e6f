"""Auto: the fastest of the others for this number of bytes and ranks, from a small table of measurements.

    one node: the first row of the table whose limits hold
    several nodes: hierarchical, or, with one rank on each, what hierarchical uses between nodes

The choice depends only on the size, the number of ranks and the nodes, so it is the same on every rank.
"""

from __future__ import annotations

import logging
from math import inf
from types import ModuleType

from paceline.collectives import hierarchical, native, ring, shared_memory
from paceline.collectives._buffers import Array, collective
from paceline.collectives._cost import Cost, CostCase, Nodes
from paceline.collectives._nodes import describe_room, has_room, nodes
from paceline.comm import Channel, Operation

log = logging.getLogger(__name__)
# (ranks at most, bytes at most, the fastest), from `paceline bench allreduce -n 2,4,8,16` on 16 cores of a Xeon with
# Open MPI 5.0.11, float32 (benchmarks/results/allreduce.json); 2 ranks agree with 2 cores of another, and with MPICH.
ONE_NODE: tuple[tuple[float, float, ModuleType], ...] = (
    (2, 128 << 10, native),
    (2, inf, ring),
    (inf, 8 << 10, native),
    (inf, inf, shared_memory),
)

# Those that need shared memory; where there is not enough, the ring is used instead.
SHARED = (shared_memory, hierarchical)


def choose(nbytes: int, ranks: int, layout: Nodes) -> ModuleType:
    """Return the module of the collective to use for an array of `nbytes` among `ranks`."""
    if layout.count == 1:
        return next(module for most, longest, module in ONE_NODE if ranks <= most and nbytes <= longest)
    return hierarchical if layout.largest > 1 else hierarchical.choose_between_nodes(nbytes, ranks)


def name_of(module: ModuleType) -> str:
    """Return the name of a collective's module.

    >>> name_of(shared_memory)
    'shared-memory'
    """
    return module.__name__.rpartition(".")[2].replace("_", "-")


@collective
def allreduce(send: Array, recv: Array, comm: Channel, op: Operation) -> None:
    """Combine `send` of all ranks into `recv` on each, the fastest way known."""
    layout = nodes(comm)
    chosen = choose(recv.nbytes, comm.size, layout)
    if chosen in SHARED and not has_room(comm, need := (layout.largest + 1) * chosen.ROW_BYTES):
        chosen = ring
        comm.fact("told that there is no room", lambda channel: _tell(channel, need))
    chosen.allreduce(send, recv, comm, op)


def _tell(comm: Channel, need: int) -> None:
    if comm.rank == 0:
        log.warning("%s; sums are made by ring", describe_room(comm, need, "shared-memory"))


def cost(case: CostCase) -> Cost:
    """Return the cost of the algorithm chosen."""
    chosen: Cost = choose(case.n * case.itemsize, case.p, case.nodes).cost(case)
    return chosen
