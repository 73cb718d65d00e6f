"""What MPI's collectives share: all meet, the result is made once, everybody leaves with it.

What ranks must agree on (root, operation, length, type) is compared; what they give is looked at where it lies, not copied,
as long as they wait for the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paceline.sim._blocks import Memory
from paceline.sim._buffers import poison
from paceline.sim._groups import Met, meet
from paceline.sim.errors import BufferChanged

Finish = Callable[[list[Any]], Sequence[Any]]


class Together:
    """A communicator's side of it."""

    __slots__ = ()
    rank: int
    size: int
    kernel: Any
    me: Any

    def _meet(
        self, name: str, send: Memory | None, finish: Finish, *, into: Memory | None,
        arguments: tuple[Any, ...], nbytes: Any, also: Any = None, take: Callable[[Any], None] | None = None,
    ) -> Met:  # fmt: skip
        """Meet with what is sent, and have the result put into `into`, by `take` if that is given.

        `also` is given to the meeting along with the bytes.
        """
        if take is None and into is not None:
            take = into.write
        given: Any = None if send is None else send.view
        if name[0] == "I":  # whoever does not wait may change it
            given = None if send is None else send.read()
            if self.kernel.strict:
                take = _guarded(send, given, into, take)
        return meet(
            self, name, given if also is None else (given, also), finish,
            arguments=arguments, nbytes=nbytes, take=take,
        )  # fmt: skip

    def _check_root(self, root: int) -> None:
        if not 0 <= root < self.size:
            raise ValueError(f"root must be one of the {self.size} ranks, from 0; got {root}")

    def _check_same(self, name: str, send: Memory, into: Memory) -> None:
        if send.nbytes != into.nbytes or (send.kind != into.kind and send.nbytes):
            raise ValueError(
                f"{name} gives as much as it gets; got {send.nbytes} bytes of {send.kind} to send and "
                f"{into.nbytes} of {into.kind} to receive into"
            )

    def _check_parts(self, name: str, part: Memory, whole: Memory) -> None:
        if part.nbytes * self.size != whole.nbytes or (part.kind != whole.kind and part.nbytes):
            raise ValueError(
                f"{name} of {self.size} times {part.nbytes} bytes of {part.kind} needs as many on the other side; "
                f"got {whole.nbytes} of {whole.kind}"
            )


def agreed(memory: Memory) -> tuple[tuple[str, Any], ...]:
    """What ranks must agree on: length and type; nothing has no type."""
    return ("bytes", memory.nbytes), ("type", memory.kind if memory.nbytes else "any")


def only(root: int, result: Any, size: int) -> list[Any]:
    """Results of which only the root's is something."""
    found: list[Any] = [None] * size
    found[root] = result
    return found


def _guarded(
    send: Memory | None, data: bytes | None, into: Memory | None, take: Callable[[Any], None] | None
) -> Callable[[Any], None]:
    """While it is under way nobody may write what is sent, nor read or write what it will be received into."""
    if send is not None and into is not None and np.may_share_memory(send.flat(), into.flat()):
        send = None
    kept = b"" if into is None else into.read()
    if into is not None:
        into.write(poison(into.nbytes))

    def check(result: Any) -> None:
        changed = send is not None and send.view.tobytes() != data
        if into is not None:
            changed |= into.view.tobytes() != poison(into.nbytes)
            into.write(kept)
        if changed:
            raise BufferChanged("was changed before it was done")
        if take is not None:
            take(result)

    return check
