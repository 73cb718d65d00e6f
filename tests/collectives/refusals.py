"""Arguments that every collective must refuse, on each rank, before any message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from paceline.collectives import allreduce
from paceline.comm import Recorded, pretend_nodes
from tests.collectives.cases import NAMES


def bad_arrays() -> dict[str, tuple[Any, Any, type[Exception], str]]:
    """What is wrong -> (send, recv, error, words of the message)."""
    ten = np.zeros(10)
    locked = np.zeros(10)
    locked.flags.writeable = False
    again = np.lib.stride_tricks.as_strided(np.zeros(10), (10,), (0,))
    half = np.lib.stride_tricks.as_strided(np.zeros(10), (4, 4), (16, 8))
    return {
        "a list": ([1.0], np.zeros(1), TypeError, "send must be a NumPy array; got list"),
        "a number": (np.zeros(()), 3.0, TypeError, "recv must be a NumPy array; got float"),
        "None": (None, None, TypeError, "send must be a NumPy array; got NoneType"),
        "masked": (np.ma.zeros(3), np.zeros(3), TypeError, "got MaskedArray"),
        "objects": (ten.astype(object), ten.astype(object), TypeError, "must hold numbers; got dtype object"),
        "strings": (np.array(["a"]), np.array(["b"]), TypeError, "must hold numbers; got dtype <U1"),
        "bytes": (np.array([b"a"]), np.array([b"b"]), TypeError, "must hold numbers"),
        "records": (np.zeros(2, "i4,f4"), np.zeros(2, "i4,f4"), TypeError, "must hold numbers"),
        "dates": (np.zeros(2, "M8[s]"), np.zeros(2, "M8[s]"), TypeError, "must hold numbers"),
        "spans": (np.zeros(2, "m8[s]"), np.zeros(2, "m8[s]"), TypeError, "must hold numbers"),
        "dtypes": (ten, ten.astype(np.float32), TypeError, "same dtype; got float64 and float32"),
        "byte orders": (ten, ten.astype(">f8"), TypeError, "same dtype; got float64 and >f8"),
        "lengths": (ten, np.zeros(9), ValueError, "same shape; got (10,) and (9,)"),
        "shapes": (ten, np.zeros((2, 5)), ValueError, "same shape; got (10,) and (2, 5)"),
        "0-d": (np.zeros(()), np.zeros(1), ValueError, "same shape; got () and (1,)"),
        "read-only": (ten, locked, ValueError, "recv must be writeable"),
        "shifted": (ten[:-1], ten[1:], ValueError, "got overlapping views"),
        "backwards": (ten, ten[::-1], ValueError, "got overlapping views"),
        "transposed": ((m := np.zeros((3, 3))), m.T, ValueError, "got overlapping views"),
        "one address": (ten, again, ValueError, "recv must not overlap itself"),
        "rows that meet": (np.zeros((4, 4)), half, ValueError, "recv must not overlap itself"),
    }


def bad_operations(MPI: Any) -> dict[str, tuple[Any, Any, type[Exception], str]]:
    """What is wrong -> (dtype, op, error, words of the message)."""
    return {
        "no operation": (
            float,
            "sum",
            TypeError,
            "op must be a function of two arrays, a NumPy ufunc or an MPI.Op",
        ),
        "None": (float, None, TypeError, "op must be a function of two arrays"),
        "one array": (
            float,
            np.negative,
            TypeError,
            "op must take two arrays and give one; got the ufunc negative",
        ),
        "two results": (float, np.divmod, TypeError, "op must take two arrays and give one"),
        "a product": (float, np.matmul, TypeError, "op must take two arrays and give one"),
        "bits of floats": (float, np.bitwise_and, TypeError, "bitwise_and"),
        "MPI bits of floats": (float, MPI.BXOR, TypeError, "bitwise_xor"),
        "divided integers": (int, np.true_divide, TypeError, "divide"),
        "location": (float, MPI.MAXLOC, TypeError, "op must be one of SUM, PROD"),
        "null": (float, MPI.OP_NULL, TypeError, "op must be one of SUM, PROD"),
        "replace": (float, MPI.REPLACE, TypeError, "op must be one of SUM, PROD"),
    }


@contextmanager
def expect_refusal(error: type[Exception], words: str, where: Any) -> Iterator[None]:
    raised = ""
    try:
        yield
    except error as problem:
        raised = str(problem)
    assert words in raised, (where, raised)
    assert "\n" not in raised, where


def refusals(world: Any) -> None:
    from mpi4py import MPI

    for name in NAMES:
        seen = Recorded(world)
        for what, (send, recv, error, words) in bad_arrays().items():
            with expect_refusal(error, words, (name, what)):
                allreduce(send, recv, seen, algorithm=name)
        for what, (dtype, op, error, words) in bad_operations(MPI).items():
            with expect_refusal(error, words, (name, what)):
                allreduce(np.zeros(3, dtype), np.zeros(3, dtype), seen, op, algorithm=name)
        first_only = MPI.Op.Create(lambda a, b, kind: None, commute=False)
        with expect_refusal(ValueError, "op must be commutative", name):
            allreduce(np.zeros(3), np.zeros(3), seen, first_only, algorithm=name)
        first_only.Free()
        own = MPI.Op.Create(lambda a, b, kind: None, commute=True)
        with expect_refusal(TypeError, "MPI has no float16", name):
            allreduce(np.zeros(3, np.float16), np.zeros(3, np.float16), seen, own, algorithm=name)
        own.Free()
        assert seen.counts.messages == 0, (name, seen.counts)
        for what, comm, error, words in (
            ("a number", 7, TypeError, "comm must be a communicator; got int"),
            ("null", MPI.COMM_NULL, ValueError, "comm must be a live communicator"),
        ):
            with expect_refusal(error, words, (name, what)):
                allreduce(np.zeros(3), np.zeros(3), comm, algorithm=name)
        fine = np.ones(3)
        allreduce(fine, fine, seen, algorithm=name)  # and the communicator is as good as before
        assert (fine == world.size).all()

    half = world.Split(world.rank % 2, world.rank)
    bridge = half.Create_intercomm(0, world, 1 - world.rank % 2, 3)
    with expect_refusal(ValueError, "comm must be an intracommunicator", "intercommunicator"):
        allreduce(np.zeros(3), np.zeros(3), bridge, algorithm="ring")
    bridge.Free()
    half.Free()
    gone = world.Dup()
    gone.Free()
    with expect_refusal(ValueError, "comm must be a live communicator", "freed"):
        allreduce(np.zeros(3), np.zeros(3), gone, algorithm="ring")


def bad_functions(world: Any) -> None:
    """Functions whose result does not fit are found out before any message, on all ranks."""
    for function, error, words in (
        (max, ValueError, "ambiguous"),
        (lambda a, b: a.sum() + b.sum(), ValueError, "op must return an array of its arguments' shape"),
        (lambda a, b: None, ValueError, "op must return an array of its arguments' shape"),
        (lambda a, b: a + 1j * b, TypeError, "Cannot cast"),
    ):
        for name in NAMES:
            seen = Recorded(world)
            with expect_refusal(error, words, name):
                allreduce(np.zeros(6), np.zeros(6), seen, function, algorithm=name)
            assert seen.counts.messages == 0, name


def not_overlapping(world: Any) -> None:
    """Interleaved views of one array are apart; two views of the same elements are in place."""
    for name in NAMES:
        whole = np.arange(20.0)
        allreduce(whole[::2], whole[1::2], world, algorithm=name)
        assert np.array_equal(whole[1::2], world.size * whole[::2]), name
        allreduce(whole[:], whole[:], world, algorithm=name)
        assert whole[2] == 2 * world.size, name


def own_operation(world: Any) -> None:
    """An MPI.Op of the user's own, and functions that see what they are given."""
    from mpi4py import MPI

    def longest(a: Any, b: Any, kind: Any) -> None:
        x, y = np.frombuffer(a), np.frombuffer(b)
        np.copyto(y, x, where=np.abs(x) > np.abs(y))

    op = MPI.Op.Create(longest, commute=True)
    for name in NAMES:
        send, recv = np.array([1.0, -2.0, 3.0]) * (world.rank + 1), np.empty(3)
        allreduce(send, recv, world, op, algorithm=name)
        assert np.array_equal(recv, np.array([1.0, -2.0, 3.0]) * world.size), name
        allreduce(send, send, world, lambda a, b: np.where(np.abs(a) > np.abs(b), a, b), algorithm=name)
        assert np.array_equal(send, recv), name
    op.Free()


def mismatches(comm: Any) -> list[str]:
    """One rank passes another length or dtype: every rank gets the same error, and the next call works."""
    found = []
    odd = comm.Get_rank() == 1
    two_nodes = pretend_nodes(comm, comm.Get_rank() % 2)
    for name in NAMES:
        own = comm.Dup()
        for array in (np.ones(20 if odd else 10), np.ones(10, np.float32 if odd else np.float64)):
            found.append(_refused(array, own, name))
        total = np.ones(10)
        allreduce(total, total, own, algorithm=name)
        assert (total == comm.Get_size()).all()
        own.Free()
    found.append(_refused(np.ones(7 if odd else 6), two_nodes, "hierarchical"))
    two_nodes.Free()
    for size in (300_000, 10):  # also if each rank knows its length from earlier calls, in pieces and in one
        for array in (np.ones(size), np.ones(size + 1)):
            allreduce(array, array, comm, algorithm="shared-memory")
        found.append(_refused(np.ones(size + odd), comm, "shared-memory"))
    total = np.ones(300_000)
    allreduce(total, total, comm, algorithm="shared-memory")
    assert (total == comm.Get_size()).all()
    return found


def _refused(array: Any, comm: Any, name: str) -> str:
    try:
        allreduce(array, array, comm, algorithm=name)
    except ValueError as error:
        return f"{name}: {error}"
    raise AssertionError(f"{name} took arrays that differ")
