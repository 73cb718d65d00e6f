"""Evaluation of a model: on a part of the samples, or on all ranks together."""

from __future__ import annotations

import json
import numbers
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from paceline.comm.control import Control
from paceline.data import Inputs, Split, chunks, piece
from paceline.errors import AgreedError, UsageError
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
    metrics: dict[str, float] = field(default_factory=dict)
    """The user's own metrics, by name; they are no sums."""

    @property
    def sums(self) -> tuple[float, int, float, int]:
        """The four sums."""
        return self.loss, self.correct, self.weight, self.answers

    def means(self) -> tuple[float | None, float | None]:
        """Return the mean loss and the accuracy; None if there is nothing to average."""
        return ratio(self.loss, self.weight), ratio(self.correct, self.answers)


def ratio(value: float, count: float) -> float | None:
    """Return the quotient, or None if the count is zero."""
    return float(value) / float(count) if count else None


Metrics = Mapping[str, Callable[[Any, Any], Any]]
"""Functions of the outputs and labels of all samples of a split, by name."""


def check_metrics(metrics: Any) -> None:
    """Raise a UsageError for anything but functions by name.

    >>> check_metrics({"perplexity": 3})
    Traceback (most recent call last):
    paceline.errors.UsageError: a metric must be a function of outputs and labels; perplexity is of type int
    """
    if not isinstance(metrics, Mapping):
        raise UsageError(
            "metrics must be functions of outputs and labels by name, such as {'error': f}; "
            f"got {type(metrics).__name__}"
        )
    for name, function in metrics.items():
        if not isinstance(name, str) or not name.isprintable() or not name.strip() or set(name) & set("<>=,"):
            raise UsageError(
                f"the name of a metric must be a printable text without < > = and commas; got {name!r}"
            )
        if name in RESERVED:
            raise UsageError(f"{name} is always recorded: choose another name for the metric")
        if not callable(function):
            raise UsageError(
                f"a metric must be a function of outputs and labels; {name} is of type {type(function).__name__}"
            )


RESERVED = ("loss", "accuracy")


class Outputs:
    """The outputs and labels of samples as they come, for metrics of all of them."""

    def __init__(self, model: Model, metrics: Metrics | None) -> None:
        self._model, self._metrics = model, {} if getattr(model, "time_only", False) else metrics or {}
        self._outputs: list[Array] = []
        self._labels: list[Array] = []

    def add(self, inputs: Any, labels: Array) -> None:
        """Compute the outputs of some samples and keep them."""
        if self._metrics:
            compute = getattr(self._model, "outputs", None) or self._model.predict
            self._outputs.append(np.asarray(compute(inputs)))
            self._labels.append(np.asarray(labels))

    def gather(self, split: Split, control: Control) -> None:
        """Move everything to rank 0, in the order of the ranks. Collective."""
        if not self._metrics or control.size == 1 or not len(split):
            return
        if not self._labels:  # this rank has no samples: what it sends must have the type of the others' rows
            for inputs, labels in samples_for(self._model, split, size=1, stop=1):
                self.add(inputs, labels)
            self._outputs[0], self._labels[0] = self._outputs[0][:0], self._labels[0][:0]
        for kept in (self._outputs, self._labels):
            kept[:] = control.gather(np.concatenate(kept))

    def compute(self) -> dict[str, float]:
        """Return the metrics of all samples; none if there are no samples."""
        if not self._metrics or not any(map(len, self._labels)):
            return {}
        outputs: Any = np.concatenate(self._outputs)
        labels: Any = np.concatenate(self._labels)
        if hasattr(self._model, "module"):
            import torch

            outputs, labels = torch.from_numpy(outputs), torch.from_numpy(labels)
            labels = labels if labels.is_floating_point() else labels.long()
        return {name: _measure(name, function, outputs, labels) for name, function in self._metrics.items()}

    def compute_together(self, split: Split, control: Control) -> dict[str, float]:
        """Return the metrics of all ranks' samples on every rank; an error on rank 0 is one on all. Collective."""
        if not self._metrics or control.size == 1:
            return self.compute()
        self.gather(split, control)
        found: dict[str, Any] = {}
        if control.rank == 0:
            try:
                found = {"values": self.compute()}
            except UsageError as error:
                found = {"error": str(error)}
        found = json.loads(control.broadcast_text(json.dumps(found)))
        if "error" in found:
            raise AgreedError(found["error"])
        values: dict[str, float] = found["values"]
        return values


def _measure(name: str, function: Callable[[Any, Any], Any], outputs: Any, labels: Any) -> float:
    try:
        value = function(outputs, labels)
        value = value.item() if hasattr(value, "item") else value
    except Exception as error:
        words = " ".join(str(error).split())
        raise UsageError(f"the metric {name} failed: {type(error).__name__}: {words}") from error
    if isinstance(value, numbers.Real):
        return float(value)
    raise UsageError(f"the metric {name} must return a number; got {type(value).__name__}")


def score(model: Model, split: Split, rank: int = 0, ranks: int = 1, outputs: Outputs | None = None) -> Score:
    """Evaluate the model on the rank-th of `ranks` parts of a split."""
    start, stop = piece(len(split), rank, ranks)
    found = Score()
    samples = samples_for(model, split, start=start, stop=stop)
    for found in iterate_scores(model, samples, outputs):  # noqa: B007
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
        count, dtype = min(size, stop - first), model.x.dtype
        yield _zeros((count, *split.shape), dtype), _zeros((count, *split.label_shape), dtype)


@lru_cache(maxsize=64)
def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return zeros that take no memory and cannot be written."""
    return np.broadcast_to(dtype.type(0), shape)


def iterate_scores(
    model: Model, samples: Iterable[tuple[Inputs, Array]], outputs: Outputs | None = None
) -> Iterator[Score]:
    """Evaluate the model on chunks of samples; yield the sums so far after each. `outputs` keeps what metrics need."""
    total = Tally(0.0, 0.0, 0, 0)
    known = not getattr(model, "time_only", False)  # a time-only model has no results
    for inputs, labels in samples:
        found = tally(model, inputs, labels)
        if known:
            total = Tally(*map(operator.add, total, found))
        if outputs is not None:
            outputs.add(inputs, labels)
        yield Score(total.loss, total.right, total.weight, total.answers)


def score_together(
    model: Model,
    split: Split,
    control: Control,
    pieces: int | None = None,
    metrics: Metrics | None = None,
) -> Score:
    """Evaluate the model, identical on all ranks, on a whole split, of which every rank computes a part.

    `pieces`: evaluate this many fixed parts and add them in order, so that any number of ranks gives the same bits.
    """
    outputs = Outputs(model, metrics)
    if pieces is not None:
        rows = np.zeros((pieces, 4))
        each = pieces // control.size
        for number in range(control.rank * each, (control.rank + 1) * each):
            part = score(model, split, number, pieces, outputs)
            rows[number] = part.sums
        loss, correct, weight, answers = (
            sum(column) for column in control.total(rows).reshape(-1, 4).T.tolist()
        )
        found = outputs.compute_together(split, control)
        return Score(loss, int(correct), weight, int(answers), found)
    part = score(model, split, control.rank, control.size, outputs)
    loss, correct, weight, answers = control.total(np.array(part.sums))
    found = outputs.compute_together(split, control)
    return Score(float(loss), int(correct), float(weight), int(answers), found)


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
        if (
            buffer.dtype.kind == "f"
        ):  # equal numbers stay unchanged, bit for bit; so do those that are infinite
            difference = np.zeros_like(ours)
            np.subtract(ours, first, out=difference, where=(ours != first) & trained)
            buffer[...] = first + control.total(difference) / heard
        else:
            buffer[...] = first
