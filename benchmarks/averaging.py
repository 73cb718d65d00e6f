"""What averaging buys: psgd and local-sgd against one process, in one run; and what psgd loses without a common start.

    python benchmarks/averaging.py [--ranks 4] [--epochs 20] [--draws 1000] [--batch 16] [--seeds 1] [--json FILE]

The reference cnn on MNIST, as many gradients for all: 20 epochs of 1,000 batches of 16, drawn at random (20 epochs of all
50,000 images are three times as many). One process with one thread on one core, against 4 ranks with one thread each on
4 cores. Then an MLP, trained by psgd in parts that start from the same weights and in parts that start from weights of
their own, as public solutions do.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training import paceline
from where import where

from paceline.models import mlp
from paceline.strategies.psgd import Psgd

HERE = Path(__file__).parent
NETWORK = "mlp:128,64,activation=relu,loss=cross-entropy"


@dataclass(frozen=True, kw_only=True)
class Apart(Psgd):
    """psgd as it should not be: every rank starts from random weights of its own."""

    def train(self, me: Any) -> None:
        own = mlp.build(
            me.data, 128, 64, activation="relu", loss="cross-entropy", seed=1000 * me.seed + me.rank
        )

        def start() -> None:
            me.model.x[:] = own.x

        me.broadcast = start  # instead of rank 0's weights
        super().train(me)


def on_cores(args: argparse.Namespace, strategy: str, ranks: int, seed: int) -> dict[str, Any]:
    words = ["--model", "cnn", "--batch", str(args.batch), "--draws", str(args.draws)]
    words += ["--epochs", str(args.epochs), "--threads", "1", "--seed", str(seed), "--strategy", strategy]
    return paceline(
        *words, *(["-n", str(ranks)] if ranks > 1 else []), cores=None if args.anywhere else ranks
    )


def speed(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    cases = [("serial", 1), ("psgd", args.ranks), (f"local-sgd:every={args.every}", args.ranks)]
    for seed in range(args.seeds):
        for strategy, ranks in cases:
            run = on_cores(args, strategy, ranks, seed)
            row = found.setdefault(
                strategy, {"ranks": ranks, "seconds": [], "test_accuracy": [], "parts_accuracy": []}
            )
            row["seconds"].append(run["train_seconds"])
            row["test_accuracy"].append(run["test_accuracy"])
            parts = run["findings"].get("parts", [])
            row["parts_accuracy"] += [part["test_accuracy"] for part in parts]
    print(f"{'cnn, ' + length(args):44}{'ranks':>6}{'seconds':>10}{'speedup':>9}{'test':>9}{'gap':>8}")
    base = {key: statistics.median(found["serial"][key]) for key in ("seconds", "test_accuracy")}
    for strategy, row in found.items():
        seconds, accuracy = (statistics.median(row[key]) for key in ("seconds", "test_accuracy"))
        gap = f"{100 * (accuracy - base['test_accuracy']):+.2f}"
        print(
            f"{strategy:44}{row['ranks']:6}{seconds:10.1f}{base['seconds'] / seconds:9.2f}{accuracy:9.2%}{gap:>8}"
        )
        if row["parts_accuracy"]:
            worst, best = min(row["parts_accuracy"]), max(row["parts_accuracy"])
            print(f"{'  its parts alone':44}{'':25}{worst:9.2%} to {best:.2%}")
    return found


def length(args: argparse.Namespace) -> str:
    return f"{args.epochs} epochs of {args.draws} x {args.batch}"


def starts(seeds: int) -> dict[str, Any]:
    """Test accuracy of psgd's average, and the mean of its parts', by how it started and into how many parts."""
    found: dict[str, Any] = {}
    print(f"\n{'psgd, 5 epochs of ' + NETWORK:70}{'average':>9}{'parts':>9}")
    for title, strategy in {
        "the same start": "psgd",
        "a start of its own for every rank": "averaging:Apart",
    }.items():
        for ranks in (2, 4):
            words = [
                "--model",
                NETWORK,
                "--batch",
                "16",
                "--lr",
                "0.1",
                "-n",
                str(ranks),
                "--strategy",
                strategy,
            ]
            findings = [paceline(*words, "--seed", str(seed))["findings"] for seed in range(seeds)]
            average = [one["average"]["test_accuracy"] for one in findings]
            parts = [part["test_accuracy"] for one in findings for part in one["parts"]]
            found[f"{title}, {ranks} parts"] = {"average": average, "parts": parts}
            print(
                f"{title + f', {ranks} parts':70}{statistics.median(average):9.2%}{statistics.median(parts):9.2%}"
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--every", type=int, default=100, help="steps of local-sgd between averages")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--draws", type=int, default=1000, help="batches of an epoch, of all ranks together")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--anywhere", action="store_true", help="do not limit runs to the first cores")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    setting = {name: value for name, value in vars(args).items() if name != "json"}
    result = {**where(), "setting": setting, "cnn": speed(args), "starts": starts(args.seeds)}
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
