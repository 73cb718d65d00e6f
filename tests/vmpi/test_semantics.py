"""MPI's rules on simulated ranks, one at a time, and every mistake that is an error: who, what, where."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paceline import vmpi
from paceline.collectives import allreduce
from paceline.vectors import carried
from paceline.vmpi.errors import (
    BufferChanged,
    CollectiveMismatch,
    Deadlock,
    MPIError,
    RankFailed,
    SimulationError,
    Truncated,
    TypeMismatch,
    Unfinished,
    Unmatched,
)
from tests.ranks import on_ranks

Function = Callable[[Any], Any]


def _line(function: Function, text: str) -> str:
    """file:line of the line of a function that holds `text`."""
    import inspect

    lines, start = inspect.getsourcelines(function)
    return f"vmpi/test_semantics.py:{start + next(n for n, line in enumerate(lines) if text in line)}"


def _refused(function: Function, kind: type[SimulationError], ranks: int = 2, **options: Any) -> str:
    """What the simulator says; the error is raised itself, or by one of the ranks."""
    with pytest.raises((kind, RankFailed)) as caught:
        vmpi.run(function, ranks=ranks, **options)
    error: BaseException = caught.value
    if isinstance(error, RankFailed) and kind is not RankFailed:
        error = error.error
    assert type(error) is kind
    return str(error)


# ---- matching


def test_messages_of_a_pair_keep_their_order() -> None:
    """A long one that is announced, and a short one after it, which is there sooner."""

    def program(comm: Any) -> Any:
        if comm.rank == 0:
            long, short = np.full(100_000, 1.0), np.full(1, 2.0)
            requests = [comm.Isend(long, 1, 5), comm.Isend(short, 1, 5), comm.Issend(short + 1, 1, 5)]
            for request in requests:
                request.Wait()
            return None
        found = []
        for _ in range(3):
            room = np.zeros(100_000)
            comm.Recv(room, 0, 5)
            found.append(room[0])
        return found

    for network in ("loopback", "1gbe", "infiniband:jitter=1"):
        assert vmpi.run(program, ranks=2, network=network).values[1] == [1.0, 2.0, 3.0]


def test_an_announcement_does_not_overtake() -> None:
    def program(comm: Any) -> Any:
        if comm.rank == 0:
            requests = [comm.Isend(np.zeros(8000), 1), comm.Issend(np.ones(1), 1)]  # 64,000 bytes are eager
            for request in requests:
                request.Wait()
        else:
            from mpi4py import MPI

            status = MPI.Status()
            lengths = []
            for _ in range(2):
                comm.Probe(0, 0, status)
                lengths.append(status.Get_count())
                comm.Recv(np.zeros(status.Get_count() // 8), 0, 0)
            return lengths
        return None

    assert vmpi.run(program, ranks=2, network="1gbe").values[1] == [64000, 8]


def test_tags_and_wildcards() -> None:
    def program(comm: Any) -> Any:
        from mpi4py import MPI

        if comm.rank:
            comm.Compute(comm.rank)
            for tag in (7, 8):
                comm.Send(np.array([comm.rank * 10 + tag]), 0, tag)
            return None
        status, found = MPI.Status(), []
        for source, tag in ((2, 8), (MPI.ANY_SOURCE, 8), (2, MPI.ANY_TAG), (MPI.ANY_SOURCE, MPI.ANY_TAG)):
            room = np.zeros(3, int)
            comm.Recv(room, source, tag, status)
            found.append((int(room[0]), status.source, status.tag, status.Get_count(MPI.LONG)))
        return found

    assert vmpi.run(program, ranks=3).values[0] == [
        (28, 2, 8, 1),
        (18, 1, 8, 1),
        (27, 2, 7, 1),
        (17, 1, 7, 1),
    ]


def test_communicators_are_apart() -> None:
    def program(comm: Any) -> Any:
        other = comm.Dup()
        if comm.rank == 0:
            comm.Send(np.array([1]), 1)
            other.Send(np.array([2]), 1)
            return None
        one, two = np.zeros(1, int), np.zeros(1, int)
        other.Recv(two, 0)
        comm.Recv(one, 0)
        return [int(one[0]), int(two[0])]

    assert vmpi.run(program, ranks=2).values[1] == [1, 2]


def test_messages_to_and_from_proc_null() -> None:
    def program(comm: Any) -> Any:
        from mpi4py import MPI

        room, status = np.ones(2), MPI.Status()
        comm.Send(room, MPI.PROC_NULL)
        comm.Recv(room, MPI.PROC_NULL, 3, status)
        comm.Sendrecv(room, MPI.PROC_NULL, 0, room, MPI.PROC_NULL)
        message = comm.Mprobe(MPI.PROC_NULL)
        message.Recv(room)
        assert comm.Iprobe(MPI.PROC_NULL)
        nobody = status.Get_source() == MPI.PROC_NULL and status.Get_tag() == MPI.ANY_TAG
        return [nobody, status.Get_count(), room.tolist()]

    assert vmpi.run(program, ranks=1).values == [[True, 0, [1.0, 1.0]]]


def test_what_a_status_counts() -> None:
    def program(comm: Any) -> Any:
        from mpi4py import MPI

        if comm.rank == 0:
            comm.Send(np.zeros(3, np.float32), 1)
            return None
        status = MPI.Status()
        comm.Recv(np.zeros(10, np.float32), 0, 0, status)
        kinds = [MPI.BYTE, MPI.FLOAT, MPI.DOUBLE, MPI.FLOAT.Create_contiguous(3)]
        return [status.Get_count(kind) for kind in kinds] + [MPI.UNDEFINED]

    count = vmpi.run(program, ranks=2).values[1]
    assert count == [12, 3, count[-1], 1, count[-1]]


def test_the_earliest_receive_takes_the_message() -> None:
    def program(comm: Any) -> Any:
        from mpi4py import MPI

        if comm.rank == 0:
            comm.Compute(1)
            for number in range(3):
                comm.Send(np.array([number]), 1, 4)
            return None
        rooms = [np.zeros(1, int) for _ in range(3)]
        places = [(MPI.ANY_SOURCE, 4), (0, MPI.ANY_TAG), (0, 4)]
        MPI.Request.Waitall([comm.Irecv(room, *place) for room, place in zip(rooms, places, strict=True)])
        return [int(room[0]) for room in rooms]

    assert vmpi.run(program, ranks=2).values[1] == [0, 1, 2]


def test_the_message_that_came_first_is_taken_first() -> None:
    def program(comm: Any) -> Any:
        if comm.rank:
            comm.Compute(1.0 * (comm.size - comm.rank))
            comm.Send(np.array([comm.rank]), 0)
            return None
        comm.Compute(100)
        found = []
        for _ in range(3):
            room = np.zeros(1, int)
            comm.Recv(room)
            found.append(int(room[0]))
        return found

    assert vmpi.run(program, ranks=4).values[0] == [3, 2, 1]


def test_a_receive_can_be_taken_back() -> None:
    def program(comm: Any) -> Any:
        room = np.ones(2)
        request = comm.Irecv(room, 0, 9)
        request.Cancel()
        request.Wait()
        return room.tolist()

    assert vmpi.run(program, ranks=1).values == [[1.0, 1.0]]


# ---- mistakes


def test_parts_must_be_counted_in_whole_numbers() -> None:
    def program(comm: Any) -> int:
        whole, room = np.arange(2 * comm.size), np.zeros(2 * comm.size, int)
        for wrong in ([1.5] * comm.size, np.full(comm.size, 1.5)):
            with pytest.raises(TypeError, match="whole number"):
                comm.Alltoallv([whole, wrong], room)
        comm.Alltoallv([whole, np.full(comm.size, 2)], room)
        return int(room.sum())

    assert vmpi.run(program, ranks=2).values == [2, 10]


def test_a_program_may_initialize_and_finalize_mpi_itself() -> None:
    def program(comm: Any) -> list[bool]:
        import mpi4py
        from mpi4py import MPI

        mpi4py.rc.initialize = False
        found = [MPI.Is_initialized(), MPI.Is_finalized()]
        MPI.Init()
        found += [MPI.Is_initialized(), MPI.Is_finalized()]
        MPI.Finalize()
        return [*found, MPI.Is_initialized(), MPI.Is_finalized()]

    import mpi4py

    before = mpi4py.rc.initialize
    assert vmpi.run(program, ranks=2).values == [[False, False, True, False, True, True]] * 2
    assert mpi4py.rc.initialize == before


def test_memory_of_mpi_is_read_and_written_as_in_mpi4py() -> None:
    def program(comm: Any) -> bytes:
        from mpi4py import MPI

        memory = MPI.Alloc_mem(4)
        memory[1:3] = b"ab"
        found = memory.tobytes()
        with pytest.raises(ValueError, match="do not fit"):
            memory[:] = b"a"
        with pytest.raises(TypeError, match="read-only"):
            memory.toreadonly()[0] = 1
        with pytest.raises(IndexError, match="follow each other"):
            memory[::2]
        MPI.Free_mem(memory)
        assert (memory.address, memory.nbytes, len(memory)) == (0, 0, 0)
        return found

    assert vmpi.run(program, ranks=1).values == [b"\0ab\0"]


def test_a_refused_sendrecv_leaves_no_receive_behind() -> None:
    def program(comm: Any) -> int:
        here, there = np.array([comm.rank]), np.array([-1])
        with pytest.raises(TypeError):
            comm.Sendrecv(object(), comm.rank, recvbuf=there, source=comm.rank)
        assert there[0] == -1
        comm.Sendrecv(here, comm.rank, recvbuf=there, source=comm.rank)
        return int(there[0])

    assert vmpi.run(program, ranks=2).values == [0, 1]


def test_arrays_of_any_order_and_type_arrive() -> None:
    """Messages from plain arrays take a shorter way than those from other arrays; the bytes are the same."""

    def program(comm: Any) -> bool:
        whole = np.arange(12.0).reshape(3, 4)
        for sent in (
            whole, whole[1:], whole.T, whole.astype(bool), whole.astype("G"),
            np.array(3, np.int16), np.empty(0), whole.astype("S1"),
        ):  # fmt: skip
            got = np.zeros_like(sent)
            receiving = comm.Irecv(got, comm.rank)
            comm.Isend(sent, comm.rank).Wait()
            receiving.Wait()
            assert got.tobytes("A") == sent.tobytes("A")
        with pytest.raises(BufferError, match="contiguous"):
            comm.Isend(whole[:, ::2], comm.rank)
        with pytest.raises(BufferError, match="other byte order"):
            comm.Isend(whole.astype(whole.dtype.newbyteorder()), comm.rank)
        whole.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            comm.Irecv(whole, comm.rank)
        with pytest.raises(BufferError, match="read-only"):  # as mpi4py calls it
            comm.Irecv(whole, comm.rank)
        return True

    for strict in (True, False):
        assert all(vmpi.run(program, ranks=1, strict=strict).values)


def test_a_freed_communicator_is_null() -> None:
    def program(comm: Any) -> str:
        from mpi4py import MPI

        other = comm.Dup()
        other.Free()
        assert other == MPI.COMM_NULL
        assert isinstance(other, MPI.Intracomm)
        with pytest.raises(MPIError, match="null communicator"):
            other.Isend(np.zeros(1), 0)
        with pytest.raises(AttributeError):
            _ = other.no_such_name
        return type(other).__name__

    assert set(vmpi.run(program, ranks=2).values) == {"Intracomm"}


def test_truncation() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 0:
            comm.Send(np.zeros(5), 1)
        else:
            comm.Recv(np.zeros(4), 0)

    assert _refused(program, Truncated) == (
        f"message truncated: 40 bytes with tag 0 from Send of rank 0 at {_line(program, 'Send')} do not fit into the "
        f"32 bytes of Recv of rank 1 at {_line(program, 'Recv')}"
    )


@pytest.mark.parametrize("strict", [True, False])
def test_a_truncated_receive_can_be_caught(strict: bool) -> None:
    """As in Open MPI: calls for several requests complete all of them, and their statuses have the errors."""

    def program(comm: Any) -> Any:
        from mpi4py import MPI

        long = np.arange(10.0)
        if comm.rank == 0:
            for tag in range(10):
                comm.Send(long, 1, tag)
            comm.Sendrecv(long, 1, 10, np.empty(10), 1, 10)
            comm.Sendrecv(long, 1, 10, np.empty(10), 1, 10)
            return None
        found: list[Any] = []

        def attempt(call: Any, *arguments: Any) -> None:
            with pytest.raises(MPI.Exception, match="message truncated: 80 bytes") as caught:
                call(*arguments)
            found.append(caught.value.Get_error_class())

        status = MPI.Status()
        attempt(comm.Recv, np.empty(5), 0, 0, status)
        assert (status.source, status.tag) == (0, 0)
        request = comm.Irecv(np.empty(5), 0, 1)
        attempt(request.Wait)
        assert request == MPI.REQUEST_NULL
        attempt(comm.Mprobe(0, 2).Recv, np.empty(5))
        persistent = comm.Recv_init(np.empty(5), 0, 3)
        persistent.Start()
        attempt(persistent.Wait)
        persistent.Free()
        for tag, call in ((4, MPI.Request.Waitall), (6, MPI.Request.Testall), (8, MPI.Request.Waitsome)):
            comm.Probe(0, tag + 1)  # both have arrived
            whole, statuses = np.zeros(10), [MPI.Status(), MPI.Status()]
            requests = [comm.Irecv(np.empty(5), 0, tag), comm.Irecv(whole, 0, tag + 1)]
            attempt(call, requests, statuses)
            assert [status.error for status in statuses] == [MPI.ERR_TRUNCATE, MPI.SUCCESS]
            assert all(request == MPI.REQUEST_NULL for request in requests)
            assert whole.tolist() == long.tolist()
        attempt(comm.Sendrecv, long, 0, 10, np.empty(5), 0, 10)
        request = comm.Isendrecv(long, 0, 10, np.empty(5), 0, 10)
        attempt(request.Wait)
        assert request == MPI.REQUEST_NULL
        one, several = MPI.ERR_TRUNCATE, MPI.ERR_IN_STATUS
        assert found == [one, one, one, one, several, several, several, one, one]
        return True

    assert vmpi.run(program, ranks=2, strict=strict).values[1]


def test_an_error_names_no_lines_if_they_are_not_recorded() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 0:
            comm.Send(np.zeros(5), 1)
        else:
            comm.Recv(np.zeros(4), 0)

    assert _refused(program, Truncated, strict=False) == (
        "message truncated: 40 bytes with tag 0 from Send of rank 0 do not fit into the 32 bytes of Recv of rank 1"
    )


def test_type_mismatch() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 0:
            comm.Send(np.zeros(2, np.float32), 1)
        else:
            comm.Recv(np.zeros(2, np.int32), 0)

    assert _refused(program, TypeMismatch) == (
        f"type mismatch: 8 bytes with tag 0 from Send of rank 0 at {_line(program, 'Send')} are f4, but Recv of "
        f"rank 1 at {_line(program, 'Recv')} expects i4"
    )
    vmpi.run(program, ranks=2, strict=False)


def test_types_of_other_names_are_the_same() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 0:
            comm.Send(np.zeros(2, np.longlong), 1)
        else:
            comm.Recv(np.zeros(2, np.int64), 0)

    vmpi.run(program, ranks=2)


def test_a_buffer_changed_while_it_is_sent() -> None:
    def program(comm: Any) -> None:
        values = np.zeros(4)
        if comm.rank == 0:
            request = comm.Isend(values, 1)
            values[2] = 1
            request.Wait()
        else:
            comm.Recv(values, 0)

    assert _refused(program, BufferChanged) == (
        f"the buffer of Isend of rank 0 at {_line(program, 'Isend')}, to rank 1, was changed before the message had "
        "been sent"
    )
    vmpi.run(program, ranks=2, strict=False)


def test_a_buffer_changed_while_it_is_received_into() -> None:
    def program(comm: Any) -> None:
        values = np.zeros(4)
        if comm.rank == 0:
            comm.Send(values, 1)
        else:
            request = comm.Irecv(values, 0)
            values[2] = 1
            request.Wait()

    assert _refused(program, BufferChanged) == (
        f"the buffer of Irecv of rank 1 at {_line(program, 'Irecv')} was changed before the message from rank 0 arrived"
    )


def test_a_buffer_of_two_receives() -> None:
    def program(comm: Any) -> None:
        from mpi4py import MPI

        values = np.zeros(4)
        if comm.rank == 0:
            comm.Send(values, 1)
            comm.Send(values[1:], 1)
        else:
            first = comm.Irecv(values, 0)
            second = comm.Irecv(values[1:], 0)
            MPI.Request.Waitall([first, second])

    first, second = (_line(program, f"{name} = comm.Irecv") for name in ("first", "second"))
    assert _refused(program, BufferChanged) == (
        f"the buffer of Irecv of rank 1 at {second} is also that of Irecv of rank 1 at {first}; receives in progress at "
        "the same time need a buffer each (--no-strict, or strict=False, does not check this)"
    )


def test_a_buffer_read_too_early_is_no_number() -> None:
    def program(comm: Any) -> Any:
        values = np.zeros(4)
        if comm.rank == 0:
            comm.Compute(1)
            comm.Send(values, 1)
            return None
        request = comm.Irecv(values, 0)
        early = bool(np.isnan(values).all())
        request.Wait()
        return [early, values.tolist()]

    assert vmpi.run(program, ranks=2).values[1] == [True, [0.0] * 4]


def test_a_buffer_changed_in_a_collective() -> None:
    def program(comm: Any) -> None:
        values, sums = np.zeros(4), np.zeros(4)
        request = comm.Iallreduce(values, sums)
        values[0] = comm.rank  # rank 0 leaves it as it is
        request.Wait()

    assert _refused(program, BufferChanged) == (
        f"a buffer of Iallreduce of rank 1 at {_line(program, 'Iallreduce')} was changed before the call had completed"
    )


def test_a_message_that_nobody_receives() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 0:
            comm.Send(np.zeros(3), 1, 6)

    assert _refused(program, Unmatched) == (
        "unmatched messages, sent but never received:\n"
        f"  24 bytes with tag 6 from Send of rank 0 at {_line(program, 'Send')}"
    )
    vmpi.run(program, ranks=2, strict=False)


def test_a_receive_that_nobody_answers() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 1:
            comm.Irecv(np.zeros(3), 0)

    assert _refused(program, Unmatched) == (
        f"unmatched receives, for which no message was sent:\n  Irecv of rank 1 at {_line(program, 'Irecv')}"
    )


def test_a_request_that_is_never_waited_for() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 0:
            comm.Isend(np.zeros(3), 1)
        else:
            comm.Recv(np.zeros(3), 0)

    assert _refused(program, Unfinished) == (
        "unfinished requests, never waited for or freed:\n"
        f"  24 bytes with tag 0 from Isend of rank 0 at {_line(program, 'Isend')}"
    )


def test_a_window_that_is_never_freed() -> None:
    def program(comm: Any) -> None:
        comm.MPI.Win.Allocate_shared(8, comm=comm)

    assert _refused(program, Unfinished) == (
        "unfinished requests, never waited for or freed:\n"
        f"  window of rank 0, allocated at {_line(program, 'Allocate_shared')}"
    )


def test_two_that_wait_for_each_other() -> None:
    def program(comm: Any) -> None:
        values = np.zeros(1)
        comm.Compute(2e-3 * comm.rank)
        comm.Recv(values, 1 - comm.rank)
        comm.Send(values, 1 - comm.rank)

    line = _line(program, "Recv")
    said = _refused(program, Deadlock)
    assert re.sub(r"0\.\d+ ms", "0 ms", re.sub(r"2\.0\d+ ms", "2 ms", said)) == (
        "deadlock: 2 of 2 ranks are waiting, and no message is on its way\n"
        f"  rank 0 is waiting in Recv from rank 1 with any tag at {line}, 0 ms after the start\n"
        f"  rank 1 is waiting in Recv from rank 0 with any tag at {line}, 2 ms after the start"
    )


def test_sends_that_rely_on_being_buffered() -> None:
    def program(comm: Any) -> None:
        mine, theirs = np.zeros(1), np.zeros(1)
        comm.Send(mine, 1 - comm.rank)
        comm.Recv(theirs, 1 - comm.rank)

    vmpi.run(program, ranks=2)
    said = _refused(program, Deadlock, rendezvous=True)
    line = _line(program, "Send")
    assert "rank 0 is waiting in Send to rank 1 with tag 0 at " + line in said
    assert "rank 1 is waiting in Send to rank 0 with tag 0 at " + line in said
    assert f"it has not received 8 bytes with tag 0 from Send of rank 0 at {line}" in said


def test_a_collective_to_which_one_does_not_come() -> None:
    def program(comm: Any) -> None:
        if comm.rank != 2:
            comm.Allreduce(np.zeros(2), np.zeros(2))

    said = _refused(program, Deadlock, ranks=4)
    assert f"rank 3 is waiting in Allreduce at {_line(program, 'Allreduce')}" in said
    assert said.endswith("Allreduce(op=SUM, bytes=16, type=f8) of 4 ranks was not called by rank 2")


def test_looking_for_ever_is_a_deadlock() -> None:
    def program(comm: Any) -> None:
        while not comm.Iprobe():
            pass

    for ranks in (1, 3):
        said = _refused(program, Deadlock, ranks=ranks)
        keep = "keeps" if ranks == 1 else "keep"
        assert f"{ranks} of {ranks} ranks {keep} polling for messages that no rank sends" in said
        assert f"rank 0 is polling for messages at {_line(program, 'while')}" in said


def test_looking_for_what_comes_late_is_none() -> None:
    def program(comm: Any) -> int:
        if comm.rank == 0:
            comm.Compute(0.03)  # a hundred thousand looks of the other
            comm.Send(np.zeros(1), 1)
            return 0
        looks = 0
        while not comm.Iprobe():
            looks += 1
        comm.Recv(np.zeros(1), 0)
        return looks

    assert vmpi.run(program, ranks=2).values[1] > 50_000


def test_a_receive_that_nobody_waited_for_is_no_message_without_one() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 0:
            comm.Send(np.zeros(1), 1)
        else:
            comm.Irecv(np.zeros(1), 0)

    said = _refused(program, Unfinished)
    assert f"Irecv of rank 1 at {_line(program, 'Irecv')}" in said


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        (("Barrier()", "Bcast(np.zeros(1))"), ("Barrier", "Bcast(root=0, bytes=8, type=f8)")),
        (
            ("Bcast(np.zeros(1), root=0)", "Bcast(np.zeros(1), root=1)"),
            ("Bcast(root=0, bytes=8, type=f8)", "Bcast(root=1, bytes=8, type=f8)"),
        ),
        (
            ("Allreduce(np.zeros(2), np.zeros(2))", "Allreduce(np.zeros(3), np.zeros(3))"),
            ("Allreduce(op=SUM, bytes=16, type=f8)", "Allreduce(op=SUM, bytes=24, type=f8)"),
        ),
        (
            ("Allreduce(np.zeros(2), np.zeros(2))", "Allreduce(np.zeros(2), np.zeros(2), comm.MPI.MAX)"),
            ("Allreduce(op=SUM, bytes=16, type=f8)", "Allreduce(op=MAX, bytes=16, type=f8)"),
        ),
        (
            ("Allgather(np.zeros(1), np.zeros(2))", "Allgather(np.zeros(1, int), np.zeros(2, int))"),
            ("Allgather(bytes=8, type=f8)", "Allgather(bytes=8, type=i8)"),
        ),
        (
            ("Ibarrier().Wait()", "Barrier()"),
            ("Ibarrier", "Barrier"),
        ),
        (("bcast(1, 0)", "bcast(1, 1)"), ("bcast(root=0)", "bcast(root=1)")),
    ],
)
def test_ranks_that_do_not_agree(calls: tuple[str, str], said: tuple[str, str]) -> None:
    def program(comm: Any) -> None:
        eval(f"comm.{calls[comm.rank]}", {"np": np, "comm": comm})

    told = _refused(program, CollectiveMismatch)
    for rank in range(2):
        assert re.search(rf"rank {rank} calls {re.escape(said[rank])} at ", told)


def test_the_lines_of_a_mismatch() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 0:
            comm.Barrier()
        else:
            comm.Bcast(np.zeros(1))

    told = _refused(program, CollectiveMismatch)
    assert _line(program, "Barrier") in told
    assert _line(program, "Bcast") in told


def test_parts_that_do_not_agree() -> None:
    def program(comm: Any) -> None:
        comm.Gatherv(np.zeros(comm.rank), [np.zeros(5), [0, 1, 3]])

    line = _line(program, "Gatherv")
    assert _refused(program, CollectiveMismatch, ranks=3) == (
        f"in Gatherv, rank 2 sends rank 0 16 bytes of f8 at {line}, but rank 0 expects 24 bytes of f8 from rank 2 "
        f"at {line}"
    )


def test_a_rank_that_fails_ends_the_run() -> None:
    def program(comm: Any) -> None:
        comm.Compute(1)
        if comm.rank == 3:
            raise ValueError("no such thing")
        comm.Barrier()

    assert _refused(program, RankFailed, ranks=5) == "rank 3 of 5 failed: ValueError: no such thing"


def test_abort_ends_the_run() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 1:
            comm.Abort(7)

    assert "rank 1 of 2 failed: Aborted: Abort(7)" in _refused(program, RankFailed)


# ---- windows


def test_windows_are_one_memory() -> None:
    def program(comm: Any) -> Any:
        window = comm.MPI.Win.Allocate_shared(8 * (comm.rank + 1), 8, comm=comm)
        mine = np.frombuffer(window.tomemory(), float)
        mine[:] = comm.rank
        window.Fence()
        first, unit = window.Shared_query(0)
        start = np.frombuffer(first, np.uint8).ctypes.data
        places = [
            np.frombuffer(window.Shared_query(rank)[0], np.uint8).ctypes.data - start
            for rank in range(comm.size)
        ]
        values = [np.frombuffer(window.Shared_query(rank)[0], float).tolist() for rank in range(comm.size)]
        window.Free()
        return [unit, places, values]

    assert vmpi.run(program, ranks=3).values == [[8, [0, 8, 24], [[0.0], [1.0] * 2, [2.0] * 3]]] * 3


def test_waiting_for_what_another_rank_writes() -> None:
    def program(comm: Any, writes: bool) -> float:
        from mpi4py import MPI

        window = MPI.Win.Allocate_shared(8 if comm.rank == 0 else 0, 8, comm=comm)
        flag = np.frombuffer(window.Shared_query(0)[0], "i8")
        window.Lock_all()
        if comm.rank == 0:
            comm.Compute(1.0)
            flag[0] = writes
            window.Sync()
        else:
            while not flag[0]:
                window.Sync()
        window.Unlock_all()
        window.Free()
        return float(comm.Wtime())

    assert vmpi.run(program, True, ranks=3).values == pytest.approx([1.0] * 3, rel=0.01)
    with pytest.raises((Deadlock, RankFailed), match="2 of 3 ranks keep polling"):
        vmpi.run(program, False, ranks=3)


def test_locks_are_held_by_one() -> None:
    """Each takes the lock, computes, adds one: the clock of the last is the sum of all."""

    def program(comm: Any) -> Any:
        window = comm.MPI.Win.Allocate_shared(8 if comm.rank == 0 else 0, comm=comm)
        count = np.frombuffer(window.Shared_query(0)[0], np.int64)
        window.Lock(0)
        before = int(count[0])
        comm.Compute(1.0)
        comm.Recv(np.zeros(1), comm.MPI.PROC_NULL)
        count[0] = before + 1
        window.Unlock(0)
        at = comm.Wtime()
        comm.Barrier()
        found = int(count[0])
        window.Free()
        return [found, round(at)]

    values = vmpi.run(program, ranks=4).values
    assert [found for found, _ in values] == [4] * 4
    assert sorted(at for _, at in values) == [1, 2, 3, 4]


def test_windows_over_several_nodes_are_refused() -> None:
    def program(comm: Any) -> Any:
        node = comm.Split_type(comm.MPI.COMM_TYPE_SHARED)
        window = comm.MPI.Win.Allocate_shared(8, comm=node)
        window.Free()
        with pytest.raises(MPIError) as caught:
            comm.MPI.Win.Allocate_shared(8, comm=comm)
        same = isinstance(caught.value, comm.MPI.Exception)
        return [node.Get_size(), same, caught.value.Get_error_class() == comm.MPI.ERR_RMA_SHARED]

    assert vmpi.run(program, ranks=4, network="10gbe:ranks-per-node=2").values == [[2, True, True]] * 4


# ---- many


def test_many_ranks_together() -> None:
    def program(comm: Any) -> Any:
        total, values = np.zeros(3, np.float32), np.full(3, comm.rank % 2, np.float32)
        comm.Allreduce(values, total)
        comm.Barrier()
        comm.Bcast(values, root=5)
        rows = np.zeros(comm.size, np.int32) if comm.rank == 0 else None
        comm.Gather(np.array([comm.rank], np.int32), rows)
        right = rows is None or bool((rows == np.arange(comm.size)).all())
        return [float(total[0]), float(values[0]), right]

    assert vmpi.run(program, ranks=4096, strict=False).values == [[2048.0, 1.0, True]] * 4096


@pytest.mark.parametrize("algorithm", ["naive", "ring", "recursive-doubling", "rabenseifner", "native"])
def test_time_alone_is_as_strict_and_takes_as_long(algorithm: str) -> None:
    def program(comm: Any) -> None:
        values = np.zeros(10_000, np.float32)
        allreduce(values, np.empty_like(values), comm, algorithm=algorithm)

    full, time_only = (vmpi.run(program, ranks=5, carries=carries) for carries in (None, carried))
    assert (time_only.seconds, time_only.messages) == (full.seconds, full.messages)


def test_sums_have_the_same_bits_everywhere() -> None:
    def program(comm: Any) -> Any:
        values = np.random.default_rng(comm.rank).normal(size=7).astype(np.float32)
        total = np.empty_like(values)
        comm.Allreduce(values, total)
        return total.tobytes()

    assert len(set(vmpi.run(program, ranks=9).values)) == 1


def test_collectives_of_objects_take_the_locks_that_a_program_has_asked_for() -> None:
    def program(comm: Any) -> list[str]:
        from mpi4py import MPI

        other = comm.Dup()
        other.gather(None)
        locks = MPI._comm_lock_table(other)
        assert not locks
        other.bcast(None)
        with MPI._comm_lock(other, "mine"):
            assert locks["mine"].locked()
        assert not locks["bcast"].locked()
        return sorted(locks)

    assert vmpi.run(program, ranks=3).values == [["bcast", "mine"]] * 3


# ---- arguments that MPI refuses


def refuse_arguments(comm: Any) -> dict[str, str]:
    """Call MPI with wrong arguments; return the calls that did not fail with the class of error of Open MPI."""
    from mpi4py import MPI

    one, other, many = np.zeros(4), np.zeros(4), np.zeros(4 * comm.size)
    me, null, d = comm.rank, MPI.PROC_NULL, MPI.DOUBLE
    group, op, kind = comm.Get_group(), MPI.OP_NULL, MPI.DATATYPE_NULL
    calls: dict[str, list[tuple[str, Any]]] = {
        "ERR_TAG": [
            *((name, (one, me, -3)) for name in ("Send", "Isend", "Bsend", "Send_init", "Ssend_init", "send", "isend")),
            *((name, (one, null, -3)) for name in ("Send", "Recv", "send")),
            *((name, (one, 0, -3)) for name in ("Recv", "Irecv", "Recv_init", "irecv", "recv")),
            *((name, (0, -3)) for name in ("Probe", "Iprobe", "Mprobe", "Improbe", "probe", "mprobe")),
            *((name, (null, -3)) for name in ("Probe", "Iprobe")),
            *((name, (one, me, 0, other, me, -3)) for name in ("Sendrecv", "Isendrecv", "sendrecv")),
            *((name, (one, me, -3, other, me, 0)) for name in ("Sendrecv", "Isendrecv", "sendrecv")),
            *((name, (one, me, 0, me, -3)) for name in ("Sendrecv_replace", "Isendrecv_replace")),
            ("Create_group", (group, -4)),
        ],
        "ERR_RANK": [
            *((name, (one, 99)) for name in ("Send", "Send_init", "Bsend_init", "Recv", "Recv_init", "send")),
            *((name, (one, MPI.ANY_SOURCE)) for name in ("Send", "Send_init")),
            *((name, (99,)) for name in ("Probe", "Iprobe", "Mprobe")),
            *((name, (one, 99, 0, other, me, 0)) for name in ("Sendrecv", "sendrecv")),
        ],
        "ERR_ROOT": [
            *((name, (one, 99)) for name in ("Bcast", "Ibcast", "Bcast_init", "bcast", "gather")),
            *((name, (one, many, -1)) for name in ("Gather", "Igather", "Gather_init")),
            *((name, (many, one, -1)) for name in ("Scatter", "Scatter_init", "Scatterv")),
            *((name, (one, other, MPI.SUM, 99)) for name in ("Reduce", "Ireduce", "Reduce_init")),
        ],
        "ERR_OP": [(name, (one, other, op)) for name in ("Allreduce", "Reduce", "Iallreduce", "Scan")],
        "ERR_TYPE": [(name, ([one, 1, kind], 0)) for name in ("Send", "Recv", "Bcast")],
        "ERR_COUNT": [("Alltoallv", ([many, [-1] * comm.size, None, d], [many, [-1] * comm.size, None, d]))],
        "ERR_ARG": [("Split", (-5,)), ("Split", (-1,)), ("Split_type", (12345,))],
    }  # fmt: skip
    found = {}
    for wanted, each in calls.items():
        for name, arguments in each:
            if name in ("recv", "irecv"):
                arguments = (None, *arguments[1:])
            if name == "sendrecv":
                arguments = (*arguments[:3], None, *arguments[4:])
            _note(found, f"{name}{arguments}", wanted, getattr(comm, name), *arguments)
    shapes: list[Any] = [(3, [2, 2]), (3, [2, 5]), (3, [0, 2]), (3, [-1, 0]), (3, [1, 1]), (3, [])]
    for ranks, dims in (*shapes, (0, 2), (-1, 2), (0, [2])):
        _note(found, f"Compute_dims({ranks}, {dims})", "ERR_DIMS", MPI.Compute_dims, ranks, dims)
    for count in ("Create_contiguous", "Create_vector", "Create_hvector"):
        _note(found, count, "ERR_COUNT", getattr(d, count), *([-1] if "contig" in count else [-1, 1, 1]))
    _note(found, "Create_vector", "ERR_ARG", d.Create_vector, 1, -1, 1)
    _note(found, "Create_indexed", "ERR_ARG", d.Create_indexed, [-1], [0])
    _note(found, "Alloc_mem", "ERR_ARG", MPI.Alloc_mem, -1)
    _note(found, "Get_error_class", "ERR_ARG", MPI.Get_error_class, -1)
    _note(found, "Get_error_string", "ERR_ARG", MPI.Get_error_string, 1_000_000)
    _note(found, "Reduce_local", "ERR_OP", op.Reduce_local, one, other)
    for name in ("Send_init", "Recv_init"):
        with pytest.raises(ValueError):
            getattr(comm, name)([one, -1, d], 0)
    with pytest.raises(ValueError):
        MPI.Compute_dims(6, -1)
    assert comm.Split(MPI.UNDEFINED) == MPI.COMM_NULL
    assert comm.Split(0, -5).size == comm.size
    assert MPI.Compute_dims(1, []) == []
    comm.Recv(one, null, MPI.ANY_TAG)
    return found


def _note(found: dict[str, str], what: str, wanted: str, call: Any, *arguments: Any) -> None:
    from mpi4py import MPI

    try:
        call(*arguments)
        found[what] = "no error"
    except MPI.Exception as error:
        if error.Get_error_class() != getattr(MPI, wanted):
            found[what] = str(error)


def test_wrong_arguments_are_errors_of_mpi() -> None:
    for strict in (True, False):
        assert vmpi.run(refuse_arguments, ranks=3, strict=strict).values == [{}, {}, {}]


@pytest.mark.once  # MPICH has others, and waits for ever in some of these calls
@pytest.mark.mpi
def test_open_mpi_has_the_same_errors() -> None:
    assert on_ranks("tests.vmpi.test_semantics:refuse_arguments", 3) == [{}, {}, {}]


def test_messages_without_a_buffer() -> None:
    def program(comm: Any) -> bool:
        from mpi4py import MPI

        nothing, parts = [None, MPI.INT], [None, (0, None), MPI.INT]
        comm.Bcast(nothing)
        comm.Gather(nothing, nothing)
        comm.Alltoallv(parts, parts)
        comm.Allreduce(nothing, nothing)
        comm.Sendrecv(nothing, comm.rank, 0, nothing, comm.rank)
        for send in (comm.Send, comm.Ssend, comm.Bsend, comm.Rsend):
            send(None, MPI.PROC_NULL)
            with pytest.raises(TypeError, match="NoneType"):
                send(None, comm.rank)
        comm.Recv(None, MPI.PROC_NULL)
        for count in ([None, 0], [0, 1]):  # a count, a displacement
            with pytest.raises(ValueError, match="the null datatype has no extent"):
                comm.Send([np.zeros(2), *count, MPI.DATATYPE_NULL], 0)
        return True

    for strict in (True, False):
        assert all(vmpi.run(program, ranks=3, strict=strict).values)


def test_objects_cannot_be_combined_by_a_null_operation() -> None:
    def program(comm: Any) -> bool:
        from mpi4py import MPI

        with pytest.raises(ValueError, match="got a null or freed one"):
            comm.allreduce(1, MPI.OP_NULL)
        return True

    assert all(vmpi.run(program, ranks=3).values)


def test_wrong_arguments_of_partitioned_messages() -> None:
    """Open MPI accepts the tag, and ends the program for the others."""

    def program(comm: Any) -> bool:
        for name in ("Psend_init", "Precv_init"):
            call = getattr(comm, name)
            for arguments, why in (
                ((2, 0, -3), "ERR_TAG"),
                ((2, 99, 0), "ERR_RANK"),
                ((-1, 0, 0), "ERR_ARG"),
            ):
                with pytest.raises(MPIError, match=why):
                    call(np.zeros(4), *arguments)
        return True

    assert all(vmpi.run(program, ranks=2).values)
