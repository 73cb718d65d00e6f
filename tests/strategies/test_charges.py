"""What strategies tell a simulator's clock of their work beside the model's and the update's."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline import names as spec
from paceline.comm.clocks import Stopwatch
from paceline.data import Batches, load
from paceline.models.mlp import build
from paceline.record import RowLog
from paceline.schedules import Constant
from paceline.simulate.model import add_costs, kind_of
from paceline.strategies.parameter_server._master import Dealer, Outbox, first_batch
from paceline.strategies.parameter_server._pieces import (
    EVENTS,
    KEPT,
    Gradient,
    Marks,
    Owned,
    Piece,
    PieceState,
)
from paceline.strategies.parameter_server.rules.plain import Plain
from paceline.updates.sgd import Sgd
from paceline.vectors import Meter
from paceline.worker import SharedX, Worker, apply_update
from tests.comm.timed import Timed


class Clock:
    """As much of a simulated communicator as a model needs; `work`: the kinds and amounts that it was charged."""

    def __init__(self) -> None:
        self.work: list[tuple[str, float]] = []

    def Work(self, kind: str, amount: float) -> None:  # noqa: N802 (a name of the simulator's)
        self.work.append((kind, amount))

    def Step(self) -> None: ...  # noqa: N802


def worker(clock: Clock, *, time_only: bool = False, **settings: Any) -> Worker:
    iris = load("iris")
    net = build(iris, 8)
    given = {
        "comm": None, "model": add_costs(net, clock, kind_of(net, time_only=time_only)), "data": iris, "update": Sgd(),
        "schedule": Constant(), "rate": 0.1, "batches": Batches(iris.train, batch=20, draws=4), "epochs": 2,
    }  # fmt: skip
    return Worker(**{**given, **settings}, meter=Meter(clock.Work, time_only))


X = 67 * 4  # the bytes of that network's parameters, in float32
STEPS = {("update", 67): 8}


@pytest.mark.parametrize("time_only", [False, True])
@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        # Each of 8 turns: into the message, the mean, and back.
        ("weight-average", {**STEPS, ("copy", X): 24}),
        # The centre at first; each of 4 pulls: into the message, the mean, alpha (x - c) and p alpha (m - c).
        ("elastic:every=2", {**STEPS, ("copy", X): 1 + 4 * 4, ("combine", X): 4 * 4}),
        ("local-sgd:every=4", {**STEPS, ("copy", X): 6}),
        (
            "local-sgd:every=4,outer-momentum=0.9",
            {("update", 67): 10, ("copy", X): 7, ("combine", X): 2},
        ),
        ("psgd", {**STEPS, ("copy", X): 3}),
        ("serial", STEPS),
        ("sync", STEPS),
    ],
)
def test_copies_and_mixtures(strategy: str, time_only: bool, expected: dict[tuple[str, float], int]) -> None:
    clock = Clock()
    me = worker(clock, time_only=time_only)
    spec.parse("strategies", strategy).make().train(me)
    charged = Counter(work for work in clock.work if work[0] not in ("gradient", "evaluate"))
    assert charged == expected
    assert len(me.history) == 2


def test_what_a_master_does_is_charged_once() -> None:
    clock = Clock()
    me = worker(clock)
    me.model.x[:] = 1.0
    said = [Gradient(step=0, count=2), Gradient(step=1, count=2)]
    piece = Piece(number=0, master=0, part=slice(0, 40), layers=(0,))
    owned = Owned(me, piece, Plain(), 2, said, RowLog(EVENTS))
    owned.g[0] = 4.0
    clock.work.clear()
    owned.apply(0)
    assert clock.work == [("rule", 40)]
    assert np.allclose(np.asarray(owned.x), 1 - 0.1 * 4 / 2)
    assert np.array_equal(owned.answer(0), owned.x)
    clock.work.clear()
    owned.add(0)
    owned.add(1)
    owned.apply_round()
    assert clock.work == [("copy", 160), ("combine", 160), ("rule", 40)]


def test_without_computing_a_master_only_counts() -> None:
    clock = Clock()
    me = worker(clock, update=None, time_only=True)
    said, rows = [Gradient(step=0, count=2)] * 3, RowLog(EVENTS)
    owned = Owned(me, Piece(0, 0, slice(0, 40), (0,)), Plain(), 3, said, rows)
    before = np.array(owned.x)
    clock.work.clear()
    for w in (0, 1, 1):
        owned.apply(w)
        owned.answer(w)
    assert clock.work == [("rule", 40)] * 3
    assert np.array_equal(np.asarray(owned.x), before, equal_nan=True)
    assert rows.read()[:, EVENTS.index("tau")].tolist() == [0, 1, 0]


def test_a_master_keeps_no_copy_of_what_has_arrived() -> None:
    class Sent:
        def __init__(self) -> None:
            self.arrived = False

        def Test(self) -> bool:  # noqa: N802
            return self.arrived

        def Wait(self) -> None:  # noqa: N802
            self.arrived = True

    class Comm:
        def Isend(self, values: Any, dest: int, tag: int) -> Sent:  # noqa: N802
            sent.append(Sent())
            return sent[-1]

    sent: list[Sent] = []
    outbox = Outbox(Comm(), first=1)
    for epoch in range(100):
        outbox.send_copy(np.zeros(10), tag=3, master=0)
        if epoch >= 2:
            sent[epoch - 2].arrived = True
        assert len(outbox.copies) <= 3
    outbox.complete_copies()
    assert not outbox.copies
    assert all(one.arrived for one in sent)


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
        kept = marks._marks[pieces.index(piece)]
        while piece.arrivals < to:
            piece.arrivals += 1
            piece.x[:] = piece.arrivals
            before = max(kept)
            marks.count(piece)
            made += [piece.arrivals] if max(kept) > before else []
        return made

    assert train(first, 35) == [10, 20, 30]
    assert train(second, 41) == [10, 20, 30, 40]
    assert marks.choose(from_start=False) == 2  # the last but one of the first piece
    marks.restore(2)
    assert (first.x[0], second.x[0]) == (20, 20)
    marks.restore(3)  # of what was given up nothing is left
    assert (first.x[0], second.x[0]) == (20, 20)
    assert train(first, 90) == [40, 50, 60, 70, 80, 90]
    assert all(len(kept) <= KEPT for kept in marks._marks)
    assert marks.choose(from_start=True) == 0
    marks.restore(0)
    assert (first.x[0], second.x[0]) == (0, 0)


def test_marks_after_ranks_have_died_between_the_gradients_of_two_pieces() -> None:
    pieces, arrivals = [Values(), Values()], (79, 80)
    saved = [
        PieceState(0, 2, arrivals=count, good=True, arrays={"first": np.zeros(2), "good": np.full(2, 5.0)})
        for count in arrivals
    ]
    for piece, count in zip(pieces, arrivals, strict=True):
        piece.arrivals = count
        piece.x[:] = count
    marks: Any = Marks(pieces, every=10)  # type: ignore[arg-type]
    marks.resume(saved)
    again = [PieceState(0, 2), PieceState(0, 2)]
    marks.add_to(again)
    assert [one.arrays["good"].tolist() for one in again] == [[5, 5], [5, 5]]
    for order in (marks.choose(from_start=False), 7, 8):  # another master may name either number
        for piece in pieces:
            piece.x[:] = -1
        marks.restore(order)
        assert [piece.x.tolist() for piece in pieces] == [[5, 5], [5, 5]]


def watch() -> Stopwatch:
    return Stopwatch(lambda: 0.0)


def test_in_a_shared_x_everything_takes_its_time_first_and_earlier_ranks_go_before() -> None:
    comm = Timed(node_of=(0, 0, 0))
    shared = SharedX(np.ones(10, np.float32), comm, watch())
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

    with shared.write() as there:
        apply_update(Noting(), there, np.full(10, 2.0, np.float32), 0.25, {}, 1.0)
    assert comm.told == ["pass", ("update", 10), "pass", "applied"]
    assert np.asarray(shared.x).tolist() == [0.5] * 10
    assert (shared.taus.read().tolist(), shared.overlapping) == ([[0]], 0)
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
    shared = SharedX(np.ones(4), comm, watch())
    other.shared = shared
    shared.read(np.empty(4))
    with shared.write() as x:
        apply_update(Sgd(), x, np.ones(4), 0.5, {}, 1.0)
    assert other.updates == 3  # before the read, before the write, and before the end of the write
    assert shared.taus.read().tolist() == [[2]]
    assert shared.overlapping == 1


def test_real_ranks_share_a_plain_array() -> None:
    class Real(Timed):
        Pass = Work = None  # type: ignore[assignment]

    comm: Any = Real()
    comm.Dup = lambda: comm
    assert type(SharedX(np.ones(4), comm, watch()).x) is np.ndarray
