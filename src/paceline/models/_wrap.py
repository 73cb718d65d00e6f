"""What a user's function returned, as a model: a model already, an `nn.Module`, or a module with its loss."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from paceline.data import Dataset
from paceline.errors import UsageError
from paceline.models import Model


def as_model(thing: Any, data: Dataset, *, seed: int = 0, dtype: Any = None) -> Model:
    """`thing` as a model for `data`. Torch is imported only where `thing` is made of it."""
    torch = sys.modules.get("torch")  # whoever made a module has imported it
    module, loss = thing if isinstance(thing, tuple) and len(thing) == 2 else (thing, None)
    if torch is not None and isinstance(module, torch.nn.Module):
        return _from_module(module, loss, data, seed, dtype)
    if isinstance(thing, Model) and not isinstance(thing, type):
        return thing
    raise UsageError(
        f"a model must be a paceline model, a torch.nn.Module or a pair (module, loss); got {_named(thing)}"
    )


def _from_module(module: Any, loss: Any, data: Dataset, seed: int, dtype: Any) -> Model:
    import torch

    from paceline.models._torch import TorchModel

    if dtype is not None and np.dtype(dtype) == np.float64:
        module.to(torch.float64)
        if isinstance(loss, torch.nn.Module):
            loss.to(torch.float64)
    sample = np.zeros((2, *data.shape), np.float32)
    return TorchModel(module, loss=loss, seed=seed, sample=sample)


def _named(thing: Any) -> str:
    if isinstance(thing, type):
        return f"the class {thing.__name__} (call it)"
    if isinstance(thing, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in thing)}"
    return f"a {type(thing).__name__}"
