"""A fully connected network in NumPy: `mlp:128,64` has two hidden layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike

from paceline.data import Batch, Dataset, Split
from paceline.errors import UsageError, unknown
from paceline.models import Array
from paceline.models._activations import ACTIVATIONS
from paceline.models._losses import cross_entropy, softmax, squared_error

CHUNK = 1024


class MLP:
    """Layers of `sizes` units, each fully connected to the one before.

    >>> net = MLP([2, 3, 1])
    >>> net.x.shape, [w.shape for w in net.weights]
    ((13,), [(2, 3), (3, 1)])
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        activation: Literal["sigmoid", "tanh", "relu"] = "sigmoid",
        loss: Literal["squared-error", "cross-entropy"] = "squared-error",
        regression: bool = False,
        standardise: bool = False,
        normalise: bool = False,
        seed: int = 0,
        dtype: DTypeLike = np.float32,
    ) -> None:
        self.sizes = tuple(sizes)
        self.dtype = np.dtype(dtype)
        self.activation = activation
        self.loss = loss
        self.regression = regression
        self.standardise = standardise
        self.normalise = normalise
        _check(self)
        ends = np.cumsum([(n + 1) * m for n, m in zip(sizes, sizes[1:], strict=False)]).tolist()
        self.layers = [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]
        self.buffers: dict[str, Array] = {}
        if standardise:
            self.buffers = {"mean": np.zeros(sizes[0], self.dtype), "std": np.ones(sizes[0], self.dtype)}
        self.x = np.zeros(ends[-1], self.dtype)
        self.g = np.zeros(ends[-1], self.dtype)
        self._bind()
        _xavier(self.weights, seed)

    def place(self, x: Array, g: Array) -> None:
        """Move parameters and gradient into `x` and `g`, keeping the parameters' values."""
        for name, array in (("x", x), ("g", g)):
            if array.shape != self.x.shape or array.dtype != self.dtype or not array.flags.c_contiguous:
                raise ValueError(
                    f"{name} must be a contiguous {self.dtype} vector of {self.x.size}; "
                    f"got {array.dtype} of shape {array.shape}"
                )
        x[:] = self.x
        self.x, self.g = x, g
        self._bind()

    def _bind(self) -> None:
        def views(flat: Array) -> tuple[list[Array], list[Array]]:
            shapes = list(zip(self.sizes, self.sizes[1:], strict=False))
            parts = [flat[part].reshape(n + 1, m) for part, (n, m) in zip(self.layers, shapes, strict=True)]
            return [part[:-1] for part in parts], [part[-1] for part in parts]

        self.weights, self.biases = views(self.x)
        self.weight_gradients, self.bias_gradients = views(self.g)

    def gradient(self, batch: Batch) -> float:
        """Fill `g` for this batch; return the loss summed over its samples."""
        inputs = batch.inputs.reshape(len(batch.inputs), -1)
        act = ACTIVATIONS[self.activation]
        hs = [inputs] if not self.standardise else [(inputs - self.buffers["mean"]) / self.buffers["std"]]
        for i, (w, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            z = hs[-1] @ w + b
            if i < len(self.weights) - 1 or self._activated_output():
                act.value(z, z)
            hs.append(z)
        y = hs[-1]
        d = np.empty_like(y)
        t = self._targets(batch.labels)
        wide = np.empty(y.size)
        loss = (cross_entropy if self.loss == "cross-entropy" else squared_error)(y, t, d, wide)
        s = np.empty_like(y)
        if self._activated_output():
            act.slope(y, s)
            d *= s
        for i in range(len(self.weights) - 1, -1, -1):
            np.matmul(hs[i].T, d, out=self.weight_gradients[i])
            np.add.reduce(d, 0, None, self.bias_gradients[i])
            if i:
                d = d @ self.weights[i].T
                s = np.empty_like(d)
                act.slope(hs[i], s)
                d *= s
        return loss

    def _activated_output(self) -> bool:
        return self.loss == "squared-error" and not self.regression and self.activation != "relu"

    def _targets(self, labels: Array) -> Array:
        if self.regression:
            return labels.reshape(len(labels), -1).astype(self.dtype)
        return np.eye(self.sizes[-1], dtype=self.dtype)[labels]

    def predict(self, inputs: Array) -> Array:
        """Scores for each sample, one row each."""
        out = np.asarray(inputs, self.dtype).reshape(len(inputs), -1)
        if self.standardise:
            out = (out - self.buffers["mean"]) / self.buffers["std"]
        for i, (w, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            out = out @ w + b
            if i < len(self.weights) - 1 or self._activated_output():
                ACTIVATIONS[self.activation].value(out, out)
        if self.loss == "cross-entropy":
            softmax(out, out)
        return out

    def evaluate(self, inputs: Array, labels: Array) -> tuple[float, int]:
        """The loss summed over the samples, and how many were classified right (0 for regression)."""
        loss, right = 0.0, 0
        for start in range(0, len(inputs), CHUNK):
            y, some = self.predict(inputs[start : start + CHUNK]), labels[start : start + CHUNK]
            if self.loss == "cross-entropy":
                loss -= float(np.log(np.maximum(y[np.arange(len(y)), some], 1e-38), dtype=np.float64).sum())
            else:
                loss += squared_error(y, self._targets(some), np.empty_like(y), np.empty(y.size))
            right += 0 if self.regression else int((y.argmax(axis=1) == some).sum())
        return loss, right


def build(
    data: Dataset,
    *hidden: int,
    activation: Literal["sigmoid", "tanh", "relu"] = "sigmoid",
    loss: Literal["squared-error", "cross-entropy"] = "squared-error",
    standardise: bool = False,
    normalise: bool = False,
    seed: int = 0,
    dtype: DTypeLike = np.float32,
) -> MLP:
    """The network for a data set: its inputs, the hidden layers, its classes (or the width of its real labels)."""
    outputs = data.classes or math.prod(data.label_shape)
    net = MLP(
        [math.prod(data.shape), *hidden, outputs],
        activation=activation,
        loss=loss,
        regression=data.classes == 0,
        standardise=standardise,
        normalise=normalise,
        seed=seed,
        dtype=dtype,
    )
    if standardise:
        _fit(net, data.train, data)
    return net


def _fit(net: MLP, split: Split, data: Dataset) -> None:
    raise NotImplementedError


def _check(net: Any) -> None:
    if len(net.sizes) < 2 or min(net.sizes) < 1:
        raise UsageError(f"a network needs at least 2 layers of at least 1 unit; got {net.sizes}")
    if net.activation not in ACTIVATIONS:
        raise unknown("activation", net.activation, ACTIVATIONS)


def _xavier(weights: Sequence[Array], seed: int) -> None:
    """Uniform in +-sqrt(6 / (inputs + outputs)) (Glorot and Bengio, 2010)."""
    random = np.random.default_rng(seed)
    for w in weights:
        w[...] = (random.random(w.shape) - 0.5) * (2 * math.sqrt(6 / sum(w.shape)))
