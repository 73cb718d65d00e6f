"""The gradient of a small batch as factors, which ranks that share memory exchange instead of gradients.

A layer's gradient is a sum of outer products, one per sample, so a batch of B samples needs B (n + m) numbers instead of
n m:

    each rank, for its samples:       h_{i-1} and d_i of every layer into the shared rows of the whole batch
    each rank, for its rows of W_i:   dE/dW_i[rows] = h_{i-1}[:, rows]^T d_i, over all samples

h has a column of ones at its end, so that the biases, the last row of a layer's part of x, need no special case. Every
row starts at a cache line, so that two ranks never write to the same one.

Xie et al., "Distributed machine learning via sufficient factor broadcasting", 2015.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np

from paceline.models._model import Array, Ready
from paceline.models._passes import ALIGNMENT, Memory, Pass, small_parts

if TYPE_CHECKING:
    from paceline.data import Batch
    from paceline.models.mlp import MLP

PASSES = 32


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
        if (
            batch.offset == 0 and self.total[0] != batch.total
        ):  # written only if it changed, so that it stays in all caches
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
        super().__init__(net, count, Memory(count))
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


class PartGradient:
    """The gradient of one part of x, summed over all samples of the batch whose factors are available."""

    def __init__(self, net: MLP, factors: Factors, part: slice) -> None:
        self.part = part
        self._net, self._factors = net, factors
        self._sum = Memory(1).carver()((part.stop - part.start,), net.dtype)  # aligned: a fifth faster
        self._products: dict[int, list[tuple[Array, Array, Array]]] = {}

    def __call__(self) -> Array:
        """Return the sum, in memory of this rank that the caller may overwrite."""
        total = int(self._factors.total[0])
        products = self._products.get(total)
        if products is None:
            products = self._products[total] = self._over(total)
        for h, d, g in products:
            np.matmul(h, d, g)  #                                           dE/dW[rows] = h[:, rows]^T d
        return self._sum

    def _over(self, total: int) -> list[tuple[Array, Array, Array]]:
        """Prepare the products over `total` samples, layer by layer, each in parts of the fastest size."""
        samples = (
            slice(total) if total != 1 else slice(0, None, self._factors.batch)
        )  # the sample, and the row of zeros
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
