"""Modules of every awkward kind, and the gradient that plain PyTorch gives for them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from paceline.data import Batch
from paceline.models._torch import mix

torch.set_num_threads(1)  # the cases are small, and other tests run beside them


def batch(inputs: np.ndarray, labels: np.ndarray, *, step: int = 3, offset: int = 0, total: int = 0) -> Batch:
    return Batch(inputs, labels, len(inputs), total or len(inputs), offset, step, 0)


def vectors(count: int = 12, seed: int = 0) -> Batch:
    draw = np.random.default_rng(seed)
    return batch(draw.standard_normal((count, 6), dtype=np.float32), draw.integers(0, 4, count))


def plain_loss(module: nn.Module, data: Batch, seed: int) -> Tensor:
    """Mean cross-entropy in training, by PyTorch alone."""
    inputs = torch.from_numpy(data.inputs)
    embeds = isinstance(next(module.children(), None), nn.Embedding)
    inputs = inputs.long() if embeds else inputs.to(next(module.parameters()).dtype)
    torch.manual_seed(mix(seed, data.step, data.offset))
    return F.cross_entropy(module(inputs), torch.from_numpy(data.labels))


def plain_gradient(module: nn.Module, data: Batch, seed: int) -> tuple[float, np.ndarray]:
    """Summed cross-entropy and its gradient, one parameter after the other; the module is not changed."""
    module = copy.deepcopy(module).train()
    loss = plain_loss(module, data, seed) * data.count
    loss.backward()
    grads = [
        torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters() if p.requires_grad
    ]
    return loss.item(), flat(grads)


def flat(tensors: Iterable[Tensor]) -> np.ndarray:
    """All the numbers, complex ones as two."""
    dense = [tensor.detach().to_dense() for tensor in tensors]
    parts = [torch.view_as_real(tensor) if tensor.is_complex() else tensor for tensor in dense]
    return np.concatenate([part.double().numpy().ravel() for part in parts])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)
        self.second.weight = self.first.weight

    def forward(self, h: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(h)))))


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.idle = nn.Linear(6, 4), nn.Linear(6, 4)
        self.nothing = nn.Parameter(torch.empty(0, 3))
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, h: Tensor) -> Tensor:
        return self.head(h) * self.scale


class Mixed(nn.Module):
    def __init__(self, dtypes: list[torch.dtype]) -> None:
        super().__init__()
        sizes = [6, *[5] * (len(dtypes) - 1), 4]
        layers = zip(sizes, sizes[1:], dtypes, strict=False)
        self.parts = nn.ModuleList(nn.Linear(n, m, dtype=dtype) for n, m, dtype in layers)

    def forward(self, h: Tensor) -> Tensor:
        for part in self.parts:
            h = torch.tanh(part(h.to(part.weight.dtype)))
        return h.float()


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.randn(6, 4, dtype=torch.complex64))
        self.bias = nn.Parameter(torch.randn(4))

    def forward(self, h: Tensor) -> Tensor:
        return (h.to(torch.complex64) @ self.turn).abs() + self.bias


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(2, 5, batch_first=True), nn.Linear(5, 4)

    def forward(self, h: Tensor) -> Tensor:
        return self.head(self.lstm(h.reshape(-1, 3, 2))[0][:, -1])


class Strided(nn.Module):
    """Parameters that are not contiguous: a transposed one, and a convolution with its channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.turned = nn.Parameter(torch.randn(5, 6).t())
        self.conv = nn.Conv2d(5, 4, 1).to(memory_format=torch.channels_last)

    def forward(self, h: Tensor) -> Tensor:
        return self.conv((h @ self.turned)[:, :, None, None]).flatten(1)


class Thief(nn.Module):
    """Replaces its gradients behind everybody's back, as some training code does."""

    def __init__(self, *, drop: bool) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)
        self.drop = drop

    def forward(self, h: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            for p in self.head.parameters():
                p.grad = None if self.drop else torch.zeros_like(p)
        return self.head(h)


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    module[0].requires_grad_(False)
    module[2].bias.requires_grad_(False)
    return module


def dense(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), *between, nn.Linear(5, 4))


def weight_normed() -> nn.Module:
    module = dense(nn.Tanh())
    nn.utils.parametrizations.weight_norm(module[0])
    return module


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(4))


ZOO: dict[str, Callable[[], nn.Module]] = {
    "batch-norm": lambda: dense(nn.BatchNorm1d(5), nn.ReLU()),
    "tied": Tied,
    "frozen": frozen,
    "unused": Unused,
    "dropout": lambda: dense(nn.Dropout(0.4), nn.Tanh(), nn.Dropout(0.2)),
    "recurrent": Recurrent,
    "strided": Strided,
    "weight-norm": weight_normed,
    "lazy": lazy,
    "complex": Complex,
    "float64": lambda: dense(nn.Tanh()).double(),
    "bfloat16": lambda: dense(nn.Tanh()).bfloat16(),
    "float16": lambda: dense(nn.Tanh()).half(),
    "mixed-16": lambda: Mixed([torch.bfloat16, torch.float32]),
    "mixed-64": lambda: Mixed([torch.float32, torch.bfloat16, torch.float64]),
    "embedding": lambda: nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(18, 4)),
    "sparse": lambda: nn.Sequential(nn.Embedding(9, 3, sparse=True), nn.Flatten(), nn.Linear(18, 4)),
    "drops-grad": lambda: Thief(drop=True),
    "replaces-grad": lambda: Thief(drop=False),
}
