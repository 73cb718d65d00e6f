"""The gradient of an L2 penalty, added to the gradient."""

from __future__ import annotations

import numpy as np

from paceline.updates import Array


def scale_and_decay(g: Array, scale: float, x: Array, weight_decay: float) -> None:
    """g becomes scale g + weight_decay x, with no room but its own.

    >>> g = np.array([2.0])
    >>> scale_and_decay(g, 0.5, np.array([4.0]), 0.25)
    >>> g
    array([2.])
    """
    if weight_decay == 0:
        np.multiply(g, scale, g)
        return
    np.multiply(g, scale / weight_decay, g)
    np.add(g, x, g)
    np.multiply(g, weight_decay, g)
