"""Collectives that go on in the background, while their rank computes.

    tasks = Tasks(channel)
    tasks.start(lambda: allreduce(x, x, lane))    # runs until it waits for a message
    ...                                           # compute, and now and then:
    tasks.advance()                               # goes on where messages have come
    tasks.finish()                                # waits for the rest

MPI moves most messages only inside its calls, so somebody has to call it during a computation: `advance` does, and a
backward pass calls it after every layer. No thread is needed, and the simulator runs the same code.

A task is a greenlet, and a lane is a channel of its own. In a lane `Wait` hands control back to whoever called `start`,
`advance` or `finish`, so a collective that is written with Isend, Irecv and Wait, or with one Allreduce, works here
as it is. All calls of MPI are made by that caller, never by the task itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from paceline.comm.channel import Channel
from paceline.comm.shared import SharedMemory


class Tasks:
    """The tasks of one rank. If one fails, `start`, `advance` or `finish` raises its error, and all are lost."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._waiting: list[tuple[Any, Any]] = []
        """Tasks and the request that each of them waits for, in the order in which they were started."""

    def start(self, work: Callable[[], object]) -> None:
        """Start a task: run it until it waits for a message."""
        task: Any = greenlet(work)
        request = _run(task)
        if request is not None:
            self._waiting.append((task, request))

    def advance(self) -> bool:
        """Go on with the tasks whose messages have come; return False if there were none."""
        waiting, moved = self._waiting, False
        for place, (task, request) in enumerate(waiting):
            while request is not None and request.Test():
                request, moved = _run(task), True
            waiting[place] = (task, request)
        self._waiting = [entry for entry in waiting if entry[1] is not None]
        return moved

    def finish(self) -> None:
        """Wait until all tasks have ended."""
        while self._waiting:
            if not self.advance():
                requests = [request for _, request in self._waiting]
                first = self._channel.MPI.Request.Waitany(requests)
                task, _ = self._waiting[first]
                self._waiting[first] = (task, _run(task))
                self._waiting = [entry for entry in self._waiting if entry[1] is not None]


def _run(task: Any) -> Any:
    """Run a task until it waits, making its calls here; return the request that it waits for, None if it has ended."""
    task.parent = getcurrent()
    asked = task.switch()
    while not task.dead:
        if not isinstance(asked, _Call):
            return asked
        asked = task.switch(asked.function(*asked.arguments))
    if isinstance(asked, GreenletExit):  # a simulated rank was killed
        raise asked
    return None


class _Call:
    """A call that a task asks its caller to make."""

    __slots__ = ("arguments", "function")

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function, self.arguments = function, arguments


def _ask(function: Callable[..., Any], *arguments: Any) -> Any:
    """Let the caller of the running task call a function; return its result."""
    return getcurrent().parent.switch(_Call(function, *arguments))


class _Later:
    """A request of a task."""

    __slots__ = ("bare",)

    def __init__(self, bare: Any) -> None:
        self.bare = bare

    def Wait(self) -> None:
        getcurrent().parent.switch(self.bare)


class _Handing:
    """A communicator whose calls are made by the caller of the running task; only these can be used in a lane."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.Get_rank, self.Get_size = comm.Get_rank, comm.Get_size

    def Isend(self, buffer: Any, dest: int, tag: int = 0) -> _Later:
        return _Later(_ask(self._comm.Isend, buffer, dest, tag))

    def Irecv(self, buffer: Any, source: int, tag: int = 0) -> _Later:
        return _Later(_ask(self._comm.Irecv, buffer, source, tag))

    def Allreduce(self, send: Any, recv: Any, op: Any) -> None:
        _Later(_ask(self._comm.Iallreduce, send, recv, op)).Wait()

    def Barrier(self) -> None:
        _Later(_ask(self._comm.Ibarrier)).Wait()


class Lane(Channel):
    """A channel for one task at a time, with a communicator and scratch memory of its own. Collective the first time.

    >>> from paceline import vmpi
    >>> import numpy as np
    >>> from paceline.collectives.ring import allreduce
    >>> from paceline.comm.channel import channel
    >>> def overlap(comm):
    ...     x, own = np.array([comm.Get_rank(), 1.0]), channel(comm)
    ...     tasks, lane = Tasks(own), Lane(own, 0)
    ...     tasks.start(lambda: allreduce(x, x, lane))
    ...     comm.Compute(1.0)
    ...     tasks.finish()
    ...     return x.tolist()
    >>> vmpi.run(overlap, ranks=3).values
    [[3.0, 3.0], [3.0, 3.0], [3.0, 3.0]]
    """

    compares = False

    def __init__(self, channel: Channel, number: int, *, counted: bool = True) -> None:
        """`counted`: its messages count together with those of the channel."""
        made = channel.child(f"lane {number}", lambda comm: comm.Dup())
        super().__init__(_Handing(made.comm if counted else made.bare), made._kept, made.bare)

    def meet(self, shared: SharedMemory) -> None:
        """Wait for the lane's ranks; what each wrote to shared memory before its call is visible to all after it."""
        _ask(shared.sync)
        self.Barrier()
        _ask(shared.sync)
