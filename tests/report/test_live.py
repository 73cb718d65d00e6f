"""`paceline watch`: the state of runs that are going on, and the page that follows them."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline import fit
from paceline.cli import main
from paceline.commands import watch
from paceline.config import Config
from paceline.record import STEP_COLUMNS
from paceline.report.live import Follower, LiveRun, LiveState, serve, state_of
from paceline.study.cells import Cell
from paceline.study.folder import Folder
from paceline.worker import worker
from tests.browser import Browser

SMALL: dict[str, Any] = {"strategy": "serial", "epochs": 2, "batch": 10, "quiet": True}


def train_run(runs: Path, name: str = "", **settings: Any) -> Path:
    fitted = fit(data="iris", runs=runs, **{"model": "mlp:8"} | SMALL | settings)
    assert fitted.run is not None
    return fitted.run.rename(runs / name) if name else fitted.run


def make_unfinished(folder: Path, *, process: int, waits: tuple[float, ...] = (0.0, 0.5)) -> None:
    """Turn a complete run into one that this or another process is still writing, half a line at a time."""
    (folder / "summary.json").unlink()
    (folder / "running").write_text(f"process {process} on {os.uname().nodename} since today\n")
    first, _ = (folder / "epochs.jsonl").read_text().splitlines()
    (folder / "epochs.jsonl").write_text(f'{first}\n{{"epoch": 1, "lo')
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "ranks": len(waits)}))
    (folder / "steps").mkdir()
    for rank, part in enumerate(waits):
        rows = np.zeros((3, len(STEP_COLUMNS)))
        rows[:, STEP_COLUMNS.index("compute")], rows[:, STEP_COLUMNS.index("wait")] = 1 - part, part
        (folder / f"steps/rank-{rank}.rows").write_bytes(rows.astype("<f8").tobytes() + b"half")


def gone() -> int:
    """The number of a process that does not exist."""
    return int(Path("/proc/sys/kernel/pid_max").read_text()) + 1


def test_a_run_that_goes_on(tmp_path: Path) -> None:
    make_unfinished(train_run(tmp_path, "a"), process=os.getpid())
    make_unfinished(train_run(tmp_path, "b"), process=gone())
    train_run(tmp_path, "c")
    state = state_of([tmp_path])
    assert [(run.name, run.state) for run in state.runs] == [
        ("a", "running"),
        ("c", "complete"),
        ("b", "stopped"),
    ]
    assert state.busy
    going = state.runs[0]
    assert (going.epoch, going.epochs) == (1, 2)
    assert going.loss is not None
    assert going.waiting == {0: 0.0, 1: 0.5}
    assert going.left is not None
    assert going.left > 0
    assert "accuracy " in going.quality
    assert state_of([tmp_path / "a"]).runs == (going,)


def test_waiting_in_an_exchange_that_all_ranks_take_part_in(tmp_path: Path) -> None:
    folder = train_run(tmp_path, "a", strategy="sync", ranks=1)
    make_unfinished(folder, process=os.getpid(), waits=(0.0, 0.0))
    exchange, step = STEP_COLUMNS.index("exchange"), STEP_COLUMNS.index("step")
    for rank, (steps, spent) in enumerate((([0, 1, 2], [1.0, 1.0, 9.0]), ([0, 1], [3.0, 1.0]))):
        rows = np.zeros((len(steps), len(STEP_COLUMNS)))
        rows[:, step], rows[:, exchange] = steps, spent
        (folder / f"steps/rank-{rank}.rows").write_bytes(rows.astype("<f8").tobytes())
    [run] = state_of([tmp_path]).runs
    assert run.waiting == {0: 0.0, 1: 0.5}  # of steps 0 and 1, which both have taken


def test_what_is_damaged_is_not_there_yet(tmp_path: Path) -> None:
    folder = train_run(tmp_path, "a")
    make_unfinished(folder, process=os.getpid())
    for file, content in (("epochs.jsonl", b"\xff\xfe\n[1]\n"), ("steps/rank-1.rows", b"12")):
        (folder / file).write_bytes(content)
    [run] = state_of([tmp_path]).runs
    assert (run.epoch, run.loss, run.waiting) == (0, None, {0: 0.0})
    (folder / "config.json").write_text("{")
    assert state_of([tmp_path]).runs == ()


@pytest.mark.timeout(60)
def test_a_pipe_instead_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    folder = train_run(tmp_path, "a")
    make_unfinished(folder, process=os.getpid())
    for file in ("epochs.jsonl", "steps/rank-1.rows"):
        (folder / file).unlink()
        os.mkfifo(folder / file)
    [run] = state_of([tmp_path]).runs
    assert (run.epoch, run.waiting) == (0, {0: 0.0})


def test_a_run_can_be_watched_while_it_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "PUBLISH", -1.0)
    seen: list[LiveRun] = []

    def look(outputs: Any, labels: Any) -> float:
        seen.extend(state_of([tmp_path]).runs)
        return 0.0

    train_run(tmp_path, epochs=3, metrics={"look": look})
    assert [(run.state, run.epoch) for run in seen[:3]] == [("running", 0), ("running", 1), ("running", 2)]
    assert seen[0].waiting == {}
    assert seen[2].waiting == {0: 0.0}
    assert seen[2].quality.endswith("look 0")
    [run] = state_of([tmp_path]).runs
    assert (run.state, run.epoch) == ("complete", 3)


def test_what_a_study_does_next(tmp_path: Path) -> None:
    folder, plan = Folder(tmp_path), {"done": 1, "total": 3, "then": ["sync on 2 ranks, seed 0"]}
    with folder.lock():
        folder.begin(Cell(config=Config(), ranks=2), plan)
        assert state_of([tmp_path]).plan == "1 of 3 cells done; next: sync on 2 ranks, seed 0"
        folder.begin(Cell(config=Config(), ranks=2), {**plan, "then": ["sync on 9 ranks, seed 0 *"]})
        assert state_of([tmp_path]).plan.endswith("; next: sync on 9 ranks, seed 0 (more ranks than cores)")
        folder.begin(Cell(config=Config(), ranks=2), {**plan, "then": []})
        assert state_of([tmp_path]).plan == "1 of 3 cells done; this is the last one"
        folder.begin(Cell(config=Config(), ranks=2), {**plan, "then": 3})
        assert state_of([tmp_path]).plan == ""
        folder.begin(Cell(config=Config(), ranks=2), plan)
    (tmp_path / ".lock").write_text(f"{gone()}\n")  # it was killed
    assert not state_of([tmp_path]).busy


def test_a_search_says_what_it_looks_for(tmp_path: Path) -> None:
    about = {"format": 1, "target": "accuracy>=0.9", "search": {"draws": None}}
    with Folder(tmp_path).lock():
        (tmp_path / "study.json").write_text(json.dumps(about))
        assert state_of([tmp_path]).plan == "a search for accuracy >= 90.00 % is going on"


def test_studies_in_a_folder_are_followed_while_they_go_on(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "study.json").write_text("{}")
        train_run(tmp_path / name, f"of-{name}")
    os.utime(tmp_path / "second", (1, 1))
    assert [run.name for run in state_of([tmp_path]).runs] == ["of-first"]  # the latest
    with Folder(tmp_path / "second").lock():
        assert [run.name for run in state_of([tmp_path]).runs] == ["of-second"]
    (tmp_path / "second/.lock").write_text(f"{gone()}\n")
    train_run(tmp_path, "own")
    assert [run.name for run in state_of([tmp_path]).runs] == ["own"]
    with Folder(tmp_path / "second").lock():  # what goes on comes first
        assert [run.name for run in state_of([tmp_path]).runs] == ["of-second", "own"]


# ---- the page


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    server, address = serve([tmp_path])
    yield address
    server.shutdown()
    server.server_close()


def get(address: str, **headers: str) -> tuple[str, Any]:
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=300) as answer:
        return answer.read().decode(), answer.headers


def test_the_page_follows_the_runs(tmp_path: Path, address: str) -> None:
    assert address.startswith("http://127.0.0.1:")
    assert "no runs yet" in get(address)[0]
    none = get(f"{address}report.html")[0]
    assert "No run is complete yet" in none
    assert '<meta name="color-scheme" content="light dark">' in none  # no white box on a dark page
    train_run(tmp_path, "<b>mine")
    live, headers = get(f"{address}live")
    assert "&lt;b&gt;mine" in live
    assert "<b>" not in live
    first = headers["X-Report"]
    report, _ = get(f"{address}report.html")
    assert "serial" in report
    assert get(f"{address}live")[1]["X-Report"] == first
    page, headers = get(address)
    assert f'let shown = "{first}"' in page
    os.utime(
        tmp_path / "<b>mine" / "summary.json", (1, 1)
    )  # every page hears of it, whoever has asked before
    get(f"{address}report.html")
    assert get(f"{address}live")[1]["X-Report"] != first
    assert "&lt;b&gt;mine" in page
    assert "://" not in page  # nothing is loaded from elsewhere, and nothing may be
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")


@pytest.mark.parametrize(
    ("path", "host", "status"),
    [
        ("config.json", "", 404),
        ("../../etc/passwd", "", 404),
        ("", "example.org", 403),
        ("live", "example.org:80", 403),
    ],
)
def test_nothing_else_is_served(address: str, path: str, host: str, status: int) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(address + path, **({"Host": host} if host else {}))
    assert refused.value.code == status
    refused.value.close()


def test_the_report_rests_while_runs_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(Follower, "_write", lambda self: made.append("") or f"report {len(made)}")
    train_run(tmp_path, "first")
    make_unfinished(train_run(tmp_path, "going-on"), process=os.getpid())
    follower = Follower([tmp_path])
    assert follower.report() == "report 1"
    version, follower._due = follower.version(), math.inf
    train_run(tmp_path, "second")
    assert (follower.report(), follower.version()) == ("report 1", version)
    shutil.rmtree(tmp_path / "going-on")
    assert follower.version() != version
    assert follower.report() == "report 2"


def test_a_folder_that_was_removed(tmp_path: Path, address: str) -> None:
    tmp_path.rmdir()
    assert "no such run or folder of runs" in get(address)[0]


@pytest.mark.requires("chromium")
def test_a_page_keeps_the_last_report_when_the_server_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_run(tmp_path, "first")
    server, address = serve([tmp_path])
    browser = Browser()
    try:
        browser.open(address)
        frame = "document.getElementById('report').contentDocument"
        assert "serial" in browser.value(f"{frame}.body.textContent")
        assert browser.value("getComputedStyle(document.getElementById('ended')).display") == "none"

        asked = threading.Event()

        def end(self: Follower) -> str:
            asked.set()
            raise ConnectionAbortedError  # this request ends without an answer

        monkeypatch.setattr(Follower, "_write", end)
        train_run(tmp_path, "second")
        assert asked.wait(60)
        server.shutdown()
        server.server_close()
        ended = "new Promise(done => setInterval(() => document.body.className && done(document.body.className), 50))"
        assert browser.value(ended) == "ended"
        assert "serial" in browser.value(f"{frame}.body.textContent")
        assert browser.value("getComputedStyle(document.getElementById('ended')).display") == "block"
    finally:
        browser.close()
        server.shutdown()
        server.server_close()


# ---- the command


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []

    def wait(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 1:
            train_run(tmp_path, "late")
        elif len(looks) == 3:
            raise KeyboardInterrupt

    train_run(tmp_path, "early")
    monkeypatch.setattr(watch, "time", SimpleNamespace(sleep=wait))
    assert main(["watch", str(tmp_path)]) == 0
    page, *lines = capsys.readouterr().out.splitlines()
    assert page.startswith("page: http://127.0.0.1:")
    assert [line.partition(":")[0] for line in lines] == ["early", "late"]
    assert "complete; epoch 2 of 2" in lines[0]


def test_the_terminal_says_that_there_are_no_runs_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.console import Console

    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watch, "time", SimpleNamespace(sleep=stop))
    assert main(["watch", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["no runs yet"]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(watch._table(state_of([tmp_path]), 80))
    assert console.export_text() == "no runs yet\n"


def test_the_page_of_the_working_directory_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert f"<h1>{tmp_path}</h1>" in Follower([Path()]).page()
    assert "<h1>runs</h1>" in Follower([Path("runs")]).page()


def test_a_port_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server, address = serve([tmp_path])
    try:
        port = address.rstrip("/").rpartition(":")[2]
        assert main(["watch", str(tmp_path), "--port", port]) == 2
    finally:
        server.shutdown()
        server.server_close()
    said = "address already in use; choose another --port, or none for a free one"
    assert capsys.readouterr().err == f"paceline watch: cannot serve on port {port}: {said}\n"


def test_what_a_study_does_next_is_not_broken_at_the_width_of_the_table(tmp_path: Path) -> None:
    from rich.console import Console

    plan = "56 of 135 cells done; next: sync:allreduce=shared-memory on 2 ranks, seed 1"
    run = LiveRun(name="serial", state="complete", epoch=1, epochs=1)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(watch._table(LiveState(runs=(run,), plan=plan), 80))
    assert console.export_text().splitlines()[0] == plan


def test_ctrl_c_while_the_report_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    def leave(status: int) -> None:
        raise SystemExit(status)

    train_run(tmp_path, "early")
    monkeypatch.setattr(watch, "time", SimpleNamespace(sleep=stop))
    monkeypatch.setattr(Follower, "writing", True)
    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(SystemExit) as ended:
        main(["watch", str(tmp_path)])
    assert ended.value.code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "no such run or folder of runs: nothing"),
        ([".", "--port", "99999"], "port must be from 0 to 65535; got 99999"),
    ],
)
def test_bad_input(
    words: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["watch", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_the_table_of_the_terminal(tmp_path: Path) -> None:
    from rich.console import Console

    make_unfinished(train_run(tmp_path, "[bold]a"), process=os.getpid())
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(watch._table(state_of([tmp_path]), 200))
    text = console.export_text()
    assert "[bold]a" in text
    assert "waiting, by rank" in text
    assert "1: 50 %" in text


def test_settings_are_shown_where_runs_differ_in_them(tmp_path: Path) -> None:
    run = LiveRun(name="a", state="complete", epoch=1, epochs=1, settings="batch 64, lr 2")
    assert "settings" not in LiveState(runs=(run, replace(run, name="b"))).headings
    assert "settings" in LiveState(runs=(run, replace(run, name="b", settings="batch 64, lr 4"))).headings
    train_run(tmp_path, "a")
    [found] = state_of([tmp_path]).runs
    assert found.settings == "batch 10, lr 2"


def test_runs_of_several_models_are_told_apart(tmp_path: Path) -> None:
    for k, model in enumerate(("mlp:8", "mlp:4")):
        train_run(tmp_path, f"2026010{k}-000000-serial-n1-s0-0123abcd", model=model)
    runs = state_of([tmp_path]).runs
    assert [(run.cells()["run"], run.settings.partition(", ")[0]) for run in runs] == [
        ("serial-n1-s0", "mlp:4"),
        ("serial-n1-s0", "mlp:8"),
    ]
    live = Follower([tmp_path]).live()
    assert '<td class="run" title="20260100-000000-serial-n1-s0-0123abcd">serial-n1-s0</td>' in live
    assert "<th>settings</th>" in live


def test_the_table_of_a_narrow_terminal(tmp_path: Path) -> None:
    from rich.console import Console

    runs = tuple(
        LiveRun(
            name=f"20260101-00000{number % 10}-sync-n8-s{number}", state="complete", epoch=1, epochs=1,
            quality="accuracy 90.00 %, validation loss 0.3", waiting={rank: rank / 100 for rank in range(8)},
        )
        for number in range(30)
    )  # fmt: skip
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(watch._table(LiveState(runs=runs), 80))
    text = console.export_text()
    assert "0 % to 7 %" in text
    assert "22 earlier runs" in text
    assert "20260101" not in text
    assert text.count("\n") == 1 + 8 + 1


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 132, 200])
def test_each_run_takes_one_line(width: int) -> None:
    from rich.console import Console

    names = ["parameter-server-masters-2-rule-gap-aware-n16-s0", "sync-n4-s1"]
    runs = tuple(
        LiveRun(
            name=f"20260101-000000-{name}-0123abcd", state="complete", epoch=12, epochs=20, loss=0.01234,
            settings=f"batch 64, lr {lr}, 1 thread", quality="accuracy 49.44 %, validation loss 0.3",
            speed=123456.0, waiting={rank: rank / 100 for rank in range(4)}, left=61.0,
        )
        for lr, name in enumerate(names)
    )  # fmt: skip
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(watch._table(LiveState(runs=runs), width))
    head, *lines = console.export_text().splitlines()
    assert len(lines) == 2
    assert max(map(len, (head, *lines))) <= width
    assert all(line.startswith(name[:4]) for line, name in zip(lines, names, strict=True))
    if width >= 80:  # whole words
        assert all("complete" in line and "12 of 20" in line and "accuracy 49.44 %" in line for line in lines)
        assert "n16-s0" in lines[0]
    assert ("loss" in head) == (width >= 132)
    if width == 200:
        assert "0: 0 %, 1: 1 %, 2: 2 %, 3: 3 %" in lines[0]


def test_many_ranks_are_shown_by_their_extremes(tmp_path: Path) -> None:
    make_unfinished(train_run(tmp_path, "a"), process=os.getpid(), waits=(0.1, 0.3, 0.05, 0.2, 0.1))
    live = Follower([tmp_path]).live()
    assert "5 % (rank 2) to 30 % (rank 1)" in live
    assert "3: 20 %" not in live
    make_unfinished(train_run(tmp_path, "b"), process=os.getpid(), waits=(0.1, 0.3))
    assert "0: 10 %, 1: 30 %" in Follower([tmp_path]).live()
