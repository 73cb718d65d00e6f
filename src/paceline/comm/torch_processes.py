"""A communicator of processes that share memory through torch, with no MPI: what strategies in one shared x need of one.

Everything is said through rank 0, which has a pipe to every other process; who waits sleeps. That is slow beside MPI and
enough for what is said once an epoch: the parameters themselves lie in a tensor that all processes have mapped.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from paceline.errors import AgreedError, UsageError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Array = NDArray[Any]
PATIENCE = 5.0  # seconds for the launcher to end a process whose peer has gone
_keys = itertools.count()


class Processes:
    """The processes of one job, in mpi4py's words: collective calls and shared memory, no messages between two.

    >>> alone = Processes(0, [])
    >>> sums = np.zeros(2)
    >>> alone.Allreduce(np.ones(2), sums)
    >>> sums.tolist(), alone.Get_size()
    ([1.0, 1.0], 1)
    """

    COMM_TYPE_SHARED = 0

    def __init__(
        self, rank: int, ends: Sequence[Connection[Any, Any]], size: int = 1, folder: Path | None = None
    ) -> None:
        """`ends`: on rank 0 of the pipes to ranks 1, 2 …; elsewhere of the one to rank 0. `folder`: the job's own."""
        self._rank, self._size, self._ends, self._folder = rank, size, ends, folder
        self._attributes: dict[int, Any] = {}

    def Get_rank(self) -> int:
        return self._rank

    def Get_size(self) -> int:
        return self._size

    # ---- collective calls

    def Barrier(self) -> None:
        self._everyones(b"")

    def Bcast(self, values: Array, root: int = 0) -> None:
        mine = values.tobytes() if self._rank == root else b""
        _put(values, self._everyones(mine)[root])

    def Allgather(self, values: Array, rows: Array) -> None:
        _put(rows, b"".join(self._everyones(values.tobytes())))

    def Gather(self, values: Array, rows: Array | None, root: int = 0) -> None:
        everything = b"".join(self._everyones(values.tobytes()))
        if self._rank == root and rows is not None:
            _put(rows, everything)

    def Gatherv(self, values: Array, into: list[Any] | None, root: int = 0) -> None:
        everything = b"".join(self._everyones(values.tobytes()))
        if self._rank == root and into is not None:
            _put(into[0], everything)

    def Allreduce(self, values: Array, sums: Array) -> None:
        rows = [np.frombuffer(row, values.dtype) for row in self._everyones(values.tobytes())]
        sums[...] = np.add.reduce(rows).reshape(sums.shape)  # rank after rank: the same bits everywhere

    def Allocate_shared(self, nbytes: int) -> Window:
        """A window of as many bytes as rank 0 asks for, which all processes read and write."""
        import torch
        import torch.multiprocessing  # lets a pipe carry a tensor: its memory, not its values

        if self._rank == 0:
            tensor: Any = torch.zeros(nbytes, dtype=torch.uint8)
            tensor.share_memory_()
            with self._losing():
                for end in self._ends:
                    end.send(tensor)
        else:
            with self._losing():
                tensor = self._ends[0].recv()
        self.Barrier()  # rank 0 keeps it until all have it
        return Window(tensor)

    def _everyones(self, mine: bytes) -> list[bytes]:
        """What each process gives, on every one."""
        with self._losing():
            if self._rank == 0:
                parts = [mine, *(end.recv_bytes() for end in self._ends)]
                for end in self._ends:
                    for part in parts:
                        end.send_bytes(part)
                return parts
            self._ends[0].send_bytes(mine)
            return [self._ends[0].recv_bytes() for _ in range(self._size)]

    @contextmanager
    def _losing(self) -> Iterator[None]:
        """Another process has ended: why, the launcher or that one itself says. It ends this one, too."""
        try:
            yield
        except (EOFError, ConnectionError):
            time.sleep(PATIENCE)
            raise RuntimeError(f"another process ended while process {self._rank} waited for it") from None

    # ---- communicators: all processes are on one machine, and all calls in the same order on each

    def Dup(self) -> Processes:
        return Processes(self._rank, self._ends, self._size, self._folder)

    def Split_type(self, kind: int, key: int = 0) -> Processes:
        return self.Dup()

    def Free(self) -> None:
        self._attributes.clear()

    def Is_inter(self) -> bool:
        return False

    @classmethod
    def Create_keyval(cls, delete_fn: Any = None) -> int:
        return next(_keys)

    def Get_attr(self, key: int) -> Any:
        return self._attributes.get(key)

    def Set_attr(self, key: int, value: Any) -> None:
        self._attributes[key] = value

    def Isend(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError("processes without MPI share memory; they send each other no messages")

    Irecv = Isend

    # ---- how a process ends

    @contextmanager
    def guard(self) -> Iterator[None]:
        """An exception ends this process, and with it the job; the first process that fails says why."""
        try:
            yield
        except AgreedError:
            raise
        except KeyboardInterrupt:
            self._end(130, "")
        except UsageError as error:
            self._end(2, f"paceline: process {self._rank}: {error}")
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) and leaving.code else 1
            self._end(status, f"process {self._rank} of {self._size} left with sys.exit while others went on")
        except BaseException:
            self._end(1, f"process {self._rank} of {self._size} failed:\n{traceback.format_exc()}")

    def _end(self, status: int, text: str) -> NoReturn:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
            if self._folder is not None:
                (self._folder / "spoken").touch(exist_ok=False)  # of several that fail, the first
            os.write(2, f"{text.rstrip()}\n".encode(errors="replace") if text else b"")
        os._exit(status)


class Window:
    """A tensor in shared memory, as MPI speaks of its windows. The calls before which others are met need no fence."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def Shared_query(self, rank: int) -> tuple[memoryview, int]:
        return memoryview(self._tensor.numpy()), 1

    def Lock_all(self) -> None:
        pass

    Unlock_all = Sync = Lock_all

    def Free(self) -> None:
        self._tensor = None


def started() -> Processes | None:
    """The communicator of the processes that were started together with this one by torch's or Python's multiprocessing.

    >>> started() is None
    True
    """
    return vars(multiprocessing.current_process()).get("communicator")


def _put(values: Array, data: bytes) -> None:
    values.reshape(-1)[...] = np.frombuffer(data, values.dtype)
