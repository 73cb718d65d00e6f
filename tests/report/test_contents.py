"""Every figure of a report is what the records say: worked out once more here, from their files alone."""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.figures import Bars, Curve, Figure, Histogram, Lines
from paceline.record import find_runs
from paceline.report import document_of
from paceline.report.document import Document, Section
from tests.report.conftest import FORETOLD, MATRIX, NODES, rewrite, table

KINDS = ("compute", "exchange", "wait", "update")
Raw = dict[str, Any]


@pytest.fixture(scope="module")
def raw(matrix: Path) -> dict[str, list[Raw]]:
    """The files of every run, by the row that it belongs to."""
    found: dict[str, list[Raw]] = defaultdict(list)
    for path in sorted(matrix.glob("*/summary.json")):
        files = {
            name: json.loads(path.with_name(f"{name}.json").read_text()) for name in ("config", "summary")
        }
        epochs = [json.loads(line) for line in path.with_name("epochs.jsonl").read_text().splitlines()]
        with np.load(path.with_name("steps.npz")) as steps:
            run = {**files["config"], **files["summary"], "lines": epochs, "log": dict(steps)}
        told = files["config"].get("simulated")
        words = ""
        if told:
            words = f" (simulated: {told['network']}{'' if told['compute'] else ', time only'})"
        ranks = run["ranks"]
        found[f"{run['strategy']}, {ranks} rank{'s' * (ranks > 1)}{words}"].append(run)
    assert sum(map(len, found.values())) == len(MATRIX) + len(FORETOLD) + 3
    return dict(found)


@pytest.fixture(scope="module")
def page(matrix: Path) -> Document:
    return document_of(find_runs([matrix]))


def figures(page: Document) -> dict[str, Figure]:
    found = [block for block in page.blocks() if isinstance(block, (Lines, Bars, Histogram))]
    assert len({figure.name for figure in found}) == len(found)
    return {figure.name: figure for figure in found}


def lines(page: Document, name: str) -> dict[str, Curve]:
    figure = figures(page)[name]
    assert isinstance(figure, Lines)
    return {curve.label: curve for curve in figure.curves}


def label_of(curve: Curve, ranks: float) -> str:
    """The row of a point of a curve over ranks."""
    strategy, _, words = curve.label.partition(" (")
    return f"{strategy}, {ranks:g} rank{'s' * (ranks > 1)}{f' ({words}' if words else ''}"


def value(runs: Iterable[Raw], of: Callable[[Raw], float]) -> tuple[float, float, float]:
    """Mean, least and most."""
    values = np.array([of(run) for run in runs], float)
    return float(values.mean()), float(values.min()), float(values.max())


def assert_points(curve: Curve, expected: list[tuple[float, float, float]], several: bool) -> None:
    assert curve.y == pytest.approx([mean for mean, _, _ in expected])
    if several:
        assert curve.low == pytest.approx([low for _, low, _ in expected])
        assert curve.high == pytest.approx([high for *_, high in expected])
    else:
        assert curve.low is curve.high is None


def test_every_figure_is_there(page: Document) -> None:
    names = {name for name in figures(page) if not name.startswith("staleness-1-")}
    assert names == {
        "time-1", "speedup-1", "accuracy-1", "loss-time-1", "validation-time-1", "loss-samples-1",
        "validation-samples-1", "to-target-1", "time-split-1", "bytes-1",
    }  # fmt: skip
    assert [section.title for section in page.sections] == ["iris, mlp:8", "Environment"]
    assert page.sections[0].sections[-1].title == "Messages"


def test_times_and_speedups(page: Document, raw: dict[str, list[Raw]]) -> None:
    def seconds(run: Raw) -> float:
        return float(run["train_seconds"])

    serial = {
        "": value(raw["serial, 1 rank"], seconds),
        "simulated": value(raw[f"serial, 1 rank (simulated: {NODES})"], seconds),
    }
    times, speedups = lines(page, "time-1"), lines(page, "speedup-1")
    strategies = {strategy for strategy, *_ in MATRIX} | {"serial"}
    assert {curve.strategy for curve in times.values()} == strategies | {"sync"}
    for curve in times.values():
        members = [raw[label_of(curve, ranks)] for ranks in curve.x]
        several = max(map(len, members)) > 1
        assert_points(curve, [value(some, seconds) for some in members], several)
        assert (curve.origin == "simulated") == ("(simulated" in curve.label)
        assert curve.oversubscribed == tuple(False for _ in curve.x)
        if curve.strategy == "serial":
            continue
        base, low, high = serial["simulated" if curve.origin == "simulated" else ""]
        means = [base / value(some, seconds)[0] for some in members]
        # Noise of serial's runs is noise of a speedup.
        spread = [(low / value(some, seconds)[2], high / value(some, seconds)[1]) for some in members]
        assert_points(speedups[curve.label], [(m, *s) for m, s in zip(means, spread, strict=True)], several)
    ideal = next(curve for curve in speedups.values() if curve.origin == "ideal")
    assert ideal.x == ideal.y
    assert (ideal.x[0], ideal.x[-1]) == (1.0, 8.0)


def test_accuracy_goes_by_workers(page: Document, raw: dict[str, list[Raw]]) -> None:
    found = lines(page, "accuracy-1")
    idle = {"main-worker": 1, "parameter-server:masters=2,rule=plain": 2}
    for curve in found.values():
        ranks = [x + idle.get(curve.strategy, 0) for x in curve.x]
        members = [raw[label_of(curve, count)] for count in ranks]
        expected = [value(some, lambda run: run["test_accuracy"]) for some in members]
        assert_points(curve, expected, max(map(len, members)) > 1)
    assert found["main-worker"].x == found["parameter-server:masters=2,rule=plain"].x == (2.0,)
    assert not any("time only" in label for label in found)  # how good those are is unknown


@pytest.mark.parametrize("against", ["time", "samples"])
@pytest.mark.parametrize(("name", "key"), [("loss", "loss"), ("validation", "validation_accuracy")])
def test_curves(page: Document, raw: dict[str, list[Raw]], against: str, name: str, key: str) -> None:
    found = {
        re.sub(r", learned (less|nothing)$", "", label): curve
        for label, curve in lines(page, f"{name}-{against}-1").items()
    }
    # Too many rows for one figure: of each strategy the one on most ranks.
    assert {"serial, 1 rank", "sync:allreduce=ring, 4 ranks", "weight-average, 3 ranks"} <= set(found)
    assert "sync:allreduce=ring, 2 ranks" not in found
    for label, curve in found.items():
        members = raw[label]
        epochs = [e for e in range(3) if members[0]["lines"][e][key] is not None]
        assert curve.y == pytest.approx([np.mean([run["lines"][e][key] for run in members]) for e in epochs])
        if against == "time":
            places = [[run["lines"][e]["train_seconds"] for run in members] for e in epochs]
        else:
            places = [
                [sum(run["log"]["count"][run["log"]["epoch"] <= e].tolist()) for run in members]
                for e in epochs
            ]
            assert places[-1] == [360] * len(members)  # 120 samples, three times, whoever computed them
        assert curve.x == pytest.approx([np.mean(some) for some in places])
        if len(members) > 1:
            assert curve.high == pytest.approx([max(run["lines"][e][key] for run in members) for e in epochs])
    if key == "validation_accuracy":
        assert len(found["psgd, 2 ranks"].x) == 1  # only the average is validated


def test_time_to_the_target(page: Document, raw: dict[str, list[Raw]]) -> None:
    bars = figures(page)["to-target-1"]
    assert isinstance(bars, Bars)

    def accuracies(run: Raw) -> list[float]:
        return [
            line["validation_accuracy"] for line in run["lines"] if line["validation_accuracy"] is not None
        ]

    serial = [min(max(accuracies(run)) for run in some) for label, some in raw.items() if "serial" in label]
    target = max(serial) - 0.01
    assert bars.title == f"Time to {100 * target:.2f} %"
    assert "one point below the best serial accuracy on the validation samples" in bars.caption
    assert {bar.label for bar in bars.bars} == {label for label in raw if "time only" not in label}
    for bar in bars.bars:
        came = []
        for run in raw[bar.label]:
            there = [
                line["train_seconds"]
                for line in run["lines"]
                if (line["validation_accuracy"] or 0) >= target - 1e-9
            ]
            came += there[:1]
        assert bar.parts == pytest.approx((np.mean(came) if came else 0.0,))
        assert ("not reached" in bar.words) == (not came)
        assert (bar.low, bar.high) == ((min(came), max(came)) if len(came) > 1 else (None, None))


def test_time_split(page: Document, raw: dict[str, list[Raw]]) -> None:
    bars = figures(page)["time-split-1"]
    assert isinstance(bars, Bars)
    assert bars.kinds == KINDS
    assert {bar.label for bar in bars.bars} == set(raw)
    for bar in bars.bars:
        runs = raw[bar.label]
        assert bar.parts == pytest.approx([np.mean([run["seconds"][kind] for run in runs]) for kind in KINDS])
        sums = [sum(run["seconds"][kind] for kind in KINDS) for run in runs]
        expected = (min(sums), max(sums)) if len(runs) > 1 else (None, None)
        assert (bar.low, bar.high) == pytest.approx(expected)
        assert bar.simulated == ("simulated" in bar.label)


def test_staleness(page: Document, raw: dict[str, list[Raw]]) -> None:
    drawn = [figure for figure in figures(page).values() if isinstance(figure, Histogram)]
    knowing = [label for label, some in raw.items() if "staleness" in some[0]["findings"]]
    assert {figure.title.removeprefix("Staleness of ") for figure in drawn} == set(knowing)
    assert len(knowing) == 3  # hogwild, the same simulated, parameter-server
    for figure in drawn:
        runs = raw[figure.title.removeprefix("Staleness of ")]
        counts = [run["findings"]["staleness"]["histogram"] for run in runs]
        longest = max(map(len, counts))
        padded = np.array([np.pad(np.array(count, float), (0, longest - len(count))) for count in counts])
        shares = padded / padded.sum(axis=1, keepdims=True)
        assert figure.labels == tuple(map(str, range(longest)))
        assert figure.heights == pytest.approx(padded.sum(axis=0) / padded.sum())
        if len(runs) > 1:
            assert (figure.low, figure.high) == (
                pytest.approx(shares.min(axis=0)),
                pytest.approx(shares.max(axis=0)),
            )
    pieces = table(page, "pieces-1")
    assert pieces.folded
    assert len(pieces.rows) == 2  # a layer each master


def test_the_table_of_results(page: Document, raw: dict[str, list[Raw]]) -> None:
    results = table(page, "results-1")
    assert len(results.rows) == len(raw)
    names = [column.name for column in results.columns]
    for row, mark in zip(results.rows, results.marks, strict=True):
        told = dict(zip(names, row, strict=True))
        strategy, _, words = str(told["strategy"]).partition(" (")
        ranks = told["ranks"]
        runs = raw[f"{strategy}, {ranks} rank{'s' * (ranks != 1)}{f' ({words}' if words else ''}"]
        assert told["time (s)"] == pytest.approx(np.mean([run["train_seconds"] for run in runs]))
        assert told["MB sent"] == pytest.approx(
            np.mean([run["bytes_sent"] for run in runs])
        )  # in bytes: CSV's
        assert (told["runs"], told["seeds"]) == (len(runs), len({run["seed"] for run in runs}))
        if "time only" in words:
            assert told["test accuracy"] is None
        else:
            assert told["test accuracy"] == pytest.approx(np.mean([run["test_accuracy"] for run in runs]))
        assert mark in ("", "best", "simulated", "learned less", "learned nothing")
    assert sum(mark == "best" for mark in results.marks) == 2  # a real one and a simulated one


def test_what_is_said_first(page: Document, raw: dict[str, list[Raw]]) -> None:
    (said,) = page.summary
    _, simulated, first, foretold = said.lines
    assert said.title == "iris, mlp:8"
    assert simulated.startswith("Simulated: ")
    assert first.startswith(("First to reach the target of ", "Nothing reached the target of "))
    assert foretold.startswith(("Simulated: first to reach", "Simulated: nothing reached"))
    costs = next(one for one in page.sections[0].sections if one.title == "What each strategy costs")
    (listed,) = costs.blocks
    strategies = {strategy for strategy, *_ in MATRIX}
    real = [line for line in listed.lines if "simulated" not in line]  # type: ignore[union-attr]
    assert {line.split(", ")[0] for line in real} == strategies  # one line each
    assert len(real) == len(strategies)


def all_sections(page: Document) -> list[Section]:
    return [inner for section in page.sections for inner in (section, *section.sections)]


def test_no_title_repeats_its_section(page: Document) -> None:
    for section in all_sections(page):
        for block in section.blocks:
            title = block.title.lower()
            assert title != section.title.lower()
            assert not title or not section.title.lower().startswith(title), title


def test_rows_of_one_strategy_are_told_apart(matrix: Path, tmp_path: Path) -> None:
    some = [run for run in find_runs([matrix]) if run.config["strategy"] == "sync:allreduce=ring"]
    for run in some:
        shutil.copytree(run.folder, tmp_path / run.folder.name)
        rewrite(tmp_path / run.folder.name / "environment.json", cores=3)
    page = document_of(find_runs([tmp_path]))
    for name in ("loss-time-1", "loss-samples-1", "validation-time-1"):
        found = lines(page, name)
        crowded = {label: all(curve.oversubscribed or ()) for label, curve in found.items()}
        assert crowded == {
            f"sync:allreduce=ring, {words}": "*" in words for words in ("2 ranks", "3 ranks", "4 ranks *")
        }
        assert len({curve.variant for curve in found.values()}) == 3
    (curve,) = (curve for curve in lines(page, "accuracy-1").values() if curve.origin == "measured")
    assert curve.oversubscribed == (False, False, True)


def test_nothing_is_empty(page: Document) -> None:
    for section in all_sections(page):
        assert section.blocks or section.sections
    for figure in figures(page).values():
        if isinstance(figure, Lines):
            assert any(len(curve.x) > 1 for curve in figure.curves), figure.name
            assert all(len(curve.x) == len(curve.y) for curve in figure.curves)
            assert all(sorted(curve.x) == list(curve.x) for curve in figure.curves)
