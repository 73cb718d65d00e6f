"""Data sets: loading by name or path, splits, and the seeded batches that every number of ranks shares."""

from __future__ import annotations

from paceline.data._batches import Batch, Batches, partition, piece
from paceline.data._dataset import ArraySplit, Dataset, Split, Subset, chunks
from paceline.data._load import load

__all__ = [
    "ArraySplit",
    "Batch",
    "Batches",
    "Dataset",
    "Split",
    "Subset",
    "chunks",
    "load",
    "partition",
    "piece",
]
