from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from paceline.comm.recording import Counts, MessageCount, Recorded, nbytes
from tests.ranks import on_ranks


class Silent:
    """A communicator that does nothing with what it is given, and says what it was."""

    rank, size = 1, 4

    def __init__(self, alive: bool = True) -> None:
        self.alive = alive
        self.calls: list[str] = []

    def __bool__(self) -> bool:
        return self.alive

    def Get_rank(self) -> int:  # noqa: N802
        return self.rank

    def Split(self, color: int, key: int = 0) -> Silent:  # noqa: N802
        return Silent(alive=color >= 0)

    def Get_name(self) -> str:  # noqa: N802
        return "silent"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*arguments: Any, **named: Any) -> str:
            self.calls.append(name)
            return name

        return call


FOUR = np.zeros(4, np.float32)


@pytest.mark.parametrize(
    "name",
    ["Send", "Isend", "Ssend", "Issend", "Bsend", "Ibsend", "Rsend", "Irsend", "Sendrecv", "Isendrecv"],
)
def test_every_way_to_send_a_message_is_counted_once(name: str) -> None:
    comm = Recorded(Silent())
    assert getattr(comm, name)(FOUR, 2) == name
    assert getattr(comm, name)(FOUR, dest=0, tag=7) == name
    assert comm.counts == Counts(point_to_point=MessageCount(2, 32))
    assert comm.bare.calls == [name, name]


def test_a_message_to_nobody_is_not_counted() -> None:
    comm = Recorded(Silent())
    comm.Isend(FOUR, dest=-2)
    assert comm.counts.messages == 0


def test_receives_probes_and_questions_are_not_counted() -> None:
    comm = Recorded(Silent())
    comm.Irecv(FOUR, source=0)
    comm.Probe()
    assert comm.Get_name() == "silent"
    assert (comm.rank, comm.size) == (1, 4)
    assert comm.counts == Counts()


@pytest.mark.parametrize(
    ("name", "arguments", "given"),
    [
        ("Allreduce", (FOUR, FOUR), 16),
        ("Iallreduce", (FOUR, FOUR), 16),
        ("Allreduce", (-1, FOUR), 16),  # MPI.IN_PLACE is a number
        ("Reduce_scatter_block", (FOUR, FOUR), 16),
        ("Allgather", (FOUR, FOUR), 16),
        ("Bcast", (FOUR, 1), 16),
        ("Bcast", (FOUR, 0), 0),
        ("Bcast", (FOUR,), 0),
        ("Ibcast", (FOUR, 1), 16),
        ("Scatter", (None, FOUR, 0), 0),
        ("Scatter", (FOUR, -1, 1), 16),
        ("Barrier", (), 0),
        ("Ibarrier", (), 0),
    ],
)
def test_collective_calls_count_what_is_handed_to_mpi(name: str, arguments: Any, given: int) -> None:
    comm = Recorded(Silent())
    getattr(comm, name)(*arguments)
    assert comm.counts == Counts(collective=MessageCount(1, given))


@pytest.mark.parametrize(
    ("name", "named", "given"),
    [
        ("Allreduce", {"sendbuf": FOUR, "recvbuf": FOUR[:2]}, 16),
        ("Iallreduce", {"recvbuf": FOUR, "sendbuf": -1}, 16),
        ("Gather", {"sendbuf": FOUR, "recvbuf": None, "root": 0}, 16),
        ("Bcast", {"buf": FOUR}, 0),
        ("Bcast", {"buf": FOUR, "root": 1}, 16),
        ("Ibcast", {"root": 1, "buf": FOUR}, 16),
        ("Scatter", {"sendbuf": FOUR, "recvbuf": FOUR[:1], "root": 1}, 16),
        ("Scatterv", {"sendbuf": None, "recvbuf": FOUR}, 0),
    ],
)
def test_collective_calls_by_names_of_arguments(name: str, named: dict[str, Any], given: int) -> None:
    comm = Recorded(Silent())
    assert getattr(comm, name)(**named) == name
    assert comm.counts == Counts(collective=MessageCount(1, given))


def test_messages_by_names_of_arguments() -> None:
    comm = Recorded(Silent())
    comm.Send(buf=FOUR, dest=0)
    comm.Isend(dest=2, buf=FOUR, tag=3)
    comm.Isend(buf=FOUR, dest=-2)
    comm.Sendrecv(sendbuf=FOUR, dest=0, recvbuf=FOUR[:2], source=0)
    comm.Sendrecv_replace(buf=FOUR, dest=0, source=0)
    assert comm.counts == Counts(point_to_point=MessageCount(4, 64))


def test_a_call_without_its_buffer_is_refused_by_the_communicator() -> None:
    class Strict:
        def Isend(self, buf: Any, dest: int) -> None: ...  # noqa: N802

    comm = Recorded(Strict())
    with pytest.raises(TypeError, match=r"Isend\(\) missing .*'buf'"):
        comm.Isend(dest=1)
    with pytest.raises(TypeError, match=r"Isend\(\) missing .*'dest'"):
        comm.Isend(FOUR)
    assert comm.counts.bytes == 0


def test_root_by_name() -> None:
    comm = Recorded(Silent())
    comm.Bcast(FOUR, root=1)
    comm.Bcast(FOUR, root=0)
    assert comm.counts == Counts(collective=MessageCount(2, 16))


def test_children_share_the_counts_and_null_stays_null() -> None:
    comm = Recorded(Silent())
    child = comm.Split(0, key=1)
    child.Isend(FOUR, 0)
    assert comm.counts.point_to_point == MessageCount(1, 16)
    assert isinstance(child, Recorded)
    assert not isinstance(comm.Split(-1), Recorded)


def test_a_copy_counts_with_the_original() -> None:
    comm = Recorded(Silent())
    copy.copy(comm).Isend(FOUR, 0)
    assert comm.counts.messages == 1


def test_recording_a_recorded_communicator_counts_once() -> None:
    inner = Recorded(Silent())
    outer = Recorded(inner)
    outer.Isend(FOUR, 0)
    assert (outer.counts.messages, inner.counts.messages) == (1, 0)
    outer.counts.clear()
    assert outer.counts == Counts()


@pytest.mark.parametrize(
    ("buffer", "size"),
    [
        (FOUR, 16),
        (FOUR[:0], 0),
        (np.float64(3).reshape(()), 8),
        (bytearray(5), 5),
        ([FOUR, "f"], 16),
        ([FOUR, 3, "f"], 12),
        ([FOUR, [1, 2], "f"], 12),
        ([FOUR, np.array([1, 2]), "f"], 12),
        ([FOUR, (1, 2), "f"], 4),  # one element, from the third on
        ([FOUR, (1, 2)], 4),
        ([FOUR, np.int64(3)], 12),
        ([FOUR, 3, "d"], 24),
        ([FOUR, ((1, 1), (0, 2)), "f"], 8),
        (None, 0),
    ],
)
def test_bytes_of_buffers(buffer: Any, size: int) -> None:
    assert nbytes(buffer) == size


def test_bytes_of_arrays_that_are_not_numpys() -> None:
    class Tensor:
        """What PyTorch's tensors say of themselves; they have no buffer interface."""

        nbytes, itemsize = 40, 8

    assert [nbytes(Tensor()), nbytes([Tensor(), 3]), nbytes([Tensor(), (3, 1)])] == [40, 24, 24]


def test_on_real_ranks() -> None:
    on_ranks("tests.comm.cases:recorded", 3)
