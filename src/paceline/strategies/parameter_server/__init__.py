"""Asynchronous SGD: M masters each own a part of the parameters, and serve whichever worker comes.

    worker:  x_then <- x                                          all pieces, from their masters
             g_m <- the gradient at x_then, piece by piece, each sent to its master as soon as it is ready
             receive the new values of every piece, and go on
    master:  wait for any worker's g_m
             x_m <- update(x_m, rule(g_m, x_m - x_then))          no waiting for the other workers
             send it x_m

Cost a batch, n parameters: the worker sends n numbers and receives n, in one message each a piece, one small one a
master, and one from master 0 (which batch is next). A gradient is as stale as the other workers are fast: with W
workers W - 1 updates on average. Only non-blocking calls.

Dean et al., Large scale distributed deep networks (2012); Li et al., Scaling distributed machine learning with the
parameter server (2014).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from paceline.errors import UsageError
from paceline.models import flat_buffers
from paceline.strategies import Change, Load, Strategy, Traffic, Trouble
from paceline.strategies.parameter_server import _messages as messages
from paceline.strategies.parameter_server._chief import Chief, Dealer, first_batch, help_to_finish
from paceline.strategies.parameter_server._disciplines import maker
from paceline.strategies.parameter_server._master import Master
from paceline.strategies.parameter_server._outbox import Outbox
from paceline.strategies.parameter_server._placement import Piece, check, place
from paceline.strategies.parameter_server._staleness import rule_of, told

if TYPE_CHECKING:
    from paceline.data import Batch
    from paceline.models import Model
    from paceline.worker import Worker


@dataclass(frozen=True, kw_only=True)
class ParameterServer(Strategy):
    """Asynchronous: masters own parts of x, a worker sends gradients and receives new values, nobody waits for all."""

    masters: int = 1
    rule: str = "adaptive"
    """What a master does about staleness; several options of a rule are separated by a slash."""
    placement: Literal["layers", "even"] = "layers"
    """Who owns what: whole layers, or equal parts of x."""
    share: Literal["static", "dynamic"] = "static"
    """Which batches a worker gets: its share of each epoch, or the next whenever it is free."""
    bound: int | None = None
    """No worker may be more than so many batches ahead of the slowest (stale-synchronous)."""
    backup: int = 0
    """Synchronous rounds that do without the so many slowest gradients."""

    whole_batches: ClassVar[bool] = True
    in_step: ClassVar[bool] = False
    replayable: ClassVar[bool] = True
    masters_option: ClassVar[str] = "masters"
    colour: ClassVar[str] = "#D55E00"
    marker: ClassVar[str] = "^"

    def __post_init__(self) -> None:
        rule_of(self.rule)
        if self.masters < 1:
            raise UsageError(f"masters must be at least 1; got {self.masters}")
        for name, value in (("bound", self.bound), ("backup", self.backup)):
            if value is not None and value < 0:
                raise UsageError(f"{name} must be at least 0; got {value}")
        if self.bound is not None and self.backup:
            raise UsageError(
                "bound and backup exclude each other: with backup nobody is ahead; give one of them"
            )

    def check(self, ranks: int) -> None:
        m, b = self.masters, self.backup
        if ranks <= m:
            words = f"{m} master{'s' * (m > 1)} need{'s' * (m == 1)}"
            raise UsageError(f"{words} at least {m + 1} ranks ({m} + 1 worker); the job has {ranks}")
        if b >= ranks - m:
            raise UsageError(f"backup={b} must leave a gradient to use; the job has {ranks - m} workers")

    def role(self, rank: int, ranks: int) -> str:
        return "master" if rank < self.masters else "worker"

    def fixed_shares(self) -> bool:
        return self.share == "static"

    def traffic(self, load: Load) -> Traffic:
        x, workers, batches = load.parameters * load.itemsize, load.ranks - self.masters, load.steps
        header = 8 * (self.masters * messages.BUFFERS + load.buffers)  # all masters' headers of a gradient
        sent = batches * (2 * x + header + 8) + workers * header + (self.masters - 1) * 16
        parts = ", and the other masters' parts at the end of every epoch" if self.masters > 1 else ""
        words = f"{load.per_epoch(batches)} x 2 n: for every gradient, with headers{parts}"
        pieces = (load.findings.get("staleness") or {}).get("pieces")
        if not pieces:
            return Traffic(bytes=sent, messages=None, words=words)
        others = [piece for piece in pieces if piece["master"] != 0]
        sent += (load.epochs + 1) * load.itemsize * sum(piece["parameters"] for piece in others)
        count = batches * (2 * len(pieces) + self.masters + 1) + workers * (self.masters + len(pieces))
        count += (load.epochs + 1) * len(others) + self.masters - 1
        return Traffic(bytes=sent, messages=count, words=words)

    def remedies(self, trouble: Trouble, *, update: str = "sgd") -> Sequence[Change]:
        rule = self.rule.partition(":")[0]
        if trouble == "slow ranks" and self.share == "static":
            return [Change(options={"share": "dynamic"}, why="whichever worker is free takes the next batch")]
        if trouble == "uneven masters" and self.placement != "even":
            return [Change(options={"placement": "even"}, why="equal parts")]
        if trouble == "dropped gradients" and self.backup:
            return [Change(options={"backup": self.backup - 1})]
        if trouble not in ("old gradients", "divergence"):
            return []
        if rule != "adaptive" and update == "sgd":
            changes = [Change(options={"rule": "adaptive"}, why="steps that suit old gradients")]
        else:
            changes = [Change(options={"rule": "gap-aware"})]
            if (
                rule == "adaptive" and trouble == "divergence"
            ):  # its step goes with the fourth root of the rate
                changes = [Change(factors={"lr": 1 / 16}, why="half the step")]
            elif rule == "adaptive":
                changes = [Change(factors={"epochs": 2}, why="more gradients for each worker")]
            if self.bound is None and not self.backup:
                changes.append(Change(options={"bound": 1}, why="no worker gets far ahead"))
        return [*changes, *([] if rule == "adaptive" else [Change(factors={"lr": 0.5})])]

    @classmethod
    def offers(cls, trouble: Trouble, *, ranks: int, amount: int = 1) -> Sequence[Change]:
        if trouble == "old gradients":
            return [Change(options={"rule": "adaptive"})]
        found = []
        if trouble in ("slow ranks", "uneven steps") and ranks > 2:  # of two ranks one would be the master
            options = {"share": "dynamic"} if trouble == "slow ranks" else {}
            found.append(Change(options=options, why="no rank waits for all others"))
        if trouble == "slow ranks" and amount < ranks - 2:
            found.append(Change(options={"backup": amount}, why="each round leaves out the slowest"))
        return found

    def check_update(self, update: str) -> None:
        rule = rule_of(self.rule)
        if getattr(rule, "own_momentum", False) and update.partition(":")[0] != "sgd":
            raise UsageError(
                f"rule={self.rule} has a momentum of its own: --update must be sgd; got {update}"
            )
        if getattr(rule, "whole_step", False) and update != "sgd":
            raise UsageError(
                f"rule={self.rule} makes the whole step itself: --update {update} would have no part in it; "
                f"leave it out, or choose another rule"
            )

    def check_model(self, ranks: int, model: Model) -> None:
        check(model.layers, self.masters, self.placement)

    def train(self, me: Worker) -> None:
        me.broadcast()  # x the same on every rank
        comm = me.comm.Dup()
        workers = me.size - self.masters
        pieces = place(me.model.layers, self.masters, self.placement)
        master = None
        me.watch.restart()
        if me.rank < self.masters:
            chief = None
            if me.rank == 0:
                dealer = Dealer(self.share, workers, me.steps_per_epoch, me.steps)
                chief = Chief(me, dealer, workers, len(pieces))
            rule = rule_of(self.rule)
            master = Master(
                me, comm, pieces, self.masters, rule, maker(workers, self.bound, self.backup), chief
            )
            master.serve()
        else:
            first = first_batch(self.share, me.rank - self.masters, me.steps_per_epoch, me.steps)
            self._work(me, comm, pieces, first)
        me.control.wait()
        me.watch.lap("wait")
        if master is not None:
            master.end()
        else:
            me.control.total(np.zeros(len(pieces), np.int64))
            help_to_finish(me)
        me.broadcast()  # the complete model, from rank 0
        told(me, pieces, master)
        me.follow_first()
        comm.Free()
        me.watch.lap("evaluation")

    def _work(self, me: Worker, comm: Any, pieces: list[Piece], first: int) -> None:
        """One worker: gradient, send, receive, go on, until master 0 has no more batches for it."""
        x, step = me.model.x, np.array([first])
        outbox = Outbox(comm, me.model, pieces)
        requests = outbox.requests
        header = np.zeros(messages.BUFFERS + flat_buffers(me.model).size)
        header[messages.LAST_STEP] = -1

        def announce(now: int, count: int) -> None:
            header[messages.STEP], header[messages.COUNT], header[messages.BUFFERS :] = (
                now,
                count,
                flat_buffers(me.model),
            )
            for master in range(self.masters):
                told = header if master == 0 else header[: messages.BUFFERS]
                requests.append(comm.Isend(told, dest=master, tag=messages.HEADER))

        def given() -> Iterator[Batch]:
            while step[0] >= 0:
                yield me.shares.whole(int(step[0]))

        for batch in me.logged(given()):
            announce(batch.step, batch.count)
            outbox.begin()
            me.watch.lap("exchange")
            loss = me.gradient(batch, outbox.ready)  # g <- gradient at x_then, sent layer by layer
            requests.append(comm.Irecv(step, source=0, tag=messages.NEXT))
            for piece in pieces:
                requests.append(
                    comm.Irecv(x[piece.part], source=piece.master, tag=messages.PIECES + piece.number)
                )
            outbox.rest()
            me.watch.lap("exchange")
            type(requests[0]).Waitall(requests)  # x_then <- x
            requests.clear()
            me.watch.lap("wait")
            header[messages.LAST_STEP], header[messages.LAST_LOSS], header[messages.LAST_COUNT] = (
                batch.step,
                loss,
                batch.count,
            )
        announce(-1, 0)
        outbox.leave()
        type(requests[0]).Waitall(requests)
