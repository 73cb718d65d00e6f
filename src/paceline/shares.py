"""How the ranks of a run divide its training samples: pieces of every batch, batches dealt out, or the data itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data import Batch, Batches, partition
from paceline.errors import UsageError

Array = NDArray[Any]


class Shares:
    """Three ways to divide the same epoch among ranks, made when they are first asked for.

    >>> from paceline.data import load
    >>> shares = Shares(Batches(load("iris").train, batch=32, rank=1, ranks=3))
    >>> [batch.count for batch in shares.pieces(0, rank=1, ranks=3)]          # of every batch a slice
    [11, 11, 11, 8]
    >>> [(batch.step, batch.count) for batch in shares.dealt(0)]              # batches 1, 4, …; 0 samples: none left
    [(1, 32), (4, 0)]
    >>> [(batch.step, batch.count) for batch in shares.own(0)]                # of a third of the data, cut off once
    [(0, 32), (1, 8)]

    A batch's `step` counts the run's batches in `pieces`, `whole` and `dealt`, and in `own` the turns that all ranks
    take together.
    """

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        self._pieces: dict[tuple[int, int], Batches] = {(batches.rank, batches.ranks): batches}
        self._own: Batches | None = None
        self._weights: Array | None = None
        self._turns = self._rounds = 0

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch, of all ranks together."""
        return self.batches.steps_per_epoch

    def pieces(self, epoch: int, rank: int, ranks: int) -> Iterator[Batch]:
        """The rank-th of `ranks` slices of each batch of an epoch."""
        return self._cut(rank, ranks).epoch(epoch)

    def whole(self, step: int) -> Batch:
        """The batch of one step of the run, all of it."""
        return self._cut(0, 1).at(*divmod(step, self.steps_per_epoch))

    def dealt(self, epoch: int) -> Iterator[Batch]:
        """Whole batches, dealt out like cards: every rank as many turns, a turn for which none is left is empty."""
        rank, ranks, steps = self.batches.rank, self.batches.ranks, self.steps_per_epoch
        for turn in range(-(-steps // ranks)):
            step = turn * ranks + rank
            yield (
                self.whole(epoch * steps + step) if step < steps else self._none(epoch, epoch * steps + step)
            )

    def own(self, epoch: int) -> Iterator[Batch]:
        """Batches of this rank's own part of the data, which is cut off at random once; every rank as many turns."""
        own = self.own_batches()
        for turn in range(self._rounds):
            step = epoch * self._rounds + turn
            batch = own.at(epoch, turn) if turn < self._turns else self._none(epoch, step)
            # The step is everybody's, also where a rank has fewer batches; by its place every rank's dropout differs.
            batch.step, batch.offset = step, self.batches.rank * self.batches.batch
            yield batch

    @property
    def own_turns(self) -> int:
        """Turns of an epoch of `own`, the same on every rank."""
        self.own_batches()
        return self._rounds

    def own_batches(self) -> Batches:
        """The batches of this rank's own part of the data."""
        if self._own is None:
            all_, rank, ranks = self.batches, self.batches.rank, self.batches.ranks
            check_own(len(all_.split), all_.batch, ranks)
            split = all_.split if ranks == 1 else partition(all_.split, rank, ranks, seed=all_.seed)
            if all_.draws is None:
                self._turns, self._rounds = (
                    -(-size // all_.batch) for size in (len(split), -(-len(all_.split) // ranks))
                )
            else:
                self._turns, self._rounds = (_share(all_.draws, r, ranks) for r in (rank, 0))
            # A rank without a turn still has its part of the data; at least one draw, though never made.
            draws = None if all_.draws is None else max(self._turns, 1)
            self._own = Batches(
                split, batch=all_.batch, seed=all_.seed, dtype=all_.dtype, draws=draws, hollow=all_.hollow
            )
        return self._own

    def balance(self, counts: Array, seconds: Array) -> None:
        """Cut the coming batches by the speeds of the ranks, that took so long for so many samples."""
        # A rank that has had no samples has shown no speed; and new sizes cost memory anew.
        if counts.all() and seconds.max() > 1.05 * seconds.mean():
            speeds, before = counts / seconds, self._weights
            if before is None:
                before = np.full(self.batches.ranks, 1 / self.batches.ranks)
            self._weights = (before + speeds / speeds.sum()) / 2  # half-way: seconds are noisy
            self.batches.share(self._weights)

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
                hollow=of.hollow,
            )
            self._pieces[rank, ranks] = found
        return found

    def _none(self, epoch: int, step: int) -> Batch:
        empty = self._cut(0, 1).empty()
        empty.epoch, empty.step = epoch, step
        return empty


def check_own(samples: int, batch: int, ranks: int) -> None:
    """Refuse a batch that the smallest of `ranks` parts of the data cannot fill.

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
    """How many of `draws` are one rank's: the first ones have one more where it does not come out even."""
    return draws // ranks + (rank < draws % ranks)
