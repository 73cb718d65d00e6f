"""Weighted parameter vectors on their way between ranks that never wait for each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.comm.control import Control
from paceline.vectors import is_time_only, room

Array = NDArray[Any]
WEIGHT = np.dtype(np.float64)
# So many ranks tell each other, at the end, how many messages each has sent to whom; more look until all have come.
FEW = 1024


class Envelope:
    """The memory of one message: a weight and a vector."""

    def __init__(self, like: Array, comm: Any = None) -> None:
        nbytes = WEIGHT.itemsize + like.nbytes
        if is_time_only(comm):  # which carries bytes, but no long vectors of numbers
            self.message: Array = room(comm, nbytes // like.itemsize, like.dtype)
        else:
            self.message = np.empty(nbytes, np.uint8)
        data = self.message.view(np.uint8)
        self.weight: Array = data[: WEIGHT.itemsize].view(WEIGHT)
        self.x: Array = data[WEIGHT.itemsize :].view(like.dtype)
        self.request: Any = None


class Mail:
    """Non-blocking messages of one rank: up to `slots` under way from it, each in memory of its own; one comes in.

    All messages of `comm` must be these. Receiving starts when one is there, so that no receive is left over at the end.
    """

    def __init__(self, like: Array, comm: Any, *, slots: int) -> None:
        self._comm = comm
        self._out = [Envelope(like, comm) for _ in range(slots)]
        self._in = Envelope(like, comm)
        self.sent: Counter[int] = Counter()
        """Messages put on the way, by rank."""
        self.received = 0

    def free(self) -> Envelope | None:
        """An envelope whose last message has gone, if there is one."""
        for envelope in self._out:
            if envelope.request is None or envelope.request.Test():
                envelope.request = None
                return envelope
        return None

    def send(self, envelope: Envelope, dest: int) -> None:
        """Put a message on its way; its memory is MPI's until `free` gives it again."""
        envelope.request = self._comm.Isend(envelope.message, dest=dest)
        self.sent[dest] += 1

    def next(self) -> Envelope | None:
        """A message that has arrived completely, or None; it may be overwritten and holds until the next call."""
        arriving = self._in
        if arriving.request is None:
            if not self._comm.Iprobe():
                return None
            arriving.request = self._comm.Irecv(arriving.message)
        if not arriving.request.Test():
            return None
        arriving.request = None
        self.received += 1
        return arriving

    def wait(self) -> Envelope:
        """The next message, waited for: to be called only where one is known to be under way."""
        arriving = self._in
        if arriving.request is None:
            arriving.request = self._comm.Irecv(arriving.message)
        arriving.request.Wait()
        arriving.request = None
        self.received += 1
        return arriving

    def rest(self, control: Control) -> Iterator[Envelope]:
        """What is still under way to this rank, when no rank sends any more. Collective, and so is going through it."""
        size = self._comm.Get_size()
        if size > FEW:
            control.wait()
            return self._until_all_have_come(control)
        sent = np.zeros(size, np.int64)
        sent[list(self.sent)] = list(self.sent.values())
        under_way = int(control.total(sent)[self._comm.Get_rank()]) - self.received
        return (self.wait() for _ in range(under_way))

    def _until_all_have_come(self, control: Control) -> Iterator[Envelope]:
        sent, received = 1, 0
        while received < sent:
            while (message := self.next()) is not None:
                yield message
            sent, received = control.total(np.array([self.sent.total(), self.received])).tolist()

    def flush(self) -> None:
        """Wait until all messages of this rank have gone."""
        for envelope in self._out:
            if envelope.request is not None:
                envelope.request.Wait()
                envelope.request = None
