"""Synchronous training whose ranks do not begin with the same weights: what that costs in accuracy.

    python benchmarks/starts.py [--seeds 5] [--json FILE]

The reference network in the reference course's setting, in one process: p networks; each computes its piece of every batch
of 16, all make the step of the summed gradient, and rank 0's is tested. All begin with rank 0's weights, or each with
weights that it drew itself.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path

from where import where

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

BATCH, DRAWS, EPOCHS, RATE = 16, 632, 5, 1.6
RANKS = (4, 8, 16)


def train(ranks: int, seed: int, *, own: bool) -> float:
    """Train; return rank 0's accuracy on the test images, in percent."""
    from paceline.data import Batches, load
    from paceline.models.mlp import build
    from paceline.worker.evaluation import score

    data = load("mnist")
    model = build(data, 128, 64, seed=seed)
    starts = [build(data, 128, 64, seed=seed + 1000 * rank * own).x.copy() for rank in range(ranks)]
    pieces = [
        Batches(data.train, batch=BATCH, seed=seed, rank=rank, ranks=ranks, draws=DRAWS)
        for rank in range(ranks)
    ]
    networks = starts if own else starts[:1]
    for epoch in range(EPOCHS):
        for batch in zip(*(each.epoch(epoch) for each in pieces), strict=True):
            total = 0.0
            for rank, piece in enumerate(batch):
                model.x[:] = networks[rank if own else 0]
                model.gradient(piece)
                total = total + model.g
            for x in networks:
                x -= RATE / BATCH * total
    model.x[:] = networks[0]
    found = score(model, data.test)
    return 100 * found.correct / found.answers


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found = {**where(), "batch": BATCH, "draws": DRAWS, "epochs": EPOCHS, "lr": RATE, "accuracy": {}}
    for ranks in RANKS:
        for own in (False, True):
            start = "its own" if own else "rank 0's"
            right = [train(ranks, seed, own=own) for seed in range(asked.seeds)]
            found["accuracy"][f"{ranks} ranks, {start}"] = right
            spread = f"{min(right):.2f} to {max(right):.2f}"
            print(
                f"{ranks:2} ranks, each from {start:8} weights: {statistics.fmean(right):.2f} % ({spread})",
                flush=True,
            )
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
