"""The simulator against the real thing: predicted and measured time a step, and accuracy, of the same runs.

    python benchmarks/simulated.py measure --json measured.json [--ranks 2,4,8,16] [--repeats 3]
    python benchmarks/simulated.py predict measured.json [--json FILE] [--plot FILE] [--accuracy asynchronous.json]

`measure` calibrates the machine and the job, then trains the reference network for real: sync with every collective and
the parameter server, on 2 to 16 ranks, 16 samples a rank. `predict` simulates the same runs, on any machine, from what
was calibrated, and puts both sides into one table. With `--accuracy` it also simulates the runs of
benchmarks/asynchronous.py, with the gradients computed, and compares their accuracies and their staleness.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from training import paceline
from where import where

from paceline import Fitted, figures
from paceline.figures.drawing import blank_page
from paceline.figures.palette import FAINT, GREY, style_of

SETTING = {
    "data": "mnist",
    "model": "mlp:128,64",
    "lr": 1.6,
    "threads": 1,
    "on_divergence": "ignore",
    "epochs": 1,
}
COLLECTIVES = (
    "naive", "ring", "recursive-doubling", "rabenseifner", "native", "shared-memory", "hierarchical",
)  # fmt: skip
DRAWS = 1000
SERVER = "parameter-server:masters=4,placement=even"
SERVERS = {
    1: (),
    2: ("masters=1",),
    4: ("masters=1", "masters=2"),
    8: ("masters=2", "masters=4,placement=even"),
    16: ("masters=2", "masters=4,placement=even"),
}


def cases(ranks: list[int]) -> list[tuple[str, int]]:
    sync = [(f"sync:allreduce={name}", p) for p in ranks for name in COLLECTIVES]
    return sync + [(f"parameter-server:{words}", p) for p in ranks for words in SERVERS[p]]


def settings(strategy: str, ranks: int) -> dict:
    server = strategy.startswith("parameter-server")
    draws = DRAWS * (ranks if server else 1)  # as long for each
    return {**SETTING, "strategy": strategy, "draws": draws, "batch_per_rank": 16}


def words(settings: dict) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]


def measure(args: argparse.Namespace) -> None:
    from paceline.config import Config
    from paceline.machine import calibrate, measure_costs
    from paceline.training.job import Job

    ranks = [int(word) for word in args.ranks.split(",")]
    result: dict = {**where(), "setting": {**SETTING, "draws": DRAWS, "batch_per_rank": 16}, "measured": []}
    began = time.monotonic()
    found: list[dict] = []
    for repeat in range(
        args.repeats
    ):  # what is calibrated and what is measured take turns: machines change their speed
        found.append({"calibrated": calibrate(ranks=ranks, seconds=6 * args.seconds).values(), "costs": {}})
        alone = None
        every = [f"sync:allreduce={name}" for name in COLLECTIVES]
        for strategy in ("local-sgd", *every, SERVER):
            job = Job(config=Config(**settings(strategy, 16)), runs=None)
            costs = measure_costs(job, ranks=[1, *ranks], seconds=args.seconds, alone=alone)
            alone = alone or costs
            found[-1]["costs"]["parameter-server" if strategy == SERVER else strategy] = costs.values()
        print(f"calibrated after {time.monotonic() - began:.0f} s", flush=True)
        for strategy, p in cases(ranks):
            with tempfile.TemporaryDirectory() as runs:
                run = paceline(*words(settings(strategy, p)), "-n", str(p), runs=runs)
                kept = {name: run[name] for name in ("train_seconds", "steps", "seconds")}
                kept["step_seconds"] = step_seconds(strategy, run["run"])
            result["measured"].append({"strategy": strategy, "ranks": p, "repeat": repeat, **kept})
        args.json.write_text(json.dumps({**result, **mean_of(found)}) + "\n")
        print(f"measured after {time.monotonic() - began:.0f} s", flush=True)


def mean_of(found: list[Any]) -> Any:
    """The means of the numbers in things of the same shape; of all else the first."""
    first = found[0]
    if isinstance(first, dict):
        return {key: mean_of([one[key] for one in found]) for key in first}
    if isinstance(first, list):
        return [mean_of(list(some)) for some in zip(*found, strict=True)]
    return statistics.fmean(found) if isinstance(first, float) else first


def step_seconds(strategy: str, run: str) -> float:
    """What a step takes: the middle one of those that all ranks take together; of a server's gradients the mean."""
    from paceline.record import Run

    record = Run(run)
    if strategy.startswith("parameter-server"):
        return record.summary["train_seconds"] / record.summary["steps"]
    steps = record.steps
    took = steps["compute"] + steps["exchange"] + steps["update"]
    return float(np.median(np.bincount(steps["step"], took) / np.bincount(steps["step"])))


def predict(args: argparse.Namespace) -> None:
    given = json.loads(args.measured.read_text())
    by_case: dict[tuple[str, int], list[float]] = {}
    for run in given["measured"]:
        by_case.setdefault((run["strategy"], run["ranks"]), []).append(run["step_seconds"])
    result: dict = {**where(), "measured": args.measured.name, "rows": []}
    with calibrated(given) as machine:
        for (strategy, ranks), seconds in sorted(by_case.items()):
            fitted, predicted = simulated(settings(strategy, ranks), ranks, machine, compute=False)
            measured = statistics.median(seconds)
            result["rows"].append({
                "strategy": strategy, "ranks": ranks, "measured": measured, "low": min(seconds), "high": max(seconds),
                "predicted": predicted, "error": predicted / measured - 1, "predicted_seconds": fitted.seconds,
            })  # fmt: skip
        told(result)
        if args.accuracy:
            result["accuracy"] = accuracies(json.loads(args.accuracy.read_text()), machine, args.seeds)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    if args.plot:
        plot(result["rows"], args.plot)


@contextmanager
def calibrated(given: dict) -> Iterator[dict[str, str]]:
    """What was calibrated, as the files that a simulation takes: a machine as its network, and a job's costs."""
    with tempfile.TemporaryDirectory() as folder:
        files = {"network": Path(folder) / "machine.json"}
        files["network"].write_text(json.dumps(given["calibrated"]))
        alone = given["costs"]["local-sgd"]["spread"]  # computing is as uneven with every strategy
        for kind, costs in given["costs"].items():
            files[kind] = Path(folder) / f"costs-{len(files)}.json"
            files[kind].write_text(json.dumps({**costs, "spread": alone}))
        yield {name: str(path) for name, path in files.items()}


def simulated(settings: dict, ranks: int, machine: dict[str, str], *, compute: bool) -> tuple[Fitted, float]:
    """A simulated run, and what a step of it takes."""
    from paceline import fit

    strategy = settings["strategy"]
    costs = machine["parameter-server" if strategy.startswith("parameter") else strategy]
    with tempfile.TemporaryDirectory() as runs:
        fitted = fit(
            **settings, ranks=ranks, on="sim", network=machine["network"], machine=costs, compute=compute, runs=runs,
            quiet=True,
        )  # fmt: skip
        return fitted, step_seconds(strategy, str(fitted.run))


def told(result: dict) -> None:
    print(f"{'us a step':48}{'ranks':>6}{'measured':>10}{'low':>9}{'high':>9}{'predicted':>11}{'error':>8}")
    for row in result["rows"]:
        micro = [1e6 * row[name] for name in ("measured", "low", "high", "predicted")]
        print(
            f"{row['strategy']:48}{row['ranks']:6}{micro[0]:10.0f}{micro[1]:9.0f}{micro[2]:9.0f}{micro[3]:11.0f}"
            f"{100 * row['error']:+7.0f}%"
        )
    kinds = {"sync": [], "parameter-server": []}
    for row in result["rows"]:
        kinds[row["strategy"].partition(":")[0]].append(abs(row["error"]))
    kinds["all"] = kinds["sync"] + kinds["parameter-server"]
    result["median_error"] = {kind: statistics.median(errors) for kind, errors in kinds.items() if errors}
    for kind, error in result["median_error"].items():
        print(f"median error, {kind}: {100 * error:.1f} % of {len(kinds[kind])} cases", flush=True)


def accuracies(measured: dict, machine: dict[str, str], seeds: int) -> dict:
    """The parameter server's runs of benchmarks/asynchronous.py, simulated with their gradients."""
    found = {}
    print(f"{'accuracy':30}{'measured':>10}{'simulated':>11}{'points':>8}{'staleness':>11}{'simulated':>11}")
    for name, words, ranks in (
        ("2 masters + 6 workers", "masters=2", 8),
        ("4 masters + 12 workers", "masters=4,placement=even", 16),
    ):
        runs = [
            simulated(
                {**SETTING, "strategy": f"parameter-server:{words}", "draws": 632, "batch": 16, "epochs": 5, "seed": seed},
                ranks, machine, compute=True,
            )[0]
            for seed in range(seeds)
        ]  # fmt: skip
        right = [100 * run.test_accuracy for run in runs]
        stale = [run.findings["staleness"]["mean"] for run in runs]
        real, old = measured["accuracy"][name][:seeds], measured["staleness"][name][:seeds]
        found[name] = {"measured": real, "simulated": right, "staleness": old, "simulated_staleness": stale}
        means = [statistics.fmean(values) for values in (real, right, old, stale)]
        print(
            f"{name:30}{means[0]:10.2f}{means[1]:11.2f}{means[1] - means[0]:+8.2f}{means[2]:11.1f}{means[3]:11.1f}"
        )
    return found


def plot(rows: list[dict], path: Path) -> None:
    with figures.settings("paceline"):
        page = blank_page(480, 440, layout="constrained")
        axes = page.subplots()
        every = [1e3 * row[name] for row in rows for name in ("measured", "predicted")]
        ends = [0.8 * min(every), 1.25 * max(every)]
        axes.plot(ends, ends, color=GREY, linewidth=0.8)
        axes.fill_between(
            ends, [0.85 * end for end in ends], [1.15 * end for end in ends], color=FAINT, label="within 15 %"
        )
        markers = {2: "o", 4: "s", 8: "^", 16: "D"}
        names = [row["strategy"].replace("sync:allreduce=", "").partition(":")[0] for row in rows]
        # The server has the colour of a collective that is not shown: its own is that of shared memory.
        shown = {name: "auto" if name == "parameter-server" else name for name in names}
        colours = {name: style_of(look).colour for name, look in shown.items()}
        for name, row in zip(names, rows, strict=True):
            axes.plot(
                1e3 * row["measured"], 1e3 * row["predicted"], markers[row["ranks"]], markersize=6, alpha=0.9,
                color=colours[name], markeredgecolor="white", markeredgewidth=0.5,
            )  # fmt: skip
        for name, colour in colours.items():
            label = f"sync, {name}" if name in COLLECTIVES else name
            axes.plot([], [], "o", color=colour, label=label)
        for ranks, marker in markers.items():
            axes.plot([], [], marker, color=GREY, label=f"{ranks} ranks")
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
        axes.set_xlabel("measured, ms per step")
        axes.set_ylabel("simulated, ms per step")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:.0e}"[0] in "25" else "")
        axes.set_title("Time per step, simulated and measured, on 16 cores", fontsize=11)
        axes.legend(fontsize=8, frameon=False, loc="upper left", ncols=2)
        axes.spines[["top", "right"]].set_visible(False)
        figures.save_page(page, path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    first = commands.add_parser("measure")
    first.add_argument("--json", type=Path, required=True)
    first.add_argument("--ranks", default="2,4,8,16")
    first.add_argument("--repeats", type=int, default=3)
    first.add_argument(
        "--seconds",
        type=float,
        default=1.0,
        help="for each kind of the job's work, with each number of ranks",
    )
    first.set_defaults(main=measure)
    second = commands.add_parser("predict")
    second.add_argument("measured", type=Path)
    second.add_argument("--json", type=Path)
    second.add_argument("--plot", type=Path)
    second.add_argument("--accuracy", type=Path)
    second.add_argument("--seeds", type=int, default=5)
    second.set_defaults(main=predict)
    args = parser.parse_args()
    args.main(args)


if __name__ == "__main__":
    main()
