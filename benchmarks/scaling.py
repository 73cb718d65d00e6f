"""Samples a second against the number of ranks: paceline's exchanges beside PyTorch DDP, in one run.

    python benchmarks/scaling.py --ranks 1,2,4,8,16 --json benchmarks/results/scaling.json
    python benchmarks/scaling.py --plot docs/scaling.svg --json benchmarks/results/scaling.json --draw-only

The reference network (784-128-64-10), 64 samples a rank, one thread a rank. Runs are interleaved; medians are shown.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from training import REFERENCE, ddp, paceline
from where import where

from paceline.figures import Axis, Curve, Lines, save

SERIES = {
    "shared-memory": "paceline sync:allreduce=shared-memory",
    "native": "paceline sync:allreduce=native (Open MPI's Allreduce)",
    "ring": "paceline sync:allreduce=ring",
    "ddp": "PyTorch DDP (gloo)",
}


def once(series: str, ranks: int) -> float:
    if series == "ddp":
        return ddp(ranks)
    how = (
        ["--strategy", "serial"]
        if ranks == 1
        else ["--strategy", f"sync:allreduce={series}", "-n", str(ranks)]
    )
    words = [
        *REFERENCE,
        "--batch",
        str(64 * ranks),
        "--draws",
        "300",
        "--epochs",
        "2",
        "--threads",
        "1",
        *how,
    ]
    return paceline(*words)["samples_per_second"]


def medians(results: dict[str, Any]) -> dict[str, dict[int, float]]:
    """Samples a second by series and ranks; one process is the same for all of paceline's series."""
    measured = results["samples_per_second"]
    alone = [rate for name in SERIES if name != "ddp" for rate in measured[name].get("1", [])]
    found = {name: {int(p): statistics.median(v) for p, v in measured[name].items()} for name in SERIES}
    for name in found:
        if name != "ddp" and alone:
            found[name][1] = statistics.median(alone)
    return found


def draw(results: dict[str, Any], path: Path) -> None:
    found = medians(results)
    ranks = tuple(sorted(found["ddp"]))
    curves = []
    for name, label in SERIES.items():
        rates = tuple(found[name][p] for p in ranks)
        last = f"{label}: {rates[-1]:,.0f} on {ranks[-1]} ranks"
        curves.append(Curve(label=last, strategy=name, x=ranks, y=rates))
    one = found["shared-memory"][1]
    ideal = tuple(one * p for p in ranks)
    curves.append(Curve(label="one process times ranks", strategy="ideal", x=ranks, y=ideal, origin="ideal"))
    figure = Lines(
        name="scaling",
        title="",
        caption="",
        x=Axis(
            label="ranks, one core and one thread each, 64 samples each per step",
            log=True,
            base=2,
            ticks=ranks,
        ),
        y=Axis(label="training samples per second", log=True),
        curves=tuple(curves),
    )
    save([[figure]], [path], width=720)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", default="1,2,4,8,16")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--draw-only", action="store_true", help="draw what --json holds")
    args = parser.parse_args()
    if not args.draw_only:
        ranks = [int(p) for p in args.ranks.split(",")]
        measured: dict[str, dict[str, list[float]]] = {name: {str(p): [] for p in ranks} for name in SERIES}
        for _ in range(args.repeats):
            for p in ranks:
                for name in SERIES:
                    measured[name][str(p)].append(once(name, p))
            results = {**where(), "samples_per_second": measured}
            args.json.write_text(
                json.dumps(results, indent=2) + "\n"
            )  # after every round: a long run may be cut off
    results = json.loads(args.json.read_text())
    found = medians(results)
    print(f"{'samples/s, median':56}" + "".join(f"{p:>12}" for p in found["ddp"]))
    for name, label in SERIES.items():
        print(f"{label:56}" + "".join(f"{rate:12,.0f}" for rate in found[name].values()))
    if args.plot:
        draw(results, args.plot)


if __name__ == "__main__":
    main()
