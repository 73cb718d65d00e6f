"""Any loss is a sum over samples: pieces of a batch add up, whatever the loss does with a batch by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from paceline.errors import UsageError
from paceline.models._torch import TorchModel
from tests.models.torch_zoo import batch

DRAW = np.random.default_rng(3)
INPUTS = DRAW.standard_normal((10, 6), dtype=np.float32)
CLASSES = DRAW.integers(0, 4, 10)
BINARY = DRAW.integers(0, 2, 10)
REAL = DRAW.standard_normal(10)
ROWS = DRAW.standard_normal((10, 4))
WEIGHTS = torch.tensor([1.0, 3.0, 0.5, 2.0])


def net(outputs: int = 4, *after: nn.Module) -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, outputs), *after)


def log_softmax() -> nn.Module:
    return net(4, nn.LogSoftmax(dim=1))


Expected = Callable[[Tensor, Tensor], Tensor]
CASES: dict[str, tuple[Any, nn.Module, np.ndarray, Expected]] = {
    "default, classes": (None, net(), CLASSES, lambda o, t: F.cross_entropy(o, t, reduction="sum")),
    "default, one real": (None, net(1), REAL, lambda o, t: ((o[:, 0] - t) ** 2).sum()),
    "default, real rows": (None, net(), ROWS, lambda o, t: ((o - t) ** 2).mean(1).sum()),
    "nll": (nn.NLLLoss(), log_softmax(), CLASSES, lambda o, t: F.nll_loss(o, t, reduction="sum")),
    "weights": (
        nn.CrossEntropyLoss(weight=WEIGHTS), net(), CLASSES,
        lambda o, t: (WEIGHTS[t] * F.cross_entropy(o, t, reduction="none")).sum(),
    ),
    "ignored": (
        nn.CrossEntropyLoss(ignore_index=2), net(), CLASSES,
        lambda o, t: F.cross_entropy(o[t != 2], t[t != 2], reduction="sum"),
    ),
    "sum": (nn.CrossEntropyLoss(reduction="sum"), net(), CLASSES, lambda o, t: F.cross_entropy(o, t) * 10),
    "none": (nn.CrossEntropyLoss(reduction="none"), net(), CLASSES, lambda o, t: F.cross_entropy(o, t) * 10),
    "function": (F.cross_entropy, net(), CLASSES, lambda o, t: F.cross_entropy(o, t, reduction="sum")),
    "squares of classes": (
        nn.MSELoss(), net(), CLASSES, lambda o, t: ((o - F.one_hot(t, 4)) ** 2).mean(1).sum()
    ),
    "squares, summed": (nn.MSELoss(reduction="sum"), net(), ROWS, lambda o, t: ((o - t) ** 2).sum()),
    "absolute": (F.l1_loss, net(1), REAL, lambda o, t: (o[:, 0] - t).abs().sum()),
    "one logit": (
        nn.BCEWithLogitsLoss(), net(1), BINARY,
        lambda o, t: F.binary_cross_entropy_with_logits(o[:, 0], t.float(), reduction="sum"),
    ),
    "one probability": (
        nn.BCELoss(), net(1, nn.Sigmoid(), nn.Flatten(0)), BINARY,
        lambda o, t: F.binary_cross_entropy(o, t.float(), reduction="sum"),
    ),
    "one's own": (
        lambda o, t: (o.sum(1) - t).abs().mean(), net(), CLASSES, lambda o, t: (o.sum(1) - t).abs().sum()
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_pieces_add_up_to_the_whole(name: str) -> None:
    loss, module, labels, expected = CASES[name]
    model = TorchModel(module, loss=loss)
    outputs = module(torch.from_numpy(INPUTS))
    wanted = expected(outputs, torch.from_numpy(labels))
    gradients = torch.autograd.grad(wanted, list(module.parameters()))
    wanted_g = np.concatenate([g.numpy().ravel() for g in gradients])
    assert model.gradient(batch(INPUTS, labels)) == pytest.approx(wanted.item(), rel=1e-5)
    np.testing.assert_allclose(model.g, wanted_g, rtol=1e-4, atol=1e-5)
    total, g = 0.0, np.zeros_like(model.g)
    for start, stop in [(0, 3), (3, 4), (4, 10)]:
        total += model.gradient(batch(INPUTS[start:stop], labels[start:stop], offset=start, total=10))
        g += model.g
    assert total == pytest.approx(wanted.item(), rel=1e-5)
    np.testing.assert_allclose(g, wanted_g, rtol=1e-4, atol=1e-5)
    assert model.evaluate(INPUTS, labels)[0] == pytest.approx(wanted.item(), rel=1e-5)


@pytest.mark.parametrize("name", ["one logit", "one probability"])
def test_one_number_tells_two_classes(name: str) -> None:
    loss, module, labels, _ = CASES[name]
    model = TorchModel(module, loss=loss)
    scores = model.predict(INPUTS)
    outputs = module(torch.from_numpy(INPUTS)).detach().numpy().ravel()
    wanted = outputs > (0 if name == "one logit" else 0.5)
    assert scores.shape == (10, 2)
    np.testing.assert_array_equal(scores.argmax(1), wanted)
    assert model.evaluate(INPUTS, labels)[1] == (wanted == labels).sum()
    assert 0 < wanted.sum() < 10


def test_regression_counts_nothing_right() -> None:
    assert TorchModel(net()).evaluate(INPUTS, ROWS)[1] == 0


def test_every_pixel_counts_in_proportion() -> None:
    module = nn.Conv2d(1, 3, 1)
    labels = DRAW.integers(0, 3, (4, 5, 5))
    images = DRAW.standard_normal((4, 1, 5, 5), dtype=np.float32)
    wanted = F.cross_entropy(module(torch.from_numpy(images)), torch.from_numpy(labels)).item() * 4
    for loss in (None, nn.CrossEntropyLoss()):
        assert TorchModel(module, loss=loss).gradient(batch(images, labels)) == pytest.approx(
            wanted, rel=1e-5
        )


class Answer(NamedTuple):
    hidden: Tensor
    logits: Tensor


KINDS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "tuple": lambda out, h: (out, h),
    "logits": lambda out, h: Answer(h, out),
    "mapping": lambda out, h: {"hidden": h, "logits": out},
    "first of a mapping": lambda out, h: {"out": [out], "hidden": h},
    "function": lambda out, h: lambda: out,
}


class Wordy(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.net, self.kind = net(), kind

    def forward(self, h: Tensor) -> Any:
        out = self.net(h)
        return KINDS[self.kind](out, h)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "function"])
def test_the_scores_are_found_among_several_outputs(kind: str) -> None:
    plain, model = TorchModel(net()), TorchModel(Wordy(kind))
    assert model.gradient(batch(INPUTS, CLASSES)) == plain.gradient(batch(INPUTS, CLASSES))
    np.testing.assert_array_equal(model.predict(INPUTS), plain.predict(INPUTS))
    assert model.evaluate(INPUTS, CLASSES) == plain.evaluate(INPUTS, CLASSES)


def test_ones_own_loss_gets_all_outputs() -> None:
    model = TorchModel(Wordy("function"), loss=lambda out, t: F.cross_entropy(out(), t))
    with pytest.raises(
        UsageError, match="a module must return a tensor, or several with the scores first; got function"
    ):
        model.predict(INPUTS)
    plain = TorchModel(net()).gradient(batch(INPUTS, CLASSES))
    assert model.gradient(batch(INPUTS, CLASSES)) == pytest.approx(plain, rel=1e-6)


class Scaled(nn.Module):
    """A loss with a parameter that is trained with the network's."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.register_buffer("shift", torch.tensor(1.0))

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(outputs * self.scale + self.shift, labels)


def test_a_loss_may_have_parameters_and_buffers() -> None:
    model = TorchModel(net(), loss=Scaled())
    assert model.layers[-1] == slice(model.x.size - 1, model.x.size)
    assert list(model.buffers) == ["loss:shift"]
    assert model.x[-1] == 0.5
    model.gradient(batch(INPUTS, CLASSES))
    assert model.g[-1] != 0
    weighted = TorchModel(net(), loss=nn.CrossEntropyLoss(weight=WEIGHTS.clone()))
    before = weighted.gradient(batch(INPUTS, CLASSES))
    weighted.buffers["loss:weight"][...] *= 2
    assert weighted.gradient(batch(INPUTS, CLASSES)) == pytest.approx(2 * before, rel=1e-6)


def test_the_users_loss_is_not_changed() -> None:
    loss = nn.CrossEntropyLoss()
    TorchModel(net(), loss=loss).gradient(batch(INPUTS, CLASSES))
    assert loss.reduction == "mean"


def test_losses_that_cannot_be_used() -> None:
    with pytest.raises(UsageError, match="unknown reduction 'max'; choose one of mean, sum, none"):
        TorchModel(net(), loss=F.cross_entropy, reduction="max")
    with pytest.raises(UsageError, match=r"a loss must be callable as loss\(outputs, labels\); got str"):
        TorchModel(net(), loss="nll")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"one number, or reduction='none'; got the shape \(10, 4\)"):
        TorchModel(net(), loss=lambda o, t: o).gradient(batch(INPUTS, CLASSES))
    with pytest.raises(UsageError, match=r"must have one shape; got \(10, 4\) and \(10,\)"):
        TorchModel(net()).gradient(batch(INPUTS, REAL))
