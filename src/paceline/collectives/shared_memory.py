"""Shared memory: on one node nothing needs to be sent.

    copy my array into my row of a shared window
    barrier; combine my 1/p of the columns over all rows; barrier
    copy the result out

No messages, two barriers; each rank writes 2n + n/p elements and reads 2n. Arrays longer than a row are processed
piece by piece. (Training avoids the copies: see `paceline.collectives.make_exchange`.)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from paceline.collectives._buffers import Array, collective, describe_array, refuse_mismatch
from paceline.collectives._cost import Cost, CostCase, cut
from paceline.collectives._nodes import require_room
from paceline.comm import Channel, Operation
from paceline.comm.shared import CACHE_LINE, SharedMemory
from paceline.errors import UsageError

# The longest row: all rows together stay in the caches, and /dev/shm is small in containers.
ROW_BYTES = 1 << 20


@collective
def allreduce(send: Array, recv: Array, comm: Channel, op: Operation) -> None:
    """Combine `send` of all ranks into `recv` on each, through memory that they share."""
    if comm.node.size != comm.size:
        raise UsageError(
            f"shared-memory needs all ranks on one node; {comm.node.size} of {comm.size} are on this one; "
            "choose hierarchical"
        )
    require_room(comm, (comm.size + 1) * ROW_BYTES, "shared-memory", "choose ring")
    description = describe_array(send.size, send.dtype)
    for piece in cut(send.size, -(-send.nbytes // ROW_BYTES)):
        reduce_piece(send[piece], recv[piece], comm, op, description)


def window(node: Channel, row_bytes: int) -> tuple[SharedMemory, Array, Array]:
    """Return shared memory, its rows (one for each rank and one for the sum), and a number for each rank. Collective."""
    p = node.size
    shared = node.shared((p + 1) * row_bytes + p * CACHE_LINE)
    end = (p + 1) * row_bytes
    numbers = shared.memory[end : end + p * CACHE_LINE].view(np.int64).reshape(p, -1)[:, 0]
    return shared, shared.memory[:end].reshape(p + 1, row_bytes), numbers


def meet(
    shared: SharedMemory,
    node: Channel,
    descriptions: Array,
    description: int,
    rank_of: Callable[[int], int] = int,
) -> None:
    """Wait for all ranks of a window, and raise the same error on each if their arrays differ. Collective."""
    if node.time_only:
        shared.fence()
        return
    descriptions[node.rank] = description
    shared.fence()
    try:
        refuse_mismatch(descriptions.tolist(), rank_of)
    except ValueError:
        shared.fence()  # all have read the descriptions
        raise


def reduce_piece(send: Array, recv: Array, comm: Channel, op: Operation, description: int) -> None:
    r, p = comm.rank, comm.size
    shared, all_rows, descriptions = window(comm, ROW_BYTES)
    rows = all_rows[:, : send.nbytes].view(send.dtype)
    mine = cut(send.size, p, align=CACHE_LINE // send.itemsize)[r]

    comm.copy(rows[r], send)
    meet(shared, comm, descriptions, description)
    op.combine_rows(rows[:p, mine], rows[p, mine])  # s_r = x_0 + x_1 + … + x_p-1, columns of part r
    shared.fence()
    comm.copy(recv, rows[p])


def cost(case: CostCase) -> Cost:
    """Return the cost of two barriers of log2 p rounds for each piece; nothing is sent."""
    pieces = -(-case.n * case.itemsize // ROW_BYTES)
    barrier = (case.p - 1).bit_length()
    return Cost(rounds=2 * barrier * pieces, touched=2 * case.n + -(-case.n * (case.p - 1) // case.p))
