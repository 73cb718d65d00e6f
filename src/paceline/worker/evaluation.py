"""Evaluation of a model: on a part of the samples, or on all ranks together."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass

import numpy as np

from paceline.comm.control import Control
from paceline.data import Inputs, Split, chunks, piece
from paceline.models import Array, Model, Tally, tally

# The number of samples to evaluate at once.
AT_ONCE = 1000


@dataclass(frozen=True)
class Score:
    """Sums over some samples: loss, correct answers, the samples' weights, and answers (0 for regression)."""

    loss: float = 0.0
    correct: int = 0
    weight: float = 0.0
    answers: int = 0

    def means(self) -> tuple[float | None, float | None]:
        """Return the mean loss and the accuracy; None if there is nothing to average."""
        return ratio(self.loss, self.weight), ratio(self.correct, self.answers)


def ratio(value: float, count: float) -> float | None:
    """Return the quotient, or None if the count is zero."""
    return float(value) / float(count) if count else None


def score(model: Model, split: Split, rank: int = 0, ranks: int = 1) -> Score:
    """Evaluate the model on the rank-th of `ranks` parts of a split."""
    start, stop = piece(len(split), rank, ranks)
    found = Score()
    for found in iterate_scores(model, samples_for(model, split, start=start, stop=stop)):  # noqa: B007
        pass
    return found


def samples_for(
    model: Model, split: Split, *, size: int = AT_ONCE, start: int = 0, stop: int | None = None
) -> Iterator[tuple[Inputs, Array]]:
    """Yield a split's samples, `size` at a time; zeros for a model that computes nothing (the simulator's `time_only`).

    >>> from paceline.data import load
    >>> from paceline.models.mlp import build
    >>> iris = load("iris")
    >>> [len(labels) for inputs, labels in samples_for(build(iris, 8), iris.test, size=10)]
    [10, 5]
    """
    if not getattr(model, "time_only", False):
        keeps = getattr(model, "keeps", None)
        yield from chunks(split, size=size, dtype=model.x.dtype, start=start, stop=stop, keeps=keeps)
        return
    stop = len(split) if stop is None else stop
    for first in range(start, stop, size):
        count, zero = min(size, stop - first), model.x.dtype.type(0)
        yield np.broadcast_to(zero, (count, *split.shape)), np.broadcast_to(zero, (count, *split.label_shape))


def iterate_scores(model: Model, samples: Iterable[tuple[Inputs, Array]]) -> Iterator[Score]:
    """Evaluate the model on chunks of samples; yield the sums so far after each."""
    total = Tally(0.0, 0.0, 0, 0)
    known = not getattr(model, "time_only", False)  # a time-only model has no results
    for inputs, labels in samples:
        found = tally(model, inputs, labels)
        if known:
            total = Tally(*map(operator.add, total, found))
        yield Score(total.loss, total.right, total.weight, total.answers)


def score_together(model: Model, split: Split, control: Control, pieces: int | None = None) -> Score:
    """Evaluate the model, identical on all ranks, on a whole split, of which every rank computes a part.

    `pieces`: evaluate this many fixed parts and add them in order, so that any number of ranks gives the same bits.
    """
    if pieces is not None:
        rows = np.zeros((pieces, 4))
        each = pieces // control.size
        for number in range(control.rank * each, (control.rank + 1) * each):
            part = score(model, split, number, pieces)
            rows[number] = astuple(part)
        loss, correct, weight, answers = (
            sum(column) for column in control.total(rows).reshape(-1, 4).T.tolist()
        )
        return Score(loss, int(correct), weight, int(answers))
    part = score(model, split, control.rank, control.size)
    loss, correct, weight, answers = control.total(np.array(astuple(part)))
    return Score(float(loss), int(correct), float(weight), int(answers))


def agree_on_buffers(model: Model, control: Control, *, trained: bool = True) -> None:
    """Average the buffers that differ between ranks (BatchNorm's statistics); integers are taken from rank 0. Collective.

    `trained`: True if this rank has seen samples; ranks that have not are ignored if others have.
    """
    if control.size == 1 or not model.buffers or getattr(model, "time_only", False):
        return
    heard, first_heard = control.vote(trained)
    if not heard:
        heard, first_heard, trained = control.size, 0, True
    is_first = control.rank == first_heard
    for buffer in model.buffers.values():
        ours = np.array(buffer, np.float64 if buffer.dtype.kind == "f" else buffer.dtype, order="C")
        room = (ours if is_first else np.zeros_like(ours)).reshape(-1)  # sent as bytes, whatever the type
        first = control.total(room.view(np.uint8)).view(ours.dtype).reshape(ours.shape)
        if buffer.dtype.kind == "f":  # equal buffers stay unchanged, bit for bit
            difference = control.total(ours - first if trained else np.zeros_like(ours))
            buffer[...] = first + difference / heard
        else:
            buffer[...] = first
