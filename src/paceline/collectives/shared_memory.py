"""Shared memory: on one node nothing needs to be sent.

    copy my array into my row of a shared window
    barrier; combine my 1/p of the columns over all rows; barrier
    copy the result out

No messages, two barriers; each rank writes 2n + n/p elements and reads 2n. Arrays longer than a row are processed
piece by piece. (Training avoids the copies: see `paceline.collectives.make_exchange`.)
"""

from __future__ import annotations

from paceline.collectives._buffers import Array, collective
from paceline.collectives._cost import Case, Cost
from paceline.collectives._layout import cut
from paceline.collectives._nodes import require_room
from paceline.comm import Channel, Operation
from paceline.comm.shared import CACHE_LINE
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
    for piece in cut(send.size, -(-send.nbytes // ROW_BYTES)):
        reduce_piece(send[piece], recv[piece], comm, op)


def reduce_piece(send: Array, recv: Array, comm: Channel, op: Operation) -> None:
    r, p = comm.rank, comm.size
    shared = comm.shared((p + 1) * ROW_BYTES)
    rows = shared.memory.reshape(p + 1, ROW_BYTES)[:, : send.nbytes].view(send.dtype)
    mine = cut(send.size, p, align=CACHE_LINE // send.itemsize)[r]

    comm.copy(rows[r], send)
    shared.fence()
    op.over(rows[:p, mine], rows[p, mine])  # s_r = x_0 + x_1 + … + x_p-1, columns of part r
    shared.fence()
    comm.copy(recv, rows[p])


def cost(case: Case) -> Cost:
    """Return the cost of two barriers of log2 p rounds for each piece; nothing is sent."""
    pieces = -(-case.n * case.itemsize // ROW_BYTES)
    barrier = (case.p - 1).bit_length()
    return Cost(rounds=2 * barrier * pieces, touched=2 * case.n + -(-case.n * (case.p - 1) // case.p))
