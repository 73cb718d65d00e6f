"""Published measurements: the tables are complete, the predictions are the recorded ones, and the page shows them."""

from __future__ import annotations

import importlib
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.machine import load_network
from paceline.simulate.work import Work

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "published.md").read_text()
RECORDED: list[dict[str, Any]] = json.loads((ROOT / "benchmarks" / "results" / "published.json").read_text())[
    "points"
]
# Some of those with few messages; all are predicted by `python benchmarks/published.py`.
FEW = [index for index, point in enumerate(RECORDED) if point["ranks"] <= 9 and point["table"] != "T1"][::5]


@pytest.fixture(scope="module")
def published() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return importlib.import_module("published")
    finally:
        sys.path.pop(0)


def test_recorded_points_are_those_of_the_tables(published: Any) -> None:
    points = published.load_points()
    assert len(points) == len(RECORDED) == 832
    for point, recorded in zip(points, RECORDED, strict=True):
        assert {name: recorded[name] for name in vars(point)} == vars(point)
        load_network(point.network)
        assert recorded["error"] == pytest.approx(recorded["predicted"] / recorded["published"] - 1)


@pytest.mark.parametrize(
    "index", FEW, ids=lambda index: f"{RECORDED[index]['series']} {RECORDED[index]['devices']}"
)
def test_prediction_is_the_recorded_one(index: int, published: Any) -> None:
    row = published.predict(published.load_points()[index])
    assert row.predicted == pytest.approx(RECORDED[index]["predicted"], rel=1e-3)


def test_median_error_is_within_the_goal() -> None:
    median = statistics.median(abs(point["error"]) for point in RECORDED)
    assert median < 0.1
    assert f"The median error of {len(RECORDED)} points is {100 * median:.1f} %" in PAGE


def test_page_shows_every_point(published: Any) -> None:
    begin, end = published.MARKS
    shown = PAGE.partition(begin)[2].partition(end)[0]
    assert shown.strip().splitlines() == published.page_lines(RECORDED)
    assert shown.count(" %**") == len(RECORDED)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "benchmarks" / "published").glob("*.toml")), ids=lambda path: path.stem
)
def test_work_files_name_their_source(path: Path) -> None:
    if path.stem != "tables":
        assert Work.load(path).source
