"""A model on a simulated rank computes what it computes, and charges for it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from paceline.data import Batch
from paceline.errors import UsageError
from paceline.models import FactoredModel, Model
from paceline.models.mlp import MLP
from paceline.simulate.model import add_costs as plainly
from paceline.simulate.model import copy_model, kind_of
from paceline.updates.momentum import Momentum
from paceline.vectors import Meter, vector
from paceline.worker import apply_update, start_update

RNG = np.random.default_rng(0)
BATCH = Batch(RNG.random((6, 5)).astype(np.float32), np.arange(6) % 3, 6, 9, 0, 0, 0)


class Clock:
    """As much of a simulated communicator as a model needs: work of a kind takes its amount of seconds."""

    def __init__(self) -> None:
        self.now, self.steps = 0.0, 0
        self.work: list[tuple[str, float]] = []

    def WorkSeconds(self, kind: str, amount: float) -> float:  # noqa: N802
        self.work.append((kind, amount))
        return amount

    def Work(self, kind: str, amount: float) -> None:  # noqa: N802
        self.now += self.WorkSeconds(kind, amount)

    def Compute(self, seconds: float) -> None:  # noqa: N802
        self.now += seconds

    def Step(self) -> None:  # noqa: N802
        self.steps += 1


def add_clock(model: Any, clock: Clock, *, time_only: bool = False) -> Model:
    return plainly(model, clock, kind_of(model, time_only=time_only))


class Plain:
    """A model that cannot share factors, and does not know when a layer is ready."""

    def __init__(self) -> None:
        self.inner = MLP([5, 4, 3])
        self.buffers: dict[str, Any] = {}

    x = property(lambda self: self.inner.x)
    g = property(lambda self: self.inner.g)
    layers = property(lambda self: self.inner.layers)

    def place(self, x: Any, g: Any) -> None:
        self.inner.place(x, g)

    def gradient(self, batch: Batch) -> float:
        return self.inner.gradient(batch)

    def predict(self, inputs: Any) -> Any:
        return self.inner.predict(inputs)

    def evaluate(self, inputs: Any, labels: Any) -> tuple[float, int]:
        return self.inner.evaluate(inputs, labels)


def test_the_same_gradient_and_its_cost() -> None:
    net, clock = MLP([5, 4, 3]), Clock()
    model = add_clock(copy_model(net), clock)
    model.place(net.x.copy(), np.empty_like(net.g))
    assert model.gradient(BATCH) == net.gradient(BATCH)
    assert (np.asarray(model.g) == net.g).all()
    assert (clock.work, clock.now, clock.steps) == ([("gradient", 6)], 6, 1)
    assert model.evaluate(BATCH.inputs, BATCH.labels) == net.evaluate(BATCH.inputs, BATCH.labels)
    assert (model.predict(BATCH.inputs) == net.predict(BATCH.inputs)).all()
    assert clock.work[1:] == [("evaluate", 6)]
    assert model.default_rate == net.default_rate  # type: ignore[attr-defined]
    assert isinstance(model, Model)


@pytest.mark.parametrize("time_only", [False, True])
def test_only_what_can_share_factors_says_so(time_only: bool) -> None:
    assert isinstance(add_clock(MLP([5, 4, 3]), Clock(), time_only=time_only), FactoredModel)
    plain = add_clock(Plain(), Clock(), time_only=time_only)  # type: ignore[arg-type]
    assert isinstance(plain, Model)
    assert not isinstance(plain, FactoredModel)


@pytest.mark.parametrize("kind", [lambda: MLP([5, 4, 3]), Plain])
@pytest.mark.parametrize("time_only", [False, True])
def test_layers_are_ready_after_the_pass_at_their_times(kind: Any, time_only: bool) -> None:
    clock, times = Clock(), []
    model = add_clock(kind(), clock, time_only=time_only)
    model.gradient(BATCH, ready=lambda layer: times.append((layer, clock.now)))
    last, first = model.layers[1], model.layers[0]
    sizes = [first.stop - first.start, last.stop - last.start]
    order = [1, 0] if kind is not Plain or time_only else [0, 1]
    done = np.cumsum([sizes[layer] for layer in order]) / sum(sizes)
    assert [layer for layer, _ in times] == order
    np.testing.assert_allclose([time for _, time in times], 6 / 3 + 2 / 3 * 6 * done)
    assert clock.work == [("gradient", 6)]
    assert clock.now == pytest.approx(6)


def test_factors_and_parts_have_their_own_costs() -> None:
    clock = Clock()
    net, model = MLP([5, 4, 3]), add_clock(MLP([5, 4, 3]), clock)
    assert isinstance(model, FactoredModel)
    whole = Batch(BATCH.inputs, BATCH.labels, 6, 6, 0, 0, 0)
    net.gradient(whole)
    part = model.share_factors(np.zeros(model.factor_bytes(6), np.uint8), 6, rank=1, ranks=2)
    model.gradient(whole)
    np.testing.assert_allclose(part(), net.g[part.part], rtol=1e-5)
    elements = part.part.stop - part.part.start
    assert clock.work == [("factors", 6), ("part", 6 * elements)]
    model.place(np.array(model.x), np.array(model.g))
    model.gradient(whole)
    assert clock.work[-1] == ("gradient", 6)


@pytest.mark.parametrize("time_only", [False, True])
def test_vectors_are_changed_in_place_as_those_of_a_real_model_are(time_only: bool) -> None:
    net, clock = MLP([5, 40, 3]), Clock()
    model = add_clock(net, clock, time_only=time_only)
    model.gradient(BATCH)
    before, nbytes = np.array(net.g), net.g.nbytes
    model.g *= 2.0
    model.x += model.g
    assert clock.work[1:] == [("copy", nbytes), ("combine", nbytes)]
    assert (net.g == (before if time_only else 2 * before)).all()
    with pytest.raises(AttributeError, match=r"g is changed in place, or moved with place\(x, g\)"):
        model.g = np.zeros(3)


def test_a_time_only_model_costs_the_same_and_touches_nothing() -> None:
    net = MLP([5, 4, 3])
    x, g = net.x.copy(), net.g.copy()
    clocks = [Clock(), Clock()]
    time_only, full = add_clock(net, clocks[0], time_only=True), add_clock(MLP([5, 4, 3]), clocks[1])
    for model in (time_only, full):
        assert isinstance(model, FactoredModel)
        assert math.isnan(model.gradient(BATCH)) == (model is time_only)
        update = Momentum()
        apply_update(update, model.x, model.g, 0.1, start_update(update, model.x))
        model.evaluate(BATCH.inputs, BATCH.labels)
        model.gradient(BATCH, ready=lambda layer: None)
        part = model.share_factors(np.zeros(model.factor_bytes(9), np.uint8), 9, rank=0, ranks=2)
        model.gradient(BATCH)
        assert part().shape == (part.part.stop - part.part.start,)
        model.place(np.empty_like(x), np.empty_like(g))
    assert clocks[0].work == clocks[1].work
    assert clocks[0].now == clocks[1].now
    assert (net.x == x).all()
    assert (net.g == g).all()
    assert net._factors is None


def test_the_update_is_charged_by_its_elements() -> None:
    clock = Clock()
    plain = Momentum()
    x, expected = vector(np.ones(7), Meter(clock.Work)), np.ones(7)
    apply_update(plain, x[:4], np.ones(4), 0.5, start_update(plain, x[:4]))
    plain.apply(expected[:4], np.ones(4), 0.5, plain.start(expected[:4]))
    assert (np.asarray(x) == expected).all()
    assert clock.work == [("update", 4)]


def test_copies_have_buffers_of_their_own_and_no_vectors_yet() -> None:
    net = MLP([5, 4, 3], standardise=True)
    other = copy_model(net)
    assert other.x is net.x
    assert other.buffers["mean"] is not net.buffers["mean"]

    class Stubborn(MLP):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("it holds a socket")

    with pytest.raises(
        UsageError, match=r"a Stubborn, cannot be copied for every simulated rank: it holds a socket"
    ):
        copy_model(Stubborn([2, 2]))
