from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from paceline import UsageError, fit
from paceline.record import Run, find_runs
from paceline.report import write_report
from paceline.report._rows import rows_of


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    for seed in range(3):
        fit("mlp:6", "iris", strategy="serial", epochs=1, batch=10, runs=folder, quiet=True, seed=seed)
    return find_runs([folder])


def altered(run: Run, folder: Path, **changes: object) -> Run:
    """A copy of a run with other figures in its summary and configuration."""
    copy = folder / f"copy-{len(list(folder.iterdir()))}"
    shutil.copytree(run.folder, copy)
    for name in ("config.json", "summary.json"):
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


def test_problems_are_not_mixed(runs: list[Run], tmp_path: Path) -> None:
    other = altered(runs[0], tmp_path, batch=99, strategy="sync", train_seconds=1.0)
    rows = rows_of([runs[1], other])
    assert len({row.problem for row in rows}) == 2
    assert rows[0].speedup == 1.0
    assert rows[1].speedup is None


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
