"""The gradient from the factors of a batch, part by part, is the gradient; and leaving factors costs nothing else."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data import Batch, piece
from paceline.models import FactoredModel
from paceline.models.mlp import MLP, PASSES, cut_rows
from tests.models.mlp_nets import VARIANTS, batch, measure_allocation, name, net

pytestmark = pytest.mark.filterwarnings("error")


class Ranks:
    """As many copies of a network as there are ranks, on one x, with the factors of `samples` samples in one memory."""

    def __init__(self, model: MLP, ranks: int, samples: int) -> None:
        self.samples = samples
        memory = np.full(model.factor_bytes(samples), 255, np.uint8)  # NaN where nothing is written
        self.x = model.x.copy()
        self.models = [copy.deepcopy(model) for _ in range(ranks)]
        for each in self.models:
            each.place(self.x, each.g)
            each.g.fill(7)
        self.sums = [each.share_factors(memory, samples, r, ranks) for r, each in enumerate(self.models)]

    def gradient(self, whole: Batch, cuts: list[int] | None = None) -> tuple[float, np.ndarray]:
        """The summed loss and gradient of a batch, cut evenly or at given places; all leave factors, then all add."""
        ranks = len(self.models)
        pieces = [piece(whole.count, r, ranks) for r in range(ranks)]
        if cuts is not None:
            pieces = list(zip([0, *cuts], [*cuts, whole.count], strict=True))
        loss = 0.0
        for each, (start, stop) in zip(self.models, pieces, strict=True):
            if start < stop:  # as the worker does: an empty piece does not reach the model
                loss += each.gradient(cut(whole, start, stop))
        return loss, np.concatenate([part() for part in self.sums])


def cut(whole: Batch, start: int, stop: int) -> Batch:
    inputs, labels = whole.inputs[start:stop], whole.labels[start:stop]
    return Batch(inputs, labels, stop - start, whole.count, start, 0, 0)


def close(found: tuple[float, np.ndarray], model: MLP, whole: Batch) -> None:
    loss = model.gradient(whole)
    exact = model.dtype == np.float64
    assert found[0] == pytest.approx(loss, rel=1e-11 if exact else 1e-5)
    error = (1e-12 if exact else 1e-5) * np.abs(model.g).max()
    np.testing.assert_allclose(found[1], model.g, rtol=1e-9 if exact else 1e-3, atol=error)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("variant", VARIANTS, ids=name)
def test_parts_of_every_network(variant: dict[str, Any], dtype: Any) -> None:
    """Any number of ranks, more samples than ranks and fewer, batches that are not full, in any order."""
    model = net(variant, dtype=dtype)
    for ranks in range(1, 6):
        together = Ranks(model, ranks, 9)
        for count in (9, 4, 9, 1, 2, 9, 1, 3):
            whole = batch(model, count, seed=count)
            close(together.gradient(whole), model, whole)
        assert all((each.g == 7).all() for each in together.models)


@settings(max_examples=60, deadline=None)
@given(
    variant=st.sampled_from(VARIANTS),
    sizes=st.lists(st.integers(2, 20), min_size=2, max_size=5).map(tuple),
    cuts=st.lists(st.integers(0, 23), max_size=6).map(sorted),
    samples=st.integers(23, 40),
    seed=st.integers(0, 99),
)
def test_however_the_batch_is_cut(
    variant: dict[str, Any], sizes: tuple[int, ...], cuts: list[int], samples: int, seed: int
) -> None:
    model = net(variant, sizes)
    whole = batch(model, 23, seed)
    close(Ranks(model, len(cuts) + 1, samples).gradient(whole, cuts), model, whole)


@pytest.mark.parametrize("sizes", [(784, 128, 64, 10), (3, 2), (1, 1, 1), (6, 5, 300), (900, 1)])
@pytest.mark.parametrize(("ranks", "samples"), [(1, 31), (2, 16), (3, 33), (4, 1)])
def test_depths_and_sizes(sizes: tuple[int, ...], ranks: int, samples: int) -> None:
    model = net({}, sizes)
    whole = batch(model, samples)
    close(Ranks(model, ranks, samples).gradient(whole), model, whole)


@pytest.mark.parametrize("sizes", [(784, 128, 64, 10), (5, 7, 6, 4), (3, 2), (2, 1000), (1000, 1)])
@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7, 16])
def test_parts_are_whole_rows_and_even(sizes: tuple[int, ...], parts: int) -> None:
    model = MLP(sizes)
    slices = cut_rows(model, parts)
    assert len(slices) == parts
    assert [0, *(part.stop for part in slices)] == [*(part.start for part in slices), model.x.size]
    for part in slices:
        at = next((i for i, layer in enumerate(model.layers) if part.start < layer.stop), None)
        assert at is None or (part.start - model.layers[at].start) % model.sizes[at + 1] == 0
        assert abs(part.stop - part.start - model.x.size / parts) <= max(sizes[1:])


def test_each_sample_has_cache_lines_of_its_own() -> None:
    """No rank writes where another one does, or it would wait for that rank's cache."""
    model = net({}, (5, 7, 3), dtype=np.float32)
    room = np.zeros(model.factor_bytes(4) + 64, np.uint8)
    start = -room.ctypes.data % 64
    memory = room[start : start + model.factor_bytes(4)]
    model.share_factors(memory, 4, 0, 2)
    written = []
    whole = batch(model, 4)
    for mine in (cut(whole, 0, 3), cut(whole, 3, 4)):
        before = memory.copy()
        model.gradient(mine)
        written.append(set((np.flatnonzero(memory != before) // 64).tolist()))
    assert written[0]
    assert written[1]
    assert not written[0] & written[1]


@pytest.mark.parametrize("variant", [VARIANTS[0], VARIANTS[3], VARIANTS[-1]], ids=name)
def test_evaluation_in_between(variant: dict[str, Any]) -> None:
    """Neither side disturbs the other, and both see the same x."""
    model = net(variant)
    together = Ranks(model, 2, 8)
    whole, many = batch(model, 8), batch(model, 50, seed=1)
    for _ in range(3):
        loss, g = together.gradient(whole)
        close((loss, g), model, whole)
        together.x -= 0.01 * g
        model.x -= 0.01 * g
        assert together.models[1].evaluate(many.inputs, many.labels) == model.evaluate(
            many.inputs, many.labels
        )
        np.testing.assert_array_equal(together.models[0].predict(many.inputs), model.predict(many.inputs))


@pytest.mark.parametrize("variant", [VARIANTS[0], VARIANTS[-1]], ids=name)
def test_place_ends_the_sharing_of_factors(variant: dict[str, Any]) -> None:
    model, other = net(variant), net(variant)
    whole = batch(model, 6)
    model.share_factors(np.zeros(model.factor_bytes(6), np.uint8), 6, 0, 1)
    model.gradient(whole)
    assert not model.g.any()
    copied = copy.deepcopy(model)
    model.place(model.x.copy(), model.g)
    for each in (model, copied):
        assert each.gradient(whole) == other.gradient(whole)
        np.testing.assert_array_equal(each.g, other.g)


@pytest.mark.parametrize("variant", VARIANTS, ids=name)
def test_a_step_allocates_nothing(variant: dict[str, Any]) -> None:
    model = net(variant, dtype=np.float32)
    together = Ranks(model, 2, 4096)
    whole = batch(model, 4096)
    whole.labels = whole.labels.astype(model.dtype) if model.regression else whole.labels
    pieces = [cut(whole, 0, 2048), cut(whole, 2048, 4096)]
    fewer = [cut(batch(model, 4000), 0, 2000), cut(batch(model, 4000), 2000, 4000)]
    for some in fewer:
        some.labels = some.labels.astype(model.dtype) if model.regression else some.labels

    def steps() -> None:
        for both in (pieces, fewer):
            for each, mine in zip(together.models, both, strict=True):
                each.gradient(mine)
            for part in together.sums:
                part()

    peak, after = measure_allocation(steps)
    assert peak < 4096, "one number a sample would be 8 KiB"
    assert after < 512


def test_more_pieces_than_are_kept() -> None:
    model = net({})
    together = Ranks(model, 2, PASSES + 9)
    for count in range(2, PASSES + 9):
        whole = batch(model, count, seed=count)
        close(together.gradient(whole), model, whole)


def test_what_does_not_fit_is_refused() -> None:
    model = net({})
    assert isinstance(model, FactoredModel)
    size = model.factor_bytes(4)
    for memory in (np.zeros(size - 1, np.uint8), np.zeros(size // 8)):
        with pytest.raises(ValueError, match=f"the factors of 4 samples need {size} uint8"):
            model.share_factors(memory, 4, 0, 1)
    model.gradient(batch(model, 3))
    assert model.g.any()  # still as it was
    model.share_factors(np.zeros(size, np.uint8), 4, 0, 1)
    with pytest.raises(ValueError, match="factors are shared for 4 samples; got 5 of 5"):
        model.gradient(batch(model, 5))
    wrong = batch(model, 4)
    wrong.labels[2] = 4
    with pytest.raises(ValueError, match="labels must be from 0 to 3"):
        model.gradient(wrong)
    assert model.gradient(batch(model, 0)) == 0
