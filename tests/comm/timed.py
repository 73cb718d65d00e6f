# ruff: noqa: N802 (mpi4py's names)
"""A communicator that keeps time, as the simulator's do: one rank of it, and what it was told of the rank's work."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from paceline.comm.torch_processes import TorchWindow

_keys = itertools.count()


class Timed:
    """The first of several ranks, whose others do nothing. `told`: work and passes, in order."""

    COMM_TYPE_SHARED = 0

    def __init__(
        self, *, node_of: tuple[int, ...] = (0, 0), time_only: bool = False, told: Any = None
    ) -> None:
        self.node_of, self.time_only = node_of, time_only
        self.told: list[Any] = [] if told is None else told
        self.messages: list[Any] = []
        self._attributes: dict[int, Any] = {}

    def Work(self, kind: str, amount: float) -> None:
        self.told.append((kind, amount))

    def Pass(self) -> None:
        self.told.append("pass")

    def Wtime(self) -> float:
        return 12.5

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return len(self.node_of)

    def Is_inter(self) -> bool:
        return False

    def Dup(self) -> Timed:
        return Timed(node_of=self.node_of, time_only=self.time_only, told=self.told)

    def Split(self, color: int, key: int) -> Timed:
        return self.Split_type(0, key)

    def Split_type(self, kind: int, key: int) -> Timed:
        here = tuple(node for node in self.node_of if node == self.node_of[0])
        return Timed(node_of=here, time_only=self.time_only, told=self.told)

    def Free(self) -> None: ...

    def Barrier(self) -> None: ...

    def Isend(self, *arguments: Any) -> None:
        self.messages.append(arguments)

    Irecv = Isend

    def Allocate_shared(self, nbytes: int) -> TorchWindow:
        class Memory:
            def numpy(self) -> np.ndarray:
                return memory

        memory = np.zeros(nbytes, np.uint8)
        return TorchWindow(Memory())

    @classmethod
    def Create_keyval(cls, delete_fn: Any = None) -> int:
        return next(_keys)

    def Get_attr(self, key: int) -> Any:
        return self._attributes.get(key)

    def Set_attr(self, key: int, value: Any) -> None:
        self._attributes[key] = value
