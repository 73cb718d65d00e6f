"""However a job ends, all of it ends, and nothing of it is left: real jobs, with shared windows."""

from __future__ import annotations

import fcntl
import os
import pty
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from paceline.launch import run
from paceline.launch.job import PREFIX, _Stream, _sweep
from tests.launch.started import Started, lives

STARTS_RANKS = True
HERE = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp")


def test_a_good_end(start: Callable[..., Started]) -> None:
    job = start("ends well")
    assert len({one["pid"] for one in job.ranks}) == 3
    assert all(one["folder"].startswith(str(HERE / PREFIX)) for one in job.ranks)
    assert job.end() == (0, "", "")
    assert job.left() == []


@pytest.mark.parametrize(
    ("what", "status", "said"),
    [
        ("exits with 2", 2, ""),
        ("one exits with 5", 5, "rank 1 of 3 called sys.exit(5) while others continued; they are ended\n"),
    ],
)
def test_the_ranks_own_status_is_kept_and_only_their_words_are_heard(
    start: Callable[..., Started], what: str, status: int, said: str
) -> None:
    job = start(what)
    assert job.end() == (status, "", said)
    assert job.left() == []


def test_a_rank_that_vanishes_ends_the_job_with_its_status(start: Callable[..., Started]) -> None:
    job = start("one vanishes")
    status, _, err = job.end()
    assert status == 3
    assert err == "rank 1 ended with status 3 in the middle of its work, without an error (os._exit?)\n"
    assert job.left() == []


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 138)]
)
def test_a_signal_ends_the_whole_job(start: Callable[..., Started], number: int, status: int) -> None:
    job = start("waits")
    job.process.send_signal(number)
    assert job.end() == (status, "", f"ended by signal {number} ({signal.strsignal(number)})\n")
    assert job.left() == []


def test_a_signal_that_is_handled_late_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python handles a signal that arrives just before a system call only when that call returns."""

    class Late(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
        raised = False

        def select(self, timeout: float | None = None) -> Any:
            ready = super().select(timeout)
            if not ready and not Late.raised:
                Late.raised = True
                signal.raise_signal(signal.SIGUSR1)
            return ready

    monkeypatch.setattr(selectors, "DefaultSelector", Late)
    said: list[str] = []
    assert run(1, [sys.executable, "-c", "import time; time.sleep(600)"], on_line=said.append) == 138
    assert said == [f"ended by signal 10 ({signal.strsignal(signal.SIGUSR1)})"]


def test_a_killed_parent_takes_the_job_with_it(start: Callable[..., Started]) -> None:
    job = start("waits")
    job.process.kill()
    job.process.wait()
    assert job.left_after() == []
    said = "the process that started mpiexec is gone; its ranks were ended\n"
    assert job.process.stderr is not None
    assert job.process.stderr.read() == said


def test_a_killed_rank_ends_the_job_and_one_line_says_so(start: Callable[..., Started]) -> None:
    job = start("one killed")
    status, out, err = job.end()
    assert status == 137
    lines = (out + err).splitlines()
    assert len(lines) == 1, lines
    line = lines[0]
    assert line.startswith(("rank 1 on ", "a rank on "))  # MPICH kills the others so fast that it cannot tell
    assert "was ended by signal 9 (Killed)" in line
    assert job.left() == []


def test_a_killed_mpiexec_leaves_no_ranks(start: Callable[..., Started]) -> None:
    job = start("waits")
    os.kill(job.ranks[0]["mpiexec"], signal.SIGKILL)
    assert job.end() == (137, "", "mpiexec was ended by signal 9 (Killed), and the ranks with it\n")
    assert job.left() == []


def test_a_killed_supervisor_leaves_no_processes_and_its_folder_is_swept(
    start: Callable[..., Started],
) -> None:
    job = start("waits")
    os.kill(job.ranks[0]["supervisor"], signal.SIGKILL)
    status, out, err = job.end()
    assert status in (137, 143)  # the supervisor's end, or that of the ranks which it brought about
    assert out == ""
    assert err.endswith("the job's supervisor was ended by signal 9 (Killed); the job ended with it\n")
    rest = err.splitlines()[:-1]  # MPICH's mpiexec also tells what it did to the ranks then
    assert all(line.endswith("was ended by signal 15 (Terminated)") for line in rest)
    assert job.left_after("process") == []


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short path, in which a socket can have its name."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


@contextmanager
def ready_caller(short: Path, program: str) -> Iterator[subprocess.Popen[str]]:
    """Start a program whose ranks say that they are ready, with its temporary folders in `short`."""
    environment = {**os.environ, "TMPDIR": str(short)}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True
    ) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == "ready\n"
        yield caller


def list_left(short: Path, seconds: float) -> list[Path]:
    """Return what is still in a folder after so many seconds; an empty list as soon as nothing is."""
    until = time.monotonic() + seconds
    while (left := list(short.iterdir())) and time.monotonic() < until:
        time.sleep(0.02)
    return left


def test_a_killed_caller_leaves_no_folder(short: Path) -> None:
    """The folders of a call, with its channel and its arrays, are the caller's own."""
    program = (
        "import time; from paceline.launch import call\n"
        "def wait(comm):\n    print('ready', flush=True); time.sleep(600)\n"
        "call(wait, {}, ranks=2)"
    )
    with ready_caller(short, program) as caller:
        assert len(list(short.glob(PREFIX + "*"))) == 2
        caller.kill()
    assert list_left(short, seconds=280) == []


def test_a_caller_whose_last_threads_are_about_to_end_leaves_no_folder(short: Path) -> None:
    """A process that is killed loses one thread after the other, and is the parent of its job up to the last."""
    program = (
        "import ctypes, signal, threading, time; from paceline.launch import call\n"
        "def wait(comm):\n    print('ready', flush=True); time.sleep(600)\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "libc = ctypes.CDLL(None)\n"
        "signal.signal(signal.SIGUSR2, lambda *given: libc.syscall(ctypes.c_long(EXIT), ctypes.c_long(0)))\n"
        "call(wait, {}, ranks=2)"
    ).replace("EXIT", "60" if os.uname().machine == "x86_64" else "93")
    with ready_caller(short, program) as caller:
        caller.send_signal(signal.SIGUSR2)
        left = list_left(short, seconds=100)
        caller.kill()
    assert left == []


def test_lines_of_ranks_stay_whole_without_buffers() -> None:
    program = (
        "from paceline.launch import call\n"
        "def say(comm):\n    for i in range(300):\n        print('rank', comm.Get_rank(), 'says', i)\n"
        "call(say, {}, ranks=2)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONUNBUFFERED": "1"}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert sorted(done.stdout.splitlines()) == sorted(
        f"rank {rank} says {i}" for rank in range(2) for i in range(300)
    )


def test_folders_of_dead_jobs_are_swept_and_those_of_living_ones_are_not(tmp_path: Path) -> None:
    for name in ("dead", "begun", "alive", "new"):
        (tmp_path / (PREFIX + name)).mkdir()
        if name != "begun":
            (tmp_path / (PREFIX + name) / "lock").touch()
        if name != "new":
            os.utime(tmp_path / (PREFIX + name), (0, 0))
    (tmp_path / "another").mkdir()
    with (tmp_path / (PREFIX + "alive") / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["another", PREFIX + "alive", PREFIX + "new"]


def test_a_signal_just_after_the_start_ends_the_job_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the one who asked for it has it in hand."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*words, **options))
        signal.raise_signal(signal.SIGINT)
        return started[-1]

    popen, handler = subprocess.Popen, signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(subprocess, "Popen", start)
    said: list[str] = []
    assert run(1, ["/bin/sleep", "60"], on_line=said.append) == 130
    assert started[0].returncode is not None
    assert said == ["ended by signal 2 (Interrupt)"]
    assert signal.getsignal(signal.SIGINT) is handler


def until(terminal: IO[bytes], end: bytes) -> bytes:
    seen = b""
    while not seen.endswith(end):
        seen += terminal.read(100)
    return seen


def test_a_terminal_shows_unfinished_lines_at_once_and_after_a_signal_is_left_on_a_new_one() -> None:
    rank = "import sys, time; sys.stderr.write('\\rhalf a bar'); sys.stderr.flush(); time.sleep(600)"
    program = (
        f"import sys; from paceline.launch import run; sys.exit(run(1, [sys.executable, '-c', {rank!r}]))"
    )
    mine, its = pty.openpty()
    with (
        os.fdopen(mine, "rb", buffering=0) as terminal,
        subprocess.Popen([sys.executable, "-c", program], stderr=its) as job,
    ):
        os.close(its)
        assert until(terminal, b"bar") == b"\rhalf a bar"
        job.send_signal(signal.SIGINT)
        assert until(terminal, b")\r\n") == b"\r\nended by signal 2 (Interrupt)\r\n"
        assert job.wait(280) == 130


@pytest.mark.parametrize(
    ("words", "ended"),
    [
        ([b"\rhalf", b" a bar"], True),
        ([b"a line\n", b"\rhalf a bar"], True),
        ([b"\rhalf a bar", b"\r\x1b[K"], False),
        ([b"\rhalf a bar\r\x1b", b"[K"], False),
        ([b"\rhalf a bar", b"\r          \r"], False),
        ([b"\rhalf a bar\r"], True),
        ([b"half a line", b" and its end\n"], False),
        ([], False),
    ],
)
def test_only_what_stands_on_a_terminals_line_is_ended(words: list[bytes], ended: bool) -> None:
    mine, its = pty.openpty()
    with os.fdopen(mine, "rb", buffering=0) as terminal, os.fdopen(its, "wb", buffering=0) as target:
        tty.setraw(its)
        stream = _Stream(target, target.fileno(), None)
        for word in words:
            stream.pass_on(word)
        stream.end_line()
        target.write(b".")
        assert until(terminal, b".") == b"".join(words) + (b"\n." if ended else b".")


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_streams_that_are_closed_do_no_harm(tmp_path: Path, closed: str) -> None:
    rank = "import os; os.write(1, b'said\\n'); os.write(2, b'warned\\n')"
    program = (
        "import os, sys; from pathlib import Path; from paceline.launch import run\n"
        "before = os.listdir('/proc/self/fd')\n"
        f"status = run(1, [sys.executable, '-c', {rank!r}])\n"
        "Path(sys.argv[1]).write_text(f'{status} {os.listdir(\"/proc/self/fd\") == before}')"
    )
    script = [
        "/bin/sh",
        "-c",
        f'exec "$@" {closed}',
        "sh",
        sys.executable,
        "-c",
        program,
        str(tmp_path / "told"),
    ]
    done = subprocess.run(script, capture_output=True, text=True, timeout=280)
    assert (tmp_path / "told").read_text() == "0 True"
    assert done.stdout == ("" if "1>" in closed else "said\n")
    assert done.stderr == ("" if "2>" in closed else "warned\n")


def test_lines_come_as_they_are_said_and_a_time_limit_ends_the_job() -> None:
    program = (
        "import sys, time; print('said at once', flush=True); sys.stderr.write('no end'); sys.stderr.flush()"
    )
    command = [sys.executable, "-c", program + "; time.sleep(600)"]
    for seconds in (2, 20, 200):  # a busy machine may not have started the rank by then
        seen: list[str] = []
        assert run(1, command, on_line=seen.append, time_limit=seconds) == 124
        said = sorted(filter(None, seen))  # Hydra ends the unfinished line
        if len(said) == 2:
            break
    assert said == ["no end", "said at once"]


def test_ranks_read_nothing_and_get_their_threads_and_variables() -> None:
    program = (
        "import os, sys; read = sys.stdin.read()\n"
        "sys.stdout.write(f\"{read!r} {os.environ['OMP_NUM_THREADS']} {os.environ['MINE']}\\n\")"  # in one piece
    )
    seen: list[str] = []
    command = [sys.executable, "-c", program]
    assert run(2, command, threads=3, environment={"MINE": "x"}, on_line=seen.append) == 0
    assert seen == ["'' 3 x"] * 2


def test_an_error_of_the_callers_ends_the_job() -> None:
    def refuse(line: str) -> None:
        pids.append(int(line))
        raise RuntimeError("not that line")

    pids: list[int] = []
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with pytest.raises(RuntimeError, match="not that line"):
        run(1, [sys.executable, "-c", program], on_line=refuse)
    assert not lives(pids[0])


def test_a_reader_that_goes_away_ends_the_job() -> None:
    program = (
        "import sys; from paceline.launch import run\n"
        "forever = [sys.executable, '-c', 'while True: print(1, flush=True)']\n"
        "sys.exit(run(1, forever, time_limit=280))"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        job.stdout.readline()
        job.stdout.close()
        assert job.wait(280) == 141
