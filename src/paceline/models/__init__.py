"""Models: two flat vectors, parameters and gradient, of which every layer's arrays are views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from paceline.data import Batch

Array = NDArray[Any]


@runtime_checkable
class Model(Protocol):
    """What a strategy needs of a network.

    `g` is the gradient of the last batch as a SUM over its samples: pieces of a batch add up to the whole, however
    unevenly they were cut. The mean is `g / count`. A model may have a `default_rate`: the learning rate where the user
    gives none.

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
    """State that no gradient changes: BatchNorm's statistics, the input's mean. Views: writing them changes the model."""

    def place(self, x: Array, g: Array) -> None:
        """Move parameters and gradient into memory given from outside (a shared window, say), keeping x's values."""
        ...

    def gradient(self, batch: Batch) -> float:
        """Fill `g` for this batch; return the loss summed over its samples."""
        ...

    def predict(self, inputs: Array) -> Array:
        """Scores for each sample, one row each; the predicted class is the largest."""
        ...

    def evaluate(self, inputs: Array, labels: Array) -> tuple[float, int]:
        """The loss summed over the samples, and how many were classified right (0 for regression)."""
        ...


class PartGradient(Protocol):
    """The gradient of one part of the parameters, summed over all samples of a batch, from their factors."""

    @property
    def part(self) -> slice:
        """The part of x; may be empty."""
        ...

    def __call__(self) -> Array:
        """The sum, in private memory; the caller may overwrite it."""
        ...


@runtime_checkable
class FactoredModel(Model, Protocol):
    """A model whose gradient is a sum of products of short factors, for each sample, that ranks can exchange.

    Every rank calls `share_factors` with the same memory; then `gradient(batch)`, for its piece of a batch, leaves the
    piece's factors there, and `g` as it is. When all ranks have done so, each can compute the summed gradient of a part.
    """

    def factor_bytes(self, batch: int) -> int:
        """The memory that the factors of `batch` samples take."""
        ...

    def share_factors(self, memory: Array, batch: int, rank: int, ranks: int) -> PartGradient:
        """Leave factors in `memory` until the next `place`; return the sum for the rank-th of `ranks` parts of x.

        `memory`: `factor_bytes(batch)` bytes (uint8). The parts are slices of x, in order, of about the same length.
        No batch may have more than `batch` samples.
        """
        ...
