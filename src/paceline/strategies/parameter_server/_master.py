"""A master of the parameter server: the messages it receives and sends, and how it handles them.

Master 0 has extra duties (`Chief`): assign batches, watch the loss, evaluate the model while others work.
"""

from __future__ import annotations

import itertools
import logging
import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.models import flat_buffers, put_flat_buffers
from paceline.record import RowLog
from paceline.strategies.parameter_server._pieces import (
    APPLIED,
    DROPPED,
    EVENTS,
    LEFT,
    RESTORED,
    Gradient,
    Marks,
    Owned,
    Piece,
    PieceState,
    recut,
)
from paceline.strategies.parameter_server.rules import Rule
from paceline.worker import Guard, Score, Worker
from paceline.worker.evaluation import Outputs, iterate_scores, ratio, samples_for, score_together

Array = NDArray[Any]
log = logging.getLogger(__name__)
# Tags; the gradients and the values of a piece have PIECES + its number.
HEADER, NEXT, ORDERS, PIECES = range(4)
# Places in the header with which a worker announces a gradient, or (step -1) that it leaves: floats of 64 bits.
# To master 0 the model's buffers follow.
STEP, COUNT, FACTOR, LAST_STEP, LAST_LOSS, LAST_COUNT, BUFFERS = range(7)
# Instead of the next batch: there is none; save a checkpoint (lower numbers: and stop because of signal SAVE - number).
NONE, SAVE = -1, -2
# Orders from master 0 to the other masters; the last one plus a signal: save a checkpoint, and stop because of it.
RESTORE, END, CUT = range(3)
# The number of events that a replay reads at once.
ROWS_AT_ONCE = 4096
Key = tuple[str, int, int]
"""The kind of message, the piece and the worker."""


class Inbox:
    """The receives that a master has posted, each before its message can have been sent."""

    def __init__(self) -> None:
        self._under_way: dict[Key, Any] = {}

    def expect(self, key: Key, request: Any) -> None:
        """Add a receive that has been posted."""
        self._under_way[key] = request

    def collect(self, *, wait: bool) -> list[Key]:
        """Return the messages that have arrived since the last call; `wait`: wait for at least one."""
        keys, requests = list(self._under_way), list(self._under_way.values())
        some: Any = type(requests[0])
        done = (some.Waitsome if wait else some.Testsome)(requests) or ()
        found = [keys[index] for index in done]
        for key in found:
            del self._under_way[key]
        return found

    def expects(self, *key: Any) -> bool:
        """Return True if a receive for this message is posted."""
        return key in self._under_way

    def take(self, what: str, number: int = 0, worker: int = 0) -> Key:
        """Wait for this message."""
        key = (what, number, worker)
        self._under_way.pop(key).Wait()
        return key

    def collect_kind(self, what: str) -> list[Key]:
        """Return the messages of one kind that have arrived."""
        found = [key for key, request in self._under_way.items() if key[0] == what and request.Test()]
        for key in found:
            del self._under_way[key]
        return found

    def cancel(self) -> None:
        """Give up all receives: nothing will be sent any more."""
        for request in self._under_way.values():
            request.Cancel()
            request.Wait()
        self._under_way.clear()


class Outbox:
    """The messages that a master sends: one at a time per worker and tag, and copies to other masters."""

    def __init__(self, comm: Any, first: int) -> None:
        """`first`: the rank of the first worker."""
        self._comm, self._first = comm, first
        self._under_way: dict[tuple[int, int], Any] = {}
        self.copies: list[tuple[Any, Array]] = []
        """Sends to other masters that may be in progress, each with its memory."""

    def complete(self, tag: int, worker: int) -> None:
        """Complete the last send to a worker with this tag: the worker must have received it to answer."""
        request = self._under_way.pop((tag, worker), None)
        if request is not None:
            request.Wait()

    def send(self, values: Array, tag: int, worker: int, *, matched: bool = False) -> None:
        """Send values that do not change until the send is complete; `matched`: not before it is received."""
        send = self._comm.Issend if matched else self._comm.Isend
        self._under_way[tag, worker] = send(values, dest=self._first + worker, tag=tag)

    def send_copy(self, values: Array, tag: int, master: int) -> None:
        """Send memory allocated for this message, and release that of completed earlier ones."""
        self.copies = [(request, kept) for request, kept in self.copies if not request.Test()]
        self.copies.append((self._comm.Isend(values, dest=master, tag=tag), values))

    def complete_replies(self) -> None:
        """Wait until the workers have received everything."""
        for request in self._under_way.values():
            request.Wait()

    def complete_copies(self) -> None:
        """Wait until the other masters have received everything."""
        for request, _ in self.copies:
            request.Wait()
        self.copies.clear()


class Master:
    """A master, which serves workers in the order of arrival; `chief` performs the extra duties of master 0.

    A checkpoint is a consistent cut: master 0 holds back the next batches until all that were dealt have arrived. It
    then tells the other masters how many those were; each saves its state when as many have arrived at it, and sends its
    pieces to master 0, which saves its own state with the complete model and releases the workers. No gradient is on its
    way at the cut. A worker takes no part in it, but saves its own state when it is told so instead of a batch.
    """

    def __init__(
        self,
        me: Worker,
        pieces: list[Piece],
        masters: int,
        rule: Rule,
        discipline: Callable[[], Discipline],
        chief: Chief | None,
        log: RowLog,
    ) -> None:
        """`log`: the table of this master's events."""
        self.me, self.masters, self.chief = me, masters, chief
        self.workers = workers = me.size - masters
        self.log = log
        self.snapshots = np.zeros(len(pieces), np.int64)
        """Epochs whose end has been reported to master 0, by piece."""
        self._said = [Gradient() for _ in range(workers)]
        self._owned = {
            piece.number: Owned(me, piece, rule, workers, self._said, self.log)
            for piece in pieces
            if piece.master == me.rank
        }
        self._theirs = {piece.number: piece for piece in pieces if piece.master != me.rank}
        self._discipline = {number: discipline() for number in self._owned}
        self._unanswered = [len(self._owned)] * workers
        self._working, self._ended = workers, chief is not None
        self._to_come = [0] * workers  # of the pieces of a worker's current gradient
        self._given_up = [False] * workers
        self._marks = (
            Marks(list(self._owned.values()), every=max(me.steps_per_epoch // 8, 8 * workers))
            if me.on_divergence == "halve"
            else None
        )
        self._headers = np.zeros((workers, BUFFERS + (flat_buffers(me.model).size if chief else 0)))
        self._next = np.zeros((workers, 1), np.int64)
        self._orders = np.zeros(2)
        self._landing = {n: np.empty_like(me.model.x[piece.part]) for n, piece in self._theirs.items()}
        self._announced: list[Any] = [None] * workers  # pending receives of headers
        self._inbox = Inbox()  # other pending receives
        self._handlers: dict[str, Callable[[int, int], None]] = {
            "gradient": me.overhead("serve", self._on_gradient),
            "snapshot": self._on_snapshot,
            "orders": self._on_orders,
        }
        # What only master 0 does for each gradient.
        self._take_loss = me.overhead("lead", self._record_loss)
        self._deal = me.overhead("lead", self._give_batch)
        self.stopped = 0
        """The number of the signal because of which the run has stopped; 0: it has not."""
        self._resumed = False
        self._cutting = False
        self._ordered: tuple[int, int] | None = None  # the gradients at the cut, and the signal to stop
        self._complete: list[tuple[slice, Array]] = []  # the other masters' pieces at the cut
        self._held: list[int] = []  # workers that wait for their next batches until the cut

    # ---- the loop

    def serve(self, comm: Any) -> None:
        """Serve workers until all have finished; masters other than 0 then wait for master 0's order to end."""
        self.comm, self._outbox = comm, Outbox(comm, first=self.masters)
        for worker in range(self.workers):
            self._expect_header(worker)
            for number in self._owned:
                self._expect("gradient", number, worker)
        if self.chief is None:
            self._expect("orders")
        else:
            for number in self._theirs:
                self._expect("snapshot", number)
        if self._resumed:
            for worker in range(self.workers):
                for owned in self._owned.values():
                    self._answer(owned, [worker])
        for what, number, worker in (
            self._receive_messages() if self.me.replay is None else self._replay_messages()
        ):
            self._handlers[what](number, worker)
        self._outbox.complete_replies()
        if self.chief is not None:
            self._give_orders(END, self.stopped)

    def _receive_messages(self) -> Iterator[Key]:
        """Iterate over messages as they arrive; when there are none, master 0 evaluates some samples."""
        while self._working or not self._ended or self._cutting:
            idle = self.chief is not None and self.chief.may_work
            arrived = self._inbox.collect(wait=not idle)
            if self.chief is not None and idle and (not arrived or self.chief.overloaded):
                self.chief.work()
            yield from arrived

    def _replay_messages(self) -> Iterator[Key]:
        """Iterate over messages in the order of the run that is replayed; when it stops, workers leave before its end."""
        for key in self._recorded_order():
            if self.chief is not None:  # their order does not matter, but their memory must be released
                yield from self._inbox.collect_kind("snapshot")
                while self.chief.overloaded:
                    self.chief.work()
            if self._inbox.expects(*key):
                yield self._inbox.take(*key)
        while self._working:
            yield from self._inbox.collect_kind("gradient")

    def _recorded_order(self) -> Iterator[Key]:
        """Iterate over the messages that this master handled in the run that is replayed."""
        rows = self.me.replay.updates
        mine = np.flatnonzero(rows["master"] == self.me.rank)
        parts = (mine[start : start + ROWS_AT_ONCE] for start in range(0, len(mine), ROWS_AT_ONCE))
        every = (zip(*(rows[name][part].tolist() for name in EVENTS[:3]), strict=True) for part in parts)
        for event, number, worker in itertools.chain.from_iterable(every):
            if event in (APPLIED, DROPPED):
                yield ("gradient", number, worker)
            elif event == LEFT:
                for piece in self._owned:
                    yield ("gradient", piece, worker)
            elif self.chief is None:  # master 0 decides to restore as it did then
                yield ("orders", 0, 0)
        if self.chief is None:
            yield ("orders", 0, 0)

    def _expect(self, what: str, number: int = 0, worker: int = 0) -> None:
        """Post a receive."""
        if what == "gradient":
            into = self._owned[number].g[worker]
            request = self.comm.Irecv(into, source=self.masters + worker, tag=PIECES + number)
        elif what == "snapshot":
            owner = self._theirs[number].master
            request = self.comm.Irecv(self._landing[number], source=owner, tag=PIECES + number)
        else:
            request = self.comm.Irecv(self._orders, source=0, tag=ORDERS)
        self._inbox.expect((what, number, worker), request)

    def _expect_header(self, worker: int) -> None:
        into = self._headers[worker]
        self._announced[worker] = self.comm.Irecv(into, source=self.masters + worker, tag=HEADER)

    # ---- message handlers

    def _on_gradient(self, number: int, worker: int) -> None:
        """Handle a gradient of a piece: apply, drop or delay it, and answer the workers that may continue."""
        first = self._to_come[worker] == 0
        if first:
            self._take_header(worker)
        self._to_come[worker] -= 1
        if self._said[worker].step < 0:  # empty: the worker has finished
            if first:
                self._leave(worker)
            self._working -= self._to_come[worker] == 0
            return
        owned, step = self._owned[number], self._said[worker].step
        if step in owned.skip:
            owned.skip.discard(step)
            self._expect("gradient", number, worker)
            self._answer(owned, self._discipline[number].take_gradient(Skipped(), worker))
            return
        owned.arrivals += 1
        if owned.seen is not None:
            owned.seen[step] = True
        self._given_up[worker] |= owned.is_outdated(worker)
        answered = self._discipline[number].take_gradient(owned, worker)
        self._expect("gradient", number, worker)
        self._answer(owned, answered)
        epoch, rest = divmod(owned.arrivals, self.me.steps_per_epoch)
        if rest == 0 and epoch > self.snapshots[number]:  # not more than once, even if masters died
            self._send_snapshot(owned, epoch - 1)
        if self._marks is not None:
            self._marks.count(owned)
        if self.me.keeper is not None and self.me.replay is None:
            self._cut()

    def _take_header(self, worker: int) -> None:
        """Read the header that the worker sent before this gradient; it contains the loss of the previous one."""
        self._announced[worker].Wait()
        header, said = self._headers[worker], self._said[worker]
        said.step, said.count, said.factor = int(header[STEP]), int(header[COUNT]), float(header[FACTOR])
        self._to_come[worker] = len(self._owned)
        if self.chief is not None and header[LAST_STEP] >= 0:
            self._take_loss(worker, header)
        if said.step >= 0:
            self._expect_header(worker)

    def _leave(self, worker: int) -> None:
        """Note that a worker has finished its last batch."""
        self.log.append((LEFT, 0, worker, -1, 0, 0))
        for number, owned in self._owned.items():
            self._answer(owned, self._discipline[number].drop_worker(owned, worker))

    def _on_snapshot(self, number: int, _: int) -> None:
        """Handle another master's piece as it was at the end of an epoch."""
        self._take_snapshot(number)
        self._expect("snapshot", number)

    def _on_orders(self, _: int, __: int) -> None:
        """Handle an order from master 0: restore, save, or end."""
        kind, value = self._orders.astype(int).tolist()
        if kind == END:
            self._ended, self.stopped = True, value
            return
        self._expect("orders")
        if kind == RESTORE:
            self._restore(value)
        else:
            self._ordered = (value, kind - CUT)
            self._cut()

    # ---- answers

    def _answer(self, owned: Owned, workers: list[int]) -> None:
        """Send workers the current values of a piece; master 0 also sends the next batch."""
        tag = PIECES + owned.piece.number
        for worker in workers:
            self._outbox.complete(tag, worker)
            self._outbox.send(owned.answer(worker), tag, worker)
            self._unanswered[worker] -= 1
            if self._unanswered[worker] == 0:
                self._unanswered[worker] = len(self._owned)
                if self.chief is not None:
                    self._deal(worker, self.chief)

    def _give_batch(self, worker: int, chief: Chief) -> None:
        """Send a worker its next batch, or hold it back until the cut."""
        if self._cutting:
            self._held.append(worker)
            return
        if self.me.replay is not None and self.me.stop_asked and not self.stopped:
            self._release(chief, self.me.stop_asked)  # without a cut: the run can be replayed again
        self._send_next(worker, SAVE - self.stopped if self.stopped else chief.dealer.next(worker))

    def _send_next(self, worker: int, step: int, *, matched: bool = False) -> None:
        self._outbox.complete(NEXT, worker)
        self._next[worker] = step
        self._outbox.send(self._next[worker], NEXT, worker, matched=matched)

    # ---- checkpoints

    def state(self) -> dict[str, Any]:
        """Return what this master needs to continue, as references to what it is now."""
        if self.chief is not None:
            self.chief.put_buffers()
        pieces = [owned.state() for owned in self._owned.values()]
        if self._marks is not None:
            self._marks.add_to(pieces)
        found: dict[str, Any] = {"pieces": [vars(piece) for piece in pieces]}
        if self.chief is None:
            return found
        ends = self._working == 0 or (self._ordered is not None and self._ordered[1] > 0)
        return {**found, "chief": self.chief.state(), "ends": ends}

    @property
    def arrived(self) -> int:
        """The gradients that have arrived, each counted once for every piece of this master."""
        return sum(owned.arrivals - len(owned.skip) for owned in self._owned.values())

    def describe_pieces(self) -> dict[str, Any]:
        """Return what other ranks need to know of this master's pieces when ranks have died."""
        owned = self._owned.values()
        return {
            **self.state(),
            "x": [np.asarray(one.x) for one in owned],
            "seen": [np.packbits(one.seen) for one in owned if one.seen is not None],
        }

    def resume(self, saved: Sequence[PieceState], dealt: Array, ends: int) -> bool:
        """Continue with the current parameters from the states of all pieces.

        `dealt`: the batches that have been dealt; `ends`: the epochs whose ends have been reported to master 0. Return
        False if states of a rule are lost.
        """
        mine = [recut(saved, owned.piece.part) for owned in self._owned.values()]
        kept = [owned.resume(one) for owned, one in zip(self._owned.values(), mine, strict=True)]
        if self._marks is not None:
            self._marks.resume(mine)
        for owned in self._owned.values():
            if owned.seen is not None:
                owned.seen[:] = dealt
                owned.seen[sorted(owned.skip)] = True
        for number in self._owned if self.chief is None else range(len(self.snapshots)):
            self.snapshots[number] = ends
        self._resumed = True
        return all(kept)

    def _cut(self) -> None:
        """Begin a cut if one is due, and go on with it if everything has arrived."""
        if self.chief is not None:
            self._cut_as_first(self.chief)
        elif self._ordered is not None and self._has_all(self._ordered[0]):
            signal, self._ordered = self._ordered[1], None
            self.me.keeper.save()
            for owned in self._owned.values():
                self._outbox.send_copy(owned.x.copy(), PIECES + owned.piece.number, master=0)
            self._stop(signal)

    def _cut_as_first(self, chief: Chief) -> None:
        dealt, keeper = chief.dealer.count, self.me.keeper
        if not self._cutting:
            self._cutting = not chief.dealer.stopped and keeper.is_due(dealt)
        if not self._cutting or not self._has_all(dealt):
            return
        if self._ordered is None:
            self._ordered = (dealt, self.me.stop_asked)
            self._give_orders(CUT + self.me.stop_asked, dealt)
        if len(self._complete) == len(self._theirs):
            chief.put([*self._complete, *((owned.piece.part, owned.x) for owned in self._owned.values())])
            self._complete.clear()
            self.me.position, keeper.count = divmod(dealt, self.me.steps_per_epoch), dealt
            keeper.save()
            self._release(chief, self._ordered[1])

    def _has_all(self, count: int) -> bool:
        """Return True if this many gradients of each piece have arrived."""
        return all(owned.arrivals - len(owned.skip) == count for owned in self._owned.values())

    def _release(self, chief: Chief, signal: int) -> None:
        """As master 0, let the workers save their states and go on, or stop."""
        self._ordered, self._cutting = None, False
        chief.dealer.stopped |= signal > 0
        self._stop(signal)
        # A worker without batches waits for the end of the run or for this message, whichever comes first.
        for worker in sorted(chief.dealer.idle) if signal else range(self.workers):
            self._send_next(worker, SAVE - signal, matched=True)
        held, self._held = self._held, []
        for worker in held:
            self._deal(worker, chief)

    def _stop(self, signal: int) -> None:
        """If the run is to stop, answer the workers that wait for others."""
        self.stopped = signal
        if signal:
            for number, owned in self._owned.items():
                self._answer(owned, self._discipline[number].release())

    # ---- with master 0

    def _record_loss(self, worker: int, header: Array) -> None:
        """As master 0, record the loss of a worker's last batch, and restore if training has diverged."""
        assert self.chief is not None
        step, count = int(header[LAST_STEP]), int(header[LAST_COUNT])
        loss = float(header[LAST_LOSS])
        self.chief.record_loss(worker, step, loss, count, header[BUFFERS:])
        given_up, self._given_up[worker] = self._given_up[worker], False
        if given_up:  # the loss belongs to discarded parameters
            return
        self.chief.guard(loss / count, self._describe_staleness)
        if self.chief.go_back is not None:
            assert self._marks is not None
            mark = self._marks.choose(from_start=self.chief.go_back == "to the start")
            self.chief.go_back = None
            self._give_orders(RESTORE, mark)
            self._restore(mark)

    def _describe_staleness(self) -> str:
        """Describe the staleness of the last updates."""
        rows = self.log.read(-100)
        taus = rows[rows[:, 0] == APPLIED, EVENTS.index("tau")]
        return f"{taus.mean():.1f} updates, at most {taus.max():.0f}" if taus.size else "unknown"

    def _send_snapshot(self, owned: Owned, epoch: int) -> None:
        """Send a piece, as it is at the end of an epoch, to master 0 for evaluation."""
        values = owned.x.copy()
        self.snapshots[owned.piece.number] += 1
        if self.chief is not None:
            self.chief.snapshot(epoch, owned.piece.part, values)
        else:
            self._outbox.send_copy(values, PIECES + owned.piece.number, master=0)

    def _take_snapshot(self, number: int) -> None:
        assert self.chief is not None
        epoch, part = int(self.snapshots[number]), self._theirs[number].part
        values = self._landing[number].copy()
        if self._ordered is not None and epoch == self._ordered[0] // self.me.steps_per_epoch:
            self._complete.append((part, values))
            self._cut()
            return
        self.snapshots[number] += 1
        self.chief.snapshot(epoch, part, values)

    def _give_orders(self, kind: int, mark: int) -> None:
        for master in range(1, self.masters):
            self._outbox.send_copy(np.array([kind, mark], float), ORDERS, master)

    def _restore(self, mark: int) -> None:
        assert self._marks is not None
        self.log.append((RESTORED, 0, -1, mark, 0, 0))
        self._marks.restore(mark)

    # ---- the end

    def abandon(self) -> None:
        """End the remaining communication of a run that stops, after all workers have left."""
        self._outbox.complete_copies()
        self._inbox.cancel()

    def end(self) -> None:
        """Collect the complete model on rank 0 and finish its evaluations. Collective on all ranks."""
        sent = self.me.control.total(self.snapshots * (self.chief is None))
        if self.chief is None:
            for owned in self._owned.values():  # the last snapshot of a piece: its final values
                self._outbox.send_copy(owned.x, PIECES + owned.piece.number, master=0)
        else:
            for number in self._theirs:
                while self.snapshots[number] < sent[number]:
                    self._on_snapshot(*self._inbox.take("snapshot", number)[1:])
                self._inbox.take("snapshot", number)
        self._outbox.complete_copies()
        if self.chief is None:
            help_to_finish(self.me)
            return
        self.chief.finish()
        for number, piece in self._theirs.items():
            self.me.model.x[piece.part] = self._landing[number]
        for owned in self._owned.values():
            self.me.model.x[owned.piece.part] = owned.x
        self.chief.put_buffers()


# ---- when a gradient is applied, and when a worker is answered: at once, within a bound, or in rounds


class Governed(Protocol):
    """The interface of a piece of the parameters that a discipline uses."""

    def apply(self, worker: int) -> None:
        """Apply the worker's gradient."""

    def add(self, worker: int) -> None:
        """Add the worker's gradient to the round's."""

    def apply_round(self) -> None:
        """Apply the mean gradient of the round."""

    def drop(self, worker: int) -> None:
        """Drop the worker's gradient."""

    def is_fresh(self, worker: int) -> bool:
        """Return True if the worker's gradient was computed with the current values."""


class Skipped:
    """A piece that has applied this gradient before."""

    def apply(self, worker: int) -> None:
        """Do nothing."""

    add = drop = apply

    def apply_round(self) -> None:
        """Do nothing."""

    def is_fresh(self, worker: int) -> bool:
        return False


class Discipline(ABC):
    """When the gradients of a piece are applied, and when their workers are answered."""

    def __init__(self, workers: int) -> None:
        self.active = set(range(workers))
        """The workers that have not finished."""
        self.waiting: list[int] = []

    @abstractmethod
    def take_gradient(self, piece: Governed, worker: int) -> list[int]:
        """Apply, add or drop a worker's gradient; return the workers to answer."""

    def drop_worker(self, piece: Governed, worker: int) -> list[int]:
        """Wait no longer for a worker that has finished; return the workers to answer."""
        self.active.discard(worker)
        return self.release_some(piece)

    def release_some(self, piece: Governed) -> list[int]:
        """Return those of the waiting workers that may continue now."""
        return []

    def release(self) -> list[int]:
        """Return all waiting workers."""
        free, self.waiting = self.waiting, []
        return free


class Asynchronous(Discipline):
    """Apply every gradient and answer at once."""

    def take_gradient(self, piece: Governed, worker: int) -> list[int]:
        piece.apply(worker)
        return [worker]


class Bounded(Discipline):
    """Stale-synchronous: apply every gradient, but answer a worker only when it is at most `bound` batches ahead.

    Ho et al., More effective distributed ML via a stale synchronous parallel parameter server (2013).
    """

    def __init__(self, workers: int, bound: int) -> None:
        super().__init__(workers)
        self.bound = bound
        self.clock = [0] * workers

    def take_gradient(self, piece: Governed, worker: int) -> list[int]:
        piece.apply(worker)
        self.clock[worker] += 1
        self.waiting.append(worker)
        return self.release_some(piece)

    def release_some(self, piece: Governed) -> list[int]:
        slowest = min((self.clock[worker] for worker in self.active), default=0)
        free = [worker for worker in self.waiting if self.clock[worker] - slowest <= self.bound]
        self.waiting = [worker for worker in self.waiting if worker not in free]
        return free


class Rounds(Discipline):
    """Synchronous rounds of the first workers - `backup` gradients; those that come later are dropped.

    Chen et al., Revisiting distributed synchronous SGD (2016).
    """

    def __init__(self, workers: int, backup: int) -> None:
        super().__init__(workers)
        self.enough = workers - backup

    def take_gradient(self, piece: Governed, worker: int) -> list[int]:
        if not piece.is_fresh(worker):
            piece.drop(worker)
            return [worker]
        piece.add(worker)
        self.waiting.append(worker)
        return self.release_some(piece)

    def release_some(self, piece: Governed) -> list[int]:
        if not self.waiting or len(self.waiting) < min(self.enough, len(self.active)):
            return []
        piece.apply_round()
        return self.release()


def make_discipline(workers: int, bound: int | None, backup: int) -> Discipline:
    """Create the discipline of a piece."""
    if bound is not None:
        return Bounded(workers, bound)
    return Rounds(workers, backup) if backup else Asynchronous(workers)


# ---- the extra duties of master 0

# Samples to evaluate between two checks for messages from workers.
SAMPLES_AT_ONCE = 64
# The fraction of its time that master 0 spends on evaluation while it serves workers; all ranks do the rest together at
# the end. Models waiting for evaluation may take this many bytes; beyond that, evaluation has priority.
EVALUATION_SHARE, QUEUE_BYTES = 0.02, 256 << 20


class Dealer:
    """The assignment of batches to workers after their first; -1: none is left.

    >>> static = Dealer("static", workers=2, steps_per_epoch=3, steps=6)      # the first ones take what is left over
    >>> [static.next(0) for _ in range(4)], [static.next(1) for _ in range(2)]
    ([2, 3, 5, -1], [4, -1])
    >>> dynamic = Dealer("dynamic", workers=2, steps_per_epoch=3, steps=6)
    >>> [dynamic.next(worker) for worker in (1, 1, 1, 0, 0)]
    [2, 3, 4, 5, -1]
    >>> other = Dealer("static", workers=3, steps_per_epoch=3, steps=6, dealt=np.array([True, False, True, False]))
    >>> [other.next(worker) for worker in (0, 0, 1, 2)]                        # 1 of the first epoch; 3, 4, 5
    [1, 3, 4, 5]
    """

    def __init__(
        self,
        share: Literal["static", "dynamic"],
        workers: int,
        steps_per_epoch: int,
        steps: int,
        dealt: Array | None = None,
    ) -> None:
        """Assign the first batches, which every worker knows without a message; after an interruption there are none.

        `dealt`: the batches of an interrupted run that need not be dealt any more (True), the first ones of all `steps`.
        """
        self.share = share
        self.stopped = False
        self.dealt = np.zeros(steps, bool)
        """The batches that have been dealt."""
        left: Sequence[int] = range(steps)
        if dealt is not None:
            self.dealt[: dealt.size] = dealt
            left = np.flatnonzero(~self.dealt).tolist()
        self.count = steps - len(left)
        """The number of batches that have been dealt."""
        self.idle: set[int] = set()
        """The workers that have no more batches."""
        self._free = iter(left)
        self._own = [_share(worker, workers, steps_per_epoch, left) for worker in range(workers)]
        if dealt is None:
            for worker in range(workers):
                if first_batch(share, worker, steps_per_epoch, steps) < 0:
                    self.idle.add(worker)
                else:
                    self.next(worker)

    def next(self, worker: int) -> int:
        """Return the next batch of a worker; -1: there is none."""
        own = self._free if self.share == "dynamic" else self._own[worker]
        step = -1 if self.stopped else next(own, -1)
        if step < 0:
            self.idle.add(worker)
        else:
            self.dealt[step] = True
            self.count += 1
        return step


def first_batch(share: Literal["static", "dynamic"], worker: int, steps_per_epoch: int, steps: int) -> int:
    """Return the batch that a worker computes first; -1: none.

    >>> [first_batch("static", worker, steps_per_epoch=3, steps=6) for worker in range(4)]
    [0, 1, 2, -1]
    >>> [first_batch("dynamic", worker, steps_per_epoch=3, steps=6) for worker in (2, 3, 6)]
    [2, 3, -1]
    """
    return worker if worker < (min(steps_per_epoch, steps) if share == "static" else steps) else -1


def _share(worker: int, workers: int, steps_per_epoch: int, left: Sequence[int]) -> Iterator[int]:
    """Iterate over a worker's own batches of those that are left: every `workers`-th batch of each epoch."""
    start = 0
    while start < len(left):
        stop = bisect_left(left, (left[start] // steps_per_epoch + 1) * steps_per_epoch, start)
        yield from left[start:stop][worker::workers]
        start = stop


class Chief:
    """Master 0's side work; everything here depends only on the order in which messages arrive."""

    def __init__(self, me: Worker, dealer: Dealer, workers: int, pieces: int) -> None:
        self.me, self.dealer = me, dealer
        self.go_back: str | None = None
        """The mark that the masters must restore after divergence, if any."""
        self._pieces = pieces
        # The first gradient of each worker belongs to the initial parameters, but a few samples are a poor estimate.
        first = max(workers, -(-32 // me.shares.batches.batch))
        self._guard = Guard(horizon=max(32, 2 * workers), first=first)
        self._sums: dict[int, list[float]] = {}
        self._done = 0
        self._buffers = np.zeros((workers, flat_buffers(me.model).size))
        self._heard = np.zeros(workers, bool)
        self._parts: dict[int, list[tuple[slice, Array]]] = {}
        self._queue: deque[int] = deque()
        self._going: Iterator[Score] | None = None
        self._so_far = Score()
        self._scores: dict[int, Score] = {}
        self._metrics: dict[int, dict[str, float]] = {}
        self._ended: dict[int, float] = {}  # training time at the end of each epoch
        self._all_known = False
        self._known = np.zeros(me.steps, bool)  # the batches whose losses are known

    # ---- the state at a cut, when the ends of all epochs so far have been reported

    def state(self) -> dict[str, Any]:
        """Return everything that is needed to continue."""
        waiting = {
            str(epoch): [[part.start, part.stop, np.asarray(values)] for part, values in parts]
            for epoch, parts in self._parts.items()
        }
        return {
            "dealt": np.packbits(self.dealer.dealt),
            "known": np.packbits(self._known),
            "done": self._done,
            "guard": self._guard.state(),
            "first_loss": self._guard.first,
            "sums": {str(epoch): sums for epoch, sums in self._sums.items()},
            "waiting": waiting,
            "scores": {str(epoch): score.sums for epoch, score in self._scores.items()},
            "metrics": {str(epoch): dict(score.metrics) for epoch, score in self._scores.items()},
            "ended": {str(epoch): seconds for epoch, seconds in self._ended.items()},
        }

    def resume(self, saved: dict[str, Any], ends: int) -> None:
        """Continue from a state, with a dealer that does so; `ends`: the number of epochs that have ended."""
        self._done = int(saved["done"])
        known = np.unpackbits(saved["known"])[: self.me.steps]
        self._known[: known.size] = known
        if "guard" in saved:
            self._guard.resume(saved["guard"])
        elif math.isfinite(saved.get("first_loss", math.inf)):
            self._guard.start_at(float(saved["first_loss"]))
        self._sums = {
            int(epoch): [float(loss), int(count), int(batches)]
            for epoch, (loss, count, batches) in saved["sums"].items()
        }
        metrics = saved.get("metrics") or {}
        self._scores = {
            int(epoch): Score(
                float(loss), int(correct), float(weight), int(answers), metrics.get(epoch) or {}
            )
            for epoch, (loss, correct, weight, answers) in saved["scores"].items()
        }
        for epoch in range(self.me.epochs_ended, ends):
            whole = np.array(self.me.model.x)  # of parts that were lost with a master, the current values
            for start, stop, values in saved["waiting"].get(str(epoch), ()):
                whole[start:stop] = values
            self._parts[epoch] = [(slice(0, whole.size), whole)]
            self._ended[epoch] = float(saved["ended"].get(str(epoch), self.me.train_seconds))
            if epoch not in self._scores:
                self._queue.append(epoch)

    def count_lost(self, steps: Sequence[int]) -> None:
        """Count batches whose losses were lost with the ranks that computed them."""
        for step in steps:
            if not self._known[step]:
                self._known[step] = True
                self._sums.setdefault(step // self.me.steps_per_epoch, [0.0, 0, 0])[2] += 1

    def put(self, parts: Sequence[tuple[slice, Array]]) -> None:
        """Copy the model at a cut, and the workers' buffers, into `me.model`; an evaluation in progress begins again."""
        self._going = None
        for part, values in parts:
            self.me.model.x[part] = values
        self.put_buffers()

    # ---- losses

    def record_loss(self, worker: int, step: int, loss: float, count: int, buffers: Array) -> None:
        """Record a worker's loss on the batch of an earlier step, and its buffers after it.

        `worker`: -1 if the worker that computed it no longer takes part in this run.
        """
        if self._known[step]:  # reported again after ranks died
            return
        self._known[step] = True
        sums = self._sums.setdefault(step // self.me.steps_per_epoch, [0.0, 0, 0])
        sums[0], sums[1], sums[2] = sums[0] + loss, sums[1] + count, sums[2] + 1
        if buffers.size and worker >= 0:
            self._buffers[worker], self._heard[worker] = buffers, True
        self._done += 1
        self.me.show_progress(self._done - 1, loss / count)

    def guard(self, loss: float, recent_staleness: Callable[[], str]) -> None:
        """React to a batch's mean loss that indicates divergence; `recent_staleness` describes that of the last updates."""
        if self.me.on_divergence == "ignore" or self.dealer.stopped:
            return
        wrong = self._guard.see(loss)
        if wrong is None:
            return
        words = f"{wrong} after {self._done:,} gradients, with a recent staleness of {recent_staleness()}"
        if self.me.on_divergence == "stop":
            self.dealer.stopped = True
            self.me.stop(f"{words}; try fewer workers or rule=adaptive")
        else:
            self.go_back = "to the start" if self._guard.still else "to the last good parameters"
            self._guard.forget()
            self.me.divergences.append(f"{words}; back {self.go_back} with half the step")
            log.warning("training has diverged: %s", self.me.divergences[-1])

    # ---- evaluation, a little at a time

    def snapshot(self, epoch: int, part: slice, values: Array) -> None:
        """Store one piece of the model as it was at the end of an epoch."""
        parts = self._parts.setdefault(epoch, [])
        parts.append((part, values))
        if len(parts) == self._pieces:
            self._queue.append(epoch)
            self._ended[epoch] = self.me.train_seconds

    @property
    def overloaded(self) -> bool:
        """True if too many complete models wait to be evaluated."""
        return len(self._queue) > 2 and len(self._queue) * self.me.model.x.nbytes > QUEUE_BYTES

    @property
    def may_work(self) -> bool:
        """True if there is something to evaluate and time to do so."""
        if not self._queue:
            return False
        return self.me.seconds["evaluation"] <= EVALUATION_SHARE * self.me.train_seconds or self.overloaded

    def work(self) -> None:
        """Evaluate a few samples of the oldest complete model that is waiting for it."""
        epoch = self._queue[0]
        with self.me.evaluation():
            if self._going is None:
                self.assemble(epoch)
                self._judge(epoch)
                model, self._so_far = self.me.model, Score()
                samples = samples_for(model, self.me.data.validation, size=SAMPLES_AT_ONCE)
                self._outputs = Outputs(model, self.me.metrics)
                self._going = iterate_scores(model, samples, self._outputs)
            found = next(self._going, None)
            if found is not None:
                self._so_far = found
            else:
                self._going = None
                self._queue.popleft()
                self._scores[epoch] = replace(self._so_far, metrics=self._outputs.compute())
                self._report()

    def _judge(self, epoch: int) -> None:
        """Let the user's program evaluate the model, if it does that itself."""
        self._metrics[epoch] = self.me.judge(epoch)
        if getattr(self.me.model, "wants_stop", False):
            self.me.end_after(epoch)
            self.dealer.stopped = True

    def assemble(self, epoch: int) -> None:
        """Copy the model at the end of an epoch, and the workers' buffers, into `me.model`."""
        self.put(self._parts[epoch])

    def put_buffers(self) -> None:
        """Average the workers' buffers (BatchNorm's statistics) into `me.model`; integers are the first worker's."""
        if self._buffers.size and self._heard.any():
            put_flat_buffers(self.me.model, self._buffers[self._heard])

    def _report(self) -> None:
        """Report the epochs whose model has been evaluated and whose losses are all known."""
        epoch = self.me.epochs_ended
        while epoch in self._scores:
            sums = self._sums.get(epoch, [0.0, 0, 0])
            if sums[2] < self.me.steps_per_epoch and not self._all_known:
                return
            loss = ratio(sums[0], sums[1]) or 0.0
            self.me.end_epoch(
                epoch, loss, self._scores.pop(epoch), self._ended.pop(epoch), self._metrics.pop(epoch, {})
            )
            del self._parts[epoch]
            self._sums.pop(epoch, None)
            epoch += 1

    def finish(self) -> None:
        """Evaluate the remaining models on all ranks together, after all workers have finished. Collective."""
        self._all_known = True
        self._going = None
        self._report()
        self.me.control.broadcast(np.array([len(self._queue)]))
        while self._queue:
            epoch = self._queue.popleft()
            self.assemble(epoch)
            self._judge(epoch)
            self._scores[epoch] = evaluate_together(self.me)
            self._report()


def evaluate_together(me: Worker) -> Score:
    """Evaluate rank 0's model on the validation samples, dividing them among all ranks. Collective."""
    me.broadcast()
    return score_together(me.model, me.data.validation, me.control, metrics=me.metrics)


def help_to_finish(me: Worker) -> None:
    """Take part in rank 0's `Chief.finish`. Collective."""
    for _ in range(int(me.control.broadcast(np.zeros(1, np.int64))[0])):
        evaluate_together(me)
