"""A master of the parameter server: what its messages are, and what it does with each."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.models._state import flat_buffers
from paceline.rules import Rule
from paceline.strategies._server import messages
from paceline.strategies._server.chief import Chief, help_to_finish
from paceline.strategies._server.disciplines import Discipline
from paceline.strategies._server.inbox import Inbox, Key
from paceline.strategies._server.marks import Marks
from paceline.strategies._server.owned import APPLIED, DROPPED, EVENTS, LEFT, RESTORED, Gradient, Owned
from paceline.strategies._server.placement import Piece
from paceline.strategies._server.replies import Replies
from paceline.worker import Worker

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
