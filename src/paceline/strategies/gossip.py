"""Gossip: every rank trains its own model and sends it, every few steps, to another rank chosen at random.

    each rank i, from w_i = 1/p:
        for each (x', w') that has arrived:  x_i <- (w_i x_i + w' x') / (w_i + w');  w_i <- w_i + w'
        x_i <- x_i - eta g / |B|                               its own batch, its own step
        every H steps:  w_i <- w_i / 2;  send (x_i, w_i) to a random other rank, without waiting

No rank waits for another within an epoch. All weights, with those of messages in flight, add up to 1, and merging
does not change the sum of w x. So the weighted mean of all models, sum of w_i x_i, is preserved; it is evaluated at the
end of an epoch, when all messages have arrived, and it is the result of the run.

Cost: per rank, a message of n numbers and a weight every H steps; at the end of an epoch, one allreduce of n numbers.
Blot et al., Gossip training for deep learning (2016); Kempe et al., Gossip-based computation of aggregates (2003).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from paceline.errors import UsageError
from paceline.strategies import Load, Strategy, Traffic
from paceline.strategies._mail import Mail, merge
from paceline.strategies.serial import Serial

if TYPE_CHECKING:
    from paceline.worker import Saves, Worker

Array = NDArray[Any]
# Messages of one rank that may be in flight at once; beyond that, the rank continues without sending.
SLOTS = 2
# A rank whose weight has fallen to this fraction of its fair share stops sending until it receives something: its
# messages would count for next to nothing, and repeated halving would reach 0. So at most ten messages of one rank
# queue at a slow one.
LEAST = 2.0**-10
# The numbers of all ranks' weights, at most, that are recorded: those of the last epochs.
NOTED = 100_000
# The places of the two reasons why messages were not sent.
LIGHT, BUSY = 0, 1


@dataclass(frozen=True, kw_only=True)
class Gossip(Strategy):
    """Every rank trains its own model and asynchronously averages it with those of random other ranks.

    >>> Gossip(every=0)
    Traceback (most recent call last):
    paceline.errors.UsageError: every of gossip must be at least 1; got 0
    """

    whole_batches: ClassVar[bool] = True
    saves: ClassVar[Saves] = "alone"
    in_step: ClassVar[bool] = False
    averages: ClassVar[bool] = True
    interval_option: ClassVar[str] = "every"
    colour: ClassVar[str] = "#332288"
    marker: ClassVar[str] = "p"

    every: int = 1
    """Steps of a rank between two messages."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise UsageError(f"every of gossip must be at least 1; got {self.every}")

    def interval(self) -> int:
        return self.every

    def traffic(self, load: Load) -> Traffic:
        return Traffic.unknown("which messages are skipped depends on timing")

    def train(self, me: Worker) -> None:
        if me.size == 1:
            Serial().train(me)
            return
        me.broadcast()  # x the same on every rank
        x, own = me.model.x, me.vector()
        with me.preparation():  # includes the first allreduce, which sets up what later ones use
            own[:] = x
            me.allreduce(own)
            own[:] = x
            comm = me.comm.Dup()  # only for these messages
            mail = Mail(me.vector, comm, slots=SLOTS)
        now = me.keep(
            "gossip",
            own=own,
            w=1 / me.size,
            draw=np.random.default_rng((me.seed, me.rank)),
            not_sent=np.zeros(2, np.int64),
        )
        if me.resumed_from:  # the weight of messages that were in flight is lost
            total = float(me.control.total(np.array([now.w]))[0])
            now.w = now.w / total if me.resumed_from == me.size else 1 / me.size

        def collect() -> None:
            for message in mail.receive_rest(me.control):
                now.w = merge(x, now.w, message)
            mail.flush()

        def put_back() -> None:
            if averaging:  # another rank died meanwhile
                x[:] = own

        averaging = False
        me.before_saving(put_back)
        me.before_stopping(collect)
        for epoch in me.epochs():
            if me.turn == 0:
                x[:] = own  # continue from this rank's own model
            for turn, batch in enumerate(me.turns(epoch), me.turn + 1):
                while (message := mail.next()) is not None:
                    now.w = merge(x, now.w, message)
                me.descend(batch)  # x_i <- x_i - eta g / |B|, g the sum over B of grad f(x_i)
                if turn % self.every:
                    continue
                if now.w < LEAST / me.size:
                    now.not_sent[LIGHT] += 1
                elif (envelope := mail.find_free()) is None:
                    now.not_sent[BUSY] += 1
                else:
                    now.w /= 2  # w_i <- w_i / 2
                    envelope.weight[0], envelope.x[:] = now.w, x
                    mail.send(envelope, dest=(me.rank + int(now.draw.integers(1, me.size))) % me.size)
            me.may_stop()
            collect()
            own[:] = x
            averaging = True
            x *= now.w
            me.allreduce(x)  # x <- sum of w_i x_i
            averaging = False
            self._record_disagreement(me, own, now.w)
            if me.validate(epoch):  # restored: all ranks restart from there
                own[:] = x
                now.w = 1 / me.size
        with me.evaluation():
            self._report(me, mail, now.not_sent)
        comm.Free()

    def _record_disagreement(self, me: Worker, own: Array, w: float) -> None:
        """Record how far apart the ranks' models are at the end of an epoch, and their weights."""
        with me.evaluation():
            apart = w * float(np.square(own - me.model.x, dtype=np.float64).sum())
            weights = me.control.gather(np.array([w]))
            in_all = float(me.control.total(np.array([apart]))[0])
            mean = float(np.linalg.norm(me.model.x)) or 1.0
            every = np.concatenate(weights) if weights else np.empty(0)
            if weights and not np.isnan(every).any():  # unknown where time only is simulated
                found = {"weights": every.tolist(), "disagreement": math.sqrt(in_all) / mean}
                for name, value in found.items():
                    values = me.findings.setdefault(name, [])
                    values.append(value)
                    del values[: -max(1, NOTED // me.size)]

    def _report(self, me: Worker, mail: Mail, not_sent: Array) -> None:
        mine = np.array([mail.sent.total(), mail.received, *not_sent])
        sent, received, light, busy = map(int, me.control.total(mine))
        me.findings["messages"] = {
            "sent": sent,
            "received": received,
            "not_sent": light + busy,
            "not_sent_low_weight": light,
            "not_sent_under_way": busy,
        }
        apart = me.findings.get("disagreement", [math.nan])[-1]
        if math.isfinite(apart):
            why = [f"{busy:,} not sent because earlier ones were still under way"] if busy else []
            why += [f"{light:,} not sent because the rank's weight was too low"] if light else []
            me.remarks.append(
                f"{', '.join([f'{sent:,} messages', *why])}; "
                f"at the end the ranks' models differed from their mean by {100 * apart:.1f} % of |x|"
            )
