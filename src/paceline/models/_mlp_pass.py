"""Forward and backward through a fully connected network, for one batch size, in memory laid out beforehand.

    up:    h_0 = inputs    z_i = h_{i-1} W_i + b_i    a_i = f(z_i)    h_i = a_i, or its normalisation
    down:  d_i = dE/dz_i   dE/dW_i = h_{i-1}^T d_i    dE/db_i = 1^T d_i    d_{i-1} = (d_i W_i^T) f'(z_{i-1})

A step of a small network is as much NumPy's overhead as arithmetic, so every view is made once, every call
has an `out`, and the slopes of all layers are one call: their activations lie side by side. A row or a column
is copied to full size before it meets a matrix: broadcasting would copy it too, into memory it allocates.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.models import Array, Ready
from paceline.models._activations import ACTIVATIONS
from paceline.models._layer_norm import LayerNorm
from paceline.models._losses import LOSSES, Carve

if TYPE_CHECKING:
    from paceline.models.mlp import MLP

ALIGNMENT = 64
SMALL_PRODUCT = 1_000_000
"""Multiply-adds up to which OpenBLAS leaves its operands unpacked: 1.4 times as fast for few rows."""

FEW_CLASSES = 256
"""Classes up to which one-hot targets are rows of an identity matrix, the fastest way to make them."""


class Memory:
    """The arrays of one network's passes, for batches of up to `rows` samples.

    The pass of `rows` samples, which must be the first, brings them into being; the passes of smaller
    batches, which ask for the same arrays in the same order, get the beginnings of the same ones.
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

    A single sample is computed as two, the second of gradient 0: NumPy has no fast path for the product of a
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
        work = [all_slopes[: layer.size].reshape(layer.shape) for layer in a]  # free until the way down
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
        """The inputs as layer 0 sees them; the output is in `self.output`."""
        h = x = self.prepared(inputs)
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

    def prepared(self, inputs: Array) -> Array:
        """The inputs as layer 0 sees them: a row a sample, standardised if that is asked for."""
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
        """The summed loss of the output that `forward` left, its gradient in the last layer's d."""
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
    """The parts in which a weight matrix's gradient is computed: small enough for the unpacked product."""
    work = math.prod(shape) * rows
    parts = math.ceil(work / SMALL_PRODUCT) if rows <= 32 and work <= 4 * SMALL_PRODUCT else 1
    cuts = [shape[0] * k // parts for k in range(parts + 1)]
    return [slice(start, end) for start, end in itertools.pairwise(cuts)]
