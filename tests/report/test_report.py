from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from paceline import UsageError, fit
from paceline.record import Run, find_runs
from paceline.report import write_report
from paceline.report._page import HEADINGS, cells
from paceline.report._rows import problem_of, rows_of


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    for seed in range(3):
        fit("mlp:6", "iris", strategy="serial", epochs=1, batch=10, runs=folder, quiet=True, seed=seed)
    return find_runs([folder])


def altered(run: Run, folder: Path, **changes: object) -> Run:
    """A copy of a run with other figures in its summary, configuration and environment."""
    copy = folder / f"copy-{len(list(folder.iterdir()))}"
    shutil.copytree(run.folder, copy)
    for name in ("config.json", "summary.json", "environment.json"):
        values = json.loads((copy / name).read_text())
        values |= {key: value for key, value in changes.items() if key in values}
        (copy / name).write_text(json.dumps(values))
    return Run(copy)


def test_seeds_are_averaged_and_speedup_is_against_serial(runs: list[Run], tmp_path: Path) -> None:
    serial = [altered(run, tmp_path, train_seconds=8.0 + n) for n, run in enumerate(runs)]
    parallel = altered(runs[0], tmp_path, strategy="sync", ranks=400, train_seconds=3.0)
    first, second = rows_of([*serial, parallel])
    assert (first.strategy, first.seeds, first.train_seconds, first.speedup) == ("serial", 3, 9.0, 1.0)
    assert first.seconds_range == (8.0, 10.0)
    assert (second.strategy, second.ranks, second.speedup) == ("sync", 400, 3.0)
    assert second.oversubscribed
    assert not first.oversubscribed


@pytest.mark.parametrize(
    "change",
    [
        {"batch": 99},
        {"dtype": "float64"},
        {"batch_per_rank": 10, "lr_scaling": "linear"},
        {"parameters": 5},
        {"samples": 40},
        {"processor": "another"},
        {"data": "iris:test=0"},
    ],
)
def test_problems_are_not_mixed(runs: list[Run], tmp_path: Path, change: dict[str, object]) -> None:
    other = altered(runs[0], tmp_path, strategy="sync", train_seconds=1.0, **change)
    serial, parallel = sorted(rows_of([runs[1], other]), key=lambda row: row.strategy)
    assert serial.problem != parallel.problem
    assert str(serial.problem) != str(parallel.problem)
    assert (serial.runs, parallel.runs) == (1, 1)
    assert serial.speedup == 1.0
    assert parallel.speedup is None


def test_runs_on_other_threads_have_a_row_of_their_own(runs: list[Run], tmp_path: Path) -> None:
    one = altered(runs[0], tmp_path, threads=1, train_seconds=4.0)
    two = altered(runs[0], tmp_path, threads=2, train_seconds=3.0)
    sync = altered(runs[0], tmp_path, strategy="sync", ranks=2, threads=1, train_seconds=2.0)
    assert [(r.strategy, r.threads, r.speedup) for r in rows_of([sync, two, one])] == [
        ("serial", 1, 0.75),
        ("serial", 2, 1.0),  # the fastest serial row is what others are measured against
        ("sync", 1, 1.5),
    ]


def test_runs_are_counted_and_their_samples_added_up(runs: list[Run], tmp_path: Path) -> None:
    fast = altered(runs[0], tmp_path, train_seconds=1.0, samples_per_second=300.0)
    slow = altered(runs[0], tmp_path, train_seconds=3.0, samples_per_second=100.0)
    [row] = rows_of([fast, slow])
    assert (row.runs, row.seeds, row.train_seconds, row.samples_per_second) == (2, 1, 2.0, 150.0)
    assert cells(row)[HEADINGS.index("runs")] == "2"
    assert cells(row)[HEADINGS.index("seeds")] == "1"


def test_one_of_something_is_spelled_so(runs: list[Run], tmp_path: Path) -> None:
    assert ", 1 epoch, " in str(problem_of(runs[0]))
    other = altered(runs[0], tmp_path, epochs=2, draws=3)
    assert ", 2 epochs of 3 random batches, " in str(problem_of(other))


def test_the_page_shows_the_figures_of_the_records(runs: list[Run], tmp_path: Path) -> None:
    page = tmp_path / "deep" / "page.html"
    write_report(runs, page)
    text = page.read_text()
    row = rows_of(runs)[0]
    assert row.accuracy is not None
    assert f"{100 * row.accuracy:.2f} %" in text
    assert f"{row.train_seconds:.3g}" in text
    assert text.count("<svg") == 2


def test_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no complete runs"):
        write_report([], tmp_path / "page.html")
