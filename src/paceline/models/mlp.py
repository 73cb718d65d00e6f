"""A fully connected network in NumPy: `mlp:128,64` has two hidden layers, of 128 and 64 units.

`mlp:128,64` on MNIST is the reference network: 784-128-64-10, sigmoid everywhere, squared error.

A `Pass` goes forward and backward for one batch size, in memory allocated beforehand:

    up:    h_0 = inputs    z_i = h_{i-1} W_i + b_i    a_i = f(z_i)    h_i = a_i, or its normalisation
    down:  d_i = dE/dz_i   dE/dW_i = h_{i-1}^T d_i    dE/db_i = 1^T d_i    d_{i-1} = (d_i W_i^T) f'(z_{i-1})

In a small network, NumPy's overhead takes as long as the arithmetic. So every view is created once, every call has an
`out`, and the slopes of all layers are one call, as their activations are adjacent in memory. A row or a column is copied
to full size before it is combined with a matrix: broadcasting would copy it too, into memory that it allocates.

Ranks that share memory may exchange the `Factors` of the gradient of a small batch instead of gradients. A layer's
gradient is a sum of outer products, one per sample, so a batch of B samples needs B (n + m) numbers instead of n m:

    each rank, for its samples:       h_{i-1} and d_i of every layer into the shared rows of the whole batch
    each rank, for its rows of W_i:   dE/dW_i[rows] = h_{i-1}[:, rows]^T d_i, over all samples

h has a column of ones at its end, so that the biases, the last row of a layer's part of x, need no special case. Every
row starts at a cache line, so that two ranks never write to the same one. Xie et al., "Distributed machine learning via
sufficient factor broadcasting", 2015.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import DTypeLike

from paceline.data import Batch, Dataset, chunks, fields_of, has_several
from paceline.errors import UsageError, unknown
from paceline.models._model import Array, Ready, check_vectors


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
    _memory: PassMemory
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
        self.default_rate = _choose_rate(activation, loss, regression)

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
        check_vectors(self.x, x, g)
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

    def share_factors(self, memory: Array, batch: int, rank: int, ranks: int) -> ProductGradient:
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
        return ProductGradient(self, self._factors, part)

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
                self._memory = PassMemory(count)
                self._passes.clear()
            elif len(self._passes) == PASSES:
                self._passes.clear()
            self._passes[count] = Pass(self, count, self._memory if count > 1 else PassMemory(1))
        return self._passes[count]

    def _bind(self, x: Array, g: Array) -> None:
        """Make `x` and `g` the parameters and the gradient."""
        self.x, self.g = x, g
        self.weights, self.biases = self._views(x)
        self.weight_gradients, self.bias_gradients = self._views(g)
        self._passes: dict[int, Pass] = {}
        self._memory = PassMemory(1)
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
    return sum((n + 1) * m for n, m in itertools.pairwise(sizes))


def default_rate(
    classes: int, *_: int, activation: str = "sigmoid", loss: str = "squared-error", **__: Any
) -> float:
    """Return the default learning rate of the network that `build` builds for this many classes (0: values).

    >>> default_rate(3, 8), default_rate(3, 8, activation="relu")
    (2.0, 0.1)
    """
    return _choose_rate(activation, loss, classes == 0)


def _choose_rate(activation: str, loss: str, regression: bool) -> float:
    # Sigmoid's gradients are small: a factor of at most 1/4 in each layer, and again in an activated output.
    if activation != "sigmoid" or regression:
        return 0.1
    return 2.0 if loss == "squared-error" else 1.0


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
    """Build a network from the inputs of the data through hidden layers to its classes (or values).

    `hidden`: the number of units in each hidden layer.
    `activation`: the function that is applied to the units of the hidden layers.
    `loss`: what training minimises; numbers that are predicted need squared-error.
    `standardise`: shift and scale every input by its mean and standard deviation over the training samples.
    `normalise`: normalise the activations of each sample in every hidden layer (layer normalisation).
    """
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


# Activation functions, in place, and their slopes, computed from the value alone.
#
# The constants are 0-d arrays of the network's dtype: they are a third of a microsecond faster than Python numbers,
# which in a small network is as long as the arithmetic takes.

DType = np.dtype[Any]


class Activation(NamedTuple):
    value: Callable[[Array], None]
    """z becomes a = f(z)."""
    slope: Callable[[Array, Array], None]
    """From a = f(z), f'(z) into the second array."""


def sigmoid(dtype: DType) -> Activation:
    """Return 1 / (1 + exp(-z)), computed with tanh, which cannot overflow.

    >>> z = np.array([-1e4, 0.0, 1e4])
    >>> sigmoid(z.dtype).value(z)
    >>> z
    array([0. , 0.5, 1. ])
    """
    half = np.array(0.5, dtype)

    def value(z: Array) -> None:
        np.multiply(z, half, z)
        np.tanh(z, z)
        np.multiply(z, half, z)
        np.add(z, half, z)  #                                               a = (1 + tanh(z/2)) / 2

    def slope(a: Array, s: Array) -> None:
        np.multiply(a, a, s)
        np.subtract(a, s, s)  #                                             a' = a (1 - a)

    return Activation(value, slope)


def tanh(dtype: DType) -> Activation:
    one = np.array(1, dtype)

    def value(z: Array) -> None:
        np.tanh(z, z)  #                                                    a = tanh z

    def slope(a: Array, s: Array) -> None:
        np.multiply(a, a, s)
        np.subtract(one, s, s)  #                                           a' = 1 - a^2

    return Activation(value, slope)


def relu(dtype: DType) -> Activation:
    zero = np.array(0, dtype)

    def value(z: Array) -> None:
        np.maximum(z, zero, out=z)  #                                       a = max(z, 0)

    def slope(a: Array, s: Array) -> None:
        np.sign(a, s)  #                                                    a' = 1 where a > 0, else 0

    return Activation(value, slope)


ACTIVATIONS = {"sigmoid": sigmoid, "tanh": tanh, "relu": relu}


# Losses, summed over the samples of a batch, and their gradients at the network's output.
#
# Terms are added in float64: a sum of many small numbers is the one place in a step where float32 is not precise enough.

Carve = Callable[[tuple[int, ...], np.dtype[Any]], Array]
"""A function that returns uninitialised memory of a shape and dtype."""
WIDE = np.dtype(np.float64)


class Loss(Protocol):
    """The loss of one batch, bound to its output `y`, targets `t` and gradient `d`."""

    def __call__(self) -> float:
        """Return the loss of y against t; write its gradient with respect to y to d."""
        ...


class SquaredError:
    """1/2 sum (y - t)^2.

    >>> y, t, d = np.array([[1.0, 3.0]]), np.array([[0.0, 1.0]]), np.empty((1, 2))
    >>> SquaredError(y, t, d, np.empty)(), d
    (2.5, array([[1., 2.]]))
    """

    def __init__(self, y: Array, t: Array, d: Array, carve: Carve) -> None:
        self.y, self.t, self.d = y, t, d
        self.flat, self.wide = d.reshape(-1), carve((d.size,), WIDE)

    def __call__(self) -> float:
        np.subtract(self.y, self.t, self.d)  #                              dE/dy = y - t
        np.copyto(self.wide, self.flat)
        return 0.5 * float(self.wide.dot(self.wide))  #                     E = 1/2 |y - t|^2


class CrossEntropy:
    """-sum t log p where p = softmax(y), shifted by each row's largest so that nothing overflows.

    >>> y, t, d = np.zeros((1, 4)), np.eye(4)[:1], np.empty((1, 4))
    >>> round(CrossEntropy(y, t, d, np.empty)(), 6), d
    (1.386294, array([[-0.75,  0.25,  0.25,  0.25]]))
    """

    def __init__(self, y: Array, t: Array, d: Array, carve: Carve) -> None:
        self.y, self.t, self.d = y, t, d
        self.row, self.product = carve((len(y), 1), y.dtype), carve(y.shape, y.dtype)
        self.wide, self.wide_row = carve(y.shape, WIDE), carve((len(y), 1), WIDE)

    def __call__(self) -> float:
        y, t, d, row = self.y, self.t, self.d, self.row
        np.maximum.reduce(y, 1, None, out=row, keepdims=True)
        np.copyto(d, row)
        np.subtract(y, d, d)  #                                             s = y - max y
        np.multiply(d, t, self.product)
        np.copyto(self.wide, self.product)
        chosen = np.add.reduce(self.wide, None)
        np.exp(d, d)
        np.add.reduce(d, 1, None, out=row, keepdims=True)
        np.copyto(self.product, row)
        np.divide(d, self.product, d)  #                                    p = exp s / sum exp s
        np.subtract(d, t, d)  #                                             dE/dy = p - t
        np.copyto(self.wide_row, row)
        np.log(self.wide_row, self.wide_row)
        return float(np.add.reduce(self.wide_row, None) - chosen)  #        E = sum log sum exp s - t s


LOSSES: dict[str, Callable[[Array, Array, Array, Carve], Loss]] = {
    "squared-error": SquaredError,
    "cross-entropy": CrossEntropy,
}


def softmax(y: Array) -> None:
    """Replace each row of y by exp(y) / sum exp(y)."""
    np.subtract(y, y.max(axis=1, keepdims=True), y)
    np.exp(y, y)
    np.divide(y, y.sum(axis=1, keepdims=True), y)


# Normalisation of each sample's activations over the units of a layer (Ba, Kiros and Hinton, 2016).
#
# h = (a - mean a) / sqrt(var a + epsilon)
#
# A sample's values do not depend on other samples, so the pieces of a batch add up to the whole however it is cut.

EPSILON = 1e-5


class LayerNorm:
    """Normalisation of `a` (rows, units) into `h`, and of the gradient on its way back.

    >>> a, h = np.array([[1.0, 3.0], [10.0, 30.0]]), np.empty((2, 2))
    >>> LayerNorm(a, h, np.empty).forward()
    >>> h.round(3)
    array([[-1.,  1.],
           [-1.,  1.]])
    """

    def __init__(self, a: Array, h: Array, carve: Carve) -> None:
        self.a, self.h = a, h
        self.row, self.scale = carve((len(a), 1), a.dtype), carve((len(a), 1), a.dtype)
        self.row_h, self.work = carve((len(a), 1), a.dtype), carve(a.shape, a.dtype)
        self.average = np.full((a.shape[1], 1), 1 / a.shape[1], a.dtype)
        self.epsilon = np.array(EPSILON, a.dtype)

    def forward(self) -> None:
        a, h, row, scale, work = self.a, self.h, self.row, self.scale, self.work
        np.matmul(a, self.average, row)
        np.copyto(work, row)
        np.subtract(a, work, h)
        np.multiply(h, h, work)
        np.matmul(work, self.average, scale)
        np.add(scale, self.epsilon, scale)
        np.sqrt(scale, scale)  #                                            sigma = sqrt(var a + epsilon)
        np.reciprocal(scale, scale)
        np.copyto(work, scale)
        np.multiply(h, work, h)  #                                          h = (a - mean a) / sigma

    def backward(self, d: Array) -> None:
        """Turn d = dE/dh into dE/da."""
        h, row, row_h, work = self.h, self.row, self.row_h, self.work
        np.matmul(d, self.average, row)  #                                  mean d
        np.multiply(d, h, work)
        np.matmul(work, self.average, row_h)  #                             mean(d h)
        np.copyto(work, row_h)
        np.multiply(work, h, work)
        np.subtract(d, work, d)
        np.copyto(work, row)
        np.subtract(d, work, d)
        np.copyto(work, self.scale)
        np.multiply(d, work, d)  #                                          (d - mean d - h mean(d h)) / sigma


ALIGNMENT = 64
SMALL_PRODUCT = 1_000_000
"""Multiply-adds up to which OpenBLAS does not pack its operands: 1.4 times as fast for few rows."""

FEW_CLASSES = 256
"""Classes up to which one-hot targets are rows of an identity matrix, the fastest way to create them."""


class PassMemory:
    """The arrays of a network's passes, for batches of up to `rows` samples.

    The pass of `rows` samples, which must be the first, allocates them. The passes of smaller batches ask for the same
    arrays in the same order, and get the first rows of them.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.blocks: list[Array] = []

    def carver(self) -> Carve:
        order = itertools.count()

        def carve(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
            size, which = math.prod(shape) * dtype.itemsize, next(order)
            if which == len(self.blocks):
                block = np.zeros(size + ALIGNMENT, np.uint8)
                self.blocks.append(block[-block.ctypes.data % ALIGNMENT :])
            return self.blocks[which][:size].view(dtype).reshape(shape)

        return carve


class Pass:
    """Everything that a step on `count` samples needs.

    A single sample is computed as two, the second with gradient 0: NumPy has no fast path for the product of a
    column and a row, which alone would take longer than a whole step on sixteen samples.
    """

    def __init__(self, net: MLP, count: int, memory: PassMemory) -> None:
        rows, dtype, widths, carve = max(count, 2), net.dtype, net.sizes[1:], memory.carver()

        def side_by_side() -> tuple[Array, list[Array]]:
            whole = carve((rows * sum(widths),), dtype)
            ends = np.cumsum([rows * m for m in widths])
            parts = np.split(whole, ends[:-1])
            return whole, [part.reshape(rows, m) for part, m in zip(parts, widths, strict=True)]

        all_a, a = side_by_side()
        all_slopes, slopes = side_by_side()
        _, d = side_by_side()
        self.output = a[-1][:count]
        self.targets = carve((count, widths[-1]), dtype)
        self.error = LOSSES[net.loss](self.output, self.targets, d[-1][:count], carve)
        self.regression, self.few_classes = net.regression, widths[-1] <= FEW_CLASSES
        if self.few_classes:
            self.one_hot = np.eye(widths[-1], dtype=dtype)
        else:
            self.starts, self.index = np.arange(count) * widths[-1], np.empty(count, np.intp)

        self.shape = (count, net.sizes[0])
        self.inputs = carve((rows, net.sizes[0]), dtype) if net.standardise or rows > count else None
        self.standard = None
        if net.standardise:
            self.standard = net.buffers["mean"], net.buffers["std"], carve(self.shape, dtype)
        self.ones = np.ones(rows, dtype)
        h: list[Array] = a[:-1]
        norms: list[LayerNorm | None] = [None] * len(h)
        if net.normalise:
            h = [carve(layer.shape, dtype) for layer in h]
            norms = [LayerNorm(*pair, carve) for pair in zip(a, h, strict=False)]

        activation = ACTIVATIONS[net.activation](dtype)
        self.slope = activation.slope
        activated = all_a.size if net.activated_output else all_a.size - a[-1].size
        self.sloped = all_a[:activated], all_slopes[:activated]
        self.last = (d[-1], slopes[-1]) if net.activated_output else None
        # Until the backward pass, the memory of the slopes is free.
        work = [all_slopes[: layer.size].reshape(layer.shape) for layer in a]
        values = [activation.value] * len(h) + [activation.value if net.activated_output else None]
        self.up = list(
            zip(net.weights, net.biases, a, values, [*norms, None], [*h, a[-1]], work, strict=True)
        )
        self.a, self.h, self.d, self.slopes, self.norms, self.values = a, h, d, slopes, norms, values
        parts = [small_parts(w.shape, rows) for w in net.weights]
        self.down = [
            (
                [(h[i - 1].T[part], net.weight_gradients[i][part]) for part in parts[i]],
                net.bias_gradients[i], d[i], i, net.weights[i].T, d[i - 1], norms[i - 1], slopes[i - 1],
            )
            for i in reversed(range(1, len(widths)))
        ]  # fmt: skip
        self.first = d[0], net.bias_gradients[0]
        self.first_parts = [(part, net.weight_gradients[0][part]) for part in parts[0]]

    def forward(self, inputs: Array) -> Array:
        """Compute `self.output`; return the inputs as layer 0 sees them."""
        h = x = self.prepare(inputs)
        for w, b, a, value, norm, above, work in self.up:
            np.matmul(h, w, a)
            np.copyto(work, b)
            np.add(a, work, a)  #                                           z = h W + b
            if value is not None:
                value(a)  #                                                 a = f(z)
            if norm is not None:
                norm.forward()
            h = above
        return x

    def prepare(self, inputs: Array) -> Array:
        """Return the inputs as layer 0 sees them: one row per sample, standardised if the network does that."""
        x = inputs.reshape(self.shape)
        if self.inputs is not None:
            filled = self.inputs[: len(x)]
            if self.standard is None:
                np.copyto(filled, x)
            else:
                mean, std, work = self.standard
                np.copyto(work, mean)
                np.subtract(x, work, filled)
                np.copyto(work, std)
                np.divide(filled, work, filled)  #                          (inputs - mean) / std
            x = self.inputs
        return x

    def loss(self, labels: Array) -> float:
        """Return the summed loss of the output of `forward`; write its gradient to the last layer's d."""
        if self.regression:
            np.copyto(self.targets, labels.reshape(self.targets.shape))
        elif self.few_classes:
            self.one_hot.take(labels, 0, self.targets, "clip")
        else:
            self.targets.fill(0)
            np.add(self.starts, labels, self.index)
            self.targets.put(self.index, 1, "clip")
        return self.error()

    def gradient(self, inputs: Array, labels: Array, ready: Ready | None = None) -> float:
        """Write the gradient of these samples to the network's `g`; return their summed loss."""
        x = self.forward(inputs)
        loss = self.loss(labels)
        self.slope(*self.sloped)
        if self.last is not None:
            d, slope = self.last
            np.multiply(d, slope, d)
        for products, db, d, layer, w, d_below, norm, slope in self.down:
            for h, dw in products:
                np.matmul(h, d, dw)  #                                      dE/dW = h^T d
            np.dot(self.ones, d, db)  #                                     dE/db = 1^T d
            if ready is not None:
                ready(layer)
            np.matmul(d, w, d_below)
            if norm is not None:
                norm.backward(d_below)
            np.multiply(d_below, slope, d_below)  #                         d = (d W^T) f'(z)
        d, db = self.first
        x = x.T
        for part, dw in self.first_parts:
            np.matmul(x[part], d, dw)
        np.dot(self.ones, d, db)
        if ready is not None:
            ready(0)
        return loss


def small_parts(shape: tuple[int, ...], rows: int) -> list[slice]:
    """Cut a weight matrix into parts whose gradients are products small enough to be computed unpacked."""
    work = math.prod(shape) * rows
    parts = math.ceil(work / SMALL_PRODUCT) if rows <= 32 and work <= 4 * SMALL_PRODUCT else 1
    cuts = [shape[0] * k // parts for k in range(parts + 1)]
    return [slice(start, end) for start, end in itertools.pairwise(cuts)]


def factor_bytes(net: MLP, batch: int) -> int:
    """Return the bytes for a cache line with the number of samples, and the rows of the batch and of one sample more."""
    return ALIGNMENT + (batch + 1) * net.dtype.itemsize * sum(map(sum, _row_lengths(net)))


def cut_rows(net: MLP, parts: int) -> list[slice]:
    """Cut x into `parts` consecutive slices, as even as whole rows of the weights allow; some may be empty.

    >>> from paceline.models.mlp import MLP
    >>> [part.stop for part in cut_rows(MLP([784, 128, 64, 10]), 4)]
    [27392, 54656, 82048, 109386]
    """
    rows = [np.arange(at.start, at.stop, m) for at, m in zip(net.layers, net.sizes[1:], strict=True)]
    edges = np.append(np.concatenate(rows), net.x.size)
    wanted = np.linspace(0, net.x.size, parts + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    cuts = edges[np.searchsorted(middles, wanted)].tolist()
    return [slice(start, stop) for start, stop in itertools.pairwise(cuts)]


class Factors:
    """The factors of every layer's gradient, for batches of up to `batch` samples, in memory given from outside.

    `h[i]` (samples, inputs and a one) and `d[i]` (samples, outputs) have one more row, of zeros: a batch of one sample
    is multiplied as two.
    """

    def __init__(self, net: MLP, memory: Array, batch: int) -> None:
        if memory.dtype != np.uint8 or memory.shape != (factor_bytes(net, batch),):
            raise ValueError(
                f"the factors of {batch} samples need {factor_bytes(net, batch)} uint8; "
                f"got {memory.dtype} of shape {memory.shape}"
            )
        self.batch = batch
        self.total = memory[:ALIGNMENT].view(np.int64)[:1]
        """The number of samples in the current batch, written by the rank that has the first of them."""
        self.h: list[Array] = []
        self.d: list[Array] = []
        start = ALIGNMENT
        for (long_h, long_d), n, m in zip(_row_lengths(net), net.sizes, net.sizes[1:], strict=False):
            for arrays, length, used in ((self.h, long_h, n + 1), (self.d, long_d, m)):
                stop = start + (batch + 1) * length * net.dtype.itemsize
                arrays.append(memory[start:stop].view(net.dtype).reshape(batch + 1, length)[:, :used])
                arrays[-1][-1] = 0
                start = stop
            self.h[-1][:-1, -1] = 1
        self.total[0] = 0
        self._net = net
        self._passes: dict[tuple[int, int], FactorPass] = {}

    def find(self, batch: Batch) -> FactorPass | None:
        """Begin this batch; return the pass for this piece if there is one."""
        # Written only if it has changed, so that it stays in all caches.
        if batch.offset == 0 and self.total[0] != batch.total:
            self.total[0] = batch.total
        return self._passes.get((batch.count, batch.offset))

    def make(self, batch: Batch) -> FactorPass:
        """Create and store the pass for this piece."""
        if batch.offset + batch.count > self.batch or batch.total > self.batch:
            raise ValueError(
                f"factors are shared for {self.batch} samples; got {batch.offset + batch.count} of {batch.total}"
            )
        if len(self._passes) == PASSES:
            self._passes.clear()
        new = FactorPass(self._net, self, batch.count, batch.offset)
        self._passes[batch.count, batch.offset] = new
        return new


class FactorPass(Pass):
    """The pass of one piece of the batch: it writes factors, from sample `offset` on, and computes no gradient.

    The forward pass goes through the factors, too: with the column of ones, weights and biases are one matrix.
    """

    def __init__(self, net: MLP, factors: Factors, count: int, offset: int) -> None:
        super().__init__(net, count, PassMemory(count))
        mine = slice(offset, offset + count)
        own_h, own_d = [h[mine] for h in factors.h], [d[mine] for d in factors.d]
        h, d, last = [h[:count] for h in self.h], [d[:count] for d in self.d], len(own_d) - 1
        self.own_inputs = own_h[0][:, :-1]
        self.way_up = [
            (
                own_h[i], net.x[net.layers[i]].reshape(-1, net.sizes[i + 1]), self.a[i][:count], self.values[i],
                None if i == last else self.norms[i],
                None if i == last else (own_h[i + 1][:, :-1], h[i]),
            )
            for i in range(last + 1)
        ]  # fmt: skip
        self.own_last = own_d[last], d[last]
        self.way_down = [
            (
                d[i], net.weights[i].T, d[i - 1], self.norms[i - 1], self.d[i - 1], self.slopes[i - 1][:count],
                own_d[i - 1],
            )
            for i in reversed(range(1, last + 1))
        ]  # fmt: skip

    def forward(self, inputs: Array) -> Array:
        x = self.prepare(inputs)[: len(self.own_inputs)]
        np.copyto(self.own_inputs, x)
        for own_h, w, a, value, norm, above in self.way_up:
            np.matmul(own_h, w, a)  #                                      z = (h 1) (W, b)
            if value is not None:
                value(a)  #                                                 a = f(z)
            if norm is not None:
                norm.forward()
            if above is not None:
                np.copyto(*above)
        return x

    def gradient(self, inputs: Array, labels: Array, ready: Ready | None = None) -> float:
        self.forward(inputs)
        loss = self.loss(labels)
        self.slope(*self.sloped)
        if self.last is not None:
            d, slope = self.last
            np.multiply(d, slope, d)
        np.copyto(*self.own_last)
        for d, w, d_below, norm, all_below, slope, own_d in self.way_down:
            np.matmul(d, w, d_below)
            if norm is not None:
                norm.backward(all_below)
            np.multiply(d_below, slope, d_below)  #                         d = (d W^T) f'(z)
            np.copyto(own_d, d_below)
        return loss


class ProductGradient:
    """The gradient of one part of x, summed over all samples of the batch whose factors are available."""

    def __init__(self, net: MLP, factors: Factors, part: slice) -> None:
        self.part = part
        self._net, self._factors = net, factors
        self._sum = PassMemory(1).carver()((part.stop - part.start,), net.dtype)  # aligned: a fifth faster
        self._products: dict[int, list[tuple[Array, Array, Array]]] = {}

    def __call__(self) -> Array:
        """Return the sum, in memory of this rank that the caller may overwrite."""
        total = int(self._factors.total[0])
        products = self._products.get(total)
        if products is None:
            products = self._products[total] = self._prepare_products(total)
        for h, d, g in products:
            np.matmul(h, d, g)  #                                           dE/dW[rows] = h[:, rows]^T d
        return self._sum

    def _prepare_products(self, total: int) -> list[tuple[Array, Array, Array]]:
        """Prepare the products over `total` samples, layer by layer, each in parts of the fastest size."""
        # A single sample is multiplied together with the row of zeros.
        samples = slice(total) if total != 1 else slice(0, None, self._factors.batch)
        products = []
        for layer, h, d in zip(self._net.layers, self._factors.h, self._factors.d, strict=True):
            m = d.shape[1]
            start, stop = max(layer.start, self.part.start), min(layer.stop, self.part.stop)
            if start >= stop:
                continue
            g = self._sum[start - self.part.start : stop - self.part.start].reshape(-1, m)
            columns = h[samples, (start - layer.start) // m : (stop - layer.start) // m].T
            products += [(columns[rows], d[samples], g[rows]) for rows in small_parts(g.shape, max(total, 2))]
        return products


def _row_lengths(net: MLP) -> list[tuple[int, int]]:
    """Return the row lengths of each layer's h and d in elements, rounded up to whole cache lines."""
    line = ALIGNMENT // net.dtype.itemsize
    return [
        (math.ceil((n + 1) / line) * line, math.ceil(m / line) * line)
        for n, m in zip(net.sizes, net.sizes[1:], strict=False)
    ]
