"""What a user's function may return."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from paceline import names as spec
from paceline.data import load
from paceline.errors import UsageError
from paceline.models import as_model, make
from paceline.models._torch import TorchModel
from tests.models.torch_zoo import batch

IRIS = load("iris")
DIGITS = load("digits")


def perceptron(width: int = 5) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))


def with_loss() -> tuple[nn.Module, Any]:
    return nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(dim=1)), nn.NLLLoss()


def convolution() -> nn.Module:
    """Written for (b, 1, height, width), as most are."""
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 10))


def lazy_convolution() -> nn.Module:
    return nn.Sequential(nn.LazyConv2d(2, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))


class OwnView(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = convolution()

    def forward(self, h: Tensor) -> Tensor:
        return self.inner(h.unsqueeze(1))


def test_a_model_passes_through() -> None:
    model = TorchModel(perceptron())
    assert as_model(model, IRIS) is model


def test_a_module_and_a_pair_are_wrapped() -> None:
    module = perceptron()
    model = as_model(module, IRIS, seed=3)
    assert isinstance(model, TorchModel)
    assert (model.module, model.seed) == (module, 3)
    pair = as_model(with_loss(), IRIS)
    inputs, labels = np.ones((4, 4), np.float32), np.zeros(4, np.int64)
    expected = -pair.predict(inputs)[:, 0].sum()
    assert pair.gradient(batch(inputs, labels)) == pytest.approx(expected, rel=1e-6)


def test_float64_is_asked_for_and_other_dtypes_are_the_modules() -> None:
    assert as_model(perceptron(), IRIS, dtype=np.float64).x.dtype == np.float64
    assert as_model(perceptron(), IRIS, dtype=np.dtype("float32")).x.dtype == np.float32
    assert as_model(perceptron().double(), IRIS, dtype="float32").x.dtype == np.float64
    short = as_model(perceptron().bfloat16(), IRIS, dtype="float32")
    assert short.module[0].weight.dtype == torch.bfloat16


@pytest.mark.parametrize("function", [convolution, lazy_convolution, OwnView])
def test_an_image_without_channels_suits_convolutions(function: Any) -> None:
    model = as_model(function(), DIGITS)
    inputs = np.random.default_rng(0).random((6, 8, 8), dtype=np.float32)
    assert model.predict(inputs).shape == (6, 10)
    assert model.gradient(batch(inputs, np.arange(6))) > 0
    assert next(model.module.parameters()).shape == (2, 1, 3, 3)


def test_a_function_of_the_users_by_name() -> None:
    wanted = spec.parse("models", "tests.models.test_torch_wrap:perceptron:width=7")
    first, again, other = (make(wanted, IRIS, seed=seed) for seed in (1, 1, 2))
    assert first.x.size == 4 * 7 + 7 + 7 * 3 + 3
    np.testing.assert_array_equal(first.x, again.x)
    assert (first.x != other.x).any()
    assert make(spec.parse("models", "mlp:7"), IRIS).x.size == first.x.size


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (3, "a torch.nn.Module or a pair .module, loss.; got int"),
        (OwnView, r"got the class OwnView \(call it\)"),
        ((perceptron(), None, 1), "got a tuple of Sequential, NoneType, int"),
        ((perceptron(), "nll"), "a loss must be callable"),
        (nn.Linear(5, 3), "the module cannot take iris's samples of 4: mat1 and mat2 shapes cannot be"),
        (nn.Linear(4, 2), "the module returns 2 scores per sample; iris has 3 classes"),
        (nn.Sequential(nn.Linear(4, 3), nn.Flatten(0)), r"one row per sample; for 2 samples of 4 .* \(6,\)"),
    ],
)  # fmt: skip
def test_what_is_no_model(thing: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        as_model(thing, IRIS)


def test_the_first_problem_is_told() -> None:
    with pytest.raises(UsageError, match=r"cannot take digits's samples of 8x8: .*expected input"):
        as_model(nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(72, 10)), DIGITS)


def test_a_function_that_imports_torch_itself_draws_from_the_seed_too() -> None:
    code = """
import sys
sys.path.insert(0, {root!r})
from paceline.data import load
from paceline.models import make
from paceline.names import parse
wanted = parse("models", "tests.models.late_torch:build")
assert "torch" not in sys.modules
iris = load("iris")
models = [make(wanted, iris, seed=seed) for seed in (1, 1, 2)]
assert (models[0].x == models[1].x).all()
assert (models[0].x != models[2].x).any()
"""
    root = str(Path(__file__).parents[2])
    subprocess.run([sys.executable, "-c", code.format(root=root)], check=True)
