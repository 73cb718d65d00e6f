"""Evaluating in small pieces between the steps of a training changes nothing of it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from paceline.models._torch import GlobalDropout, TorchModel, evaluation_mode
from tests.models import mlp_nets
from tests.models.mlp_nets import VARIANTS, name, part
from tests.models.test_torch import make_batch, make_model
from tests.models.torch_zoo import ZOO, batch, dense, vectors

EVERY = {**ZOO, "global-dropout": lambda: dense(nn.BatchNorm1d(5), GlobalDropout(0.5), nn.Tanh())}


def train_and_evaluate(model: Any, batches: Any, pieces: Any) -> list[Any]:
    """Return every loss, gradient and buffer of a short training; `pieces` are evaluated between its steps."""
    seen: list[Any] = []
    for data in batches:
        seen.append(model.gradient(data))
        g, x = model.g.copy(), model.x.copy()
        buffers = {key: value.copy() for key, value in model.buffers.items()}
        results = [[model.evaluate(*piece), model.predict(piece[0]).tolist()] for piece in pieces]
        again = [[model.evaluate(*piece), model.predict(piece[0]).tolist()] for piece in pieces]
        assert results == again
        np.testing.assert_array_equal(model.g, g)
        np.testing.assert_array_equal(model.x, x)
        for key, value in buffers.items():
            np.testing.assert_array_equal(model.buffers[key], value)
        seen += [g.tolist(), {key: value.tolist() for key, value in buffers.items()}]
        model.x -= 0.1 * model.g / data.count
    return seen


def cut(inputs: Any, labels: Any, sizes: list[int]) -> list[tuple[Any, Any]]:
    ends = np.cumsum([0, *sizes])
    return [(inputs[start:stop], labels[start:stop]) for start, stop in itertools.pairwise(ends)]


@pytest.mark.parametrize("variant", VARIANTS, ids=name)
def test_evaluation_does_not_change_how_an_mlp_trains(variant: dict[str, Any]) -> None:
    nets = [mlp_nets.net(variant, dtype=np.float32) for _ in range(2)]
    whole = mlp_nets.batch(nets[0], 100)
    batches = [part(whole.inputs[:n], whole.labels[:n]) for n in (16, 16, 1, 7, 16)]
    pieces = cut(whole.inputs, whole.labels, [64, 1, 0, 3, 16])
    assert train_and_evaluate(nets[0], batches, pieces) == train_and_evaluate(nets[1], batches, [])


def test_evaluation_does_not_change_an_mlp_that_shares_factors() -> None:
    nets = [mlp_nets.net(VARIANTS[0]) for _ in range(2)]
    whole = mlp_nets.batch(nets[0], 100)
    batches = [part(whole.inputs[:n], whole.labels[:n]) for n in (16, 5)]
    sums = [net.share_factors(np.empty(net.factor_bytes(16), np.uint8), 16, rank=0, ranks=1) for net in nets]
    for data in batches:
        losses = [net.gradient(data) for net in nets]
        nets[0].evaluate(whole.inputs[:64], whole.labels[:64])
        assert losses[0] == losses[1]
        np.testing.assert_array_equal(sums[0](), sums[1]())


@pytest.mark.parametrize("name", EVERY)
def test_evaluation_does_not_change_how_a_module_trains(name: str) -> None:
    models = []
    for _ in range(2):
        torch.manual_seed(1)
        models.append(TorchModel(EVERY[name](), seed=5, sample=np.zeros((2, 6), np.float32)))
    data = make_batch(name)
    batches = [batch(data.inputs[:n], data.labels[:n], step=step) for step, n in enumerate((12, 12, 5, 12))]
    pieces = cut(data.inputs, data.labels, [8, 1, 3])
    assert train_and_evaluate(models[0], batches, pieces) == train_and_evaluate(models[1], batches, [])


def test_pieces_add_up() -> None:
    model, data = make_model("batch-norm"), vectors(150)
    loss, right = model.evaluate(data.inputs, data.labels)
    found = [model.evaluate(*piece) for piece in cut(data.inputs, data.labels, [64, 64, 22])]
    assert sum(one for one, _ in found) == pytest.approx(loss, rel=1e-5)
    assert sum(one for _, one in found) == right


class Centred(nn.Module):
    """A loss with statistics of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.normal = nn.BatchNorm1d(4)

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.normal(outputs), labels)


def test_of_a_loss_with_buffers() -> None:
    models = []
    for _ in range(2):
        torch.manual_seed(1)
        models.append(TorchModel(dense(nn.Tanh()), loss=Centred()))
    data = vectors()
    pieces = cut(data.inputs, data.labels, [8, 1, 3])
    assert train_and_evaluate(models[0], [data] * 3, pieces) == train_and_evaluate(models[1], [data] * 3, [])
    assert models[0].buffers["loss:normal.num_batches_tracked"] == 3


# ---- modes


class Told(nn.Linear):
    """Does something when its mode changes, as layers that merge weights do."""

    def __init__(self) -> None:
        super().__init__(6, 6)
        self.modes: list[bool] = []

    def train(self, mode: bool = True) -> Told:
        self.modes.append(mode)
        return super().train(mode)


class Never(nn.Dropout):
    """Is never in training."""

    @property
    def training(self) -> bool:
        return False

    @training.setter
    def training(self, mode: bool) -> None: ...


class Watches(nn.Dropout):
    """Sees its mode change."""

    def __init__(self) -> None:
        super().__init__()
        self.modes: list[bool] = []

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "training":
            self.modes.append(value)


@pytest.mark.parametrize("special", [None, Told, Never, Watches])
def test_every_part_gets_its_mode_back(special: Any) -> None:
    shared = nn.Dropout()
    parts = [nn.Linear(6, 6), shared, nn.Sequential(nn.BatchNorm1d(6).eval(), nn.ReLU(), shared)]
    module = nn.Sequential(*parts, *([special()] if special else []))
    module.nothing = None
    modes = [one.training for one in module.modules()]
    for raises in (False, True):
        try:
            with evaluation_mode([module]):
                assert not any(one.training for one in module.modules())
                if raises:
                    parts[0].train()  # whoever changes it in between
                    raise KeyError
        except KeyError:
            pass
        assert [one.training for one in module.modules()] == modes
    if special in (Told, Watches):
        assert module[-1].modes[0] is False
        assert module[-1].modes[-1] is True
    module.eval()
    with evaluation_mode([module]):
        pass
    assert not any(one.training for one in module.modules())


def test_a_train_of_an_instances_own_is_called() -> None:
    module, told = nn.Linear(6, 4), []
    module.train = lambda mode=True: (told.append(mode), nn.Module.train(module, mode))[1]
    with evaluation_mode([module]):
        assert not module.training
    assert module.training
    assert told == [False, True]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_module() -> None:
    module = torch.jit.script(nn.Sequential(nn.Linear(6, 4), nn.Dropout()))
    with evaluation_mode([module]):
        assert [one.training for one in module.modules()] == [False] * 3
        assert torch.equal(module(torch.ones(2, 6)), module(torch.ones(2, 6)))
    assert [one.training for one in module.modules()] == [True] * 3
