"""Allreduce around a ring: every rank sends only to its right neighbour, 1/p of the array at a time.

n elements, p ranks: each rank sends 2 (p - 1) messages and 2 (p - 1) / p n elements, all of them together 2 (p - 1) n.
"""

from paceline import collectives


def ringallreduce(send, recv, comm, op):
    """Combine `send` of all ranks with `op` into `recv` on every rank.

    NumPy arrays of one shape and dtype, any shape and any numbers, also fewer elements than ranks; `op` is an MPI.Op, a
    NumPy ufunc or a function of two arrays, associative and commutative. Messages go over a duplicate of `comm` and are
    received from a named rank, in order: a rank may be a whole call ahead of the others.
    """
    collectives.allreduce(send, recv, comm, op, algorithm="ring")
