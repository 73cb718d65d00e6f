"""Layers are named when their gradient is final, by the MLP and by models that know nothing of it."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from paceline.data import Batch
from paceline.models import Ready, layer_by_layer
from paceline.models.mlp import MLP
from tests.models import mlp_nets
from tests.models.mlp_nets import VARIANTS, name, part
from tests.models.ready_calls import Calls


@pytest.mark.parametrize("variant", VARIANTS, ids=name)
@pytest.mark.parametrize("count", [1, 2, 40])
def test_the_gradient_of_a_ready_layer_is_final(variant: dict[str, Any], count: int) -> None:
    net = mlp_nets.net(variant)
    batch = mlp_nets.batch(net, count)
    loss, g = net.gradient(batch), net.g.copy()
    calls = Calls(net, batch)
    assert calls.loss == loss
    np.testing.assert_array_equal(calls.g, g)
    assert calls.order == [2, 1, 0]
    assert calls.zeros == [2, 1, 0]  # those below are still to come


def test_a_network_of_one_layer() -> None:
    net = MLP([5, 4])
    assert Calls(net, mlp_nets.batch(net, 3)).order == [0]


def test_an_empty_batch_makes_every_layer_ready() -> None:
    net = MLP([5, 7, 4])
    nothing = part(np.empty((0, 5), np.float32), np.empty(0, int))
    for gradient in (net.gradient, layer_by_layer(net)):
        calls = Calls(net, nothing, gradient=gradient)
        assert calls.loss == 0
        assert not calls.g.any()


def test_factors_leave_no_gradient_to_be_ready() -> None:
    net = MLP([5, 7, 4])
    batch, before = mlp_nets.batch(net, 3), net.g.copy()
    net.share_factors(np.empty(net.factor_bytes(3), np.uint8), 3, rank=0, ranks=1)
    for gradient in (net.gradient, layer_by_layer(net)):
        with pytest.raises(ValueError, match="shares factors does not compute g"):
            gradient(batch, print)
    net.gradient(batch)
    np.testing.assert_array_equal(net.g, before)


def test_what_ready_raises_is_raised() -> None:
    net = MLP([5, 7, 4])
    batch = mlp_nets.batch(net, 3)
    net.gradient(batch)
    g = net.g.copy()
    with pytest.raises(ZeroDivisionError):
        net.gradient(batch, lambda layer: layer // 0)
    net.gradient(batch)
    np.testing.assert_array_equal(net.g, g)


class Old(MLP):
    """A model from before there was `ready`."""

    def gradient(self, batch: Batch) -> float:  # type: ignore[override]
        return super().gradient(batch)


class Some(MLP):
    """Names the layers given, after a gradient that it computes at once."""

    said: tuple[int, ...] = ()

    def gradient(self, batch: Batch, ready: Ready | None = None) -> float:
        loss = super().gradient(batch)
        for layer in self.said if ready else ():
            ready(layer)
        return loss


def handing_on(function: Any) -> Any:
    @functools.wraps(function)
    def gradient(*given: Any, **named: Any) -> Any:
        return function(*given, **named)

    return gradient


def taking_less(function: Any) -> Any:
    @functools.wraps(function)
    def gradient(self: Any, batch: Batch) -> Any:
        return function(self, batch)

    return gradient


def unknown(function: Any) -> Any:
    def gradient(*given: Any, **named: Any) -> Any:
        assert not named
        return function(*given)

    return gradient


class HandsOn(MLP):
    gradient = handing_on(MLP.gradient)


class TakesLess(MLP):
    gradient = taking_less(MLP.gradient)


class OldHandsOn(Old):
    gradient = handing_on(Old.gradient)


class Unknown(MLP):
    gradient = unknown(MLP.gradient)


class Keyword(MLP):
    def gradient(self, batch: Batch, *, ready: Ready | None = None) -> float:  # type: ignore[override]
        return super().gradient(batch, ready)


class Counting:
    """A gradient that is an object, not a method."""

    def __init__(self, net: MLP) -> None:
        self.net, self.calls = net, 0

    def __call__(self, batch: Batch, ready: Ready | None = None) -> float:
        self.calls += 1
        return self.net.gradient(batch, ready)


@pytest.mark.parametrize(
    ("kind", "order"),
    [
        (MLP, [2, 1, 0]), (Keyword, [2, 1, 0]), (HandsOn, [2, 1, 0]),
        (Old, [0, 1, 2]), (OldHandsOn, [0, 1, 2]), (TakesLess, [0, 1, 2]), (Unknown, [0, 1, 2]),
    ],
)  # fmt: skip
def test_any_model_layer_by_layer(kind: type[MLP], order: list[int]) -> None:
    net = kind(mlp_nets.SIZES, seed=2)
    batch = mlp_nets.batch(net, 6)
    loss, g = net.gradient(batch), net.g.copy()
    gradient = layer_by_layer(net)
    for _ in range(2):
        calls = Calls(net, batch, gradient=gradient)
        assert calls.loss == loss
        np.testing.assert_array_equal(calls.g, g)
        assert calls.order == order


def test_a_gradient_that_is_an_object() -> None:
    net = MLP(mlp_nets.SIZES)
    net.gradient = counting = Counting(MLP(mlp_nets.SIZES))  # type: ignore[assignment,method-assign]
    done: list[int] = []
    layer_by_layer(net)(mlp_nets.batch(net, 6), done.append)
    assert (done, counting.calls) == ([2, 1, 0], 1)


def test_layers_that_a_model_does_not_name_are_ready_at_the_end() -> None:
    net = Some(mlp_nets.SIZES)
    net.said = (1,)
    calls = Calls(net, mlp_nets.batch(net, 6), gradient=layer_by_layer(net))
    assert calls.order == [1, 0, 2]


@pytest.mark.parametrize(("said", "wrong"), [((2, 2), 2), ((0, 3), 3), ((-1,), -1)])
def test_layers_that_a_model_must_not_name(said: tuple[int, ...], wrong: int) -> None:
    net = Some(mlp_nets.SIZES)
    net.said = said
    done: list[int] = []
    with pytest.raises(
        ValueError, match=f"each of the 3 layers must be ready once per pass; Some reported {wrong}"
    ):
        layer_by_layer(net)(mlp_nets.batch(net, 6), done.append)
    assert done == list(said[:-1])
