"""What all ranks of a run come to together: seconds, samples and messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.stopwatch import KINDS
from paceline.worker import COLUMNS, Worker

Array = NDArray[Any]
TRAINING = [kind != "evaluation" for kind in KINDS]


@dataclass(frozen=True)
class Collected:
    """The sums and means of all ranks, on every rank; what is known of each rank by itself, on rank 0 alone."""

    seconds: dict[str, float]
    """By kind, mean over the ranks."""
    busy: float
    """Seconds of training of the rank that had most."""
    samples: int
    bytes_sent: int
    messages_sent: int
    by_rank: Array
    """Seconds, a row each rank and a column each kind; no rows but on rank 0."""
    logs: list[Array]


def collect(me: Worker, traffic: tuple[int, int], *, in_step: bool) -> Collected:
    """Sum up the run. Collective; no rank but the first gets anything that is as long as there are ranks."""
    rows = np.array(me.log).reshape(-1, len(COLUMNS))
    logs = me.control.gather(rows)
    of_ranks = me.control.gather(np.array([[me.watch.seconds[kind] for kind in KINDS]]))
    totals = me.control.total(np.array([rows[:, COLUMNS.index("count")].sum(), *traffic]))
    by_rank = np.concatenate(of_ranks) if of_ranks else np.empty((0, len(KINDS)))
    told = np.empty(len(KINDS) + 1)
    if me.rank == 0:
        waited = waiting(logs) if in_step else np.zeros(me.size)
        by_rank[:, KINDS.index("exchange")] -= waited
        by_rank[:, KINDS.index("wait")] += waited
        told[:-1] = by_rank.mean(axis=0)
        told[-1] = by_rank[:, TRAINING].sum(axis=1).max()
    *means, busy = me.control.from_first(told).tolist()
    samples, bytes_sent, messages_sent = map(int, totals)
    seconds = dict(zip(KINDS, means, strict=True))
    return Collected(seconds, busy, samples, bytes_sent, messages_sent, by_rank, logs)


def waiting(logs: list[Array]) -> Array:
    """Seconds that each rank waited for others in the exchanges of the steps that all ranks took together.

    Nobody leaves an exchange before the last rank has come to it, so the rank that spent least in it came last and
    waited for no one; what the others spent more than it, they waited.

    >>> step = lambda seconds: np.array([[0, 0, 0, 1, 0, seconds, 0, 0, 0]])
    >>> waiting([step(3.0), step(1.0)]).tolist()
    [2.0, 0.0]
    """
    if len({len(log) for log in logs}) != 1 or len(logs) == 1:
        return np.zeros(len(logs))
    spent = np.stack([log[:, COLUMNS.index("exchange")] for log in logs])
    return (spent - spent.min(axis=0)).sum(axis=1)  # type: ignore[no-any-return]
