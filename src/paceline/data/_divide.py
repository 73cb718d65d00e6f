"""Makes a data set of samples that come in one, two or three parts: a missing part is cut from the first.

The cut is seeded, and takes each class evenly. Amounts below 1 are fractions, from 1 on numbers of samples.
"""

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
    labels: Array | None,
    *,
    classes: int,
    validation: float | Split = 0.1,
    test: float | Split = 0.1,
    seed: int = 0,
    class_names: tuple[str, ...] = (),
) -> Dataset:
    """A data set whose `validation` and `test` are given, or drawn at random from `split`; the rest trains.

    Without `labels` (reading them all would be slow) the draw does not look at the classes.
    """
    cut_validation = validation if isinstance(validation, int | float) else 0
    cut_test = test if isinstance(test, int | float) else 0
    train = split
    if cut_validation or cut_test:
        order = _order(len(split), labels if classes else None, seed)
        places = [np.sort(part) for part in cut(name, order, cut_validation, cut_test)]
        train, first, second = (Subset(split, part) for part in places)
    else:
        first = second = Subset(split, np.empty(0, np.intp))
    return Dataset(
        name=name,
        shape=split.shape,
        classes=classes,
        train=train,
        validation=first if isinstance(validation, int | float) else validation,
        test=second if isinstance(test, int | float) else test,
        label_shape=split.label_shape,
        class_names=class_names,
    )


def cut(name: str, order: Array, validation: float, test: float) -> tuple[Array, Array, Array]:
    """The train, validation and test parts of what lies in `order`; test is cut off its end, then validation.

    >>> [part.tolist() for part in cut("mine", np.arange(6), validation=2, test=0.2)]
    [[0, 1, 2], [3, 4], [5]]
    """
    total = len(order)
    amounts = [amount if 0 <= amount < total else total for amount in (validation, test)]  # nan is neither
    counts = [round(total * amount) if amount < 1 else round(amount) for amount in amounts]
    if not sum(counts) < total:
        raise UsageError(
            f"{name}: validation and test must leave samples to train; got validation={validation:g}, "
            f"test={test:g} of {total} samples (below 1: a fraction)"
        )
    stop = total - counts[1]
    start = stop - counts[0]
    return order[:start], order[start:stop], order[stop:]


def _order(samples: int, labels: Array | None, seed: int) -> Array:
    """All samples at random; with labels, so that every stretch has the classes in their proportions."""
    if seed < 0:
        raise UsageError(f"seed must be at least 0; got {seed}")
    order = np.random.default_rng(seed).permutation(samples)
    if labels is None:
        return order
    by_class = order[np.argsort(labels[order], kind="stable")]
    position = np.concatenate([(np.arange(count) + 0.5) / count for count in np.bincount(labels) if count])
    return by_class[np.argsort(position, kind="stable")]
