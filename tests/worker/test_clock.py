"""Where the clock of a run begins, and what it decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.data import Batches, load
from paceline.models.mlp import build
from paceline.record import STEP_COLUMNS, RowLog
from paceline.schedules import Constant
from paceline.updates.sgd import Sgd
from paceline.worker import Worker
from paceline.worker.worker import Steps


class Slow:
    """A communicator that takes 5 s to be duplicated."""

    def __init__(self) -> None:
        self.now = 0.0

    def Get_rank(self) -> int:  # noqa: N802
        return 0

    def Get_size(self) -> int:  # noqa: N802
        return 2

    def Dup(self) -> Any:  # noqa: N802
        self.now += 5.0
        return self


def test_opening_channels_is_no_part_of_training() -> None:
    iris, comm = load("iris"), Slow()
    batches = Batches(iris.train, batch=10)
    me = Worker(
        comm=comm, model=build(iris, 8), data=iris, batches=batches, update=Sgd(), schedule=Constant(), rate=0.1,
        epochs=1, clock=lambda: comm.now,
    )  # fmt: skip
    assert comm.now == 5.0
    comm.now += 1.0
    me.watch.switch("compute")
    assert me.seconds["update"] == me.train_seconds == 1.0


def test_steps_are_written_every_ten_seconds_of_a_long_epoch(tmp_path: Path) -> None:
    iris, now, written = load("iris"), [0.0], []
    log = RowLog(STEP_COLUMNS, tmp_path / "rank-0.rows")
    me = Steps(
        rank=0, size=1, model=build(iris, 8), batches=Batches(iris.train, batch=10), update=Sgd(), schedule=Constant(),
        rate=0.1, epochs=1, clock=lambda: now[0], log=log,
    )  # fmt: skip
    for _ in me.batches(0):
        written.append(log.rows_written)
        now[0] += 4.0
    assert written[:8] == [0, 0, 0, 3, 3, 3, 6, 6]
    assert log.read()[:, 0].tolist() == list(range(len(written)))
