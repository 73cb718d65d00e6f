"""The global batch at step t is the same set of samples whatever the number of ranks; rank r takes a slice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(slots=True)
class Batch:
    """One rank's piece of one global batch. The arrays are reused: they are good until the next batch is made."""

    inputs: Array
    """Samples as floats, (count, *shape)."""
    labels: Array
    """int64 classes, (count,), or real targets."""
    count: int
    """Samples in this piece; may be 0."""
    total: int
    """Samples in the global batch."""
    offset: int
    """Where this piece starts in the global batch."""
    step: int
    """Number of the global batch in the run, from 0."""
    epoch: int
    """Number of the epoch, from 0."""


class Batches:
    pass
