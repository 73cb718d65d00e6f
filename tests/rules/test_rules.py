"""Every rule: its equation by hand, its state, pieces as the whole, no allocation, options; and what they are for."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest

from paceline import names as registry
from paceline import names as spec
from paceline.data import Batches, load
from paceline.errors import UsageError
from paceline.launch import limit_threads
from paceline.models.mlp import MLP
from paceline.strategies.parameter_server.rules import Arrival, Rule
from paceline.strategies.parameter_server.rules.adaptive import Adaptive
from paceline.strategies.parameter_server.rules.clip import Clip
from paceline.strategies.parameter_server.rules.dana import Dana
from paceline.strategies.parameter_server.rules.dc import Dc
from paceline.strategies.parameter_server.rules.gap_aware import GapAware
from paceline.strategies.parameter_server.rules.plain import Plain
from paceline.strategies.parameter_server.rules.rms import Rms
from paceline.strategies.parameter_server.rules.staleness import Staleness
from paceline.updates.adam import Adam
from paceline.updates.momentum import Momentum
from paceline.updates.nesterov import Nesterov
from paceline.updates.sgd import Sgd

ALL: list[Any] = [
    Plain(),
    Staleness(),
    GapAware(),
    Dc(),
    Dc(variant="constant"),
    Dana(),
    Clip(),
    Rms(),
    Adaptive(),
]
ELEMENT_WISE = [rule for rule in ALL if not isinstance(rule, Clip)]
SGD = Sgd()


def arrival(drift: Any, **changed: Any) -> Arrival:
    drift = np.array(drift, float)
    gap = math.sqrt(np.mean(drift**2))
    values = {"worker": 0, "tau": 3, "drift": drift, "gap": gap, "scale": 0.5, "eta": 0.1, **changed}
    return Arrival(**values)


def correct_and_update(rule: Any, x: Any, g: Any, at: Arrival, state: Any) -> None:
    """Correct the gradient, then apply the update, as a master does."""
    factor = rule.correct(g, x, at, state)
    assert type(factor) is float
    SGD.apply(x, g, at.eta * factor, {}, at.scale)


def test_names() -> None:
    names = ["adaptive", "clip", "dana", "dc", "gap-aware", "plain", "rms", "staleness"]
    assert registry.names("rules") == names
    for name in names:
        assert isinstance(spec.parse("rules", name).make(), Rule)


# ---- the equations, by hand: two coordinates, mean gradients 2 and -4


def test_who_needs_the_drift() -> None:
    assert {type(rule) for rule in ALL if getattr(rule, "needs_drift", True)} == {GapAware, Dc}


def test_plain_and_staleness() -> None:
    for rule, tau, expected in (
        (Plain(), 5, [0.8, 1.4]),
        (Staleness(), 0, [0.8, 1.4]),
        (Staleness(), 1, [0.8, 1.4]),
        (Staleness(), 4, [0.95, 1.1]),  # a quarter of it
    ):
        x = np.ones(2)
        correct_and_update(rule, x, np.array([4.0, -8.0]), arrival([0, 0], tau=tau), rule.start(x, 6))
        np.testing.assert_allclose(x, expected)


def test_gap_aware() -> None:
    rule, x = GapAware(decay=0.5), np.ones(2)
    state = rule.start(x, 6)
    correct_and_update(rule, x, np.array([4.0, -8.0]), arrival([-0.2, 1.2]), state)  # C = 0.2, 0.4; G = 2, 4
    np.testing.assert_allclose(x, [0.9, 1.1])
    correct_and_update(rule, x, np.array([8.0, -8.0]), arrival([0, 0.4]), state)  # s = 12, 16, corrected
    np.testing.assert_allclose(x, [0.5, 1.1 + 0.4 / 2])


def test_dc() -> None:
    x, rule = np.ones(2), Dc(variant="constant", strength=0.5)
    correct_and_update(rule, x, np.array([4.0, -8.0]), arrival([0.5, -0.25]), rule.start(x, 6))
    np.testing.assert_allclose(x, [1 - 0.1 * (2 + 0.5 * 4 * 0.5), 1 - 0.1 * (-4 - 0.5 * 16 * 0.25)])
    x, adaptive = np.ones(2), Dc(strength=3.0, decay=0.75, epsilon=3.0)
    state = adaptive.start(x, 6)
    correct_and_update(adaptive, x, np.array([4.0, -8.0]), arrival([0.5, -0.25]), state)  # s + epsilon = 4, 7
    np.testing.assert_allclose(x, [1 - 0.1 * (2 + 3 / 2 * 4 * 0.5), 1 - 0.1 * (-4 - 3 / 7**0.5 * 16 * 0.25)])
    np.testing.assert_allclose(state["s"], [1, 4])


def test_dana_keeps_a_momentum_for_each_worker_and_shows_where_they_lead() -> None:
    rule, x, out = Dana(gamma=0.5), np.zeros(1), np.empty(1)
    state = rule.start(x, 2)
    v, total = [0.0, 0.0], 0.0
    for worker, g, scale in ((0, 2.0, 0.5), (1, 4.0, 0.5), (0, 6.0, 0.25), (0, -2.0, 0.5)):
        v[worker] = 0.5 * v[worker] + scale * g
        total -= 0.1 * v[worker]
        correct_and_update(rule, x, np.array([g]), arrival([0], worker=worker, scale=scale), state)
        rule.show(x, out, worker, state)
        np.testing.assert_allclose(x, [total])
        np.testing.assert_allclose(out, [total - 0.1 * 0.5 * (v[0] + v[1])])
    assert state["v"].shape == (2, 1)


def test_dana_with_one_worker_is_nesterov() -> None:
    """What the worker is shown goes Nesterov's way (in Sutskever's form, which keeps the look-ahead point)."""
    curvature, rule, update = np.array([1.0, 3.0]), Dana(gamma=0.9), Nesterov(beta=0.9)
    x, theirs = np.ones(2), np.ones(2)
    seen, state, their_state = x.copy(), rule.start(x, 1), update.start(x)
    for _ in range(20):
        correct_and_update(rule, x, curvature * seen, arrival([0, 0], scale=1.0), state)
        rule.show(x, seen, 0, state)
        update.apply(theirs, curvature * theirs, 0.1, their_state)
        np.testing.assert_allclose(seen, theirs)


def test_clip() -> None:
    rule, x = Clip(norm=1.0), np.zeros(2)
    correct_and_update(
        rule, x, np.array([6.0, 8.0]), arrival([0, 0]), rule.start(x, 6)
    )  # mean gradient of length 5
    np.testing.assert_allclose(x, [-0.06, -0.08])
    correct_and_update(rule, x, np.array([0.6, 0.8]), arrival([0, 0]), {})
    np.testing.assert_allclose(x, [-0.09, -0.12])


def test_rms_has_a_step_of_its_own() -> None:
    for eta, shape, expected in ((0.1, 1.0, 0.5), (7.0, 1.0, 0.5), (7.0, 0.5, 0.25), (0.0, 0.0, 0.0)):
        rule, x = Rms(step=0.25, decay=0.75), np.zeros(2)
        correct_and_update(
            rule, x, np.array([4.0, -8e3]), arrival([0, 0], eta=eta, shape=shape), rule.start(x, 6)
        )
        np.testing.assert_allclose(x, [-expected, expected], rtol=1e-6)  # g / sqrt(g^2 / 4) = 2


def by_hand(rule: Adaptive, gradients: Any, taus: Any, workers: int, eta: float, shape: float) -> Any:
    """adaptive's equations on numbers: x, z and what is shown after each gradient."""
    x = z = square = 0.0
    tau, k = workers - 1.0, 0
    for t, (g, seen) in enumerate(zip(gradients, taus, strict=True), 1):
        square = rule.decay * square + (1 - rule.decay) * g**2
        tau += (seen - tau) / (4 * (1 + tau))
        f = rule.step * (eta / shape) ** 0.25 * shape / (1 + tau / rule.patience) ** 1.5
        z -= f * g / math.sqrt(square / (1 - rule.decay**t))
        if t <= 16 or t % 4 == 0:
            k += 1
            x += (1 + rule.recency) / (k + rule.recency) * (z - x)
        yield x, z, z + rule.mix * (x - z)


def test_adaptive() -> None:
    rule = Adaptive(step=0.3, patience=3.0, decay=0.7, recency=2.0, mix=0.25)
    random = np.random.default_rng(0)
    gradients, taus = random.normal(0, 1, 200), random.integers(0, 9, 200)
    x, out = np.zeros(3), np.empty(3)
    state = rule.start(x, 5)
    expected = by_hand(rule, gradients, taus, 5, eta=0.8, shape=0.5)
    for g, tau, (average, fast, shown) in zip(gradients, taus, expected, strict=True):
        g = np.array([g, -1e4 * g, 0.0]) / 0.125  # sums over 8 samples; the gradient's size does not count
        at = arrival([0, 0, 0], tau=int(tau), scale=0.125, eta=0.8, shape=0.5)
        correct_and_update(rule, x, g, at, state)
        rule.show(x, out, 0, state)
        np.testing.assert_allclose(x, [average, -average, 0], rtol=1e-9)
        z = (state["y"] - rule.mix * x) / (1 - rule.mix)
        np.testing.assert_allclose(z, [fast, -fast, 0], rtol=1e-9)
        np.testing.assert_allclose(out, [shown, -shown, 0], rtol=1e-9)


def test_adaptive_of_what_never_has_a_gradient_or_a_rate() -> None:
    rule, x = Adaptive(), np.ones(4, np.float32)
    state = rule.start(x, 3)
    for t in range(3000):
        correct_and_update(rule, x, np.array([0, 0, 0, t == 0], np.float32), arrival([0] * 4), state)
    assert (x[:3] == 1).all()
    assert np.isfinite(x).all()
    assert state["s"].min() > np.finfo(np.float32).tiny  # no denormal numbers
    before = x.copy()
    correct_and_update(rule, x, np.ones(4, np.float32), arrival([0] * 4, eta=0.0, shape=0.0), state)
    assert (x == before).all()


@pytest.mark.parametrize("update", [Sgd(weight_decay=0.1), Momentum(), Adam()], ids=str)
def test_no_update_has_a_part_in_adaptive(update: Any) -> None:
    random = np.random.default_rng(2)
    x, other = np.ones((2, 5))
    rule = Adaptive()
    state, other_state, update_state = rule.start(x, 2), rule.start(x, 2), update.start(x)
    for _ in range(20):
        g, at = random.normal(0, 1, 5), arrival([0] * 5)
        correct_and_update(rule, x, g.copy(), at, state)
        factor = rule.correct(g, other, at, other_state)
        update.apply(other, g, at.eta * factor, update_state, at.scale)
    np.testing.assert_array_equal(x, other)
    assert (x != 1).all()


# ---- what the masters rely on


@pytest.mark.parametrize("rule", ELEMENT_WISE, ids=str)
def test_pieces_are_the_whole_to_the_bit(rule: Any) -> None:
    random = np.random.default_rng(1)
    whole = random.normal(0, 1, 50).astype(np.float32)
    parts, seen, shown = whole.copy(), np.empty_like(whole), np.empty_like(whole)
    slices = [slice(0, 7), slice(7, 8), slice(8, 8), slice(8, 50)]
    state, states = rule.start(whole, 3), [rule.start(parts[part], 3) for part in slices]
    for step in range(6):
        g = random.normal(0, 1, 50).astype(np.float32)
        drift = random.normal(0, 0.01, 50).astype(np.float32)
        at = Arrival(worker=step % 3, tau=step, drift=drift.copy(), gap=0.01, scale=0.25, eta=0.1)
        for part, own in zip(slices, states, strict=True):
            piece = Arrival(worker=step % 3, tau=step, drift=drift[part], gap=0.01, scale=0.25, eta=0.1)
            correct_and_update(rule, parts[part], g[part].copy(), piece, own)
            rule.show(parts[part], shown[part], step % 3, own)
        correct_and_update(rule, whole, g, at, state)
        rule.show(whole, seen, step % 3, state)
    np.testing.assert_array_equal(parts, whole)
    np.testing.assert_array_equal(shown, seen)


@pytest.mark.parametrize("rule", ALL, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_in_place_in_its_own_type_with_no_allocation(rule: Any, dtype: Any) -> None:
    assert isinstance(rule, Rule)
    x, g, drift, out = np.ones((4, 50_000), dtype)
    state = rule.start(x, 2)
    held = dict(state)
    assert all(isinstance(value, np.ndarray) for value in state.values())
    assert {value.dtype for value in state.values() if value.size > 1} <= {np.dtype(dtype)}
    at = Arrival(worker=1, tau=3, drift=drift, gap=1.0, scale=0.5, eta=0.1)
    rule.correct(g, x, at, state)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(65):  # adaptive does something more every 64 updates
            g.fill(0.5)
            drift.fill(0.01)
            rule.correct(g, x, at, state)
            rule.show(x, out, 1, state)
        at.scale, at.eta = np.float64(0.5), np.float64(0.1)  # must not make float32 work in float64
        assert type(rule.correct(g, x, at, state)) is float
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < 8192
    assert all(state[name] is value for name, value in held.items())
    assert np.isfinite(out).all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("clip:norm=0", "norm of clip must be above 0; got 0"),
        ("rms:step=-1", "step of rms must be above 0; got -1"),
        ("dc:variant=b", "choose one of adaptive, constant"),
        ("dc:strength=-1", "strength of dc must be at least 0; got -1"),
        ("dana:gamma=1", "gamma of dana must be at least 0 and below 1; got 1"),
        ("gap-aware:decay=1", "decay of gap-aware must be at least 0 and below 1; got 1"),
        ("adaptive:patience=0", "patience of adaptive must be above 0; got 0"),
        ("adaptive:mix=1", "mix of adaptive must be at least 0 and below 1; got 1"),
        ("adaptive:recency=-1", "recency of adaptive must be at least 0; got -1"),
    ],
)
def test_options_are_checked(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        spec.parse("rules", text).make()
    assert words in str(caught.value)


# ---- what they are for


def accuracy(rule: Any, workers: int, gradients: int = 1200) -> float:
    """Per cent right after workers, served in turn, have trained the reference network; see benchmarks/staleness.py."""
    data, net = load("mnist"), MLP([784, 128, 64, 10], seed=1)
    batches = Batches(data.train, batch=16, seed=1, draws=gradients)
    x, state = net.x.copy(), rule.start(net.x, workers)
    shown = np.tile(x, (workers, 1))
    with limit_threads(1):
        for t in range(gradients):
            w = t % workers
            net.x[:] = shown[w]
            net.gradient(batches.at(0, t))
            tau = min(t, workers - 1)
            at = Arrival(worker=w, tau=tau, drift=x - shown[w], gap=0.0, scale=1 / 16, eta=1.6)
            correct_and_update(rule, x, net.g, at, state)
            rule.show(x, shown[w], w, state)
    net.x[:] = x
    inputs, labels = np.empty((2000, 28, 28), np.float32), np.empty(2000, np.int64)
    data.test.take(np.arange(2000), inputs, labels)
    return 100 * net.evaluate(inputs, labels)[1] / 2000


def test_adaptive_holds_where_plain_fails() -> None:
    assert accuracy(Plain(), 12) < 30
    alone, together = accuracy(Adaptive(), 1), accuracy(Adaptive(), 12)
    assert alone > 92
    assert together > alone - 4  # 100 rounds
