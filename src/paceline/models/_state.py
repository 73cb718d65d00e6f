"""A model's state as named arrays: what a file holds of it, and how it comes back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paceline.models import Array, Model

BUFFER = "buffer."
FLOATING: dict[str, type[np.float64 | np.complex128]] = {"f": np.float64, "c": np.complex128}


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


def flat_buffers(model: Model) -> Array:
    """A copy of all real and complex numbers in the buffers (BatchNorm's statistics), as one float64 vector.

    Integers (counters, say) are left out: a mean of them says nothing.

    >>> from paceline.models.mlp import MLP
    >>> net = MLP([2, 3, 1], standardise=True)
    >>> flat_buffers(net)
    array([0., 0., 1., 1.])
    >>> put_flat_buffers(net, np.array([0.5, 1.5, 2.0, 4.0]))
    >>> net.buffers["std"]
    array([2., 4.], dtype=float32)
    """
    parts = [np.empty(0)]
    for buffer in model.buffers.values():
        if buffer.dtype.kind in FLOATING:
            parts.append(buffer.astype(FLOATING[buffer.dtype.kind]).ravel().view(np.float64))
    return np.concatenate(parts)


def put_flat_buffers(model: Model, values: Array) -> None:
    """Put what `flat_buffers` gave into the buffers of a model of the same shape."""
    floating = [buffer for buffer in model.buffers.values() if buffer.dtype.kind in FLOATING]
    sizes = [buffer.size * (2 if buffer.dtype.kind == "c" else 1) for buffer in floating]
    if values.shape != (sum(sizes),):
        raise ValueError(f"the model's buffers hold {sum(sizes)} numbers; got the shape {values.shape}")
    start = 0
    for buffer, size in zip(floating, sizes, strict=True):
        part = np.ascontiguousarray(values[start : start + size], np.float64)
        buffer[...] = part.view(FLOATING[buffer.dtype.kind]).reshape(buffer.shape)
        start += size
