"""What README and docs/results.md say of the studies is what their records say; so are the reports beside them."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from paceline.config import Config
from paceline.record.reading import Run
from paceline.record.schema import ADDED
from paceline.study.cells import read_request
from paceline.study.file import read

ROOT = Path(__file__).parent.parent
STUDIES = ROOT / "studies"
NAMES = sorted(path.name for path in (STUDIES / "results").iterdir())
PAGE = (ROOT / "docs" / "results.md").read_text()
README = (ROOT / "README.md").read_text()
SYNC, SERVER, AVERAGE = (
    "sync:allreduce=ring",
    "parameter-server:masters=4,placement=even",
    "weight-average:allreduce=native",
)
Records = Sequence[dict[str, Any]]


def records(name: str) -> Records:
    lines = (STUDIES / "results" / name / "runs.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def rows(name: str) -> dict[tuple[str, int | None, str, int], Records]:
    """The summaries by data, draws, strategy and ranks."""
    found = defaultdict(list)
    for run in records(name):
        asked = run["config"]
        data = asked["data"].partition(":")[0]
        found[data, asked["draws"], asked["strategy"], asked["ranks"]].append(run["summary"])
    return dict(found)


def seconds(those: Records) -> str:
    return f"{fmean(one['train_seconds'] for one in those):.3g} s"


def accuracy(those: Records) -> str:
    return f"{100 * fmean(one['test_accuracy'] for one in those):.1f} %"


def span(those: Records) -> str:
    right = [100 * one["test_accuracy"] for one in those]
    return f"{min(right):.0f} to {max(right):.0f} %"


def tables(heading: str) -> list[list[list[str]]]:
    """The cells of each table of one part of docs/results.md, without its heading."""
    part = PAGE[PAGE.index(f"## {heading}\n") :].partition("\n## ")[0]
    blocks = re.findall(r"(?:^\|.*\n)+", part, re.MULTILINE)
    return [[[cell.strip() for cell in line.split("|")[1:-1]] for line in b.splitlines()[2:]] for b in blocks]


def read_published(name: str) -> dict[tuple[str, int], dict[str, Any]]:
    return {
        (figure["strategy"], figure.get("ranks", 0)): figure
        for figure in read(STUDIES / f"{name}.toml").published
    }


def check(
    table: list[list[str]], found: dict[Any, Records], data: str, draws: int | None, base: float
) -> None:
    """Strategy, ranks, time, how many times as fast, accuracy; more columns are for whoever asks."""
    named = [(strategy.strip("`"), int(ranks)) for strategy, ranks, *_ in table]
    assert sorted(named) == sorted((key[2], key[3]) for key in found if key[:2] == (data, draws))
    for (strategy, ranks), cells in zip(named, table, strict=True):
        those = found[data, draws, strategy, ranks]
        stopped = sum(one["diverged"] is not None for one in those)
        if stopped:
            assert cells[2:4] == [
                "stopped" if stopped == len(those) else f"{stopped} of {len(those)} stopped",
                "",
            ]
        else:
            faster = base / fmean(one["train_seconds"] for one in those)
            assert cells[2:4] == [seconds(those), f"{faster:.2f}"]
        assert cells[4] == accuracy(those)


def test_synchronous_or_asynchronous() -> None:
    found, theirs = rows("sync-async"), read_published("sync-async")
    serial = found["mnist", 632, "serial", 1]
    (table,) = tables("Synchronous or asynchronous")
    check(table, found, "mnist", 632, fmean(one["train_seconds"] for one in serial))
    for strategy, ranks, *_, time, right in table:
        figure = theirs.get((strategy.strip("`"), int(ranks)))
        if ranks != "1" and figure is not None:
            assert float(time.split()[0]) == figure["seconds"]
            assert float(right.split()[0]) == pytest.approx(100 * figure["accuracy"])
        else:
            assert bool(time) == (ranks == "1")
    for ranks in (4, 8, 16):  # with every seed
        ring = {one["seed"]: one["test_accuracy"] for one in found["mnist", 632, SYNC, ranks]}
        assert ring == {one["seed"]: one["test_accuracy"] for one in serial}
    took = [one["train_seconds"] for one in serial]
    assert f"whose five runs took {min(took):.2f} to {max(took):.2f} s" in PAGE
    ruined = [100 * one["test_accuracy"] for one in found["mnist", 632, f"{SERVER},rule=plain", 8]]
    assert f"accuracy falls to {min(ruined):.0f} to {max(ruined):.0f} % with 4 workers" in PAGE
    faster = fmean(took) / fmean(one["train_seconds"] for one in found["mnist", 632, SERVER, 16])
    assert f"4 masters and 12 workers are {faster:.2f} times as fast as serial" in " ".join(PAGE.split())


def test_starts_of_their_own() -> None:
    right = json.loads((ROOT / "benchmarks" / "results" / "starts.json").read_text())["accuracy"]
    own, other = "{} ranks, rank 0's", "{} ranks, its own"
    lost = [
        f"{fmean(right[own.format(ranks)]) - fmean(right[other.format(ranks)]):.1f}" for ranks in (4, 8, 16)
    ]
    assert f"costs {lost[0]}, {lost[1]} and {lost[2]} points on 4, 8 and 16 ranks" in " ".join(PAGE.split())
    theirs = read_published("sync-async")
    serial = [
        figure["accuracy"]
        for figure in read(STUDIES / "sync-async.toml").published
        if figure["strategy"] == "serial"
    ]
    below = [
        100 * (alone - theirs[SYNC, ranks]["accuracy"])
        for alone, ranks in zip(serial, (4, 8, 16), strict=True)
    ]
    assert f"{min(below):.1f} to {max(below):.1f} points below their serial ones" in " ".join(PAGE.split())


def test_psgd_or_hogwild() -> None:
    found, theirs = rows("psgd-hogwild"), read_published("psgd-hogwild")
    short, whole = tables("PSGD or HogWild")
    for table, draws in ((short, 156), (whole, None)):
        serial = found["mnist", draws, "serial", 1]
        check(table, found, "mnist", draws, fmean(one["train_seconds"] for one in serial))
    for strategy, ranks, *_, time in whole:
        figure = theirs.get((strategy.strip("`"), int(ranks)))
        assert time == ("" if figure is None else f"{figure['seconds']:.0f} s")
    (four,) = found["mnist", None, "psgd", 4]
    parts = [f"{100 * part['test_accuracy']:.1f}" for part in four["findings"]["parts"]]
    assert f"reaches {min(parts)} to {max(parts)} % on its own, their average {accuracy([four])}" in " ".join(
        PAGE.split()
    )
    first = next(one for one in found["mnist", 156, "psgd", 5] if one["seed"] == 0)
    parts = [f"{100 * part['test_accuracy']:.1f}" for part in first["findings"]["parts"]]
    assert f"on 5 ranks, the individual models reach {min(parts)} to {max(parts)} %" in " ".join(PAGE.split())
    of_psgd = [f"{figure['seconds']:.0f}" for key, figure in theirs.items() if key[0] == "psgd"]
    assert f"1 to 5 ranks: {', '.join(of_psgd[:-1])} and {of_psgd[-1]} s" in " ".join(PAGE.split())
    alone = [one["train_seconds"] for key, those in found.items() if key[1] and key[3] == 1 for one in those]
    assert f"took {min(alone):.1f} to {max(alone):.1f} s" in " ".join(PAGE.split())


def test_allreduce_or_send_and_recv() -> None:
    found, theirs = rows("allreduce-sendrecv"), read_published("allreduce-sendrecv")
    iris, pictures = tables("Allreduce or Send and Recv")
    assert [cells[0] for cells in iris] == [str(ranks) for ranks in range(1, 9)]
    for cells in iris:
        ranks = int(cells[0])
        for strategy, mine in ((AVERAGE, cells[1:4]), ("main-worker", cells[4:])):
            those = found.get(("iris", None, strategy, ranks))
            time = theirs[strategy, ranks]["seconds"] if those else 0
            assert mine == ([seconds(those), f"{time:.2f} s", span(those)] if those else [""] * 3)
    check(
        pictures,
        found,
        "pictures",
        None,
        fmean(one["train_seconds"] for one in found["pictures", None, "serial", 1]),
    )
    took = sorted(one["train_seconds"] for one in found["iris", None, AVERAGE, 3])
    assert f"took {took[-1]:.2f} s, the other four {took[0]:.2f} to {took[-2]:.2f} s" in PAGE
    updates = {one["steps"] for one in found["iris", None, "main-worker", 8]}
    assert f"it makes {max(updates):,} updates where serial makes 3,000" in " ".join(PAGE.split())
    assert {one["steps"] for one in found["iris", None, "serial", 1]} == {3000}
    times = {
        key: fmean(one["train_seconds"] for one in those)
        for key, those in found.items()
        if key[0] == "pictures"
    }
    faster = [
        times["pictures", None, "main-worker", p] / times["pictures", None, AVERAGE, p] for p in (2, 4, 8)
    ]
    assert f"{min(faster):.1f} to {max(faster):.1f} times as fast" in " ".join(PAGE.split())


def test_the_readme() -> None:
    ours = rows("sync-async")
    ring = [ours["mnist", 632, SYNC, ranks] for ranks in (4, 8, 16)]
    times, right = (" / ".join(what(those).split()[0] for those in ring) for what in (seconds, accuracy))
    assert f"{times} s to {right} %, like one process ({seconds(ours['mnist', 632, 'serial', 1])})" in README
    server = [ours["mnist", 632, SERVER, ranks] for ranks in (8, 16)]
    times, right = (" / ".join(what(those).split()[0] for those in server) for what in (seconds, accuracy))
    plain = [ours["mnist", 632, f"{SERVER},rule=plain", ranks] for ranks in (8, 16)]
    lost = " / ".join(accuracy(those).split()[0] for those in plain)
    assert f"{times} s to {right} %; with their rule, `plain`, {lost} %: it diverges |" in README
    cnn = rows("psgd-hogwild")
    two, four, wild, one = (
        cnn["mnist", None, *case] for case in (("psgd", 2), ("psgd", 4), ("hogwild", 4), ("serial", 1))
    )
    times, right = (f"{what(two).split()[0]} / {what(four)}" for what in (seconds, accuracy))
    alone = f"(one process {seconds(one)}, {accuracy(one)})"
    assert f"{times} to {right}; HogWild on 4: {seconds(wild)} to {accuracy(wild)} {alone}" in README


@pytest.mark.parametrize("name", NAMES)
def test_records_of_older_versions_are_read(name: str, tmp_path: Path) -> None:
    for number, run in enumerate(records(name)):
        folder = tmp_path / str(number)
        folder.mkdir()
        for part in ("config", "environment", "summary"):
            (folder / f"{part}.json").write_text(json.dumps(run[part]))
        found = Run(folder)
        assert (found.config, found.environment, found.summary) == (
            run["config"],
            run["environment"],
            run["summary"],
        )


@pytest.mark.parametrize("name", NAMES)
def test_a_report_is_that_of_the_records(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row of its tables of results; every cell of the study, done on 16 cores, from a source that was committed."""
    # These records lack the digest of pictures.py, which is found if another test has put its folder on the path.
    monkeypatch.setattr(sys, "path", [place for place in sys.path if Path(place).absolute() != STUDIES])
    monkeypatch.delitem(sys.modules, "pictures", raising=False)
    folder = STUDIES / "results" / name
    kept = records(name)
    asked = {
        json.dumps({**run["config"], "lr": run["config"]["asked"]["lr"]}, sort_keys=True) for run in kept
    }
    cells = read(STUDIES / f"{name}.toml").cells("mpi")
    # Serial runs with the rule of a server are newer than these records, which the first line of a report says.
    newer = [cell for cell in cells if cell.config.strategy == "serial:rule=adaptive"]
    assert len(newer) == (5 if name == "sync-async" else 0)
    cells = [cell for cell in cells if cell not in newer]
    assert len(asked) == len(kept) == len(cells)
    # Settings that are newer than these records had their defaults.
    newer_settings = {each.name: each.default for each in dataclasses.fields(Config) if each.name in ADDED}
    configs = [{"code": {}, **newer_settings, **run["config"]} for run in kept]
    for cell in cells:
        wanted = cell.settings
        assert any(all(config[key] == wanted[key] for key in wanted) for config in configs), str(cell)
    assert {read_request(run["config"]) for run in kept} == {cell.key for cell in cells}
    for run in kept:
        assert run["environment"]["cores"] == 16
        assert run["environment"]["source"]["changed"] is False
    shown = []
    for path in sorted((folder / "tables").glob("results-*.csv")):
        with path.open() as file:
            shown += [
                (row["strategy"], int(row["ranks"]), float(row["time (s)"])) for row in csv.DictReader(file)
            ]
    means = [
        (key[2], key[3], fmean(one["train_seconds"] for one in those)) for key, those in rows(name).items()
    ]
    assert sorted(shown) == [(*key, pytest.approx(mean)) for *key, mean in sorted(means)]
    page = (folder / "report.md").read_text()
    assert page.startswith(f"# {read(STUDIES / f'{name}.toml').title}\n")
    for link in re.findall(r"\]\(([^)]+)\)", page):
        assert (folder / link).is_file(), link
    assert "<title>" in (folder / "report.html").read_text()


def test_a_report_is_written_again_from_the_kept_records(tmp_path: Path) -> None:
    plan, kept = STUDIES / "psgd-hogwild.toml", STUDIES / "results" / "psgd-hogwild"
    again = tmp_path / "results" / plan.stem
    again.mkdir(parents=True)
    shutil.copy(plan, tmp_path)
    shutil.copy(kept / "runs.jsonl", again)
    command = [sys.executable, str(STUDIES / "keep.py"), str(tmp_path / plan.name)]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stderr == ""
    assert (again / "runs.jsonl").read_text() == (kept / "runs.jsonl").read_text()
    for number in (1, 2):
        table = f"tables/results-{number}.csv"
        assert (again / table).read_text() == (kept / table).read_text()
    page = (again / "report.md").read_text()
    assert "Why it stops scaling" not in page  # that needs the steps
    assert "against samples" not in page
    assert "Time to 95.00 %" in page
