"""HogWild: one x in shared memory, which all ranks of a node read and write without locks.

    each rank of a node, for each of its batches B:
        y <- x                                   each number once, as it is, while others write it
        g <- sum over B of grad f(y)
        x <- x - eta g / |B|                     straight into the shared x, while others do the same
    every H turns, the first rank of each node k of K:
        s <- x_k;  m <- sum over k of p_k/p s_k  the mean of the nodes, weighted by their ranks
        x_k <- x_k + (m - s)                     so that what others wrote meanwhile is not lost

The copy y keeps the forward and the backward pass consistent: both must use the same weights. The gradient is stale by
the updates that others make while it is computed, p - 1 on average. If two ranks update the same number at the same
moment, one of the updates may be lost. At the end of an epoch all ranks synchronize, and x does not change.

Cost per step: no message, two passes over the shared x; with K nodes, one allreduce of n numbers among K ranks every
H turns.
Niu, Recht, Ré and Wright, HOGWILD! (2011); one replica per node as in Zhang and Ré, DimmWitted (2014).
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from paceline.errors import UsageError, unknown
from paceline.record import Table
from paceline.strategies import Load, Strategy, Traffic
from paceline.strategies.serial import Serial

if TYPE_CHECKING:
    from paceline.worker import Saves, SharedX, Worker

BACKENDS = ("mpi", "torch")


@dataclass(frozen=True, kw_only=True)
class Hogwild(Strategy):
    """All ranks of a node read and write one shared `x` without locks; it is averaged between nodes.

    >>> Hogwild().every
    16
    """

    whole_batches: ClassVar[bool] = True
    saves: ClassVar[Saves] = "alone"
    in_step: ClassVar[bool] = False
    colour: ClassVar[str] = "#CC79A7"
    marker: ClassVar[str] = "v"

    every: int = 16
    """Steps of a rank between averages of the nodes."""
    backend: Literal["mpi", "torch"] = "mpi"
    """The shared memory for x: an MPI window, or a torch.multiprocessing tensor (one machine, no MPI)."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise UsageError(f"every of hogwild must be at least 1; got {self.every}")
        if self.backend not in BACKENDS:
            raise unknown("backend of hogwild", self.backend, BACKENDS)

    def launcher(self) -> Literal["mpi", "torch"]:
        return self.backend

    def interval(self) -> int:
        return self.every

    def traffic(self, load: Load) -> Traffic:
        if load.nodes.count > 1:
            return Traffic.unknown("several nodes")
        return Traffic(bytes=0, messages=0, words="nothing: one x in shared memory")

    def check(self, ranks: int) -> None:
        if self.backend == "torch" and find_spec("torch") is None:
            raise UsageError(
                "hogwild:backend=torch needs PyTorch, which is not installed; pip install 'paceline[torch]'"
            )

    def train(self, me: Worker) -> None:
        if me.size == 1:
            Serial().train(me)
            return
        me.broadcast()  # x the same on every node
        with me.shared_x() as shared:
            me.before_saving(lambda: shared.read(me.model.x))
            if shared.several_nodes:  # whose first ranks average in step
                me.save_together()
            for epoch in me.epochs():
                for turn, batch in enumerate(me.turns(epoch), me.turn + 1):
                    shared.read(me.model.x)  # y <- x
                    me.gradient(batch)  # g <- sum over B of grad f(y)
                    if batch.count:
                        with shared.write() as x:
                            me.step(me.model.g, batch.count, x=x)  # x <- x - eta g / |B|
                    if turn % self.every == 0:
                        shared.average()  # x_k <- x_k + (m - s)
                me.may_stop()
                shared.meet()  # from here on no rank writes x
                shared.average(at_rest=True)  # x_k <- m, the same bits everywhere
                shared.meet()
                shared.read(me.model.x)
                if me.validate(epoch):
                    shared.put(me.model.x)  # back to the last good parameters
                shared.meet()  # no rank writes x before all have read it
            with me.evaluation():
                self._report(me, shared)

    def _report(self, me: Worker, shared: SharedX) -> None:
        shared.taus.observe_rest()
        ages, logs = shared.ages, me.gather_table("staleness")
        for theirs in me.control.gather(ages.counts)[1:]:
            ages.add_counts(theirs)
        overlapped = int(me.control.total(np.array([shared.overlapping]))[0])
        if me.rank == 0:
            me.tables["staleness"] = Table(logs, ("rank", "tau"), types={}, default=np.int64)
            if ages.total:
                me.findings["staleness"] = ages.summary()
                me.findings["overlapping_updates"] = overlapped
                me.remarks.append(
                    f"a gradient was {ages.mean:.1f} updates old on average and {ages.largest} at most; "
                    f"{100 * overlapped / ages.total:.1f} % of the updates overlapped with another"
                )
