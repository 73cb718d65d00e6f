"""The MLP as a model: flat vectors, views, placement, its start, its options; and it learns."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from paceline import names as spec
from paceline.data import ArraySplit, Dataset, load
from paceline.errors import UsageError
from paceline.models import Model, mlp
from paceline.models import mlp as standardising
from paceline.models.mlp import MLP, build
from paceline.updates.adam import Adam
from paceline.updates.momentum import Momentum
from paceline.updates.sgd import Sgd
from tests.models.mlp_nets import VARIANTS, batch, measure_allocation, name, net, part


def dataset(inputs: Any, labels: Any, classes: int) -> Dataset:
    split = ArraySplit(inputs, labels)
    return Dataset(
        name="made", shape=split.shape, classes=classes, train=split, validation=split, test=split,
        label_shape=split.label_shape,
    )  # fmt: skip


def test_every_array_is_a_view_of_the_two_vectors() -> None:
    model = net({})
    assert isinstance(model, Model)
    model.x[:] = np.arange(model.x.size)
    model.g[:] = -model.x
    for weights, biases, sign in (
        (model.weights, model.biases, 1),
        (model.weight_gradients, model.bias_gradients, -1),
    ):
        for where, n, m, w, b in zip(
            model.layers, model.sizes, model.sizes[1:], weights, biases, strict=False
        ):
            assert w.shape == (n, m)
            assert b.shape == (m,)
            flat = np.concatenate([w.ravel(), b])
            np.testing.assert_array_equal(flat, sign * np.arange(where.start, where.stop))
    assert model.layers[0].start == 0
    assert model.layers[-1].stop == model.x.size


def test_place_keeps_the_values_and_moves_everything() -> None:
    model, other = net({}), net({})
    given = batch(model, 8)
    model.gradient(given)
    memory = np.full((3, model.x.size), np.nan)
    model.place(memory[1], memory[2])
    assert model.x.base is memory
    np.testing.assert_array_equal(memory[1], other.x)
    assert model.gradient(given) == other.gradient(given)
    np.testing.assert_array_equal(memory[2], other.g)
    assert np.isnan(memory[0]).all()
    memory[1] *= 0.5
    other.x *= 0.5
    np.testing.assert_array_equal(model.predict(given.inputs), other.predict(given.inputs))


@pytest.mark.parametrize("wrong", ["size", "dtype", "strides", "read-only", "shape"])
def test_place_refuses_other_memory(wrong: str) -> None:
    model = net({})
    size = model.x.size
    bad = {
        "size": np.empty(size + 1),
        "dtype": np.empty(size, np.float32),
        "strides": np.empty(2 * size)[::2],
        "read-only": np.frombuffer(bytes(8 * size)),
        "shape": np.empty((1, size)),
    }[wrong]
    before = model.x
    with pytest.raises(ValueError, match=r"^x must be "):
        model.place(bad, np.empty(size))
    with pytest.raises(ValueError, match=r"^g must be "):
        model.place(np.empty(size), bad)
    assert model.x is before


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_is_a_whole_model_of_its_own(copied: Any) -> None:
    model = net({"standardise": True})
    given = batch(model, 8)
    model.gradient(given)
    other = copied(model)
    other.x += 1
    assert not np.array_equal(other.weights[0], model.weights[0])
    other.x -= 1
    other.gradient(given)
    np.testing.assert_allclose(other.g, model.g, rtol=1e-6)
    assert other.weight_gradients[0].base is not None
    assert np.shares_memory(other.weight_gradients[0], other.g)


@pytest.mark.parametrize("variant", VARIANTS, ids=name)
def test_a_step_allocates_nothing(variant: dict[str, Any]) -> None:
    model = net(variant, dtype=np.float32)
    update = Sgd()
    state = update.start(model.x)
    batches = [batch(model, count) for count in (4096, 4095)]
    for given in batches:
        given.labels = given.labels.astype(model.dtype) if model.regression else given.labels

    def steps() -> None:
        for given in batches:
            model.gradient(given)
            update.apply(model.x, model.g, 1e-6, state)

    peak, after = measure_allocation(steps)
    assert peak < 4096, "one number a sample would be 16 KiB"
    assert after < 512


def test_the_start_is_xaviers_and_the_same_everywhere() -> None:
    model, wide = MLP((300, 200, 10), seed=5), MLP((300, 200, 10), seed=5, dtype=np.float64)
    for w, n, m in zip(wide.weights, wide.sizes, wide.sizes[1:], strict=False):
        bound = np.sqrt(6 / (n + m))
        assert 0.98 * bound < np.abs(w).max() <= bound
        assert abs(w.mean()) < 0.05 * bound
    assert not any(b.any() for b in wide.biases)
    np.testing.assert_array_equal(model.x, wide.x.astype(np.float32))
    assert not np.array_equal(model.x, MLP((300, 200, 10), seed=6).x)
    golden = MLP((2, 2), seed=7, dtype=np.float64).x
    first = np.random.Generator(np.random.PCG64(7)).random(4)
    np.testing.assert_array_equal(golden[:4], (first - 0.5) * (2 * np.sqrt(1.5)))


@pytest.mark.parametrize("variant", VARIANTS, ids=name)
def test_chunks_change_nothing(variant: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model = net(variant)
    given = batch(model, 21)
    scores, (loss, right) = model.predict(given.inputs), model.evaluate(given.inputs, given.labels)
    assert scores.shape == (21, model.sizes[-1])
    monkeypatch.setattr(mlp, "CHUNK_ROWS", 4)
    np.testing.assert_allclose(model.predict(given.inputs), scores, rtol=1e-12)
    again = model.evaluate(given.inputs, given.labels)
    assert again == (pytest.approx(loss, rel=1e-12), right)
    wanted = 0 if model.regression else int((scores.argmax(axis=1) == given.labels).sum())
    assert right == wanted


def test_probabilities_add_up_to_one() -> None:
    model = net({"loss": "cross-entropy"})
    np.testing.assert_allclose(model.predict(batch(model, 9).inputs).sum(axis=1), 1)


def test_images_are_flattened_and_integers_converted() -> None:
    model = net({}, (12, 5, 3))
    images = np.arange(48).reshape(4, 3, 2, 2)
    flat = images.reshape(4, 12).astype(float)
    np.testing.assert_array_equal(model.predict(images), model.predict(flat))
    labels = np.array([0, 1, 2, 0])
    assert model.gradient(part(flat.reshape(4, 3, 2, 2), labels)) == model.gradient(part(flat, labels))


def test_inputs_and_labels_that_do_not_fit() -> None:
    model = net({})
    good = batch(model, 3)
    with pytest.raises(TypeError, match="inputs must be float64, the network's type; got float32"):
        model.gradient(part(good.inputs.astype(np.float32), good.labels))
    for bad in (4, -1):
        with pytest.raises(ValueError, match="labels must be from 0 to 3, the network's outputs"):
            model.gradient(part(good.inputs, np.array([0, bad, 1])))
        with pytest.raises(ValueError, match="labels must be from 0 to 3, the network's outputs"):
            model.evaluate(good.inputs, np.array([0, bad, 1]))
    with pytest.raises(ValueError, match="reshape"):
        model.gradient(part(good.inputs[:, :-1], good.labels))


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        ((4,), {}, "an mlp's layers must have at least 1 unit each; got 4"),
        ((4, 0, 2), {}, "an mlp's layers must have at least 1 unit each; got 4-0-2"),
        (
            (4, 2),
            {"activation": "swish"},
            "unknown activation of mlp 'swish'; choose one of sigmoid, tanh, relu",
        ),
        (
            (4, 2),
            {"loss": "hinge"},
            "unknown loss of mlp 'hinge'; choose one of squared-error, cross-entropy",
        ),
        ((4, 2), {"dtype": np.float16}, "an mlp computes in float32 or float64; got float16"),
        ((4, 1), {"loss": "cross-entropy"}, "cross-entropy needs at least 2 classes; got 1"),
        (
            (4, 2),
            {"loss": "cross-entropy", "regression": True},
            "cross-entropy needs classes, and the labels of these data are values; choose squared-error",
        ),
        ((4, 1, 2), {"normalise": True}, "normalise needs hidden layers of at least 2 units; got 4-1-2"),
    ],
)
def test_options_are_checked(sizes: tuple[int, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        MLP(sizes, **options)
    assert str(caught.value) == message


@pytest.mark.parametrize("shape", [(6,), (3, 2)])
@pytest.mark.parametrize("rows", [1, 10, 1000])
def test_standardised_by_the_training_samples(
    shape: tuple[int, ...], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standardising, "STANDARDISE_VALUES", rows * 6)
    random = np.random.default_rng(1)
    inputs = random.normal(50, [1, 2, 3, 1e-3, 0, 10], (47, 6))
    inputs[:, 4] = 0.1
    data = dataset(inputs.reshape(47, *shape), random.integers(0, 3, 47), 3)
    model = build(data, 4, standardise=True, dtype=np.float64)
    std = inputs.std(axis=0)
    std[4] = 1
    np.testing.assert_allclose(model.buffers["mean"], inputs.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(model.buffers["std"], std, rtol=1e-8)
    plain = build(dataset((inputs - inputs.mean(axis=0)) / std, data.train.labels, 3), 4, dtype=np.float64)  # type: ignore[attr-defined]
    np.testing.assert_allclose(model.predict(inputs), plain.predict(plain_inputs(inputs, std)), rtol=1e-6)


def plain_inputs(inputs: Any, std: Any) -> Any:
    return (inputs - inputs.mean(axis=0)) / std


def test_built_from_a_spec() -> None:
    made = spec.parse("models", "mlp:30,20,activation=tanh,normalise=yes,loss=cross-entropy")
    assert str(made) == "mlp:30,20,activation=tanh,normalise=true,loss=cross-entropy"
    model = made.make(data=load("iris"), seed=4, dtype=np.float64)
    assert model.sizes == (4, 30, 20, 3)
    assert (model.activation, model.loss, model.normalise, model.standardise) == (
        "tanh",
        "cross-entropy",
        True,
        False,
    )
    assert model.dtype == np.float64
    real = build(dataset(np.zeros((9, 4)), np.zeros((9, 2)), 0), 3)
    assert real.regression
    assert real.sizes == (4, 3, 2)
    assert build(dataset(np.zeros((9, 4)), np.zeros(9), 0)).sizes == (4, 1)


@pytest.mark.parametrize(
    ("options", "update", "eta"),
    [
        ({}, Sgd(), 2.0),
        ({"activation": "relu", "loss": "cross-entropy"}, Momentum(), 0.05),
        ({"activation": "tanh", "loss": "cross-entropy", "normalise": True}, Adam(), 0.01),
        ({"activation": "relu", "standardise": True}, Adam(), 0.005),
    ],
)
def test_it_learns_to_read_digits(options: dict[str, Any], update: Any, eta: float) -> None:
    data = load("digits")
    model = build(data, 32, seed=1, **options)
    count = len(data.train)
    inputs, labels = np.empty((count, *data.shape), np.float32), np.empty(count, np.int64)
    data.train.take(np.arange(count), inputs, labels)
    state, random = update.start(model.x), np.random.default_rng(0)
    for _ in range(25):
        order = random.permutation(count)
        for start in range(0, count, 32):
            some = order[start : start + 32]
            model.gradient(part(inputs[some], labels[some]))
            update.apply(model.x, model.g, eta, state, 1 / len(some))
    tests, truth = np.empty((len(data.test), *data.shape), np.float32), np.empty(len(data.test), np.int64)
    data.test.take(np.arange(len(truth)), tests, truth)
    _, right = model.evaluate(tests, truth)
    assert right / len(truth) > 0.93


def test_it_learns_a_function() -> None:
    inputs = np.linspace(-1, 1, 64)[:, None]
    targets = np.sin(3 * inputs[:, 0])
    model = build(dataset(inputs, targets, 0), 16, activation="tanh", dtype=np.float64)
    update = Adam()
    state = update.start(model.x)
    given = part(inputs, targets)
    first = model.gradient(given)
    for _ in range(600):
        model.gradient(given)
        update.apply(model.x, model.g, 0.02, state, 1 / 64)
    last, right = model.evaluate(inputs, targets)
    assert last < 0.01 * first
    assert right == 0
