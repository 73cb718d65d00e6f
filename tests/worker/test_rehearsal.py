"""What MPI sets up at a first call is set up before the first step, and is not in the record."""

from __future__ import annotations

import pytest

from paceline.comm.clocks import TracedStopwatch
from paceline.comm.recording import Recorded
from paceline.comm.tracing import Events
from paceline.worker.worker import pause_recording
from tests.ranks import on_ranks


@pytest.mark.once
@pytest.mark.mpi
@pytest.mark.parametrize("strategy", ["sync:allreduce=native", "weight-average:allreduce=native"])
@pytest.mark.parametrize("trace", [False, True])
def test_the_first_sum_is_nobodys_step(strategy: str, trace: bool) -> None:
    for rank in on_ranks(
        "tests.worker.rehearsal_cases:trained", 2, alone=True, strategy=strategy, trace=trace
    ):
        first, *others = rank["sums"]
        assert first == 0  # of zeros
        assert min(others) > 0
        assert 2 * len(others) == rank["messages"]  # of both ranks


def test_nothing_of_it_is_recorded() -> None:
    class Loopback:
        def Isend(self, buffer: bytes, dest: int) -> None:  # noqa: N802 (a name of mpi4py)
            ticks.append(ticks[-1] + 1.0)

    ticks = [0.0]
    comm, events = Recorded(Loopback()), Events(lambda: ticks[-1], limit=2)
    watch = TracedStopwatch(events.clock, events.lap)
    comm.Isend(b"abc", dest=1)
    watch.lap("exchange")
    kept = (comm.counts.bytes, comm.counts.messages, dict(watch.seconds), list(events.rows), events.lost)
    with pause_recording(comm, watch, events):
        for _ in range(3):
            comm.Isend(b"abcdef", dest=1)
            watch.lap("exchange")
        assert (events.lost, comm.counts.messages, watch.seconds["exchange"]) == (2, 4, 4.0)
    assert (comm.counts.bytes, comm.counts.messages, watch.seconds, list(events.rows), events.lost) == kept
    comm.Isend(b"abc", dest=1)
    assert watch.lap("exchange") == 1.0
