"""Forward and backward passes of a fully connected network, for one batch size, in memory allocated beforehand.

    up:    h_0 = inputs    z_i = h_{i-1} W_i + b_i    a_i = f(z_i)    h_i = a_i, or its normalisation
    down:  d_i = dE/dz_i   dE/dW_i = h_{i-1}^T d_i    dE/db_i = 1^T d_i    d_{i-1} = (d_i W_i^T) f'(z_{i-1})

In a small network, NumPy's overhead takes as long as the arithmetic. So every view is created once, every call has an
`out`, and the slopes of all layers are one call, as their activations are adjacent in memory. A row or a column is copied
to full size before it is combined with a matrix: broadcasting would copy it too, into memory that it allocates.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from paceline.models._model import Array, Ready

if TYPE_CHECKING:
    from paceline.models.mlp import MLP


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


class Memory:
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

    def __init__(self, net: MLP, count: int, memory: Memory) -> None:
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
        work = [
            all_slopes[: layer.size].reshape(layer.shape) for layer in a
        ]  # unused until the backward pass
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
