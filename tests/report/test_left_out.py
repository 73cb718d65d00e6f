"""What a report is not about: which cells failed, and which files could not be believed, in every format."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import main
from paceline.compare.rows import describe_simulation
from paceline.record import Run
from paceline.report import document_of
from paceline.report.document import Document, Text
from paceline.report.pdf import Pages
from paceline.study.folder import Context, FailedCell
from tests.report.conftest import copy_run, make_runs, rewrite, table

LATE = "it exceeded the study's timeout of 2 s"


def make_failed(run: Run, **changes: Any) -> FailedCell:
    settings = {**run.config, "lr": None, "asked": {"on": "mpi", "lr": None}, **changes}
    return FailedCell(settings=settings, why=LATE, status=None, file=Path())


def said(page: Document) -> list[str]:
    return [line for text in page.summary for line in text.lines]


# ---- cells that failed


def test_a_failed_cell_is_told_by_what_it_differs_in(runs: list[Run]) -> None:
    cells = (make_failed(runs[0], epochs=5000), make_failed(runs[0], epochs=5000, strategy="sync", ranks=2))
    page = document_of(runs[:1], context=Context(failed=cells))
    assert said(page)[-1] == (
        f"2 cells failed: serial, 1 rank, epochs 5000: {LATE}; sync, 2 ranks, epochs 5000: {LATE}."
    )
    assert table(page, "failed").rows[0] == ("serial, 1 rank, epochs 5000", "iris", "mlp:6", LATE)
    page = document_of(runs, context=Context(failed=cells[:1]))  # of several seeds
    assert said(page)[-1] == f"1 cell failed: serial, 1 rank, epochs 5000, seed 0: {LATE}."


def test_a_reason_of_many_failed_cells_is_said_once(runs: list[Run]) -> None:
    cells = tuple(make_failed(runs[0], epochs=epochs) for epochs in range(5000, 5005))
    assert said(document_of(runs[:1], context=Context(failed=cells)))[-1] == (
        f"5 cells failed: all for the same reason, {LATE}."
    )
    other = (*cells, replace(cells[0], why="rank 3 was killed"))
    assert said(document_of(runs[:1], context=Context(failed=other)))[-1].endswith("; and 3 more.")


def test_in_its_problem_a_seed_tells_it(runs: list[Run]) -> None:
    cell = make_failed(runs[2], strategy="sync", ranks=4, threads=2)
    page = document_of(runs[:2], context=Context(failed=(cell,)))
    first = page.sections[0].opening
    assert first is not None
    assert first.sure.endswith("1 cell failed.")
    words = f"sync, 4 ranks, seed 2: {LATE}"
    assert f"1 cell failed: {words}." in said(page)
    notes = [line for block in page.blocks() if isinstance(block, Text) for line in block.lines]
    assert f"Failed: {words}" in notes


def test_what_was_simulated_is_told(runs: list[Run]) -> None:
    cells = [
        make_failed(runs[0], strategy="sync", ranks=4, simulated={"network": n}) for n in ("1gbe", "10gbe")
    ]
    page = document_of(runs[:1], context=Context(failed=tuple(cells)))
    (line,) = [line for line in said(page) if "failed" in line]
    assert "sync, 4 ranks (simulated: 1gbe): " in line
    assert "sync, 4 ranks (simulated: 10gbe): " in line


@pytest.mark.parametrize("stream", ["1.25GB/s", "1250000000.0B/s"])
def test_a_simulated_network_is_told_as_people_write_it(runs: list[Run], tmp_path: Path, stream: str) -> None:
    (run,) = make_runs(runs, tmp_path, ("serial", 1, 2.0, 0.9))
    rewrite(run.folder / "config.json", simulated={"network": f"10gbe:stream={stream}", "compute": True})
    assert describe_simulation(Run(run.folder)) == "10gbe:stream=1.25GB/s"


# ---- files that are damaged


@pytest.fixture
def folder(runs: list[Run], tmp_path: Path) -> Path:
    """A study with a run that is whole, one that is not, and a target that is none."""
    found = tmp_path / "study"
    found.mkdir()
    for run in runs[:2]:
        shutil.copytree(run.folder, found / run.folder.name)
    rewrite(found / runs[0].folder.name / "summary.json", train_seconds=-5)
    (found / "study.json").write_text(json.dumps({"title": "mine", "target_accuracy": 95}))
    return found


def report(folder: Path, out: Path) -> str:
    assert main(["report", str(folder), "-o", str(out)]) == 0
    return out.read_text()


def test_every_page_says_what_was_left_out(
    folder: Path, runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        f"{folder / runs[0].folder.name / 'summary.json'} is damaged: train_seconds is -5",
        f"{folder / 'study.json'}: target_accuracy must be a fraction above 0 and at most 1; got 95",
    ]
    title = "Left out of this report: 2"
    text = re.sub(r"\\(?=[_|<>~*`\[\]])", "", report(folder, tmp_path / "a.md"))
    assert text.endswith(f"**{title}**\n\n{lines[0]}\n\n{lines[1]}\n")
    assert "9500" not in text
    assert text.startswith("# mine\n")
    page = re.sub(r"<wbr>", "", report(folder, tmp_path / "a.html"))
    for words in (title, *lines):
        assert f">{words}<" in page
    drawn: list[str] = []
    monkeypatch.setattr(Pages, "put", lambda pages, x, y, words, size, **look: drawn.append(words))
    assert main(["report", str(folder), "-o", str(tmp_path / "a.pdf")]) == 0
    assert title in drawn
    printed = "".join(drawn).replace(" ", "")  # lines are broken anywhere
    assert all(line.replace(" ", "") in printed for line in lines)


def test_many_are_folded(folder: Path, runs: list[Run], tmp_path: Path) -> None:
    for _ in range(5):
        copy = copy_run(runs[2], folder)
        (copy.folder / "steps.npz").unlink()
    text = report(folder, tmp_path / "a.md")
    assert "<details><summary>Left out of this report: 7</summary>\n\n" in text
    assert text.count(" has no steps.npz") == 5
    page = report(folder, tmp_path / "a.html")
    assert "<details><summary>Left out of this report: 7</summary><p" in page


def test_nothing_is_said_where_nothing_was_left_out(runs: list[Run], tmp_path: Path) -> None:
    assert "Left out" not in report(runs[0].folder, tmp_path / "a.md")


def test_where_no_run_is_left(runs: list[Run]) -> None:
    page = document_of([], context=Context(failed=(make_failed(runs[0]),), left_out=("a is damaged",)))
    assert [section.title for section in page.sections] == ["Cells that failed", "Left out"]


def test_the_copy_of_a_run_is_no_repetition(runs: list[Run], tmp_path: Path) -> None:
    for name in ("<i>", "a", "b"):
        shutil.copytree(runs[0].folder, tmp_path / "runs" / name)
    copy_run(runs[0], tmp_path / "runs", train_seconds=123.0)  # the same seed, but another run
    page = re.sub(r"<wbr>", "", report(tmp_path / "runs", tmp_path / "a.html"))
    assert ">Left out of this report: 2<" in page
    for name in ("a", "b"):
        assert f">{tmp_path}/runs/{name} is a copy of {tmp_path}/runs/&lt;i&gt;<" in page
    heads, *rows = csv.reader((tmp_path / "a-files" / "results-1.csv").read_text().splitlines())
    assert [dict(zip(heads, row, strict=True))["runs"] for row in rows] == ["2"]


def test_of_many_runs_that_are_left_out_some_are_named(
    runs: list[Run], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(9):
        shutil.copytree(runs[0].folder, tmp_path / "runs" / f"{number}")
    text = report(tmp_path / "runs", tmp_path / "a.md")
    *named, rest = caplog.messages
    assert named == [f"left out: {tmp_path}/runs/{k} is a copy of {tmp_path}/runs/0" for k in range(1, 6)]
    assert rest == "left out: 3 more"
    assert text.count(" is a copy of ") == 8
