"""Training throughput: paceline's strategies against one process and against PyTorch DDP, both sides in one run.

    python benchmarks/training.py [--ranks 16] [--repeats 3] [--json FILE]

Runs of both sides are interleaved; each figure is the median of the repeats. "one process" is the strategy `serial` of
this package, alone on the machine, with one thread and with all threads. "independent" is as many such processes at
once, each with its own network and no exchange at all: what the cores have to give when all of them compute.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from peers import NETWORKS, on_processes
from where import where

HERE = Path(__file__).parent
REFERENCE = ["--data", "mnist", "--model", "mlp:128,64", "--lr", "1.6"]
COURSE = [*REFERENCE, "--batch", "16", "--draws", "632", "--epochs", "5"]


def paceline(*arguments: str, cores: int | None = None, runs: str | None = None) -> dict:
    """One run; `cores` limits it to the first so many of the cores that may be used; `runs`: where its record is kept."""
    if runs is None:
        with tempfile.TemporaryDirectory() as folder:
            return paceline(*arguments, cores=cores, runs=folder)
    usable = sorted(os.sched_getaffinity(0))[:cores]
    limit = ["taskset", "-c", ",".join(map(str, usable))] if cores else []
    command = [
        *limit,
        sys.executable,
        "-m",
        "paceline",
        "train",
        *arguments,
        "--quiet",
        "--json",
        "--runs",
        runs,
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, cwd=HERE)
    return json.loads(done.stdout)


def ddp(ranks: int) -> float:
    """Samples a second of the reference network under DDP, 64 samples a rank."""
    found = on_processes("ddp", NETWORKS["mlp"], ranks=ranks, seconds=3.0)
    return found["samples_per_second"]


def time_independent(ranks: int) -> float:
    """Return the samples a second of `ranks` serial processes at once, one on each core, in all."""
    words = [
        *REFERENCE,
        "--strategy",
        "serial",
        "--threads",
        "1",
        "--batch",
        "64",
        "--draws",
        "2500",
        "--epochs",
        "1",
    ]
    with tempfile.TemporaryDirectory() as runs:
        command = [sys.executable, "-m", "paceline", "train", *words, "--quiet", "--json", "--runs", runs]
        started = [
            subprocess.Popen(["taskset", "-c", str(core), *command], stdout=subprocess.PIPE, text=True)
            for core in sorted(os.sched_getaffinity(0))[:ranks]
        ]
        return sum(json.loads(process.communicate()[0])["samples_per_second"] for process in started)


def cases(ranks: int) -> dict:
    """Name -> a function that measures once and returns samples a second."""
    rate = "samples_per_second"
    big = [*REFERENCE, "--batch", str(64 * ranks), "--epochs", "20"]
    return {
        f"serial, batch {64 * ranks}, 1 thread": lambda: paceline(
            *big, "--strategy", "serial", "--threads", "1"
        )[rate],
        f"serial, batch {64 * ranks}, all threads": lambda: paceline(*big, "--strategy", "serial")[rate],
        **{
            f"sync:{name}, {ranks} ranks x 64": lambda name=name: paceline(
                *big, "--strategy", f"sync:allreduce={name}", "-n", str(ranks)
            )[rate]
            for name in ("shared-memory", "shared-memory,balance=true", "native", "ring")
        },
        f"independent, {ranks} processes x 64, no exchange": lambda: time_independent(ranks),
        f"PyTorch DDP (gloo), {ranks} ranks x 64": lambda: ddp(ranks),
        "course setting, serial, 1 thread, 4 cores": lambda: paceline(
            *COURSE, "--strategy", "serial", "--threads", "1", cores=4
        )[rate],
        **{
            f"course setting, sync:{name}, 4 ranks, 4 cores": lambda name=name: paceline(
                *COURSE, "--strategy", f"sync:allreduce={name}", "-n", "4", cores=4
            )[rate]
            for name in ("shared-memory", "native", "ring")
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    measured: dict[str, list[float]] = {}
    for _ in range(args.repeats):
        for name, measure in cases(args.ranks).items():
            measured.setdefault(name, []).append(measure())
    medians = {name: statistics.median(values) for name, values in measured.items()}
    serial = next(v for name, v in medians.items() if name.startswith("serial") and "1 thread" in name)
    course = medians["course setting, serial, 1 thread, 4 cores"]
    peer = next(v for name, v in medians.items() if name.startswith("PyTorch"))
    print(f"{'':52}{'samples/s':>12}{'low':>12}{'high':>12}{'x serial':>10}{'x DDP':>9}")
    for name, rate in medians.items():
        base = course if name.startswith("course") else serial
        against = "" if name.startswith("course") else f"{rate / peer:.2f}"
        low, high = min(measured[name]), max(measured[name])
        print(f"{name:52}{rate:12,.0f}{low:12,.0f}{high:12,.0f}{rate / base:10.2f}{against:>9}")
    if args.json:
        result = {**where(), "samples_per_second": measured}
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
