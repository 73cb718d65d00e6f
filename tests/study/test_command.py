"""`paceline study`, as a user types it."""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
from pathlib import Path

import pytest

from paceline import fit
from paceline.cli import main
from paceline.compare.rows import rows_of
from paceline.config import Config
from paceline.errors import UsageError
from paceline.record import find_runs
from paceline.study.cells import Cell
from paceline.study.file import read
from paceline.study.folder import Folder, context_of
from paceline.study.run import Trains, command, explain, open_folder
from tests.simulate.costs import COSTS
from tests.study.studies import PART, SETTINGS, nobody, records, rest, run_study, write


def test_runs_what_is_missing_and_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    COSTS.save(tmp_path / "costs.json")
    head = 'title = "tiny"\nquestion = "does it?"\ntarget_accuracy = 0.5\n'
    text = head + SETTINGS + '[[matrix]]\nstrategy = "sync"\nranks = [1, 2]\n'
    path, runs = write(tmp_path, text), tmp_path / "runs/s"

    done = run_study(path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.partition(":")[0].rstrip(" *") for line in done.stderr.splitlines()] == [
        "1/3  serial, seed 0", "2/3  sync on 1 rank, seed 0", "3/3  sync on 2 ranks, seed 0",
    ]  # fmt: skip
    assert "report: runs/s/report.html" in done.stdout
    assert (runs / "report.html").stat().st_size > 1000
    first = records(runs)
    assert first == {cell.key: 1 for cell in read(path).cells("mpi")}
    context = context_of([runs])
    assert (context.title, context.question, str(context.target)) == (
        "tiny",
        "does it?",
        "accuracy >= 50.00 %",
    )

    # The file is changed: only what is new is run, and what is no longer named stays, out of the report.
    text = (
        text.replace("ranks = [1, 2]", "ranks = 1\nseed = [0, 1]") + '[simulation]\nmachine = "costs.json"\n'
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    assert main(["study", str(write(tmp_path, text)), "-o", "page.html"]) == 0
    again = capsys.readouterr()
    assert [line.partition(":")[0] for line in again.err.splitlines()] == [
        "3/4  serial, seed 1", "4/4  sync on 1 rank, seed 1",
    ]  # fmt: skip
    assert len(records(runs)) == 5
    assert first.items() <= records(runs).items()
    listed = [line.split()[:2] for line in again.out.splitlines() if line.split()[:1] == ["sync"]]
    assert listed == [["sync", "1"]]
    assert (tmp_path / "page.html").exists()

    # The same matrix simulated is other cells of the same folder.
    monkeypatch.setattr("paceline.commands.report.report_on", nobody)
    assert main(["study", str(path), "--on", "sim", "--only", "sync*seed 1"]) == 0
    assert len(records(runs)) == 6
    assert rest(runs) == {".lock", "study.json", "report.html", "report-files"}
    capsys.readouterr()
    assert main(["study", str(path)]) == 0
    assert capsys.readouterr().err == ""
    assert len(records(runs)) == 6


def test_a_record_made_by_hand_counts(tmp_path: Path) -> None:
    [serial, sync] = read(path := write(tmp_path, SETTINGS + PART)).cells("mpi")
    folder = Folder(tmp_path / "runs/s")
    settings = {"epochs": 1, "batch": 60, "threads": 1, "runs": folder.path, "quiet": True}
    fit("mlp:2", "iris", strategy="serial", **settings)
    fit("mlp:2", "iris", strategy="serial", seed=1, **settings)
    assert serial.key in folder.find_complete()
    assert sync.key not in folder.find_complete()
    [old] = folder.find_complete()[serial.key]
    told = json.loads((old.folder / "config.json").read_text())
    del told["asked"]  # as in old records
    (old.folder / "config.json").write_text(json.dumps(told))
    assert serial.key in folder.find_complete()
    assert (
        read(write(tmp_path, path.read_text() + f"lr = {told['lr']}")).cells("mpi")[0].key
        in folder.find_complete()
    )


def test_a_cell_that_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.commands.report.report_on", nobody)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    code = (
        "from pathlib import Path\nfrom paceline.strategies.serial import Serial\n\ndef tries(me):\n"
        "    if not Path(__file__).with_name('luck').exists():\n        raise RuntimeError('no luck')\n"
        "    Serial().train(me)\n"
    )
    (tmp_path / "lucky.py").write_text(code)
    path = write(tmp_path, SETTINGS + '[[matrix]]\nstrategy = ["lucky:tries", "serial"]\nranks = 1\n')
    runs = tmp_path / "kept"
    words = ["study", str(path), "--runs", str(runs)]

    assert main(words) == 1  # the module beside the file was found
    said = capsys.readouterr().err
    assert "lucky:tries on 1 rank, seed 0: failed: RuntimeError: no luck (exit status 1)" in said
    assert "1 cell failed" in said
    assert len(records(runs)) == 1
    assert rest(runs) == {".lock", "study.json", "failed"}
    [failed] = context_of([runs]).failed
    assert (failed.why, failed.status) == ("RuntimeError: no luck (exit status 1)", 1)
    assert (failed.settings["strategy"], failed.settings["ranks"]) == ("lucky:tries", 1)
    assert any("RuntimeError" in line for line in json.loads(failed.file.read_text())["stderr"])

    # It is not tried again unasked. Mended and asked for, it is a record like others, and its note is gone.
    (tmp_path / "luck").touch()
    assert main(words) == 1
    assert len(records(runs)) == 1
    assert main([*words, "--retry-failed"]) == 0, capsys.readouterr().err
    assert len(records(runs)) == 2
    assert context_of([runs]).failed == ()

    # Edited code is another cell, which is run without being asked to try again.
    (tmp_path / "lucky.py").write_text(f"{code}# edited\n")
    assert main(words) == 0, capsys.readouterr().err
    assert len(records(runs)) == 3


def test_a_note_of_a_cell_that_nobody_names_is_forgotten(tmp_path: Path) -> None:
    made = read(write(tmp_path, SETTINGS + PART))
    folder = Folder(tmp_path / "runs")
    named = made.cells("sim")[0]
    with folder.lock():
        folder.fail(Cell(config=Config(seed=9), ranks=3), "why not", 1, ["said"])
        folder.fail(named, "why not", 1, ["said"])
        assert len(folder.find_failures()) == 2
        open_folder(folder, made, made.cells("mpi"))
    assert set(folder.find_failures()) == {named.key}


def test_a_cell_that_does_not_end(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\n\ndef sleeps(me):\n    time.sleep(600)\n")
    folder = Folder(tmp_path)
    cell = Cell(config=Config(data="iris", model="mlp:2", batch=10, strategy="slow:sleeps"), ranks=1)
    with folder.lock() as lock:
        trains = Trains(runs=tmp_path, lock=lock, modules=tmp_path, timeout=0.5)
        ended = trains(cell, "a", nobody)
    assert ended.status is None
    assert explain(ended, program=False) == "it exceeded the study's timeout of 0.5 s"


def test_two_studies_in_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, folder = write(tmp_path, SETTINGS + PART), Folder(tmp_path / "runs")
    with folder.lock():
        assert main(["study", str(path), "--runs", str(folder.path)]) == 2
    assert capsys.readouterr().err == (
        f"paceline study: another run of tune or study (process {os.getpid()}) is using {folder.path}\n"
    )
    with folder.lock():
        pass  # and it is free again


def test_a_full_disk_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path, folder = write(tmp_path, SETTINGS + PART), tmp_path / "runs"
    monkeypatch.setattr(os, "pwrite", refuse)
    assert main(["study", str(path), "--runs", str(folder)]) == 2
    assert (
        capsys.readouterr().err == f"paceline study: cannot write runs to {folder}: no space left on device\n"
    )


def test_only_and_dry_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    part = '[[matrix]]\nstrategy = ["sync", "main-worker"]\nranks = [2, 40]\nbatch = [40, 50]\n'
    path = str(write(tmp_path, SETTINGS + part))
    assert main(["study", path, "--dry-run", "--only", "sync*; batch 40"]) == 0
    assert capsys.readouterr().out == (
        "missing  sync on 2 ranks, seed 0; batch 40\n"
        "missing  sync on 40 ranks, seed 0; batch 40 *\n"
        "2 cells: 0 done, 0 failed, 2 missing, time unknown\n* more ranks than cores\n"
    )
    assert main(["study", path, "--only", "hogwild"]) == 2
    assert "no cell of" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [tmp_path / "s.toml"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--hosts", "a;b"), "hosts must look like a:8,b:8"),
        (("--hosts", "a:1,b:1", "--dry-run"), "3 ranks do not fit on the hosts, which take 2"),
        (("--hosts", "a:2", "--on", "sim"), "simulated ranks are all in this process; leave out --hosts"),
    ],
)
def test_hosts_that_do_not_suit_the_study_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...], reason: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = write(tmp_path, SETTINGS + '[[matrix]]\nstrategy = "sync"\nranks = [2, 3]\n')
    assert main(["study", str(path), *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"paceline study: {reason}")
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == [path]


def test_ranks_of_a_study_are_started_on_its_hosts() -> None:
    hosts = "a:8,b:8"
    real = Cell(config=Config(data="iris", strategy="sync"), ranks=12)
    assert "--hosts=a:8,b:8" in command(real, Path("runs"), "x", hosts)
    serial = Cell(config=Config(data="iris", strategy="serial"), ranks=1)
    assert not any("hosts" in word for word in command(serial, Path("runs"), "x", hosts))


def test_places_that_cannot_be_written_are_refused_before_anything_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(Trains, "__call__", nobody)
    path = str(write(tmp_path, SETTINGS + PART))
    for name in ("a/report.html", "b/study.json", "c/.running.json"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "d").mkdir()
    (tmp_path / "d/failed").touch()
    formats = "its name must end with one of .html, .md, .pdf"
    before = sorted(tmp_path.rglob("*"))
    for words, said in {
        "-o x.txt": f"unknown format of x.txt; {formats}",
        "-o runs/s/x.txt": f"unknown format of runs/s/x.txt; {formats}",
        "-o /nope/x.html": "cannot write /nope/x.html: there is no folder /nope",
        "--runs a": "cannot write a/report.html: it is a folder",
        "--runs b": "cannot write b/study.json: it is a folder",
        "--runs c": "cannot write c/.running.json: it is a folder",
        "--runs d": "cannot write into d/failed: it is not a folder",
        "--runs s.toml": "cannot write runs to s.toml: s.toml is not a folder",
        "--runs s.toml/x": "cannot write runs to s.toml/x: s.toml is not a folder",
    }.items():
        for more in ([], ["--dry-run"]):
            assert main(["study", path, *words.split(), *more]) == 2
            assert capsys.readouterr() == ("", f"paceline study: {said}\n")
    assert sorted(tmp_path.rglob("*")) == before
    # The study's own folder need not be there yet.
    assert main(["study", path, "--dry-run", "-o", "runs/s/page.html"]) == 0


def test_a_damaged_record_does_not_count_and_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    text = SETTINGS + '[[matrix]]\nstrategy = "serial"\nthreads = 1\n'
    path, runs = str(write(tmp_path, text)), tmp_path / "runs/s"
    fitted = fit("mlp:2", "iris", strategy="serial", epochs=1, batch=60, threads=1, runs=runs, quiet=True)
    assert fitted.run is not None
    steps = fitted.run / "steps.npz"
    warned: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.getLogger("paceline.record.reading"), "handle", warned.append)

    def listed() -> str:
        assert main(["study", path, "--dry-run"]) == 0
        return capsys.readouterr().out.split()[0]

    assert (listed(), warned) == ("done", [])
    steps.write_bytes(steps.read_bytes()[: steps.stat().st_size // 2])
    assert (listed(), len(warned)) == ("missing", 1)
    assert fitted.run.name in warned.pop().getMessage()
    steps.unlink()
    assert (listed(), len(warned)) == ("missing", 1)
    warned.clear()
    left = sorted(file.name for file in fitted.run.iterdir())

    # It is run anew; what is damaged stays where it is, and out of the report.
    reported: list[str] = []
    monkeypatch.setattr(
        "paceline.commands.report.report_on", lambda runs, outs: reported.extend(map(str, runs))
    )
    assert main(["study", path]) == 0
    assert len(warned) == 1  # it is said once
    [new] = (folder for folder in runs.glob("2*") if folder != fitted.run)
    assert reported == [str(new.relative_to(tmp_path))]
    assert sorted(file.name for file in fitted.run.iterdir()) == left


def test_what_was_being_written_is_tidied(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    (tmp_path / "report-figures").mkdir()
    for name in (
        ".report.md.x1",
        ".report.pdf.x1",
        ".report.html.x1",
        "report-figures/.a.svg.x1",
        "report-figures/.l.json.x1",
    ):
        (tmp_path / name).touch()
    for name in ("report.md", ".mine", "report-figures/a.svg"):
        (tmp_path / name).touch()
    folder.tidy()
    left = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*")}
    assert left == {"report.md", ".mine", "report-figures", "report-figures/a.svg"}


@pytest.mark.parametrize("name", ["..", ".", "../other", "failed", "mine", 5, None])
def test_a_damaged_name_of_the_current_run_removes_nothing(tmp_path: Path, name: object) -> None:
    runs = tmp_path / "studies" / "runs"
    for path in (runs / "failed", runs / "mine", runs.parent / "other"):
        path.mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    (runs / ".running.json").write_text(json.dumps({"run": name}))
    Folder(runs).settle()
    assert sorted(tmp_path.rglob("*")) == before


def test_the_lock_is_neither_a_link_nor_a_pipe(tmp_path: Path) -> None:
    precious, folder = tmp_path / "precious", Folder(tmp_path / "runs")
    precious.write_text("text")
    folder.path.mkdir()
    (folder.path / ".lock").symlink_to(precious)
    with pytest.raises(UsageError, match=f"cannot write runs to {folder.path}: "), folder.lock():
        pass
    assert precious.read_text() == "text"
    (folder.path / ".lock").unlink()
    for holder in ("-1", "0", "none"):
        (folder.path / ".lock").write_text(holder)
        assert not folder.busy
    (folder.path / ".lock").unlink()
    os.mkfifo(folder.path / ".lock")
    assert not folder.busy  # and it does not wait for a writer, as reports ask
    with pytest.raises(UsageError, match="it is a named pipe"), folder.lock():
        pass


def test_inside_a_job_it_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "PMI_RANK": "0",
        "PMI_SIZE": "2",
        "MPI_LOCALRANKID": "0",
        "MPI_LOCALNRANKS": "2",
    }.items():
        monkeypatch.setenv(name, value)
    assert main(["study", str(write(tmp_path, SETTINGS + PART))]) == 2
    assert (
        capsys.readouterr().err
        == "paceline study: a study starts its runs itself: run it without mpiexec or srun\n"
    )


def test_real_and_simulated_cells_are_compared_with_their_own_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    COSTS.save(tmp_path / "costs.json")
    part = '[[matrix]]\nstrategy = "sync"\nranks = 2\non = ["mpi", "sim"]\n[simulation]\nmachine = "costs.json"\n'
    path = write(tmp_path, SETTINGS + "threads = 1\n" + part)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["study", str(path)]) == 0
    said = capsys.readouterr().out
    runs = find_runs([tmp_path / "runs/s"])
    assert len(runs) == 4
    rows = {(row.strategy, bool(row.simulated)): row for row in rows_of(runs)}
    for simulated in (False, True):
        serial, sync = rows["serial", simulated], rows["sync", simulated]
        assert sync.speedup == pytest.approx(serial.train_seconds / sync.train_seconds)
    assert "Simulated on loopback: " in said
    assert ", simulated on loopback\n" in said

    # Without a simulated serial run, simulated rows have no speedup: real seconds are not comparable with theirs.
    some = [run for run in runs if run.simulated is None or run.config["strategy"] != "serial"]
    rows = {(row.strategy, bool(row.simulated)): row for row in rows_of(some)}
    assert rows["sync", True].speedup is None
    assert rows["sync", False].speedup is not None

    # Hosts are for the real cells.
    assert main(["study", str(path), "--hosts", "localhost:1", "--dry-run"]) == 2
    assert "2 ranks do not fit on the hosts, which take 1" in capsys.readouterr().err
