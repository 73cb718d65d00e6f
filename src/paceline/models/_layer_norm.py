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
        """d = dE/dh becomes dE/da."""
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
