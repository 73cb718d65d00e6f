"""Samples and labels of a user's file: checked once, kept in the cache, memory-mapped from then on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data._cache import New, cached
from paceline.data._checks import Parts, check_parts
from paceline.data._dataset import ArraySplit, Dataset, Split
from paceline.data._divide import divide

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Stored:
    """The parts that a file has, with the number and names of its classes."""

    parts: Parts
    classes: int
    class_names: tuple[str, ...]

    def dataset(
        self, name: str, *, validation: float, test: float, seed: int, scale: float | None = None
    ) -> Dataset:
        """A data set; a part that the file does not have is cut from train."""
        splits: dict[str, Split] = {part: ArraySplit(*pair, scale=scale) for part, pair in self.parts.items()}
        return divide(
            name,
            splits["train"],
            self.parts["train"][1],
            classes=self.classes,
            validation=splits.get("validation", validation),
            test=splits.get("test", test),
            seed=seed,
            class_names=self.class_names,
        )


def read_stored(entry: str, fingerprint: str, read: Callable[[], tuple[str, Parts]]) -> Stored:
    """What is in the cache; `read` gives a name for errors and the parts, when they are not there yet."""

    def build(new: New) -> None:
        what, parts = read()
        parts, classes, names = check_parts(what, parts)
        for part, (inputs, labels) in parts.items():
            if len(inputs):
                fill(new, part, inputs, labels)
        new("classes", (1,), np.int64)[:] = classes
        if names:
            new("class_names", (len(names),), np.array(names).dtype)[:] = names

    arrays = cached(entry, fingerprint, build)
    return Stored(
        parts={
            part: (arrays[f"{part}_inputs"], arrays[f"{part}_labels"])
            for part in ("train", "validation", "test")
            if f"{part}_inputs" in arrays
        },
        classes=int(arrays["classes"][0]),
        class_names=tuple(map(str, arrays.get("class_names", ()))),
    )


def fill(new: New, part: str, inputs: Array, labels: Array) -> None:
    """Write one part in the types that batches are made from: bytes or floats, int64 or real labels."""
    kept = inputs.dtype == np.uint8 or inputs.dtype.kind == "f"
    new(f"{part}_inputs", inputs.shape, inputs.dtype.newbyteorder("=") if kept else np.float32)[...] = inputs
    real = labels.dtype.kind == "f"
    new(f"{part}_labels", labels.shape, labels.dtype.newbyteorder("=") if real else np.int64)[...] = labels
