"""Reduce any number of ranks to a power of two: the first few pair up, and one of each pair waits for the result.

Of p = 2^k + e ranks the first 2e form pairs; the even rank of a pair hands its array to the odd one and sits out.
"""

from __future__ import annotations

from paceline.collectives._buffers import Array
from paceline.comm import Channel, Operation


class PowerOfTwo:
    """One rank's role. `number`: its place among the `size` = 2^k ranks that take part, or None if it sits out.

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
