"""Weight averaging at every step: each rank takes a step of its own, then all continue from the average of the weights.

    for each turn, every rank with a batch B_i of its own part of the data:
        x_i <- x_i - eta grad f(x_i; B_i)              a local step
        x_i <- (x_1 + … + x_p) / p                     one Allreduce of all weights in one array

Ranks that have no batch left in a turn do not count in its average. With `sgd` this is synchronous SGD on the mean of
the ranks' gradients, p batches at once; with a stateful update (momentum, adam) it is not, because each rank's
state depends only on its own gradients.

Cost per turn, n parameters: one allreduce of n + 1 numbers (the last counts the ranks).
McDonald, Hall and Mann, Distributed training strategies for the structured perceptron (2010): "iterative mixing".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from paceline.strategies import OnOwnData, check_collective

if TYPE_CHECKING:
    from paceline.worker import Saves, Worker


@dataclass(frozen=True, kw_only=True)
class WeightAverage(OnOwnData):
    """Every rank trains on its own share of the data; after every batch the weights are averaged."""

    allreduce: str = "auto"
    """The collective that averages the weights; `paceline list collectives` shows them."""

    saves: ClassVar[Saves] = "together"
    colour: ClassVar[str] = "#56B4E9"
    marker: ClassVar[str] = "X"

    def __post_init__(self) -> None:
        check_collective(self.allreduce)

    def sends_messages(self) -> bool:
        return False

    def train(self, me: Worker) -> None:
        me.broadcast()  # x_1 = … = x_p
        x, mean = me.model.x, me.mean(self.allreduce)
        for epoch in me.epochs():
            for batch in me.own_batches(epoch):
                me.descend(batch)  # x_i <- x_i - eta grad f(x_i; B_i)
                x[:] = mean(x, batch.count > 0)  # x_i <- (x_1 + … + x_p) / p
            me.validate(epoch)
