"""What strategies tell a simulator's clock of their work beside the model's and the update's."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline import names as spec
from paceline.data import Batches, load
from paceline.models.mlp import build
from paceline.schedules.constant import Constant
from paceline.strategies._shared_x import SharedX
from paceline.strategies.parameter_server._chief import Dealer, first_batch
from paceline.strategies.parameter_server._master import KEPT, Marks
from paceline.strategies.parameter_server._owned import Gradient, Owned
from paceline.strategies.parameter_server._placement import Piece
from paceline.strategies.parameter_server.rules.plain import Plain
from paceline.updates.sgd import Sgd
from paceline.worker import Worker
from tests.comm.timed import Timed


class Plainly:
    """An update as the simulator wraps it: whoever charges by himself must take what is inside."""

    def __init__(self, plain: Any) -> None:
        self.plain = plain

    def start(self, x: np.ndarray) -> dict[str, np.ndarray]:
        raise AssertionError("charged twice")

    def apply(self, *_: Any) -> None:
        raise AssertionError("charged twice")


def worker(charge: Callable[[str, float], None], **settings: Any) -> Worker:
    iris = load("iris")
    given = {
        "comm": None, "model": build(iris, 8), "data": iris, "update": Sgd(), "schedule": Constant(), "rate": 0.1,
        "batches": Batches(iris.train, batch=20, draws=4), "epochs": 2,
    }  # fmt: skip
    return Worker(**{**given, **settings}, charge=charge)


X = 67 * 4  # the bytes of that network's parameters, in float32


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        # Each of 8 turns: into the message, the mean, and back.
        ("weight-average", {("copy", X + 4): 8, ("copy", X): 16}),
        # The centre at first; each of 4 pulls: into the message, the mean, six passes.
        ("elastic:every=2", {("copy", X + 4): 4, ("copy", X): 5, ("combine", 6 * X): 4}),
        ("local-sgd:every=4", {("copy", X + 4): 2, ("copy", X): 4}),
        (
            "local-sgd:every=4,outer-momentum=0.9",
            {("copy", X + 4): 2, ("copy", X): 5, ("combine", X): 2, ("update", 67): 2},
        ),
        ("psgd", {("copy", X + 4): 1, ("copy", X): 2}),
        ("serial", {}),
        ("sync", {}),
    ],
)
def test_copies_and_mixtures(strategy: str, expected: dict[tuple[str, float], int]) -> None:
    told: Counter[tuple[str, float]] = Counter()
    me = worker(lambda kind, amount: told.update([(kind, amount)]))
    spec.parse("strategies", strategy).make().train(me)
    assert told == expected
    assert len(me.history) == 2


def test_what_a_master_does_is_told_once() -> None:
    told: list[tuple[str, float]] = []
    me = worker(lambda *work: told.append(work), update=Plainly(Sgd()))
    me.model.x[:] = 1.0
    said = [Gradient(step=0, count=2), Gradient(step=1, count=2)]
    piece = Piece(number=0, master=0, part=slice(0, 40), layers=(0,))
    owned = Owned(me, piece, Plain(), 2, said, array("d"))
    owned.g[0] = 4.0
    owned.apply(0)
    assert told == [("rule", 40)]
    assert np.allclose(owned.x, 1 - 0.1 * 4 / 2)
    assert np.array_equal(owned.answer(0), owned.x)
    told.clear()
    owned.add(0)
    owned.add(1)
    owned.apply_round()
    assert told == [("copy", 160), ("combine", 160), ("rule", 40)]


def test_without_computing_a_master_only_counts() -> None:
    told: list[tuple[str, float]] = []
    me = worker(lambda *work: told.append(work), update=Plainly(None), time_only=True)
    said, rows = [Gradient(step=0, count=2)] * 3, array("d")
    owned = Owned(me, Piece(0, 0, slice(0, 40), (0,)), Plain(), 3, said, rows)
    before = owned.x.copy()
    for w in (0, 1, 1):
        owned.apply(w)
        owned.answer(w)
    assert told == [("rule", 40)] * 3
    assert np.array_equal(owned.x, before)
    assert rows[4::6].tolist() == [0, 1, 0]  # tau


@pytest.mark.parametrize("share", ["static", "dynamic"])
@pytest.mark.parametrize(
    ("workers", "steps_per_epoch", "epochs"), [(3, 7, 2), (5, 3, 2), (2, 4, 0), (4, 4, 1)]
)
def test_every_batch_is_dealt_once(share: Any, workers: int, steps_per_epoch: int, epochs: int) -> None:
    steps = steps_per_epoch * epochs
    dealer = Dealer(share, workers, steps_per_epoch, steps)
    dealt = [first_batch(share, worker, steps_per_epoch, steps) for worker in range(workers)]
    turn = [worker for worker in range(workers) if dealt[worker] >= 0]
    while turn:
        more = {worker: dealer.next(worker) for worker in turn}
        dealt += more.values()
        turn = [worker for worker, step in more.items() if step >= 0]
    assert sorted(step for step in dealt if step >= 0) == list(range(steps))


class Values:
    """A piece of which only its values and its count matter."""

    def __init__(self) -> None:
        self.x, self.arrivals = np.zeros(2), 0

    def restore(self, x: np.ndarray) -> None:
        self.x[:] = x


def test_marks() -> None:
    first, second = pieces = [Values(), Values()]
    marks: Any = Marks(pieces, every=10)  # type: ignore[arg-type]

    def train(piece: Values, to: int) -> list[int]:
        made = []
        while piece.arrivals < to:
            piece.arrivals += 1
            piece.x[:] = piece.arrivals
            made += [piece.arrivals] if marks.arrived(piece) else []
        return made

    assert train(first, 35) == [10, 20, 30]
    assert train(second, 41) == [10, 20, 30, 40]
    assert marks.good(from_start=False) == 2  # the last but one of the first piece
    marks.restore(2)
    assert (first.x[0], second.x[0]) == (20, 20)
    marks.restore(3)  # of what was given up nothing is left
    assert (first.x[0], second.x[0]) == (20, 20)
    assert train(first, 90) == [40, 50, 60, 70, 80, 90]
    assert all(len(kept) <= KEPT for kept in marks._marks)
    assert marks.good(from_start=True) == 0
    marks.restore(0)
    assert (first.x[0], second.x[0]) == (0, 0)


def test_in_a_shared_x_everything_takes_its_time_first_and_earlier_ranks_go_before() -> None:
    comm = Timed(node_of=(0, 0, 0))
    shared = SharedX(np.ones(10, np.float32), comm)
    comm.told.clear()
    x = np.zeros(10, np.float32)
    shared.read(x)
    assert comm.told == [("copy", 40), "pass"]
    assert x.tolist() == [1] * 10
    comm.told.clear()

    class Noting(Sgd):
        def apply(self, *arguments: Any, **named: Any) -> None:
            comm.told.append("applied")
            super().apply(*arguments, **named)

    update = shared.in_time(Plainly(Noting()))
    with shared.writing() as there:
        update.apply(there, np.full(10, 2.0, np.float32), 0.25, update.start(there), 1.0)
    assert comm.told == ["pass", ("update", 10), "pass", "applied"]
    assert shared.x.tolist() == [0.5] * 10
    assert (list(shared.taus), shared.overlapping) == ([0], 0)
    shared.free()


def test_updates_of_others_between_read_and_write_are_counted() -> None:
    comm: Any = Timed()
    other = SimpleNamespace(shared=None, updates=0)

    def others_go(self: Any = None) -> None:
        if other.shared is not None:  # the second rank makes an update whenever it may go first
            other.shared._counters[1] += 1
            other.updates += 1

    comm.Dup = lambda: comm
    comm.Pass = others_go
    shared = SharedX(np.ones(4), comm)
    other.shared = shared
    update = shared.in_time(Plainly(Sgd()))
    shared.read(np.empty(4))
    with shared.writing() as x:
        update.apply(x, np.ones(4), 0.5, {}, 1.0)
    assert other.updates == 3  # before the read, before the write, and before the end of the write
    assert list(shared.taus) == [2]
    assert shared.overlapping == 1


def test_real_updates_are_made_as_they_are() -> None:
    shared = SharedX(np.ones(4), Timed())
    update = Sgd()
    assert shared.in_time(update) is update
