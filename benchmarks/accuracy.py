"""Draws test accuracy against the number of workers of a parameter server, rule by rule, from committed results.

    python benchmarks/accuracy.py docs/accuracy.svg

Dashed lines are the one-process model of `staleness.py`; filled points are real runs over MPI of `asynchronous.py`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean

from paceline.figures import Axis, Curve, Lines, save

RESULTS = Path(__file__).parent / "results"
RULES = {
    "adaptive": "adaptive (default)",
    "rms": "rms",
    "clip": "clip",
    "dc": "dc (delay-compensated)",
    "staleness": "staleness (eta / tau)",
    "plain": "plain",
}
REAL = {
    "serial with the same rule": 1,
    "2 masters + 2 workers": 2,
    "4 masters + 4 workers": 4,
    "2 masters + 6 workers": 6,
    "4 masters + 12 workers": 12,
    "1 master + 31 workers": 31,
}


def draw(path: Path) -> None:
    modelled = json.loads((RESULTS / "staleness.json").read_text())["rules"]
    measured = json.loads((RESULTS / "asynchronous.json").read_text())["accuracy"]
    # Rules have no colours of their own: each borrows one that differs from the others.
    borrowed = dict(
        zip(
            RULES, ("sync", "weight-average", "psgd", "local-sgd", "hogwild", "parameter-server"), strict=True
        )
    )
    curves = []
    for rule, label in RULES.items():
        workers = sorted(map(int, modelled[rule]))
        means = tuple(fmean(modelled[rule][str(w)]) / 100 for w in workers)
        curves.append(
            Curve(label=label, strategy=borrowed[rule], x=tuple(workers), y=means, origin="simulated")
        )
    real = tuple(fmean(measured[name]) / 100 for name in REAL)
    curves.append(
        Curve(
            label="adaptive, over MPI",
            strategy=borrowed["adaptive"],
            x=tuple(REAL.values()),
            y=real,
            joined=False,
        )
    )
    serial = fmean(measured["serial"]) / 100
    figure = Lines(
        name="accuracy",
        title="",
        caption="",
        x=Axis(label="workers", log=True, base=2, ticks=(1, 2, 4, 6, 8, 12, 16, 31, 63)),
        y=Axis(label="test accuracy", percent=True, bounds=(0.0, 1.0)),
        curves=tuple(curves),
        level=(serial, f"serial SGD, {100 * serial:.1f} %"),
    )
    title = "784-128-64-10 on MNIST, 3,160 gradients of 16 samples, mean of 5 seeds"
    save([[figure]], [path], title=title, width=720)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
