"""Synchronous data-parallel SGD: ranks compute pieces of a batch, gradients are summed, all take the same step.

    for each global batch B, cut into pieces B_1 … B_p:
        g_i <- sum over B_i of grad f(x)             each rank, its piece
        g   <- g_1 + … + g_p                         one exchange
        x   <- x - eta g / |B|                       the same step everywhere

With `shared-memory` the exchange copies nothing: the ranks of a node share one x, each rank sums and updates its own
1/p of it where it lies, and two barriers keep them in step. p changes only the order of additions: the result is
serial SGD's, up to rounding.

Between nodes, `overlap` sends the gradient of each bucket of layers while the backward pass computes the others (in
another order of additions), and `compress` sends it in fewer bytes (and rounds it).

Cost per step, n parameters: that of the collective; with shared-memory each rank reads n numbers and sends nothing.
Chen et al., Revisiting distributed synchronous SGD (2016); for the sliced update Rajbhandari et al., ZeRO (2020);
for the overlap Li et al., PyTorch distributed (2020).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.collectives import IN_ORDER, Sending, parse_compression, refuse_one_node
from paceline.errors import UsageError
from paceline.strategies import Change, Load, Strategy, Traffic, Trouble, check_collective, exchange_traffic

if TYPE_CHECKING:
    from paceline.worker import Saves, Worker

# Reasons to use it instead of another strategy.
SMALLER = "slower ranks get smaller pieces"
REASONS: dict[Trouble, str] = {
    "queue": "no rank in the middle, same result",
    "idle ranks": "every rank computes",
    "bad average": "sums gradients instead of averaging parameters",
    "drift": "",
}


@dataclass(frozen=True, kw_only=True)
class Sync(Strategy):
    """In each step, ranks compute pieces of one batch, sum gradients with any collective, and apply the same update."""

    allreduce: str = "auto"
    """The collective that sums the gradients; `paceline list collectives` shows them."""
    balance: bool = False
    """Give slower ranks smaller pieces, based on measured times."""
    overlap: bool = False
    """Send the gradient of each bucket of layers between nodes while the backward pass continues."""
    bucket: str = "auto"
    """The megabytes of a bucket; auto: chosen from what messages of two sizes are measured to cost."""
    compress: str = "none"
    """How gradients are sent between nodes: none, bfloat16, float16, topk:share=0.01 or powersgd:rank=4."""

    saves: ClassVar[Saves] = "together"
    equals_serial: ClassVar[bool] = True
    in_place: ClassVar[bool] = True
    colour: ClassVar[str] = "#0072B2"
    marker: ClassVar[str] = "s"

    def __post_init__(self) -> None:
        check_collective(self.allreduce)
        parse_compression(self.compress)
        self._megabytes()
        if self.bucket != "auto" and not self.overlap:
            raise UsageError("bucket of sync needs overlap=true")
        if self.allreduce == "shared-memory":
            self.check_nodes(1)
        if self.compress != "none":  # rounds gradients
            object.__setattr__(self, "equals_serial", False)

    def _megabytes(self) -> float:
        """Return the megabytes of a bucket; 0 for auto."""
        try:
            size = 0.0 if self.bucket == "auto" else float(self.bucket)
        except ValueError:
            size = -1
        if self.bucket != "auto" and not 0 < size < inf:
            raise UsageError(
                f"bucket of sync must be auto or a number of megabytes above 0; got {self.bucket}"
            )
        return size

    def sends_messages(self) -> bool:
        return self.compress != "none" or (self.overlap and self.allreduce != "native")

    def even_pieces(self) -> bool:
        return not self.balance

    def traffic(self, load: Load) -> Traffic:
        sends_whole = not self.overlap and self.compress == "none"
        return exchange_traffic(
            load, self.allreduce, calls=load.steps, when="at every batch", planned=not sends_whole
        )

    def remedies(self, trouble: Trouble, *, update: str = "sgd") -> Sequence[Change]:
        if trouble == "slow ranks" and not self.balance:
            return [Change(options={"balance": True}, why=SMALLER)]
        if trouble == "exposed exchange" and not self.overlap:
            return [Change(options={"overlap": True}, why="sends gradients during the backward pass")]
        if trouble == "long messages" and self.compress == "none":
            return [Change(options={"compress": "bfloat16"}, why="half the bytes; rounds gradients")]
        if trouble == "undivided update" and self.allreduce != "shared-memory":
            return [Change(options={"allreduce": "shared-memory"}, why="each rank updates its own part")]
        return super().remedies(trouble, update=update)

    @classmethod
    def offers(cls, trouble: Trouble, *, ranks: int, amount: int = 1) -> Sequence[Change]:
        if trouble == "slow ranks":
            return [Change(options={"balance": True}, why=SMALLER)]
        return [Change(why=REASONS[trouble])] if trouble in REASONS else []

    def variants(self, ranks: int, nodes: int = 1) -> Sequence[Mapping[str, Any]]:
        return [{"overlap": True}, {"compress": "bfloat16"}] if nodes > 1 else []

    def check_reproducible(self) -> None:
        if self.balance:
            raise UsageError("sync:balance=true cannot be reproducible: its pieces depend on measured times")
        if self.overlap or self.compress != "none":
            option = "overlap=true" if self.overlap else f"compress={self.compress}"
            raise UsageError(
                f"sync:{option} cannot be reproducible: gradients are not added in a fixed order"
            )
        if self.allreduce not in IN_ORDER:
            raise UsageError(
                f"reproducible needs a collective that adds in a fixed order: {', '.join(IN_ORDER)}; got {self.allreduce}"
            )

    def check_nodes(self, nodes: int) -> None:
        if self.allreduce == "shared-memory" and nodes > 1:
            raise UsageError(
                f"shared-memory needs all ranks on one node; there are {nodes} nodes; choose hierarchical"
            )
        sending = Sending(overlap=self.overlap, compress=self.compress)
        if nodes == 1 and self.allreduce in ("auto", "hierarchical", "shared-memory") and not sending.plain:
            refuse_one_node(sending, self.allreduce)

    def measured_work(self) -> str:
        return f"sync {self.allreduce}"

    def train(self, me: Worker) -> None:
        me.broadcast()  # x the same on every rank
        with me.exchange(
            self.allreduce,
            factors=True,
            overlap=self.overlap,
            bucket=self._megabytes(),
            compress=self.compress,
        ) as exchange:
            for epoch in me.epochs():
                for batch in me.batches(epoch):
                    me.gradient(batch, exchange.ready)  # g_i <- sum over B_i of grad f(x)
                    g = exchange.reduce()  # g   <- (g_1 + … + g_p)[mine]
                    me.step(g, batch.total, exchange.part)  # x[mine] <- x[mine] - eta g / |B|
                    exchange.publish()  # x complete on every rank
                    if self.balance and (batch.step % 128 == 0 or batch.step in (8, 16, 32, 64)):
                        me.balance()
                me.validate(epoch)
