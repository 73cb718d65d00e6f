from __future__ import annotations

import itertools
import tracemalloc
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data import ArraySplit, Batch, Batches, chunks, load, partition, piece
from paceline.data._batches import Shares
from paceline.errors import UsageError


def make_numbered(samples: int) -> ArraySplit:
    """Make samples of which number i holds i and has the label i."""
    return ArraySplit(np.arange(samples, dtype=np.float32).reshape(-1, 1), np.arange(samples))


@given(st.integers(0, 10_000), st.integers(1, 70))
def test_pieces_cover_all_and_differ_by_one_at_most(total: int, ranks: int) -> None:
    pieces = [piece(total, rank, ranks) for rank in range(ranks)]
    assert pieces[0][0] == 0
    assert pieces[-1][1] == total
    assert all(a[1] == b[0] for a, b in itertools.pairwise(pieces))
    sizes = [stop - start for start, stop in pieces]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


settings_of_runs = st.tuples(
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(0, 2**40),
    st.integers(0, 3),
    st.none() | st.integers(1, 7),
).filter(lambda t: t[1] <= t[0])


@settings(deadline=None, max_examples=150)
@given(settings_of_runs, st.integers(1, 9))
def test_the_ranks_together_have_the_batch_of_one_rank(
    setting: tuple[int, int, int, int, int | None], ranks: int
) -> None:
    samples, size, seed, epoch, draws = setting
    split = make_numbered(samples)
    one = Batches(split, batch=size, seed=seed, draws=draws)
    many = [Batches(split, batch=size, seed=seed, draws=draws, rank=r, ranks=ranks) for r in range(ranks)]
    assert {b.steps_per_epoch for b in many} == {one.steps_per_epoch}
    for whole, *parts in zip(one.epoch(epoch), *(b.epoch(epoch) for b in many), strict=True):
        assert whole.count == whole.total == len(whole.labels)
        assert whole.labels.tolist() == one.indices(epoch, whole.step - epoch * one.steps_per_epoch).tolist()
        assert np.concatenate([b.labels for b in parts]).tolist() == whole.labels.tolist()
        assert np.concatenate([b.inputs for b in parts])[:, 0].tolist() == whole.labels.tolist()
        assert [b.offset for b in parts] == np.cumsum([0, *(b.count for b in parts)])[:-1].tolist()
        assert {(b.total, b.step, b.epoch) for b in parts} == {(whole.total, whole.step, epoch)}


@settings(deadline=None, max_examples=100)
@given(settings_of_runs)
def test_a_permutation_has_every_sample_once(setting: tuple[int, int, int, int, int | None]) -> None:
    samples, size, seed, epoch, _ = setting
    batches = Batches(make_numbered(samples), batch=size, seed=seed)
    seen = [b.labels.copy() for b in batches.epoch(epoch)]
    assert sorted(np.concatenate(seen).tolist()) == list(range(samples))
    assert [len(labels) for labels in seen[:-1]] == [size] * (len(seen) - 1)
    assert len(seen) == batches.steps_per_epoch == -(-samples // size)


@settings(deadline=None, max_examples=100)
@given(settings_of_runs)
def test_a_drawn_batch_has_no_sample_twice(setting: tuple[int, int, int, int, int | None]) -> None:
    samples, size, seed, epoch, draws = setting
    batches = Batches(make_numbered(samples), batch=size, seed=seed, draws=draws or 5)
    for step in range(batches.steps_per_epoch):
        drawn = batches.indices(epoch, step).tolist()
        assert len(set(drawn)) == len(drawn) == size
        assert set(drawn) <= set(range(samples))


@pytest.mark.parametrize("draws", [None, 10_000])
def test_any_batch_can_be_had_in_any_order(draws: int | None) -> None:
    split = make_numbered(1000)
    forward = Batches(split, batch=16, seed=3, draws=draws)
    order = [
        (e, s)
        for e in (0, 1)
        for s in range(0, forward.steps_per_epoch, max(1, forward.steps_per_epoch // 7))
    ]
    wanted = {place: forward.indices(*place).tolist() for place in order}
    backward = Batches(split, batch=16, seed=3, draws=draws)
    for place in reversed(order):
        assert backward.indices(*place).tolist() == wanted[place]
    assert len({tuple(indices) for indices in wanted.values()}) == len(wanted)
    resumed = [b.step for b in forward.epoch(1, start=forward.steps_per_epoch - 2)]
    assert resumed == [2 * forward.steps_per_epoch - 2, 2 * forward.steps_per_epoch - 1]


def test_seeds_and_epochs_give_different_orders() -> None:
    split = make_numbered(500)
    for draws in (None, 20):
        seen = {
            tuple(Batches(split, batch=25, seed=seed, draws=draws).indices(epoch, 0).tolist())
            for seed in range(4)
            for epoch in range(4)
        }
        assert len(seen) == 16


def test_draws_are_uniform() -> None:
    counts = np.zeros(50)
    for batches in (
        Batches(make_numbered(50), batch=5, seed=1, draws=4000),  # drawn again on a repetition
        Batches(make_numbered(50), batch=40, seed=1, draws=500),  # too large for that
    ):
        counts[:] = 0
        for step in range(batches.steps_per_epoch):
            counts[batches.indices(0, step)] += 1
        expected = batches.batch * batches.steps_per_epoch / 50
        assert counts.sum() == expected * 50
        assert ((counts - expected) ** 2 / expected).sum() < 110  # chi-squared, 49 degrees: 1e-6


def test_a_step_makes_no_new_arrays() -> None:
    batches = Batches(load("mnist").train, batch=64, seed=0)
    first = batches.at(0, 0)
    inputs = first.inputs
    tracemalloc.start()
    for step in range(1, 50):
        assert batches.at(0, step).inputs is inputs
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3000  # a batch has 64 * 784 * 4 = 200,704 bytes


def test_real_targets_take_the_type_of_the_run() -> None:
    split = ArraySplit(np.ones((4, 2)), np.array([[0.5, 1.5]] * 4))
    for dtype in (np.float32, np.float64):
        batch = Batches(split, batch=3, dtype=dtype).at(0, 0)
        assert batch.inputs.dtype == batch.labels.dtype == dtype
        assert batch.labels.shape == (3, 2)


def test_more_ranks_than_samples_leaves_empty_pieces() -> None:
    counts = [Batches(make_numbered(9), batch=2, rank=r, ranks=5).at(0, 0).count for r in range(5)]
    assert counts == [1, 1, 0, 0, 0]


def test_a_partition_gives_every_sample_to_one_rank() -> None:
    split = make_numbered(103)
    parts = [partition(split, rank, 4, seed=5) for rank in range(4)]
    assert [len(part) for part in parts] == [26, 26, 26, 25]
    labels = [labels.copy() for part in parts for _, labels in chunks(part)]
    assert sorted(np.concatenate(labels).tolist()) == list(range(103))
    assert labels[0].tolist() != sorted(labels[0].tolist())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 11}, "batch must not exceed the training samples; got 11, the data have 10"),
        ({"batch": 0}, "batch must be at least 1; got 0"),
        ({"batch": 1, "draws": 0}, "draws must be at least 1; got 0"),
        ({"batch": 1, "seed": -1}, "seed must be at least 0; got -1"),
        ({"batch": 1, "rank": 2, "ranks": 2}, "rank must be from 0 to 1; got 2"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError) as error:
        Batches(make_numbered(10), **options)  # type: ignore[arg-type]
    assert str(error.value) == message


def test_no_samples_are_refused() -> None:
    with pytest.raises(UsageError, match="there are no training samples"):
        Batches(load("mnist:validation=0").validation, batch=1)


class Unread(ArraySplit):
    """Samples that nobody may look at."""

    def take(self, indices: np.ndarray, inputs: np.ndarray, labels: np.ndarray) -> None:
        raise AssertionError("a sample was read")


def describe(batch: Batch) -> tuple[int, ...]:
    return batch.count, batch.total, batch.offset, batch.step, batch.epoch


@settings(deadline=None, max_examples=80)
@given(settings_of_runs, st.integers(1, 9))
def test_hollow_batches_are_as_long_as_full_ones(
    setting: tuple[int, int, int, int, int | None], ranks: int
) -> None:
    samples, size, seed, epoch, draws = setting
    unread = Unread(np.zeros((samples, 1), np.float32), np.zeros(samples))
    given_ = {"batch": size, "seed": seed, "draws": draws, "rank": ranks - 1, "ranks": ranks}
    full, time_only = Batches(make_numbered(samples), **given_), Batches(unread, **given_, time_only=True)
    ways = ["epoch", "deal"] + ["own"] * (size <= samples // ranks)
    for way in ways:
        one, other = (
            getattr(batches if way == "epoch" else Shares(batches), way)(epoch)
            for batches in (full, time_only)
        )
        for batch, empty in zip(one, other, strict=True):
            assert describe(batch) == describe(empty)
            assert (empty.inputs.shape, len(empty.labels)) == ((0, 1), 0)
    full.share(np.arange(1.0, ranks + 1))
    time_only.share(np.arange(1.0, ranks + 1))
    assert describe(full.at(epoch, 0)) == describe(time_only.at(epoch, 0))


@pytest.mark.parametrize("draws", [None, 40])
def test_ranks_of_one_process_share_the_order_that_they_go_through(draws: int | None) -> None:
    split = make_numbered(200)
    ranks = [Batches(split, batch=5, seed=3, draws=draws, rank=r, ranks=3) for r in range(3)]
    one, other, third = (batches.indices(1, 2) for batches in ranks)
    assert np.shares_memory(one, other)
    assert np.shares_memory(one, third)
    assert not one.flags.writeable
    assert one.tolist() == Batches(make_numbered(200), batch=5, seed=3, draws=draws).indices(1, 2).tolist()
    assert not np.shares_memory(ranks[0].indices(0, 2), other)  # another epoch's
    again = Batches(split, batch=5, seed=4, draws=draws).indices(1, 2)
    assert again.tolist() != other.tolist()


def test_the_parts_of_one_division_are_views_of_it() -> None:
    split = make_numbered(90)
    parts = [partition(split, r, 3, seed=7) for r in range(3)]
    assert len({id(part.places.base) for part in parts}) == 1
    assert sorted(np.concatenate([part.places for part in parts]).tolist()) == list(range(90))


def test_an_order_lives_no_longer_than_its_last_user() -> None:
    batches = Batches(make_numbered(100), batch=10, seed=11)
    before = weakref.ref(batches.indices(0, 0).base)
    assert before() is not None
    batches.indices(1, 0)
    assert before() is None
