"""Any `torch.nn.Module` as a model: its parameters and gradients are views of two flat NumPy vectors.

`backward` accumulates straight into `g`: an exchange is one message, and both can be in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from paceline.data import Batch
from paceline.errors import UsageError
from paceline.models import Array, Ready
from paceline.models._torch_loss import SummedLoss
from paceline.models._torch_modes import evaluation_mode
from paceline.models._torch_parts import mixed, real, take_apart
from paceline.models._torch_ready import ReadyLayers

# Samples that are evaluated at once: enough to fill the arithmetic units, few enough to stay in the cache.
CHUNK = 256


class TorchModel:
    """A module, its loss, and the flat vectors `x` and `g` that its parameters and gradients live in.

    >>> import torch
    >>> model = TorchModel(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)))
    >>> model.x.size, model.layers
    (67, [slice(0, 40, None), slice(40, 67, None)])
    >>> model.x[:] = 0  # the module's weights and biases are now 0
    >>> model.module[2].bias.tolist()
    [0.0, 0.0, 0.0]

    Args:
        module: on the cpu; its parameters become views of `x`: float32, or float64 where any of them is.
            Those of another dtype (bfloat16, say) are copied from `x`, their master copy, before each pass.
        loss: `loss(outputs, labels)`; by default cross-entropy for classes, squared error for real targets.
        reduction: what the loss does over the samples: "mean", "sum", or "none" (one for each). A loss that
            has a `reduction` of its own is asked.
        seed: of the random numbers drawn in the forward pass, dropout's for instance.
        sample: inputs of a few samples, `(n, *shape)`; lazy modules need them.
        input_dtype: what the inputs are cast to; by default the dtype of the module's first parameters, or
            int64 when those are an embedding's.
        input_shape: of one sample as the module wants it; by default as the data has it.
    """

    x: Array
    g: Array
    layers: Sequence[slice]
    buffers: dict[str, Array]

    def __init__(
        self,
        module: nn.Module,
        *,
        loss: Callable[..., Any] | None = None,
        reduction: str = "mean",
        seed: int = 0,
        sample: Array | None = None,
        input_dtype: torch.dtype | None = None,
        input_shape: tuple[int, ...] | None = None,
    ) -> None:
        self.module = module
        self.seed = seed
        self.input_dtype = _input_dtype(module) if input_dtype is None else input_dtype
        self.input_shape = input_shape
        self._loss = SummedLoss(loss, reduction)
        if any(is_lazy(tensor) for tensor in (*module.parameters(), *module.buffers())):
            self._initialise(sample)
        if not module.training:
            module.train()
        self._flatten()

    # ---- the flat vectors

    def _roots(self) -> list[tuple[str, nn.Module]]:
        loss = self._loss.loss
        return [("", self.module), ("loss:", loss)] if isinstance(loss, nn.Module) else [("", self.module)]

    def _initialise(self, sample: Array | None) -> None:
        """Give lazy parameters their shapes, with a pass over a sample."""
        if sample is None:
            raise UsageError("a module with lazy parameters needs a sample of its inputs; give sample=…")
        was = self.module.training
        self.module.eval()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.default_generator.manual_seed(self.seed)
            self.module(self._inputs(np.asarray(sample)))
        self.module.train(was)

    def _flatten(self) -> None:
        """Find the parameters, make `x` and `g`, and move the parameters there."""
        parts = take_apart(self._roots())
        self.layers = parts.layers
        self.buffers = {name: kept.array for name, kept in parts.kept.items()}
        self._trained, self._kept = parts.trained, parts.kept
        self._ready_layers = ReadyLayers(parts.trained, parts.layers)
        self._begins = [
            part for _, root in self._roots() for part in root.modules() if hasattr(part, "begin")
        ]
        self.x = np.empty(parts.size, np.float64 if parts.wide else np.float32)
        self.g = np.zeros_like(self.x)
        for one in self._trained:
            torch.from_numpy(self.x[one.part]).copy_(real(one.p.detach()).reshape(-1))
            one.point(self.x, self.g)

    def place(self, x: Array, g: Array) -> None:
        """Move parameters and gradient into memory given from outside (a shared window), keeping x."""
        for name, array in (("x", x), ("g", g)):
            if array.shape != self.x.shape or array.dtype != self.x.dtype or not array.flags.c_contiguous:
                raise ValueError(
                    f"{name} must be contiguous, {self.x.dtype}, of {self.x.size} entries; "
                    f"got {array.dtype}, shape {array.shape}, strides {array.strides}"
                )
            if not array.flags.writeable:
                raise ValueError(f"{name} must be writeable")
        self._before()
        x[...] = self.x
        g[...] = self.g
        self.x, self.g = x, g
        for one in self._trained:
            one.point(x, g)

    # ---- the model

    def gradient(self, batch: Batch, ready: Ready | None = None) -> float:
        """Fill `g` for this batch; return the loss summed over its samples.

        The first pass with `ready` names all layers at its end. Later ones name a layer as soon as its parameters
        have their gradients; at the end those that got none, and those whose gradient is accumulated in several
        passes (reentrant checkpoints).
        """
        if not self.module.training:
            self.module.train()
        self._before()
        self.g.fill(0)
        torch.default_generator.manual_seed(mixed(self.seed, batch.step, batch.offset))
        for number, part in enumerate(self._begins):
            part.begin(batch, mixed(self.seed, number))  # type: ignore[operator]
        with torch.enable_grad():
            loss = self._loss(self.module(self._inputs(batch.inputs)), _labels(batch.labels))
            said: set[int] = set()
            if loss.requires_grad:
                if ready is None:
                    loss.backward()  # type: ignore[no-untyped-call]
                else:
                    said = self._ready_layers.backward(loss, ready)
        for one in self._trained:
            one.after()
        self._settle()
        if ready is not None:
            for layer in range(len(self.layers)):
                if layer not in said:
                    ready(layer)
        return loss.item()

    def predict(self, inputs: Array) -> Array:
        """The module's outputs in evaluation mode, one row a sample; the predicted class is the largest."""
        with self._evaluating():
            rows = [self._loss.scores(self.module(self._inputs(part))) for part in _chunks(inputs)]
            scores = torch.cat(rows)
        return (scores if scores.dtype == torch.float64 else scores.float()).numpy()

    def evaluate(self, inputs: Array, labels: Array) -> tuple[float, int]:
        """The loss summed over the samples, and how many were classified right (0 for regression)."""
        loss, right = 0.0, 0
        with self._evaluating():
            for part, wanted in zip(_chunks(inputs), _chunks(labels), strict=True):
                outputs, target = self.module(self._inputs(part)), _labels(wanted)
                loss += float(self._loss(outputs, target)) if len(part) else 0.0
                scores = self._loss.scores(outputs)
                if target.ndim == 1 and scores.ndim == 2 and not target.is_floating_point():
                    right += int((scores.argmax(1) == target).sum())
        return loss, right

    # ---- around a pass

    def _inputs(self, inputs: Array) -> Tensor:
        tensor = torch.from_numpy(_writeable(inputs))
        if self.input_shape is not None:
            tensor = tensor.reshape(len(inputs), *self.input_shape)
        return tensor if self.input_dtype is None else tensor.to(self.input_dtype)

    def _before(self) -> None:
        """Bring `x` and the buffers to the module, where they are not its memory."""
        for one in self._trained:
            one.before()
        for kept in self._kept.values():
            kept.push()

    def _settle(self) -> None:
        """Bring the module's state to the buffers, where they are not its memory."""
        for name, kept in self._kept.items():
            if kept.pull():
                self.buffers[name] = kept.array

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Evaluation mode, no gradients; afterwards every part is in the mode that it was in."""
        self._before()
        try:
            with evaluation_mode(root for _, root in self._roots()), torch.no_grad():
                yield
        finally:
            self._settle()

    # ---- to other processes

    def __getstate__(self) -> dict[str, Any]:
        self._before()
        made = ("x", "g", "layers", "buffers", "_trained", "_kept", "_begins", "_ready_layers")
        state = {name: value for name, value in vars(self).items() if name not in made}
        return {**state, "x": self.x} if any(one.mirrored for one in self._trained) else state

    def __setstate__(self, state: dict[str, Any]) -> None:
        master = state.pop("x", None)
        vars(self).update(state)
        self._flatten()
        if master is not None:
            self.x[...] = master


def _input_dtype(module: nn.Module) -> torch.dtype | None:
    for part in module.modules():
        for p in part.parameters(recurse=False):
            return torch.int64 if isinstance(part, (nn.Embedding, nn.EmbeddingBag)) else p.dtype
    return None


def _writeable(array: Array) -> Array:
    """The array, or a copy of it where torch could not share its memory."""
    array = np.asarray(array)
    return array if array.flags.writeable and min(array.strides, default=0) >= 0 else array.copy()


def _labels(labels: Array) -> Tensor:
    tensor = torch.from_numpy(_writeable(labels))
    return tensor if tensor.is_floating_point() else tensor.long()


def _chunks(array: Array) -> Iterator[Array]:
    for start in range(0, max(1, len(array)), CHUNK):
        yield array[start : start + CHUNK]
