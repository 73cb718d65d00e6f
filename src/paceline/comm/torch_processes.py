"""A communicator of processes that share memory through torch, without MPI, for strategies with one shared x.

All messages go through rank 0, which has a pipe to every other process; waiting processes sleep. That is slow compared
with MPI but enough for a few messages per epoch: the parameters are in a tensor that all processes have mapped.
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

from paceline.errors import AgreedError, StoppedError, UsageError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Array = NDArray[Any]
PATIENCE = 5.0  # seconds for the launcher to end a process whose peer has gone
_keys = itertools.count()


class TorchProcesses:
    """The processes of one job with mpi4py's interface: collective calls and shared memory, but no messages between two.

    >>> alone = TorchProcesses(0, [])
    >>> sums = np.zeros(2)
    >>> alone.Allreduce(np.ones(2), sums)
    >>> sums.tolist(), alone.Get_size()
    ([1.0, 1.0], 1)
    """

    COMM_TYPE_SHARED = 0

    def __init__(
        self, rank: int, ends: Sequence[Connection[Any, Any]], size: int = 1, folder: Path | None = None
    ) -> None:
        """`ends`: the pipes to ranks 1, 2 ... on rank 0, and the one to rank 0 elsewhere. `folder`: the job's folder."""
        self._rank, self._size, self._ends, self._folder = rank, size, ends, folder
        self._attributes: dict[int, Any] = {}
        self.shared_folder = folder
        """The folder in which shared memory is allocated."""

    def Get_rank(self) -> int:
        return self._rank

    def Get_size(self) -> int:
        return self._size

    # Collective calls.

    def Barrier(self) -> None:
        self._exchange(b"")

    def Bcast(self, values: Array, root: int = 0) -> None:
        mine = values.tobytes() if self._rank == root else b""
        _put(values, self._exchange(mine)[root])

    def Allgather(self, values: Array, rows: Array) -> None:
        _put(rows, b"".join(self._exchange(values.tobytes())))

    def Gather(self, values: Array, rows: Array | None, root: int = 0) -> None:
        everything = b"".join(self._exchange(values.tobytes()))
        if self._rank == root and rows is not None:
            _put(rows, everything)

    def Scatter(self, rows: Array | None, mine: Array, root: int = 0) -> None:
        parts = self._exchange(rows.tobytes() if self._rank == root and rows is not None else b"")
        _put(mine, parts[root][self._rank * mine.nbytes : (self._rank + 1) * mine.nbytes])

    def Gatherv(self, values: Array, into: list[Any] | None, root: int = 0) -> None:
        everything = b"".join(self._exchange(values.tobytes()))
        if self._rank == root and into is not None:
            _put(into[0], everything)

    def Allreduce(self, values: Array, sums: Array) -> None:
        rows = [np.frombuffer(row, values.dtype) for row in self._exchange(values.tobytes())]
        sums[...] = np.add.reduce(rows).reshape(sums.shape)  # in rank order: the same bits everywhere

    def Allocate_shared(self, nbytes: int) -> TorchWindow:
        """Return a window that all processes read and write, with the number of bytes that rank 0 asks for."""
        import torch

        size = np.array([nbytes])
        self.Bcast(size)
        if self._folder is None:  # this process alone
            return TorchWindow(torch.zeros(int(size[0]), dtype=torch.uint8))
        file = self._folder / "window"  # removed with the job, however it ends
        if self._rank == 0:
            with file.open("xb") as new:
                os.posix_fallocate(new.fileno(), 0, max(1, int(size[0])))
        self.Barrier()
        tensor = torch.from_file(str(file), shared=True, size=int(size[0]), dtype=torch.uint8)
        self.Barrier()  # every process has mapped it
        if self._rank == 0:
            file.unlink()
        return TorchWindow(tensor)

    def _exchange(self, mine: bytes) -> list[bytes]:
        """Return the values of all processes on every process."""
        with self._report_loss():
            if self._rank == 0:
                parts = [mine, *(end.recv_bytes() for end in self._ends)]
                for end in self._ends:
                    for part in parts:
                        end.send_bytes(part)
                return parts
            self._ends[0].send_bytes(mine)
            return [self._ends[0].recv_bytes() for _ in range(self._size)]

    @contextmanager
    def _report_loss(self) -> Iterator[None]:
        """Handle the end of another process: the launcher or that process reports the reason and ends this one."""
        try:
            yield
        except (EOFError, ConnectionError):
            time.sleep(PATIENCE)
            raise RuntimeError(f"another process ended while process {self._rank} waited for it") from None

    # Communicators: all processes are on one machine, and make all calls in the same order.

    def Dup(self) -> TorchProcesses:
        return TorchProcesses(self._rank, self._ends, self._size, self._folder)

    def Split_type(self, kind: int, key: int = 0) -> TorchProcesses:
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
        raise NotImplementedError("processes without MPI share memory and cannot send each other messages")

    Irecv = Isend

    # How a process ends.

    @contextmanager
    def guard(self) -> Iterator[None]:
        """End the job when an exception ends this process; the first process that fails prints the reason."""
        try:
            yield
        except (AgreedError, StoppedError):
            raise
        except KeyboardInterrupt:
            self._end(130, f"process {self._rank} of {self._size} was interrupted (signal 2)")
        except UsageError as error:
            self._end(2, f"paceline: process {self._rank}: {error}")
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) and leaving.code else 1
            self._end(status, f"process {self._rank} of {self._size} called sys.exit while others continued")
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


class TorchWindow:
    """A tensor in shared memory with the interface of an MPI window; no call needs a fence here."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def Shared_query(self, rank: int) -> tuple[memoryview, int]:
        return memoryview(self._tensor.numpy()), 1

    def Lock_all(self) -> None:
        pass

    Unlock_all = Sync = Lock_all

    def Free(self) -> None:
        self._tensor = None


def find_processes() -> TorchProcesses | None:
    """Return the communicator of the processes started together with this one by multiprocessing, or None.

    >>> find_processes() is None
    True
    """
    return vars(multiprocessing.current_process()).get("communicator")


def _put(values: Array, data: bytes) -> None:
    values.reshape(-1)[...] = np.frombuffer(data, values.dtype)
