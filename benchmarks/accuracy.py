"""Draws test accuracy against the number of workers of a parameter server, rule by rule, from committed results.

    python benchmarks/accuracy.py docs/accuracy.svg

Lines are the one-process model of `staleness.py`, rings real runs over MPI of `asynchronous.py`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean

RESULTS = Path(__file__).parent / "results"
SERIES = {
    "adaptive": ("adaptive (default)", "#0072B2", "o-"),
    "rms": ("rms", "#56B4E9", "s-"),
    "clip": ("clip", "#009E73", "^-"),
    "dc": ("dc (delay-compensated)", "#E69F00", "v-"),
    "staleness": ("staleness (eta / tau)", "#CC79A7", "D-"),
    "plain": ("plain", "#D55E00", "x-"),
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
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "paceline"
    modelled = json.loads((RESULTS / "staleness.json").read_text())["rules"]
    measured = json.loads((RESULTS / "asynchronous.json").read_text())["accuracy"]
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    for rule, (label, colour, style) in SERIES.items():
        workers = sorted(map(int, modelled[rule]))
        means = [fmean(modelled[rule][str(w)]) for w in workers]
        axes.plot(workers, means, style, color=colour, label=label, markersize=5, linewidth=1.6)
    rings = [fmean(measured[name]) for name in REAL]
    axes.plot(
        list(REAL.values()),
        rings,
        "o",
        color="#000000",
        fillstyle="none",
        markersize=10,
        label="adaptive, over MPI",
    )
    axes.axhline(fmean(measured["serial"]), color="#888888", linewidth=1, linestyle="--")
    note = {"xytext": (0, -11), "textcoords": "offset points", "color": "#555555", "fontsize": 9}
    axes.annotate("serial SGD", (17.5, fmean(measured["serial"])), **note)
    axes.set_xscale("log", base=2)
    ticks = [1, 2, 4, 6, 8, 12, 16, 31, 63]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(0, 100)
    axes.set_xlabel("workers")
    axes.set_ylabel("test accuracy, %")
    axes.set_title("784-128-64-10 on MNIST, 3,160 gradients of 16 samples, mean of 5 seeds", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower left", fontsize=9, frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=160, metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
