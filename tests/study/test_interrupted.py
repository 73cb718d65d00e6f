"""A study that is interrupted at any point and started again has the same records as one that was not."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import paceline.names
import paceline.record.environment
from paceline.simulate.training import simulate
from paceline.study import run as _run
from paceline.study.cells import Cell
from paceline.study.file import Study, read
from paceline.study.folder import Folder
from paceline.study.run import CellLines, Ended, open_folder, run_missing
from paceline.training.job import Job
from paceline.training.rank import train
from tests.simulate.costs import COSTS
from tests.study.studies import SETTINGS, processes, records, rest, run_study, start_study, write

KILLED, STOPPED, DONE = 137, 130, 0
# Everything that changes what is on the disk, as Python tells of it before it is done.
CHANGES = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "shutil.rmtree")


class Silent(CellLines):
    def end(self, cell: str, outcome: str, left: float | None) -> None:
        assert "failed" not in outcome, outcome


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Of one real run and one that is simulated."""
    folder = tmp_path_factory.mktemp("plan")
    COSTS.save(folder / "costs.json")
    part = '[[matrix]]\nstrategy = "main-worker"\nranks = 2\nmachine = "MACHINE"\n'
    return read(write(folder, SETTINGS + part.replace("MACHINE", str(folder / "costs.json"))))


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what takes long and changes nothing: the state of the source, other packages' strategies."""
    monkeypatch.setattr(paceline.record.environment, "_source", lambda: None)
    monkeypatch.setattr(paceline.names, "_entry_points", lambda kind: {})


def cells(plan: Study) -> list[Cell]:
    return [
        next(cell for cell in plan.cells("mpi") if cell.config.strategy == "serial"),
        next(cell for cell in plan.cells("sim") if cell.config.strategy == "main-worker"),
    ]


def carry_out(folder: Path, plan: Study) -> None:
    """The study as the command has it, but with the runs in this process."""
    where = Folder(folder)

    def start(cell: Cell, name: str, tick: Callable[[], None]) -> Ended:
        job = Job(config=cell.config, runs=folder, run_name=name)
        if cell.options is None:
            train(job, None)
        else:
            simulate(job, cell.ranks, cell.options)
        return Ended(status=0)

    with where.lock():
        state = open_folder(where, plan, cells(plan))
        run_missing(where, state, start, Silent(sys.stderr, total=2, done=0))


def interrupt_study(folder: Path, plan: Study, at: int, how: int) -> int:
    """Carry the study out in a process that is killed, or gets Ctrl-C, just before its `at`-th change of the folder."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    count = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event in CHANGES and str(arguments[0]).startswith(str(folder)):
            reads = event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR)
            count += not reads
            if count == at and not reads:
                if how == KILLED:
                    os._exit(KILLED)
                raise KeyboardInterrupt

    sys.addaudithook(watch)
    try:
        carry_out(folder, plan)
    except KeyboardInterrupt:
        os._exit(STOPPED)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(DONE)


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("how", [KILLED, STOPPED], ids=["killed", "Ctrl-C"])
def test_at_every_change_of_the_disk(tmp_path: Path, plan: Study, how: int) -> None:
    wanted = {cell.key: 1 for cell in cells(plan)}
    for at in range(1, 1000, 1 if how == KILLED else 2):
        folder = tmp_path / str(at)
        if (ended := interrupt_study(folder, plan, at, how)) == DONE:
            break
        assert ended == how
        carry_out(folder, plan)
        assert records(folder) == wanted, f"interrupted at change {at}"
        assert rest(folder) == {".lock", "study.json"}, f"interrupted at change {at}"
    assert at > 40, "a study changes more than that"
    assert records(folder) == wanted


@pytest.mark.usefixtures("_quick")
def test_again_and_again(tmp_path: Path, plan: Study) -> None:
    folder = tmp_path / "runs"
    starts = 0
    while (ended := interrupt_study(folder, plan, 3 + 3 * starts, KILLED)) != DONE:
        assert ended == KILLED
        starts += 1
    assert starts > 5
    assert records(folder) == {cell.key: 1 for cell in cells(plan)}
    assert rest(folder) == {".lock", "study.json"}


RANKS = SETTINGS + '[[matrix]]\nstrategy = ["sync", "psgd"]\nranks = 2\n'


def when_written(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def test_the_command_at_any_moment(tmp_path: Path) -> None:
    path, runs = write(tmp_path, RANKS), tmp_path / "runs/s"
    moment = random.Random(5)
    for number in (signal.SIGINT, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        before = when_written(runs / ".running.json")  # one that was killed has left its own
        running = start_study(path, cwd=tmp_path)
        until = time.monotonic() + 300
        while (
            when_written(runs / ".running.json") == before
            and running.poll() is None
            and time.monotonic() < until
        ):
            time.sleep(0.01)
        time.sleep(moment.uniform(0, 1.2))
        running.send_signal(number)
        said = running.communicate(timeout=300)[1]
        if running.returncode == 0:
            break  # it was quicker
        assert running.returncode == (-number if number == signal.SIGKILL else 128 + number), said
        assert (number == signal.SIGKILL) or "continue with: paceline study" in said
    done = run_study(path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert records(runs) == {cell.key: 1 for cell in read(path).cells("mpi")}
    assert rest(runs) == {".lock", "study.json", "report.html", "report-files"}
    until = time.monotonic() + 280  # those of a study that was killed end by themselves
    while (left := processes(str(runs)) + processes("--runs=runs/s", tmp_path)) and time.monotonic() < until:
        time.sleep(0.05)
    assert left == []


def test_a_signal_between_two_instructions_of_waiting() -> None:
    """Popen's lock stays locked if a signal comes right after it was taken; a run can be stopped nevertheless."""
    running = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    running._waitpid_lock.acquire()  # type: ignore[attr-defined]
    _run._stop(running)
    assert running.returncode == -signal.SIGTERM


def test_a_rank_is_killed(tmp_path: Path) -> None:
    text = RANKS.replace("epochs = 1", "epochs = 100000").replace('["sync", "psgd"]', '"sync"')
    path, runs = write(tmp_path, text), tmp_path / "runs/s"
    running = start_study(path, "--only", "sync", cwd=tmp_path)
    until = time.monotonic() + 300
    ranks: list[int] = []
    while not ranks and time.monotonic() < until:
        if any(runs.glob("*-sync-*/epochs.jsonl")):
            ranks = processes("--expect-ranks=2", tmp_path)
        time.sleep(0.05)
    os.kill(ranks[-1], signal.SIGKILL)
    said = running.communicate(timeout=300)[1]
    assert running.returncode == 1, said
    assert re.search(r"sync on 2 ranks, seed 0( \*)?: failed: ", said)  # *: more ranks than cores
    assert "(exit status " in said
    [note] = (runs / "failed").iterdir()
    assert "Killed" in note.read_text()
    assert rest(runs) == {".lock", "study.json", "failed"}
