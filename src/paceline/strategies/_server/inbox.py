"""The receives that a master has posted: what has arrived of them, in the order it arrives or in one that is given."""

from __future__ import annotations

from typing import Any

from paceline.stopwatch import Stopwatch

Key = tuple[str, int, int]
"""What is received, of which piece, from which worker."""


class Inbox:
    """A receive is posted before what it receives can have been sent. Waiting goes on the clock as such."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch
        self._under_way: dict[Key, Any] = {}

    def expect(self, key: Key, request: Any) -> None:
        """A receive has been posted."""
        self._under_way[key] = request

    def arrived(self, *, wait: bool) -> list[Key]:
        """What has arrived since the last call; nothing may have, unless it is to be waited for."""
        keys, requests = list(self._under_way), list(self._under_way.values())
        some: Any = type(requests[0])
        done = (some.Waitsome if wait else some.Testsome)(requests) or ()
        self._watch.lap("wait")
        found = [keys[index] for index in done]
        for key in found:
            del self._under_way[key]
        return found

    def take(self, what: str, number: int = 0, worker: int = 0) -> Key:
        """Wait for one of them."""
        key = (what, number, worker)
        self._under_way.pop(key).Wait()
        self._watch.lap("wait")
        return key
