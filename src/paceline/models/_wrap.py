"""`make` and `as_model`: models from specs, modules, and pairs of module and loss."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.data import Dataset
from paceline.errors import UsageError
from paceline.models._model import Model

if TYPE_CHECKING:
    from paceline.models._torch import TorchModel
    from paceline.names import Spec


def make(spec: Spec, data: Dataset, *, seed: int = 0, dtype: Any = "float32") -> Model:
    """Make the model that a spec stands for. A function of the user's own draws its initial weights from the seed too.

    >>> from paceline.data import load
    >>> from paceline.names import parse
    >>> make(parse("models", "mlp:8"), load("iris"), seed=1).x.size
    67
    """
    dtype = np.dtype(dtype)

    def make_once() -> Model:
        return as_model(spec.make(data=data, seed=seed, dtype=dtype), data, seed=seed, dtype=dtype)

    if spec.target.__module__.startswith("paceline.models."):
        return make_once()
    if "torch" not in sys.modules:
        model = make_once()
        if "torch" not in sys.modules:
            return model
        # The function itself imported torch and drew weights before torch could be seeded, so call it again.
    torch = sys.modules["torch"]
    with torch.random.fork_rng(devices=[]):  # leaves the user's generator as it was
        torch.default_generator.manual_seed(seed)
        return make_once()


def as_model(thing: Any, data: Dataset, *, seed: int = 0, dtype: Any = None) -> Model:
    """Return `thing` as a model for `data`; a module or a pair (module, loss) is wrapped.

    A module keeps the dtype of its parameters, but `dtype=float64` makes it float64. PyTorch is not imported unless
    `thing` needs it.
    """
    torch = sys.modules.get("torch")  # imported by whoever made a module
    module, loss = thing if isinstance(thing, tuple) and len(thing) == 2 else (thing, None)
    if torch is not None and isinstance(module, torch.nn.Module):
        if dtype is not None and np.dtype(dtype) == np.float64:
            for part in (module, loss):
                if isinstance(part, torch.nn.Module):
                    part.double()
        return _wrap(module, loss, data, seed)
    if isinstance(thing, Model) and not isinstance(thing, type):
        return thing
    raise UsageError(
        f"a model must be a paceline model, a torch.nn.Module or a pair (module, loss); got {_describe(thing)}"
    )


def _wrap(module: Any, loss: Any, data: Dataset, seed: int) -> TorchModel:
    """Wrap a module; one that cannot take images of height x width is given 1 x height x width."""
    from torch import nn

    from paceline.models._torch import TorchModel

    sample = np.zeros((2, *data.shape), np.float32)
    image = (1, *data.shape) if len(data.shape) == 2 else None
    lazy = image is not None and any(isinstance(part, nn.LazyConv2d) for part in module.modules())
    model = TorchModel(module, loss=loss, seed=seed, sample=sample, input_shape=image if lazy else None)
    problem = _problem(model, sample, data)
    if problem and image is not None and not lazy:
        model.input_shape = image
        if _problem(model, sample, data):
            model.input_shape = None  # report the first problem
        else:
            problem = ""
    if problem:
        raise UsageError(problem)
    return model


def _problem(model: TorchModel, sample: Any, data: Dataset) -> str:
    """Say what is wrong with the module for samples of this shape and this number of classes; "" if nothing."""
    shape = "x".join(map(str, data.shape)) or "one number"
    try:
        scores = model.predict(sample)
    except (RuntimeError, ValueError, IndexError) as error:
        return f"the module cannot take {data.name}'s samples of {shape}: {str(error).splitlines()[0]}"
    if len(scores) != len(sample):
        return (
            f"the module must return one row per sample; for 2 samples of {shape} it returned {scores.shape}"
        )
    if data.classes and scores.ndim == 2 and scores.shape[1] < data.classes:
        return (
            f"the module returns {scores.shape[1]} scores per sample; {data.name} has {data.classes} classes"
        )
    return ""


def _describe(thing: Any) -> str:
    if isinstance(thing, type):
        return f"the class {thing.__name__} (call it)"
    if isinstance(thing, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in thing)}"
    return f"a {type(thing).__name__}"
