"""Batches: the global batch at step t is the same set of samples for any number of ranks.

`Batches` gives a rank its slice of every global batch; `Shares` adds the other ways in which ranks divide an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import DTypeLike, NDArray

from paceline.data._dataset import Inputs, Keeps, Split, Subset, buffers
from paceline.errors import UsageError

Array = NDArray[Any]

# Samples drawn at once: many batches are drawn together.
DRAWN_AT_ONCE = 65_536


@dataclass(slots=True)
class Batch:
    """One rank's piece of one global batch. Its arrays are reused, so they are valid until the next batch is created.

    >>> from paceline.data import Batches, load
    >>> batch = Batches(load("iris").train, batch=10, rank=1, ranks=3).at(epoch=0, step=7)
    >>> batch.count, batch.total, batch.offset, batch.step, batch.inputs.shape
    (3, 10, 4, 7, (3, 4))
    """

    inputs: Inputs
    """Samples, (count, *shape): floats, or int64 for a model that takes whole numbers; or `Several` such arrays."""
    labels: Array
    """int64 classes or real numbers, (count, *label_shape)."""
    count: int
    """The number of samples in this piece; may be 0."""
    total: int
    """The number of samples in the global batch."""
    offset: int
    """The position of this piece's first sample in the global batch."""
    step: int
    """The number of the global batch in the run, from 0."""
    epoch: int
    """The number of the epoch, from 0."""
    weight: float = 1.0
    """The factor on losses and gradients if samples have weights: `total` / (the sum of the weights in the global batch).

    So a sum over the samples, divided by `total`, is the weighted mean over the global batch.
    """


def piece(total: int, rank: int, ranks: int) -> tuple[int, int]:
    """Return the start and stop of a rank's share of `total`; sizes differ by at most 1, the larger ones first.

    >>> [piece(10, rank, 4) for rank in range(4)]
    [(0, 3), (3, 6), (6, 8), (8, 10)]
    """
    size, larger = divmod(total, ranks)
    start = rank * size + min(rank, larger)
    return start, start + size + (rank < larger)


def partition(split: Split, rank: int, ranks: int, *, seed: int) -> Subset:
    """Return a rank's part of the samples in a random division: the parts are disjoint and cover all samples.

    >>> from paceline.data import load
    >>> iris = load("iris")
    >>> [len(partition(iris.train, rank, 4, seed=0)) for rank in range(4)]
    [30, 30, 30, 30]
    """
    order = _permutation(len(split), seed, 0)
    start, stop = piece(len(split), rank, ranks)
    return Subset(split, order[start:stop])


class Batches:
    """The batches of every epoch, drawn from a seed; rank r of p gets the r-th of p slices of each.

    Without `draws`, an epoch is a new permutation of all samples, and its last batch may be smaller. With `draws=k`, it
    is k batches, each drawn at random, with no sample twice in one batch.

    >>> from paceline.data import load
    >>> batches = Batches(load("mnist").train, batch=128, seed=1, rank=0, ranks=3)
    >>> batches.steps_per_epoch, batches.samples_per_epoch
    (391, 50000)
    >>> [(b.step, b.count, b.total) for b in batches.epoch(0)][-2:]
    [(389, 43, 128), (390, 27, 80)]
    """

    def __init__(
        self,
        split: Split,
        *,
        batch: int,
        seed: int = 0,
        dtype: DTypeLike = np.float32,
        rank: int = 0,
        ranks: int = 1,
        draws: int | None = None,
        time_only: bool = False,
        pieces: int | None = None,
        keeps: Keeps | None = None,
        weights: Array | None = None,
    ) -> None:
        """Prepare the batches; with `time_only` they only have a number of samples, for simulations of time.

        `pieces`: cut every batch into this many fixed pieces (see `parts`), of which each rank gets an equal number.
        `keeps`: which inputs are handed over as the whole numbers that they are. `weights`: those of all samples of the
        split, if they do not count alike (see `Batch.weight`).
        """
        samples = len(split)
        if samples == 0:
            raise UsageError("there are no training samples")
        if batch < 1:
            raise UsageError(f"batch must be at least 1; got {batch}")
        if batch > samples:
            raise UsageError(
                f"batch must not exceed the training samples; got {batch}, the data have {samples}"
            )
        if draws is not None and draws < 1:
            raise UsageError(f"draws must be at least 1; got {draws}")
        if seed < 0:
            raise UsageError(f"seed must be at least 0; got {seed}")
        if not 0 <= rank < ranks:
            raise UsageError(f"rank must be from 0 to {ranks - 1}; got {rank}")
        self.split = split
        self.batch = batch
        self.seed = seed
        self.rank = rank
        self.ranks = ranks
        self.draws = draws
        self.time_only = time_only
        self.pieces = pieces
        self.keeps = keeps
        self.weights = weights
        self.steps_per_epoch = draws if draws is not None else -(-samples // batch)
        self.samples_per_epoch = draws * batch if draws is not None else samples
        self._ends: Array | None = None
        self._piece = self._cut(batch)
        self.dtype = dtype
        self._inputs, self._labels = buffers(
            split, 0 if time_only else self._piece[1] - self._piece[0], dtype, keeps
        )
        self._key: tuple[int, int] | None = None
        self._order = np.empty(0, np.intp)

    def share(self, weights: Array) -> None:
        """Cut the following batches in proportion to `weights`, one for each rank, equal on all ranks.

        >>> from paceline.data import load
        >>> batches = Batches(load("iris").train, batch=12, rank=1, ranks=2)
        >>> batches.share(np.array([2.0, 1.0]))
        >>> batch = batches.at(0, 0)
        >>> batch.offset, batch.count
        (8, 4)
        """
        self._ends = np.cumsum(weights) / np.sum(weights)
        self._piece = self._cut(self.batch)
        count = self._piece[1] - self._piece[0]
        if count > len(self._labels) and not self.time_only:
            self._inputs, self._labels = buffers(self.split, count, self.dtype, self.keeps)

    def _cut(self, total: int) -> tuple[int, int]:
        """Return the start and stop of this rank's piece of `total` samples."""
        if self.pieces is not None:
            each = self.pieces // self.ranks
            first, last = self.rank * each, (self.rank + 1) * each - 1
            return piece(total, first, self.pieces)[0], piece(total, last, self.pieces)[1]
        if self._ends is None:
            return piece(total, self.rank, self.ranks)
        start = 0 if self.rank == 0 else round(float(self._ends[self.rank - 1]) * total)
        return start, total if self.rank == self.ranks - 1 else round(float(self._ends[self.rank]) * total)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield this rank's pieces of the batches of an epoch, in order, from step `start` on."""
        for step in range(start, self.steps_per_epoch):
            yield self.at(epoch, step)

    def at(self, epoch: int, step: int) -> Batch:
        """Return this rank's piece of one batch; `step` counts from 0 in its epoch."""
        indices = None if self.time_only else self.indices(epoch, step)
        total = self._total(step) if indices is None else len(indices)
        start, stop = self._piece if total == self.batch else self._cut(total)
        count = stop - start
        inputs, labels = self._inputs, self._labels
        if count != len(labels):
            inputs, labels = inputs[:count], labels[:count]
        if indices is not None:
            self.split.take(indices[start:stop], inputs, labels)
        weight = 1.0 if self.weights is None or indices is None else self._weight(indices)
        return Batch(inputs, labels, count, total, start, epoch * self.steps_per_epoch + step, epoch, weight)

    def _weight(self, indices: Array) -> float:
        """Return the factor on the losses of the batch of these samples; 0 if nothing in it counts."""
        assert self.weights is not None
        whole = float(self.weights[indices].sum())
        return len(indices) / whole if whole else 0.0

    def parts(self, batch: Batch) -> Iterator[Batch]:
        """Yield the fixed pieces that this rank's share of a batch consists of, in order; some may be empty.

        >>> from paceline.data import load
        >>> batches = Batches(load("iris").train, batch=10, rank=1, ranks=2, pieces=4)
        >>> [(part.offset, part.count) for part in batches.parts(batches.at(0, 0))]
        [(6, 2), (8, 2)]
        """
        pieces = self.pieces or self.ranks
        each = pieces // self.ranks
        for number in range(self.rank * each, (self.rank + 1) * each):
            start, stop = piece(batch.total, number, pieces)
            here = slice(start - batch.offset, stop - batch.offset)
            yield Batch(
                batch.inputs[here],
                batch.labels[here],
                stop - start,
                batch.total,
                start,
                batch.step,
                batch.epoch,
                batch.weight,
            )

    def _total(self, step: int) -> int:
        """Return the number of samples in the global batch of a step."""
        return self.batch if self.draws is not None else min(self.batch, len(self.split) - step * self.batch)

    def make_batch(self, indices: Array, epoch: int, step: int) -> Batch:
        """Return a batch of the given samples, at most as many as a whole batch has."""
        count = len(indices)
        inputs, labels = self._inputs[:count], self._labels[:count]
        if not self.time_only:
            self.split.take(indices, inputs, labels)
        weight = 1.0 if self.weights is None or self.time_only else self._weight(indices)
        return Batch(inputs, labels, count, count, 0, step, epoch, weight)

    def empty(self) -> Batch:
        """Return a batch without samples, for a rank for which no batch is left."""
        return Batch(self._inputs[:0], self._labels[:0], 0, 0, 0, 0, 0)

    def indices(self, epoch: int, step: int) -> Array:
        """Return the indices of the samples in the global batch of a step: equal on all ranks, for any number of ranks.

        >>> from paceline.data import load
        >>> split = load("iris").train
        >>> one, many = Batches(split, batch=4, ranks=1), Batches(split, batch=4, rank=2, ranks=3)
        >>> bool((one.indices(5, 7) == many.indices(5, 7)).all())
        True
        """
        if self.draws is None:
            if self._key != (epoch, 0):
                own = getattr(self.split, "order", None)
                self._order = (
                    _permutation(len(self.split), self.seed, 1, epoch) if own is None else own(epoch)
                )
                self._key = (epoch, 0)
            return self._order[step * self.batch : (step + 1) * self.batch]
        block, row = divmod(step, max(1, DRAWN_AT_ONCE // self.batch))
        if self._key != (epoch, block):
            rows = min(max(1, DRAWN_AT_ONCE // self.batch), self.draws)
            self._order = _cached_draw(len(self.split), rows, self.batch, self.seed, 2, epoch, block)
            self._key = (epoch, block)
        return self._order[row]  # type: ignore[no-any-return]


# Orders in use, by the arguments of the draw. All ranks of a process (a simulation has thousands) share them.
_orders: WeakValueDictionary[tuple[int, ...], Array] = WeakValueDictionary()


def _permutation(samples: int, seed: int, *key: int) -> Array:
    """Return a random order of all samples: a read-only array, shared by all callers with the same arguments."""
    return _find_or_draw((samples, seed, *key), lambda: _generator(seed, *key).permutation(samples))


def _cached_draw(samples: int, rows: int, size: int, seed: int, *key: int) -> Array:
    """Return the result of `_draw`: a read-only array, shared by all callers with the same arguments."""
    what = (samples, rows, size, seed, *key)
    return _find_or_draw(what, lambda: _draw(_generator(seed, *key), samples, rows, size))


def _find_or_draw(what: tuple[int, ...], draw: Callable[[], Array]) -> Array:
    order = _orders.get(what)
    if order is None:
        order = draw()
        order.setflags(write=False)
        _orders[what] = order
    return order


def _draw(generator: np.random.Generator, samples: int, rows: int, size: int) -> Array:
    """Draw `rows` batches of `size` different samples each."""
    if size * (size - 1) > samples:  # a row without repetitions would be rare
        return np.stack([generator.choice(samples, size, replace=False) for _ in range(rows)])
    drawn = generator.integers(samples, size=(rows, size), dtype=np.intp)
    again = np.arange(rows)
    while True:
        ordered = np.sort(drawn[again], axis=1)
        again = again[(ordered[:, 1:] == ordered[:, :-1]).any(axis=1)]
        if len(again) == 0:
            return drawn
        drawn[again] = generator.integers(samples, size=(len(again), size), dtype=np.intp)


def _generator(seed: int, *key: int) -> np.random.Generator:
    """Return a generator for one purpose: an epoch's draws do not depend on earlier ones."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


class DealtPart:
    """A rank's part of samples that have an order of their own: every `ranks`-th batch, in that order.

    >>> from paceline.data import ArraySplit
    >>> split = ArraySplit(np.zeros((7, 1)), np.arange(7))
    >>> split.order = lambda epoch: np.arange(7)[::-1]
    >>> DealtPart(split, 1, 2, batch=2).order(0).tolist()
    [4, 3, 0]
    """

    def __init__(self, split: Any, rank: int, ranks: int, *, batch: int) -> None:
        self.split = split
        self.shape, self.label_shape, self.label_dtype = split.shape, split.label_shape, split.label_dtype
        whole = np.arange(len(split))
        steps = range(0, len(split), batch)[rank::ranks] or [0]  # a rank without a batch never reads one
        self._places = np.concatenate([whole[start : start + batch] for start in steps])

    def __len__(self) -> int:
        return len(self._places)

    def order(self, epoch: int) -> Array:
        """Return the part's samples in the order of an epoch."""
        found: Array = self.split.order(epoch)[self._places]
        return found

    def take(self, indices: Array, inputs: Array, labels: Array) -> None:
        """Write the samples at `indices` of the whole split."""
        self.split.take(indices, inputs, labels)


class Shares:
    """Three ways to divide the same epoch among ranks, each prepared when it is first used.

    >>> from paceline.data import load
    >>> shares = Shares(Batches(load("iris").train, batch=32, rank=1, ranks=3))
    >>> [batch.count for batch in shares.pieces(0, rank=1, ranks=3)]          # a slice of every batch
    [11, 11, 11, 8]
    >>> [(batch.step, batch.count) for batch in shares.deal(0)]              # batches 1, 4, …; 0 samples when none is left
    [(1, 32), (4, 0)]
    >>> [(batch.step, batch.count) for batch in shares.own(0)]                # batches of a third of the data
    [(0, 32), (1, 8)]

    The `step` of a batch counts the batches of the run in `pieces`, `whole` and `deal`; in `own` it counts the turns that
    all ranks take together.
    """

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        self._pieces: dict[tuple[int, int], Batches] = {(batches.rank, batches.ranks): batches}
        self._own: Batches | None = None
        self._weights: Array | None = None
        self._turns = self._rounds = 0
        # Of an epoch that is resumed on another number of ranks: the batches left, and this rank's samples left.
        self._left: dict[int, Array] = {}
        self._rest: dict[int, Array] = {}

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in an epoch, of all ranks together."""
        return self.batches.steps_per_epoch

    def pieces(self, epoch: int, rank: int, ranks: int, start: int = 0) -> Iterator[Batch]:
        """Yield the rank-th of `ranks` slices of each batch of an epoch, from turn `start` on."""
        return self._cut(rank, ranks).epoch(epoch, start)

    def whole(self, step: int) -> Batch:
        """Return the whole batch of one step of the run."""
        return self._cut(0, 1).at(*divmod(step, self.steps_per_epoch))

    def deal(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield whole batches, dealt out like cards; all ranks have the same number of turns, the last perhaps empty."""
        rank, ranks, steps = self.batches.rank, self.batches.ranks, self.steps_per_epoch
        left = self._left.get(epoch)
        for turn in range(start, self.dealt_turns):
            step = turn * ranks + rank
            if left is not None:
                place = (turn - start) * ranks + rank
                step = int(left[place]) if place < len(left) else steps
            yield (
                self.whole(epoch * steps + step)
                if step < steps
                else self._make_empty(epoch, epoch * steps + step)
            )

    @property
    def dealt_turns(self) -> int:
        """The number of turns in an epoch of `deal`, the same on every rank."""
        return -(-self.steps_per_epoch // self.batches.ranks)

    def resume_dealt(self, epoch: int, turns: Sequence[int]) -> int:
        """Go on with an epoch of `deal` of which rank r of others has had `turns[r]` turns; return the next turn.

        The batches that are left are dealt out anew to this number of ranks.

        >>> from paceline.data import load
        >>> shares = Shares(Batches(load("iris").train, batch=12, rank=0, ranks=2))     # 10 batches
        >>> start = shares.resume_dealt(0, [2, 1, 2])                                   # of 3 ranks; 1 has fallen behind
        >>> start, [batch.step for batch in shares.deal(0, start)]
        (2, [4, 7, 9])
        """
        ranks, steps = len(turns), self.steps_per_epoch
        done = {turn * ranks + rank for rank in range(ranks) for turn in range(min(turns[rank], steps))}
        left = np.array([step for step in range(steps) if step not in done], np.intp)
        self._left[epoch] = left
        return self.dealt_turns - -(-len(left) // self.batches.ranks)

    def own(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield batches of this rank's own data, a part drawn at random once; all ranks have the same number of turns."""
        own = self.own_batches()
        rest = self._rest.get(epoch)
        for turn in range(start, self._rounds):
            step = epoch * self._rounds + turn
            if rest is not None:
                mine = rest[(turn - start) * own.batch :][: own.batch]
                batch = (
                    self._cut(0, 1).make_batch(mine, epoch, step)
                    if len(mine)
                    else self._make_empty(epoch, step)
                )
            else:
                batch = own.at(epoch, turn) if turn < self._turns else self._make_empty(epoch, step)
            # All ranks agree on the step, even where one has fewer batches; the offset makes dropout differ between ranks.
            batch.step, batch.offset = step, self.batches.rank * self.batches.batch
            yield batch

    @property
    def own_turns(self) -> int:
        """The number of turns in an epoch of `own`, the same on every rank."""
        self.own_batches()
        return self._rounds

    def resume_own(self, epoch: int, turns: Sequence[int]) -> int:
        """Go on with an epoch of `own` of which rank r of others has had `turns[r]` turns; return the next turn.

        The samples that are left of all parts are divided anew among this number of ranks; later epochs are not affected.

        >>> from paceline.data import load
        >>> shares = Shares(Batches(load("iris").train, batch=10, rank=0, ranks=2))     # 120 samples
        >>> start = shares.resume_own(0, [1, 1, 1])                                     # each of 3 ranks has had 10
        >>> start, [batch.count for batch in shares.own(0, start)], shares.own_turns
        (1, [10, 10, 10, 10, 5], 6)
        """
        of, ranks = self.batches, len(turns)
        left = []
        for rank, had in enumerate(turns):
            before = Shares(Batches(of.split, batch=of.batch, seed=of.seed, rank=rank, ranks=ranks, draws=of.draws,
                                    dtype=of.dtype, time_only=True))  # fmt: skip
            own = before.own_batches()
            some = [own.indices(epoch, turn) for turn in range(had, before.own_turns) if turn < before._turns]
            part = own.split
            left += [
                part.places[indices] if isinstance(part, Subset) and ranks > 1 else indices
                for indices in some
            ]
        rest = np.concatenate(left) if left else np.empty(0, np.intp)
        self.own_batches()
        self._rest[epoch] = rest[of.rank :: of.ranks]
        longest = -(-len(rest) // of.ranks)
        return self._rounds - -(-longest // of.batch)

    def own_batches(self) -> Batches:
        """Return the batches of this rank's own part of the data."""
        if self._own is None:
            all_, rank, ranks = self.batches, self.batches.rank, self.batches.ranks
            check_own(len(all_.split), all_.batch, ranks)
            ordered = hasattr(all_.split, "order")
            part = partial(DealtPart, batch=all_.batch) if ordered else partial(partition, seed=all_.seed)
            split = all_.split if ranks == 1 else part(all_.split, rank, ranks)
            if ordered:
                steps = self.steps_per_epoch
                self._turns, self._rounds = len(range(rank, steps, ranks)), -(-steps // ranks)
            elif all_.draws is None:
                self._turns, self._rounds = (
                    -(-size // all_.batch) for size in (len(split), -(-len(all_.split) // ranks))
                )
            else:
                self._turns, self._rounds = (_share(all_.draws, r, ranks) for r in (rank, 0))
            # A rank without a turn still has its part of the data: one draw, which is never made.
            draws = None if all_.draws is None else max(self._turns, 1)
            weights = all_.weights
            if weights is not None and isinstance(split, Subset) and ranks > 1:
                weights = weights[split.places]
            self._own = Batches(
                split,
                batch=all_.batch,
                seed=all_.seed,
                dtype=all_.dtype,
                draws=draws,
                time_only=all_.time_only,
                keeps=all_.keeps,
                weights=weights,
            )
        return self._own

    @property
    def has_own(self) -> bool:
        """True if this rank's own part of the data is in use."""
        return self._own is not None

    @property
    def weights(self) -> Array | None:
        """The shares of the ranks in each batch; None: equal ones."""
        return self._weights

    @weights.setter
    def weights(self, weights: Array) -> None:
        self._weights = weights
        self.batches.share(weights)

    def balance(self, counts: Array, seconds: Array) -> None:
        """Cut the following batches by the speeds of the ranks: the samples that each computed, and the seconds it took."""
        # The speed of a rank without samples is unknown; and new sizes need new memory, so small differences are ignored.
        if counts.all() and seconds.max() > 1.05 * seconds.mean():
            speeds, before = counts / seconds, self._weights
            if before is None:
                before = np.full(self.batches.ranks, 1 / self.batches.ranks)
            self.weights = (before + speeds / speeds.sum()) / 2  # halfway: times are noisy

    def _cut(self, rank: int, ranks: int) -> Batches:
        found = self._pieces.get((rank, ranks))
        if found is None:
            of = self.batches
            found = Batches(
                of.split,
                batch=of.batch,
                seed=of.seed,
                dtype=of.dtype,
                rank=rank,
                ranks=ranks,
                draws=of.draws,
                time_only=of.time_only,
                pieces=of.pieces,
                keeps=of.keeps,
                weights=of.weights,
            )
            self._pieces[rank, ranks] = found
        return found

    def _make_empty(self, epoch: int, step: int) -> Batch:
        empty = self._cut(0, 1).empty()
        empty.epoch, empty.step = epoch, step
        return empty


def check_own(samples: int, batch: int, ranks: int) -> None:
    """Check that the smallest of `ranks` parts of the data has enough samples for a batch.

    >>> check_own(100, 30, 4)
    Traceback (most recent call last):
    paceline.errors.UsageError: a batch of 30 is more than the 25 training samples that each of 4 ranks has for itself
    """
    if batch > samples // ranks:
        raise UsageError(
            f"a batch of {batch} is more than the {samples // ranks} training samples that each of {ranks} ranks "
            "has for itself"
        )


def _share(draws: int, rank: int, ranks: int) -> int:
    """Return a rank's share of `draws`; the first ranks have one more where they do not divide evenly."""
    return draws // ranks + (rank < draws % ranks)
