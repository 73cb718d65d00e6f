"""Recursive doubling: whole arrays, in the fewest rounds; the best for short ones.

    for d = 1, 2, 4 … p/2: exchange arrays with rank r xor d, and combine
    (p not a power of two: the first ranks pair up before, and one of each pair receives the result after)

log2 p messages and n log2 p elements a rank; with p = 2^k + e the even ones of the first 2e ranks send 1
and n, the odd ones k + 1 and (k+1) n, the others k and k n.

Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH (2005).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from paceline.collectives._buffers import Array, MessageRound, Whole, collective
from paceline.collectives._cost import Cost, CostCase
from paceline.comm import Channel, Operation


class PowerOfTwo:
    """One rank's role when the number of ranks is reduced to a power of two.

    Of p = 2^k + e ranks the first 2e form pairs; the even rank of a pair hands its array to the odd one and sits out.
    `number`: a rank's place among the `size` = 2^k ranks that take part, or None if it sits out.

    >>> [PowerOfTwo(r, 6).number for r in range(6)], PowerOfTwo(0, 6).size
    ([None, 0, None, 1, 2, 3], 4)
    """

    def __init__(self, rank: int, ranks: int) -> None:
        self.size = 1 << (ranks.bit_length() - 1)
        self.extra = ranks - self.size
        self.rank = rank
        self.paired = rank < 2 * self.extra
        self.number = rank - self.extra if not self.paired else rank // 2 if rank % 2 else None

    def rank_of(self, number: int) -> int:
        """Return the rank that takes part under this number."""
        return 2 * number + 1 if number < self.extra else number + self.extra

    def messages(self, exchanges: int) -> int:
        """Return how many messages this rank sends if the ranks that take part send `exchanges` each."""
        return 1 if self.number is None else exchanges + self.paired

    def fold(self, send: Array, recv: Array, inbox: Array, comm: Channel, op: Operation) -> Array:
        """Combine the arrays of each pair into the odd rank's `recv`; return the array to continue with."""
        if self.number is None:
            comm.Isend(send, self.rank + 1).Wait()
        elif self.paired:
            comm.Irecv(inbox, self.rank - 1).Wait()
            op(inbox, send, recv)
            return recv
        return send

    def unfold(self, recv: Array, comm: Channel) -> None:
        """Send the result to the ranks that sat out."""
        if self.number is None:
            comm.Irecv(recv, self.rank + 1).Wait()
        elif self.paired:
            comm.Isend(recv, self.rank - 1).Wait()


def rounds(p: int, n: int, in_place: bool) -> Iterator[MessageRound]:
    """Yield the messages of all ranks, round by round."""
    ranks = PowerOfTwo(0, p)
    extra = ranks.extra
    even, odd = np.arange(0, 2 * extra, 2), np.arange(1, 2 * extra, 2)
    members = np.concatenate([odd, np.arange(2 * extra, p)])  # by their numbers
    if extra:
        yield MessageRound(even, odd, n, [("combine", slice(None))])
    distance = 1
    while distance < ranks.size:
        # What was sent is overwritten, except in the first exchange if that sends another array.
        first = slice(extra, None) if distance == 1 and not in_place else slice(0)
        again = slice(extra) if distance == 1 and not in_place else slice(None)
        partners = members[np.arange(ranks.size) ^ distance]
        yield MessageRound(partners, members, n, [("combine", first), ("recombine", again)])
        distance *= 2
    if extra:
        yield MessageRound(odd, even, n)


def total(arrays: Sequence[Array], out: Array, op: Operation) -> None:
    """Combine the arrays of all ranks as the exchanges do: of pairs, of pairs of pairs ..."""
    extra = PowerOfTwo(0, len(arrays)).extra

    def combine(start: int, stop: int, into: Array) -> Array:
        """Return the result of the members from `start` on, which may be in `into`."""
        if stop - start > 1:
            middle = (start + stop) // 2
            lower = combine(start, middle, into)
            op.compute(lower, combine(middle, stop, np.empty_like(into)), into)
            return into
        if start < extra:
            op.compute(arrays[2 * start], arrays[2 * start + 1], into)
            return into
        return arrays[start + extra]

    found = combine(0, len(arrays) - extra, out)
    if found is not out:
        out[...] = found


@collective(whole=Whole(rounds, total))
def allreduce(send: Array, recv: Array, comm: Channel, op: Operation) -> None:
    """Combine `send` of all ranks into `recv` on each, in log2 p rounds of whole arrays."""
    inbox = comm.scratch(send.size, send.dtype)
    me = PowerOfTwo(comm.rank, comm.size)
    x = me.fold(send, recv, inbox, comm, op)
    distance = 1
    while me.number is not None and distance < me.size:
        partner = me.rank_of(me.number ^ distance)
        sending, receiving = comm.Isend(x, partner), comm.Irecv(inbox, partner)
        receiving.Wait()
        sending.Wait()
        lower, upper = (inbox, x) if partner < comm.rank else (x, inbox)
        combine = op.combine_onto_sent if x is recv else op
        combine(lower, upper, recv)  # s <- s + s', in the same order on both sides: the same bits
        x, distance = recv, 2 * distance
    me.unfold(recv, comm)


def cost(case: CostCase) -> Cost:
    """Return the cost of log2 p arrays, and of the pairs' arrays before and after."""
    me = PowerOfTwo(case.r, case.p)
    k, folds = me.size.bit_length() - 1, 2 if me.extra else 0
    messages = me.messages(k)
    return Cost(
        messages=messages,
        sent=messages * case.n,
        rounds=k + folds,
        carried=(k + folds) * case.n,
        touched=(k + folds // 2) * case.n,
    )
