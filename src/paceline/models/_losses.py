"""Losses summed over the samples of a batch, with their gradient at the network's output.

Each is a function of the output `y`, the targets `t` and `d`, which receives the gradient; `wide` is float64 scratch
of the same size, because a sum of many small terms is the one place where float32 is too short.
"""

from __future__ import annotations

import numpy as np

from paceline.models import Array


def squared_error(y: Array, t: Array, d: Array, wide: Array) -> float:
    """1/2 sum (y - t)^2, and d = y - t.

    >>> y, t, d = np.array([[1.0, 3.0]]), np.array([[0.0, 1.0]]), np.empty((1, 2))
    >>> squared_error(y, t, d, np.empty(2)), d
    (2.5, array([[1., 2.]]))
    """
    np.subtract(y, t, d)
    np.copyto(wide, d.reshape(-1))
    return 0.5 * float(wide.dot(wide))


def cross_entropy(z: Array, t: Array, d: Array, wide: Array) -> float:
    """-sum t log softmax(z), and d = softmax(z) - t.

    >>> z, t, d = np.zeros((1, 4)), np.eye(4)[:1], np.empty((1, 4))
    >>> round(cross_entropy(z, t, d, np.empty(4)), 6), d
    (1.386294, array([[-0.75,  0.25,  0.25,  0.25]]))
    """
    softmax(z, d)
    rows = t.shape[0]
    likelihood = wide[:rows]
    np.einsum("ij,ij->i", d, t, out=likelihood, casting="same_kind")
    np.maximum(likelihood, np.finfo(d.dtype).tiny, likelihood)
    np.log(likelihood, likelihood)
    np.subtract(d, t, d)
    return -float(likelihood.sum())


def softmax(z: Array, p: Array) -> None:
    """p = exp(z) / sum exp(z) of each row, shifted by the largest so that nothing overflows."""
    np.subtract(z, z.max(axis=1, keepdims=True), p)
    np.exp(p, p)
    np.divide(p, p.sum(axis=1, keepdims=True), p)
