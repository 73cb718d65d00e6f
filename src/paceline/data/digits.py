"""Digits: 1,797 grey images of handwritten digits, 8 x 8, in 17 shades; a small substitute for MNIST.

The test part of UCI's "Optical recognition of handwritten digits", E. Alpaydin and C. Kaynak, 1998.
"""

from __future__ import annotations

from paceline.data._cache import load_shipped
from paceline.data._dataset import ArraySplit, Dataset, divide


def load(*, validation: float = 0.1, test: float = 0.1, seed: int = 0) -> Dataset:
    """Load the images: 80, 10 and 10 % to train, validate and test, each digit evenly, drawn from `seed`.

    `validation`: the samples to validate with, cut from the training samples: a fraction, or their number from 1 on.
    `test`: the samples to test with, cut off in the same way.
    `seed`: which random division into parts to use.

    >>> data = load()
    >>> len(data.train), len(data.validation), len(data.test), data.shape
    (1437, 180, 180, (8, 8))
    """
    inputs, labels = load_shipped("digits")
    return divide(
        "digits",
        ArraySplit(inputs, labels, scale=1 / 16),
        labels,
        classes=10,
        class_names=tuple("0123456789"),
        validation=validation,
        test=test,
        seed=seed,
    )
