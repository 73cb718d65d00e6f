"""Asynchronous SGD: M masters each own a part of the parameters and serve workers in the order of arrival.

    worker:  x_then <- x                                          all pieces, from their masters
             g_m <- the gradient at x_then, piece by piece, each sent to its master as soon as it is ready
             receive the new values of every piece, and continue
    master:  wait for any worker's g_m
             x_m <- update(x_m, rule(g_m, x_m - x_then))          no waiting for the other workers
             send it x_m

Cost per batch, n parameters: the worker sends and receives n numbers, with one message per piece each way, a small one
to each master, and one from master 0 (the next batch). With W workers a gradient is W - 1 updates old on average.
All calls are non-blocking.

Dean et al., Large scale distributed deep networks (2012); Li et al., Scaling distributed machine learning with the
parameter server (2014).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from paceline import names
from paceline.errors import UsageError
from paceline.models import flat_buffers
from paceline.strategies import Change, Load, Strategy, Traffic, Trouble, check_minimum
from paceline.strategies.parameter_server._master import (
    BUFFERS,
    COUNT,
    FACTOR,
    HEADER,
    LAST_COUNT,
    LAST_LOSS,
    LAST_STEP,
    NEXT,
    NONE,
    PIECES,
    SAVE,
    STEP,
    Chief,
    Dealer,
    Inbox,
    Master,
    first_batch,
    help_to_finish,
    make_discipline,
)
from paceline.strategies.parameter_server._pieces import (
    EVENTS,
    EventCounts,
    Piece,
    check_placement,
    digest,
    place,
    record_events,
)
from paceline.strategies.parameter_server._saved import NAME, Saved, Survival, WorkerMemory
from paceline.strategies.parameter_server.rules import check_rule, is_optimizer, make_rule
from paceline.updates.sgd import Sgd

if TYPE_CHECKING:
    from paceline.data import Batch
    from paceline.models import Model
    from paceline.updates import Update
    from paceline.worker import Saves, Worker

__all__ = ["EVENTS", "Inbox", "ParameterServer", "Piece", "digest", "place"]
# The rule that is chosen by the run's update, and the update that has no say in it.
AUTO, SGD = "auto", "sgd"


@dataclass(frozen=True, kw_only=True)
class ParameterServer(Strategy):
    """Asynchronous: masters own parts of x; workers send gradients, receive new values and do not wait for each other."""

    masters: int = 1
    """The number of masters: ranks that own parts of x and compute no gradients."""
    rule: str = AUTO
    """The master's rule for stale gradients; options of a rule are separated by slashes. auto: adaptive, which makes the
    whole step, if the run's update is plain sgd; otherwise plain, which leaves the step to the update."""
    placement: Literal["layers", "even"] = "layers"
    """The parts that masters own: whole layers, or equal parts of x."""
    share: Literal["static", "dynamic"] = "static"
    """The batches that a worker gets: its share of each epoch, or the next one whenever it is free."""
    bound: int | None = None
    """No worker may be more than this many batches ahead of the slowest (stale-synchronous)."""
    backup: int = 0
    """Use synchronous rounds that ignore this many of the slowest gradients."""

    whole_batches: ClassVar[bool] = True
    in_step: ClassVar[bool] = False
    replayable: ClassVar[bool] = True
    saves: ClassVar[Saves] = "itself"
    remote_update: ClassVar[bool] = True
    masters_option: ClassVar[str] = "masters"
    colour: ClassVar[str] = "#D55E00"
    marker: ClassVar[str] = "^"

    def __post_init__(self) -> None:
        if self.rule != AUTO:
            make_rule(self.rule)
        check_minimum(1, "masters", self.masters)
        check_minimum(0, "bound", self.bound or 0)
        check_minimum(0, "backup", self.backup)
        if self.bound is not None and self.backup:
            raise UsageError(
                "bound and backup exclude each other: with backup no worker is ahead; give one of them"
            )

    def check(self, ranks: int) -> None:
        m, b = self.masters, self.backup
        if ranks <= m:
            words = f"{m} master{'s' * (m > 1)} need{'s' * (m == 1)}"
            raise UsageError(f"{words} at least {m + 1} ranks ({m} + 1 worker); the job has {ranks}")
        if b >= ranks - m:
            raise UsageError(f"backup={b} must leave a gradient to use; the job has {ranks - m} workers")

    def check_survivors(self, ranks: int) -> None:
        if ranks < 2:
            raise UsageError(f"a parameter server needs a master and a worker; {ranks} rank is left")

    def variants(self, ranks: int, nodes: int = 1) -> Sequence[Mapping[str, Any]]:
        more = [{"masters": ranks // 4}] if ranks >= 8 else []
        return [{"bound": 4}, {"share": "dynamic"}, *more]

    def role(self, rank: int, ranks: int) -> str:
        return "master" if rank < self.masters else "worker"

    def uses(self) -> Sequence[object]:
        return [] if self.rule == AUTO else [make_rule(self.rule)]

    def for_update(self, update: str) -> ParameterServer:
        plain_sgd = update.partition(":")[0] == SGD and is_plain_sgd(names.parse("updates", update).make())
        return self._with_rule(plain_sgd=plain_sgd)

    def optimizer(self) -> str:
        return self.rule if self.rule != AUTO and is_optimizer(make_rule(self.rule)) else ""

    def _with_rule(self, *, plain_sgd: bool) -> ParameterServer:
        return self if self.rule != AUTO else replace(self, rule="adaptive" if plain_sgd else "plain")

    def fixed_shares(self) -> bool:
        return self.share == "static"

    def measured_work(self) -> str:
        return f"server {self.masters} {self.rule}"

    def traffic(self, load: Load) -> Traffic:
        x, workers, batches = load.parameters * load.itemsize, load.ranks - self.masters, load.steps
        header = 8 * (self.masters * BUFFERS + load.buffers)  # all masters' headers of a gradient
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
        rule = self.for_update(update).rule.partition(":")[0]
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
            if rule == "adaptive" and trouble == "divergence":
                # Its step is proportional to the fourth root of the rate.
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
        if trouble in ("slow ranks", "uneven steps") and ranks > 2:  # with two ranks, one would be the master
            options = {"share": "dynamic"} if trouble == "slow ranks" else {}
            found.append(Change(options=options, why="no rank waits for all others"))
        if trouble == "slow ranks" and amount < ranks - 2:
            found.append(Change(options={"backup": amount}, why="each round leaves out the slowest"))
        return found

    def check_update(self, update: str, *, elementwise: bool = True) -> None:
        if not elementwise and (self.masters > 1 or self.placement == "layers"):
            raise UsageError(
                f"--update {update} needs the whole vector, and masters update pieces of it; "
                "choose masters=1,placement=even, or another strategy"
            )
        if self.rule != AUTO:
            check_rule(self.rule, update)

    def check_model(self, ranks: int, model: Model) -> None:
        check_placement(model.layers, self.masters, self.placement)

    def train(self, me: Worker) -> None:
        self.check_survivors(me.size)
        me.broadcast()  # x the same on every rank
        masters = min(self.masters, me.size - 1)  # fewer only after ranks have died
        workers, steps = me.size - masters, (me.steps_per_epoch, me.steps)
        pieces = place(me.model.layers, masters, self.placement)
        saved = Saved.of(me)
        events = EventCounts()
        log = me.open_table("updates", EVENTS, observe=events.add)
        master, chief = None, None
        if me.rank == 0:
            dealer = Dealer(self.share, workers, *steps, dealt=None if saved is None else saved.dealt)
            chief = Chief(me, dealer, workers, len(pieces))
        if me.rank < masters:
            rule = make_rule(self._with_rule(plain_sgd=is_plain_sgd(me.update)).rule)
            discipline = partial(make_discipline, workers, self.bound, min(self.backup, workers - 1))
            master = Master(me, pieces, masters, rule, discipline, chief, log)
            if saved is not None:
                saved.restore(master)
            me.before_saving(lambda: keep(me, master))
        memory = WorkerMemory() if saved is None else WorkerMemory(saved.dealt, saved.first_loss)
        me.when_ranks_die(Survival(me, pieces, memory, master))
        with me.preparation():
            comm = me.comm.Dup()
        if master is not None:
            master.serve(comm)
            stopped = master.stopped
        else:
            first = first_batch(self.share, me.rank - masters, *steps) if saved is None else None
            last = saved.losses[0] if saved is not None and saved.losses else ()
            stopped = work(me, comm, pieces, masters, first, last, memory)
        stopped = wait_for_end(me, comm, stopped, worker=master is None)
        if stopped:
            if master is not None:
                master.abandon()
            comm.Free()
            me.keeper.end(stopped)
        with me.evaluation():
            if master is not None:
                master.end()
            else:
                me.control.total(np.zeros(len(pieces), np.int64))
                help_to_finish(me)
        me.broadcast()  # the complete model, from rank 0
        with me.evaluation():
            record_events(
                me, pieces, events, arrived=0 if master is None else master.arrived, acknowledged=memory.acknowledged,
                before=0 if saved is None else int(saved.dealt.sum()),
            )  # fmt: skip
            me.follow_first()
            me.note_end()
            comm.Free()
            keep(me, master)  # for training it further


def is_plain_sgd(update: Update) -> bool:
    """Return True for stochastic gradient descent without any option.

    >>> is_plain_sgd(Sgd()), is_plain_sgd(Sgd(weight_decay=0.1))
    (True, False)
    """
    return isinstance(update, Sgd) and update == Sgd()


def keep(me: Worker, master: Master | None) -> None:
    """Make a master's state, or that of a worker that has no batch, part of the state of its rank."""
    if me.keeper is not None:
        vars(me.keep(NAME)).update({"last": (-1, 0, 0)} if master is None else master.state())


def work(
    me: Worker,
    comm: Any,
    pieces: list[Piece],
    masters: int,
    first: int | None,
    last: Sequence[float],
    memory: WorkerMemory,
) -> int:
    """Run a worker: compute, send, receive and repeat until master 0 has no more batches for it.

    `first`: its first batch, or None to receive it with the current values; `last`: step, loss and count of its last
    batch of a run that is resumed. Return the signal because of which the run stops, or 0.
    """
    x, step = me.model.x, np.array([NONE if first is None else first])
    header = np.zeros(BUFFERS + flat_buffers(me.model).size)
    header[[LAST_STEP, LAST_LOSS, LAST_COUNT]] = last or (-1, 0, 0)
    me.before_saving(
        lambda: vars(me.keep(NAME)).update(last=header[[LAST_STEP, LAST_LOSS, LAST_COUNT]].tolist())
    )

    def prepare(now: int, count: int) -> None:
        header[STEP], header[COUNT], header[BUFFERS:] = now, count, flat_buffers(me.model)

    begin = me.overhead("prepare", prepare)

    def announce() -> None:
        header[FACTOR] = me.step_factor  # which may still change until the gradient is known
        for master in range(masters):
            part = header if master == 0 else header[:BUFFERS]
            requests.append(comm.Isend(part, dest=master, tag=HEADER))

    gradient = GradientSender(comm, me.model, pieces, announce)
    requests = gradient.requests

    def expect_values() -> None:
        requests.append(comm.Irecv(step, source=0, tag=NEXT))
        for piece in pieces:
            requests.append(comm.Irecv(x[piece.part], source=piece.master, tag=PIECES + piece.number))

    def receive_values() -> None:
        type(requests[0]).Waitall(requests)  # x_then <- x
        requests.clear()

    def own_batches() -> Iterator[Batch]:
        while step[0] != NONE:
            if step[0] >= 0:
                yield me.shares.whole(int(step[0]))
                continue
            me.keeper.save()  # all masters save theirs at this moment
            if step[0] < SAVE:
                return
            comm.Irecv(step, source=0, tag=NEXT).Wait()

    if first is None:
        expect_values()
        receive_values()
    for batch in me.log_steps(own_batches()):
        begin(batch.step, batch.count)
        gradient.begin()
        loss = me.gradient(batch, gradient.ready)  # g <- gradient at x_then, sent layer by layer
        expect_values()
        gradient.send_rest()
        memory.losses.append((batch.step, loss, batch.count))
        if memory.before is None and not memory.done:
            memory.first_loss = loss / batch.count
        receive_values()
        header[LAST_STEP], header[LAST_LOSS], header[LAST_COUNT] = memory.losses[-1]
        memory.done.append(batch.step)
        memory.acknowledged += 1
        memory.received = me.elapsed
    prepare(NONE, 0)
    gradient.leave()
    receive_values()
    header[LAST_STEP] = -1
    return SAVE - int(step[0]) if step[0] < SAVE else 0


def wait_for_end(me: Worker, comm: Any, stopped: int, *, worker: bool) -> int:
    """Wait for all ranks; a worker without batches takes part in later checkpoints. Collective.

    Return the signal because of which the run stops, or 0.
    """
    if me.keeper is None:
        me.control.wait()
        return 0
    if me.rank == 0:
        me.control.end_waiting()
        return stopped
    sent, ended = me.control.begin_waiting()
    if worker and not stopped:
        stopped = save_until(me, comm, ended)
    sent.Wait()
    ended.Wait()
    return stopped


def save_until(me: Worker, comm: Any, ended: Any) -> int:
    """As a worker without batches, take part in checkpoints until a request is complete; return the signal, or 0."""
    told = np.empty(1, np.int64)
    over = False
    while not over:
        asked = comm.Irecv(told, source=0, tag=NEXT)
        over = type(asked).Waitany([asked, ended]) == 1
        if over and not asked.Test():  # and none will come: the end is after the last message
            asked.Cancel()
            asked.Wait()
            return 0
        me.keeper.save()
        if told[0] < SAVE:
            return SAVE - int(told[0])
    return 0


class GradientSender:
    """A worker's gradient on its way to the masters: each piece as soon as its layers are ready.

    `ready(layer)` sends the pieces that this layer completes, except that those completed by the last layer wait for
    `send_rest`. So every piece is sent once, and the receives of the new values, which overwrite x, can be posted after
    the backward pass, which reads x, and before the last of the sends that they answer. `announce` is called before the
    first piece is sent.
    """

    def __init__(self, comm: Any, model: Model, pieces: list[Piece], announce: Callable[[], None]) -> None:
        self._comm, self._model, self._pieces, self._announce = comm, model, pieces, announce
        self._of_layer = [
            [piece for piece in pieces if layer in piece.layers] for layer in range(len(model.layers))
        ]
        self.requests: list[Any] = []
        self.begin()

    def begin(self) -> None:
        """Start a new gradient."""
        self._lacking = [len(piece.layers) for piece in self._pieces]
        self._unready = len(self._of_layer)
        self._announced = False

    def ready(self, layer: int) -> None:
        """Note that a layer's gradient is final, and send the pieces that it completes."""
        self._unready -= 1
        for piece in self._of_layer[layer] if self._unready else ():
            self._lacking[piece.number] -= 1
            if self._lacking[piece.number] == 0:
                self._send(piece)

    def send_rest(self) -> None:
        """Send the pieces that have not been sent."""
        for piece in self._pieces:
            if self._lacking[piece.number]:
                self._send(piece)

    def leave(self) -> None:
        """Send an empty gradient for every piece, to end the masters' receives."""
        self.begin()
        for piece in self._pieces:
            self._send(piece, 0)

    def _send(self, piece: Piece, count: int | None = None) -> None:
        if not self._announced:
            self._announce()
            self._announced = True
        g = self._model.g[piece.part][:count]
        self.requests.append(self._comm.Isend(g, dest=piece.master, tag=PIECES + piece.number))
