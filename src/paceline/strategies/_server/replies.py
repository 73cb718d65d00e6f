"""What a master sends its workers: of each kind one message at a time to each."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray


class Replies:
    """Sends under way, by tag and worker; the first worker is rank `first`."""

    def __init__(self, comm: Any, first: int) -> None:
        self._comm, self._first = comm, first
        self._under_way: dict[tuple[int, int], Any] = {}

    def complete(self, tag: int, worker: int) -> None:
        """The worker has what was last sent to it under this tag: it could not have come back without."""
        request = self._under_way.pop((tag, worker), None)
        if request is not None:
            request.Wait()

    def send(self, values: NDArray[Any], tag: int, worker: int) -> None:
        """Values that stay as they are until the send is complete."""
        self._under_way[tag, worker] = self._comm.Isend(values, dest=self._first + worker, tag=tag)

    def complete_all(self) -> None:
        """Wait for all of them."""
        for request in self._under_way.values():
            request.Wait()
