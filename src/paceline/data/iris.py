"""Iris: 150 flowers of 3 species, 4 measurements each in cm; the rows of R. A. Fisher's paper of 1936.

(UCI's copy, which most programs read, has errors in rows 35 and 38.)
"""

from __future__ import annotations

from paceline.data._cache import load_shipped
from paceline.data._dataset import ArraySplit, Dataset, divide


def load(*, validation: float = 0.1, test: float = 0.1, seed: int = 0) -> Dataset:
    """Load 120, 15 and 15 flowers to train, validate and test, each species evenly, drawn from `seed`.

    `validation`: the samples to validate with, cut from the training samples: a fraction, or their number from 1 on.
    `test`: the samples to test with, cut off in the same way.
    `seed`: which random division into parts to use.

    >>> data = load(test=0.2, validation=0)
    >>> len(data.train), len(data.test)
    (120, 30)
    """
    inputs, labels = load_shipped("iris")
    return divide(
        "iris",
        ArraySplit(inputs, labels),
        labels,
        classes=3,
        class_names=("setosa", "versicolor", "virginica"),
        validation=validation,
        test=test,
        seed=seed,
    )
