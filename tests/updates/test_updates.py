"""Every update: PyTorch's to rounding, slices as the whole to the bit, no allocation, options checked."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import fit
from paceline import names as registry
from paceline import names as spec
from paceline.errors import UsageError
from paceline.updates import Update
from paceline.updates.adam import Adam
from paceline.updates.momentum import Momentum
from paceline.updates.nesterov import Nesterov
from paceline.updates.rms import Rms
from paceline.updates.sgd import Sgd

Make = Callable[..., torch.optim.Optimizer]
SAME: list[tuple[Any, Make, dict[str, Any]]] = [
    (Sgd(), torch.optim.SGD, {}),
    (Sgd(weight_decay=0.01), torch.optim.SGD, {"weight_decay": 0.01}),
    (Momentum(), torch.optim.SGD, {"momentum": 0.9}),
    (Momentum(beta=0.5, weight_decay=0.1), torch.optim.SGD, {"momentum": 0.5, "weight_decay": 0.1}),
    (Nesterov(), torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    (
        Nesterov(beta=0.7, weight_decay=0.1),
        torch.optim.SGD,
        {"momentum": 0.7, "weight_decay": 0.1, "nesterov": True},
    ),
    (Rms(), torch.optim.RMSprop, {"alpha": 0.99, "eps": 1e-8}),
    (Rms(decay=0.5, epsilon=0.1), torch.optim.RMSprop, {"alpha": 0.5, "eps": 0.1}),
    (Adam(), torch.optim.Adam, {}),
    (Adam(beta1=0.5, beta2=0.9, epsilon=0.01), torch.optim.Adam, {"betas": (0.5, 0.9), "eps": 0.01}),
    (Adam(weight_decay=0.1), torch.optim.AdamW, {"weight_decay": 0.1}),
]
UPDATES = [update for update, _, _ in SAME]


@pytest.mark.parametrize(("update", "optimizer", "options"), SAME, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 2e-5)])
def test_pytorch_agrees(
    update: Update, optimizer: Make, options: dict[str, Any], dtype: Any, tolerance: float
) -> None:
    random = np.random.default_rng(0)
    x = random.normal(0, 1, 50).astype(dtype)
    theirs = torch.tensor(x, requires_grad=True)
    optimizing = optimizer([theirs], lr=0.1, **options)
    state = update.start(x)
    for step in range(20):
        eta = 0.1 / (1 + step)  # a schedule changes the rate at every step
        g = random.normal(0, 1, 50).astype(dtype)
        theirs.grad = torch.tensor(g)
        for group in optimizing.param_groups:
            group["lr"] = eta
        optimizing.step()
        update.apply(x, g * 8, eta, state, 1 / 8)
    np.testing.assert_allclose(x, theirs.detach(), rtol=tolerance, atol=tolerance)


@settings(max_examples=60, deadline=None)
@given(
    update=st.sampled_from(UPDATES),
    dtype=st.sampled_from([np.float32, np.float64]),
    size=st.integers(1, 200),
    cuts=st.lists(st.integers(0, 200), max_size=4),
    seed=st.integers(0, 999),
)
def test_slices_are_the_whole_to_the_bit(
    update: Update, dtype: Any, size: int, cuts: list[int], seed: int
) -> None:
    random = np.random.default_rng(seed)
    whole = random.normal(0, 1, size).astype(dtype)
    parts = whole.copy()
    bounds = sorted(min(cut, size) for cut in cuts)
    slices = [slice(a, b) for a, b in zip([0, *bounds], [*bounds, size], strict=True)]
    state, states = update.start(whole), [update.start(parts[part]) for part in slices]
    for _ in range(4):
        g = (random.normal(0, 1, size) * 10.0 ** random.integers(-6, 4, size)).astype(dtype)
        update.apply(whole, g.copy(), 0.1, state, 1 / 3)
        for part, own in zip(slices, states, strict=True):
            update.apply(parts[part], g[part], 0.1, own, 1 / 3)
    np.testing.assert_array_equal(parts, whole)


@pytest.mark.parametrize("update", UPDATES, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_in_place_in_its_own_type_with_no_allocation(update: Update, dtype: Any) -> None:
    assert isinstance(update, Update)
    memory = np.ones((2, 50_000), dtype)
    x, g = memory
    state = update.start(x)
    assert all(isinstance(value, np.ndarray) for value in state.values())
    held = dict(state)
    for eta in (0.1, np.float64(0.1)):  # a NumPy number must not make float32 steps in float64
        g[:] = 2
        update.apply(x, g, eta, state, 0.5)
    tracemalloc.start()
    try:
        update.apply(x, g, 0.1, state, 0.5)
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        update.apply(x, g, 0.1, state, 0.5)
        update.apply(x, g, np.float64(0.1), state, np.float64(0.5))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < 4096
    assert all(state[name] is value for name, value in held.items())
    assert {value.dtype for value in state.values() if value.size > 1} <= {np.dtype(dtype)}
    assert (memory[0] < 1).all()


@pytest.mark.parametrize("update", UPDATES, ids=str)
def test_a_saved_state_goes_on_as_if_never_stopped(update: Update) -> None:
    random = np.random.default_rng(3)
    gradients = random.normal(0, 1, (6, 20))
    x = random.normal(0, 1, 20)
    state = update.start(x)
    for g in gradients[:3]:
        update.apply(x, g.copy(), 0.1, state)
    stopped = x.copy()
    loaded = update.start(stopped)
    for key, value in state.items():
        if not key.startswith("_"):
            loaded[key][:] = value
    for g in gradients[3:]:
        update.apply(x, g.copy(), 0.1, state)
        update.apply(stopped, g.copy(), 0.1, loaded)
    np.testing.assert_array_equal(stopped, x)


@pytest.mark.parametrize("update", UPDATES, ids=str)
def test_it_comes_down_a_valley(update: Update) -> None:
    """f(x) = 1/2 sum c x^2, c from 0.1 to 10."""
    curvature = np.geomspace(0.1, 10, 8)
    x = np.ones(8)
    state = update.start(x)
    for step in range(800):
        update.apply(x, curvature * x, 0.05 / (1 + step / 100), state)
    assert 0.5 * curvature @ (x * x) < 0.01


@pytest.mark.parametrize("update", UPDATES, ids=str)
def test_an_empty_slice(update: Update) -> None:
    x = np.empty(0)
    update.apply(x, np.empty(0), 0.1, update.start(x))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sgd:weight-decay=-0.1", "weight-decay of sgd must be at least 0; got -0.1"),
        ("sgd:weight-decay=nan", "weight-decay of sgd must be at least 0; got nan"),
        ("momentum:beta=1", "beta of momentum must be at least 0 and below 1; got 1.0"),
        ("momentum:beta=-0.1", "beta of momentum must be at least 0 and below 1; got -0.1"),
        ("momentum:weight-decay=inf", "weight-decay of momentum must be at least 0; got inf"),
        ("nesterov:beta=2", "beta of nesterov must be at least 0 and below 1; got 2.0"),
        ("nesterov:weight-decay=-1", "weight-decay of nesterov must be at least 0; got -1.0"),
        ("rms:decay=1", "decay of rms must be at least 0 and below 1; got 1.0"),
        ("rms:epsilon=0", "epsilon of rms must be above 0; got 0.0"),
        ("adam:beta1=1", "beta1 of adam must be at least 0 and below 1; got 1.0"),
        ("adam:beta2=-1", "beta2 of adam must be at least 0 and below 1; got -1.0"),
        ("adam:epsilon=nan", "epsilon of adam must be above 0; got nan"),
        ("adam:weight-decay=-1", "weight-decay of adam must be at least 0; got -1.0"),
    ],
)
def test_options_are_checked(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        spec.parse("updates", text).make()
    assert str(caught.value) == message


def test_found_by_name() -> None:
    assert registry.names("updates") == ["adam", "momentum", "nesterov", "rms", "sgd"]
    made = [spec.parse("updates", name).make() for name in registry.names("updates")]
    assert made == [Adam(), Momentum(), Nesterov(), Rms(), Sgd()]


@pytest.mark.parametrize("update", [*registry.names("updates"), "momentum:beta=0.5", "nesterov:beta=0.95"])
def test_training_learns_without_a_learning_rate(update: str) -> None:
    """Rates that suit plain SGD would make the others diverge."""
    fitted = fit(
        data="digits", model="mlp:32", update=update, strategy="serial", epochs=40, runs=None, quiet=True
    )
    assert fitted.test_accuracy > 0.7
