"""Ring: every rank talks only to its two neighbours, and every link is busy all the time.

    cut the array into p blocks
    p-1 times: send a partial sum of one block to the right, receive the next from the left, add my own part
    p-1 times: send a finished block to the right, receive the next one from the left

Each rank sends 2(p-1) messages and 2n - b(r+1) - b(r+2) elements, where b are the blocks' lengths (about n/p):
2(p-1)/p n, the least possible.

Patarasuk, Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations (2009).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from paceline.collectives._buffers import Array, MessageRound, Whole, collective
from paceline.collectives._cost import Cost, CostCase, cut, length
from paceline.comm import Channel, Operation


def rounds(p: int, n: int, in_place: bool) -> Iterator[MessageRound]:
    """Yield the messages of all ranks, round by round."""
    ranks = np.arange(p)
    left = (ranks - 1) % p
    lengths = np.array([length(block) for block in cut(n, p)])
    even = None if n % p else n // p
    for k in range(p - 1):
        blocks = lengths[(ranks - k - 1) % p] if even is None else even
        yield MessageRound(left, ranks, blocks, [("combine", slice(None))], works_first=True)
    for k in range(p - 1):
        yield MessageRound(left, ranks, lengths[(ranks - k) % p] if even is None else even)


def total(arrays: Sequence[Array], out: Array, op: Operation) -> None:
    """Combine the arrays of all ranks: every block on its way around the ring, from the rank of its number on."""
    for start, block in enumerate(cut(out.size, len(arrays))):
        if length(block):
            s = out[block]
            s[...] = arrays[start][block]
            for x in (*arrays[start + 1 :], *arrays[:start]):
                op.compute(s, x[block], s)


@collective(whole=Whole(rounds, total))
def allreduce(send: Array, recv: Array, comm: Channel, op: Operation) -> None:
    """Combine `send` of all ranks into `recv` on each, around a ring."""
    r, p = comm.rank, comm.size
    left, right = (r - 1) % p, (r + 1) % p
    blocks = cut(send.size, p)
    inbox = comm.scratch(length(blocks[0]), send.dtype)
    x, s = [send[block] for block in blocks], [recv[block] for block in blocks]

    for k in range(p - 1):  # reduce-scatter
        mine, other = (r - k) % p, (r - k - 1) % p
        partial = inbox[: x[other].size]
        sending = comm.Isend(s[mine] if k else x[mine], right)
        receiving = comm.Irecv(partial, left)
        receiving.Wait()
        op(partial, x[other], s[other])  # s_b <- s_b + x_b,  b = r-k-1
        sending.Wait()

    for k in range(p - 1):  # allgather: block r+1 is complete here
        mine, other = (r + 1 - k) % p, (r - k) % p
        sending = comm.Isend(s[mine], right)
        receiving = comm.Irecv(s[other], left)
        receiving.Wait()
        sending.Wait()


def cost(case: CostCase) -> Cost:
    """Return the cost of sending all blocks twice, except the one completed here and the one that arrives last."""
    p, r = case.p, case.r
    blocks = [length(block) for block in cut(case.n, p)]
    return Cost(
        messages=2 * (p - 1),
        sent=2 * case.n - blocks[(r + 1) % p] - blocks[(r + 2) % p],
        rounds=2 * (p - 1),
        carried=2 * (p - 1) * blocks[0],
        touched=(p - 1) * blocks[0],
    )
