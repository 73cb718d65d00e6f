"""Ranks that do the same, simulated as one: their program runs once, with a clock for each of them.

    a group       adjacent ranks that make the same calls, whatever their clocks say; one greenlet runs their program,
                  as the first of them
    GroupTime     the clocks of a group: what `Wtime` returns; they are added and subtracted like numbers
    a collective  is called by all groups, and evaluated once

A non-blocking Allreduce is one of these if it advances by itself (`progress=thread`): its end is known when all have
called it. Ranks of a group may find it done at different times, so a program must not depend on that: it waits for all
collectives that it has started, and does nothing between that takes time.

Ten thousand ranks that compute and sum are a few operations on arrays in each step, instead of ten thousand Python
programs. Virtual times are those of ranks that are simulated one by one, bit for bit. There is no result (`NotAlike`) if
the ranks of a group turn out to differ: in messages of their own, in communicators of some of them, in a decision by the
clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np
from greenlet import GreenletExit, getcurrent, greenlet
from numpy.typing import NDArray

from paceline.vmpi.buffers import BufferMemory
from paceline.vmpi.collectives import check_op, lacks_contents
from paceline.vmpi.compute import Compute
from paceline.vmpi.handles import Attributes
from paceline.vmpi.memory import is_in_place
from paceline.vmpi.network import Network
from paceline.vmpi.program import make_module, start_compute
from paceline.vmpi.rounds import ClockState, Unclear, can_evaluate, is_independent, pass_rounds

Array = NDArray[Any]
Value = TypeVar("Value")


class NotAlike(Exception):  # noqa: N818 (the ranks are then simulated one by one)
    """The ranks of a group do not do the same."""


class GroupTime:
    """A time of each rank of a group; as a single number, that of the first.

    >>> since = GroupTime(np.array([3.0, 4.0])) - 1.0
    >>> since.of.tolist(), since >= 2.0, float(since)
    ([2.0, 3.0], True, 2.0)
    """

    __slots__ = ("of",)

    def __init__(self, of: Array) -> None:
        self.of = of

    def __add__(self, other: Any) -> GroupTime:
        return GroupTime(self.of + _plain(other))

    __radd__ = __add__  # the same bits in either order

    def __sub__(self, other: Any) -> GroupTime:
        return GroupTime(self.of - _plain(other))

    def __ge__(self, other: Any) -> bool:
        found = self.of >= _plain(other)
        if found.all():
            return True
        if found.any():
            raise NotAlike("the clocks of some ranks are later than others")
        return False

    def __lt__(self, other: Any) -> bool:
        return not self >= other

    def __float__(self) -> float:
        return float(self.of[0])


def _plain(given: Any) -> Any:
    return given.of if isinstance(given, GroupTime) else given


class AlikeRanks:
    """Ranks that do the same: their clocks, and the greenlet that runs their program."""

    def __init__(self, ranks: range) -> None:
        self.ranks = ranks
        self.t = np.zeros(len(ranks))
        self.greenlet: Any = None


class Together:
    """The groups of one run. It has those attributes of a `Kernel` that collectives evaluated for all ranks need."""

    strict = rendezvous = False
    time_only = collectives_only = True

    def __init__(
        self, groups: Sequence[range], network: Network, compute: Compute | None, seed: int, carries: Any
    ) -> None:
        self.ranks = range(groups[-1].stop)
        """All of them."""
        self.wires = network.wires(len(self.ranks), random.Random(f"{seed} wires"))
        self.compute = start_compute(compute, network, self.wires, seed)
        self.carries = carries
        self.groups = [AlikeRanks(ranks) for ranks in groups]
        self.messages = self.bytes = self.evaluated = 0
        self.reserved: list[float] = []
        self.evaluates = can_evaluate(self)
        self.node_of = tuple(self.wires.node)
        self.MPI = make_module()
        vars(self.MPI).update(Request=AlikeRequest)
        self._drained, self._latest = np.full(len(self.ranks), -1.0), dict[int, dict[int, float]]()
        self._asked: Any = None
        self._given: list[Any] = []
        self._result: Any = None

    def run(self, function: Callable[[Any], Value]) -> list[Value]:
        """Run the program of every group until all have ended; return what each returned."""
        hub, values = getcurrent(), list[Any]()
        for group in self.groups:
            group.greenlet = greenlet(function, hub)
        try:
            for turn in range(len(self.groups)):
                values.append(self.groups[turn].greenlet.switch(AlikeComm(self, self.groups[turn])))
            while not all(group.greenlet.dead for group in self.groups):
                for turn, group in enumerate(self.groups):
                    if group.greenlet.dead:
                        raise NotAlike("some ranks have ended, and others call a collective")
                    values[turn] = group.greenlet.switch()
        finally:
            for group in self.groups:
                if group.greenlet and not group.greenlet.dead:
                    group.greenlet.throw(GreenletExit)
        return values

    def meet(self, asked: Any, given: Any, finish: Callable[[list[Any]], Any]) -> Any:
        """Wait until all groups have made this call; the last one finishes it with what each has given."""
        if self._given and self._asked != asked:
            raise NotAlike(f"some ranks call {asked[0]}, and others {self._asked[0]}")
        self._asked = asked
        self._given.append(given)
        if len(self._given) == len(self.groups):
            everything, self._given = self._given, []
            self._result = finish(everything)
        if len(self.groups) > 1:
            getcurrent().parent.switch()
        return self._result

    def synchronize(self, name: str, nbytes: int | None) -> None:
        """Let all ranks leave a collective that the last one has entered; `nbytes` None: it takes no time."""
        end = max(float(group.t.max()) for group in self.groups)
        if nbytes is not None:
            end = self.wires.join(name, self.ranks, nbytes, end)
        for group in self.groups:
            group.t = np.maximum(group.t, end)
        self._drained = np.full(len(self.ranks), end)

    def begin(self, name: str, nbytes: int) -> float:
        """Begin a non-blocking collective that all ranks have called; return when it ends."""
        latest = max(float(group.t.max()) for group in self.groups)
        return float(self.wires.join(name, self.ranks, nbytes, latest))

    def take_in(self, group: AlikeRanks, which: Array, until: Array) -> None:
        """Note the times until which some ranks of a group have taken in what arrived."""
        self._drained[group.ranks.start : group.ranks.stop][which] = until[which]

    def pass_rounds(self, whole: Any, recv: Any, *, in_place: bool) -> Array:
        """Let all ranks pass a collective of rounds; return the bytes and messages that each has sent."""
        before = ClockState(np.concatenate([group.t for group in self.groups]), self._drained, self._latest)
        try:
            state, sent = pass_rounds(self, before, whole, recv, in_place=in_place)
        except Unclear:
            raise NotAlike("the order of messages is not known from their rounds") from None
        for group in self.groups:
            group.t = state.t[group.ranks.start : group.ranks.stop]
        _, self._drained, self._latest = state
        return sent


class AlikeRequest:
    """A non-blocking collective of all ranks, as a group sees it."""

    __slots__ = ("_end", "_found", "_group", "_together", "_waited")

    def __init__(self, together: Together, group: AlikeRanks, end: float) -> None:
        self._together, self._group, self._end = together, group, end
        self._found = np.zeros(len(group.ranks), bool)
        """The ranks that have found it done, and do not test it again."""
        self._waited = False

    def Test(self) -> bool:
        """Let the ranks that have not found it done look whether it is; return False until the group has waited."""
        if not self._waited:
            group, asking = self._group, ~self._found
            self._together.take_in(group, asking, group.t)
            self._found |= self._end <= group.t
            group.t = np.where(self._found, group.t, group.t + self._together.wires.poll)
        return self._waited

    def Wait(self) -> None:
        if not self._waited:
            group = self._group
            self._together.take_in(group, group.t < self._end, np.full(len(group.t), self._end))
            group.t = np.maximum(group.t, self._end)
            self._waited = True

    @classmethod
    def Waitany(cls, requests: Sequence[AlikeRequest]) -> int:
        """Wait for the first one: ranks that take them in another order have waited as long when all are done."""
        requests[0].Wait()
        return 0


class AlikeComm(Attributes):
    """The communicator of a group: mpi4py's interface, as far as collectives of all ranks need it."""

    __slots__ = ("_attributes", "_group", "_together")
    time_only = True

    def __init__(self, together: Together, group: AlikeRanks) -> None:
        self._together, self._group = together, group
        self._attributes: dict[int, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotAlike(f"some ranks use {name}")

    def _get_attributes(self) -> dict[int, Any]:
        return self._attributes

    def Get_rank(self) -> int:
        return self._group.ranks.start

    def Get_size(self) -> int:
        return len(self._together.ranks)

    def Is_inter(self) -> bool:
        return False

    @property
    def MPI(self) -> Any:
        """The replacement of mpi4py.MPI during the run."""
        return self._together.MPI

    @property
    def node_of(self) -> tuple[int, ...]:
        """The node of every rank."""
        return self._together.node_of

    @property
    def ranks(self) -> range:
        """The ranks that this one stands for."""
        return self._group.ranks

    # ---- the clock

    def Wtime(self) -> GroupTime:
        """Return the clocks of the group's ranks."""
        return GroupTime(self._group.t)

    def Work(self, kind: str, amount: float) -> None:
        """Let every rank do an amount of work."""
        self.Compute(self.WorkSeconds(kind, amount))

    def WorkSeconds(self, kind: str, amount: float) -> Any:
        """Return the seconds that each rank takes for an amount of work, this time."""
        compute = self._together.compute
        return 0.0 if compute is None else compute.seconds_of(kind, amount, self._group.ranks)

    def Compute(self, seconds: Any) -> None:
        """Let every rank compute for this many seconds, or each for its own."""
        self._group.t = self._group.t + seconds

    def Step(self) -> None:
        """Begin the next step."""

    # ---- collectives

    def share(self, given: Any) -> list[Any]:
        """Return what each group gives, on all of them; it takes no time."""
        found: list[Any] = self._together.meet(("share",), given, lambda everything: everything)
        return found

    def Dup(self) -> AlikeComm:
        self._meet("Dup", None)
        made = AlikeComm(self._together, self._group)
        self._copy_all(made)
        return made

    def Free(self) -> None:
        self._delete_all()
        self._meet("Free", None)

    def Barrier(self) -> None:
        self._meet("Barrier", 0)

    def Bcast(self, buf: Any, root: int = 0) -> None:
        if root:
            raise NotAlike("another rank than the first is the root")
        memory = BufferMemory(buf, writing=self.Get_rank() != 0)
        told = not lacks_contents(self._together, "Bcast", memory)
        first = self._meet("Bcast", memory.nbytes, memory.read() if told else None)[0]
        if told and self.Get_rank() != 0:
            memory.write(first)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Any = None) -> None:
        self._allreduce(sendbuf, recvbuf, op, lambda nbytes: self._together.synchronize("Allreduce", nbytes))

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: Any = None) -> AlikeRequest:
        together = self._together
        if together.wires.needs_calls:
            raise NotAlike("ranks advance a collective by their calls")
        end = self._allreduce(sendbuf, recvbuf, op, lambda nbytes: together.begin("Allreduce", nbytes))
        return AlikeRequest(together, self._group, end)

    def _allreduce(self, sendbuf: Any, recvbuf: Any, op: Any, pass_: Callable[[int], Any]) -> Any:
        """Take part in an Allreduce; `pass_`: lets all ranks pass it. Return what that returns."""
        into = BufferMemory(recvbuf, writing=True)
        send = into if is_in_place(sendbuf) else BufferMemory(sendbuf, writing=False)
        told = not lacks_contents(self._together, "Allreduce", into)
        ufunc = check_op(op, into.kind).ufunc
        mine = self._times_members(np.frombuffer(send.read(), into.kind), ufunc) if told else None
        given, found = self._together.meet(
            ("Allreduce", send.nbytes), mine, lambda everything: (everything, pass_(send.nbytes))
        )
        if told:
            into.write(sum(given).tobytes())
        return found

    def Evaluate(self, whole: Any, send: Array, recv: Array, op: Any) -> tuple[Array, Array]:
        """Take part in a collective of rounds; return the bytes and messages that each rank of the group has sent."""
        together, in_place = self._together, send is recv
        asked = (whole, recv.size, in_place, recv.dtype, op.ufunc)
        if not together.evaluates or not is_independent(together, asked):
            raise NotAlike("messages are sent one by one")
        mine = None if op.time_only else self._times_members(send, op.ufunc)

        def finish(everything: list[Any]) -> tuple[list[Any], Array]:
            return everything, together.pass_rounds(whole, recv, in_place=in_place)

        given, sent = together.meet(asked, mine, finish)
        if not op.time_only:
            recv[...] = sum(given)
        start, stop = self._group.ranks.start, self._group.ranks.stop
        return sent[start:stop, 0], sent[start:stop, 1]

    def Isend(self, *given: Any, **named: Any) -> NoReturn:
        raise NotAlike("some ranks send messages")

    def _times_members(self, values: Array, ufunc: Any) -> Array:
        """Return the sum of these values over the ranks of the group, which all have the same."""
        if ufunc is not np.add:
            raise NotAlike(f"some ranks combine values by {ufunc}")
        found: Array = values * values.dtype.type(len(self._group.ranks))
        return found

    def _meet(self, name: str, nbytes: int | None, given: Any = None) -> list[Any]:
        together = self._together

        def finish(everything: list[Any]) -> list[Any]:
            together.synchronize(name, nbytes)
            return everything

        found: list[Any] = together.meet((name, nbytes), given, finish)
        return found


def run_alike(
    function: Callable[[Any], Value],
    groups: Sequence[range],
    *,
    network: Network,
    compute: Compute | None = None,
    seed: int = 0,
    carries: Callable[[str, int], bool],
) -> list[Value]:
    """Run `function(comm)` once for each group of ranks that do the same; return what it returned for each.

    groups: adjacent ranges of ranks, from 0 on. The other arguments are those of `paceline.vmpi.run`. Only time is
    simulated: `carries` decides which contents are transferred. Raise NotAlike if ranks of a group do not do the same.

    >>> def program(comm):
    ...     comm.Work("step", 1)
    ...     comm.Barrier()
    ...     return comm.Wtime()
    >>> network, compute = Network.named("10gbe"), Compute(work={"step": 1e-3}, slow={1: 2.0})
    >>> [times] = run_alike(program, [range(4)], network=network, compute=compute, carries=lambda kind, nbytes: False)
    >>> times.of.round(6).tolist()
    [0.002041, 0.002041, 0.002041, 0.002041]
    """
    return Together(groups, network, compute, seed, carries).run(function)
