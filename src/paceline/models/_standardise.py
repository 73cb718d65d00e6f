"""The mean and standard deviation of every input over the training samples, read once, a chunk at a time."""

from __future__ import annotations

import math

import numpy as np

from paceline.data import Dataset, chunks
from paceline.models import Array

CHUNK_VALUES = 1 << 20


def mean_and_std(data: Dataset) -> tuple[Array, Array]:
    """Of the flattened inputs, in float64; an input that never changes is given the standard deviation 1.

    Rows are added one after the other, so the result is the same on every machine, whatever its vectors.
    Chunks are joined as in Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing
    sample variances", 1979.
    """
    width = math.prod(data.shape)
    mean, square, seen = np.zeros(width), np.zeros(width), 0
    for inputs, _ in chunks(data.train, size=max(1, CHUNK_VALUES // width), dtype=np.float64):
        n = len(inputs)
        values = inputs.reshape(n, width)
        centre = np.add.reduce(values, 0) / n
        values -= centre
        values *= values
        shift = centre - mean
        square += np.add.reduce(values, 0) + shift * shift * (seen * n / (seen + n))
        mean += shift * (n / (seen + n))
        seen += n
    std = np.sqrt(square / max(seen, 1))
    std[std <= 1e-7 * np.abs(mean)] = 1  # what rounding leaves of a constant
    std[std == 0] = 1
    return mean, std
