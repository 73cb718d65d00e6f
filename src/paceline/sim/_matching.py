"""Messages on their way, and which receive takes which: MPI's rules.

    a message that arrives goes to the receive that was posted first of those that match it, or waits
    a receive that is posted takes the message that arrived first of those that match it, or waits
    between two ranks, messages of one communicator arrive in the order they were sent

All of it happens when the receiving rank is in a call of its communicator: nobody takes in messages while computing.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from paceline.sim import _sites
from paceline.sim._requests import Receiving, Sending
from paceline.sim.errors import Truncated, TypeMismatch

ANY = None


class Message:
    """One message: `data` are its bytes as they were when it was sent (None where they are not carried)."""

    __slots__ = (
        "data", "eager", "kind", "made", "nbytes", "order", "receive", "request", "sender", "source", "stage", "tag", "taking",
        "to",
    )  # fmt: skip

    def __init__(
        self, sender: Any, to: tuple[int, int, int], data: bytes | None, nbytes: int, kind: str, eager: bool,
        taking: float, request: Sending | None,
    ) -> None:  # fmt: skip
        self.sender = sender
        self.to = to
        self.data, self.nbytes, self.kind = data, nbytes, kind
        self.eager, self.taking = eager, taking
        self.request = request
        self.made: Any = None
        self.stage = 1
        self.order = 0
        self.receive: Receiving | None = None

    def arrive(self, rank: Any) -> None:
        """The receiving rank takes note of it, or takes in its data."""
        if self.stage == 2:
            rank.t += self.taking
            receive = self.receive
            assert receive is not None
            receive.deliver(self.data, self.nbytes, self.to[1], self.to[2])
            return
        key = self.to
        queue = rank.posted.get(key)
        wild = rank.wild.get(key[0])
        if wild:
            found = _first_wild(wild, key)
            if found is not None and not (queue and queue[0].order < found.order):
                wild.remove(found)
                match(rank, found, self)
                return
        if queue:
            match(rank, queue.popleft(), self)
            return
        self.order = next(rank.kernel.sequence)
        waiting = rank.unexpected.get(key)
        if waiting is None:
            waiting = rank.unexpected[key] = deque()
        waiting.append(self)

    def spelled(self) -> str:
        _, source, tag = self.to
        size = f"{self.nbytes:,} bytes"
        return f"{size} from rank {source} with tag {tag}, sent by rank {self.sender.number} at {_sites.spelled(self.made)}"


def _first_wild(wild: list[Receiving], key: tuple[int, int, int]) -> Receiving | None:
    for receive in wild:
        if receive.wanted_source in (ANY, key[1]) and receive.wanted_tag in (ANY, key[2]):
            return receive
    return None


def post(rank: Any, context: int, receive: Receiving) -> None:
    """A receive is there from now on: it takes a message that has come before, or waits for one."""
    source, tag = receive.wanted_source, receive.wanted_tag
    if source is ANY or tag is ANY:
        rank.kernel.look(rank)  # what has come by now, and nothing else, can be taken at once
        message = first_unexpected(rank, context, source, tag)
        if message is not None:
            rank.unexpected[message.to].popleft()
            match(rank, receive, message)
            return
        receive.order = next(rank.kernel.sequence)
        rank.wild.setdefault(context, []).append(receive)
        return
    key = (context, source, tag)
    waiting = rank.unexpected.get(key)
    if waiting:
        match(rank, receive, waiting.popleft())
        return
    receive.order = next(rank.kernel.sequence)
    queue = rank.posted.get(key)
    if queue is None:
        queue = rank.posted[key] = deque()
    queue.append(receive)


def first_unexpected(rank: Any, context: int, source: int | None, tag: int | None) -> Message | None:
    """The message that arrived first, of those that wait and match."""
    if source is not ANY and tag is not ANY:
        waiting = rank.unexpected.get((context, source, tag))
        return waiting[0] if waiting else None
    found: Message | None = None
    for key, waiting in rank.unexpected.items():
        if waiting and key[0] == context and source in (ANY, key[1]) and tag in (ANY, key[2]):
            if found is None or waiting[0].order < found.order:
                found = waiting[0]
    return found


def match(rank: Any, receive: Receiving, message: Message) -> None:
    """This receive takes this message."""
    kernel = rank.kernel
    memory = receive.memory
    if message.nbytes > memory.nbytes:
        receive.error = Truncated(
            f"truncated: {message.spelled()}, is longer than the {memory.nbytes:,} bytes of the {receive.spelled()}"
        )
    elif kernel.strict and message.kind != memory.kind and message.nbytes:
        receive.error = TypeMismatch(
            f"type mismatch: {message.spelled()}, are {message.kind} and the {receive.spelled()} is for {memory.kind}"
        )
    data = None if receive.error is not None else message.data
    length = min(message.nbytes, memory.nbytes)
    if message.eager:
        rank.t += message.taking
        receive.deliver(data, length, message.to[1], message.to[2])
        return
    sender = message.sender
    arrives, taking, released = kernel.wires.fetch(sender.number, rank.number, message.nbytes, rank.t)
    if message.request is not None:
        kernel.put(sender, released, message.request)
    if arrives <= rank.t:
        rank.t += taking
        receive.deliver(data, length, message.to[1], message.to[2])
    else:
        message.stage, message.taking, message.receive = 2, taking, receive
        message.data, message.nbytes = data, length
        kernel.put(rank, arrives, message)


def withdraw(rank: Any, receive: Receiving) -> None:
    """Take back a receive for which nothing has come."""
    for queue in (*rank.posted.values(), *rank.wild.values()):
        if receive in queue:
            queue.remove(receive)
            return
