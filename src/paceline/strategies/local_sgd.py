"""Local SGD: every rank takes H steps alone on its own part of the data, then all go on from the average.

    for the first `warmup` steps:  x <- x - eta mean_i grad f(x; B_i)          gradients averaged: synchronous SGD
    then in rounds, from the common x:
        x_i   <- x, and H times  x_i <- x_i - eta grad f(x_i; B_i)             alone, no message
        Delta <- x - mean_i x_i                                                one allreduce a round
        v     <- mu v + Delta;  x <- x - nu (Delta + mu v)                     mu, nu = 0, 1: x <- mean_i x_i

Rounds are counted over the whole run and need not divide an epoch; the last one ends with the run. H = 1 is
`weight-average`, H = none (never) is `psgd`. What an update remembers (momentum) stays each rank's own.

Cost, n parameters: one allreduce of n + 1 numbers every H steps.
Stich, Local SGD converges fast and communicates little (2018); warm-up: Lin et al., Don't use large mini-batches, use
local SGD (2018), "post-local"; outer momentum: Douillard et al., DiLoCo (2023), after Wang et al., SlowMo (2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from paceline.strategies import Change, Load, Traffic, Trouble
from paceline.strategies._averaging import (
    OnOwnData,
    Together,
    at_least,
    averages_traffic,
    check_collective,
    validate_as,
)
from paceline.strategies._vectors import copy_of, put
from paceline.updates import below_one, positive
from paceline.updates.nesterov import Nesterov

if TYPE_CHECKING:
    from paceline.data import Batch
    from paceline.worker import Worker


@dataclass(frozen=True, kw_only=True)
class LocalSgd(OnOwnData):
    """Every rank trains on its own share of the data; the weights are averaged every so many steps."""

    every: int | None = 10
    """Steps of each rank between averages; none: only at the end of the run."""
    warmup: int = 0
    """Steps of each rank, at first, in which gradients are averaged in the place of weights."""
    outer_momentum: float = 0.0
    """Nesterov's momentum on what the rounds change; DiLoCo's is 0.9."""
    outer_lr: float = 1.0
    """How far to go along what a round changed; DiLoCo's is 0.7."""
    allreduce: str = "auto"

    interval_option: ClassVar[str] = "every"
    colour: ClassVar[str] = "#E69F00"
    marker: ClassVar[str] = "P"

    def __post_init__(self) -> None:
        if self.every is not None:
            at_least(1, "every of local-sgd (or none: at the end only)", self.every)
        at_least(0, "warmup of local-sgd", self.warmup)
        below_one("outer-momentum of local-sgd", self.outer_momentum)
        positive("outer-lr of local-sgd", self.outer_lr)
        check_collective(self.allreduce)

    def interval(self) -> int | None:
        return self.every

    def traffic(self, load: Load) -> Traffic:
        return averages_traffic(load, self.allreduce, every=self.every, warmup=self.warmup)

    def remedies(self, trouble: Trouble, *, update: str = "sgd") -> Sequence[Change]:
        if trouble == "drift" and not self.outer_momentum:
            return [Change(options={"outer_momentum": 0.9, "outer_lr": 0.7})]
        return super().remedies(trouble, update=update)

    @classmethod
    def offers(cls, trouble: Trouble, *, ranks: int, amount: int = 1) -> Sequence[Change]:
        why = {
            "single average": "averages on the way",
            "uneven steps": "unevenness cancels out between averages",
            "costly exchange": "fewer exchanges",
        }
        if trouble not in why or (amount < 2 and trouble != "single average"):
            return []
        return [Change(options={"every": amount}, why=why[trouble])]

    def train(self, me: Worker) -> None:
        me.broadcast()  # x the same on every rank
        together, turns = Together(me, self.allreduce), (me.last_epoch + 1) * me.shares.own_turns
        current = Round(self, me, together)
        for epoch in me.epochs():
            for batch in me.own_batches(epoch):
                me.gradient(batch)
                if batch.step < self.warmup:
                    me.step(*together.total(me.model.g, batch.count))  # x <- x - eta mean_i grad f(x; B_i)
                    if batch.step + 1 == self.warmup:
                        current.begin()
                    continue
                me.step(me.model.g, batch.count)  # x_i <- x_i - eta grad f(x_i; B_i)
                current.took(batch)
                if current.steps == self.every or batch.step + 1 == turns:
                    current.end()
            if (
                current.steps
            ):  # in the middle of a round: its average is looked at, and training goes on without it
                back = validate_as(me, epoch, together.glimpse(me.model.x, current.moved))
            else:
                back = me.validate(epoch)
            if back:
                current = Round(self, me, together)  # whose momentum is 0


class Round:
    """From one average to the next: where it began, how far it is, and what the outer momentum remembers."""

    def __init__(self, options: LocalSgd, me: Worker, together: Together) -> None:
        self._me = me
        self._together = together
        self._outer = Nesterov(beta=options.outer_momentum)
        self._nu = options.outer_lr
        self._plain = options.outer_momentum == 0 and options.outer_lr == 1
        self._v = {} if self._plain or me.time_only else self._outer.start(me.model.x)
        self._x = me.model.x if self._plain else copy_of(me, me.model.x)
        self.steps, self.moved = 0, False

    def begin(self) -> None:
        """Start from the parameters as they are."""
        put(self._me, self._x, self._me.model.x)
        self.steps, self.moved = 0, False

    def took(self, batch: Batch) -> None:
        """A step was taken, or a turn had no batch: a rank that had none in a round does not count in its average."""
        self.steps, self.moved = self.steps + 1, self.moved or batch.count > 0

    def end(self) -> None:
        """Average; go on from there."""
        me = self._me
        mean = self._together.mean(me.model.x, self.moved)
        if self._plain:
            put(me, me.model.x, mean)  # x <- mean_i x_i
        else:
            if not me.time_only:
                delta = self._x - mean  # Delta <- x - mean_i x_i
                self._outer.apply(
                    self._x, delta, self._nu, self._v
                )  # v <- mu v + Delta; x <- x - nu (Delta + mu v)
            me.charge("combine", mean.nbytes)
            me.charge("update", mean.size)
            put(me, me.model.x, self._x)
        me.watch.lap("exchange")
        self.steps, self.moved = 0, False
