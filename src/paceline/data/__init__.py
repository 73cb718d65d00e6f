"""Data sets: loading by name or path, splits, and the seeded batches that every number of ranks shares.

| module | contents |
|---|---|
| `_load` | `load`: a `Dataset` from a name, a path, arrays or a PyTorch data set |
| `_dataset` | `Dataset`, its splits, and how missing splits are drawn |
| `_batches` | `Batches`: the same global batch at step t for any number of ranks; `Shares`: how ranks divide an epoch |
| `_samples` | checks of samples and labels; files that are checked once and then memory-mapped |
| `_cache` | arrays that are built once and shared by all processes of a node; the data that come with paceline |

Every other module is a data set or a file format of that name.
"""

from __future__ import annotations

from paceline.data._batches import Batch, Batches, Shares, check_own, partition, piece
from paceline.data._cache import cache_folders
from paceline.data._dataset import (
    IGNORED,
    ArraySplit,
    Dataset,
    Field,
    Inputs,
    Keeps,
    Several,
    Split,
    Subset,
    buffers,
    chunks,
    empty_inputs,
    fields_of,
    has_several,
    labels_at,
    read_apart,
)
from paceline.data._load import load, load_labels, names_code
from paceline.data._samples import Labels, check_inputs, check_labels

__all__ = [
    "IGNORED",
    "ArraySplit",
    "Batch",
    "Batches",
    "Dataset",
    "Field",
    "Inputs",
    "Keeps",
    "Labels",
    "Several",
    "Shares",
    "Split",
    "Subset",
    "buffers",
    "cache_folders",
    "check_inputs",
    "check_labels",
    "check_own",
    "chunks",
    "empty_inputs",
    "fields_of",
    "has_several",
    "labels_at",
    "load",
    "load_labels",
    "names_code",
    "partition",
    "piece",
    "read_apart",
]
