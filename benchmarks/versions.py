"""Two installed versions of paceline side by side: training speed, time to start, and speed of the simulator.

    python benchmarks/versions.py --old OLD/bin/python --new NEW/bin/python [--ranks 4,16] [--repeats 5] [--json FILE]

Each case runs with both versions in turn, in alternating order, so that a noisy moment falls on both. A figure is the
median over the repeats; the ratio is new / old of that figure, with the range of the ratios of single repeats beside it.
Training is measured by `samples_per_second` of the run's record, the start and the simulator by the command's wall time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

MNIST = ["--data", "mnist", "--model", "mlp:128,64", "--epochs", "2", "--lr", "0.01"]


def cases(ranks: list[int]) -> dict[str, tuple[str, list[str]]]:
    """Return the cases by name: what is measured ("speed" or "wall") and the arguments of `paceline train`."""
    found: dict[str, tuple[str, list[str]]] = {
        "serial, batch 16": ("speed", [*MNIST, "--strategy", "serial", "--batch", "16"]),
        "serial, batch 256": ("speed", [*MNIST, "--strategy", "serial", "--batch", "256"]),
    }
    for n in ranks:
        on = ["-n", str(n), "--batch", str(16 * n)]
        for algorithm in ("shared-memory", "native", "ring", "recursive-doubling", "rabenseifner", "naive"):
            found[f"sync:allreduce={algorithm}, {n} ranks"] = (
                "speed",
                [*MNIST, *on, "--strategy", f"sync:allreduce={algorithm}"],
            )
        for strategy in (
            "main-worker",
            "weight-average",
            "local-sgd:every=16",
            "elastic",
            "psgd",
            "hogwild",
            "gossip",
            f"parameter-server:masters={max(1, n // 4)},placement=even",
        ):
            found[f"{strategy}, {n} ranks"] = (
                "speed",
                [*MNIST, "-n", str(n), "--batch", "16", "--strategy", strategy],
            )
    most = max(ranks)
    found[f"start and end, {most} ranks"] = ("wall", [*MNIST[:4], "--epochs", "0", "-n", str(most)])
    simulated = [*MNIST[:4], "--on", "sim", "--network", "10gbe"]
    found["simulator: 64 ranks, computed"] = (
        "wall",
        [*simulated, "-n", "64", "--batch", "1024", "--epochs", "1"],
    )
    found["simulator: 1,024 ranks, time only"] = (
        "wall",
        [*simulated, "-n", "1024", "--batch", "16384", "--epochs", "1", "--no-compute"],
    )
    return found


def measure(python: str, kind: str, arguments: list[str], seed: int) -> float:
    """Run one case with one version; return samples a second, or runs a second for wall time."""
    with tempfile.TemporaryDirectory() as folder:
        command = [python, "-m", "paceline", "train", *arguments, "--runs", folder, "--name", "r", "--quiet"]
        begun = time.perf_counter()
        done = subprocess.run([*command, "--seed", str(seed)], capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - begun
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: status {done.returncode}\n{done.stdout}{done.stderr}")
        if kind == "wall":
            return 1 / seconds
        return float(json.loads((Path(folder) / "r" / "summary.json").read_text())["samples_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--old", required=True, help="the Python of the environment with the old version")
    parser.add_argument("--new", required=True, help="the Python of the environment with the new version")
    parser.add_argument("--ranks", default="4,16")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--only", default="", help="only cases whose name contains one of these, separated by commas"
    )
    parser.add_argument("--seconds", type=float, default=1e9, help="start no further case after so long")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    pythons = {"old": asked.old, "new": asked.new}
    begun, table = time.monotonic(), {}
    print(f"{'case':48} {'old':>12} {'new':>12} {'new/old':>8}  range")
    for name, (kind, arguments) in cases([int(n) for n in asked.ranks.split(",")]).items():
        if not any(part in name for part in asked.only.split(",")):
            continue
        if time.monotonic() - begun > asked.seconds:
            print(f"{name:48} not measured: out of time")
            continue
        figures: dict[str, list[float]] = {"old": [], "new": []}
        for repeat in range(asked.repeats):
            for version in ("old", "new") if repeat % 2 == 0 else ("new", "old"):
                figures[version].append(measure(pythons[version], kind, arguments, repeat))
        old, new = (statistics.median(figures[version]) for version in ("old", "new"))
        ratios = [b / a for a, b in zip(figures["old"], figures["new"], strict=True)]
        unit = "samples/s" if kind == "speed" else "runs/s"
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{name:48} {old:12,.4g} {new:12,.4g} {new / old:8.3f}  {spread}  {unit}", flush=True)
        table[name] = {"unit": unit, "arguments": arguments, **figures, "ratio": new / old}
    if asked.json:
        machine = {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "machine": platform.machine(),
        }
        asked.json.write_text(json.dumps({"machine": machine, "cases": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
