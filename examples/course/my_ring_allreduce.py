"""Allreduce round a ring: every rank sends to its right neighbour only, a p-th of the array at a time.

n elements, p ranks: each rank sends 2 (p - 1) messages and 2 (p - 1) / p n elements, all of them together 2 (p - 1) n.
"""

from paceline import collectives


def ringallreduce(send, recv, comm, op):
    """Combine `send` of all ranks with `op` into `recv` on every rank.

    NumPy arrays of one shape and dtype, any shape and any numbers, also fewer elements than ranks; `op` is an MPI.Op, a
    NumPy ufunc or a function of two arrays, associative and commutative. Messages go over a duplicate of `comm` and are
    received from a named rank, in order: a rank that is a whole call ahead disturbs nobody.
    """
    collectives.allreduce(send, recv, comm, op, algorithm="ring")
