"""The data that come with paceline, and the one place that reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data._cache import New, cached

FOLDER = Path(__file__).parent / "files"

# Digests of the arrays' bytes, inputs first. They identify the cache entries; a test compares the files with them.
SHA256 = {
    "mnist": "c2069063c1105f2bf96266aef1ff68c6e13bdda7a54e37bf19c16f1db24efc83",
    "digits": "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826",
    "iris": "b6ae2f075937fb96b4d06f56b6b12a23dcf0db8d27f41824f0fa7ca6e8559b4c",
}


def shipped(name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the inputs and labels of a data set that comes with paceline, memory-mapped.

    >>> inputs, labels = shipped("iris")
    >>> inputs.shape, labels.shape
    ((150, 4), (150,))
    """

    def build(new: New) -> None:
        with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
            inputs, labels = file["inputs"], file["labels"]
        new("inputs", inputs.shape, inputs.dtype)[...] = inputs
        new("labels", labels.shape, np.int64)[...] = labels

    arrays = cached(name, SHA256[name], build)
    return arrays["inputs"], arrays["labels"]
