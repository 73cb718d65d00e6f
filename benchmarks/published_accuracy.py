"""The order of asynchronous and local methods by accuracy: published, and simulated on a small network and data set.

    python benchmarks/published_accuracy.py [--seeds 0,1,2] [--json FILE]

A1: n workers share 40 passes, and exchange every lambda steps (Hermans 2017: MNIST, 784-1000-2000-1000-10). Simulated:
the same workers, passes and lambda on scikit-learn's digits, 64-64-10, batches of 4, so that a worker takes 360 steps of
its own with 40 workers (470 in the thesis). `elastic` is elastic averaging; `local-sgd` averages, with nothing stale.
A2: 82 passes by one process, with and without a server, and by four that exchange at every or at every third step
(Multiverso: CIFAR-10, ResNet-32). Simulated: the same on the digits, batches of 16.
The gradients are computed; the order of events is that of the virtual clock.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from where import where

from paceline import fit, text
from paceline.machine import Costs
from paceline.vmpi import Curves

WORKERS, STEPS = (10, 40), (10, 20, 40)
# Validation accuracy in percent, by lambda and number of workers.
PUBLISHED: dict[str, dict[int, tuple[float, ...]]] = {
    "AGN": {10: (98.43, 95.55), 20: (98.61, 98.40), 40: (98.43, 98.18)},
    "AEASGD": {10: (98.64, 97.99), 20: (98.67, 97.83), 40: (98.58, 97.45)},
}
MULTIVERSO = {
    "1 process, no server": (92.61, "serial", 1),
    "1 process, server": (93.03, "parameter-server:rule=plain", 2),
    "4 processes, every step": (92.15, "parameter-server:rule=plain", 5),
    "4 processes, every third step": (89.61, "local-sgd:every=3", 4),
}


def train(strategy: str, ranks: int, seed: int, costs: Path, **settings: Any) -> float:
    """Return the test accuracy of a simulated run, in percent."""
    fitted = fit(
        "mlp:64", "digits", strategy=strategy, ranks=ranks, on="sim", network="10gbe", machine=str(costs), jitter=0.1,
        seed=seed, threads=1, runs=None, quiet=True, on_divergence="ignore", **settings,
    )  # fmt: skip
    return 100 * (fitted.test_accuracy or 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", default="A1,A2", help="the tables (default: both)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    seeds = [int(seed) for seed in args.seeds.split(",")]
    told: dict[str, Any] = {**where(), "seeds": seeds, "A1": [], "A2": []}
    with tempfile.TemporaryDirectory() as folder:
        costs = Path(folder) / "costs.json"
        Costs(cores=64, work={"gradient": Curves.of({1: [[1, 5e-5], [64, 4e-4]]})}).save(costs)

        def mean(strategy: str, ranks: int, **settings: Any) -> float:
            return statistics.fmean(train(strategy, ranks, seed, costs, **settings) for seed in seeds)

        for name in ("elastic", "local-sgd") if "A1" in args.only else ():
            for steps in STEPS:
                found = [mean(f"{name}:every={steps}", n, epochs=40, batch=4, lr=0.5) for n in WORKERS]
                told["A1"].append({"strategy": name, "lambda": steps, "accuracy": found})
        for name, (published, strategy, ranks) in MULTIVERSO.items() if "A2" in args.only else ():
            found = mean(strategy, ranks, epochs=82, batch=16, lr=0.1)
            told["A2"].append({"name": name, "strategy": strategy, "published": published, "accuracy": found})
    show(told)
    if args.json:
        args.json.write_text(json.dumps(told, indent=1) + "\n")


def show(told: dict[str, Any]) -> None:
    rows = [
        [f"{name}, published", str(steps), *(f"{value:.2f}" for value in values)]
        for name, table in PUBLISHED.items()
        for steps, values in table.items()
    ]
    rows += [
        [row["strategy"], str(row["lambda"]), *(f"{value:.2f}" for value in row["accuracy"])]
        for row in told["A1"]
    ]
    print(text.table(rows, ["A1, accuracy in %", "lambda", *(f"n={n}" for n in WORKERS)], justify="lrrr"))
    print()
    cells = [[row["name"], f"{row['published']:.2f}", f"{row['accuracy']:.2f}"] for row in told["A2"]]
    print(text.table(cells, ["A2", "published, %", "simulated, %"], justify="lrr"))


if __name__ == "__main__":
    main()
