"""A signal stops a run after a checkpoint, wherever it arrives; the next one ends it at once; someone says which it was."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline import fit, launch
from paceline.commands.train import _ranks_left, _was_lost
from paceline.config import Config
from paceline.launch import JobOutcome, StopRequests, find
from paceline.launch.guard import TOGETHER
from paceline.record.checkpoint import find_latest
from paceline.training.job import Job
from paceline.training.rank import train
from paceline.training.resuming import resume_requeued
from tests.ranks import ROOT

STARTS_RANKS = True
PATIENCE = 280
HOST = os.uname().nodename
LONG = ("--data=iris", "--model=mlp:4", "--batch=12", "--epochs=1000000", "--quiet", "--runs=runs")


# ---- in one process


def test_the_first_signal_asks_and_the_second_ends() -> None:
    asked: list[int] = []

    def train() -> None:
        with StopRequests(own_process=False) as requests, requests.pass_to(asked.append):
            signal.raise_signal(signal.SIGUSR1)
            assert asked == [signal.SIGUSR1]
            signal.raise_signal(signal.SIGUSR1)  # at the same time: the same request
            time.sleep(TOGETHER + 0.1)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(SystemExit) as ended:
        train()
    assert ended.value.code == 128 + signal.SIGUSR1
    assert asked == [signal.SIGUSR1]
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_before_training_the_first_signal_ends_and_after_it_the_first_is_ignored() -> None:
    with pytest.raises(KeyboardInterrupt), StopRequests(own_process=False):
        signal.raise_signal(signal.SIGINT)
    with StopRequests(own_process=False) as requests:
        with requests.pass_to(print):
            pass
        signal.raise_signal(signal.SIGINT)
        time.sleep(TOGETHER + 0.1)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_what_cannot_be_saved_is_ended() -> None:
    with pytest.raises(SystemExit), StopRequests(own_process=False) as requests, requests.pass_to(None):
        signal.raise_signal(signal.SIGTERM)


def test_handlers_of_the_program_stay() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        with StopRequests(own_process=False) as requests, requests.pass_to(lambda _: pytest.fail("asked")):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert came == [signal.SIGTERM]


def interrupted_fit(runs: Path) -> Path:
    """Interrupt a run in this process as soon as it has had an epoch; return its folder."""

    def interrupt() -> None:
        while not list(runs.glob("*/epochs.jsonl")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        fit("mlp:4", "iris", strategy="serial", epochs=10**6, batch=10, runs=runs, quiet=True)
    thread.join()
    [folder] = runs.iterdir()
    return folder


def test_fit_saves_and_raises_keyboard_interrupt(tmp_path: Path) -> None:
    folder = interrupted_fit(tmp_path)
    stopped = json.loads((folder / "stopped.json").read_text())
    assert (stopped["signal"], stopped["saved"]) == ("SIGINT", True)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# ---- jobs


def words_of(process: int) -> list[bytes]:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return [b""]


def below(process: int) -> list[int]:
    """The children of a process, their children, and so on."""
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return []
    return [found for child in map(int, children) for found in (child, *below(child))]


class Run:
    """`paceline train` in a process of its own, in a folder of its own, once it has had an epoch."""

    def __init__(self, folder: Path, *words: str, terminal: int | None = None) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "paceline", "train", *LONG, *words]
        stdio = {"stdin": terminal, "stdout": terminal, "stderr": terminal} if terminal is not None else {}
        self.process = subprocess.Popen(
            command, cwd=folder, text=True, start_new_session=terminal is not None,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            preexec_fn=None if terminal is None else take_terminal,
            **(stdio or {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}),
        )  # type: ignore[call-overload]  # fmt: skip
        self.wait_for("runs/*/epochs.jsonl")

    def wait_for(self, pattern: str) -> None:
        until = time.monotonic() + PATIENCE
        while not list(self.folder.glob(pattern)):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < until, pattern
            time.sleep(0.02)

    def wait_for_checkpoint(self) -> None:
        [folder] = self.folder.glob("runs/*")
        until = time.monotonic() + PATIENCE
        while find_latest(folder) is None:
            assert time.monotonic() < until
            time.sleep(0.02)

    def ranks(self) -> list[int]:
        found = [
            process
            for process in below(self.process.pid)
            if b"python" in (words := words_of(process))[0]
            and any(word.startswith(b"--expect-ranks=") for word in words)
            and not any(word.endswith(b"supervise.py") for word in words)
        ]
        return sorted(found)

    def mpiexec(self) -> int:
        [supervisor] = [
            process
            for process in below(self.process.pid)
            if any(word.endswith(b"supervise.py") for word in words_of(process))
        ]
        return below(supervisor)[0]

    def end(self) -> tuple[int, list[str]]:
        """The exit status, and the lines on stderr."""
        err = self.process.communicate(timeout=PATIENCE)[1]
        return self.process.returncode, err.splitlines()


def take_terminal() -> None:
    """Make the terminal on stdin the controlling one of this session, whose keys send signals."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    started: list[Run] = []

    def starter(*words: str, terminal: int | None = None) -> Run:
        started.append(Run(tmp_path, *words, terminal=terminal))
        return started[-1]

    yield starter
    for run in started:
        with run.process as process:
            process.kill()


RESUME = "continue with: paceline resume runs/"


def test_a_signal_to_paceline_stops_the_ranks(start: Callable[..., Run]) -> None:
    run = start("--strategy=sync", "-n2")
    ranks = run.ranks()
    assert len(ranks) == 2
    run.process.send_signal(signal.SIGUSR1)
    status, lines = run.end()
    assert status == 138
    assert lines[0] == (
        "signal 10 (User defined signal 1): the ranks are asked to save a checkpoint and stop; "
        "a second one ends them at once"
    )
    assert lines[1].startswith(f"paceline: stopped by SIGUSR1; {RESUME}")
    assert len(lines) == 2, lines
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)


def test_a_signal_to_a_rank_stops_all_and_names_it(start: Callable[..., Run]) -> None:
    run = start("--strategy=psgd", "-n2")
    os.kill(run.ranks()[1], signal.SIGTERM)
    status, lines = run.end()
    assert status == 143
    assert lines[0].endswith(f" on {HOST} received signal 15 (Terminated); the run stops after a checkpoint")
    assert lines[0].startswith("rank ")
    assert lines[1].startswith(f"paceline: stopped by SIGTERM; {RESUME}")


def test_the_end_of_mpiexec_is_explained(start: Callable[..., Run]) -> None:
    run = start("--strategy=sync", "-n2")
    os.kill(run.mpiexec(), signal.SIGTERM)
    status, lines = run.end()
    assert status == 143
    if find().kind == "openmpi":
        said = "mpiexec was told to end by a signal, and ended the ranks with signal 15 (Terminated)"
    else:  # which passes signals on
        said = f"all 2 ranks on {HOST} received signal 15 (Terminated); the run stops after a checkpoint"
    assert said in lines
    saved = list(run.folder.glob("runs/*/stopped.json"))  # Open MPI's gives little time
    assert not saved or "paceline resume " in lines[-1]


def test_ctrl_c_at_a_terminal_and_a_second_one(start: Callable[..., Run]) -> None:
    """One rank is frozen, so that the run cannot stop by itself."""
    mine, its = pty.openpty()
    with os.fdopen(mine, "r+b", buffering=0) as terminal:
        run = start("--strategy=sync", "-n2", "--stall-timeout=never", terminal=its)
        os.close(its)
        frozen = run.ranks()[1]
        os.kill(frozen, signal.SIGSTOP)
        terminal.write(b"\x03")
        seen = b""
        while b"at once\r\n" not in seen:
            seen += terminal.read(1000)
        assert b"signal 2 (Interrupt): the ranks are asked to save a checkpoint and stop" in seen
        time.sleep(TOGETHER + 0.2)
        terminal.write(b"\x03")
        while b"ended by signal 2 (Interrupt)\r\n" not in seen:
            seen += terminal.read(1000)
        assert run.process.wait(PATIENCE) == 130
    assert not Path(f"/proc/{frozen}").exists()


def test_a_lost_job_is_restarted(start: Callable[..., Run]) -> None:
    run = start("--strategy=sync", "-n2", "--tolerate-failures", "--restarts=1", "--checkpoint-every=0.2s")
    run.wait_for_checkpoint()
    os.kill(run.mpiexec(), signal.SIGKILL)
    until = time.monotonic() + PATIENCE
    [config] = run.folder.glob("runs/*/config.json")
    while not (resumed := json.loads(config.read_text()).get("resumed")) and time.monotonic() < until:
        assert run.process.poll() is None, run.end()
        time.sleep(0.1)
    [entry] = resumed
    assert (entry["ranks"], entry["ranks_before"]) == (2, 2)
    assert "was lost (exit status 137)" in entry["because"]
    epochs = config.with_name("epochs.jsonl")
    before = len(epochs.read_text().splitlines())
    while len(epochs.read_text().splitlines()) <= before and time.monotonic() < until:
        time.sleep(0.1)
    run.process.send_signal(signal.SIGTERM)
    status, lines = run.end()
    assert status == 143, lines
    assert "paceline: restart 1 of 1: from its last checkpoint, on 2 ranks (2 before)" in lines
    assert "continue with: paceline resume " in lines[-1]


def test_a_rank_that_dies_leaves_the_command_to_go_on(start: Callable[..., Run]) -> None:
    run = start("--strategy=sync", "-n2", "--checkpoint-every=0.2s")
    run.wait_for_checkpoint()
    os.kill(run.ranks()[1], signal.SIGKILL)
    status, lines = run.end()
    assert status == 137
    assert "was ended by signal 9 (Killed)" in lines[0]
    assert lines[1].startswith("paceline: continue from the last checkpoint with: paceline resume ")


def test_what_is_restarted_and_on_how_many_ranks(tmp_path: Path) -> None:
    def ended(status: int, asked: int = 0, hosts: tuple[str, ...] = ()) -> JobOutcome:
        return JobOutcome(status=status, asked=asked, dead=(), hosts=hosts, run=tmp_path)

    assert all(map(_was_lost, (ended(137), ended(139), ended(75), ended(1, hosts=("b",)))))
    kept = (ended(0), ended(1), ended(2), ended(3), ended(130), ended(138), ended(143), ended(137, asked=15))
    assert not any(map(_was_lost, kept))
    (tmp_path / "summary.json").touch()
    assert not _was_lost(ended(137))
    job = Job(config=Config(data="iris", model="mlp:4", strategy="parameter-server:masters=2"))
    assert [_ranks_left(job, 4, dead) for dead in (0, 1, 2, 3)] == [4, 3, 3, 3]
    assert _ranks_left(job, 2, 1) is None


# ---- a Slurm job that was requeued


def test_a_requeued_job_goes_on_with_its_own_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    folder = interrupted_fit(tmp_path)
    config = Config(model="mlp:4", data="iris", strategy="serial", epochs=10**6, batch=10)
    unnamed, named = (
        Job(config=config, runs=tmp_path),
        Job(config=config, runs=tmp_path, run_name=folder.name),
    )
    assert resume_requeued(unnamed, ranks=1) is unnamed
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    for job in (unnamed, named):
        again = resume_requeued(job, ranks=1)
        assert (again.resume, again.run_name) == (folder, folder.name)
        assert again.because == "Slurm requeued job 41"
    other = Job(config=Config(model="mlp:5", data="iris", strategy="serial"), runs=tmp_path)
    assert resume_requeued(other, ranks=1) is other
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    assert resume_requeued(named, ranks=1) is named
    assert folder.exists()


def test_a_requeued_job_begins_again_without_a_checkpoint_and_knows_a_complete_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    config = Config(model="mlp:4", data="iris", strategy="serial", epochs=1)
    job = Job(config=config, runs=tmp_path, run_name="mine")
    train(job, None)
    assert resume_requeued(job, ranks=1).resume == tmp_path / "mine"
    (tmp_path / "mine" / "summary.json").unlink()
    assert resume_requeued(job, ranks=1) is job
    assert not (tmp_path / "mine").exists()


# ---- ranks that are stopped while the ranks do not watch each other

STOPPED = """
import os, signal, sys, time
from pathlib import Path
rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK"))
folder = Path(os.environ["PACELINE_JOB_FOLDER"])
process = folder / "process"
if rank == "1":
    if sys.argv[1] == "done":
        (folder / "done").touch()
    (folder / "watched" / "1").touch() if sys.argv[1] == "watched" else None
    process.write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)
elif sys.argv[1] in ("watched", "warn"):
    (folder / "watched" / "0").touch() if sys.argv[1] == "watched" else None
    while not process.exists() or not process.read_text():
        time.sleep(0.01)
    noticed = Path(os.environ["NOTICED"])
    time.sleep(4) if sys.argv[1] == "watched" else None
    while sys.argv[1] == "warn" and not noticed.exists():
        time.sleep(0.01)
    os.kill(int(process.read_text()), signal.SIGCONT)
"""


@pytest.mark.parametrize(
    ("what", "status", "words"),
    [
        ("abort", 75, "the run ends with status 75 (--on-stall abort)"),
        ("done", 0, "all ranks have done their work, and it is ended"),
        ("warn", 0, "continues it"),
        ("watched", 0, None),
    ],
)
def test_a_rank_that_is_stopped_before_or_after_training_is_noticed(
    what: str, status: int, words: str | None, tmp_path: Path
) -> None:
    said: list[str] = []
    noticed = tmp_path / "noticed"

    def notice(line: str) -> None:
        said.append(line)
        noticed.touch()

    assert status == launch.run(
        2, [sys.executable, "-c", STOPPED, what], on_line=notice, stall_timeout=1.0, time_limit=PATIENCE,
        on_stall="abort" if what in ("abort", "watched") else "warn", environment={"NOTICED": str(noticed)},
    )  # fmt: skip
    if words is None:
        assert not said
    else:
        [line] = said
        assert line.startswith("rank 1 (process ")
        assert "has been stopped for " in line
        assert words in line


BEFORE_MPI = """
import os, signal, time
from paceline.launch import communicator
if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "1":
    time.sleep(3)  # until it has been seen; otherwise the job is given longer to start it
    os.kill(os.getpid(), signal.SIGKILL)
communicator()
"""


def test_a_rank_that_dies_before_mpi_has_started_ends_the_job() -> None:
    """Open MPI would tolerate the death, and let the others wait for that rank for ever. MPICH's segment is removed."""
    before = set(Path("/dev/shm").glob("mpich_*"))
    said: list[str] = []
    command = [sys.executable, "-c", BEFORE_MPI]
    assert launch.run(2, command, on_line=said.append, survive=True, time_limit=PATIENCE) == 137
    if find().kind == "openmpi":
        assert "rank 1 ended before all ranks had started MPI; the job is ended" in said
    left, until = {*Path("/dev/shm").glob("mpich_*")} - before, time.monotonic() + 60
    while left := {path for path in left if path.exists()}:  # those of other jobs do not stay
        assert time.monotonic() < until, left
        time.sleep(0.1)


LINGERING = """
import os, signal, sys
from pathlib import Path
folder = Path(os.environ["PACELINE_JOB_FOLDER"])
(folder / sys.argv[1] / str(os.getpid())).touch()
if sys.argv[1] == "left":  # and MPI does not let it end
    (folder / "stoppable" / str(os.getpid())).write_text("15")
    signal.pause()
"""


@pytest.mark.parametrize(("what", "status"), [("started", 137), ("left", 143)])
def test_a_launcher_that_does_not_end_after_its_ranks_is_killed(
    what: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher is a shell that starts the ranks and then waits for ever."""
    launcher = tmp_path / "mpiexec"
    launcher.write_text('#!/bin/sh\n"$@" &\n"$@" &\nwait\nexec sleep 1000\n')
    launcher.chmod(0o755)
    monkeypatch.setattr(launch.job, "mpiexec", lambda ranks, command, *_, environment, **__: (
        [str(launcher), *command], {**os.environ, **environment}
    ))  # fmt: skip
    said: list[str] = []
    command = [sys.executable, "-c", LINGERING, what]
    assert launch.run(2, command, on_line=said.append, time_limit=PATIENCE) == status
    assert said == ["mpiexec did not end after its ranks; it is killed"]
