"""Activation functions, written in place, and their slopes from the value alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from paceline.models import Array


def sigmoid(z: Array, a: Array) -> None:
    """a = 1 / (1 + exp(-z)), through tanh, which cannot overflow."""
    np.multiply(z, 0.5, a)
    np.tanh(a, a)
    np.multiply(a, 0.5, a)
    np.add(a, 0.5, a)                                                                     # 1/2 + 1/2 tanh(z/2)


def sigmoid_slope(a: Array, slope: Array) -> None:
    np.multiply(a, a, slope)
    np.subtract(a, slope, slope)                                                          # a (1 - a)


def tanh(z: Array, a: Array) -> None:
    np.tanh(z, a)


def tanh_slope(a: Array, slope: Array) -> None:
    np.multiply(a, a, slope)
    np.subtract(1, slope, slope)                                                          # 1 - a^2


def relu(z: Array, a: Array) -> None:
    np.maximum(z, 0, a)


def relu_slope(a: Array, slope: Array) -> None:
    np.sign(a, slope)                                                                     # 0 where a = 0, else 1


class Activation(NamedTuple):
    value: Callable[[Array, Array], None]
    slope: Callable[[Array, Array], None]


ACTIVATIONS = {
    "sigmoid": Activation(sigmoid, sigmoid_slope),
    "tanh": Activation(tanh, tanh_slope),
    "relu": Activation(relu, relu_slope),
}
