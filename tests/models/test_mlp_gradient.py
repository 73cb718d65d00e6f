"""The gradient is the derivative of the loss, and a sum over the samples, however they are cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.models.mlp import MLP
from tests.models.mlp_nets import VARIANTS, batch, name, net, part

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("variant", VARIANTS, ids=name)
def test_finite_differences(variant: dict[str, Any], count: int) -> None:
    model = net(variant)
    given = batch(model, count)
    loss = model.gradient(given)
    assert loss == pytest.approx(model.evaluate(given.inputs, given.labels)[0], rel=1e-12)
    h, measured = 1e-6, np.empty_like(model.x)
    for i, value in enumerate(model.x.tolist()):
        model.x[i] = value + h
        above, _ = model.evaluate(given.inputs, given.labels)
        model.x[i] = value - h
        below, _ = model.evaluate(given.inputs, given.labels)
        model.x[i] = value
        measured[i] = (above - below) / (2 * h)
    np.testing.assert_allclose(model.g, measured, rtol=1e-6, atol=1e-6 * np.abs(model.g).max())


@pytest.mark.parametrize("variant", VARIANTS, ids=name)
def test_pytorch_agrees(variant: dict[str, Any]) -> None:
    model = net(variant)
    given = batch(model, 9)
    x = torch.tensor(model.x, requires_grad=True)
    loss = torch_loss(model, x, torch.tensor(given.inputs), torch.tensor(given.labels))
    loss.backward()  # type: ignore[no-untyped-call]
    assert model.gradient(given) == pytest.approx(loss.item(), rel=1e-10)
    np.testing.assert_allclose(model.g, x.grad, rtol=1e-8, atol=1e-12)


def torch_loss(model: MLP, x: Any, h: Any, labels: Any) -> Any:
    """The same network written with PyTorch's own functions."""
    f = {"sigmoid": torch.sigmoid, "tanh": torch.tanh, "relu": torch.relu}[model.activation]
    if model.standardise:
        h = (h - torch.tensor(model.buffers["mean"])) / torch.tensor(model.buffers["std"])
    last = len(model.layers) - 1
    for i, (where, n, m) in enumerate(zip(model.layers, model.sizes, model.sizes[1:], strict=False)):
        h = h @ x[where][: n * m].reshape(n, m) + x[where][n * m :]
        if i < last:
            h = f(h)
            h = torch.nn.functional.layer_norm(h, (m,)) if model.normalise else h
    if model.loss == "cross-entropy":
        return torch.nn.functional.cross_entropy(h, labels, reduction="sum")
    if model.regression:
        return 0.5 * ((h - labels) ** 2).sum()
    h = h if model.activation == "relu" else f(h)
    return 0.5 * ((h - torch.nn.functional.one_hot(labels, h.shape[1])) ** 2).sum()


@settings(max_examples=60, deadline=None)
@given(
    variant=st.sampled_from(VARIANTS),
    cuts=st.lists(st.integers(0, 23), max_size=5).map(sorted),
    seed=st.integers(0, 99),
)
def test_pieces_add_up_to_the_whole(variant: dict[str, Any], cuts: list[int], seed: int) -> None:
    model = net(variant)
    whole = batch(model, 23, seed)
    loss, g = model.gradient(whole), model.g.copy()
    losses, pieces = 0.0, np.zeros_like(g)
    for start, end in zip([0, *cuts], [*cuts, 23], strict=True):
        losses += model.gradient(part(whole.inputs[start:end], whole.labels[start:end]))
        pieces += model.g
    assert losses == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(pieces, g, rtol=1e-9, atol=1e-12 * np.abs(g).max())


@pytest.mark.parametrize("variant", VARIANTS, ids=name)
def test_float32_agrees_with_float64(variant: dict[str, Any]) -> None:
    wide, short = net(variant), net(variant, dtype=np.float32)
    given = batch(wide, 33)
    loss = short.gradient(part(given.inputs.astype(np.float32), given.labels))
    assert loss == pytest.approx(wide.gradient(given), rel=1e-5)
    np.testing.assert_allclose(short.g, wide.g, atol=2e-5 * np.abs(wide.g).max())


@pytest.mark.parametrize("sizes", [(3, 2), (1, 1, 1), (784, 128, 64, 10), (40, 300, 9), (6, 5, 300)])
@pytest.mark.parametrize("count", [1, 3, 16, 31, 70])
def test_depths_and_sizes(sizes: tuple[int, ...], count: int) -> None:
    """With no hidden layer, layers of one unit, many classes, and products cut into parts for speed."""
    model = net({}, sizes)
    given = batch(model, count)
    x = torch.tensor(model.x, requires_grad=True)
    loss = torch_loss(model, x, torch.tensor(given.inputs), torch.tensor(given.labels))
    loss.backward()  # type: ignore[no-untyped-call]
    assert model.gradient(given) == pytest.approx(loss.item(), rel=1e-10)
    np.testing.assert_allclose(model.g, x.grad, rtol=1e-7, atol=1e-11)


@pytest.mark.parametrize("variant", VARIANTS, ids=name)
def test_batch_sizes_in_any_order(variant: dict[str, Any]) -> None:
    """Passes of several batch sizes share memory: none may leave anything behind that another one sees."""
    model = net(variant)
    for count in (16, 5, 1, 16, 0, 1, 40, 2, 5, 16, 1, 39):
        given = batch(model, count, seed=count)
        fresh = net(variant)
        assert model.gradient(given) == fresh.gradient(given)
        np.testing.assert_array_equal(model.g, fresh.g)


def test_more_batch_sizes_than_are_kept() -> None:
    model = net({})
    for count in [*range(1, 80), *range(80, 0, -7)]:
        given, fresh = batch(model, count), net({})
        assert model.gradient(given) == fresh.gradient(given)
        np.testing.assert_array_equal(model.g, fresh.g)


def test_no_samples_no_gradient() -> None:
    model = net({})
    model.gradient(batch(model, 3))
    assert model.gradient(batch(model, 0)) == 0
    assert not model.g.any()


@pytest.mark.parametrize("loss", ["squared-error", "cross-entropy"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "relu"])
def test_huge_values_overflow_nowhere(activation: str, dtype: Any, loss: str) -> None:
    model = MLP((5, 7, 4), activation=activation, loss=loss, dtype=dtype)  # type: ignore[arg-type]
    model.x *= 100
    given = batch(model, 6)
    given.inputs *= 1000
    assert np.isfinite(model.gradient(given))
    assert np.isfinite(model.g).all()
    assert np.isfinite(model.predict(given.inputs)).all()


def test_a_confident_mistake_has_its_true_loss() -> None:
    """Where the probability of the right class is too small for a float, its logarithm is not."""
    model = MLP((1, 2), loss="cross-entropy")
    model.x[:] = [0, 0, 500, -500]
    given = part(np.zeros((2, 1), np.float32), np.array([1, 0]))
    assert model.gradient(given) == 1000
    assert model.evaluate(given.inputs, given.labels) == (1000, 1)


def test_the_loss_is_summed_in_float64() -> None:
    model = MLP((1, 1), regression=True)
    model.x[:] = 0
    targets = np.full(200_000, 1e-4)
    targets[0] = 1e3
    loss = model.gradient(part(np.zeros((200_000, 1), np.float32), targets))
    assert loss == pytest.approx(0.5 * (1e6 + 199_999 * 1e-8), rel=1e-11)  # float32: 2e-9
