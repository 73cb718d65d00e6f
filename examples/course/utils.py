"""MNIST in the form that the networks of this folder take: tuples (images, one-hot labels)."""

import numpy as np

from paceline.data import chunks, load


def load_mnist(limit=None):
    """Load 50,000 images to train with and 10,000 each to validate and test with, or the first `limit` of each.

    An image is a row of 784 numbers from 0 to 1 in single precision. Every rank holds all of them.
    """
    data = load("mnist")
    return tuple(as_arrays(split, data.classes, limit) for split in (data.train, data.validation, data.test))


def as_arrays(split, classes, limit):
    count = min(len(split), limit or len(split))
    images, labels = next(chunks(split, size=count))
    return images.reshape(len(images), -1), np.eye(classes, dtype=images.dtype)[labels]
