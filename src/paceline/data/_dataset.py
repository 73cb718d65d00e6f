"""A data set: three splits of samples with labels, kept as they are stored until a batch is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

Array = NDArray[Any]


class Split(Protocol):
    """Samples that can be gathered by index."""

    def __len__(self) -> int: ...

    def take(self, indices: Array, inputs: Array, labels: Array) -> None:
        """Write the samples at `indices` into `inputs` (as floats, scaled) and their labels into `labels`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Train, validation and test samples of one shape; `classes` is 0 when the labels are real numbers."""

    name: str
    shape: tuple[int, ...]
    classes: int
    train: Split
    validation: Split
    test: Split
    label_shape: tuple[int, ...] = ()
