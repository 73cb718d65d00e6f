"""Normalisation of each sample's activations over the units of a layer (Ba, Kiros and Hinton, 2016).

    h = (a - mean a) / sqrt(var a + epsilon)

A sample's values depend on no other sample, so the pieces of a batch add up to the whole however it is cut.
"""

from __future__ import annotations

import numpy as np

from paceline.models import Array
from paceline.models._losses import Carve

EPSILON = 1e-5


class LayerNorm:
    """From `a` (rows, units) into `h`, and the gradient back.

    >>> a, h = np.array([[1.0, 3.0], [10.0, 30.0]]), np.empty((2, 2))
    >>> LayerNorm(a, h, np.empty).forward()
    >>> h.round(3)
    array([[-1.,  1.],
           [-1.,  1.]])
    """

    def __init__(self, a: Array, h: Array, carve: Carve) -> None:
        self.a, self.h = a, h
        self.row, self.scale = carve((len(a), 1), a.dtype), carve((len(a), 1), a.dtype)
        self.work = carve(a.shape, a.dtype)
        self.average = np.full((a.shape[1], 1), 1 / a.shape[1], a.dtype)
        self.epsilon = np.array(EPSILON, a.dtype)

    def forward(self) -> None:
        h, row, scale = self.h, self.row, self.scale
        np.matmul(self.a, self.average, row)
        np.subtract(self.a, row, h)
        np.multiply(h, h, self.work)
        np.matmul(self.work, self.average, scale)
        np.add(scale, self.epsilon, scale)
        np.sqrt(scale, scale)
        np.reciprocal(scale, scale)
        np.multiply(h, scale, h)  #                                         h = (a - mean a) / sigma

    def backward(self, d: Array) -> None:
        """d = dE/dh becomes dE/da."""
        row, work = self.row, self.work
        np.multiply(d, self.h, work)
        np.matmul(work, self.average, row)
        np.multiply(self.h, row, work)
        np.matmul(d, self.average, row)
        np.subtract(d, row, d)
        np.subtract(d, work, d)
        np.multiply(d, self.scale, d)  #                                    (d - mean d - h mean(d h)) / sigma
