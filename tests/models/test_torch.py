"""Any module: its gradient is PyTorch's, and its parameters, gradients and buffers are NumPy's."""

from __future__ import annotations

import copy
import gc

import cloudpickle
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from paceline.errors import UsageError
from paceline.models import Model
from paceline.models._torch import TorchModel
from tests.models import torch_zoo
from tests.models.torch_zoo import ZOO, Mixed, Tied, batch, dense, flat, frozen, plain_gradient, vectors

SHORT = {"bfloat16", "float16", "mixed-16"}


def make_model(name: str, seed: int = 5) -> TorchModel:
    torch.manual_seed(1)
    return TorchModel(ZOO[name](), seed=seed, sample=np.zeros((2, 6), np.float32))


def make_batch(name: str) -> object:
    data = vectors()
    if name in ("embedding", "sparse"):  # tokens, as floats like all inputs; some twice
        data.inputs[...] = np.random.default_rng(1).integers(0, 9, data.inputs.shape)
    return data


@pytest.mark.parametrize("name", ZOO)
def test_the_gradient_is_pytorchs(name: str) -> None:
    model, data = make_model(name), make_batch(name)
    assert isinstance(model, Model)
    for _ in range(2):  # the second time, the gradient of the first is not added
        loss, gradient = plain_gradient(model.module, data, seed=5)
        assert model.gradient(data) == pytest.approx(loss, rel=1e-5)
        np.testing.assert_allclose(model.g, gradient, rtol=1e-5, atol=2e-2 if name in SHORT else 1e-5)
        assert np.abs(gradient).max() > 0.1
        data.step += 1


@pytest.mark.parametrize("name", ZOO)
def test_training_is_pytorchs_also_in_foreign_memory(name: str) -> None:
    model, data = make_model(name), make_batch(name)
    plain = copy.deepcopy(model.module)
    at_start = model.x.copy()
    room = np.full((2, model.x.size + 2), np.nan, model.x.dtype)
    x, g = room[0, 1:-1], room[1, 1:-1]
    model.place(x, g)
    assert model.x is x
    assert model.g is g
    np.testing.assert_array_equal(x, at_start)
    optimizer = torch.optim.SGD([p for p in plain.parameters() if p.requires_grad], lr=0.1)
    for data.step in range(4):
        optimizer.zero_grad()
        torch_zoo.plain_loss(plain, data, seed=5).backward()
        optimizer.step()
        model.gradient(data)
        x -= 0.1 * g / data.count
    model.predict(data.inputs)
    theirs = flat(p for p in plain.parameters() if p.requires_grad)
    coarse = name in SHORT or name == "mixed-64"  # their steps are rounded, ours are kept in x
    np.testing.assert_allclose(x, theirs, rtol=1e-5, atol=2e-2 if coarse else 1e-6)
    np.testing.assert_allclose(flat(p for p in model.module.parameters() if p.requires_grad), x, atol=5e-3)
    assert np.abs(x - at_start).max() > 0.03
    assert np.isnan(room[:, [0, -1]]).all()  # nothing was written beside


def test_parameters_and_gradients_are_views() -> None:
    model = TorchModel(dense(nn.Tanh()))
    model.x[:] = np.arange(model.x.size)
    assert model.module[0].weight[1, 0].item() == 6
    assert model.module[2].bias.tolist() == [55, 56, 57, 58]
    model.gradient(vectors())
    assert all(p.grad.data_ptr() >= model.g.ctypes.data for p in model.module.parameters())
    assert model.module[2].bias.grad.tolist() == model.g[-4:].tolist()


def test_a_layer_is_a_weight_with_its_bias() -> None:
    assert TorchModel(dense(nn.BatchNorm1d(5))).layers == [slice(0, 35), slice(35, 45), slice(45, 69)]
    tied = TorchModel(Tied())  # the second layer has a bias of its own, and its weight is the first's
    assert tied.layers == [slice(0, 42), slice(42, 48), slice(48, 76)]
    assert TorchModel(frozen()).layers == [slice(0, 20)]


def test_two_parameters_in_one_memory_are_one() -> None:
    module = Tied()
    module.second.weight = nn.Parameter(module.first.weight.detach())
    together, model = TorchModel(Tied()), TorchModel(module)
    assert model.x.size == together.x.size
    together.x[:] = model.x
    assert model.gradient(vectors()) == together.gradient(vectors())
    np.testing.assert_array_equal(model.g, together.g)


def test_x_is_a_master_copy_of_short_parameters() -> None:
    model = make_model("bfloat16")
    assert model.x.dtype == np.float32
    model.x[0] = 1.001
    model.gradient(vectors())
    assert model.x[0] == np.float32(1.001)
    assert model.module[0].weight[0, 0].item() == 1
    assert make_model("float64").x.dtype == np.float64
    assert TorchModel(Mixed([torch.float32, torch.float64])).x.dtype == np.float64


def test_small_steps_are_not_lost_in_bfloat16() -> None:
    model = make_model("bfloat16")
    model.x[0] = 1
    for _ in range(20):
        model.x[0] += 5e-4
        model.gradient(vectors())
    assert model.module[0].weight[0, 0].item() == torch.tensor(1.01).bfloat16().item()


@pytest.mark.parametrize("name", ["dropout", "bfloat16"])
def test_values_given_to_the_module_are_taken(name: str) -> None:
    model, other = make_model(name), ZOO[name]()
    with torch.no_grad():
        other[0].weight.fill_(0.5)
    model.module.load_state_dict(other.state_dict())
    model.predict(vectors().inputs)
    assert (model.x[:30] == 0.5).all()
    model.x[:30] = 0.25
    model.predict(vectors().inputs)
    assert (model.module[0].weight == 0.25).all()


def test_memory_given_to_a_parameter_is_taken_back() -> None:
    model = make_model("dropout")
    model.module[0].weight.data = torch.full((5, 6), 2.0)
    model.module.zero_grad()
    loss, gradient = plain_gradient(model.module, vectors(), seed=5)
    assert model.gradient(vectors()) == pytest.approx(loss)
    np.testing.assert_allclose(model.g, gradient, atol=1e-5)
    assert (model.x[:30] == 2).all()
    model.x[:30] = 3
    assert (model.module[0].weight == 3).all()
    model.module.bfloat16()  # now x is the master copy
    model.input_dtype = torch.bfloat16
    model.gradient(vectors())
    assert (model.x[:30] == 3).all()
    assert model.x.dtype == np.float32


def test_memory_given_to_a_parameter_moves_along() -> None:
    model = make_model("tied")
    model.module.head.weight.data = torch.full((4, 6), 2.0)
    model.place(np.empty_like(model.x), np.empty_like(model.g))
    assert (model.x[48:72] == 2).all()
    assert (model.module.head.weight == 2).all()


def test_gradients_of_somebody_elses_passes_are_not_added() -> None:
    model, data = make_model("tied"), vectors()
    model.gradient(data)
    g = model.g.copy()
    model.module.zero_grad()  # sets them to None; the next pass makes new ones
    model.module(torch.from_numpy(data.inputs)).sum().backward()
    model.gradient(data)
    np.testing.assert_array_equal(model.g, g)


@pytest.mark.parametrize("name", ["tied", "dropout", "batch-norm", "bfloat16"])
@pytest.mark.parametrize("clear", ["module", "optimizer", "by-hand", "to-zero"])
def test_g_is_the_gradient_also_of_the_users_own_passes(name: str, clear: str) -> None:
    model, data = make_model(name), make_batch(name)
    g, gradient = model.g, model.gradient
    parameters = [p for p in model.module.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.0)

    def cleared() -> None:
        if clear == "module":
            model.module.zero_grad()
        elif clear == "by-hand":
            for p in parameters:
                p.grad = None
        else:
            optimizer.zero_grad(set_to_none=clear == "optimizer")

    gradient(data)
    wanted = g.copy()
    assert wanted.any()
    for _ in range(2):
        cleared()
        (torch_zoo.plain_loss(model.module, data, seed=5) * data.count).backward()
        theirs = flat(p.grad for p in parameters)
        assert model.g is g
        np.testing.assert_array_equal(g, theirs)
        optimizer.step()
        if name != "batch-norm":  # whose statistics have moved
            np.testing.assert_allclose(g, wanted, rtol=1e-4, atol=2e-2 if name in SHORT else 1e-5)
        assert all(p.grad is not None for p in parameters)  # and so the step was taken
        cleared()
        gradient(data)  # adds to nothing that was there before
        if name != "batch-norm":
            np.testing.assert_array_equal(g, wanted)


def test_a_cleared_gradient_is_0_and_accumulates_again() -> None:
    model, data = TorchModel(dense(nn.Tanh())), vectors()
    model.gradient(data)
    model.module.zero_grad()
    assert not model.g.any()
    for times in (1, 2):
        model.module(torch.from_numpy(data.inputs)).sum().backward()
        last = model.module[-1].bias.grad
        assert last is not None
        np.testing.assert_array_equal(model.g[-len(last) :], np.full(len(last), times * data.count))
    with pytest.raises(AttributeError, match=r"move it with place\(x, g\)"):
        model.g = np.zeros_like(model.x)


def test_buffers_are_live() -> None:
    model = make_model("batch-norm")
    assert list(model.buffers) == ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
    model.gradient(vectors())
    normal = model.module[1]
    np.testing.assert_array_equal(model.buffers["1.running_mean"], normal.running_mean.numpy())
    assert model.buffers["1.running_mean"].any()
    assert model.buffers["1.num_batches_tracked"] == 1
    model.buffers["1.running_var"][...] = 4
    model.buffers["1.num_batches_tracked"][...] = 7
    assert (normal.running_var == 4).all()
    assert normal.num_batches_tracked == 7


def test_frozen_parameters_are_buffers() -> None:
    model = TorchModel(frozen())
    assert list(model.buffers) == ["0.weight", "0.bias", "2.bias"]
    model.buffers["0.weight"][...] = 0
    assert not model.module[0].weight.any()


class Running(nn.Module):
    """Replaces its buffers, as many modules do, and keeps one that NumPy has no type for."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("short", torch.zeros(2, dtype=torch.bfloat16))
        self.register_buffer("wide", torch.arange(3.0).expand(2, 3))
        self.register_buffer("grows", torch.zeros(1))
        self.register_buffer("none", None)

    def forward(self, h: Tensor) -> Tensor:
        if self.training:
            self.mean = self.mean * 0.5 + h.mean(0)
            self.short = self.short + 1
            self.grows = torch.ones(len(h))
        return self.head(h - self.mean)


def test_replaced_buffers_stay_live() -> None:
    model, data = TorchModel(Running()), vectors()
    mean = model.buffers["mean"]
    model.gradient(data)
    assert model.buffers["mean"] is mean
    np.testing.assert_allclose(mean, data.inputs.mean(0), rtol=1e-6)
    assert model.buffers["short"].tolist() == [1, 1]
    assert model.buffers["short"].dtype == np.float32
    assert model.buffers["grows"].tolist() == [1] * 12
    mean[...] = 2
    model.buffers["short"][...] = 5
    model.buffers["wide"][1, 2] = 9
    model.gradient(data)
    np.testing.assert_allclose(mean, 1 + data.inputs.mean(0), rtol=1e-6)
    assert model.buffers["short"].tolist() == [6, 6]
    assert model.module.wide.tolist() == [[0, 1, 2], [0, 1, 9]]


def test_random_numbers_depend_on_seed_step_and_offset_alone() -> None:
    model, data = make_model("dropout"), vectors()
    losses = []
    for step, offset, seed in [(3, 0, 5), (4, 0, 5), (3, 6, 5), (3, 0, 6), (3, 0, 5)]:
        data.step, data.offset, model.seed = step, offset, seed
        torch.rand(step + offset)  # others draw in between
        losses.append(model.gradient(data))
    assert losses[0] == losses[-1]
    assert len(set(losses)) == 4


def test_evaluation_changes_nothing() -> None:
    model, data = TorchModel(dense(nn.BatchNorm1d(5), nn.Dropout())), vectors(600)
    model.module[1].eval()  # a user who keeps the statistics
    before = {name: value.copy() for name, value in model.buffers.items()}
    model.gradient(data)
    g = model.g.copy()
    loss, right = model.evaluate(data.inputs, data.labels)
    scores = model.predict(data.inputs)
    np.testing.assert_array_equal(model.g, g)
    assert (model.module.training, model.module[1].training, model.module[2].training) == (True, False, True)
    for name, value in before.items():
        np.testing.assert_array_equal(model.buffers[name], value)
    with torch.no_grad():
        plain = copy.deepcopy(model.module).eval()(torch.from_numpy(data.inputs))
    np.testing.assert_allclose(scores, plain.numpy(), atol=1e-6)
    assert right == (scores.argmax(1) == data.labels).sum()
    expected = nn.functional.cross_entropy(plain, torch.from_numpy(data.labels), reduction="sum")
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert model.evaluate(data.inputs[:0], data.labels[:0]) == (0, 0)
    assert model.predict(data.inputs[:0]).shape == (0, 4)


def test_an_evaluation_that_fails_leaves_training_mode() -> None:
    model = TorchModel(dense())
    with pytest.raises(RuntimeError, match="shapes"):
        model.predict(np.zeros((2, 7), np.float32))
    assert model.module.training


def test_inputs_that_torch_cannot_share() -> None:
    model, data = TorchModel(dense()), vectors()
    loss = model.gradient(data)
    inputs, labels = data.inputs.copy(), data.labels.astype(np.uint8)
    inputs.flags.writeable = labels.flags.writeable = False
    assert model.gradient(batch(inputs, labels)) == loss
    backwards = batch(data.inputs[::-1], data.labels[::-1])
    assert model.gradient(backwards) == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize("name", ZOO)
def test_a_copy_in_another_process_is_the_same(name: str) -> None:
    model, data = make_model(name), make_batch(name)
    model.gradient(data)
    rng = np.random.default_rng(0)
    model.x += 1e-3 * rng.standard_normal(model.x.size).astype(model.x.dtype)
    others = [copy.deepcopy(model)]
    if name != "weight-norm":  # PyTorch refuses to pickle it
        others.append(cloudpickle.loads(cloudpickle.dumps(model)))
    for other in others:
        np.testing.assert_array_equal(other.x, model.x)
        assert not np.shares_memory(other.x, model.x)
        assert other.layers == model.layers
        for key, value in model.buffers.items():
            np.testing.assert_array_equal(other.buffers[key], value)
            assert not np.shares_memory(other.buffers[key], value)
    loss = model.gradient(data)
    for other in others:
        assert other.gradient(data) == loss
        np.testing.assert_array_equal(other.g, model.g)
        other.x[:] = 0
        other.predict(data.inputs)
        assert not flat(p for p in other.module.parameters() if p.requires_grad).any()
    assert model.x.any()


def test_a_pickle_is_not_larger_than_the_parameters() -> None:
    model = TorchModel(nn.Sequential(*(nn.Linear(60, 60) for _ in range(20))))
    assert len(cloudpickle.dumps(model)) < 1.2 * model.x.nbytes


def test_arrays_outlive_the_model() -> None:
    model = make_model("batch-norm")
    x, mean, weight = model.x, model.buffers["1.running_mean"], model.module[0].weight
    x[:] = 3
    mean[:] = 4
    del model
    gc.collect()
    junk = [np.random.default_rng(0).random(69, dtype=np.float32) for _ in range(50)]
    assert len(junk) == 50
    assert (x == 3).all()
    assert (mean == 4).all()
    assert (weight == 3).all()


def test_a_whole_batch_is_the_sum_of_its_pieces() -> None:
    model, data = TorchModel(dense(nn.Tanh())), vectors(13)
    loss = model.gradient(data)
    g = model.g.copy()
    pieces, losses = np.zeros_like(g), 0.0
    for start, stop in [(0, 1), (1, 8), (8, 13)]:
        losses += model.gradient(
            batch(data.inputs[start:stop], data.labels[start:stop], offset=start, total=13)
        )
        pieces += model.g
    assert losses == pytest.approx(loss, rel=1e-6)
    np.testing.assert_allclose(pieces, g, atol=1e-5)


def test_a_module_without_a_gradient_for_this_batch() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.idle = nn.Linear(6, 4)

        def forward(self, h: Tensor) -> Tensor:
            return h[:, :4]

    model = TorchModel(Constant())
    model.g[:] = 1
    assert model.gradient(vectors()) > 0
    assert not model.g.any()


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.Sequential(nn.ReLU()), "a module must have trainable parameters; this one has none"),
        (nn.Linear(3, 2).requires_grad_(False), "a module must have trainable parameters"),
        (nn.Linear(3, 2, device="meta"), "a module must be on the CPU; weight is on meta"),
        (torch_zoo.lazy(), "a module with lazy parameters needs a sample of its inputs; give sample=…"),
    ],
)
def test_modules_that_cannot_be_used(module: nn.Module, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        TorchModel(module)


def test_memory_that_cannot_be_used() -> None:
    model = TorchModel(dense())
    size = model.x.size
    good = np.empty(size, np.float32)
    locked = np.empty(size, np.float32)
    locked.flags.writeable = False
    for bad in (np.empty(size - 1, np.float32), np.empty(size), np.empty(2 * size, np.float32)[::2], locked):
        for x, g in ((bad, good), (good, bad)):
            with pytest.raises(ValueError, match="must be"):
                model.place(x, g)
    assert model.x is not good
