"""Looking at messages before they are received."""

from __future__ import annotations

from typing import Any

from paceline.vmpi.errors import mpi_error
from paceline.vmpi.matching import Message, first_unexpected, match, take_unexpected
from paceline.vmpi.requests import Receiving, Request, tell


class Probing:
    """A communicator's calls that look for a message: it has come, and no receive has asked for it."""

    __slots__ = ()
    context: int
    kernel: Any
    me: Any
    size: int

    def Iprobe(self, source: int | None = None, tag: int | None = None, status: Any = None) -> bool:
        found = self._found(source, tag)
        if found is None:
            self.kernel.polled(self.me)
            return False
        _tell(status, found)
        return True

    def Probe(self, source: int | None = None, tag: int | None = None, status: Any = None) -> bool:
        _tell(status, self._waited_for("Probe", source, tag))
        return True

    def Mprobe(self, source: int | None = None, tag: int | None = None, status: Any = None) -> MatchedMessage:
        found = self._waited_for("Mprobe", source, tag)
        _tell(status, found)
        return MatchedMessage(self.me, found)

    def Improbe(
        self, source: int | None = None, tag: int | None = None, status: Any = None
    ) -> MatchedMessage | None:
        found = self._found(source, tag)
        if found is None:
            self.kernel.polled(self.me)
            return None
        _tell(status, found)
        return MatchedMessage(self.me, found)

    def _waited_for(self, name: str, source: int | None, tag: int | None) -> Message:
        self.me.doing = name
        while (found := self._found(source, tag)) is None:
            self.kernel.progress(self.me)
        return found

    def _found(self, source: int | None, tag: int | None) -> Message | None:
        """The message that a receive would take; from nobody there always is one, an empty one."""
        kernel = self.kernel
        meant = kernel.meant
        source = None if source == meant.any_source else source
        if source is not None and not 0 <= source < self.size:
            return self._from_nobody(source)
        kernel.look(self.me)
        found = first_unexpected(self.me, self.context, source, None if tag == meant.any_tag else tag)
        if found is None and kernel.faults is not None:
            kernel.faults.losses.probing(self, source)
        return found

    def _from_nobody(self, source: int) -> Message:
        meant = self.kernel.meant
        if source != meant.nobody:
            raise mpi_error(
                "ERR_RANK", f"rank {source} is none of the {self.size} ranks, from 0, of this communicator"
            )
        empty = Message(
            self.me, "", source, None, None, 0, "", (self.context, source), meant.any_tag, True, 0.0
        )
        empty.Free()
        return empty


def _tell(status: Any, found: Message) -> None:
    if status is not None:
        tell(status, found.to[1], found.tag, found.nbytes)


class MatchedMessage:
    """A message that Mprobe has taken out: only this receives it."""

    def __init__(self, rank: Any, message: Message) -> None:
        self._rank, self._message = rank, message
        if message.name:  # not the one that nobody sent
            take_unexpected(rank, *message.to, message.tag)

    def Recv(self, buf: Any, status: Any = None) -> None:
        self.Irecv(buf).Wait(status)

    def Irecv(self, buf: Any) -> Request:
        message = self._message
        receive = Receiving(self._rank, "Imrecv", buf, message.to[1], message.tag)
        match(self._rank, receive, message)
        return receive

    Mrecv, Imrecv = Recv, Irecv

    def irecv(self) -> Request:
        from paceline.vmpi.objects import received

        return received(self._rank, self._message)

    def recv(self, status: Any = None) -> Any:
        return self.irecv().wait(status)

    @classmethod
    def Probe(
        cls, comm: Any, source: int | None = None, tag: int | None = None, status: Any = None
    ) -> MatchedMessage:
        found: MatchedMessage = comm.Mprobe(source, tag, status)
        return found

    @classmethod
    def Iprobe(
        cls, comm: Any, source: int | None = None, tag: int | None = None, status: Any = None
    ) -> MatchedMessage | None:
        found: MatchedMessage | None = comm.Improbe(source, tag, status)
        return found
