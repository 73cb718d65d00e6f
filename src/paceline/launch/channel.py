"""The way between a plain process and the job that it started: a payload goes down, messages come up.

The parent listens on a socket in a folder that only its user can enter, with a random key; rank 0 connects,
receives the bytes, and sends objects back. Both ends are processes of one user on one machine, and one
started the other: nothing is ever unpickled from a file or a network.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection, Listener

PLACE = "PACELINE_CHANNEL"
KEY = "PACELINE_CHANNEL_KEY"


@contextmanager
def serve(payload: bytes, on_message: Callable[[Any], None]) -> Iterator[dict[str, str]]:
    """Offers `payload` to the job started inside; calls `on_message` with each object that rank 0 sends.

    Yields the variables that the job needs. When the block ends, every message has been delivered (by a thread
    of its own); an exception of `on_message` is raised there.

    >>> import sys
    >>> from paceline.launch import run
    >>> child = "from paceline.launch import receive; x, up = receive(); up.send(x[::-1])"
    >>> with serve(b"abc", print) as variables:
    ...     status = run(1, [sys.executable, "-c", child], environment=variables)
    b'cba'
    """
    from multiprocessing.connection import Listener

    key = os.urandom(32)
    with tempfile.TemporaryDirectory(prefix="paceline-", dir=_short()) as folder:
        address = str(Path(folder) / "channel")
        over = threading.Event()
        failures: list[BaseException] = []

        def answer() -> None:
            """One caller who knows the key, until it hangs up."""
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
                yield {PLACE: address, KEY: key.hex()}
            finally:
                over.set()
                with suppress(OSError), socket.socket(socket.AF_UNIX) as knock:  # a job that never called
                    knock.connect(address)
                thread.join()
        if failures:
            raise failures[0]


def receive() -> tuple[bytes, Connection[Any, Any]]:
    """On rank 0 of a job started inside `serve`: the payload, and the connection to `send` on."""
    from multiprocessing.connection import Client

    address, key = os.environ.pop(PLACE), bytes.fromhex(os.environ.pop(KEY))
    connection = Client(address, "AF_UNIX", authkey=key)
    return connection.recv_bytes(), connection


def _accept(listener: Listener, over: threading.Event) -> Connection[Any, Any]:
    """The first caller with the key; an EOFError if there will be none."""
    from multiprocessing import AuthenticationError

    while not over.is_set():
        with suppress(AuthenticationError, EOFError, ConnectionError):
            return listener.accept()
    raise EOFError


def _short() -> str | None:
    """A place for the socket: its whole name must stay under 108 bytes, and TMPDIR can be anything."""
    return "/tmp" if len(tempfile.gettempdir()) > 60 and os.access("/tmp", os.W_OK) else None
