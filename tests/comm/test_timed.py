"""What a communicator that keeps time is told, and what it need not do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline.collectives import allreduce, nodes
from paceline.collectives._buffers import describe_array
from paceline.collectives.shared_memory import ROW_BYTES, window
from paceline.comm import Recorded, channel, pretend_nodes
from paceline.comm.operations import Charged, operation
from paceline.comm.torch_processes import TorchProcesses
from paceline.vectors import SHORT, room, shared_memory
from tests.comm.timed import Timed

FLOAT = np.dtype(np.float32)
LONG = 2 * SHORT // 4  # numbers in a message that is not carried


def vectors(count: int, dtype: Any = FLOAT) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.full(count, 2, dtype), np.full(count, 3, dtype), np.zeros(count, dtype)


def test_combining_is_told_by_the_bytes_of_the_result() -> None:
    comm = Timed()
    add = channel(comm).operation(np.add, FLOAT, 40)
    a, b, out = vectors(10)
    add(a, b, out)
    assert out.tolist() == [5] * 10
    assert comm.told == [("combine", 40)]


def test_summing_rows_is_told_by_the_bytes_read() -> None:
    comm = Timed()
    out = np.empty(5, FLOAT)
    rows_of_three = np.arange(15, dtype=FLOAT).reshape(3, 5)
    channel(comm).operation(np.add, FLOAT, 20).combine_rows(rows_of_three, out)
    assert out.tolist() == [15, 18, 21, 24, 27]
    assert comm.told == [("sum", 60)]


def test_an_operation_is_charged_once_however_deep_it_is_given_on() -> None:
    comm = Timed()
    own = channel(comm)
    add = own.operation(np.add, FLOAT, 40)
    assert own.operation(add, FLOAT, 40) is add
    half = own.operation(np.add, np.dtype(np.float16), 4).view_as(np.dtype(np.float16))
    a, b, out = (part.view(np.uint16) for part in vectors(2, np.float16))
    half(a, b, out)
    assert out.view(np.float16).tolist() == [5, 5]
    assert comm.told == [("combine", 4)]


def test_copies_are_told_by_the_bytes_written() -> None:
    comm = Timed()
    a, _, out = vectors(10)
    channel(comm).copy(out, a)
    assert out.tolist() == a.tolist()
    assert comm.told == [("copy", 40)]


def test_where_time_is_real_nothing_is_charged() -> None:
    own = channel(TorchProcesses(0, []))
    add = own.operation(np.add, FLOAT, 40)
    assert add is operation(np.add, FLOAT)
    assert not own.time_only
    assert own.node_of is None
    own.charge("copy", 3)


@pytest.mark.parametrize(
    ("count", "dtype", "computed"),
    [(LONG, np.float32, False), (SHORT // 4, np.float32, True), (LONG, np.int64, True)],
)
def test_time_alone_costs_the_same_and_computes_only_what_is_carried(
    count: int, dtype: Any, computed: bool
) -> None:
    comm = Timed(time_only=True)
    own = channel(comm)
    a, b, out = vectors(count, dtype)
    add = own.operation(np.add, out.dtype, out.nbytes)
    add(a, b, out)
    assert (out == (5 if computed else 0)).all()
    add.combine_rows(np.stack([a, a, b]), out)
    assert (out == (7 if computed else 0)).all()
    own.copy(out, a)
    assert (out == (2 if computed else 0)).all()
    nbytes = out.nbytes
    assert comm.told == [("combine", nbytes), ("sum", 3 * nbytes), ("copy", nbytes)]


def test_memory_that_nobody_looks_at_is_one_for_all_ranks() -> None:
    one, other = Timed(time_only=True), Timed(time_only=True)
    long = [channel(comm).scratch(LONG, FLOAT) for comm in (one, other)]
    kept = [channel(comm).room(LONG, FLOAT) for comm in (one, other)]
    assert np.shares_memory(*long)
    assert np.shares_memory(*kept)
    short = [channel(comm).scratch(SHORT // 4, FLOAT) for comm in (one, other)]
    assert not np.shares_memory(*short)
    # Three messages of a length that is carried: together they are longer.
    three = [channel(comm).scratch(3 * SHORT // 4, FLOAT, messages=3) for comm in (one, other)]
    assert not np.shares_memory(*three)
    assert not np.shares_memory(room(Timed(), LONG, FLOAT), room(Timed(), LONG, FLOAT))


def test_rows_that_nobody_looks_at_are_one_row() -> None:
    all_in_one = shared_memory((5, LONG), FLOAT)
    assert all_in_one.shape == (5, LONG)
    assert np.shares_memory(all_in_one[0], all_in_one[4])
    assert not np.shares_memory(*shared_memory((2, SHORT // 4), FLOAT))


def test_the_shared_memory_collective_tells_its_copies_and_its_sum() -> None:
    comm = Timed(node_of=(0, 0, 0))
    send, recv = np.arange(48, dtype=FLOAT), np.zeros(48, FLOAT)
    _, _, descriptions = window(channel(comm), ROW_BYTES)
    descriptions[1:] = describe_array(48, FLOAT)  # the other ranks pass arrays like this one's
    allreduce(send, recv, comm, algorithm="shared-memory")
    # Of three cache lines this rank adds up the first; the other ranks' rows are zeros.
    assert recv.tolist() == [*range(16), *[0] * 32]
    assert comm.told == [("copy", 192), ("sum", 3 * 64), ("copy", 192)]


def test_known_nodes_need_no_message_and_are_found_once_for_all() -> None:
    layout = tuple(np.repeat(np.arange(500), 3).tolist())
    one, other = Timed(node_of=layout), Timed(node_of=layout)
    found = nodes(channel(one))
    assert nodes(channel(other)) is found
    assert one.messages == other.messages == []
    assert (found.count, found.smallest, found.largest) == (500, 3, 3)
    assert nodes(channel(Timed(node_of=(*layout,)))) == found


def test_pretended_nodes_count_more_than_known_ones() -> None:
    apart = pretend_nodes(Timed(node_of=(0, 0)), 7)
    assert channel(apart).node_of is None
    assert channel(apart).time_only is False


def test_names_come_from_the_communicator_that_has_some() -> None:
    comm: Any = Timed()
    comm.Dup = lambda: names
    names: Any = Timed()
    names.MPI = SimpleNamespace(SUM="its own sum")
    assert channel(comm).MPI is names.MPI


def test_an_operation_that_looks_like_mpis() -> None:
    alike = SimpleNamespace(ufunc=np.maximum, Reduce_local=None)
    assert operation(alike, FLOAT) is operation(np.maximum, FLOAT)

    def reduce_local(a: np.ndarray, b: np.ndarray) -> None:
        b[...] = a - b

    made = SimpleNamespace(ufunc=None, Reduce_local=reduce_local, Is_commutative=lambda: True)
    a, b, out = vectors(3)
    operation(made, FLOAT)(a, b, out)
    assert out.tolist() == [-1] * 3


def test_a_recorded_communicator_keeps_time_as_well() -> None:
    bare = Timed(time_only=True)
    comm = Recorded(bare)
    assert (comm.time_only, comm.node_of, comm.Wtime()) == (True, (0, 0), 12.5)
    comm.Work("copy", 8)
    comm.Pass()
    assert bare.told == [("copy", 8), "pass"]
    bare.time_only = False  # not remembered
    assert comm.time_only is False
    assert isinstance(channel(comm).operation(np.add, FLOAT, 8), Charged)
