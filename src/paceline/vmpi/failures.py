"""What goes wrong in one run: messages that are late or lost, ranks that are slow, paused or killed.

A run without faults has none of this: `Faults` puts itself between the kernel and the network, and gives a pace of its own
to every rank that it slows down or kills.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple, NoReturn

from greenlet import GreenletExit

from paceline.vmpi import sites as _sites
from paceline.vmpi.buffers import put
from paceline.vmpi.errors import MPIError, mpi_error
from paceline.vmpi.groups import Group, Meeting, Met, Ranks
from paceline.vmpi.matching import Data, Message
from paceline.vmpi.requests import withdraw
from paceline.vmpi.sites import site, spelled

# ---- What becomes of the others' calls when a rank has died, or a communicator was revoked.
#
# who waits for a dead rank, or in a collective that it should take part in: ERR_PROC_FAILED
# who waits for anybody: ERR_PROC_FAILED_PENDING, until the death is acknowledged
# on a revoked communicator, in all that is under way and all that comes: ERR_REVOKED
#
# Ranks learn of it by a notice that comes to them as messages do: what was sent before, and is there before it, counts.
# Runs without faults have none of this.
#
# Bland et al., Post-failure recovery of MPI communication capability (2013).

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


class Killed(GreenletExit):  # type: ignore[misc]
    """Unwinds a rank that is killed, from wherever it is."""


class Death(NamedTuple):
    """When a rank died, when others know, and in which of its steps it was."""

    time: float
    known: float
    step: int | None


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Messages between `a` and `b`, sent from `at` to `until`, come later: by `extra(now, way)` seconds.

    `way`: how long the message would be on its way. `cut`: why; one that is on its way at `at` is late, too.
    """

    a: Collection[int]
    b: Collection[int]
    one_way: bool = False
    at: float = 0.0
    until: float = inf
    extra: Callable[[float, float], float]
    cut: str = ""

    def is_between(self, source: int, dest: int) -> bool:
        """Whether messages from one rank to another are meant."""
        if source in self.a and dest in self.b:
            return True
        return not self.one_way and source in self.b and dest in self.a

    def late(self, source: int, dest: int, now: float, way: float) -> float:
        """How much later a message comes."""
        meant = self.is_between(source, dest) and self._in_force(now, way)
        return self.extra(now, way) if meant else 0.0

    def late_among(self, members: Sequence[int], now: float, way: float) -> float:
        """How much later a collective of MPI's own ends."""
        if not self._in_force(now, way):
            return 0.0
        some = next((member for member in members if member in self.a), None)
        others = [member for member in members if member in self.b][:2]
        return self.extra(now, way) if some is not None and others not in ([], [some]) else 0.0

    def _in_force(self, now: float, way: float) -> bool:
        return now < self.until and (now >= self.at or (bool(self.cut) and now + way > self.at))


class Faults:
    """Everything that goes wrong in a run, and everything that already has."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.rules: list[Rule] = []
        self.random = random.Random(f"{kernel.seed} faults").random
        self.dies: dict[int, float] = {}
        """When a rank will be killed."""
        self.detection: dict[int, float] = {}
        """How long after that the others know."""
        self.steps: dict[int, int] = {}
        """In which step a rank will be killed."""
        self.dead: dict[int, Death] = {}
        self.lost: list[tuple[str, str]] = []
        """What was lost for ever, and why."""
        self.losses = Losses(self)
        self.rescues: dict[tuple[str, int, int], Rescue] = {}
        """Calls of those who live that not all of them have come to."""
        self.rescued: dict[tuple[str, int, int], int] = {}
        kernel.wires = FaultyWires(kernel.wires, self)

    def pace(self, number: int) -> Pace:
        """The pace of a rank, to be changed."""
        rank = self.kernel.ranks[number]
        if rank.pace is None:
            rank.pace = Pace(rank, self)
        found: Pace = rank.pace
        return found

    # ---- messages

    def late(self, source: int, dest: int, now: float, way: float) -> float:
        """How much later than it would a message comes; infinite where it never does."""
        extra = 0.0
        for rule in self.rules:
            extra += rule.late(source, dest, now, way)
        return extra

    def late_among(self, name: str, members: Sequence[int], now: float, end: float) -> float:
        """The same for a collective of MPI's own: when it ends."""
        extra = 0.0
        for rule in self.rules:
            found = rule.late_among(members, now, end - now)
            if found == inf:
                self.lost.append((f"{name} of {len(members):,} ranks", rule.cut))
            extra += found
        return end + extra

    def keeps(self, comm: Any, message: Any, dest: int, arrives: float) -> bool:
        """Whether a message that was sent will not come to anybody."""
        rank = self.kernel.ranks[dest]
        if not self.losses.sent(comm, message, rank):
            return True
        if arrives == inf:
            self.lose(rank, message)
        return arrives == inf

    def spared(self) -> list[str]:
        """What was to kill a rank, and did not: it had ended before, or takes no steps."""
        ranks = self.kernel.ranks
        never = [
            f"fail_at(rank={rank}, step={step}) never happened: rank {rank} began {ranks[rank].steps:,} steps"
            for rank, step in self.steps.items()
            if rank not in self.dead
        ]
        return never + [
            f"fail_at(rank={rank}, time={time:g}) never happened: rank {rank} ended at {ranks[rank].t:g} s"
            for rank, time in self.dies.items()
            if rank not in self.dead and rank not in self.steps
        ]

    def excuses(self) -> bool:
        """Whether something happened after which requests and messages may well be left over."""
        return bool(self.dead or self.lost or self.losses.any_revoked)

    def lose(self, dest: Any, thing: Any) -> None:
        """Something that comes never: a message on a link that is cut, or whose sender is dead."""
        if isinstance(thing, Data):
            message: Any = thing.message
        elif isinstance(thing, Message):
            message = thing
        else:  # a sender's own waiting for it, or a collective, which is said elsewhere
            return
        sender = message.sender.number
        if sender in self.dead and isinstance(thing, Data):
            self.losses.unsent(sender, thing.receive)
            return
        for rule in self.rules:
            if rule.cut and rule.until == inf and rule.is_between(sender, dest.number):
                self.lost.append((message.spelled(), rule.cut))
                return

    def told(self) -> str:
        """What was lost, for whoever waits for it in vain."""
        by_link: dict[str, list[str]] = {}
        for what, why in self.lost:
            by_link.setdefault(why, []).append(what)
        return "".join(
            f"\n{why} for good, and lost on it" + _sites.listed(things) for why, things in by_link.items()
        )

    # ---- death

    def check(self, rank: Any) -> None:
        """Kill a rank whose time has come."""
        if rank.t >= self.dies.get(rank.number, inf):
            self.die(rank, self.dies[rank.number])

    def begin_step(self, rank: Any) -> None:
        """Told by the kernel of every step."""
        if self.steps.get(rank.number) == rank.steps - 1:
            self.die(rank, rank.t)

    def die(self, rank: Any, time: float) -> NoReturn:
        """Kill a rank, in its own greenlet: it does nothing any more."""
        number = rank.number
        if rank.alive:
            known = time + self.detection.get(number, 0.0)
            self.dead[number] = Death(time, known, rank.steps - 1 if rank.steps else None)
            self.dies[number] = time
            rank.alive, rank.t, rank.value = False, time, None
            self.losses.died(rank, known)
            for rescue in list(self.rescues.values()):
                rescue.try_to_end()
        raise Killed

    def describe(self, number: int) -> str:
        """How a rank died."""
        time, _, step = self.dead[number]
        in_step = "" if step is None else f" in its step {step}"
        return f"rank {number} was killed {1e3 * time:.6g} ms after the start{in_step}"


def faults_of(kernel: Any) -> Faults:
    """What goes wrong in a kernel's run, from now on."""
    if kernel.faults is None:
        kernel.faults = Faults(kernel)
        kernel.at_step = kernel.faults.begin_step
    found: Faults = kernel.faults
    return found


class FaultyWires:
    """The network of a run in which things go wrong: see `paceline.vmpi.wires.Wires`."""

    jittered = True

    def __init__(self, inner: Any, faults: Faults) -> None:
        self._inner, self._faults = inner, faults

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        self.__dict__[name] = found
        return found

    def send(
        self, source: int, dest: int, nbytes: int, now: float, eager: bool
    ) -> tuple[float, float, float]:
        faults = self._faults
        if source in faults.dies:
            faults.check(faults.kernel.ranks[source])
        free, arrives, taking = self._inner.send(source, dest, nbytes, now, eager)
        return free, arrives + faults.late(source, dest, now, arrives - now), taking

    def fetch(self, source: int, dest: int, nbytes: int, now: float) -> tuple[float, float, float]:
        faults = self._faults
        if source in faults.dead and faults.dead[source].time <= now:
            return inf, 0.0, inf
        arrives, taking, released = self._inner.fetch(source, dest, nbytes, now)
        extra = faults.late(source, dest, now, arrives - now)
        return arrives + extra, taking, released + extra


class Pace:
    """How fast a rank computes, when: called with its clock and the seconds that work would take, says when it is done."""

    def __init__(self, rank: Any, faults: Faults) -> None:
        self._rank, self._faults = rank, faults
        self.windows: list[tuple[float, float, float]] = []
        """From when to when it takes how many times as long; infinitely long: not at all."""
        self.spread = 0.0
        """Work takes up to so much of itself longer, at random."""

    def __call__(self, now: float, seconds: float) -> float:
        if self.spread:
            seconds *= 1 + self.spread * self._faults.random()
        end = self._end(now, seconds)
        rank = self._rank
        dies = self._faults.dies.get(rank.number, inf)
        if end >= dies:
            self._faults.die(rank, dies)
        return end

    def _end(self, now: float, seconds: float) -> float:
        while seconds > 0:
            factor, until = 1.0, inf
            for start, stop, slower in self.windows:
                if start <= now < stop:
                    factor *= slower
                    until = min(until, stop)
                elif now < start:
                    until = min(until, start)
            if now + seconds * factor <= until:
                return now + seconds * factor
            seconds -= (until - now) / factor
            now = until
        return now


class Pausing:
    """Comes to a rank that is to do nothing for a while: it goes on when it has been taken in."""

    __slots__ = ("until",)

    def __init__(self, until: float) -> None:
        self.until = until

    def arrive(self, rank: Any) -> None:
        rank.t = max(rank.t, self.until)


class Dying:
    """Comes to a rank that is to be killed at this moment, and is waiting."""

    __slots__ = ()

    def arrive(self, rank: Any) -> None:
        rank.kernel.faults.check(rank)


Given = dict[int, Any]


class Survival:
    """The calls of a communicator that work when some of its ranks are dead."""

    __slots__ = ()

    def Revoke(self) -> None:
        """Let everything that is under way on this communicator, and that comes, fail on all its ranks."""
        _faults(self).losses.revoke(self)

    def Is_revoked(self) -> bool:
        """Whether this rank has heard that somebody revoked it."""
        faults = _me(self).kernel.faults
        return faults is not None and faults.losses.is_revoked(self)

    def Get_failed(self) -> Any:
        """The group of the dead that this rank has heard of."""
        kernel = _me(self).kernel
        kernel.look(_me(self))
        return Ranks(() if kernel.faults is None else kernel.faults.losses.known(self), _me(self).number)

    def Ack_failed(self, num_to_ack: int | None = None) -> int:
        """Receives from anybody wait again, though some are dead; returns how many of the dead are acknowledged."""
        faults = _me(self).kernel.faults
        return 0 if faults is None else faults.losses.acknowledge(self, num_to_ack)

    def Agree(self, flag: int) -> int:
        """All flags of those who live, bit by bit `and`ed; an error on all where a death is not acknowledged by all."""
        faults = _faults(self)
        met = _rescue(self, "Agree", (int(flag), set(faults.losses.acknowledged(self))), _agree)
        met.Wait()
        agreed, unseen = met.result
        if unseen:
            line = spelled(site())
            told = faults.describe(unseen[0])
            raise mpi_error("ERR_PROC_FAILED", f"{told}; rank {_me(self).number} noticed in Agree at {line}")
        return int(agreed)

    def Shrink(self) -> Any:
        """A communicator of those who live, in the same order."""
        met = _rescue(self, "Shrink", None, _shrink)
        met.Wait()
        return type(self)(*met.result)


class Rescue:
    """A call that ends when all members of a group who live have come to it."""

    def __init__(self, faults: Faults, group: Group, finish: Callable[[Rescue, Given], Given]) -> None:
        self.faults, self.group, self._finish = faults, group, finish
        self._requests: dict[int, Met] = {}
        self._given: Given = {}
        self._latest = 0.0

    def come(self, rank: Any, name: str, given: Any) -> Met:
        self._requests[rank.number] = met = Met(rank, name, None)
        self._given[rank.number] = given
        self._latest = max(self._latest, rank.t)
        self.try_to_end()
        return met

    @property
    def dead(self) -> list[int]:
        return [number for number in self.group.members if number in self.faults.dead]

    def try_to_end(self) -> None:
        kernel, faults = self.faults.kernel, self.faults
        living = tuple(number for number in self.group.members if number not in faults.dead)
        if not all(number in self._requests for number in living):
            return
        faults.rescues = {key: rescue for key, rescue in faults.rescues.items() if rescue is not self}
        # Twice all to all, as an agreement is, and not before everybody can know who is dead.
        end = max([self._latest, *(faults.dead[number].known for number in self.dead)])
        if len(living) > 1:
            end += 2 * kernel.wires.collective("Allreduce", living, 8)
        results = self._finish(self, {number: self._given[number] for number in living})
        for number in living:
            self._requests[number].result = results[number]
            kernel.put(kernel.ranks[number], end, self._requests[number])


def _me(comm: Any) -> Any:
    return comm.me


def _faults(comm: Any) -> Faults:
    return faults_of(comm.me.kernel)


def _rescue(comm: Any, name: str, given: Any, finish: Callable[[Rescue, Given], Given]) -> Met:
    faults = _faults(comm)
    faults.check(comm.me)
    counted = (name, comm.group.context, comm.me.number)
    call = faults.rescued[counted] = faults.rescued.get(counted, -1) + 1
    key = (name, comm.group.context, call)
    rescue = faults.rescues.get(key)
    if rescue is None:
        rescue = faults.rescues[key] = Rescue(faults, comm.group, finish)
    return rescue.come(comm.me, name, given)


def _agree(rescue: Rescue, given: Given) -> Given:
    flag = -1
    for mine, _ in given.values():
        flag &= mine
    unseen = [dead for dead in rescue.dead if any(dead not in seen for _, seen in given.values())]
    return dict.fromkeys(given, (flag, unseen))


def _shrink(rescue: Rescue, given: Given) -> Given:
    group = Group(rescue.group.kernel, tuple(given), rescue.group.name)
    return {number: (group, rank) for rank, number in enumerate(given)}
