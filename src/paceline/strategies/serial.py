"""Serial mini-batch SGD: one process, no communication; the baseline for all other strategies.

    for each batch B:
        g <- sum over B of grad f(x)
        x <- x - eta g / |B|

With a rule, the steps are those of a parameter server with one worker, whose gradients are never stale: the baseline
for servers whose rule is an optimizer of its own.

    y <- the values that the rule shows a worker
    for each batch B:
        g <- sum over B of grad f(y)
        x, y <- rule(x, g)

Cost: no message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from paceline.errors import UsageError
from paceline.strategies import Strategy
from paceline.strategies.parameter_server.rules import Fresh, check_rule, is_optimizer, make_rule

if TYPE_CHECKING:
    from paceline.updates import Update
    from paceline.worker import Saves, Worker


@dataclass(frozen=True, kw_only=True)
class Serial(Strategy):
    """One process, no communication: the baseline."""

    rule: str = ""
    """The rule of a parameter server, with options separated by slashes, for a baseline with the same optimizer."""

    saves: ClassVar[Saves] = "together"
    equals_serial: ClassVar[bool] = True
    colour: ClassVar[str] = "#000000"
    marker: ClassVar[str] = "o"

    def __post_init__(self) -> None:
        if self.rule and not is_optimizer(make_rule(self.rule)):
            raise UsageError(
                f"rule={self.rule} does nothing without staleness: choose serial, or another rule"
            )

    def optimizer(self) -> str:
        return self.rule

    def own_update(self, update: Update, rate: float) -> Update:
        return Fresh(rule=make_rule(self.rule), update=update, rate=rate) if self.rule else update

    def uses(self) -> Sequence[object]:
        return [make_rule(self.rule)] if self.rule else []

    def check_update(self, update: str, *, elementwise: bool = True) -> None:
        if self.rule:
            check_rule(self.rule, update)

    def check(self, ranks: int) -> None:
        if ranks != 1:
            raise UsageError(f"serial is one process; the job has {ranks} ranks: choose sync, or 1 rank")

    def check_reproducible(self) -> None:
        pass

    def train(self, me: Worker) -> None:
        if self.rule:
            rate = me.keep("rule", rate=me.rate).rate  # which divergence may halve
            me.update = self.own_update(me.update, rate)
        for epoch in me.epochs():
            for batch in me.batches(epoch):
                me.gradient(batch)  # g <- sum over B of grad f(x)
                me.step(me.model.g, batch.total)  # x <- x - eta g / |B|
            me.validate(epoch, shown=me.update_state().get("x") if self.rule else None)
