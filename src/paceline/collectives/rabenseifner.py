"""Rabenseifner: the ring's few bytes in recursive doubling's few rounds.

    for d = p/2 … 2, 1: of my current part, send the half that rank r xor d keeps; receive and combine my half
    for d = 1, 2 … p/2: send all my finished blocks to rank r xor d, receive as many
    (p not a power of two: as in recursive doubling)

2 log2 p messages and 2(p-1)/p n elements a rank; with p = 2^k + e the odd ones of the first 2e
ranks send n more in one more message, the even ones n in one message.

Rabenseifner: Optimization of collective reduction operations (2004).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from paceline.collectives._buffers import Array, MessageRound, Whole, collective
from paceline.collectives._cost import Cost, CostCase, cut, length
from paceline.collectives.recursive_doubling import PowerOfTwo
from paceline.comm import Channel, Operation


def rounds(p: int, n: int, in_place: bool) -> Iterator[MessageRound]:
    """Yield the messages of all ranks, round by round."""
    ranks = PowerOfTwo(0, p)
    extra, width = ranks.extra, ranks.size
    even, odd = np.arange(0, 2 * extra, 2), np.arange(1, 2 * extra, 2)
    members = np.concatenate([odd, np.arange(2 * extra, p)])  # by their numbers
    ends = np.array([0, *(block.stop for block in cut(n, width))])
    v, low = np.arange(width), np.zeros(width, int)
    if extra:
        yield MessageRound(even, odd, n, [("combine", slice(None))])
    while width > 1:
        width //= 2
        low = low + (v & width)
        come = ends[low + width] - ends[low]
        partners = members[v ^ width]
        yield MessageRound(partners, members, come, [("combine", slice(None))], works_first=True)
    while width < ranks.size:
        theirs = low ^ width
        yield MessageRound(members[v ^ width], members, ends[theirs + width] - ends[theirs])
        low, width = low & ~width, 2 * width
    if extra:
        yield MessageRound(odd, even, n)


def total(arrays: Sequence[Array], out: Array, op: Operation) -> None:
    """Combine the arrays of all ranks as the exchanges do: those of half of the members with those of the other half."""
    extra = PowerOfTwo(0, len(arrays)).extra
    folded = [np.empty_like(out) for _ in range(extra)]
    for k, into in enumerate(folded):
        op.compute(arrays[2 * k], arrays[2 * k + 1], into)
    members = [*folded, *arrays[2 * extra :]]
    ends = [0, *(block.stop for block in cut(out.size, len(members)))]

    def combine(rows: Sequence[Array] | Array, low: int, width: int) -> None:
        """Combine rows, of which each is the part of a member: blocks low … low + width - 1."""
        half = len(rows) // 2
        if half == 0:
            out[ends[low] : ends[low + 1]] = rows[0]
        elif width > half:  # the members of each half keep half of the blocks
            middle = ends[low + half] - ends[low]
            combine([row[:middle] for row in rows], low, half)
            combine([row[middle:] for row in rows], low + half, half)
        else:
            keep, give = (rows[half:], rows[:half]) if low & half else (rows[:half], rows[half:])
            sums = np.empty((half, rows[0].size), out.dtype)
            for mine, theirs, s in zip(keep, give, sums, strict=True):
                op.compute(theirs, mine, s)
            combine(sums, low, width)

    combine(members, 0, len(members))


@collective(whole=Whole(rounds, total))
def allreduce(send: Array, recv: Array, comm: Channel, op: Operation) -> None:
    """Combine `send` of all ranks into `recv` on each, by recursive halving and doubling."""
    inbox = comm.scratch(send.size, send.dtype)
    me = PowerOfTwo(comm.rank, comm.size)
    x = me.fold(send, recv, inbox, comm, op)
    if me.number is not None:
        _halve_and_double(x, recv, inbox, me, me.number, comm, op)
    me.unfold(recv, comm)


def _halve_and_double(
    x: Array, recv: Array, inbox: Array, me: PowerOfTwo, v: int, comm: Channel, op: Operation
) -> None:
    blocks = cut(x.size, me.size)
    low, width = 0, me.size  # the blocks that are still mine: low … low + width - 1

    while width > 1:  # reduce-scatter by halving
        width //= 2
        partner = me.rank_of(v ^ width)
        keep, give = (low, low + width) if not v & width else (low + width, low)
        mine, theirs = _span(blocks, keep, width), _span(blocks, give, width)
        partial = inbox[mine]
        sending, receiving = comm.Isend(x[theirs], partner), comm.Irecv(partial, partner)
        receiving.Wait()
        op(partial, x[mine], recv[mine])  # s <- s + s', of the half that is kept
        sending.Wait()
        x, low = recv, keep

    while width < me.size:  # allgather by doubling
        partner = me.rank_of(v ^ width)
        mine, theirs = _span(blocks, low, width), _span(blocks, low ^ width, width)
        sending, receiving = comm.Isend(recv[mine], partner), comm.Irecv(recv[theirs], partner)
        receiving.Wait()
        sending.Wait()
        low, width = low & ~width, 2 * width


def _span(blocks: tuple[slice, ...], first: int, count: int) -> slice:
    return slice(blocks[first].start, blocks[first + count - 1].stop)


def cost(case: CostCase) -> Cost:
    """Return the cost of halving, of doubling, and of the pairs' arrays before and after."""
    me = PowerOfTwo(case.r, case.p)
    k, folds = me.size.bit_length() - 1, 2 if me.extra else 0
    blocks, sent = cut(case.n, me.size), case.n
    if (v := me.number) is not None:
        halving = case.n - length(blocks[v])
        doubling = sum(length(_span(blocks, v >> j << j, 1 << j)) for j in range(k))
        sent = me.paired * case.n + halving + doubling
    most = case.n - length(blocks[-1])
    return Cost(
        messages=me.messages(2 * k),
        sent=sent,
        rounds=2 * k + folds,
        carried=2 * most + folds * case.n,
        touched=most + folds // 2 * case.n,
    )
