"""Calls of a communicator time themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.comm import Recorded
from paceline.comm.clocks import Stopwatch
from paceline.comm.recording import Timer
from paceline.vmpi import run

LATE = 2.0


def time_calls(comm: Any, waits: str = "wait") -> tuple[Any, Stopwatch]:
    watch = Stopwatch(comm.Wtime, waits)
    return Recorded(comm, timer=Timer(watch)), watch


def waiting(comm: Any, name: str, waits: str) -> dict[str, float]:
    """Rank 0 sends late; rank 1 waits for it with one kind of call, and then works for a second."""
    on_clock, watch = time_calls(comm, waits)
    if comm.Get_rank() == 0:
        comm.Compute(LATE)
        on_clock.Send(np.ones(3), dest=1)
    else:
        into = np.zeros(3)
        if name == "Recv":
            on_clock.Recv(into, source=0)
        else:
            request = on_clock.Irecv(into, source=0)
            if name == "Wait":
                request.Wait()
            else:
                getattr(type(request), name)([request])
        assert into.tolist() == [1, 1, 1]
        comm.Compute(1.0)
        watch.switch("update")
    return dict(watch.seconds)


@pytest.mark.parametrize("waits", ["wait", "exchange"])
@pytest.mark.parametrize("name", ["Recv", "Wait", "Waitall", "Waitany", "Waitsome"])
def test_waiting_is_measured_where_it_happens(name: str, waits: str) -> None:
    found = run(waiting, name, waits, ranks=2).values[1]
    assert found[waits] == pytest.approx(LATE, rel=1e-3)
    assert found["update"] == pytest.approx(1.0)
    assert sum(found.values()) == pytest.approx(LATE + 1, rel=1e-3)


def test_inside_an_evaluation_nothing_else_is_measured() -> None:
    def program(comm: Any) -> dict[str, float]:
        on_clock, watch = time_calls(comm)
        with watch.during("evaluation"):
            comm.Compute(float(comm.Get_rank()))
            on_clock.Barrier()
        return dict(watch.seconds)

    first, second = run(program, ranks=2).values
    assert first["evaluation"] == second["evaluation"] > 0.9
    assert {kind for kind, seconds in first.items() if seconds} == {"evaluation"}


def test_after_an_error_the_clock_goes_on_with_what_was_done() -> None:
    class Broken:
        def Recv(self, buffer: Any) -> None:  # noqa: N802
            raise RuntimeError("lost")

    watch = Stopwatch(lambda: 0.0, "wait")
    with pytest.raises(RuntimeError):
        Recorded(Broken(), timer=Timer(watch)).Recv(b"")
    assert watch.kind == "update"


def test_short_spans_belong_to_what_follows() -> None:
    ticks = iter([0.0, 1.0, 1.1, 3.0])
    watch = Stopwatch(lambda: next(ticks), shortest=0.5)
    for kind in ("exchange", "compute", "update"):
        watch.switch(kind)
    assert (watch.seconds["update"], watch.seconds["exchange"]) == (1.0, 0.0)
    assert watch.seconds["compute"] == pytest.approx(2.0)


def test_null_requests_may_be_among_those_that_are_waited_for() -> None:
    def program(comm: Any) -> tuple[list[int], float] | None:
        on_clock, watch = time_calls(comm)
        if comm.Get_rank() == 0:
            comm.Compute(LATE)
            on_clock.Send(np.ones(3), dest=1)
            return None
        from mpi4py import MPI

        request = on_clock.Irecv(np.zeros(3), source=0)
        done = type(request).Waitsome([MPI.REQUEST_NULL, request])
        return done, watch.seconds["wait"]

    done, seconds = run(program, ranks=2).values[1]
    assert done == [1]
    assert seconds >= LATE
