"""A small module with an optimizer, clipping and metrics of its own, and cases that train it on real ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from paceline import fit
from paceline.errors import UsageError

RANDOM = np.random.default_rng(0)
INPUTS = RANDOM.normal(size=(200, 6))
LABELS = (INPUTS[:, 0] * INPUTS[:, 1] > 0).astype(np.int64)


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2)).double()


def make_optimizer(module: nn.Module) -> torch.optim.Optimizer:
    """AdamW, with weight decay for matrices only."""
    matrices = [p for p in module.parameters() if p.ndim > 1]
    rest = [p for p in module.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-2)


def make_adafactor(module: nn.Module) -> torch.optim.Optimizer:
    """An optimizer that is not element-wise."""
    return torch.optim.Adafactor(module.parameters(), lr=1e-2)


def perplexity(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.exp(nn.functional.cross_entropy(outputs, labels))


SETTINGS: dict[str, Any] = {
    "data": (INPUTS, LABELS), "epochs": 2, "batch": 20, "quiet": True, "optimizer": make_optimizer, "clip": 0.2,
    "metrics": {"perplexity": perplexity},
}  # fmt: skip


def train(comm: Any, strategy: str, **settings: Any) -> tuple[list[float], float, float]:
    """Train on these ranks; return the parameters and the metric on validation and test samples."""
    fitted = fit(make_net(), strategy=strategy, comm=comm, runs=None, **{**SETTINGS, **settings})
    return fitted.model.x.tolist(), fitted.metrics["perplexity"], fitted.test_metrics["perplexity"]


def fail(comm: Any) -> str:
    """Train with a metric that raises; return what every rank raises."""
    try:
        train(comm, "sync", metrics={"wrong": lambda outputs, labels: 1 / 0})
    except UsageError as error:
        return str(error)
    return "nothing"
