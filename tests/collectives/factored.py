"""What the tests of the factored exchange do on each rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from paceline.collectives import make_exchange
from paceline.comm import Recorded, pretend_nodes
from paceline.config import Config
from paceline.data import ArraySplit, Batches
from paceline.errors import UsageError
from paceline.models.mlp import MLP
from paceline.training.rank import Job, train
from paceline.worker import Worker
from tests.collectives.cases import first
from tests.collectives.exchanges import Vectors
from tests.models.mlp_nets import VARIANTS, net

SIZES = (60, 40, 30, 4)
RATE = 0.01


def samples(model: MLP, count: int) -> ArraySplit:
    random = np.random.default_rng(5)
    inputs = random.normal(0, 1, (count, model.sizes[0])).astype(model.dtype)
    if model.regression:
        return ArraySplit(inputs, random.normal(0, 1, (count, model.sizes[-1])).astype(model.dtype))
    return ArraySplit(inputs, random.integers(0, model.sizes[-1], count))


def alone(model: MLP, split: ArraySplit, batch: int) -> list[float]:
    """One epoch in one process; the loss of each batch."""
    losses = []
    for piece in Batches(split, batch=batch, dtype=model.dtype).epoch(0):
        losses.append(model.gradient(piece))
        model.x -= RATE * model.g
    return losses


def together(model: MLP, split: ArraySplit, batch: int, comm: Any, exchange: Any) -> list[float]:
    """The same on all ranks, evaluating in between; the loss of each batch."""
    losses = []
    for piece in Batches(split, batch=batch, dtype=model.dtype, rank=comm.rank, ranks=comm.size).epoch(0):
        loss = model.gradient(piece) if piece.count else 0.0
        g = exchange.reduce()
        model.x[exchange.part] -= RATE * g
        g[...] = np.nan  # the caller may do with it what it wants
        exchange.publish()
        model.evaluate(split.inputs[:7], split.labels[:7])
        losses.append(comm.allreduce(loss))
    return losses


def equals_one_process(world: Any) -> list[str]:
    """Any number of ranks, every network; batches that are not full, and smaller than the number of ranks."""
    kinds = []
    for ranks in (1, 2, 3, 4, 5):
        with first(world, ranks) as comm:
            if comm is None:
                continue
            for number, variant in enumerate(VARIANTS):
                dtype = (np.float64, np.float32)[number % 5 == 4]
                batch = (6, 5, 3, 2, 1)[(number + ranks) % 5]
                serial, model = net(variant, SIZES, dtype=dtype), net(variant, SIZES, dtype=dtype)
                split = samples(model, 3 * batch + max(1, batch // 2))
                if comm.rank > 0:
                    model.x += 7  # rank 0's is the one that counts
                model.g[...] = 5
                expected = alone(serial, split, batch)
                with make_exchange("shared-memory", model, comm, batch) as exchange:
                    kinds.append(type(exchange).__name__)
                    found = together(model, split, batch, comm, exchange)
                    assert ranks == 1 or (model.g == 5).all()
                exchange.close()  # again: does nothing
                near = {"rtol": 1e-9, "atol": 1e-11} if dtype == np.float64 else {"rtol": 1e-3, "atol": 1e-4}
                np.testing.assert_allclose(found, expected, **near)
                np.testing.assert_allclose(model.x, serial.x, **near)
                whole = Batches(split, batch=batch, dtype=dtype).at(0, 0)
                model.x += comm.rank  # private again: nobody else sees this, and g is a gradient again
                comm.Barrier()
                np.testing.assert_allclose(model.x, serial.x + comm.rank, **near)
                serial.x[...] = model.x
                assert model.gradient(whole) == serial.gradient(whole)
                np.testing.assert_array_equal(model.g, serial.g)
    return kinds


def one_after_the_other(world: Any) -> None:
    """The same model through factors, whole gradients, factors again."""
    serial, model = net({}, SIZES), net({}, SIZES)
    split = samples(model, 20)
    for batch in (5, None, 5, None, 5):
        expected = alone(serial, split, 5)
        with make_exchange("auto", model, world, batch) as exchange:
            assert type(exchange).__name__ == ("Shared" if batch is None else "Factored")
            found = together(model, split, 5, world, exchange)
        np.testing.assert_allclose(found, expected, rtol=1e-9)
        np.testing.assert_allclose(model.x, serial.x, rtol=1e-9, atol=1e-11)


def chosen(world: Any) -> dict[str, str]:
    """When factors are exchanged: on one node, with a small batch, where the model can and the caller allows it."""
    small, few, many = MLP(SIZES), 22, 23
    one, two = pretend_nodes(world, 0), pretend_nodes(world, world.rank % 2)
    seen = Recorded(one)
    cases: dict[str, tuple[str, Any, Any, int | None]] = {
        "shared-memory": ("shared-memory", small, one, few),
        "auto": ("auto", small, seen, few),
        "more samples": ("auto", small, one, many),
        "not allowed": ("auto", small, one, None),
        "hierarchical": ("hierarchical", small, one, few),
        "ring": ("ring", small, one, few),
        "another model": ("auto", Vectors(np.zeros(1000)), one, few),
        "auto, two nodes": ("auto", small, two, few),
        "shared-memory, two nodes": ("shared-memory", small, two, few),
    }
    kinds = {}
    for case, (name, model, comm, batch) in cases.items():
        try:
            with make_exchange(name, model, comm, batch) as exchange:
                kinds[case] = type(exchange).__name__
                exchange.reduce()
                exchange.publish()
        except UsageError as error:
            kinds[case] = str(error)
    assert seen.counts.messages == 0
    one.Free()
    two.Free()
    return kinds


@contextmanager
def made() -> Iterator[list[str]]:
    """The kinds of the exchanges that are made meanwhile."""
    kinds: list[str] = []

    def make(*arguments: Any, **options: Any) -> Any:
        exchange = make_exchange(*arguments, **options)
        kinds.append(type(exchange).__name__)
        return exchange

    with mock.patch("paceline.worker.worker.make_exchange", make):
        yield kinds


def training(comm: Any) -> list[dict[str, Any]]:
    """Through all of a run: sync is serial, with every update; what was exchanged is said."""
    found = []
    settings = {"data": "digits", "epochs": 2, "batch": 16, "dtype": "float64", "lr": 0.02}
    for model, update in (
        ("mlp:128,64", "sgd"),
        ("mlp:128,64,activation=tanh,loss=cross-entropy,normalise=yes,standardise=yes", "adam"),
        ("mlp:128,64,activation=relu,loss=cross-entropy", "momentum"),
    ):
        common = {**settings, "model": model, "update": update}
        serial = train(Job(config=Config(**common, strategy="serial"), runs=None), None)
        for name in ("shared-memory", "auto"):
            config = Config(**common, strategy=f"sync:allreduce={name}")
            with made() as kinds:
                parallel = train(Job(config=config, runs=None), comm)
            found.append({
                "kinds": kinds,
                "x": float(np.abs(parallel.model.x - serial.model.x).max()),
                "loss": max(
                    abs(a.loss - b.loss) for a, b in zip(parallel.history, serial.history, strict=True)
                ),
                "accuracy": abs(parallel.test_accuracy - serial.test_accuracy),
                "better": serial.history[0].loss - serial.history[1].loss,
            })  # fmt: skip
    return found


def own_strategy(comm: Any) -> list[str]:
    """A strategy that reads and writes model.g finds the gradient there, and what it wrote is what is summed."""

    def signs(me: Worker) -> None:
        me.broadcast()
        with me.exchange("shared-memory") as exchange:
            for batch in me.batches(0):
                me.gradient(batch)
                np.sign(me.model.g, me.model.g)
                g = exchange.reduce()
                assert (g == np.rint(g)).all()
                assert g.any()
                me.step(g, batch.total, exchange.part)
                exchange.publish()

    config = Config(data="digits", model="mlp:128,64", batch=16, draws=3, epochs=1)
    with made() as kinds:
        train(Job(config=config, strategy=signs, runs=None), comm)
    return kinds
