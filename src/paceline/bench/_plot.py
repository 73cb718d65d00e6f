"""The benchmark's result as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.bench.question import spell

# Okabe and Ito's colours, which colour-blind readers can tell apart; the markers tell the same.
STYLES = {
    "naive": ("#999999", "x"),
    "ring": ("#0072B2", "o"),
    "recursive-doubling": ("#E69F00", "^"),
    "rabenseifner": ("#009E73", "v"),
    "shared-memory": ("#D55E00", "s"),
    "hierarchical": ("#CC79A7", "D"),
    "native": ("#000000", "+"),
    "auto": ("#56B4E9", "*"),
}


def plot(result: dict[str, Any], path: Path) -> None:
    """Time and bus bandwidth against the size, a column for each number of ranks; the model's time dotted."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    jobs = result["jobs"]
    figure = Figure(figsize=(2.4 + 4.6 * len(jobs), 8.4), layout="constrained")
    rows = figure.subplots(2, len(jobs), squeeze=False, sharex=True, sharey="row")
    for column, job in enumerate(jobs):
        above, below = rows[0][column], rows[1][column]
        crowded = " (more ranks than cores)" if job["oversubscribed"] else ""
        above.set_title(f"{job['ranks']} ranks on {job['cores']} cores{crowded}")
        for name in dict.fromkeys(cell["algorithm"] for cell in job["cells"]):
            cells = [cell for cell in job["cells"] if cell["algorithm"] == name]
            sizes = [cell["size"] for cell in cells]
            colour, marker = STYLES.get(name, ("#F0E442", "p"))
            look = {"color": colour, "marker": marker, "markersize": 5, "linewidth": 1.4}
            middle = [1e6 * cell["median"] for cell in cells]
            above.plot(sizes, middle, label=name, **look)
            below_it = [m - 1e6 * cell["p10"] for m, cell in zip(middle, cells, strict=True)]
            above_it = [1e6 * cell["p90"] - m for m, cell in zip(middle, cells, strict=True)]
            bars = {"fmt": "none", "ecolor": colour, "alpha": 0.5, "capsize": 2, "linewidth": 0.8}
            above.errorbar(sizes, middle, yerr=[below_it, above_it], **bars)
            if all(cell["model"] for cell in cells):
                above.plot(sizes, [1e6 * cell["model"] for cell in cells], ":", color=colour, linewidth=1)
            below.plot(sizes, [1e-9 * cell["busbw"] for cell in cells], label=name, **look)
        above.set_yscale("log")
        below.set_xscale("log", base=4)
        below.xaxis.set_major_formatter(FuncFormatter(lambda size, _: spell(round(size))))
        below.tick_params(axis="x", rotation=45)
        below.set_xlabel("size of the array")
        for axes in (above, below):
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
    rows[0][0].set_ylabel("time in us")
    rows[1][0].set_ylabel("bus bandwidth in GB/s")
    handles, labels = rows[0][0].get_legend_handles_labels()
    figure.legend(
        handles, labels, ncols=min(4 * len(jobs), len(labels)), loc="outside lower center", frameon=False
    )
    figure.suptitle(f"allreduce of {result['dtype']}: median time, bars from p10 to p90, dotted the model")
    figure.savefig(path, dpi=150)
