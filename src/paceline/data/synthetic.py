"""Synthetic data: clouds of points around one centre per class, or with classes=0 a noisy linear function.

input = centre_c + noise N(0, 1),  centre_c ~ N(0, 1);    target = input . w / sqrt(features) + noise N(0, 1)
"""

from __future__ import annotations

import math

import numpy as np

from paceline.data._cache import New, load_or_build
from paceline.data._dataset import ArraySplit, Dataset, divide
from paceline.errors import UsageError
from paceline.text import amount

# With more noise, some values would not fit into float32.
LARGEST_NOISE = 1e30
LARGEST_FILE = 10**12


def load(
    *,
    samples: int = 10_000,
    features: str = "20",
    classes: int = 10,
    noise: float = 1.0,
    seed: int = 0,
    validation: float = 0.1,
    test: float = 0.1,
) -> Dataset:
    """Draw samples from a seed.

    `samples`: the number of samples.
    `features`: the number of values of a sample, or its shape, such as 28x28.
    `classes`: the number of classes; 0: the labels are numbers.
    `noise`: the standard deviation of the samples around the centre of their class, or of the labels that are numbers.
    `seed`: which samples are drawn, and how they are divided.
    `validation`: the samples to validate with, cut from the training samples: a fraction, or their number from 1 on.
    `test`: the samples to test with, cut off in the same way.

    >>> data = load(samples=100, features="1x8x8", classes=2)
    >>> data.shape, data.classes, len(data.train), len(data.validation), len(data.test)
    ((1, 8, 8), 2, 80, 10, 10)
    """
    shape = _shape(str(features))
    if samples < max(classes, 1) or classes < 0 or not 0 <= noise <= LARGEST_NOISE or seed < 0:
        raise UsageError(
            f"synthetic needs samples >= classes >= 0, noise from 0 to {LARGEST_NOISE:g} and seed >= 0; "
            f"got samples={samples}, classes={classes}, noise={noise:g}, seed={seed}"
        )
    if (need := 4 * samples * math.prod(shape)) > LARGEST_FILE:
        raise UsageError(
            f"synthetic: {samples} samples of {features} features need {amount(need)}; "
            f"at most {amount(LARGEST_FILE)} are drawn"
        )

    def build(new: New) -> None:
        generator = np.random.default_rng(seed)
        inputs = new("inputs", (samples, *shape), np.float32).reshape(samples, -1)
        labels = new("labels", (samples,), np.int64 if classes else np.float32)
        generator.standard_normal(out=inputs, dtype=np.float32)
        if classes:
            centres = generator.standard_normal((classes, inputs.shape[1]), np.float32)
            labels[:] = generator.permutation(np.arange(samples) % classes)
            for number in range(classes):
                mine = labels == number
                inputs[mine] = centres[number] + np.float32(noise) * inputs[mine]
        else:
            weights = generator.standard_normal(inputs.shape[1], np.float32)
            labels[:] = inputs @ weights / math.sqrt(inputs.shape[1])
            labels += np.float32(noise) * generator.standard_normal(samples, np.float32)

    arrays = load_or_build("synthetic", f"{samples} {shape} {classes} {noise} {seed}", build)
    return divide(
        "synthetic",
        ArraySplit(arrays["inputs"], arrays["labels"]),
        arrays["labels"],
        classes=classes,
        validation=validation,
        test=test,
        seed=seed,
    )


def _shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(word) for word in text.split("x"))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise UsageError(f"features of synthetic must be a number or a shape such as 28x28; got {text!r}")
    return shape
