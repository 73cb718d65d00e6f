"""Training under a random schedule, and what must hold of it under every one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.config import Config
from paceline.machine import Costs, load_network
from paceline.simulate.model import copy_model
from paceline.simulate.options import Options
from paceline.simulate.training import SimulatedRank, Simulation
from paceline.strategies.parameter_server import place
from paceline.strategies.parameter_server._pieces import APPLIED, DROPPED
from paceline.training.job import Components, Job
from paceline.training.rank import Fitted, train, train_at
from paceline.vmpi import Curves, run
from paceline.vmpi.faults import shuffle, slow
from paceline.worker import Worker

SETTINGS: dict[str, Any] = {
    "data": "iris",
    "model": "mlp:4",
    "batch": 20,
    "draws": 4,
    "epochs": 2,
    "lr": 0.3,
    "dtype": "float64",
    "threads": 1,
}
STEPS = 8
# As long as messages are on their way, so that they meet ranks at any point of their work.
WORK = {
    "gradient": 100e-6,
    "factors": 80e-6,
    "part": 20e-6,
    "update": 10e-6,
    "rule": 10e-6,
    "serve": 10e-6,
    "evaluate": 50e-6,
}
COSTS = Costs(work={kind: Curves.of({1: [[0, seconds], [100, seconds]]}) for kind, seconds in WORK.items()})
NETWORKS = ("loopback", "10gbe", "10gbe:ranks-per-node=2")
LATE = 300e-6


@dataclass(frozen=True)
class Variant:
    """A strategy, on how many ranks of which networks."""

    strategy: str
    ranks: int
    networks: tuple[str, ...] = NETWORKS
    settings: tuple[tuple[str, Any], ...] = ()
    """Other than the usual."""


@dataclass(frozen=True)
class Trained:
    """What came of one run: what the first rank tells, and every rank's worker."""

    variant: Variant
    fitted: Fitted
    workers: list[Worker]
    start: Any
    moved: Any
    """The sum of all changes that updates have made."""

    @property
    def x(self) -> Any:
        return self.fitted.model.x


@functools.cache
def prepare(variant: Variant) -> tuple[Job, Components]:
    settings = {**SETTINGS, **dict(variant.settings)}
    job = Job(config=Config(**settings, strategy=variant.strategy), runs=None)
    return job, job.prepare(variant.ranks)


ALONE = Variant("serial", 1)


def train_variant(variant: Variant, seed: int | None = None) -> Trained:
    """Train under the schedule of this seed, with one rank slower than the others; None: nothing comes late."""
    job, parts = prepare(variant)
    model = copy_model(parts.model)
    model.place(parts.model.x.copy(), np.zeros_like(parts.model.x))
    update = Summed(parts.update, np.zeros_like(model.x))
    workers: dict[int, Worker] = {}

    def watched(me: Worker) -> None:
        workers[me.rank] = me
        parts.strategy.train(me)  # type: ignore[union-attr]

    strategy: Any = functools.partial(watched)
    strategy.whole_batches = parts.strategy.whole_batches  # type: ignore[union-attr]
    strategy.in_step = parts.strategy.in_step  # type: ignore[union-attr]
    chosen = 0 if seed is None else seed
    late = [shuffle(most=LATE, work=3.0), slow(rank=chosen % variant.ranks, by=4)]
    network = variant.networks[chosen % len(variant.networks)]
    rendezvous = chosen // len(variant.networks) % 2 == 1
    simulation = Simulation(
        job, variant.ranks, Options(network=network), load_network(network), COSTS, 1,
        parts._replace(model=model, strategy=strategy, update=update), time_only=False,
    )  # fmt: skip
    with simulation:
        outcome = run(
            lambda comm: train_at(SimulatedRank(comm, simulation), job, None),
            ranks=variant.ranks, network=simulation.network, compute=simulation._compute(), seed=chosen,
            faults=[] if seed is None else late, rendezvous=rendezvous, strict=True,
        )  # fmt: skip
    every = [workers[rank] for rank in range(variant.ranks)]
    return Trained(variant, outcome.values[0], every, parts.model.x, update.total)


class Summed:
    """An update that adds up what it changes."""

    def __init__(self, plain: Any, total: Any) -> None:
        self._plain, self.total = plain, total

    def start(self, x: Any) -> Any:
        return self._plain.start(x)

    def apply(self, x: Any, g: Any, eta: float, state: Any, scale: float = 1.0) -> None:
        before = x.copy()
        self._plain.apply(x, g, eta, state, scale)
        if x.size == self.total.size:
            self.total += x - before


# ---- what must hold


def well(run: Trained) -> None:
    """Of all strategies: every rank ends with the same, finite, better model, and every epoch was told of."""
    for me in run.workers:
        assert np.array_equal(me.model.x, run.x), f"rank {me.rank} ends with other parameters"
    assert np.isfinite(run.x).all()
    assert [epoch.epoch for epoch in run.fitted.history] == [0, 1]
    losses = [epoch.loss for epoch in run.fitted.history]
    assert all(loss is not None and np.isfinite(loss) for loss in losses), losses
    assert run.fitted.diverged is None
    assert run.fitted.test_accuracy is not None


@functools.cache
def serial(settings: tuple[tuple[str, Any], ...]) -> Any:
    config = Config(**{**SETTINGS, **dict(settings)}, strategy="serial")
    return train(Job(config=config, runs=None), None).model.x


@functools.cache
def train_undisturbed(variant: Variant) -> Any:
    return train_variant(variant).x


def as_serial(run: Trained) -> None:
    np.testing.assert_allclose(run.x, serial(run.variant.settings), rtol=1e-10, atol=1e-12)


def same_bits(run: Trained) -> None:
    """What waits for nobody in particular is the same to the bit, whatever comes late."""
    alike = Variant(run.variant.strategy, run.variant.ranks, run.variant.networks[:1])
    if len(run.variant.networks) == 1:
        assert np.array_equal(run.x, train_undisturbed(alike))
    else:  # sums in another order
        np.testing.assert_allclose(run.x, train_undisturbed(alike), rtol=1e-10, atol=1e-12)


def as_variant(strategy: str) -> Callable[[Trained], None]:
    def check(run: Trained) -> None:
        expected = train_undisturbed(Variant(strategy, run.variant.ranks, NETWORKS[:1]))
        np.testing.assert_allclose(run.x, expected, rtol=1e-10, atol=1e-12)

    return check


@functools.cache
def mean_of_parts(ranks: int) -> Any:
    """Every rank's part of the data, trained on alone, and the mean of those that had a batch."""
    from paceline.data import Batches

    parts = prepare(ALONE)[1]
    ends = []
    for rank in range(ranks):
        model = copy_model(parts.model)
        model.place(parts.model.x.copy(), np.zeros_like(parts.model.x))
        batches = Batches(parts.data.train, batch=20, draws=4, dtype=model.x.dtype, rank=rank, ranks=ranks)
        me = Worker(
            comm=None, model=model, data=parts.data, batches=batches, update=parts.update, schedule=parts.schedule,
            rate=SETTINGS["lr"], epochs=SETTINGS["epochs"],
        )  # fmt: skip
        for epoch in range(SETTINGS["epochs"]):
            for batch in me.own_batches(epoch):
                me.gradient(batch)
                me.step(model.g, batch.count)
        if not np.array_equal(model.x, parts.model.x):
            ends.append(model.x)
    return np.mean(ends, axis=0)


def as_mean_of_parts(run: Trained) -> None:
    np.testing.assert_allclose(run.x, mean_of_parts(run.variant.ranks), rtol=1e-10, atol=1e-12)


def conserved(run: Trained) -> None:
    """Gossip: no weight and no message is lost."""
    for weights in run.fitted.findings["weights"]:
        assert abs(sum(weights) - 1) < 1e-12, weights
    messages = run.fitted.findings["messages"]
    assert messages["sent"] == messages["received"]
    assert messages["sent"] + messages["not_sent"] >= 2


def all_written(run: Trained) -> None:
    """Hogwild: as many updates as batches, none of them older than there were others; on one node none is lost."""
    table = run.workers[0].tables["staleness"]
    assert len(table["tau"]) == STEPS
    for rank in range(run.variant.ranks):
        own = table["tau"][table["rank"] == rank]
        assert own.sum() <= STEPS * len(own) - len(own)
        assert (own >= 0).all()
    if run.variant.networks == ("loopback",):
        np.testing.assert_allclose(run.start + run.moved, run.x, rtol=1e-10, atol=1e-12)


def all_applied(run: Trained) -> None:
    """A master hears of every gradient once, in the order of each worker's batches."""
    updates = run.workers[0].tables["updates"]
    used = np.isin(updates["event"], (APPLIED, DROPPED))
    for piece in _pieces(run):
        mine = used & (updates["piece"] == piece.number)
        assert sorted(updates["step"][mine]) == list(range(STEPS))
        for worker in set(updates["worker"][mine]):
            steps = updates["step"][mine & (updates["worker"] == worker)]
            assert (np.diff(steps) > 0).all()
    dropped = int((updates["event"] == DROPPED).sum())
    assert dropped == 0 or "backup" in run.variant.strategy


def within_bound(run: Trained) -> None:
    """Nobody is more than the bound ahead of who still has something to do."""
    all_applied(run)
    bound, updates = int(_option(run, "bound", "")), run.workers[0].tables["updates"]
    for piece in set(updates["piece"]):
        order = updates["worker"][(updates["piece"] == piece) & (updates["event"] == APPLIED)].tolist()
        for at, worker in enumerate(order):
            coming = set(order[at:])
            slowest = min(order[:at].count(other) for other in coming)
            assert order[:at].count(worker) - slowest <= bound


def as_its_log_says(run: Trained) -> None:
    """What the masters noted, done again by one process, comes to the same parameters."""
    all_applied(run)
    me, masters, pieces = run.workers[0], _masters(run), _pieces(run)
    model = copy_model(prepare(ALONE)[1].model)
    model.place(run.start.copy(), np.zeros_like(run.start))
    x, seen = run.start.copy(), [run.start.copy() for _ in range(run.variant.ranks - masters)]
    orders: list[list[tuple[int, ...]]] = [[] for _ in range(masters)]
    updates = me.tables["updates"]
    names = ("event", "master", "worker", "step", "piece")
    for event, master, *told in zip(*(updates[name].tolist() for name in names), strict=True):
        if event == APPLIED:
            orders[master].append(tuple(told))
    # Masters do not wait for each other: of each, what can be done next is done; a worker's batches one by one.
    under_way: dict[int, tuple[int, Any, set[int]]] = {}
    while any(orders):
        before = sum(map(len, orders))
        for order in orders:
            while order:
                worker, step, piece = order[0]
                if worker not in under_way:
                    model.x[:] = seen[worker]
                    batch = me.shares.whole(step)
                    model.gradient(batch)
                    change = SETTINGS["lr"] / batch.count * model.g
                    under_way[worker] = (step, change, {piece.number for piece in pieces})
                of, change, open_ = under_way[worker]
                if of != step:
                    break
                part = pieces[piece].part
                x[part] -= change[part]
                seen[worker][part] = x[part]
                open_.discard(piece)
                if not open_:
                    del under_way[worker]
                order.pop(0)
        assert sum(map(len, orders)) < before, "this log cannot have happened"
    np.testing.assert_allclose(run.x, x, rtol=1e-10, atol=1e-12)


def _masters(run: Trained) -> int:
    return int(_option(run, "masters", "1"))


def _pieces(run: Trained) -> Any:
    return place(run.workers[0].model.layers, _masters(run), _option(run, "placement", "layers"))  # type: ignore[arg-type]


def _option(run: Trained, name: str, default: str) -> str:
    options = run.variant.strategy.partition(":")[2].split(",")
    return dict(option.split("=", 1) for option in options if option).get(name, default)
