"""A model's state as named arrays: what a file holds of it, and how it comes back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paceline.models import Array, Model

BUFFER = "buffer."


def state_of(model: Model) -> dict[str, Array]:
    """Copies of the parameters, as `x`, and of every buffer.

    >>> from paceline.models.mlp import MLP
    >>> list(state_of(MLP([2, 3, 1], standardise=True)))
    ['x', 'buffer.mean', 'buffer.std']
    """
    return {"x": np.array(model.x)} | {
        BUFFER + name: np.array(value) for name, value in model.buffers.items()
    }


def put_state(model: Model, state: Mapping[str, Array]) -> None:
    """Put what `state_of` gave into a model of the same shape."""
    model.x[...] = state["x"]
    for name, buffer in model.buffers.items():
        buffer[...] = state[BUFFER + name]
    model.place(model.x, model.g)  # parameters that are no views of x catch up
