"""The reference convolutional network, and dropout that does not depend on the number of ranks."""

from __future__ import annotations

import copy
import subprocess
import sys

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from paceline.data import ArraySplit, Dataset
from paceline.errors import UsageError
from paceline.models import Model, cnn
from paceline.models._torch import GlobalDropout
from tests.models.torch_zoo import batch
from tests.ranks import on_ranks


def images(shape: tuple[int, ...] = (28, 28), classes: int = 10) -> Dataset:
    split = ArraySplit(np.zeros((1, *shape), np.uint8), np.zeros(1, np.int64))
    return Dataset(name="pictures", shape=shape, classes=classes, train=split, validation=split, test=split)


DRAW = np.random.default_rng(0)
INPUTS = DRAW.random((21, 28, 28), dtype=np.float32)
LABELS = DRAW.integers(0, 10, 21)


def test_its_layers_are_the_reference_networks() -> None:
    model = cnn.build(images())
    assert isinstance(model, Model)
    sizes = [8 * 25 + 8, 16 * 8 * 25 + 16, 64 * 120 + 120, 120 * 10 + 10]
    assert [part.stop - part.start for part in model.layers] == sizes
    assert model.x.size == 12434
    assert not model.buffers


def test_it_is_the_reference_network() -> None:
    model = cnn.build(images(), dropout=0.0, seed=1)
    of = model.module
    reference = nn.Sequential(
        of.conv1, nn.MaxPool2d(2), nn.ReLU(), of.conv2, nn.MaxPool2d(2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), of.linear1, nn.ReLU(), of.linear2, nn.LogSoftmax(dim=1),
    )  # fmt: skip
    outputs = reference(torch.from_numpy(INPUTS)[:, None])
    loss = nn.functional.nll_loss(outputs, torch.from_numpy(LABELS), reduction="sum")
    gradients = torch.autograd.grad(loss, list(reference.parameters()))
    assert model.gradient(batch(INPUTS, LABELS)) == pytest.approx(loss.item(), rel=1e-5)
    np.testing.assert_allclose(model.g, np.concatenate([g.numpy().ravel() for g in gradients]), atol=1e-4)
    np.testing.assert_allclose(model.predict(INPUTS), outputs.detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(np.exp(model.predict(INPUTS)).sum(1), 1, rtol=1e-5)  # log-probabilities
    assert model.evaluate(INPUTS, LABELS)[1] == (model.predict(INPUTS).argmax(1) == LABELS).sum()


def test_the_seed_decides_the_start_and_torchs_own_numbers_go_on() -> None:
    torch.manual_seed(9)
    expected = torch.rand(3)
    torch.manual_seed(9)
    first, again, other = (cnn.build(images(), seed=seed).x for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01


@settings(max_examples=8, deadline=None)
@given(cuts=st.lists(st.integers(1, 20), max_size=6, unique=True).map(sorted), step=st.integers(0, 2**40))
def test_pieces_add_up_to_the_whole_with_dropout(cuts: list[int], step: int) -> None:
    model = cnn.build(images(), seed=4, dtype="float64")
    whole = batch(INPUTS.astype(np.float64), LABELS, step=step)
    loss = model.gradient(whole)
    g = model.g.copy()
    losses, pieces = 0.0, np.zeros_like(g)
    for start, stop in zip([0, *cuts], [*cuts, 21], strict=True):
        piece = batch(whole.inputs[start:stop], LABELS[start:stop], step=step, offset=start, total=21)
        losses += model.gradient(piece)
        pieces += model.g
    assert losses == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(pieces, g, atol=1e-11)


def test_dropout_changes_with_the_step_and_the_seed_and_repeats_with_them() -> None:
    model = cnn.build(images(), seed=4)
    copies = [model, copy.deepcopy(model), cloudpickle.loads(cloudpickle.dumps(model))]
    assert len({each.gradient(batch(INPUTS, LABELS, step=1)) for each in copies}) == 1
    losses = {model.gradient(batch(INPUTS, LABELS, step=step)) for step in (1, 2, 3)}
    model.seed = 5
    losses.add(model.gradient(batch(INPUTS, LABELS, step=1)))
    assert len(losses) == 4


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_a_mask_keeps_its_share_and_the_mean(p: float) -> None:
    layer = GlobalDropout(p)
    layer.begin(batch(np.empty((400, 1)), LABELS, step=7), seed=3)
    mask = layer(torch.ones(400, 250)).numpy()
    assert set(np.unique(mask)) == {0, np.float32(1 / (1 - p))}
    deviation = (p * (1 - p) / mask.size) ** 0.5
    assert abs((mask == 0).mean() - p) < 4 * deviation
    dropped = (mask == 0) - p
    for a, b in [
        (dropped[1:], dropped[:-1]),
        (dropped[:, 1:], dropped[:, :-1]),
    ]:  # neighbours are independent
        assert abs((a * b).mean()) < 4 * p * (1 - p) / a.size**0.5


def test_layers_and_uses_have_masks_of_their_own() -> None:
    from paceline.models._torch import TorchModel

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.one, self.two = nn.Linear(784, 10), GlobalDropout(0.5), GlobalDropout(0.5)
            self.seen: list[torch.Tensor] = []

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            ones = torch.ones(len(h), 784)
            rows = self.two(ones.reshape(-1, 28)).reshape(len(h), 784)  # several rows a sample
            self.seen = [self.one(ones), self.one(ones), self.two(ones), rows]
            return self.head(h.flatten(1))

    model = TorchModel(Twice())
    model.gradient(batch(INPUTS, LABELS))
    for number, a in enumerate(model.module.seen):
        for b in model.module.seen[:number]:
            assert 0.45 < (a == b).float().mean() < 0.55
    first = [seen.clone() for seen in model.module.seen]
    model.gradient(batch(INPUTS[4:9], LABELS[4:9], offset=4))
    assert all(torch.equal(a, b[4:9]) for a, b in zip(model.module.seen, first, strict=True))


def test_dropout_wants_whole_samples() -> None:
    layer = GlobalDropout(0.5)
    layer.begin(batch(INPUTS, LABELS), seed=3)
    with pytest.raises(UsageError, match=r"needs 21 samples on the first axis; got the shape \(10, 2\)"):
        layer(torch.ones(10, 2))


def test_dropout_by_itself_is_pytorchs() -> None:
    layer, ones = GlobalDropout(0.25), torch.ones(100, 100)
    assert 0.7 < (layer(ones) != 0).float().mean() < 0.8
    assert torch.equal(layer.eval()(ones), ones)
    assert repr(layer) == "GlobalDropout(p=0.25)"


@pytest.mark.parametrize(
    ("shape", "classes", "inputs"),
    [((20, 20), 2, 16), ((28, 33), 5, 16 * 2 * 2), ((32, 32, 3), 6, 64), ((3, 40, 36), 6, 16 * 3 * 3)],
)
def test_other_images_change_the_sizes(shape: tuple[int, ...], classes: int, inputs: int) -> None:
    model = cnn.build(images(shape, classes))
    assert model.module.linear1.in_features == inputs
    pictures = DRAW.random((3, *shape), dtype=np.float32)
    assert model.predict(pictures).shape == (3, classes)
    assert model.gradient(batch(pictures, np.zeros(3, np.int64))) > 0
    assert model.module.conv1.in_channels == (3 if 3 in shape else 1)


def test_channels_first_and_last_are_the_same_picture() -> None:
    last, first = cnn.build(images((24, 28, 3)), seed=2), cnn.build(images((3, 24, 28)), seed=2)
    pictures = DRAW.random((4, 24, 28, 3), dtype=np.float32)
    turned = np.ascontiguousarray(pictures.transpose(0, 3, 1, 2))
    np.testing.assert_allclose(last.predict(pictures), first.predict(turned), atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "classes", "dropout", "words"),
    [
        ((8, 8), 10, 0.5, "cnn needs images of at least 20x20; pictures has 8x8"),
        ((784,), 10, 0.5, "cnn needs images of height x width.*pictures has samples of 784"),
        ((28, 28, 28), 10, 0.5, "1 to 4 channels first or last; pictures has samples of 28x28x28"),
        ((28, 28), 0, 0.5, "cnn needs at least 2 classes; pictures has values"),
        ((28, 28), 10, 1.0, "the probability of dropout must be at least 0 and below 1; got 1.0"),
    ],
)
def test_what_it_cannot_take(shape: tuple[int, ...], classes: int, dropout: float, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        cnn.build(images(shape, classes), dropout=dropout)


def test_torch_is_imported_when_a_network_is_built_and_not_before() -> None:
    program = (
        "import sys; from paceline.models import cnn; from paceline import names; "
        "names.parse('models', 'cnn:dropout=0.25'); assert 'torch' not in sys.modules; "
        "sys.modules['torch'] = None; from types import SimpleNamespace as S; "
        "cnn.build(S(name='a', shape=(28, 28), classes=10))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "cnn needs PyTorch, which is not installed; pip install 'paceline[torch]'" in done.stderr
    assert "AssertionError" not in done.stderr


@pytest.mark.once
def test_ranks_that_share_a_window_train_as_one_process() -> None:
    for answer in on_ranks("tests.models.torch_cases:cnn_in_a_shared_window", 3, samples=8, steps=3):
        assert max(answer.values()) < 1e-12
