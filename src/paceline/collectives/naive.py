"""Naive: every rank sends its whole array to every other.

    send my array to all; receive theirs, one after the other; combine in the order of the ranks

p-1 messages and (p-1) n elements a rank, p(p-1) n in all: the cost that the other algorithms avoid.
"""

from __future__ import annotations

from paceline.collectives._buffers import Array, collective
from paceline.collectives._cost import Cost, CostCase
from paceline.comm import Channel, Operation


@collective
def allreduce(send: Array, recv: Array, comm: Channel, op: Operation) -> None:
    """Combine `send` of all ranks into `recv` on each, with every rank sending to every other."""
    r, p, n = comm.rank, comm.size, send.size
    first, second, total = comm.scratch(3 * n, send.dtype, messages=3).reshape(3, n)
    others = [q for q in range(p) if q != r]
    sending = [comm.Isend(send, q) for q in others]

    inboxes = {q: (first, second)[k % 2] for k, q in enumerate(others)}
    coming = iter(others)
    receiving = comm.Irecv(inboxes[q := next(coming)], q)
    for source in range(p):
        if source == r:
            x = send
        else:
            receiving.Wait()
            x = inboxes[source]
            if (q := next(coming, -1)) >= 0:  # the next one arrives while this one is added
                receiving = comm.Irecv(inboxes[q], q)
        if source == 0:
            comm.copy(total, x)
        else:
            op(total, x, total)  # s <- s + x_q
    for request in sending:
        request.Wait()
    comm.copy(recv, total)


def cost(case: CostCase) -> Cost:
    """Return the cost of an array sent to each of the others."""
    others = case.p - 1
    elements = others * case.n
    touched = elements + 2 * case.n
    return Cost(messages=others, sent=elements, rounds=others, carried=elements, touched=touched)
