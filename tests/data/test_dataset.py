from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data import ArraySplit, Subset, chunks
from paceline.errors import UsageError


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([np.uint8, np.int16, np.bool_, np.float32, np.float64]),
    st.sampled_from([(), (3,), (2, 3)]),
    st.sampled_from([np.float32, np.float64]),
    st.none() | st.floats(0.125, 8),
    st.lists(st.integers(0, 19), max_size=30),
)
def test_take_gives_scaled_floats(
    stored: type, shape: tuple[int, ...], wanted: type, scale: float | None, places: list[int]
) -> None:
    values = np.random.default_rng(0).integers(0, 200, (20, *shape)).astype(stored)
    split = ArraySplit(values, np.arange(20, dtype=np.uint8), scale=scale)
    inputs, labels = np.empty((len(places), *shape), wanted), np.empty(len(places), np.int64)
    for _ in range(2):
        split.take(np.array(places, np.intp), inputs, labels)
        factor = scale if scale is not None else 1 / 255 if stored is np.uint8 else 1
        np.testing.assert_allclose(inputs, values[places].astype(np.float64) * factor, rtol=1e-6)
        assert labels.tolist() == places


def test_a_subset_of_a_subset_finds_the_samples() -> None:
    split = ArraySplit(np.arange(10.0).reshape(10, 1), np.arange(10))
    inner = Subset(Subset(split, np.array([9, 7, 5, 3, 1])), np.array([4, 0]))
    [(inputs, labels)] = list(chunks(inner))
    assert inputs[:, 0].tolist() == labels.tolist() == [1, 9]


def test_chunks_read_a_range_in_order() -> None:
    split = ArraySplit(np.arange(10.0).reshape(10, 1), np.arange(10))
    seen = [labels.tolist() for _, labels in chunks(split, size=3, start=1, stop=9)]
    assert seen == [[1, 2, 3], [4, 5, 6], [7, 8]]
    assert list(chunks(split, start=4, stop=4)) == []


def test_a_split_that_was_read_is_read_by_ranks_whose_arrays_are_read_only() -> None:
    split = ArraySplit(np.arange(12.0, dtype=np.float32).reshape(4, 3), np.arange(4))
    ((before, _),) = chunks(split, dtype=np.float64)  # through working memory, which is not sent
    buffers: list[pickle.PickleBuffer] = []
    packed = pickle.dumps(split, protocol=5, buffer_callback=buffers.append)
    there = pickle.loads(packed, buffers=[buffer.raw().toreadonly() for buffer in buffers])
    ((inputs, _),) = chunks(there, dtype=np.float64)
    assert (inputs == before).all()


def test_as_many_labels_as_samples() -> None:
    with pytest.raises(UsageError, match="got 3 samples, 2 labels"):
        ArraySplit(np.zeros((3, 1)), np.zeros(2, np.int64))
