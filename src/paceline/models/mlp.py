"""A fully connected network in NumPy: `mlp:128,64` has two hidden layers, of 128 and 64 units.

`mlp:128,64` on MNIST is the reference network: 784-128-64-10, sigmoid everywhere, squared error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike

from paceline.data import Batch, Dataset, chunks, fields_of, has_several
from paceline.errors import UsageError, unknown
from paceline.models._factors import Factors, PartGradient, cut_rows, factor_bytes
from paceline.models._model import Array, Ready
from paceline.models._passes import ACTIVATIONS, LOSSES, Memory, Pass, softmax


def check_options(
    sizes: Sequence[int], activation: str, loss: str, regression: bool, normalise: bool, dtype: Any
) -> None:
    """Check the options of a network; raise a UsageError for the first that is wrong."""
    if len(sizes) < 2 or min(sizes) < 1:
        raise UsageError(f"an mlp's layers must have at least 1 unit each; got {'-'.join(map(str, sizes))}")
    if activation not in ACTIVATIONS:
        raise unknown("activation of mlp", activation, ACTIVATIONS)
    if loss not in LOSSES:
        raise unknown("loss of mlp", loss, LOSSES)
    if np.dtype(dtype) not in (np.float32, np.float64):
        raise UsageError(f"an mlp computes in float32 or float64; got {np.dtype(dtype)}")
    if loss == "cross-entropy" and regression:
        raise UsageError(
            "cross-entropy needs classes, and the labels of these data are values; choose squared-error"
        )
    if loss == "cross-entropy" and sizes[-1] < 2:
        raise UsageError(f"cross-entropy needs at least 2 classes; got {sizes[-1]}")
    if normalise and min(sizes[1:-1], default=2) < 2:
        raise UsageError(
            f"normalise needs hidden layers of at least 2 units; got {'-'.join(map(str, sizes))}"
        )


# Values that are read at once for the mean and standard deviation of the inputs.
STANDARDISE_VALUES = 1 << 20


def mean_and_std(data: Dataset) -> tuple[Array, Array]:
    """Return mean and standard deviation of every input over the training samples; 1 for an input that never changes.

    Rows are added one after the other, so that the result is the same on every machine, whatever its vector width.
    Chunks are combined as in Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing
    sample variances", 1979.
    """
    width = math.prod(data.shape)
    mean, square, seen = np.zeros(width), np.zeros(width), 0
    for inputs, _ in chunks(data.train, size=max(1, STANDARDISE_VALUES // width), dtype=np.float64):
        n = len(inputs)
        values = inputs.reshape(n, width)
        centre = np.add.reduce(values, 0) / n
        values -= centre
        values *= values
        shift = centre - mean
        square += np.add.reduce(values, 0) + shift * shift * (seen * n / (seen + n))
        mean += shift * (n / (seen + n))
        seen += n
    std = np.sqrt(square / max(seen, 1))
    std[std <= 1e-7 * np.abs(mean)] = 1  # a constant, up to rounding
    std[std == 0] = 1
    return mean, std


# Samples that are evaluated at once: at most CHUNK_ROWS, and at most CHUNK_VALUES in the widest layer.
CHUNK_VALUES = 1 << 22
CHUNK_ROWS = 1024
# The number of batch sizes whose passes are cached.
PASSES = 32


class MLP:
    """Layers of `sizes` units, each fully connected to the previous one. `x` holds weights and biases, layer by layer.

    Under `squared-error` the output is activated like the other layers (but is linear after `relu`, and for values);
    under `cross-entropy` it goes through softmax. `standardise` shifts and scales the inputs by
    `buffers["mean"]` and `buffers["std"]`; `normalise` normalises each sample's activations in every hidden
    layer.

    >>> net = MLP([784, 128, 64, 10])
    >>> net.x.nbytes, net.layers[2], net.weights[2].shape, net.biases[2].shape
    (437544, slice(108736, 109386, None), (64, 10), (10,))
    """

    runs_at_once = True
    x: Array
    g: Array
    _memory: Memory
    _factors: Factors | None

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
        check_options(sizes, activation, loss, regression, normalise, dtype)
        self.sizes = tuple(sizes)
        self.activation = activation
        self.loss = loss
        self.regression = regression
        self.standardise = standardise
        self.normalise = normalise
        self.dtype = np.dtype(dtype)
        self.activated_output = loss == "squared-error" and activation != "relu" and not regression
        # Sigmoid's gradients are small: a factor of at most 1/4 in each layer, and again in an activated output.
        self.default_rate = 0.1
        if activation == "sigmoid" and not regression:
            self.default_rate = 2.0 if self.activated_output else 1.0

        self.layers: list[slice] = []
        size = 0
        for shape in self._shapes():
            self.layers.append(slice(size, size := size + math.prod(shape)))
        self.buffers: dict[str, Array] = {}
        if standardise:
            self.buffers = {"mean": np.zeros(sizes[0], self.dtype), "std": np.ones(sizes[0], self.dtype)}
        self._bind(np.zeros(size, self.dtype), np.zeros(size, self.dtype))
        _draw(self.weights, seed)

    @property
    def matrices(self) -> list[tuple[int, tuple[int, int]]]:
        """Where each layer's matrix of weights and biases begins in `x`, and its shape."""
        return [(layer.start, shape) for layer, shape in zip(self.layers, self._shapes(), strict=True)]

    def place(self, x: Array, g: Array) -> None:
        """Move parameters and gradient into memory given from outside, keeping the parameters' values.

        >>> net, shared = MLP([2, 3, 1]), np.empty((2, 13), np.float32)
        >>> net.place(*shared)
        >>> shared[0, 6:9] += 1
        >>> net.biases[0]
        array([1., 1., 1.], dtype=float32)
        """
        for name, given in (("x", x), ("g", g)):
            if given.shape != self.x.shape or given.dtype != self.dtype or not given.flags.c_contiguous:
                raise ValueError(
                    f"{name} must be a contiguous vector of {self.x.size} {self.dtype}; "
                    f"got {given.dtype} of shape {given.shape}, strides {given.strides}"
                )
            if not given.flags.writeable:
                raise ValueError(f"{name} must be writeable")
        np.copyto(x, self.x)
        self._bind(x, g)

    def gradient(self, batch: Batch, ready: Ready | None = None) -> float:
        """Fill `g` for this batch; return the loss summed over its samples. The last layer is ready first.

        >>> net = MLP([2, 3, 1], regression=True, dtype=np.float64)
        >>> batch = Batch(np.ones((4, 2)), np.zeros(4), 4, 4, 0, 0, 0)
        >>> before = net.gradient(batch)
        >>> net.x -= 0.1 / batch.count * net.g
        >>> net.gradient(batch) < before
        True
        """
        inputs, labels = batch.inputs, batch.labels
        if inputs.dtype != self.dtype:
            raise TypeError(f"inputs must be {self.dtype}, the network's type; got {inputs.dtype}")
        factors = self._factors
        if factors is not None and ready is not None:
            raise ValueError("a network that shares factors does not compute g, so no layer can be ready")
        way = self._passes.get(len(inputs)) if factors is None else factors.find(batch)
        if way is None:
            if len(inputs) == 0:
                self.g.fill(0)
                if ready is not None:
                    for layer in range(len(self.layers)):
                        ready(layer)
                return 0.0
            self._check_labels(labels)
            way = self._pass(len(inputs)) if factors is None else factors.make(batch)
        return way.gradient(inputs, labels, ready)

    def factor_bytes(self, batch: int) -> int:
        """Return the bytes that the factors of the gradient of `batch` samples take.

        >>> MLP([784, 128, 64, 10]).factor_bytes(16)
        83840
        """
        return factor_bytes(self, batch)

    def share_factors(self, memory: Array, batch: int, rank: int, ranks: int) -> PartGradient:
        """Write the factors of the gradient to `memory` from now on, not to `g`; return the gradient of a part.

        >>> net = MLP([2, 3, 1], regression=True)
        >>> one = Batch(np.ones((1, 2), np.float32), np.zeros(1), 1, 1, 0, 0, 0)
        >>> loss, g = net.gradient(one), net.g.copy()
        >>> first_half = net.share_factors(np.empty(net.factor_bytes(1), np.uint8), 1, rank=0, ranks=2)
        >>> first_half.part, net.gradient(one) == loss, bool((first_half() == g[first_half.part]).all())
        (slice(0, 6, None), True, True)
        """
        part = cut_rows(self, ranks)[rank]
        self._factors = Factors(self, memory, batch)
        return PartGradient(self, self._factors, part)

    def predict(self, inputs: Array) -> Array:
        """Return the scores of each sample, one row each: the outputs, or the probabilities under cross-entropy.

        >>> MLP([2, 3, 4], loss="cross-entropy").predict(np.ones((5, 2))).sum(axis=1).round(3)
        array([1., 1., 1., 1., 1.], dtype=float32)
        """
        scores = np.empty((len(inputs), self.sizes[-1]), self.dtype)
        for part in self._chunks(len(inputs)):
            scores[part] = self._forward(inputs[part]).output
        if self.loss == "cross-entropy":
            softmax(scores)
        return scores

    def evaluate(self, inputs: Array, labels: Array) -> tuple[float, int]:
        """Return the loss summed over the samples, and how many were classified correctly (0 for regression).

        >>> loss, right = MLP([2, 3, 4]).evaluate(np.ones((5, 2)), np.zeros(5, int))
        >>> right in (0, 5)
        True
        """
        self._check_labels(labels)
        loss, right = 0.0, 0
        for part in self._chunks(len(inputs)):
            done = self._forward(inputs[part])
            loss += done.loss(labels[part])
            if not self.regression:
                right += int(np.count_nonzero(done.output.argmax(axis=1) == labels[part]))
        return loss, right

    def trace(self, *, seeded: bool = True) -> tuple[Any, Any]:
        """Return what passes could change besides `g`: nothing."""
        return (), ()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which creates its own views and working memory."""
        own = ("weights", "biases", "weight_gradients", "bias_gradients", "_passes", "_memory", "_factors")
        return {name: value for name, value in vars(self).items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._bind(self.x, self.g)

    def _forward(self, inputs: Array) -> Pass:
        ready = self._pass(len(inputs))
        ready.forward(np.asarray(inputs, self.dtype))
        return ready

    def _chunks(self, count: int) -> list[slice]:
        rows = min(CHUNK_ROWS, max(1, CHUNK_VALUES // max(self.sizes)))
        return [slice(start, min(start + rows, count)) for start in range(0, count, rows)]

    def _pass(self, count: int) -> Pass:
        """Return the pass for batches of `count`, in the memory of the largest batch so far."""
        if count not in self._passes:
            if count > self._memory.rows:
                self._memory = Memory(count)
                self._passes.clear()
            elif len(self._passes) == PASSES:
                self._passes.clear()
            self._passes[count] = Pass(self, count, self._memory if count > 1 else Memory(1))
        return self._passes[count]

    def _bind(self, x: Array, g: Array) -> None:
        """Make `x` and `g` the parameters and the gradient."""
        self.x, self.g = x, g
        self.weights, self.biases = self._views(x)
        self.weight_gradients, self.bias_gradients = self._views(g)
        self._passes: dict[int, Pass] = {}
        self._memory = Memory(1)
        self._factors = None

    def _views(self, flat: Array) -> tuple[list[Array], list[Array]]:
        parts = [flat[part].reshape(s) for part, s in zip(self.layers, self._shapes(), strict=True)]
        return [part[:-1] for part in parts], [part[-1] for part in parts]

    def _shapes(self) -> list[tuple[int, int]]:
        """Return the shape of each layer's weights, (inputs, outputs), with the biases as one more row."""
        return [(n + 1, m) for n, m in zip(self.sizes, self.sizes[1:], strict=False)]

    def _check_labels(self, labels: Array) -> None:
        if not self.regression and len(labels) and not 0 <= labels.min() <= labels.max() < self.sizes[-1]:
            raise ValueError(
                f"labels must be from 0 to {self.sizes[-1] - 1}, the network's outputs; "
                f"got {labels.min()} to {labels.max()}"
            )


def count_parameters(data: Dataset, *hidden: int, **_: Any) -> int:
    """Return the number of parameters of the network that `build` builds.

    >>> from paceline.data import load
    >>> count_parameters(load("iris"), 8)
    67
    """
    sizes = (math.prod(data.shape), *hidden, data.classes or math.prod(data.label_shape))
    return sum((n + 1) * m for n, m in pairwise(sizes))


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
    """Build a network from the inputs of the data through hidden layers to its classes (or values)."""
    if has_several(data.train):
        raise UsageError(
            f"mlp takes one array of features; {data.name} has {len(fields_of(data.train))} inputs by name or position"
        )
    if data.classes and data.label_shape:
        shape = "x".join(map(str, data.label_shape))
        raise UsageError(
            f"mlp predicts one class for each sample; {data.name} has labels of {shape} classes: give a torch module"
        )
    if data.ignored is not None:
        raise UsageError(
            f"mlp counts every label; {data.name} has labels of {data.ignored}, to be ignored: give a torch module"
        )
    net = MLP(
        [math.prod(data.shape), *hidden, data.classes or math.prod(data.label_shape)],
        activation=activation,
        loss=loss,
        regression=data.classes == 0,
        standardise=standardise,
        normalise=normalise,
        seed=seed,
        dtype=dtype,
    )
    if standardise:
        net.buffers["mean"][:], net.buffers["std"][:] = mean_and_std(data)
    return net


def _draw(weights: Iterable[Array], seed: int) -> None:
    """Draw weights uniformly within +-sqrt(6 / (inputs + outputs)) (Glorot and Bengio, 2010), equal on every machine."""
    random = np.random.default_rng(seed)
    for w in weights:
        bound = math.sqrt(6 / sum(w.shape))
        np.copyto(w, (random.random(w.shape) - 0.5) * (2 * bound), casting="same_kind")
