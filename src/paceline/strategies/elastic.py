"""Elastic averaging SGD, synchronous: every rank trains on its own and is pulled towards a common centre.

    every rank: x_i alone, and the same centre c
        x_i <- x_i - eta grad f(x_i; B_i)              at every step
        every tau steps, with m = (x_1 + … + x_p) / p: one allreduce
            x_i <- x_i - alpha (x_i - c)               pulled towards the centre
            c   <- c + p alpha (m - c)                 which all pull towards themselves

The centre is the result, and it is what is validated. Unlike in local SGD, ranks are never set to the same values: the
smaller alpha, the further they may move apart. By default p alpha = 0.9. The run ends with a pull.

Cost, n parameters: one allreduce of n + 1 numbers every tau steps; every rank holds a second copy of the parameters.
Zhang, Choromanska and LeCun, Deep learning with elastic averaging SGD (2015); there, a pull and the gradient of the
same step are both taken at the x_i before them, here one follows the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from paceline.errors import UsageError
from paceline.strategies import OnOwnData, check_collective, check_minimum
from paceline.updates import check_positive

if TYPE_CHECKING:
    from paceline.worker import Saves, Worker

BETA = 0.9  # The default of p alpha, from the paper.


@dataclass(frozen=True, kw_only=True)
class Elastic(OnOwnData):
    """Every rank trains on its own share of the data, and is periodically pulled towards a common centre (EASGD)."""

    every: int = 10
    """Steps of each rank between pulls."""
    moving_rate: float | None = None
    """The strength of a pull, alpha; by default 0.9 / ranks."""
    allreduce: str = "auto"
    """The collective that computes the mean of the ranks' weights; `paceline list collectives` shows them."""

    interval_option: ClassVar[str] = "every"
    saves: ClassVar[Saves] = "together"
    colour: ClassVar[str] = "#999933"
    marker: ClassVar[str] = ">"

    def __post_init__(self) -> None:
        check_minimum(1, "every of elastic", self.every)
        if self.moving_rate is not None:
            check_positive("moving-rate of elastic", self.moving_rate)
        check_collective(self.allreduce)

    def interval(self) -> int:
        return self.every

    def check(self, ranks: int) -> None:
        # A pull multiplies the distance of the mean from the centre by 1 - (p + 1) alpha.
        if self.moving_rate is not None and self.moving_rate * (ranks + 1) >= 2:
            raise UsageError(
                f"moving-rate of elastic must be below 2 / (ranks + 1), or the centre oscillates with growing amplitude; "
                f"got {self.moving_rate:g} with {ranks} ranks (default: {BETA} / ranks)"
            )

    def train(self, me: Worker) -> None:
        me.broadcast()
        x, p, turns = me.model.x, me.size, (me.last_epoch + 1) * me.shares.own_turns
        c, mean = me.keep("centre", c=x.copy()).c, me.mean(self.allreduce)  # x_1 = … = x_p = c
        alpha = BETA / p if self.moving_rate is None else self.moving_rate
        for epoch in me.epochs():
            for batch in me.own_batches(epoch):
                me.descend(batch)  # x_i <- x_i - eta grad f(x_i; B_i)
                if (batch.step + 1) % self.every == 0 or batch.step + 1 == turns:
                    m = mean(x)
                    x -= alpha * (x - c)  # x_i <- x_i - alpha (x_i - c)
                    c += p * alpha * (m - c)  # c <- c + p alpha (m - c)
            if me.validate(epoch, shown=c):
                c[:] = x
