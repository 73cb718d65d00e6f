"""A model's buffers as one vector, and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from paceline.models import flat_buffers, put_flat_buffers
from paceline.models._torch import TorchModel
from paceline.models.mlp import MLP
from tests.models.test_torch import make_batch, make_model
from tests.models.torch_zoo import ZOO, vectors


class Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)
        self.register_buffer("table", torch.arange(6.0).reshape(2, 3).t())
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("short", torch.tensor([1.5, 2.5], dtype=torch.bfloat16))
        self.register_buffer("wide", torch.tensor(0.1, dtype=torch.float64))
        self.register_buffer("turns", torch.tensor([[1 + 2j], [3 - 4j]], dtype=torch.complex64))
        self.register_buffer("nothing", torch.empty(0, 3))

    def forward(self, h: Tensor) -> Tensor:
        return self.head(h) + self.short.sum() + self.table.sum()


def test_buffers_are_one_vector() -> None:
    model = TorchModel(Buffers())
    flat = flat_buffers(model)
    assert flat.dtype == np.float64
    assert flat.flags.c_contiguous
    assert flat[:13].tolist() == [0, 3, 1, 4, 2, 5, 1.5, 2.5, 0.1, 1, 2, 3, -4]
    assert flat[13:].tobytes() == bytes([3, *[0] * 7, 1, 0, *[0] * 6])  # the count and the flags
    flat[:] += 1
    assert flat_buffers(model)[0] == 0  # a copy


def test_a_vector_becomes_the_buffers() -> None:
    model = TorchModel(Buffers())
    before = dict(model.buffers)
    others = np.frombuffer(np.int64(-7).tobytes() + bytes([0, 1, *[0] * 6]))
    put_flat_buffers(model, np.concatenate([np.arange(20, 46, dtype=np.float32)[::2], others]))
    assert model.buffers["table"].tolist() == [[20, 22], [24, 26], [28, 30]]
    assert model.buffers["wide"] == 36
    assert model.buffers["turns"].tolist() == [[38 + 40j], [42 + 44j]]
    assert (model.buffers["count"], model.buffers["flags"].tolist()) == (-7, [False, True])
    assert all(model.buffers[name] is array for name, array in before.items())
    assert model.module.table.tolist() == [[20, 22], [24, 26], [28, 30]]
    assert model.module.turns[1, 0].item() == 42 + 44j
    model.predict(vectors().inputs)  # then also those that NumPy has no type for
    assert model.module.short.tolist() == [32, 34]


@pytest.mark.parametrize("name", ZOO)
def test_there_and_back(name: str) -> None:
    model, other, data = make_model(name), make_model(name, seed=6), make_batch(name)
    for data.step in range(3):
        model.gradient(data)
    put_flat_buffers(other, flat_buffers(model))
    for key, value in model.buffers.items():
        np.testing.assert_array_equal(other.buffers[key], value)
    assert flat_buffers(model).size == (
        11 if name in ("batch-norm", "lazy") else 39 if name == "frozen" else 0
    )


def test_of_several_models_numbers_are_averaged_and_counters_are_the_firsts() -> None:
    models = [make_model("batch-norm", seed=seed) for seed in range(3)]
    for passes, model in enumerate(models[:2], 3):
        for _ in range(passes):
            model.gradient(vectors())
    first, second, mean = (model.buffers for model in models)
    put_flat_buffers(models[2], np.stack([flat_buffers(model) for model in models[:2]]))
    (counter,) = [key for key in mean if key.endswith("num_batches_tracked")]
    assert (first[counter], second[counter], mean[counter]) == (3, 4, 3)
    for key in mean.keys() - {counter}:
        expected = (first[key].astype(np.float64) + second[key]) / 2
        np.testing.assert_array_equal(mean[key], expected.astype(mean[key].dtype))


def test_statistics_reach_the_prediction() -> None:
    model, other = make_model("batch-norm"), make_model("batch-norm")
    model.gradient(vectors())
    assert not np.allclose(other.predict(vectors().inputs), model.predict(vectors().inputs))
    put_flat_buffers(other, flat_buffers(model))
    np.testing.assert_array_equal(other.predict(vectors().inputs), model.predict(vectors().inputs))


def test_a_model_without_buffers() -> None:
    model = MLP([2, 3, 1])
    assert flat_buffers(model).shape == (0,)
    put_flat_buffers(model, np.empty(0))


def test_vectors_of_another_size_are_refused() -> None:
    model = MLP([2, 3, 1], standardise=True)
    for shape in ((3,), (5,), (2, 2), ()):
        with pytest.raises(ValueError, match=r"buffers hold 4 numbers; got the shape \("):
            put_flat_buffers(model, np.ones(shape))
    assert flat_buffers(model).tolist() == [0, 0, 1, 1]
