"""Where the clock of a run begins."""

from __future__ import annotations

from typing import Any

from paceline.data import Batches, load
from paceline.models.mlp import build
from paceline.schedules import Constant
from paceline.updates.sgd import Sgd
from paceline.worker import Worker


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
