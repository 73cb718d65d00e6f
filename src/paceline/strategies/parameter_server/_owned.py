"""A piece of the parameters at its master: the values, what each worker was sent of them, and every update made."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.strategies.parameter_server._placement import Piece
from paceline.strategies.parameter_server.rules import Arrival, Rule
from paceline.vectors import rows
from paceline.worker import Worker

Array = NDArray[Any]
# A row for each thing that happened at a master, in order; replaying them all gives the same parameters.
EVENTS = ("event", "piece", "worker", "step", "tau", "gap")
APPLIED, DROPPED, LEFT, RESTORED = range(4)
# The gap of a piece with at least so many parameters is estimated from an eighth of them.
MANY = 4096


@dataclass
class Gradient:
    """What a worker said of the gradient that it is sending."""

    step: int = -1
    count: int = 0


def spread_out(values: Array) -> Array:
    """A view of some of many values, enough to estimate their mean square: every eighth block of 16.

    Reading all of them would take a tenth of a master's time; the blocks are cache lines of float32.

    >>> spread_out(np.arange(5.0)).size, spread_out(np.arange(27_344.0)).shape
    (5, (214, 16))
    """
    if values.size < MANY:
        return values
    return values[: values.size // 16 * 16].reshape(-1, 16)[::8]


class Owned:
    """One piece, with room for a gradient from every worker and for what every worker was last sent."""

    def __init__(
        self, me: Worker, piece: Piece, rule: Rule, workers: int, said: list[Gradient], log: array[float]
    ):
        self.piece = piece
        self.x = me.model.x[piece.part].copy()
        self.g, self.sent = rows(me.comm, workers, self.x), rows(me.comm, workers, self.x)
        if not me.time_only:
            self.sent[...] = self.x
        self.arrivals = 0
        self.halved = 1.0
        self._me, self._rule, self._said, self._log = me, rule, said, log
        self._plain_update = getattr(me.update, "plain", me.update)  # its time is a part of the rule's
        self._drift = np.zeros_like(self.x)
        self._needs_drift = getattr(rule, "needs_drift", True)
        self._sample, self._sent_sample = spread_out(self.x), [spread_out(row) for row in self.sent]
        self._apart = np.empty_like(self._sample)
        self._total = np.empty_like(self.x)
        self._count = 0
        self._version = self._era = 0
        self._sent_version = [0] * workers
        self._sent_era = [0] * workers
        self._arrival = Arrival(worker=0, tau=0, drift=self._drift, gap=0.0, scale=1.0, eta=0.0)
        self._begin(workers)

    def _begin(self, workers: int) -> None:
        time_only = self._me.time_only
        self._rule_state = {} if time_only else self._rule.start(self.x, workers)
        self._update_state = {} if time_only else self._plain_update.start(self.x)

    # ---- what a discipline does with it

    def fresh(self, worker: int) -> bool:
        return self._sent_version[worker] == self._version and not self.outdated(worker)

    def apply(self, worker: int) -> None:
        """x <- update(x, rule(g)), with a gradient that may be stale; not one of parameters that were given up."""
        if self.outdated(worker):
            self.drop(worker)
            return
        tau = self._version - self._sent_version[worker]
        self._update(worker, self.g[worker], self._said[worker].count, tau)
        self._note(APPLIED, worker, tau, self._arrival.gap)

    def add(self, worker: int) -> None:
        self._me.charge("combine" if self._count else "copy", self._total.nbytes)
        if self._count:
            np.add(self._total, self.g[worker], self._total)
        else:
            np.copyto(self._total, self.g[worker])
        self._count += self._said[worker].count
        self._note(APPLIED, worker, 0, 0.0)

    def apply_round(self) -> None:
        self._update(0, self._total, self._count, 0)
        self._count = 0

    def drop(self, worker: int) -> None:
        self._note(DROPPED, worker, self._version - self._sent_version[worker], 0.0)

    # ---- what its master does with it

    def outdated(self, worker: int) -> bool:
        """Whether the worker computed with values from before the last restoration."""
        return self._sent_era[worker] != self._era

    def answer(self, worker: int) -> Array:
        """The present values as the rule shows them to this worker, in memory that stays as it is until it answers."""
        if not self._me.time_only:
            self._rule.show(self.x, self.sent[worker], worker, self._rule_state)
        self._sent_version[worker], self._sent_era[worker] = self._version, self._era
        return self.sent[worker]  # type: ignore[no-any-return]

    def restore(self, x: Array) -> None:
        """Go back to earlier values, with half the learning rate and no memory of the gradients since."""
        np.copyto(self.x, x)
        self.halved /= 2
        self._era += 1
        self._count = 0
        self._begin(len(self.sent))

    def _update(self, worker: int, g: Array, count: int, tau: int) -> None:
        if not self._me.time_only:
            self._make_update(worker, g, count, tau)
        self._me.charge("rule", self.x.size)  # `answer` included
        self._version += 1

    def _make_update(self, worker: int, g: Array, count: int, tau: int) -> None:
        arrival = self._arrival
        arrival.worker, arrival.tau, arrival.scale, arrival.gap = worker, tau, 1.0 / count, 0.0
        arrival.shape = self.halved * self._me.shape(min(self.arrivals - 1, self._me.steps - 1))
        arrival.eta = self._me.rate * arrival.shape
        if self._needs_drift:
            np.subtract(self.x, self.sent[worker], self._drift)  #          x - x_then
        if tau:
            some = np.subtract(self._sample, self._sent_sample[worker], self._apart)
            arrival.gap = math.sqrt(float(np.vdot(some, some)) / some.size)
        factor = self._rule.correct(g, self.x, arrival, self._rule_state)
        if factor is None:
            raise TypeError(
                f"correct of {type(self._rule).__name__} must return a factor on eta (1.0: none); got None"
            )
        if factor:  # 0: the rule has made the whole step itself
            self._plain_update.apply(self.x, g, arrival.eta * factor, self._update_state, arrival.scale)

    def _note(self, event: int, worker: int, tau: int, gap: float) -> None:
        self._log.extend((event, self.piece.number, worker, self._said[worker].step, tau, gap))
