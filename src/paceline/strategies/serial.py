"""Serial mini-batch SGD: one process, no communication; the baseline for all other strategies.

    for each batch B:
        g <- sum over B of grad f(x)
        x <- x - eta g / |B|

Cost: no message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from paceline.errors import UsageError
from paceline.strategies import Strategy

if TYPE_CHECKING:
    from paceline.worker import Saves, Worker


@dataclass(frozen=True, kw_only=True)
class Serial(Strategy):
    """One process, no communication: the baseline."""

    saves: ClassVar[Saves] = "together"
    equals_serial: ClassVar[bool] = True
    colour: ClassVar[str] = "#000000"
    marker: ClassVar[str] = "o"

    def check(self, ranks: int) -> None:
        if ranks != 1:
            raise UsageError(f"serial is one process; the job has {ranks} ranks: choose sync, or 1 rank")

    def check_reproducible(self) -> None:
        pass

    def train(self, me: Worker) -> None:
        for epoch in me.epochs():
            for batch in me.batches(epoch):
                me.gradient(batch)  # g <- sum over B of grad f(x)
                me.step(me.model.g, batch.total)  # x <- x - eta g / |B|
            me.validate(epoch)
