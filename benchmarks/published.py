"""Published measurements of distributed training beside the simulator's predictions.

    python benchmarks/published.py [--only T4] [--jitter 0] [--json FILE] [--plot FILE]

`benchmarks/published/tables.toml` has the measurements with their sources, and the network and strategy of each;
the files beside it have the work: the size of a network and the speed of one device. docs/published.md says where every
other figure comes from. Nothing is fitted to the tables. The last line is the median error of all points.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from where import where

from paceline import figures, text
from paceline.figures.drawing import blank_page
from paceline.figures.palette import FAINT, GREY
from paceline.simulate import Options
from paceline.simulate.work import Work, work_load

HERE = Path(__file__).parent / "published"
MESSAGES = 40_000  # about as many are simulated with parameter servers


@dataclass(frozen=True, kw_only=True)
class Point:
    """One published figure: how many devices trained what, over which network, and their samples a second."""

    table: str
    series: str
    label: str
    work: str
    devices: int
    ranks: int
    network: str
    strategy: str
    published: float


@dataclass(frozen=True, kw_only=True)
class Row(Point):
    """A published figure and the prediction of it."""

    predicted: float

    @property
    def error(self) -> float:
        return self.predicted / self.published - 1


@cache
def load_work(name: str) -> Work:
    return Work.load(HERE / name)


def load_points() -> list[Point]:
    """Return every point of the tables."""
    told = tomllib.loads((HERE / "tables.toml").read_text())
    return [
        Point(
            table=table["name"],
            series=series["name"],
            label=point.get("label", ""),
            work=series["work"],
            devices=point["devices"],
            ranks=point.get("ranks", point["devices"]),
            network=point.get("network", series.get("network", "")),
            strategy=point.get("strategy", series.get("strategy", load_work(series["work"]).strategy)),
            published=point["published"] * point.get("scale", 1.0),
        )
        for table in told["tables"]
        for series in table["series"]
        for point in series["points"]
    ]


def predict(point: Point, jitter: float | None = None) -> Row:
    """Simulate a few steps of a point; with another variation of the computing times if one is given."""
    work = load_work(point.work)
    work = work if jitter is None else replace(work, jitter=jitter)
    candidate = work_load(work, Options(network=point.network)).candidate(point.strategy, point.ranks)
    workers, masters = candidate.workers, candidate.masters
    most = workers * max(2, min(8, MESSAGES // (2 * workers * masters))) if masters else None
    timing = candidate.measure(candidate.scenario, candidate.length(most))
    return Row(**asdict(point), predicted=timing.samples_per_second)


def median_error(rows: Sequence[Row]) -> float:
    """Return the median of the relative errors, without their signs."""
    return statistics.median(abs(row.error) for row in rows)


def show(rows: Sequence[Row]) -> None:
    heads = ["table", "series", "", "devices", "published", "predicted", "error"]
    cells = [
        [
            row.table, row.series, row.label, str(row.devices), _rate(row.published), _rate(row.predicted),
            f"{row.error:+.1%}",
        ]
        for row in rows
    ]  # fmt: skip
    print(text.table(cells, heads, justify="lllrrrr"))
    print()
    for table in dict.fromkeys(row.table for row in rows):
        some = [row for row in rows if row.table == table]
        print(f"{table}: median {median_error(some):.1%} of {len(some)} points")


def _rate(value: float) -> str:
    return f"{value:,.2f}" if value < 10 else f"{value:,.1f}"


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw every point: predicted against published samples per second."""
    colours = {"T1": "#0072B2", "T2": "#D55E00", "T4": "#009E73", "T6": "#CC79A7"}
    with figures.settings("paceline"):
        page = blank_page(480, 440, layout="constrained")
        axes = page.subplots()
        every = [value for row in rows for value in (row.published, row.predicted)]
        ends = [0.7 * min(every), 1.4 * max(every)]
        axes.plot(ends, ends, color=GREY, linewidth=0.8)
        lines = [[share * end for end in ends] for share in (0.9, 1.1)]
        axes.fill_between(ends, *lines, color=FAINT, label="within 10 %")
        for table, colour in colours.items():
            some = [row for row in rows if row.table == table]
            axes.plot(
                [row.published for row in some], [row.predicted for row in some], "o", markersize=5, alpha=0.9,
                color=colour, markeredgecolor="white", markeredgewidth=0.5, label=table,
            )  # fmt: skip
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
        axes.set_xlabel("published, samples per second")
        axes.set_ylabel("predicted, samples per second")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.set_title("Published measurements and predictions of them", fontsize=11)
        axes.legend(fontsize=8, frameon=False, loc="upper left")
        axes.spines[["top", "right"]].set_visible(False)
        figures.save_page(page, path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="the tables to predict, such as T1,T6 (default: all)")
    parser.add_argument(
        "--jitter", type=float, help="another variation of computing times than the work files'"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    wanted = args.only.split(",") if args.only else None
    points = [point for point in load_points() if wanted is None or point.table in wanted]
    rows = [predict(point, args.jitter) for point in points]
    show(rows)
    if args.json:
        told = [{**asdict(row), "error": row.error} for row in rows]
        args.json.write_text(
            json.dumps({**where(), "median_error": median_error(rows), "points": told}, indent=1) + "\n"
        )
    if args.plot:
        plot(rows, args.plot)
    print(f"median error {100 * median_error(rows):.1f} %")


if __name__ == "__main__":
    main()
