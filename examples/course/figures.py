"""Figures of the report, out of what was measured."""

from itertools import pairwise
from statistics import mean, median

GROWN = "sync, batch grown"
CROWD = (
    4  # ranks for each core: of more that wait for each other at every step, the scheduler would be measured
)
GUESSING = 0.15  # a network of 10 classes below it has learnt nothing


def serial_time(measured):
    return median(run["seconds"] for run in measured["serial"])


def serial_accuracy(measured):
    return mean(run["accuracy"] for run in measured["serial"])


def steps(measured):
    return measured["settings"]["epochs"] * measured["settings"]["batches"]


def cases(runs, *names):
    """The runs that are alike in these: of each case the median run, with the mean accuracy and the times of all.

    Of an even number the median is the mean of the two in the middle, in all that was clocked.
    """
    found = {}
    for run in runs:
        found.setdefault(tuple(run[name] for name in names), []).append(run)
    return [middle(sorted(alike, key=lambda run: run["seconds"])) for alike in found.values()]


def middle(alike):
    two = alike[(len(alike) - 1) // 2], alike[len(alike) // 2]
    clocked = {
        name: mean(run[name] for run in two)
        for name in ("seconds", "computing", "exchange")
        if name in two[0]
    }
    both = {"accuracy": mean(run["accuracy"] for run in alike), "times": [run["seconds"] for run in alike]}
    return two[0] | clocked | both


def split(measured, run):
    """Milliseconds of a step on rank 0: all of it, computing, exchange with waiting, and the rest."""
    one = 1000 / steps(measured)
    whole, computing, exchange = (one * run.get(name, 0) for name in ("seconds", "computing", "exchange"))
    return whole, computing, exchange, whole - computing - exchange


def left_out(measured):
    """Numbers of ranks on which nothing synchronous was measured."""
    return sorted({run["ranks"] for run in measured["async"]} - set(map(int, measured["allreduce"])))


def fixed(measured, way=None):
    """Synchronous runs of the same work as serial's."""
    runs = [run for run in measured["sync"] if run["way"] != GROWN and way in (None, run["way"])]
    return cases(runs, "ranks", "way")


def grown(measured):
    """Synchronous runs with a batch for each rank."""
    return cases([run for run in measured["sync"] if run["way"] == GROWN], "ranks")


def served(measured, rule):
    """Asynchronous runs, by the number of their workers."""
    runs = cases([run for run in measured["async"] if run["rule"] == rule], "ranks", "masters")
    return sorted(runs, key=lambda run: (workers(run), run["masters"]))


def workers(run):
    return run["ranks"] - run["masters"]


def layer_sizes(measured):
    """Numbers of each layer, the input's placeholder first."""
    layers = measured["serial"][0]["layers"]
    return [1 + layers[0], *(n * m + m for n, m in pairwise(layers))]


def owned(measured, masters):
    """Numbers of each of so many masters."""
    sizes = layer_sizes(measured)
    return [sum(sizes[master::masters]) for master in range(masters)]


def serial_fraction(speedup, p):
    """Amdahl's f of one speedup (Karp and Flatt)."""
    return (1 / speedup - 1 / p) / (1 - 1 / p)


def fitted_fraction(points):
    """Amdahl's f by least squares of 1/S = 1/p + f (1 - 1/p), from pairs of ranks and speedup."""
    return sum((1 / s - 1 / p) * (1 - 1 / p) for p, s in points) / sum((1 - 1 / p) ** 2 for p, _ in points)


def sums(measured, p):
    """The measured allreduces of p ranks that sum numbers of double precision, by size."""
    rows = measured["allreduce"][str(p)]
    return sorted(
        (r for r in rows if (r["kind"], r["op"]) == ("float64", "SUM")), key=lambda row: row["size"]
    )


def like_the_gradient(measured, p):
    """The one whose size is nearest to the gradient's."""
    return min(sums(measured, p), key=lambda row: abs(row["size"] - sum(layer_sizes(measured))))


def formula(name, p, row):
    """Bytes that one rank sends, on average, and that all send: what theory says."""
    n = row["size"] * int(row["kind"][-2:]) // 8
    each = (p - 1) * n if name == "naive" else 2 * (p - 1) * n // p
    return each, (p * (p - 1) * n if name == "naive" else 2 * (p - 1) * n)


def as_formula(measured):
    """How many allreduces sent, in all, what theory says; and of how many."""
    cases = [
        row[name]["bytes in all"] == formula(name, int(p), row)[1]
        for p, rows in measured["allreduce"].items()
        for row in rows
        for name in ("naive", "ring")
    ]
    return sum(cases), len(cases)
