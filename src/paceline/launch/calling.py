"""Calling a function on ranks that are started for it.

    answer = call(measure, {"seconds": 2.0}, ranks=4)

starts four ranks, calls `measure(comm, seconds=2.0)` on each of them, and returns what rank 0 returned. This is the only
way in which paceline hands work to ranks from inside a program (`paceline train -n 4` starts its own command line).

The caller listens on a socket in a folder that only its user can enter, protected by a random key. Rank 0 connects,
receives the function and its arguments, broadcasts them to the other ranks, and sends back the answer. Both
ends are processes of one user on one machine, and one started the other: nothing is unpickled from a file or a network.
"""

from __future__ import annotations

import io
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from paceline.errors import AgreedError, StoppedError, UsageError
from paceline.launch.guard import leave
from paceline.launch.hosts import Host
from paceline.launch.job import JobOutcome, job_folder, run
from paceline.launch.library import allocated_nodes

if TYPE_CHECKING:
    from multiprocessing.connection import Connection, Listener

ADDRESS = "PACELINE_CHANNEL"
KEY = "PACELINE_CHANNEL_KEY"
LARGE = 1 << 16  # bytes from which a shared array is passed as a file


class RanksFailedError(RuntimeError):
    """The ranks of a call ended without an answer; what went wrong is on stderr."""

    def __init__(self, ranks: int, status: int) -> None:
        count = "the rank" if ranks == 1 else f"the {ranks} ranks"
        super().__init__(f"{count} ended with exit status {status}; the reason is printed above")
        self.status = status


def call(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    *,
    ranks: int,
    shared: Mapping[str, Any] | None = None,
    threads: int | None = None,
    bind: bool = True,
    one_node: bool = False,
    hosts: Sequence[Host] = (),
    launcher: Literal["mpi", "torch"] = "mpi",
    on_line: Callable[[str], None] | None = None,
    time_limit: float | None = None,
    stall_timeout: float | None = None,
    on_stall: str = "warn",
) -> Any:
    """Call `function(comm, **arguments, **shared)` on `ranks` new ranks; return what rank 0 returns.

    Large arrays inside `shared` are read-only on the ranks, which map one copy of them where all are on one node. What the
    ranks print appears as they print it. The other options are those of `run`; the first of `hosts` must be this machine,
    because rank 0 reports to this process.

    A UsageError that all ranks agree on is raised here as a UsageError. If a signal has ended the call, a KeyboardInterrupt
    (SIGINT) or SystemExit is raised. A rank that fails otherwise ends all ranks and
    prints its number and its traceback on stderr; then a RanksFailedError is raised here.

    >>> def share(comm, whole):
    ...     return whole / comm.Get_size()
    >>> call(share, {"whole": 3.0}, ranks=2)
    1.5
    """
    if hosts and not hosts[0].here:
        raise UsageError(
            f"rank 0 reports to this machine: list {os.uname().nodename} as the first of the hosts, not {hosts[0].name}"
        )
    answers: list[tuple[str, Any]] = []
    outcomes: list[JobOutcome] = []
    with job_folder(Path(tempfile.gettempdir())) as (folder, _):
        alone = not hosts and (one_node or allocated_nodes() == 1)
        payload = _pack(function, arguments, shared or {}, folder if alone else None)
        with serve(payload, answers.append) as variables:
            status = run(
                ranks, [sys.executable, "-m", "paceline.launch"], threads=threads, environment=variables,
                bind=bind, one_node=one_node, hosts=hosts, launcher=launcher, on_line=on_line, time_limit=time_limit,
                also=[folder, Path(variables[ADDRESS]).parent], report=outcomes.append,
                stall_timeout=stall_timeout, on_stall=on_stall,
            )  # fmt: skip
    if outcomes[0].asked and status > 128:
        leave(status - 128)
    if status == 128 + signal.SIGINT:  # of a rank
        raise KeyboardInterrupt
    kind, answer = answers[-1] if answers else ("", None)
    if kind == "refused":
        raise UsageError(answer)
    if kind != "answer" or status != 0:
        raise RanksFailedError(ranks, status)
    return answer


def answer_call() -> int:
    """Take part in a call as one of its ranks; return the exit status."""
    from paceline.comm.control import broadcast_bytes
    from paceline.launch.guard import abort_on_error
    from paceline.launch.prepare import communicator
    from paceline.launch.resources import take_cores

    take_cores()
    comm = communicator()
    with abort_on_error(comm):
        payload, up = receive() if comm.Get_rank() == 0 else (b"", None)
        function, arguments = _unpack(broadcast_bytes(comm, payload))
        try:
            message = ("answer", function(comm, **arguments))
        except AgreedError as refused:
            message = ("refused", str(refused))
        except StoppedError as stopped:
            return 128 + stopped.signal
        if up is not None:
            up.send(message)
            up.close()
    return 0


def _pack(
    function: Callable[..., Any], arguments: Mapping[str, Any], shared: Mapping[str, Any], folder: Path | None
) -> bytes:
    """Return the call as bytes, with large arrays of `shared` as files in `folder`, if there is one."""
    import cloudpickle
    import numpy as np

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, thing: Any) -> Any:
            large = type(thing) is np.ndarray and thing.nbytes >= LARGE and not thing.dtype.hasobject
            if folder is None or not large:
                return super().reducer_override(thing)
            path = folder / f"{len(list(folder.iterdir()))}.npy"
            np.save(path, thing, allow_pickle=False)
            return _map_array, (str(path),)

    try:
        data = io.BytesIO()
        Pickler(data).dump(dict(shared))
        own = cloudpickle.dumps((function, dict(arguments)))
        # Bytes within bytes: modules beside the user's script can be imported only once sys.path is set.
        return cloudpickle.dumps((sys.path, own, data.getvalue()))  # type: ignore[no-any-return]
    except (pickle.PicklingError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        raise UsageError(f"the model, data or strategy cannot be sent to other processes: {error}") from error


def _unpack(payload: bytes) -> tuple[Callable[..., Any], dict[str, Any]]:
    import cloudpickle

    sys.path[:], own, data = cloudpickle.loads(payload)
    function, arguments = cloudpickle.loads(own)
    return function, {**arguments, **cloudpickle.loads(data)}


def _map_array(path: str) -> Any:
    import numpy as np

    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


# The channel between the caller and rank 0.


@contextmanager
def serve(payload: bytes, on_message: Callable[[Any], None]) -> Iterator[dict[str, str]]:
    """Offer `payload` to the job that is started inside; call `on_message` with each object that rank 0 sends.

    Yields the environment variables that the job needs. When the block ends, every message has been delivered, by a
    thread of its own; an exception of `on_message` is raised there.

    >>> child = "from paceline.launch.calling import receive; x, up = receive(); up.send(x[::-1])"
    >>> with serve(b"abc", print) as variables:
    ...     status = run(1, [sys.executable, "-c", child], environment=variables)
    b'cba'
    """
    from multiprocessing.connection import Listener

    key = os.urandom(32)
    with job_folder(_short_folder()) as (folder, _):
        address = str(folder / "channel")
        over = threading.Event()
        failures: list[BaseException] = []

        def answer() -> None:
            """Serve one caller who knows the key until it hangs up."""
            with suppress(EOFError, OSError), _accept(listener, over) as connection:
                connection.send_bytes(payload)
                while True:
                    message = connection.recv()
                    try:
                        on_message(message)
                    except BaseException as error:
                        failures.append(error)
                        return

        with Listener(address, "AF_UNIX", backlog=4, authkey=key) as listener:
            thread = threading.Thread(target=answer, name="paceline-channel", daemon=True)
            thread.start()
            try:
                yield {ADDRESS: address, KEY: key.hex()}
            finally:
                over.set()
                with suppress(OSError), socket.socket(socket.AF_UNIX) as knock:  # for a job that never called
                    knock.connect(address)
                thread.join()
        if failures:
            raise failures[0]


def receive() -> tuple[bytes, Connection[Any, Any]]:
    """On rank 0 of a job started inside `serve`, return the payload and the connection to send messages on."""
    from multiprocessing.connection import Client

    address, key = os.environ.pop(ADDRESS), bytes.fromhex(os.environ.pop(KEY))
    try:
        connection = Client(address, "AF_UNIX", authkey=key)
    except (FileNotFoundError, ConnectionRefusedError):
        raise UsageError(
            f"rank 0 runs on {os.uname().nodename}, which is not the machine of the process that started it; "
            "start the ranks from the first node of the allocation, with sbatch or srun --pty"
        ) from None
    return connection.recv_bytes(), connection


def _accept(listener: Listener, over: threading.Event) -> Connection[Any, Any]:
    """Return the connection of the first caller with the key; raise EOFError when there will be none."""
    from multiprocessing import AuthenticationError

    while not over.is_set():
        with suppress(AuthenticationError, EOFError, ConnectionError):
            return listener.accept()
    raise EOFError


def _short_folder() -> Path:
    """Return a folder for the socket: its path must stay under 108 bytes, and TMPDIR may be long."""
    usual = tempfile.gettempdir()
    return Path("/tmp" if len(usual) > 60 and os.access("/tmp", os.W_OK) else usual)
