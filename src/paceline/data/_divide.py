"""Cuts samples that come as one lot into train, validation and test: seeded, and each class evenly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data._dataset import Dataset, Split, Subset
from paceline.errors import UsageError

Array = NDArray[Any]


def divide(
    name: str,
    split: Split,
    labels: Array,
    *,
    classes: int,
    validation: float,
    test: float,
    seed: int,
    class_names: tuple[str, ...] = (),
) -> Dataset:
    """A data set of which `validation` and `test` are the given fractions, drawn at random; the rest trains."""
    train_part, validation_part, test_part = (
        Subset(split, places) for places in places_of(labels, classes, validation, test, seed)
    )
    return Dataset(
        name=name,
        shape=split.shape,
        classes=classes,
        train=train_part,
        validation=validation_part,
        test=test_part,
        label_shape=split.label_shape,
        class_names=class_names,
    )


def places_of(
    labels: Array, classes: int, validation: float, test: float, seed: int
) -> tuple[Array, Array, Array]:
    """Where the train, validation and test samples are, each in the order of the file.

    >>> train, validation, test = places_of(np.array([0, 0, 0, 0, 1, 1, 1, 1]), 2, 0.25, 0.25, seed=0)
    >>> len(train), len(validation), len(test)
    (4, 2, 2)
    """
    if not (validation >= 0 and test >= 0 and validation + test < 1):
        raise UsageError(
            f"validation and test are fractions whose sum is below 1; got validation={validation:g}, test={test:g}"
        )
    if seed < 0:
        raise UsageError(f"seed must be at least 0; got {seed}")
    order = np.random.default_rng(seed).permutation(len(labels))
    if classes:
        # Shuffled, then put in an order in which every stretch has the classes in their proportions.
        by_class = order[np.argsort(labels[order], kind="stable")]
        counts = np.bincount(labels[order], minlength=classes)
        position = np.concatenate([(np.arange(c) + 0.5) / c for c in counts if c])
        order = by_class[np.argsort(position, kind="stable")]
    first = round(len(order) * test)
    second = first + round(len(order) * validation)
    return np.sort(order[second:]), np.sort(order[first:second]), np.sort(order[:first])
