"""Hierarchical: shared memory inside the node, messages between the nodes, all links busy.

    copy my array into my row of the node's window
    barrier; combine my part of the columns over all rows
    allreduce my part with the owners of that part on the other nodes; barrier
    copy the result out

With m nodes of q ranks, each rank sends what an allreduce of n/q elements among m ranks costs. If the nodes
differ, q is the smallest number of ranks on a node, and the ranks beyond it own no part. A long array goes
piece by piece.
"""

from __future__ import annotations

from paceline.collectives import recursive_doubling, ring
from paceline.collectives._blocks import cut, length
from paceline.collectives._buffers import Array, collective
from paceline.collectives._cost import Case, Cost
from paceline.collectives._nodes import nodes, peers
from paceline.collectives._operation import Operation
from paceline.comm import Channel
from paceline.comm._shared import CACHE_LINE

ROW_BYTES = 4 << 20
# Below this many bytes rounds cost more than bytes.
SHORT = 32 << 10


@collective
def allreduce(send: Array, recv: Array, comm: Channel, op: Operation) -> None:
    """Combine `send` of all ranks into `recv` on each: inside the nodes, then between them."""
    owners = nodes(comm).smallest
    for piece in cut(send.size, -(-send.nbytes // ROW_BYTES)):
        reduce_piece(send[piece], recv[piece], comm, owners, op)


def reduce_piece(send: Array, recv: Array, comm: Channel, owners: int, op: Operation) -> None:
    node = comm.node
    r, p = node.rank, node.size
    shared = node.shared((p + 1) * ROW_BYTES)
    rows = shared.memory.reshape(p + 1, ROW_BYTES)[:, : send.nbytes].view(send.dtype)

    rows[r] = send
    shared.fence()
    if r < owners:
        mine = cut(send.size, owners, align=CACHE_LINE // send.itemsize)[r]
        if length(mine):
            op.over(rows[:p, mine], rows[p, mine])  # s_r = sum of x over the node, columns of part r
        between(rows[p, mine], peers(comm), op)  # s_r <- sum of s_r over the nodes
    else:
        peers(comm)
    shared.fence()
    recv[...] = rows[p]


def between(x: Array, comm: Channel, op: Operation) -> None:
    """Allreduce in place among ranks of different nodes, with the same bits on all."""
    if x.size and comm.size > 1:
        (recursive_doubling if x.nbytes <= SHORT else ring).allreduce(x, x, comm, op)


def cost(case: Case) -> Cost:
    """Shared memory's in the node; between the nodes that of an allreduce of its part."""
    layout = case.nodes
    owners, place = layout.smallest, layout.place(case.r)
    among = layout.peers(case.r)
    barrier = (layout.largest - 1).bit_length()
    total = Cost()
    for piece in cut(case.n, -(-case.n * case.itemsize // ROW_BYTES)):
        n = length(piece)
        parts = cut(n, owners, align=CACHE_LINE // case.itemsize)
        total += Cost(rounds=2 * barrier, touched=2 * n + layout.largest * length(parts[0]))
        if place < owners and layout.count > 1 and length(parts[place]):
            part = length(parts[place])
            algorithm = recursive_doubling if part * case.itemsize <= SHORT else ring
            total += algorithm.cost(Case(n=part, p=len(among), r=among.index(case.r), itemsize=case.itemsize))
    return total
