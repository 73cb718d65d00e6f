"""Weighted parameter vectors, sent between ranks that never wait for each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.comm.control import Control

Array = NDArray[Any]
# Up to this many ranks exchange, at the end, how many messages each sent to whom; more ranks poll until all have arrived.
FEW = 1024


class Envelope:
    """The memory of one message: a 64-bit weight and a vector. `vector(more)` allocates it.

    >>> envelope = Envelope(lambda more: np.zeros(3 + more, np.float32))
    >>> envelope.weight[0] = 0.1
    >>> envelope.message.nbytes, envelope.x.size, float(envelope.weight[0])
    (20, 3, 0.1)
    """

    def __init__(self, vector: Callable[[int], Array]) -> None:
        first = max(1, 8 // vector(0).itemsize)
        self.message = vector(first)
        self.weight: Array = self.message[:first].view(np.float64)
        self.x: Array = self.message[first:]
        self.request: Any = None


def merge(x: Array, w: float, message: Envelope) -> float:
    """Merge a message into x in place, x <- (w x + w' x') / (w + w'), and return w + w'; the message is overwritten.

    >>> x, message = np.array([0.0, 4.0]), Envelope(lambda more: np.zeros(2 + more))
    >>> message.x[...], message.weight[...] = 4.0, 0.125
    >>> merge(x, 0.375, message), x
    (0.5, array([1., 4.]))
    """
    other = float(message.weight[0])
    message.x -= x
    message.x *= other / (w + other)
    x += message.x  # x <- x + w'/(w + w') (x' - x)
    return w + other


class Mail:
    """Non-blocking messages of one rank: up to `slots` outgoing, each with its own memory, and one incoming.

    No other messages may use `comm`. Receiving starts when a message is there, so that no receive is left over at the end.
    """

    def __init__(self, vector: Callable[[int], Array], comm: Any, *, slots: int) -> None:
        self._comm = comm
        self._out = [Envelope(vector) for _ in range(slots)]
        self._in = Envelope(vector)
        self.sent: Counter[int] = Counter()
        """Messages sent, by rank."""
        self.received = 0

    def find_free(self) -> Envelope | None:
        """Return an envelope whose last message has been sent, or None."""
        for envelope in self._out:
            if envelope.request is None or envelope.request.Test():
                envelope.request = None
                return envelope
        return None

    def send(self, envelope: Envelope, dest: int) -> None:
        """Send a message; its memory is MPI's until `find_free` returns it again."""
        envelope.request = self._comm.Isend(envelope.message, dest=dest)
        self.sent[dest] += 1

    def next(self) -> Envelope | None:
        """Return a message that has arrived completely, or None; it may be modified and is valid until the next call."""
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
        """Wait for the next message; call this only if one is known to be in flight."""
        arriving = self._in
        if arriving.request is None:
            arriving.request = self._comm.Irecv(arriving.message)
        arriving.request.Wait()
        arriving.request = None
        self.received += 1
        return arriving

    def receive_rest(self, control: Control) -> Iterator[Envelope]:
        """Iterate over the messages still in flight to this rank, after all ranks have stopped sending. Collective."""
        size = self._comm.Get_size()
        if size > FEW:
            control.wait()
            yield from self._receive_until_all_have_come(control)
            return
        sent = np.zeros(size, np.int64)
        sent[list(self.sent)] = list(self.sent.values())
        under_way = int(control.total(sent)[self._comm.Get_rank()]) - self.received
        for _ in range(under_way):
            yield self.wait()

    def _receive_until_all_have_come(self, control: Control) -> Iterator[Envelope]:
        sent, received = 1, 0
        while received < sent:
            while (message := self.next()) is not None:
                yield message
            sent, received = control.total(np.array([self.sent.total(), self.received])).tolist()

    def flush(self) -> None:
        """Wait until all messages of this rank have been sent."""
        for envelope in self._out:
            if envelope.request is not None:
                envelope.request.Wait()
                envelope.request = None
