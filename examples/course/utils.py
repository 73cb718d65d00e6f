"""MNIST as the networks of this folder take it: tuples (images, one-hot labels)."""

import numpy as np

from paceline.data import chunks, load


def load_mnist(limit=None):
    """The images to train with (50,000), to validate with and to test with (10,000 each), or the first `limit` of each.

    An image is a row of 784 numbers from 0 to 1, in single precision: every rank holds all of them.
    """
    data = load("mnist")
    return tuple(as_arrays(split, data.classes, limit) for split in (data.train, data.validation, data.test))


def as_arrays(split, classes, limit):
    count = min(len(split), limit or len(split))
    images, labels = next(chunks(split, size=count))
    return images.reshape(len(images), -1), np.eye(classes, dtype=images.dtype)[labels]
