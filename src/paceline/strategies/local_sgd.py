"""Local SGD: every rank takes H steps alone on its own part of the data, then all continue from the average.

    for the first `warmup` steps:  x <- x - eta mean_i grad f(x; B_i)          gradients averaged: synchronous SGD
    then in rounds, from the common x:
        x_i   <- x, and H times  x_i <- x_i - eta grad f(x_i; B_i)             alone, no message
        Delta <- x - mean_i x_i                                                one allreduce a round
        v     <- mu v + Delta;  x <- x - nu (Delta + mu v)                     mu, nu = 0, 1: x <- mean_i x_i

Rounds are counted over the whole run and need not divide an epoch; the last one ends with the run. H = 1 is
`weight-average`, H = none (never) is `psgd`. The state of an update (momentum) stays local to each rank.

Cost, n parameters: one allreduce of n + 1 numbers every H steps.
Stich, Local SGD converges fast and communicates little (2018); warm-up: Lin et al., Don't use large mini-batches, use
local SGD (2018), "post-local"; outer momentum: Douillard et al., DiLoCo (2023), after Wang et al., SlowMo (2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from numpy.typing import NDArray

from paceline.strategies import (
    Change,
    Load,
    OnOwnData,
    Traffic,
    Trouble,
    averages_traffic,
    check_collective,
    check_minimum,
)
from paceline.updates import check_below_one, check_positive
from paceline.updates.nesterov import Nesterov
from paceline.worker import apply_update, start_update

if TYPE_CHECKING:
    from paceline.worker import Saves, Worker

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class LocalSgd(OnOwnData):
    """Every rank trains on its own share of the data; the weights are averaged every few steps."""

    every: int | None = 10
    """Steps of each rank between averages; none: only at the end of the run."""
    warmup: int = 0
    """Initial steps of each rank in which gradients are averaged instead of weights."""
    outer_momentum: float = 0.0
    """Nesterov momentum on the changes of the rounds; DiLoCo uses 0.9."""
    outer_lr: float = 1.0
    """The fraction of a round's change to apply; DiLoCo uses 0.7."""
    allreduce: str = "auto"
    """The collective that averages the weights; `paceline list collectives` shows them."""

    interval_option: ClassVar[str] = "every"
    saves: ClassVar[Saves] = "together"
    colour: ClassVar[str] = "#E69F00"
    marker: ClassVar[str] = "P"

    def __post_init__(self) -> None:
        if self.every is not None:
            check_minimum(1, "every of local-sgd (or none: at the end only)", self.every)
        check_minimum(0, "warmup of local-sgd", self.warmup)
        check_below_one("outer-momentum of local-sgd", self.outer_momentum)
        check_positive("outer-lr of local-sgd", self.outer_lr)
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

    def sends_messages(self) -> bool:
        return False

    def train(self, me: Worker) -> None:
        me.broadcast()  # x the same on every rank
        mean, turns = me.mean(self.allreduce), (me.last_epoch + 1) * me.shares.own_turns
        current = AveragingRound(self, me)
        for epoch in me.epochs():
            for batch in me.own_batches(epoch):
                if batch.step < self.warmup:
                    me.gradient(batch)
                    me.step(*mean.total(me.model.g, batch.count))  # x <- x - eta mean_i grad f(x; B_i)
                    if batch.step + 1 == self.warmup:
                        current.begin()
                    continue
                me.descend(batch)  # x_i <- x_i - eta grad f(x_i; B_i)
                current.now.steps += 1
                current.now.moved |= batch.count > 0
                if current.now.steps == self.every or batch.step + 1 == turns:
                    current.end(mean(me.model.x, current.now.moved))
            # In the middle of a round the average is only evaluated; training continues from the ranks' own parameters.
            shown = mean.preview(me.model.x, current.now.moved) if current.now.steps else None
            if me.validate(epoch, shown=shown):
                current = AveragingRound(self, me)  # with zero momentum


class AveragingRound:
    """A round from one average to the next: its start, its progress and the outer momentum."""

    def __init__(self, options: LocalSgd, me: Worker) -> None:
        self._own = me.model.x
        self._outer, self._nu = Nesterov(beta=options.outer_momentum), options.outer_lr
        self._plain = options.outer_momentum == 0 and options.outer_lr == 1
        self._x = self._own if self._plain else self._own.copy()
        self._v = {} if self._plain else start_update(self._outer, self._x)
        outer = {} if self._plain else {"x": self._x, "v": self._v}
        self.now = me.keep("round", steps=0, moved=False, **outer)
        """`steps`: taken, including turns without a batch; `moved`: this rank had a batch, and counts in the average."""

    def begin(self) -> None:
        """Start from the current parameters."""
        self._x[:] = self._own
        self.now.steps, self.now.moved = 0, False

    def end(self, mean: Array) -> None:
        """Continue from the average."""
        if self._plain:
            self._own[:] = mean  # x <- mean_i x_i
        else:
            delta = self._x - mean  # Delta <- x - mean_i x_i
            # v <- mu v + Delta; x <- x - nu (Delta + mu v)
            apply_update(self._outer, self._x, delta, self._nu, self._v)
            self._own[:] = self._x
        self.now.steps, self.now.moved = 0, False
