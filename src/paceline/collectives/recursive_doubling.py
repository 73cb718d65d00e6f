"""Recursive doubling: whole arrays, in the fewest rounds; the best for short ones.

    for d = 1, 2, 4 … p/2: exchange arrays with rank r xor d, and combine
    (p not a power of two: the first ranks pair up before, and one of each pair receives the result after)

log2 p messages and n log2 p elements a rank; with p = 2^k + e the even ones of the first 2e ranks send 1
and n, the odd ones k + 1 and (k+1) n, the others k and k n.

Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH (2005).
"""

from __future__ import annotations

from paceline.collectives._buffers import Array, collective
from paceline.collectives._cost import Case, Cost
from paceline.collectives._power_of_two import PowerOfTwo
from paceline.comm import Channel, Operation


@collective
def allreduce(send: Array, recv: Array, comm: Channel, op: Operation) -> None:
    """Combine `send` of all ranks into `recv` on each, in log2 p rounds of whole arrays."""
    inbox = comm.scratch(send.size, send.dtype)
    me = PowerOfTwo(comm.rank, comm.size)
    x = me.fold(send, recv, inbox, comm, op)
    distance = 1
    while me.number is not None and distance < me.size:
        partner = me.rank_of(me.number ^ distance)
        receiving, sending = comm.Irecv(inbox, partner), comm.Isend(x, partner)
        receiving.Wait()
        sending.Wait()
        lower, upper = (inbox, x) if partner < comm.rank else (x, inbox)
        combine = op.onto_sent if x is recv else op
        combine(lower, upper, recv)  # s <- s + s', in the same order on both sides: the same bits
        x, distance = recv, 2 * distance
    me.unfold(recv, comm)


def cost(case: Case) -> Cost:
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
