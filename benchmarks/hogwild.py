"""Hogwild and gossip on the reference convolutional network: seconds and accuracy beside one process, in one run.

    python benchmarks/hogwild.py [--ranks 4] [--seeds 2] [--epochs 10] [--json FILE]

Everything is held to as many cores as there are ranks (the first ones that this process may use). Runs of all cases are
interleaved, one round a seed; means are shown, speeds by samples a second. "one process" is the strategy `serial` alone on
the machine. "independent" is as many such processes at once, each with its own network and no exchange at all: what the
cores have to give when all of them compute. The defaults take about three minutes on 16 cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from training import paceline
from where import where

KEPT = ("seed", "train_seconds", "samples_per_second", "test_accuracy", "seconds", "bytes_sent", "findings")


def command(words: list[str], cores: list[int], runs: str) -> list[str]:
    held = ["taskset", "-c", ",".join(map(str, cores))]
    return [*held, sys.executable, "-m", "paceline", "train", *words, "--quiet", "--json", "--runs", runs]


def once(words: list[str], cores: list[int]) -> dict[str, Any]:
    summary = paceline(*words, cores=len(cores))
    return {key: summary[key] for key in KEPT}


def time_independent(words: list[str], cores: list[int]) -> float:
    """Return the samples a second of one serial process on each core, in all."""
    with tempfile.TemporaryDirectory() as runs:
        started = [
            subprocess.Popen(command(words, [core], runs), stdout=subprocess.PIPE, text=True)
            for core in cores
        ]
        return sum(json.loads(process.communicate()[0])["samples_per_second"] for process in started)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--draws", type=int, help="batches per epoch, instead of a pass over the data")
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--cases", nargs="+", metavar="STRATEGY", help="beside serial; default: all")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[: args.ranks]
    if len(cores) < args.ranks:
        print(
            f"{args.ranks} ranks on {len(cores)} cores: the figures are not what this measures",
            file=sys.stderr,
        )

    common = ["--data", args.data, "--model", "cnn", "--batch", str(args.batch), "--lr", str(args.lr)]
    length = ["--epochs", str(args.epochs), *(["--draws", str(args.draws)] if args.draws else [])]
    one = ["--strategy", "serial", "--threads", "1"]
    together = ["-n", str(args.ranks), "--threads", "1"]
    strategies = args.cases or ["hogwild", "hogwild:backend=torch", "gossip"]
    cases = {
        "one process, 1 thread": [*one, *length],
        **{f"{name}, {args.ranks} ranks": ["--strategy", name, *together, *length] for name in strategies},
    }
    threads = f"one process, {args.ranks} threads"  # trains the same: a short run tells its speed
    short = ["--epochs", "1", "--draws", "200"]
    alone: list[float] = []
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in (*cases, threads)}
    for seed in range(args.seeds):
        for name, how in cases.items():
            measured[name].append(once([*common, *how, "--seed", str(seed)], cores))
        many = ["--strategy", "serial", "--threads", str(args.ranks)]
        measured[threads].append(once([*common, *many, *short], cores))
        alone.append(time_independent([*common, *one, *short], cores))
        if args.json:  # after every round: a long run may be cut off
            result = {
                **where(),
                "ranks": args.ranks,
                "independent_samples_per_second": alone,
                "runs": measured,
            }
            args.json.write_text(json.dumps(result, indent=2) + "\n")

    def mean(name: str, key: str) -> float:
        return fmean(run[key] for run in measured[name])

    base = next(iter(cases))
    rate, points = mean(base, "samples_per_second"), 100 * mean(base, "test_accuracy")
    print(f"{'':42}{'seconds':>10}{'x faster':>10}{'accuracy':>11}{'points':>9}{'staleness':>11}")
    for name in cases:
        ages = [
            run["findings"]["staleness"]["mean"] for run in measured[name] if "staleness" in run["findings"]
        ]
        accuracy = 100 * mean(name, "test_accuracy")
        print(
            f"{name:42}{mean(name, 'train_seconds'):10.2f}{mean(name, 'samples_per_second') / rate:10.2f}"
            f"{accuracy:9.2f} %{accuracy - points:+9.2f}{f'{fmean(ages):.2f}' if ages else '':>11}"
        )
    print(f"{threads:42}{'':10}{mean(threads, 'samples_per_second') / rate:10.2f}")
    print(f"{f'independent, {args.ranks} processes, no exchange':42}{'':10}{fmean(alone) / rate:10.2f}")


if __name__ == "__main__":
    main()
