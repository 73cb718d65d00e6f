"""A master of the parameter server: what its messages are, and what it does with each."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.comm.clocks import Stopwatch
from paceline.models import flat_buffers
from paceline.strategies.parameter_server import _messages as messages
from paceline.strategies.parameter_server._chief import Chief, help_to_finish
from paceline.strategies.parameter_server._disciplines import Discipline
from paceline.strategies.parameter_server._owned import (
    APPLIED,
    DROPPED,
    EVENTS,
    LEFT,
    RESTORED,
    Gradient,
    Owned,
)
from paceline.strategies.parameter_server._placement import Piece
from paceline.strategies.parameter_server.rules import Rule
from paceline.worker import Worker

if TYPE_CHECKING:
    from paceline.strategies.parameter_server._owned import Owned


# ---- The receives that a master has posted: what has arrived of them, in the order it arrives or in one that is given.

Key = tuple[str, int, int]
"""What is received, of which piece, from which worker."""


class Inbox:
    """A receive is posted before what it receives can have been sent. Waiting goes on the clock as such."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch
        self._under_way: dict[Key, Any] = {}

    def expect(self, key: Key, request: Any) -> None:
        """A receive has been posted."""
        self._under_way[key] = request

    def arrived(self, *, wait: bool) -> list[Key]:
        """What has arrived since the last call; nothing may have, unless it is to be waited for."""
        keys, requests = list(self._under_way), list(self._under_way.values())
        some: Any = type(requests[0])
        done = (some.Waitsome if wait else some.Testsome)(requests) or ()
        self._watch.lap("wait")
        found = [keys[index] for index in done]
        for key in found:
            del self._under_way[key]
        return found

    def take(self, what: str, number: int = 0, worker: int = 0) -> Key:
        """Wait for one of them."""
        key = (what, number, worker)
        self._under_way.pop(key).Wait()
        self._watch.lap("wait")
        return key


# ---- The parameters as they were now and then: what a master goes back to when the loss has run away.
KEPT = 4  # of each piece: the start, and the last ones


class Marks:
    """A mark is made of each piece every so many of its gradients. By its number it is the same moment on every master,
    nearly: mark 0 is the start."""

    def __init__(self, pieces: Sequence[Owned], every: int) -> None:
        self._pieces, self._every = pieces, every
        self._marks: list[dict[int, Array]] = [{0: owned.x.copy()} for owned in pieces]
        self._good = 0

    def arrived(self, owned: Owned) -> bool:
        """A gradient of a piece has: whether that made a mark of it."""
        number, rest = divmod(owned.arrivals, self._every)
        if rest:
            return False
        place = self._pieces.index(owned)
        marks = self._marks[place]
        marks[number] = owned.x.copy()
        if len(marks) > KEPT:
            del marks[min(marks.keys() - {0})]  # the start is kept
        if place == 0:  # the mark before this one is good if nothing has been said against it
            self._good = max(self._good, number - 1)
        return True

    def good(self, *, from_start: bool) -> int:
        """The mark to go back to."""
        if from_start:
            self._good = 0
        return self._good

    def restore(self, mark: int) -> None:
        """Go back to a mark; those made since are then of the same values."""
        for owned, marks in zip(self._pieces, self._marks, strict=True):
            owned.restore(marks[mark])
            for later in [m for m in marks if m > mark]:
                marks[later] = owned.x.copy()


# ---- What a master sends its workers: of each kind one message at a time to each.


class Replies:
    """Sends under way, by tag and worker; the first worker is rank `first`."""

    def __init__(self, comm: Any, first: int) -> None:
        self._comm, self._first = comm, first
        self._under_way: dict[tuple[int, int], Any] = {}

    def complete(self, tag: int, worker: int) -> None:
        """The worker has what was last sent to it under this tag: it could not have come back without."""
        request = self._under_way.pop((tag, worker), None)
        if request is not None:
            request.Wait()

    def send(self, values: NDArray[Any], tag: int, worker: int) -> None:
        """Values that stay as they are until the send is complete."""
        self._under_way[tag, worker] = self._comm.Isend(values, dest=self._first + worker, tag=tag)

    def complete_all(self) -> None:
        """Wait for all of them."""
        for request in self._under_way.values():
            request.Wait()


Array = NDArray[Any]


class Master:
    """Serves whoever comes."""

    def __init__(
        self,
        me: Worker,
        comm: Any,
        pieces: list[Piece],
        masters: int,
        rule: Rule,
        discipline: Callable[[], Discipline],
        chief: Chief | None,
    ) -> None:
        self.me, self.comm, self.masters, self.chief = me, comm, masters, chief
        self.workers = workers = me.size - masters
        self.log = array("d")
        self.snapshots = np.zeros(len(pieces), np.int64)
        """How many epochs' ends were told of, by piece."""
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
        self._to_come = [0] * workers  # of the pieces of a worker's present gradient
        self._given_up = [False] * workers
        self._marks = (
            Marks(list(self._owned.values()), every=max(me.steps_per_epoch // 8, 8 * workers))
            if me.on_divergence == "halve"
            else None
        )
        self._headers = np.zeros((workers, messages.BUFFERS + (flat_buffers(me.model).size if chief else 0)))
        self._next = np.zeros((workers, 1), np.int64)
        self._orders = np.zeros(2)
        self._landing = {n: np.empty_like(me.model.x[piece.part]) for n, piece in self._theirs.items()}
        self._announced: list[Any] = [None] * workers  # receives under way of headers
        self._inbox = Inbox(me.watch)  # other receives under way
        self._replies = Replies(comm, first=masters)
        self._copies: list[tuple[Any, Array]] = []  # sends under way, of copies made for them

    # ---- the loop

    def serve(self) -> None:
        """Until every worker has left; and then, but for master 0, until master 0 says that all is done."""
        for worker in range(self.workers):
            self._expect_header(worker)
            for number in self._owned:
                self._expect("gradient", number, worker)
        if self.chief is None:
            self._expect("orders")
        else:
            for number in self._theirs:
                self._expect("snapshot", number)
        for what, number, worker in self._as_they_come() if self.me.replay is None else self._as_they_came():
            getattr(self, f"_on_{what}")(number, worker)
            self.me.watch.lap("exchange")
        self._replies.complete_all()
        if self.chief is not None:
            self._give_orders(messages.END, 0)

    def _as_they_come(self) -> Iterator[Key]:
        """What has arrived, as it arrives; while nothing has, master 0 evaluates a little."""
        while self._working or not self._ended:
            idle = self.chief is not None and self.chief.may_work
            arrived = self._inbox.arrived(wait=not idle)
            if self.chief is not None and idle and (not arrived or self.chief.pressed):
                self.chief.work()
            yield from arrived

    def _as_they_came(self) -> Iterator[Key]:
        """What had arrived in the run that is replayed, in that order."""
        rows = self.me.replay.updates
        mine = rows["master"] == self.me.rank
        for event, number, worker in zip(*(rows[name][mine].tolist() for name in EVENTS[:3]), strict=True):
            if event in (APPLIED, DROPPED):
                yield self._inbox.take("gradient", number, worker)
            elif event == LEFT:
                for piece in self._owned:
                    yield self._inbox.take("gradient", piece, worker)
            elif self.chief is None:  # master 0 decides on going back as it did
                yield self._inbox.take("orders")
        if self.chief is None:
            yield self._inbox.take("orders")

    def _expect(self, what: str, number: int = 0, worker: int = 0) -> None:
        """Post a receive."""
        if what == "gradient":
            into = self._owned[number].g[worker]
            request = self.comm.Irecv(into, source=self.masters + worker, tag=messages.PIECES + number)
        elif what == "snapshot":
            owner = self._theirs[number].master
            request = self.comm.Irecv(self._landing[number], source=owner, tag=messages.PIECES + number)
        else:
            request = self.comm.Irecv(self._orders, source=0, tag=messages.ORDERS)
        self._inbox.expect((what, number, worker), request)

    def _expect_header(self, worker: int) -> None:
        into = self._headers[worker]
        self._announced[worker] = self.comm.Irecv(into, source=self.masters + worker, tag=messages.HEADER)

    # ---- what happens

    def _on_gradient(self, number: int, worker: int) -> None:
        """A gradient of a piece: apply it (or not, or not yet), and answer whoever is to go on."""
        self.me.charge("serve", 1)
        first = self._to_come[worker] == 0
        if first:
            self._take_header(worker)
        self._to_come[worker] -= 1
        if self._said[worker].step < 0:  # nothing: the worker has left
            if first:
                self._leave(worker)
            self._working -= self._to_come[worker] == 0
            return
        owned = self._owned[number]
        owned.arrivals += 1
        self._given_up[worker] |= owned.outdated(worker)
        self.me.watch.lap("exchange")
        answered = self._discipline[number].arrived(owned, worker)
        self.me.watch.lap("update")
        self._expect("gradient", number, worker)
        self._answer(owned, answered)
        epoch, rest = divmod(owned.arrivals, self.me.steps_per_epoch)
        if rest == 0:
            self._tell_chief(owned, epoch - 1)
        if self._marks is not None and self._marks.arrived(owned):
            self.me.charge("copy", owned.x.nbytes)

    def _take_header(self, worker: int) -> None:
        """What the worker said before it sent this gradient; with it came the loss of its last one."""
        self._announced[worker].Wait()
        header, said = self._headers[worker], self._said[worker]
        said.step, said.count = int(header[messages.STEP]), int(header[messages.COUNT])
        self._to_come[worker] = len(self._owned)
        if self.chief is not None and header[messages.LAST_STEP] >= 0:
            self._take_loss(worker, header)
        if said.step >= 0:
            self._expect_header(worker)

    def _leave(self, worker: int) -> None:
        """A worker has done its last batch."""
        self.log.extend((LEFT, 0, worker, -1, 0, 0))
        for number, owned in self._owned.items():
            self._answer(owned, self._discipline[number].left(owned, worker))

    def _on_snapshot(self, number: int, _: int) -> None:
        """Another master's piece as it was at the end of an epoch."""
        self._take_snapshot(number)
        self._expect("snapshot", number)

    def _on_orders(self, _: int, __: int) -> None:
        """Master 0 says to go back, or that all is done."""
        kind, mark = self._orders.astype(int).tolist()
        if kind == messages.END:
            self._ended = True
        else:
            self._restore(mark)
            self._expect("orders")

    # ---- answers

    def _answer(self, owned: Owned, workers: list[int]) -> None:
        """Send workers the present values of a piece; master 0 adds which batch is next."""
        tag = messages.PIECES + owned.piece.number
        for worker in workers:
            self._replies.complete(tag, worker)
            self._replies.send(owned.answer(worker), tag, worker)
            self._unanswered[worker] -= 1
            if self._unanswered[worker] == 0:
                self._unanswered[worker] = len(self._owned)
                if self.chief is not None:
                    self._replies.complete(messages.NEXT, worker)
                    self._next[worker] = self.chief.dealer.next(worker)
                    self._replies.send(self._next[worker], messages.NEXT, worker)

    # ---- with master 0

    def _take_loss(self, worker: int, header: Array) -> None:
        """Master 0 takes note of the loss of a worker's last batch, and goes back if it has run away."""
        assert self.chief is not None
        step, count = int(header[messages.LAST_STEP]), int(header[messages.LAST_COUNT])
        loss = float(header[messages.LAST_LOSS])
        self.chief.loss(worker, step, loss, count, header[messages.BUFFERS :])
        given_up, self._given_up[worker] = self._given_up[worker], False
        if given_up:  # a loss of parameters that are no longer there
            return
        self.chief.watch(loss / count, self._lately)
        if self.chief.go_back is not None:
            assert self._marks is not None
            mark = self._marks.good(from_start=self.chief.go_back == "to the start")
            self.chief.go_back = None
            self._give_orders(messages.RESTORE, mark)
            self._restore(mark)

    def _lately(self) -> str:
        """The staleness of the last updates, in words."""
        rows = np.array(self.log).reshape(-1, len(EVENTS))[-100:]
        taus = rows[rows[:, 0] == APPLIED, EVENTS.index("tau")]
        return f"{taus.mean():.1f} updates, at most {taus.max():.0f}" if taus.size else "unknown"

    def _tell_chief(self, owned: Owned, epoch: int) -> None:
        """An epoch's gradients have all arrived: this piece, as it is now, is part of the model that is evaluated."""
        values = owned.x.copy()
        self.me.charge("copy", values.nbytes)
        self.snapshots[owned.piece.number] += 1
        if self.chief is not None:
            self.chief.snapshot(epoch, owned.piece.part, values)
        else:
            request = self.comm.Isend(values, dest=0, tag=messages.PIECES + owned.piece.number)
            self._copies.append((request, values))

    def _take_snapshot(self, number: int) -> None:
        assert self.chief is not None
        epoch = int(self.snapshots[number])
        self.snapshots[number] += 1
        self.chief.snapshot(epoch, self._theirs[number].part, self._landing[number].copy())

    def _give_orders(self, kind: int, mark: int) -> None:
        for master in range(1, self.masters):
            orders = np.array([kind, mark], float)
            self._copies.append((self.comm.Isend(orders, dest=master, tag=messages.ORDERS), orders))

    def _restore(self, mark: int) -> None:
        assert self._marks is not None
        self.log.extend((RESTORED, 0, -1, mark, 0, 0))
        self._marks.restore(mark)

    # ---- the end

    def end(self) -> None:
        """Bring the complete model to rank 0; what has not been evaluated yet is. Collective, for all ranks."""
        told = self.me.control.total(self.snapshots * (self.chief is None))
        if self.chief is None:
            for owned in self._owned.values():  # the last of a piece: its values at the end
                self._copies.append(
                    (self.comm.Isend(owned.x, dest=0, tag=messages.PIECES + owned.piece.number), owned.x)
                )
        else:
            for number in self._theirs:
                while self.snapshots[number] < told[number]:
                    self._on_snapshot(*self._inbox.take("snapshot", number)[1:])
                self._inbox.take("snapshot", number)
        for request, _ in self._copies:
            request.Wait()
        if self.chief is None:
            help_to_finish(self.me)
            return
        self.chief.finish()
        for number, piece in self._theirs.items():
            self.me.model.x[piece.part] = self._landing[number]
        for owned in self._owned.values():
            self.me.model.x[owned.piece.part] = owned.x
        self.chief.put_buffers()
