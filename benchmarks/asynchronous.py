"""The parameter server: accuracy with more and more workers, and speed against one process, in one run.

    python benchmarks/asynchronous.py [--seeds 5] [--repeats 5] [--json FILE]

The reference network 784-128-64-10 (sigmoid, squared error) in the reference course's setting: 5 x 632 batches of 16,
eta 0.1 on the summed gradient (1.6 on the mean). Every strategy computes the same number of gradients. "serial with the
same rule" is the parameter server with one worker: no gradient is stale. Accuracies are on the test set, the mean over
the seeds; speeds are medians of interleaved repeats, with another one-thread serial run before each.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from training import paceline
from where import where

COURSE = [
    "--data",
    "mnist",
    "--model",
    "mlp:128,64",
    "--draws",
    "632",
    "--epochs",
    "5",
    "--lr",
    "1.6",
    "--threads",
    "1",
]
SERVER = "parameter-server:masters="
ACCURACY = {
    "serial": ("serial", 1),
    "serial with the same rule": (f"{SERVER}1", 2),
    "2 masters + 2 workers": (f"{SERVER}2", 4),
    "2 masters + 6 workers": (f"{SERVER}2", 8),
    "4 masters + 4 workers": (f"{SERVER}4,placement=even", 8),
    "4 masters + 12 workers": (f"{SERVER}4,placement=even", 16),
    "1 master + 31 workers": (f"{SERVER}1", 32),
    "plain rule, 2 masters + 2 workers": (f"{SERVER}2,rule=plain", 4),
    "plain rule, 2 masters + 6 workers": (f"{SERVER}2,rule=plain", 8),
    "sync, 4 ranks": ("sync", 4),
    "sync, 8 ranks": ("sync", 8),
    "sync, 16 ranks": ("sync", 16),
}
SPEED = {
    "even, 4 masters + 12 workers": (f"{SERVER}4,placement=even", 16),
    "layers, 3 masters + 12 workers": (f"{SERVER}3", 15),
}


def train(strategy: str, ranks: int, *, batch: int, seed: int) -> dict:
    words = [
        *COURSE,
        "--batch",
        str(batch),
        "--seed",
        str(seed),
        "--strategy",
        strategy,
        "--on-divergence",
        "ignore",
    ]
    return paceline(*words, *(["-n", str(ranks)] if ranks > 1 else []))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5, help="0: no accuracies")
    parser.add_argument("--repeats", type=int, default=5, help="0: no speeds")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result: dict = {**where(), "accuracy": {}, "staleness": {}, "seconds": {}}

    def keep() -> None:
        if args.json:
            args.json.write_text(json.dumps(result, indent=2) + "\n")

    for batch in (16, 128):
        for _ in range(args.repeats):
            for name, (strategy, ranks) in SPEED.items():
                took = result["seconds"].setdefault(
                    f"{name}, batch {batch}", {"serial": [], "parameter-server": []}
                )
                took["serial"].append(train("serial", 1, batch=batch, seed=0)["train_seconds"])
                took["parameter-server"].append(train(strategy, ranks, batch=batch, seed=0)["train_seconds"])
                keep()
    print(f"{'speed, at equal number of gradients':44}{'serial':>10}{'server':>10}{'times':>8}")
    for name, took in result["seconds"].items():
        one, many = (statistics.median(took[side]) for side in ("serial", "parameter-server"))
        print(f"{name:44}{one:8.3f} s{many:8.3f} s{one / many:8.2f}", flush=True)

    if args.seeds == 0:
        return
    print(f"\n{'accuracy':44}{'mean':>8}{'low':>8}{'high':>8}{'staleness':>11}")
    for name, (strategy, ranks) in ACCURACY.items():
        runs = [train(strategy, ranks, batch=16, seed=seed) for seed in range(args.seeds)]
        right = [100 * run["test_accuracy"] for run in runs]
        result["accuracy"][name] = right
        stale = [run["findings"]["staleness"]["mean"] for run in runs if "staleness" in run["findings"]]
        result["staleness"][name] = stale
        shown = f"{statistics.fmean(stale):11.1f}" if stale else ""
        print(f"{name:44}{statistics.fmean(right):8.2f}{min(right):8.2f}{max(right):8.2f}{shown}", flush=True)
        keep()


if __name__ == "__main__":
    main()
