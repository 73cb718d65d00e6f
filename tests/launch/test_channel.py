"""What goes down to a job and what comes up."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import pytest

from paceline.launch import run, serve

STARTS_RANKS = True
UPPER = """
from paceline.comm import mpi
from paceline.launch import receive
comm = mpi().COMM_WORLD
payload, up = receive() if comm.rank == 0 else (None, None)
payload = comm.bcast(payload)
parts = comm.gather(payload[comm.rank::comm.size])
if comm.rank == 0:
    up.send(len(payload))
    up.send({"parts": parts})
"""


def child(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_a_payload_goes_down_and_objects_come_up() -> None:
    payload = os.urandom(300_000)
    answers: list[Any] = []
    with serve(payload, answers.append) as variables:
        assert run(2, child(UPPER), environment=variables) == 0
    assert answers == [len(payload), {"parts": [payload[0::2], payload[1::2]]}]


def test_a_job_that_never_calls_is_not_waited_for() -> None:
    answers: list[Any] = []
    with serve(b"x", answers.append) as variables:
        assert run(1, child("raise SystemExit(3)"), environment=variables) == 3
    assert answers == []


def test_an_exception_of_the_listeners_is_raised() -> None:
    def refuse(message: Any) -> None:
        raise RuntimeError(f"not {message}")

    program = child("from paceline.launch import receive; receive()[1].send('that')")
    with pytest.raises(RuntimeError, match="not that"), serve(b"x", refuse) as variables:
        subprocess.run(program, env={**os.environ, **variables}, check=True)


def test_only_who_has_the_key_is_served_and_only_this_user_can_knock() -> None:
    answers: list[Any] = []
    with serve(b"secret", answers.append) as variables:
        address = variables["PACELINE_CHANNEL"]
        folder = Path(address).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        with pytest.raises((AuthenticationError, EOFError, ConnectionError)):
            Client(address, "AF_UNIX", authkey=b"a guess")
        program = child("from paceline.launch import receive; x, up = receive(); up.send(x)")
        subprocess.run(program, env={**os.environ, **variables}, check=True)
    assert answers == [b"secret"]
    assert not folder.exists()
    assert "paceline-channel" not in {thread.name for thread in threading.enumerate()}


def test_a_long_temporary_folder_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with serve(b"x", print) as variables:
        assert len(variables["PACELINE_CHANNEL"]) < 100
