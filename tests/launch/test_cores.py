"""Cores are reserved for one job at a time, and a rank goes to its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.launch import machine_cores, run, take_cores, usable_cores
from paceline.launch import resources as _resources
from paceline.launch.resources import CORES_VARIABLE, core_variables, reserve_cores
from paceline.launch.world import World

STARTS_RANKS = True

HOLDER = """
import os, sys
from paceline.launch import resources as _resources
mine = [int(core) for core in sys.argv[1:]]
os.sched_getaffinity = lambda _: mine
_resources.usable_cores = lambda: len(mine)
_resources.count_other_threads = lambda: 0
with _resources.reserve_cores(len(mine)) as cores:
    print(cores, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Six cores of a machine on which nothing runs, numbered as no real one is: nobody else holds them."""
    cores = [100_000 + 1000 * (os.getpid() % 10_000) + place for place in range(6)]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(cores))
    monkeypatch.setattr(_resources, "usable_cores", lambda: len(cores))
    monkeypatch.setattr(_resources, "count_other_threads", lambda: 0)
    return cores


def test_two_jobs_do_not_share_cores(idle: list[int]) -> None:
    with reserve_cores(4) as first, reserve_cores(2) as second, reserve_cores(1) as third:
        assert first == idle[:4]
        assert second == idle[4:]
        assert third is None
    with reserve_cores(6) as all_again:
        assert all_again == idle


def test_a_job_that_does_not_get_all_its_cores_holds_none(idle: list[int]) -> None:
    with reserve_cores(4), reserve_cores(3) as too_many, reserve_cores(2) as the_rest:
        assert too_many is None
        assert the_rest == idle[4:]


def test_a_busy_machine_has_no_cores_to_reserve(idle: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_resources, "count_other_threads", lambda: 3)
    with reserve_cores(4) as too_many, reserve_cores(3) as enough:
        assert too_many is None
        assert enough == idle[:3]


def test_a_container_that_grants_fewer_cores_is_believed(
    idle: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_resources, "usable_cores", lambda: 2)
    with reserve_cores(3) as cores:
        assert cores is None


def test_one_thread_of_each_core_comes_first(idle: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_resources, "_place_among_siblings", lambda core: core % 2)
    with reserve_cores(4) as cores:
        assert cores == sorted([*idle[0::2], idle[1]])


def test_another_process_holds_its_cores_until_it_ends_however_that_is(idle: list[int]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, *map(str, idle[:4])], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:  # fmt: skip
        assert holder.stdout is not None
        assert holder.stdout.readline() == f"{idle[:4]}\n"
        with reserve_cores(3) as too_many, reserve_cores(2) as the_rest:
            assert too_many is None
            assert the_rest == idle[4:]
        holder.kill()
    with reserve_cores(6) as cores:
        assert cores == idle


def test_no_file_of_anybodys_is_touched_or_left(
    idle: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else has put links to the user's files where a folder of locks would be."""
    precious = tmp_path / "precious"
    precious.write_text("years of work")
    shared = tmp_path / "shared"
    folder = shared / f"paceline-cores-{os.getuid()}"
    folder.mkdir(parents=True)
    for core in idle:
        (folder / str(core)).symlink_to(precious)
    before = sorted(shared.rglob("*"))
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    with reserve_cores(6) as cores:
        assert cores == idle
    assert precious.read_text() == "years of work"
    assert sorted(shared.rglob("*")) == before


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> dict[int, set[int]]:
    """What this process binds itself to, without its being bound."""
    taken: dict[int, set[int]] = {}
    monkeypatch.setattr(os, "sched_setaffinity", lambda who, cores: taken.update({who: set(cores)}))
    return taken


def a_rank(monkeypatch: pytest.MonkeyPatch, local_rank: int, local_size: int) -> None:
    here = World(rank=7, size=9, local_rank=local_rank, local_size=local_size, launcher="mpiexec of MPICH")
    monkeypatch.setattr(_resources, "world", lambda: here)


@pytest.mark.parametrize(("ranks", "mine"), [(2, {3, 4, 5}), (3, {2, 3}), (6, {1})])
def test_a_rank_takes_its_share(
    bound: dict[int, set[int]], monkeypatch: pytest.MonkeyPatch, ranks: int, mine: set[int]
) -> None:
    a_rank(monkeypatch, 1, ranks)
    [(name, value)] = core_variables(list(range(6))).items()
    monkeypatch.setenv(name, value)
    started = threading.Event()
    thread = threading.Thread(target=started.wait)  # as a program may have, before its session begins
    thread.start()
    take_cores()
    started.set()
    assert bound[os.getpid()] == bound[thread.native_id] == mine
    assert machine_cores() == usable_cores()


def test_a_rank_for_which_nothing_was_reserved_stays_where_it_is(
    bound: dict[int, set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    a_rank(monkeypatch, 1, 2)
    monkeypatch.delenv(CORES_VARIABLE, raising=False)
    take_cores()
    monkeypatch.setenv(CORES_VARIABLE, "4:0")  # fewer cores than ranks
    take_cores()
    monkeypatch.setenv(CORES_VARIABLE, "4:0,1")
    monkeypatch.setattr(_resources, "world", lambda: None)  # no rank
    take_cores()
    assert bound == {}


def test_in_a_rank_that_its_launcher_has_bound_the_machines_cores_are_known() -> None:
    """To the records and to the doctor, too; ranks that a shell script starts are none the less the launcher's."""
    program = (
        "import os; from paceline import doctor as _facts; from paceline.launch import machine_cores\n"
        "from paceline.record.environment import environment\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "facts, told = _facts._machine_facts(), environment(threads=1)\n"
        "print(machine_cores(), facts.usable, facts.affinity, told['cores'], told['bound'])"
    )
    script = ["/bin/sh", "-c", '"$@"; exit 0', "sh", sys.executable, "-c", program]
    cores, allowed = usable_cores(), len(os.sched_getaffinity(0))
    said: list[str] = []
    assert run(2, script, on_line=said.append) == 0
    assert said == [f"{cores} {cores} {allowed} {cores} {allowed > 1}"] * 2


def test_threads_that_run_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = iter(["0.1 0.2 0.3 5/99 7", "0.1 0.2 0.3 3/99 7", "0.1 0.2 0.3 4/99 7"])
    monkeypatch.setattr(_resources, "Path", lambda _: SimpleNamespace(read_text=lambda: next(said)))
    assert _resources.count_other_threads(samples=3, apart=0) == 2
    monkeypatch.setattr(_resources, "Path", lambda _: tmp_path / "nowhere")
    assert _resources.count_other_threads() == 0
