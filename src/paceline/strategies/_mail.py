"""Weighted parameter vectors on their way between ranks that never wait for each other."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
WEIGHT = np.dtype(np.float64)


class Envelope:
    """The memory of one message: a weight and a vector."""

    def __init__(self, like: Array) -> None:
        self.bytes: NDArray[np.uint8] = np.empty(WEIGHT.itemsize + like.nbytes, np.uint8)
        self.weight: Array = self.bytes[: WEIGHT.itemsize].view(WEIGHT)
        self.x: Array = self.bytes[WEIGHT.itemsize :].view(like.dtype)
        self.request: Any = None


class Mail:
    """Non-blocking messages of one rank: up to `slots` under way from it, each in memory of its own; one comes in.

    All messages of `comm` must be these. Receiving starts when one is there, so that no receive is left over at the end.
    """

    def __init__(self, like: Array, comm: Any, *, slots: int) -> None:
        self._comm = comm
        self._out = [Envelope(like) for _ in range(slots)]
        self._in = Envelope(like)
        self.sent = np.zeros(comm.Get_size(), np.int64)
        """Messages put on the way to each rank."""
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
        envelope.request = self._comm.Isend(envelope.bytes, dest=dest)
        self.sent[dest] += 1

    def next(self) -> Envelope | None:
        """A message that has arrived completely, or None; it may be overwritten and holds until the next call."""
        arriving = self._in
        if arriving.request is None:
            if not self._comm.Iprobe():
                return None
            arriving.request = self._comm.Irecv(arriving.bytes)
        if not arriving.request.Test():
            return None
        arriving.request = None
        self.received += 1
        return arriving

    def wait(self) -> Envelope:
        """The next message, waited for: to be called only where one is known to be under way."""
        arriving = self._in
        if arriving.request is None:
            arriving.request = self._comm.Irecv(arriving.bytes)
        arriving.request.Wait()
        arriving.request = None
        self.received += 1
        return arriving

    def flush(self) -> None:
        """Wait until all messages of this rank have gone."""
        for envelope in self._out:
            if envelope.request is not None:
                envelope.request.Wait()
                envelope.request = None
