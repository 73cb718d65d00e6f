"""Layers of any module are named when their gradient is final, and nothing stays behind in the module."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from paceline.models import layer_by_layer
from paceline.models._torch import TorchModel
from tests.models.ready_calls import Calls
from tests.models.test_torch import make_batch, make_model
from tests.models.torch_zoo import ZOO, Tied, batch, dense, flat, vectors

ORDERS = {
    "batch-norm": [2, 1, 0],
    "bfloat16": [1, 0],
    "complex": [0],
    "mixed-64": [2, 1, 0],
    "recurrent": [1, 0],
    "sparse": [1, 0],
    "tied": [2, 1, 0],
    "replaces-grad": [0],
    "unused": [0, 1, 2],
}
"""The head comes first, or what is applied to its output; what the pass does not use comes last."""


@pytest.mark.parametrize("name", ZOO)
def test_the_gradient_of_a_ready_layer_is_final(name: str) -> None:
    model, other, data = make_model(name), make_model(name), make_batch(name)
    for number in range(3):
        loss = other.gradient(data)
        calls = Calls(model, data)
        assert calls.loss == loss
        np.testing.assert_array_equal(calls.g, other.g)
        if number and name in ORDERS:
            assert calls.order == ORDERS[name]
        data.step += 1
    model.gradient(data)
    other.gradient(data)
    np.testing.assert_array_equal(model.g, other.g)


@pytest.mark.parametrize("name", ["dropout", "bfloat16", "float64", "embedding"])
def test_layers_are_ready_while_the_pass_goes_on(name: str) -> None:
    model, data = make_model(name), make_batch(name)
    assert Calls(model, data).zeros == [0, 0]  # the first pass watches
    calls = Calls(model, data)
    assert calls.order == [1, 0]
    assert calls.zeros == [1, 0]


def test_parameters_used_twice_wait_for_both_uses() -> None:
    model = TorchModel(Tied())
    Calls(model, vectors())
    calls = Calls(model, vectors())
    assert calls.order == [2, 1, 0]
    assert calls.zeros == [2, 1, 0]


def test_layer_by_layer() -> None:
    model = make_model("batch-norm")
    gradient = layer_by_layer(model)
    Calls(model, vectors(), gradient=gradient)
    assert Calls(model, vectors(), gradient=gradient).order == [2, 1, 0]
    nothing = Calls(model, vectors(0), gradient=gradient)
    assert (nothing.loss, nothing.g.any()) == (0, False)


def test_an_empty_batch_makes_every_layer_ready() -> None:
    model = TorchModel(dense(nn.Tanh()))
    for _ in range(2):
        calls = Calls(model, vectors(0))
        assert (calls.loss, calls.g.any()) == (0, False)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs * self.scale, labels)


def test_parameters_of_the_loss() -> None:
    model = TorchModel(dense(nn.Tanh()), loss=Scaled())
    loss, g = model.gradient(vectors()), model.g.copy()
    for order in ([0, 1, 2], [2, 1, 0]):
        calls = Calls(model, vectors())
        assert calls.order == order
        assert calls.loss == loss
        np.testing.assert_array_equal(calls.g, g)


def test_parameters_frozen_later_are_ready_without_a_gradient() -> None:
    model = TorchModel(nn.Sequential(*(nn.Linear(6, 6) for _ in range(3))))
    model.module[0].requires_grad_(False)
    model.module[1].bias.requires_grad_(False)
    Calls(model, vectors())
    calls = Calls(model, vectors())
    assert calls.order == [2, 1, 0]
    assert not calls.g[:42].any()
    assert calls.g[42:78].all()
    assert not calls.g[78:84].any()
    model.module.requires_grad_(True)
    calls = Calls(model, vectors())
    assert calls.order == [2, 1, 0]
    assert calls.g.all()


class Sometimes(nn.Module):
    """Uses other layers in other passes; at times none."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.used: tuple[int, ...] = ()

    def forward(self, h: Tensor) -> Tensor:
        for part in self.used:
            h = self.parts[part](h)
        return h


def test_layers_that_a_pass_does_not_use_are_ready_at_its_end() -> None:
    model = TorchModel(Sometimes())
    passes = [((), [0, 1, 2]), ((2,), [0, 1, 2]), ((2, 0), [0, 2, 1]), ((1,), [1, 0, 2]), ((), [0, 1, 2])]
    for used, order in [*passes, ((0, 2, 0), [2, 0, 1])]:
        model.module.used = used
        calls = Calls(model, vectors())
        assert calls.order == order
        assert {part for part, at in enumerate(model.layers) if calls.g[at].any()} == set(used)


# ---- backward passes inside the backward pass


class Checkpointed(nn.Module):
    """The middle layer is in two checkpoints, the head outside and inside, the last in one."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.first, self.middle, self.last, self.head = (nn.Linear(6, 6) for _ in range(4))
        self.reentrant = reentrant
        self.twice = True

    def forward(self, h: Tensor) -> Tensor:
        h = self.first(h)
        for part in (self.middle, self.head, self.middle)[: 3 if self.twice else 1]:
            h = checkpoint(lambda h, part=part: torch.tanh(part(h)), h, use_reentrant=self.reentrant)
        return self.head(checkpoint(self.last, h, use_reentrant=self.reentrant))


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize(("reentrant", "order"), [(True, [2, 0, 1, 3]), (False, [2, 3, 1, 0])])
def test_checkpoints(short: bool, reentrant: bool, order: list[int]) -> None:
    module = Checkpointed(reentrant=reentrant)
    model = TorchModel(module.bfloat16() if short else module)
    loss, g = model.gradient(vectors()), model.g.copy()
    for number in range(3):
        calls = Calls(model, vectors())
        assert calls.loss == loss
        np.testing.assert_array_equal(calls.g, g)
        assert not number or calls.order == order


def test_a_gradient_that_changes_after_it_was_ready_is_told() -> None:
    model = TorchModel(Checkpointed(reentrant=True))
    model.module.twice = False
    for _ in range(2):
        Calls(model, vectors())
    model.module.twice = True
    with pytest.raises(RuntimeError, match=r"must not change once it is ready.* in layers \[1, 3\]"):
        model.gradient(vectors(), lambda layer: None)
    other = copy.deepcopy(model)
    assert model.gradient(vectors()) == other.gradient(vectors())
    np.testing.assert_array_equal(model.g, other.g)


class Elsewhere(torch.autograd.Function):
    """Goes back through a layer on another thread."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, layer: nn.Module) -> Tensor:
        ctx.h, ctx.layer = h.detach().requires_grad_(True), layer
        return layer(h)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, None]:
        def work() -> None:
            with torch.enable_grad():
                ctx.layer(ctx.h).backward(above)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return ctx.h.grad, None


def test_ready_is_called_on_the_callers_thread() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = (nn.Linear(6, 6) for _ in range(3))

        def forward(self, h: Tensor) -> Tensor:
            return self.head(Elsewhere.apply(self.first(h), self.second))

    model = TorchModel(Net())
    threads = set()

    def gradient(data: Any, ready: Any) -> float:
        return model.gradient(data, lambda layer: (threads.add(threading.get_ident()), ready(layer))[1])

    Calls(model, vectors(), gradient=gradient)
    calls = Calls(model, vectors(), gradient=gradient)
    assert threads == {threading.get_ident()}
    assert calls.order == [2, 0, 1]
    assert calls.g.all()


# ---- hooks of the user's


def double(p: Tensor) -> None:
    p.grad.mul_(2)


def test_hooks_that_change_a_gradient() -> None:
    model = TorchModel(dense(nn.Tanh()))
    model.gradient(vectors())
    g = model.g.copy()
    weight, head = model.module[0].weight, model.module[2]
    weight.register_post_accumulate_grad_hook(double)
    weight.register_hook(lambda grad: grad * 5)

    def late(*_: Any) -> None:  # layer 1 looked final
        head.bias.grad.add_(1)

    model.module[1].register_full_backward_hook(late)
    g[:30] *= 10
    g[-4:] += 1
    for order in ([0, 1], [0, 1]):
        calls = Calls(model, vectors())
        assert calls.order == order
        np.testing.assert_allclose(calls.g, g, rtol=1e-6)


# ---- what stays behind


@pytest.mark.parametrize("name", ["tied", "dropout", "weight-norm"])
def test_no_hooks_stay_behind(name: str) -> None:
    model, data = make_model(name), make_batch(name)
    kept = model.module(torch.from_numpy(data.inputs).to(model.input_dtype))  # a graph that somebody keeps
    seen: list[int] = []
    for _ in range(3):
        model.gradient(data, seen.append)
    del seen[:]
    kept.float().sum().backward()
    model.gradient(data)
    assert seen == []
    for p in model.module.parameters():
        assert not p._backward_hooks
        assert not p._post_accumulate_grad_hooks

    class Callee:
        def __call__(self, layer: int) -> None: ...

    gc.collect()
    gc.disable()
    try:
        callee = Callee()
        gone = weakref.ref(callee)
        model.gradient(data, callee)
        del callee
        assert gone() is None
    finally:
        gc.enable()


def test_a_callee_that_fails_leaves_no_hooks() -> None:
    model, data = make_model("tied"), vectors()
    loss, g = model.gradient(data), model.g.copy()
    seen: list[int] = []

    def fail(layer: int) -> None:
        seen.append(layer)
        if layer == 1:
            raise KeyError("the network is down")

    for number in range(3):
        with pytest.raises(KeyError, match="the network is down"):
            model.gradient(data, fail)
        assert seen == ([2, 1] if number else [0, 1])
        del seen[:]
    assert model.gradient(data) == loss
    assert seen == []
    np.testing.assert_array_equal(model.g, g)


@pytest.mark.parametrize("name", ["tied", "bfloat16", "batch-norm"])
def test_copies_after_a_pass_with_ready(name: str) -> None:
    model, data = make_model(name), make_batch(name)
    before = len(cloudpickle.dumps(model))
    for _ in range(2):
        model.gradient(data, lambda layer: None)
    others = [copy.deepcopy(model), cloudpickle.loads(cloudpickle.dumps(model))]
    modules = [copy.deepcopy(model.module), cloudpickle.loads(cloudpickle.dumps(model.module))]
    assert abs(len(cloudpickle.dumps(model)) - before) < 100
    for module in modules:
        np.testing.assert_array_equal(flat(module.parameters()), flat(model.module.parameters()))
    loss, g = model.gradient(data), model.g.copy()
    for other in others:
        calls = Calls(other, data)
        assert calls.loss == loss
        np.testing.assert_array_equal(calls.g, g)
    assert Calls(others[1], data).order == Calls(model, data).order


def test_foreign_memory() -> None:
    model = make_model("tied")
    Calls(model, vectors())
    room = np.empty((2, model.x.size), np.float32)
    model.place(*room)
    calls = Calls(model, batch(vectors().inputs, vectors().labels))
    assert calls.order == [2, 1, 0]
