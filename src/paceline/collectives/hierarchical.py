"""Hierarchical: shared memory inside the node, messages between the nodes, all links busy.

    copy my array into my row of the node's window
    barrier; combine my part of the columns over all rows
    allreduce my part with the owners of that part on the other nodes; barrier
    copy the result out

With m nodes of q ranks, each rank sends what an allreduce of n/q elements among m ranks costs, by the cheapest of
recursive doubling, Rabenseifner and the ring. If the nodes differ, q is the smallest number of ranks on a node, and
the ranks beyond it own no part. Long arrays are processed piece by piece. On one node this is shared-memory.
"""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType

from paceline.collectives import rabenseifner, recursive_doubling, ring, shared_memory
from paceline.collectives._buffers import Array, collective, describe_array
from paceline.collectives._cost import Cost, CostCase, CostModel, cut, length
from paceline.collectives._nodes import nodes, peers, require_room
from paceline.comm import Channel, Operation
from paceline.comm.shared import CACHE_LINE

# Longer than shared-memory's, because only a part of it travels between the nodes.
ROW_BYTES = 4 << 20
# The rough cost of a message between nodes, 10 Gbit Ethernet. It decides which algorithm is used between nodes.
NETWORK = CostModel(alpha=30e-6, beta=0.8e-9, gamma=0.1e-9)


@collective
def allreduce(send: Array, recv: Array, comm: Channel, op: Operation) -> None:
    """Combine `send` of all ranks into `recv` on each: inside the nodes, then between them."""
    layout = nodes(comm)
    if layout.count == 1:
        shared_memory.allreduce(send, recv, comm, op)
        return
    require_room(comm, (layout.largest + 1) * ROW_BYTES, "hierarchical", "choose ring")
    description = describe_array(send.size, send.dtype)
    for piece in cut(send.size, -(-send.nbytes // ROW_BYTES)):
        reduce_piece(send[piece], recv[piece], comm, layout.smallest, op, description)


def reduce_piece(
    send: Array, recv: Array, comm: Channel, owners: int, op: Operation, description: int
) -> None:
    node, across = comm.node, peers(comm)
    r, p = node.rank, node.size
    shared, all_rows, descriptions = shared_memory.window(node, ROW_BYTES)
    rows = all_rows[:, : send.nbytes].view(send.dtype)

    comm.copy(rows[r], send)
    shared_memory.meet(
        shared, node, descriptions, description, lambda place: nodes(comm).members(comm.rank)[place]
    )
    if r < owners:
        mine = cut(send.size, owners, align=CACHE_LINE // send.itemsize)[r]
        op.combine_rows(rows[:p, mine], rows[p, mine])  # s_r = sum of x over the node, columns of part r
        allreduce_between_nodes(rows[p, mine], across, op)  # s_r <- sum of s_r over the nodes
    shared.fence()
    comm.copy(recv, rows[p])


@lru_cache(maxsize=256)
def choose_between_nodes(nbytes: int, ranks: int) -> ModuleType:
    """Return the cheapest collective for an array of `nbytes` among ranks of different nodes, by the formulas."""
    case = CostCase(n=nbytes, p=ranks, itemsize=1)
    choices = (recursive_doubling, rabenseifner, ring)
    return min(choices, key=lambda module: NETWORK.seconds(module.cost(case), itemsize=1))


def allreduce_between_nodes(x: Array, comm: Channel, op: Operation) -> None:
    """Allreduce in place among ranks of different nodes, with the same bits on all."""
    choose_between_nodes(x.nbytes, comm.size).allreduce(x, x, comm, op)


def cost(case: CostCase) -> Cost:
    """Return shared memory's cost inside the node plus that of an allreduce of the part between the nodes."""
    layout = case.nodes
    if layout.count == 1:
        return shared_memory.cost(case)
    owners, place, among = layout.smallest, layout.place(case.r), layout.peers(case.r)
    barrier = (layout.largest - 1).bit_length()
    total = Cost()
    for piece in cut(case.n, -(-case.n * case.itemsize // ROW_BYTES)):
        parts = [length(part) for part in cut(length(piece), owners, align=CACHE_LINE // case.itemsize)]
        total += Cost(rounds=2 * barrier, touched=2 * length(piece) + layout.largest * parts[0])
        if place < owners and parts[place]:
            part = CostCase(n=parts[place], p=len(among), r=among.index(case.r), itemsize=case.itemsize)
            total += choose_between_nodes(part.n * part.itemsize, part.p).cost(part)
    return total
