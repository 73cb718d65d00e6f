"""Losses, summed over the samples of a batch, and their gradient at the network's output.

Terms are added in float64: a sum of many small numbers is the one place of a step where float32 is too short.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from paceline.models import Array

Carve = Callable[[tuple[int, ...], np.dtype[Any]], Array]
"""Gives memory of a shape and dtype, uninitialised."""
WIDE = np.dtype(np.float64)


class Loss(Protocol):
    """One batch's loss: bound to the output `y`, the targets `t` and the gradient `d` when it is made."""

    def __call__(self) -> float:
        """The loss of y against t, its gradient with respect to y in d."""
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
    """Each row of y becomes exp(y) / sum exp(y)."""
    np.subtract(y, y.max(axis=1, keepdims=True), y)
    np.exp(y, y)
    np.divide(y, y.sum(axis=1, keepdims=True), y)
