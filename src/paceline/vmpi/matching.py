"""Messages, and MPI's rules for matching them with receives.

    an arriving message goes to the first posted receive that matches it, or waits
    a posted receive takes the first arrived message that matches it, or waits
    between two ranks, messages of one communicator arrive in the order in which they were sent

Matching happens while the receiving rank is in a call of its communicator: no rank takes in messages while computing.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify
from typing import Any

from paceline.vmpi.errors import BufferChanged, Truncated, TypeMismatch
from paceline.vmpi.requests import ReceiveRequest, Request

ANY = None
# A queue of messages or receives has one number, which is found faster than a pair.
RANK_BITS = 20
NO_QUEUE = -1
CANCELLED = -1.0
"""The receiver's own time for a message that its sender has taken back."""


def queue_of(context: int, source: int) -> int:
    """Return the number of the queue of a communicator's messages from one rank.

    >>> queue_of(3, 5) >> RANK_BITS
    3
    """
    return (context << RANK_BITS) + source


class Message(Request):
    """One message, and the request of its sender.

    `data`: its bytes when it was sent; None if they are not carried; the memory itself if the message is only
    announced and buffers are not checked. The buffer must not change until the request has been waited for. `source`:
    the sender's rank in the communicator. `to`: the queue of that source (`queue_of`). An `eager` message arrives with
    its data; any other is announced, and its data are fetched by the receiver.
    """

    __slots__ = (
        "data", "dest", "eager", "kind", "nbytes", "order", "source", "tag", "taking", "to", "view",
    )  # fmt: skip

    order: int
    view: Any

    def __init__(
        self, rank: Any, name: str, dest: int, view: Any,
        data: bytes | memoryview | None, nbytes: int, kind: str,
        to: int, source: int, tag: int, eager: bool, taking: float,
    ) -> None:  # fmt: skip
        self.rank = rank
        self.name = name
        self.dest = dest
        self.data = data
        self.nbytes = nbytes
        self.kind = kind
        self.to = to
        self.source = source
        self.tag = tag
        self.done = self.eager = eager
        self.taking = taking
        self.spent = False
        self.origin = self.error = None
        if rank.kernel.strict:
            self.view = view
            self.watch()

    @property
    def context(self) -> int:
        """The context of the communicator."""
        return self.to >> RANK_BITS

    @property
    def sender(self) -> Any:
        """The rank that sent the message."""
        return self.rank

    def _finish(self, status: Any) -> None:
        super()._finish(status)
        if self.origin is not None and self.data is not None and self.view is not None:
            if self.view.tobytes() != self.data:
                raise BufferChanged(
                    f"the buffer of {self.describe_request()}, to rank {self.dest}, was changed before the message "
                    "had been sent"
                )
            self.view = None
        if status is not None:
            self._tell(status)

    def describe_request(self) -> str:
        """Describe the request and where it was started."""
        return super().describe()

    def describe_wait(self) -> str:
        return f"{self.name} to rank {self.dest} with tag {self.tag}"

    def Cancel(self) -> None:
        """Take the message back, if the receiver has not matched it (deprecated in MPI 4)."""
        if self.dest < 0:
            return
        kernel = self.rank.kernel
        receiver = kernel.ranks[kernel.states[self.context].peer(self.rank.number, self.dest)]
        queue = receiver.unexpected.get(self.to, ())
        held = [entry for entry in receiver.inbox if entry[2] is not self]
        if self in queue:
            queue.remove(self)
        elif len(held) < len(receiver.inbox):
            receiver.inbox[:] = held
            heapify(receiver.inbox)
        else:
            return
        self.taking = CANCELLED
        self.done = True

    def _tell(self, status: Any) -> None:
        super()._tell(status)
        if self.taking == CANCELLED:
            status.Set_cancelled(True)

    def arrive(self, rank: Any) -> None:
        """Match the message with a receive, or queue it as unexpected."""
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
            wild = rank.wild.get(to >> RANK_BITS, ())
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
                receive.deliver(self.data, self.nbytes, self.source, tag)
            else:
                match(rank, receive, self)
            return
        self.order = next(rank.kernel.sequence)
        waiting = rank.unexpected.get(to)
        if waiting is None:
            waiting = rank.unexpected[to] = deque()
        waiting.append(self)

    def describe(self) -> str:
        """Describe the message and where it was sent."""
        return f"{self.nbytes:,} bytes with tag {self.tag} from {self.describe_request()}"


def _first_of(receives: Any, tag: int) -> tuple[Any, int]:
    """Return the first receive that takes this tag, and its index."""
    for place, receive in enumerate(receives):
        if receive.wanted_tag is ANY or receive.wanted_tag == tag:
            return receive, place
    return None, 0


def post(rank: Any, context: int, receive: ReceiveRequest) -> None:
    """Post a receive: it takes a message that has already arrived, or waits for one."""
    source = receive.wanted_source
    if source is None:
        rank.kernel.take_arrived(rank)  # only what has arrived by now can be taken at once
        message = take_unexpected(rank, context, ANY, receive.wanted_tag)
        if message is None:
            receive.order = next(rank.kernel.sequence)
            rank.wild.setdefault(context, []).append(receive)
        else:
            match(rank, receive, message)
        return
    key = (context << RANK_BITS) + source
    if rank.unexpected.get(key):
        message = take_unexpected(rank, context, source, receive.wanted_tag)
        if message is not None:
            match(rank, receive, message)
            return
    # Receives from any source that are posted later have higher numbers.
    receive.order = next(rank.kernel.sequence) if rank.wild else 0
    queue = rank.posted.get(key)
    if queue is None:
        queue = rank.posted[key] = deque()
    queue.append(receive)


def first_unexpected(rank: Any, context: int, source: int | None, tag: int | None) -> Message | None:
    """Return the unexpected message that arrived first among those that match."""
    found: Message | None = None
    keys = (
        [queue_of(context, source)]
        if source is not ANY
        else [key for key in rank.unexpected if key >> RANK_BITS == context]
    )
    for key in keys:
        for message in rank.unexpected.get(key, ()):
            if tag is ANY or message.tag == tag:
                if found is None or message.order < found.order:
                    found = message
                break
    return found


def take_unexpected(rank: Any, context: int, source: int | None, tag: int | None) -> Message | None:
    """Return it, and remove it from the queue of unexpected messages."""
    found = first_unexpected(rank, context, source, tag)
    if found is not None:
        queue = rank.unexpected[found.to]
        if queue[0] is found:
            queue.popleft()
        else:
            queue.remove(found)
    return found


def match(rank: Any, receive: ReceiveRequest, message: Message) -> None:
    """Let a receive take a message."""
    kernel = rank.kernel
    receive.done, receive.error = False, None  # a receive from any source may have failed with a rank's death
    if message.nbytes > receive.nbytes:
        receive.error = Truncated(
            f"message truncated: {message.describe()} do not fit into the {receive.nbytes:,} bytes of "
            f"{receive.describe()}"
        )
    elif kernel.strict and message.kind != receive.kind and message.nbytes:
        receive.error = TypeMismatch(
            f"type mismatch: {message.describe()} are {message.kind}, but {receive.describe()} expects {receive.kind}"
        )
    data: Any = None if receive.error is not None else message.data
    length = min(message.nbytes, receive.nbytes)
    if message.eager:
        rank.t += message.taking
        receive.deliver(data, length, message.source, message.tag)
        return
    sender = message.sender
    if kernel.wires.contended(sender.number, rank.number):
        kernel.let_earlier_go(rank)  # a network card is shared in the order of time
    if data.__class__ is memoryview:
        data = data.tobytes()
    arrives, taking, released = kernel.wires.fetch(sender.number, rank.number, message.nbytes, rank.t)
    kernel.schedule(sender, released, _Released(message))
    if arrives <= rank.t:
        rank.t += taking
        receive.deliver(data, length, message.source, message.tag)
    else:
        kernel.schedule(rank, arrives, Data(receive, message, data, length, taking))


class _Released:
    """A notification to the sender of an announced message that it was taken."""

    __slots__ = ("message",)

    def __init__(self, message: Message) -> None:
        self.message = message

    def arrive(self, rank: Any) -> None:
        self.message.done = True


class Data:
    """The data of an announced message, in flight to the receiver."""

    __slots__ = ("data", "message", "nbytes", "receive", "taking")

    def __init__(
        self, receive: ReceiveRequest, message: Message, data: bytes | None, nbytes: int, taking: float
    ) -> None:
        self.receive, self.message = receive, message
        self.data, self.nbytes, self.taking = data, nbytes, taking

    def arrive(self, rank: Any) -> None:
        rank.t += self.taking
        self.receive.deliver(self.data, self.nbytes, self.message.source, self.message.tag)
