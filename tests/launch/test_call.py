"""What goes down to a job and what comes up."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.errors import AgreedError, UsageError
from paceline.launch import RanksFailedError, call, run
from paceline.launch.calling import serve

STARTS_RANKS = True
UPPER = """
from paceline.launch import mpi
from paceline.launch.calling import receive
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

    program = child("from paceline.launch.calling import receive; receive()[1].send('that')")
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
        program = child("from paceline.launch.calling import receive; x, up = receive(); up.send(x)")
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


def scaled_sum(comm: Any, *, numbers: Any, factor: float, refuse: bool = False, fail: int = -1) -> Any:
    """Called on ranks by the tests below."""
    if refuse:
        raise AgreedError("no such sum")
    if comm.Get_rank() == fail:
        raise RuntimeError("this rank fails")
    print(f"rank {comm.Get_rank()}", flush=True)
    return (
        comm.Get_size(),
        type(numbers.base).__name__,
        numbers.flags.writeable,
        factor * float(numbers.sum()),
    )


def test_a_function_is_called_on_every_rank_and_rank_0_answers() -> None:
    lines: list[str] = []
    numbers = np.arange(50_000.0)
    answer = call(scaled_sum, {"factor": 2.0}, shared={"numbers": numbers}, ranks=2, on_line=lines.append)
    assert answer == (2, "memmap", False, 2 * numbers.sum())
    assert sorted(lines) == ["rank 0", "rank 1"]


def test_arguments_that_are_not_shared_are_each_ranks_own() -> None:
    numbers = np.arange(50_000.0)
    answer = call(scaled_sum, {"factor": 2.0, "numbers": numbers}, ranks=2, on_line=print)
    assert answer[2:] == (True, 2 * numbers.sum())


def test_what_all_ranks_refuse_is_a_usage_error_here() -> None:
    with pytest.raises(UsageError, match="no such sum"):
        call(scaled_sum, {"factor": 2.0, "numbers": 1, "refuse": True}, ranks=2)


def test_arguments_that_cannot_be_sent_are_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for given in (deep, threading.Lock()):
        with pytest.raises(UsageError, match="cannot be sent to other processes"):
            call(print, {"given": given}, ranks=2)


def test_a_rank_that_fails_is_named_and_ends_the_call() -> None:
    lines: list[str] = []
    with pytest.raises(RanksFailedError, match="the 2 ranks ended with exit status 1") as failed:
        call(scaled_sum, {"factor": 2.0, "numbers": np.ones(1), "fail": 1}, ranks=2, on_line=lines.append)
    assert failed.value.status == 1
    (named,) = [
        n for n, line in enumerate(lines) if line.startswith("rank 1 of 2 on ") and line.endswith(" failed:")
    ]
    assert "RuntimeError: this rank fails" in lines[named:]  # what rank 0 prints may come after it


def test_a_call_has_a_time_limit() -> None:
    with pytest.raises(RanksFailedError, match="status 124"):
        call(lambda comm: time.sleep(60), {}, ranks=2, time_limit=2)
