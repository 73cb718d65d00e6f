"""Naive allreduce: every rank sends its whole array to every other rank.

n elements, p ranks: each rank sends p - 1 messages and (p - 1) n elements, all of them together p (p - 1) n.
"""

from paceline import collectives


def allreduce(send, recv, comm, op):
    """Combine `send` of all ranks with `op` into `recv` on every rank.

    NumPy arrays of one shape and dtype, any shape and any numbers; `op` is an MPI.Op, a NumPy ufunc or a function of two
    arrays, associative and commutative. Messages go over a duplicate of `comm` and are received from a named rank, in
    order: a rank may be a whole call ahead of the others.
    """
    collectives.allreduce(send, recv, comm, op, algorithm="naive")
