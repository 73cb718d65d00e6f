"""What becomes of the others' calls when a rank has died, or a communicator was revoked.

    who waits for a dead rank, or in a collective that it should take part in: ERR_PROC_FAILED
    who waits for anybody: ERR_PROC_FAILED_PENDING, until the death is acknowledged
    on a revoked communicator, in all that is under way and all that comes: ERR_REVOKED

Ranks learn of it by a notice that comes to them as messages do: what was sent before, and is there before it, counts.
Runs without faults have none of this.

Bland et al., Post-failure recovery of MPI communication capability (2013).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from paceline.sim import _sites
from paceline.sim._buffers import put
from paceline.sim._groups import Meeting
from paceline.sim._matching import withdraw
from paceline.sim.errors import MPIError, mpi_error

if TYPE_CHECKING:
    from paceline.sim._faulty import Faults

# Receives that end with the error, as nobody has their request to wait on.
BLOCKING = ("Recv", "Sendrecv (recv)")


class Notice:
    """Something that a rank hears of when it takes it in."""

    __slots__ = ("heard",)

    def __init__(self, heard: Callable[[Any], None]) -> None:
        self.heard = heard

    def arrive(self, rank: Any) -> None:
        self.heard(rank)


class Losses:
    """Which rank has heard of which deaths and revocations, and the requests that fail for it."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._kernel = faults.kernel
        self._dead: dict[int, list[int]] = {}
        """For each rank: the dead that it has heard of, in this order."""
        self._seen: dict[tuple[int, int], int] = {}
        """For each communicator and rank: how many of the dead it has acknowledged."""
        self._revoked: set[tuple[int, int]] = set()
        """Communicators and ranks that have heard."""
        self._revoking: dict[int, float] = {}
        """Communicators, and when all their ranks will have heard."""
        self._places: dict[int, dict[int, int]] = {}

    # ---- what a communicator asks before it waits for others

    def known(self, comm: Any) -> list[int]:
        """The dead of a communicator that its rank has heard of, by their numbers in the world."""
        return self._known(comm.me, comm.group)

    def acknowledged(self, comm: Any) -> list[int]:
        """Those of them that it has acknowledged."""
        return self.known(comm)[: self._seen.get((comm.context, comm.me.number), 0)]

    def is_revoked(self, comm: Any) -> bool:
        """Whether it has heard that the communicator was revoked."""
        return (comm.context, comm.me.number) in self._revoked

    def begin(self, comm: Any, name: str) -> bool:
        """Come to a call of all, unless that is in vain. True: leave it out, quietly."""
        self._faults.check(comm.me)
        dead = self.known(comm)
        if name.endswith("Free"):
            return bool(dead) or self.is_revoked(comm)
        self._refuse(comm, name)
        if dead:
            raise self._failure(comm.me, name, dead[0])
        return False

    def posted(self, comm: Any, receive: Any) -> None:
        """A receive was posted: where nothing can come for it, it is done, with an error."""
        self._faults.check(comm.me)
        if self.is_revoked(comm):
            _forget(receive)
            self._refuse(comm, receive.name)
        for dead in self.known(comm):
            self._lose(comm.me, comm.group, receive, dead)

    def sent(self, comm: Any, message: Any, dest: Any) -> bool:
        """A message was sent: whether there is somebody to receive it."""
        if self.is_revoked(comm):
            _forget(message)
            self._refuse(comm, message.name)
        if not message.eager:
            if comm.context in self._revoking:
                self._fail_later(message, self._revoking[comm.context], self._revocation)
            if not dest.alive:
                self._fail_for(dest.number, message)
        return bool(dest.alive)

    def probing(self, comm: Any, source: int | None) -> None:
        """No message was found: is there any use in waiting for one?"""
        name = "Probe"
        self._faults.check(comm.me)
        self._refuse(comm, name)
        if source is None:
            mourned = self.acknowledged(comm)
            lost = [dead for dead in self.known(comm) if dead not in mourned]
        else:
            lost = [dead for dead in self.known(comm) if dead == comm.members[source]]
        if lost:
            raise self._failure(comm.me, name, lost[0])

    @property
    def any_revoked(self) -> bool:
        return bool(self._revoking)

    # ---- a rank has died

    def died(self, rank: Any, known: float) -> None:
        """Let the others know; who is sending to the dead rank, and waits until it receives, fails then."""
        number = rank.number
        for other in self._kernel.ranks:
            if other.alive:
                self._kernel.put(other, known, Notice(lambda hearing: self._hear(hearing, number)))
        for message in _unreceived(rank):
            self._fail_for(number, message)

    def unsent(self, sender: int, receive: Any) -> None:
        """A receive has taken a message whose sender died before it had sent the data."""
        self._fail_for(sender, receive)

    def _hear(self, rank: Any, dead: int) -> None:
        self._dead.setdefault(rank.number, []).append(dead)
        groups = self._kernel.groups
        contexts = {context for context, _ in rank.posted} | set(rank.wild)
        for context in contexts:
            if dead in self._place(groups[context]):
                for receive in _receives(rank, context):
                    self._lose(rank, groups[context], receive, dead)
        for group in list(groups.values()):
            if group.meetings and dead in self._place(group):
                for met in self._meetings(rank, group):
                    _fail(met, self._failure(rank, met.name, dead, met.made))

    def _lose(self, rank: Any, group: Any, receive: Any, dead: int) -> None:
        """A receive that waits, and may wait for a dead rank."""
        source = receive.wanted_source
        if receive.done or (source is not None and group.members[source] != dead):
            return
        if source is None and self._known(rank, group).index(dead) < self._seen.get(
            (group.context, rank.number), 0
        ):
            return
        if source is not None or receive.name in BLOCKING:
            withdraw(rank, receive)
            _fail(receive, self._failure(rank, receive.name, dead, receive.made))
            return
        # It stays where it is: somebody else may still send.
        receive.error = self._failure(rank, receive.name, dead, receive.made, "ERR_PROC_FAILED_PENDING")
        receive.error.pending = True
        receive.done = True

    def acknowledge(self, comm: Any, most: int | None) -> int:
        """Receives from anybody wait again, for those who live; how many of the dead are acknowledged."""
        dead, key = self.known(comm), (comm.context, comm.me.number)
        count = len(dead) if most is None else min(max(most, 0), len(dead))
        self._seen[key] = count = max(count, self._seen.get(key, 0))
        if count == len(dead):
            for receive in comm.me.wild.get(comm.context, ()):
                receive.error, receive.done = None, False
        return count

    # ---- a communicator is revoked

    def revoke(self, comm: Any) -> None:
        """Let all ranks of a communicator know that it is of no use any more."""
        group, ranks = comm.group, self._kernel.ranks
        if group.context not in self._revoking:
            reach = comm.me.t + self._kernel.wires.collective("Bcast", group.members, 0)
            self._revoking[group.context] = reach
            for rank in (ranks[number] for number in group.members):
                if rank.alive and rank is not comm.me:
                    self._kernel.put(rank, reach, Notice(lambda hearing: self._hear_revoked(hearing, group)))
                for message in _unreceived(rank):
                    if message.to[0] == group.context:
                        self._fail_later(message, reach, self._revocation)
        self._hear_revoked(comm.me, group)

    def _hear_revoked(self, rank: Any, group: Any) -> None:
        if (group.context, rank.number) in self._revoked:
            return
        self._revoked.add((group.context, rank.number))
        for receive in _receives(rank, group.context):
            withdraw(rank, receive)
            receive.done = False  # as one from anybody is, while a death is not acknowledged
            _fail(receive, self._revocation(receive))
        for met in self._meetings(rank, group):
            _fail(met, self._revocation(met))

    def _refuse(self, comm: Any, name: str) -> None:
        if self.is_revoked(comm):
            raise self._said("ERR_REVOKED", comm.me, name, None, f"{comm.name} was revoked")

    # ---- errors

    def _fail_for(self, dead: int, request: Any) -> None:
        def failure(request: Any) -> MPIError:
            return self._failure(request.rank, request.name, dead, request.made)

        self._fail_later(request, self._faults.dead[dead].known, failure)

    def _fail_later(self, request: Any, at: float, error: Callable[[Any], MPIError]) -> None:
        rank = request.rank
        if rank.alive:
            self._kernel.put(rank, max(at, rank.t), Notice(lambda _: _fail(request, error(request))))

    def _failure(
        self, rank: Any, name: str, dead: int, made: Any = None, kind: str = "ERR_PROC_FAILED"
    ) -> MPIError:
        return self._said(kind, rank, name, made, self._faults.describe(dead))

    def _revocation(self, request: Any) -> MPIError:
        return self._said(
            "ERR_REVOKED", request.rank, request.name, request.made, "the communicator was revoked"
        )

    def _said(self, kind: str, rank: Any, name: str, made: Any, what: str) -> MPIError:
        line = _sites.spelled(_sites.site() if made is None else made)
        return mpi_error(kind, f"{what}; rank {rank.number} noticed in {name} at {line}")

    # ---- who is where

    def _known(self, rank: Any, group: Any) -> list[int]:
        places = self._place(group)
        return [number for number in self._dead.get(rank.number, ()) if number in places]

    def _place(self, group: Any) -> dict[int, int]:
        """The members' ranks in a group, by their numbers in the world."""
        found = self._places.get(group.context)
        if found is None:
            found = self._places[group.context] = {number: rank for rank, number in enumerate(group.members)}
        return found

    def _meetings(self, rank: Any, group: Any) -> Iterator[Any]:
        """A rank's part in the calls of all that others have not come to."""
        place = self._place(group).get(rank.number)
        if place is not None:
            for meeting in list(group.meetings.values()):
                if isinstance(meeting, Meeting) and meeting.requests[place] is not None:
                    yield meeting.requests[place]


def _receives(rank: Any, context: int) -> list[Any]:
    """A rank's receives that wait, of one communicator."""
    found = list(rank.wild.get(context, ()))
    for (of, _), queue in rank.posted.items():
        if of == context:
            found += queue
    return found


def _unreceived(rank: Any) -> list[Any]:
    """Messages to a rank whose senders wait until it receives them."""
    every = [message for queue in rank.unexpected.values() for message in queue]
    every += [thing for _, _, thing in rank.inbox if hasattr(thing, "sender")]
    return [message for message in every if not message.eager]


def _fail(request: Any, error: MPIError) -> None:
    """End a request with an error; what it should have changed stays as it was."""
    if request.done:
        return
    if request.receives:
        _give_back(request)
    if hasattr(request, "take"):
        request.take = None
    if not request.name.endswith("Free"):
        request.error = error
    request.done = True


def _forget(request: Any) -> None:
    """Undo a call that is refused."""
    if request.receives:
        withdraw(request.rank, request)
        _give_back(request)
    request.Free()


def _give_back(receive: Any) -> None:
    if receive.kept is not None:
        put(receive.view, receive.kept)
        receive.kept = None
