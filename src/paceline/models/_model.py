"""What every model offers, and its state as named arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from paceline.data import Batch

Array = NDArray[Any]
Ready = Callable[[int], None]
"""Called with the number of a layer, an index into `layers`, when its gradient is final."""


@runtime_checkable
class Model(Protocol):
    """What a strategy needs of a network.

    `g` is the gradient of the last batch as a SUM over its samples, so that pieces of a batch add up to the whole, however
    unevenly they were cut. The mean is `g / count`. A model may have a `default_rate`: the learning rate to use when the
    user gives none.

    >>> from paceline.data import Batches, load
    >>> from paceline.models.mlp import build
    >>> iris = load("iris")
    >>> model = build(iris, 8)
    >>> isinstance(model, Model), model.x.size, model.layers
    (True, 67, [slice(0, 40, None), slice(40, 67, None)])
    >>> batch = Batches(iris.train, batch=10).at(epoch=0, step=0)
    >>> before = model.gradient(batch)                    # the loss, summed; model.g is its gradient
    >>> model.x -= 0.1 * model.g / batch.count
    >>> model.gradient(batch) < before
    True
    """

    x: Array
    """The parameters, flat."""
    g: Array
    """The gradient of the last batch's summed loss, flat."""
    layers: Sequence[slice]
    """Each layer's part of `x` and `g`."""
    buffers: dict[str, Array]
    """State without a gradient, such as BatchNorm's statistics. Views: writing to them changes the model."""

    def place(self, x: Array, g: Array) -> None:
        """Move parameters and gradient into memory given from outside (a shared window, say), keeping x's values."""
        ...

    def gradient(self, batch: Batch, ready: Ready | None = None) -> float:
        """Fill `g` for this batch; return the loss summed over its samples.

        `ready(i)` is called when `g[layers[i]]` is final: it is complete and does not change before the next call of
        `gradient`, so that it can be sent during the backward pass. It is called once for every layer before `gradient`
        returns, in any order, on the caller's thread. `x` must not change until then. A model that knows no layer's
        gradient before the end may leave out `ready`: see `layer_by_layer`.
        """
        ...

    def predict(self, inputs: Array) -> Array:
        """Return the scores of each sample, one row each; the largest is the predicted class."""
        ...

    def evaluate(self, inputs: Array, labels: Array) -> tuple[float, int]:
        """Return the loss summed over the samples, and how many were classified correctly (0 for regression)."""
        ...


def layer_by_layer(model: Model) -> Callable[[Batch, Ready], float]:
    """Return `gradient(batch, ready)` for any model, even if its own `gradient` does not take `ready`.

    Layers that the model has not reported are ready when its gradient is. The gradient of an empty batch is 0.

    >>> import numpy as np
    >>> from paceline.models.mlp import MLP
    >>> net, done = MLP([2, 3, 1], regression=True, dtype=np.float64), []
    >>> loss = layer_by_layer(net)(Batch(np.ones((4, 2)), np.zeros(4), 4, 4, 0, 0, 0), done.append)
    >>> done
    [1, 0]
    """
    takes_ready = _takes_ready(model.gradient)

    def gradient(batch: Batch, ready: Ready) -> float:
        waiting = set(range(len(model.layers)))

        def once(layer: int) -> None:
            if layer not in waiting:
                raise ValueError(
                    f"each of the {len(model.layers)} layers must be ready once per pass; "
                    f"{type(model).__name__} reported {layer}, still expected are {sorted(waiting)}"
                )
            waiting.remove(layer)
            ready(layer)

        loss = 0.0
        if not batch.count:
            model.g.fill(0)
        elif takes_ready:
            loss = model.gradient(batch, ready=once)
        else:
            loss = model.gradient(batch)
        for layer in sorted(waiting):
            ready(layer)
        return loss

    return gradient


def _takes_ready(gradient: Callable[..., Any] | None) -> bool:
    """Return True if a function takes `ready`, or passes all arguments on to one that does."""
    while gradient is not None:
        try:
            takes = inspect.signature(gradient, follow_wrapped=False).parameters
        except (TypeError, ValueError):  # it is not written in Python
            return False
        if "ready" in takes:
            return takes["ready"].kind is not inspect.Parameter.POSITIONAL_ONLY
        if all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in takes.values()):
            return False
        gradient = getattr(gradient, "__wrapped__", None)
    return False


class PartGradient(Protocol):
    """The gradient of one part of the parameters, summed over all samples of a batch, from their factors."""

    @property
    def part(self) -> slice:
        """Return the part of x; may be empty."""
        ...

    def __call__(self) -> Array:
        """Return the sum, in private memory that the caller may overwrite."""
        ...


@runtime_checkable
class FactoredModel(Model, Protocol):
    """A model whose gradient is a sum of products of short factors, which ranks can exchange instead of the gradient.

    Every rank calls `share_factors` with the same memory. Then `gradient(batch)` writes the factors of the rank's piece of
    a batch there, and leaves `g` alone. When all ranks have done so, each can compute the summed gradient of a part.
    """

    def factor_bytes(self, batch: int) -> int:
        """Return the bytes that the factors of `batch` samples take."""
        ...

    def share_factors(self, memory: Array, batch: int, rank: int, ranks: int) -> PartGradient:
        """Write factors to `memory` until the next `place`; return the gradient of the rank-th of `ranks` parts of x.

        `memory`: `factor_bytes(batch)` bytes (uint8). The parts are slices of x, in order, of about the same length.
        No batch may have more than `batch` samples.
        """
        ...


# The state of a model as named arrays, as files hold it.

BUFFER = "buffer."
FLOATING: dict[str, type[np.float64 | np.complex128]] = {"f": np.float64, "c": np.complex128}


def state_of(model: Model) -> dict[str, Array]:
    """Return copies of the parameters, as `x`, and of every buffer.

    >>> from paceline.models.mlp import MLP
    >>> list(state_of(MLP([2, 3, 1], standardise=True)))
    ['x', 'buffer.mean', 'buffer.std']
    """
    return {"x": np.array(model.x)} | {
        BUFFER + name: np.array(value) for name, value in model.buffers.items()
    }


def put_state(model: Model, state: Mapping[str, Array]) -> None:
    """Put what `state_of` returned into a model of the same shape."""
    model.x[...] = state["x"]
    for name, buffer in model.buffers.items():
        buffer[...] = state[BUFFER + name]
    model.place(model.x, model.g)  # parameters that are not views of x are updated


def flat_buffers(model: Model) -> Array:
    """Return a copy of all real and complex numbers in the buffers (BatchNorm's statistics) as one float64 vector.

    Integers, such as counters, are left out: their mean has no meaning.

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
    """Put what `flat_buffers` returned into the buffers of a model of the same shape."""
    floating = [buffer for buffer in model.buffers.values() if buffer.dtype.kind in FLOATING]
    sizes = [buffer.size * (2 if buffer.dtype.kind == "c" else 1) for buffer in floating]
    if values.shape != (sum(sizes),):
        raise ValueError(f"the model's buffers hold {sum(sizes)} numbers; got the shape {values.shape}")
    start = 0
    for buffer, size in zip(floating, sizes, strict=True):
        part = np.ascontiguousarray(values[start : start + size], np.float64)
        buffer[...] = part.view(FLOATING[buffer.dtype.kind]).reshape(buffer.shape)
        start += size
