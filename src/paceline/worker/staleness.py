"""The ages of gradients, counted without keeping them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Staleness:
    """Counts of the gradients that were 0, 1, 2 … updates old when they were applied.

    >>> ages = Staleness()
    >>> ages.add(np.array([0, 1, 1, 4]))
    >>> ages.summary()
    {'mean': 1.5, 'median': 1.0, 'largest': 4, 'histogram': [1, 2, 0, 0, 1]}
    """

    def __init__(self, counts: Array | None = None) -> None:
        self.counts: Array = np.zeros(0, np.int64) if counts is None else counts

    def add(self, tau: Array) -> None:
        """Count gradients of these ages."""
        self.add_counts(np.bincount(tau.astype(np.int64)))

    def add_counts(self, counts: Array) -> None:
        """Add the counts of another rank."""
        if len(counts) > len(self.counts):
            self.counts, counts = counts.copy(), self.counts
        self.counts[: len(counts)] += counts

    @property
    def total(self) -> int:
        """The number of gradients."""
        return int(self.counts.sum())

    @property
    def mean(self) -> float:
        """The mean age."""
        return float(self.counts @ np.arange(len(self.counts))) / (self.total or 1)

    @property
    def largest(self) -> int:
        """The largest age."""
        return len(self.counts) - 1 if len(self.counts) else 0

    def summary(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return {
            "mean": self.mean,
            "median": self._median(),
            "largest": self.largest,
            "histogram": self.counts.tolist(),
        }

    def _median(self) -> float:
        if not self.total:
            return 0.0
        upto = np.cumsum(self.counts)
        low, high = (
            int(np.searchsorted(upto, place, side="right"))
            for place in ((self.total - 1) // 2, self.total // 2)
        )
        return (low + high) / 2
