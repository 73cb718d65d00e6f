"""MNIST: 70,000 grey images of handwritten digits, 28 x 28; all of them come with paceline.

The test set is the original one, of 10,000; the last `validation` images of the original training set are
kept for validation. Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits".
"""

from __future__ import annotations

from paceline.data._cache import load_shipped
from paceline.data._dataset import ArraySplit, Dataset
from paceline.errors import UsageError


def load(*, validation: int = 10_000) -> Dataset:
    """Load 50,000, 10,000 and 10,000 images to train, validate and test.

    `validation`: the number of images of the original training set, from its end, to validate with; 0 trains on all 60,000.

    >>> len(load(validation=0).train)
    60000
    """
    if not 0 <= validation < 60_000:
        raise UsageError(f"validation of mnist must be from 0 to 59999 images; got {validation}")
    inputs, labels = load_shipped("mnist")
    train, test = 60_000 - validation, 60_000
    return Dataset(
        name="mnist",
        shape=(28, 28),
        classes=10,
        train=ArraySplit(inputs[:train], labels[:train]),
        validation=ArraySplit(inputs[train:test], labels[train:test]),
        test=ArraySplit(inputs[test:], labels[test:]),
        class_names=tuple("0123456789"),
    )
