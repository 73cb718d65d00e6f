"""Published measurements of distributed training beside the simulator's predictions.

    python benchmarks/published.py [--only T4] [--jitter 0] [--json FILE] [--plot FILE] [--page FILE]

`benchmarks/published/tables.toml` has the measurements with their sources, and the network and strategy of each;
the files beside it have the work: the size of a network and the speed of one device. docs/published.md says where every
other figure comes from. Nothing is fitted to the tables. The last line is the median error of all points. Points are
predicted on all cores at the same time. `--page` writes the points into docs/published.md, between its two marks.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from where import where

from paceline import figures, text
from paceline.figures.drawing import blank_page
from paceline.figures.palette import FAINT, GREY
from paceline.simulate import Options
from paceline.simulate.work import Work, work_load

HERE = Path(__file__).parent / "published"
MESSAGES = 10_000  # about as many are simulated with parameter servers
STEPS = 1024  # of all ranks together, without parameter servers; a rank takes from 4 to 32
MARKS = ("<!-- points -->", "<!-- end of points -->")
COLOURS = {
    "T1": "#0072B2", "T2": "#D55E00", "T4": "#009E73", "T6": "#CC79A7", "T7": "#E69F00", "T8": "#56B4E9", "T9": "#000000",
    "T10": "#7A5195", "T11": "#8C564B", "T12": "#17BECF", "T13": "#4477AA", "T14": "#EE6677",
    "T15": "#228833", "T16": "#BBBBBB", "T17": "#882255", "T18": "#332288", "T19": "#CC3311", "T20": "#0077BB",
    "T21": "#EE7733", "T22": "#33BBEE", "T23": "#AA3377", "T24": "#66CCEE", "T25": "#CCBB44", "T26": "#994455",
    "T27": "#997700", "T28": "#6699CC", "T29": "#117733", "T30": "#DDCC77", "T31": "#AA4466", "T32": "#44AA99",
    "T33": "#1B9E77", "T34": "#D95F02", "T35": "#7570B3", "T36": "#E7298A", "T37": "#66A61E", "T38": "#E6AB02",
    "T39": "#A6761D", "T40": "#1F78B4", "T41": "#B2DF8A", "T42": "#FB9A99", "T43": "#6A3D9A", "T44": "#FF7F00",
    "T45": "#B15928", "A1": "#999933", "A2": "#AA4499", "A3": "#4B0082",
}  # fmt: skip


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
    batch: int | None
    """Samples of all devices together; None: as many for each as its work says."""
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
            batch=series.get("batch"),
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
    candidate = work_load(work, Options(network=point.network), batch=point.batch).candidate(
        point.strategy, point.ranks
    )
    workers, masters = candidate.workers, candidate.masters
    if masters:
        most = workers * max(2, min(8, MESSAGES // (2 * workers * masters)))
    elif candidate.whole_batches:
        most = None
    else:
        most = max(4, min(32, STEPS // workers))
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
        print(f"{table}: median {median_error(some):.1%} of {text.count(len(some), 'point')}")


def _rate(value: float) -> str:
    return f"{value:,.2f}" if value < 10 else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def page_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the tables of the page: a line for each series, with published and predicted figures and the error."""
    lines: list[str] = []
    for table in dict.fromkeys(row["table"] for row in rows):
        some = [row for row in rows if row["table"] == table]
        errors = [abs(row["error"]) for row in some]
        lines += [
            "",
            f"**{table}**, {text.count(len(some), 'point')}, median error {100 * statistics.median(errors):.1f} %:",
            "",
            "| | devices: published, predicted, error |",
            "|---|---|",
        ]
        for name in dict.fromkeys(row["series"] for row in some):
            cells = [
                f"{row['label'] or row['devices']}: {_rate(row['published'])}, {_rate(row['predicted'])}, "
                f"**{100 * row['error']:+.1f} %**"
                for row in some
                if row["series"] == name
            ]
            lines.append(f"| {name} | {' <br> '.join(cells)} |")
    return lines[1:]


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw every point: predicted against published samples per second, and their ratio by table."""
    with figures.settings("paceline"):
        page = blank_page(900, 560, layout="constrained")
        axes, beside = page.subplots(1, 2)
        every = [value for row in rows for value in (row.published, row.predicted)]
        ends = [0.7 * min(every), 1.4 * max(every)]
        axes.plot(ends, ends, color=GREY, linewidth=0.8)
        axes.fill_between(ends, *[[share * end for end in ends] for share in (0.9, 1.1)], color=FAINT)
        beside.axvspan(0.9, 1.1, color=FAINT)
        beside.axvline(1, color=GREY, linewidth=0.8)
        look = {
            "marker": "o",
            "linestyle": "",
            "alpha": 0.8,
            "markeredgecolor": "white",
            "markeredgewidth": 0.4,
        }
        tables = [table for table in COLOURS if any(row.table == table for row in rows)]
        for place, table in enumerate(tables):
            some = [row for row in rows if row.table == table]
            rates = [row.published for row in some], [row.predicted for row in some]
            axes.plot(*rates, color=COLOURS[table], markersize=4.5, **look)
            # Points of the same table are spread over the height of its line, in their order.
            heights = [place - 0.3 + 0.6 * (i + 0.5) / len(some) for i in range(len(some))]
            beside.plot([1 + row.error for row in some], heights, color=COLOURS[table], markersize=4, **look)
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
        axes.set_xlabel("published, samples per second")
        axes.set_ylabel("predicted, samples per second")
        beside.set(
            xscale="log", xlabel="predicted / published; grey: within 10 %", ylim=(len(tables) - 0.4, -0.6)
        )
        beside.set_xticks([0.75, 0.9, 1, 1.1, 1.5, 2, 4], minor=False)
        beside.set_xticks([], minor=True)
        medians = [median_error([row for row in rows if row.table == table]) for table in tables]
        beside.set_yticks(range(len(tables)), [f"{t}  {m:.1%}" for t, m in zip(tables, medians, strict=True)])
        beside.set_ylabel("table and its median error")
        for axis in (axes.xaxis, axes.yaxis, beside.xaxis):
            axis.set_major_formatter(lambda value, _: f"{value:,.9g}")
        page.suptitle(f"{len(rows)} published measurements and predictions of them", fontsize=11)
        for each in (axes, beside):
            each.spines[["top", "right"]].set_visible(False)
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
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    wanted = args.only.split(",") if args.only else None
    points = [point for point in load_points() if wanted is None or point.table in wanted]
    with ProcessPoolExecutor() as pool:
        # The longest first, so that no core is left with one of them at the end.
        longest = sorted(range(len(points)), key=lambda i: points[i].ranks, reverse=True)
        found = dict(
            zip(
                longest,
                pool.map(partial(predict, jitter=args.jitter), [points[i] for i in longest]),
                strict=True,
            )
        )
    rows = [found[i] for i in range(len(points))]
    show(rows)
    told = [{**asdict(row), "error": row.error} for row in rows]
    if args.json:
        args.json.write_text(
            json.dumps({**where(), "median_error": median_error(rows), "points": told}, indent=1) + "\n"
        )
    if args.plot:
        plot(rows, args.plot)
    if args.page:
        before, _, rest = args.page.read_text().partition(MARKS[0])
        after = rest.partition(MARKS[1])[2]
        args.page.write_text("\n".join([before + MARKS[0], "", *page_lines(told), "", MARKS[1] + after]))
    print(f"median error {100 * median_error(rows):.1f} %")


if __name__ == "__main__":
    main()
