"""Messages on their way, and which receive takes which: MPI's rules.

    a message that arrives goes to the receive that was posted first of those that match it, or waits
    a receive that is posted takes the message that arrived first of those that match it, or waits
    between two ranks, messages of one communicator arrive in the order they were sent

All of it happens when the receiving rank is in a call of its communicator: nobody takes in messages while computing.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from paceline.vmpi.errors import BufferChanged, Truncated, TypeMismatch
from paceline.vmpi.requests import Receiving, Request

ANY = None


class Message(Request):
    """One message, and the request of whoever sent it.

    `data` are its bytes as they were when it was sent (None where they are not carried, the memory itself where they are
    neither sent yet nor watched); until it is waited for, its
    buffer must stay as it is. `to`: the context and the sender's rank in it. It arrives with its data if it is `eager`;
    else it is announced, and the data come when they are asked for.
    """

    __slots__ = (
        "data", "dest", "eager", "kind", "nbytes", "order", "tag", "taking", "to", "view",
    )  # fmt: skip

    order: int
    view: memoryview | None

    def __init__(
        self, rank: Any, name: str, dest: int, view: memoryview | None,
        data: bytes | memoryview | None, nbytes: int, kind: str,
        to: tuple[int, int], tag: int, eager: bool, taking: float,
    ) -> None:  # fmt: skip
        self.rank = rank
        self.name = name
        self.dest = dest
        self.data = data
        self.nbytes = nbytes
        self.kind = kind
        self.to = to
        self.tag = tag
        self.done = self.eager = eager
        self.taking = taking
        self.spent = False
        self.made = self.error = None
        if rank.kernel.strict:
            self.view = view
            self.watch()

    @property
    def sender(self) -> Any:
        """The rank that sent it."""
        return self.rank

    def _finish(self, status: Any) -> None:
        super()._finish(status)
        if self.made is not None and self.data is not None and self.view is not None:
            if self.view.tobytes() != self.data:
                raise BufferChanged(
                    f"the buffer of an {self.described()} to rank {self.dest} was changed before the message had gone"
                )
            self.view = None

    def described(self) -> str:
        """The request, and where it was made."""
        return super().spelled()

    def wanted(self) -> str:
        return f"{self.name} to rank {self.dest} with tag {self.tag}"

    def Cancel(self) -> None:
        raise NotImplementedError("a send cannot be cancelled; MPI 4 has given it up, too")

    def arrive(self, rank: Any) -> None:
        """The receiving rank takes note of it."""
        to, tag = self.to, self.tag
        queue = rank.posted.get(to)
        if queue:
            receive = queue[0]
            wanted = receive.wanted_tag
            if wanted is None or wanted == tag:
                place = 0
            else:
                receive, place = _first_of(queue, tag)
        else:
            receive, place = None, 0
        if rank.wild:
            wild = rank.wild.get(to[0], ())
            found, at = _first_of(wild, tag)
            if found is not None and (receive is None or found.order < receive.order):
                del wild[at]
                match(rank, found, self)
                return
        if receive is not None:
            if place:
                del queue[place]
            else:
                queue.popleft()
            if self.eager and self.nbytes == receive.nbytes and self.kind == receive.kind:
                rank.t += self.taking
                receive.deliver(self.data, self.nbytes, to[1], tag)
            else:
                match(rank, receive, self)
            return
        self.order = next(rank.kernel.sequence)
        waiting = rank.unexpected.get(to)
        if waiting is None:
            waiting = rank.unexpected[to] = deque()
        waiting.append(self)

    def spelled(self) -> str:
        """What it is, and where it was sent."""
        return f"{self.nbytes:,} bytes with tag {self.tag} of the {self.described()}"


def _first_of(receives: Any, tag: int) -> tuple[Any, int]:
    """The receive, of those in a row, that takes this tag, and its place."""
    for place, receive in enumerate(receives):
        if receive.wanted_tag is ANY or receive.wanted_tag == tag:
            return receive, place
    return None, 0


def post(rank: Any, context: int, receive: Receiving) -> None:
    """A receive is there from now on: it takes a message that has come before, or waits for one."""
    source = receive.wanted_source
    if source is ANY:
        rank.kernel.look(rank)  # what has come by now, and nothing else, can be taken at once
        message = take_unexpected(rank, context, ANY, receive.wanted_tag)
        if message is None:
            receive.order = next(rank.kernel.sequence)
            rank.wild.setdefault(context, []).append(receive)
        else:
            match(rank, receive, message)
        return
    key = (context, source)
    waiting = rank.unexpected.get(key)
    if waiting:
        message = take_unexpected(rank, context, source, receive.wanted_tag)
        if message is not None:
            match(rank, receive, message)
            return
    receive.order = next(rank.kernel.sequence)
    queue = rank.posted.get(key)
    if queue is None:
        queue = rank.posted[key] = deque()
    queue.append(receive)


def first_unexpected(rank: Any, context: int, source: int | None, tag: int | None) -> Message | None:
    """The message that arrived first, of those that wait and match."""
    found: Message | None = None
    keys = [(context, source)] if source is not ANY else [key for key in rank.unexpected if key[0] == context]
    for key in keys:
        for message in rank.unexpected.get(key, ()):
            if tag is ANY or message.tag == tag:
                if found is None or message.order < found.order:
                    found = message
                break
    return found


def take_unexpected(rank: Any, context: int, source: int | None, tag: int | None) -> Message | None:
    """The same, and it does not wait any longer."""
    found = first_unexpected(rank, context, source, tag)
    if found is not None:
        queue = rank.unexpected[found.to]
        if queue[0] is found:
            queue.popleft()
        else:
            queue.remove(found)
    return found


def match(rank: Any, receive: Receiving, message: Message) -> None:
    """This receive takes this message."""
    kernel = rank.kernel
    receive.done, receive.error = False, None  # one from anybody may have been told that somebody is dead
    if message.nbytes > receive.nbytes:
        receive.error = Truncated(
            f"truncated: {message.spelled()} are more than the {receive.nbytes:,} bytes of the {receive.spelled()}"
        )
    elif kernel.strict and message.kind != receive.kind and message.nbytes:
        receive.error = TypeMismatch(
            f"type mismatch: {message.spelled()} are {message.kind}, and the {receive.spelled()} is for {receive.kind}"
        )
    data: Any = None if receive.error is not None else message.data
    length = min(message.nbytes, receive.nbytes)
    if message.eager:
        rank.t += message.taking
        receive.deliver(data, length, message.to[1], message.tag)
        return
    sender = message.sender
    if kernel.wires.contended(sender.number, rank.number):
        kernel.go_first(rank)  # a card is to be shared in the order of time
    if data.__class__ is memoryview:
        data = data.tobytes()
    arrives, taking, released = kernel.wires.fetch(sender.number, rank.number, message.nbytes, rank.t)
    kernel.put(sender, released, _Released(message))
    if arrives <= rank.t:
        rank.t += taking
        receive.deliver(data, length, message.to[1], message.tag)
    else:
        kernel.put(rank, arrives, Data(receive, message, data, length, taking))


class _Released:
    """The sender of a message that was asked for hears that it was taken."""

    __slots__ = ("message",)

    def __init__(self, message: Message) -> None:
        self.message = message

    def arrive(self, rank: Any) -> None:
        self.message.done = True


class Data:
    """The data of a message that was asked for."""

    __slots__ = ("data", "message", "nbytes", "receive", "taking")

    def __init__(
        self, receive: Receiving, message: Message, data: bytes | None, nbytes: int, taking: float
    ) -> None:
        self.receive, self.message = receive, message
        self.data, self.nbytes, self.taking = data, nbytes, taking

    def arrive(self, rank: Any) -> None:
        rank.t += self.taking
        self.receive.deliver(self.data, self.nbytes, self.message.to[1], self.message.tag)
