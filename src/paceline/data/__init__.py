"""Data sets: loading by name or path, splits, and the seeded batches that every number of ranks shares."""

from __future__ import annotations

from paceline.data._batches import Batch, Batches
from paceline.data._dataset import Dataset, Split

__all__ = ["Batch", "Batches", "Dataset", "Split"]
