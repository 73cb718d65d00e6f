"""The answers to the course's questions, in words, with the figures of what was measured."""

import textwrap

import figures

NAMES = {
    "sync": "sync, our ring",
    "sync --collective": "sync, MPI's Allreduce",
}
HALF = 0.5  # a network below it has not learnt
QUIET = 0.1  # so many other threads are no disturbance


def answers(measured):
    """The whole of REPORT.md."""
    parts = [head, times, laws, accuracy, splitting, divergence, costs]
    blocks = [block for part in parts for block in part(measured).strip().split("\n\n")]
    return "\n\n".join(block if block[0] in "|#" else wrapped(block) for block in blocks) + "\n"


def head(measured):
    machine, settings, seconds = (
        measured["machine"],
        measured["settings"],
        [r["seconds"] for r in measured["serial"]],
    )
    layers = "-".join(map(str, measured["serial"][0]["layers"]))
    busy = (
        f"**Other work was running while this was measured** ({machine['others']:.1f} other threads on average, in every "
        "one of 50 looks before each case): the times below are longer than this machine's own."
        if machine["others"] > QUIET
        else ""
    )
    return f"""
# Report

Made by `python3 report.py` on {machine["cores"]} cores ({machine["processor"]}) with {machine["mpi"]}, Python
{machine["python"]} and NumPy {machine["numpy"]}, one thread a process. Network {layers};
{settings["epochs"]} epoch{"s" * (settings["epochs"] > 1)} of {settings["batches"]} batches of {settings["batch"]} samples,
learning rate 0.1 on the summed gradient. Times are those of `fit`, the start of MPI included and validation left out.
Serial was run alone, between the others: {len(seconds)} times, {min(seconds):.2f} to {max(seconds):.2f} s, of which the
median is used. {busy}

An asterisk marks more ranks than cores. Such ranks share the cores and can be no faster; they are here for their
accuracy and for what they send.
"""


def times(measured):
    t1 = figures.serial_time(measured)
    runs = [(NAMES[r["way"]], r, "") for r in figures.fixed(measured)]
    runs += [
        (f"async, {masters(r['masters'])}", r, figures.workers(r))
        for r in figures.served(measured, "adaptive")
    ]
    rows = [["serial", 1, "", f"{t1:.2f}", "1.00", percent(figures.serial_accuracy(measured))]]
    for name, r, workers in runs:
        s = r["seconds"]
        ranks = starred(measured, r["ranks"])
        rows.append([name, ranks, workers, f"{s:.2f}", f"{t1 / s:.2f}", percent(r["accuracy"])])
    name, best, _ = min(runs, key=lambda run: run[1]["seconds"])
    factor = t1 / best["seconds"]
    verdict = (
        f"The fastest was {name} on {best['ranks']} ranks, {factor:.2f} times as fast as one process."
        if factor > 1
        else f"Nothing was faster than one process; the nearest was {name} on {best['ranks']} ranks, at {factor:.2f} of "
        "its speed."
    )
    p = min(map(int, measured["allreduce"]))
    row, step = figures.like_the_gradient(measured, p), figures.step_time(measured)
    ring, native, saved = row["ring"]["seconds"], row["MPI"]["seconds"], step * (1 - 1 / p)
    pays = "so it cannot pay" if min(ring, native) > saved else "which leaves little to win"
    return f"""
## Run times and speedup

{table(["way", "ranks", "workers", "time (s)", "speedup", "test accuracy"], rows)}

{verdict} A batch takes one process {1000 * step:.2f} ms, so dividing it among {p} ranks saves at most
{1000 * saved:.2f} ms a step. Summing {row["size"]:,} numbers on {p} ranks (the gradient has
{sum(figures.layer_sizes(measured)):,}) takes {1000 * ring:.2f} ms round our ring and {1000 * native:.2f} ms with MPI's
Allreduce, {pays}. More computing for each exchange is what helps: larger batches, see the next answer.
"""


def laws(measured):
    t1, settings = figures.serial_time(measured), measured["settings"]
    strong, weak, fitted = [], [], []
    for way, name in NAMES.items():
        points = [(r["ranks"], t1 / r["seconds"]) for r in figures.fixed(measured, way)]
        fitted.append(f"{figures.fitted_fraction(points):.2f} ({name})")
        for p, s in points:
            strong.append([name, starred(measured, p), f"{s:.2f}", f"{figures.serial_fraction(s, p):.2f}"])
    for r in figures.grown(measured):
        p = r["ranks"]
        s = p * t1 / r["seconds"]
        weak.append([starred(measured, p), settings["batch"] * p, f"{s:.2f}", f"{(p - s) / (p - 1):.2f}"])
    return f"""
## Amdahl or Gustafson?

Amdahl: the work is fixed. However many ranks there are, an epoch is {settings["batches"]} batches of
{settings["batch"]} samples, of which each rank gets {settings["batch"]} // p. Amdahl's serial fraction f follows from each
speedup S: f = (1/S - 1/p) / (1 - 1/p). Fitted over all p it is {" and ".join(fitted)}.

{table(["way", "ranks", "speedup", "serial fraction f"], strong)}

If a part of the program were serial, f would be the same for all p, and below 1. What is in it here is the exchange,
which one process does not have at all and which grows with p: f above 1 says that p ranks are slower than one process.

Gustafson's law is for work that grows with the ranks. With {settings["batch"]} samples for each rank in every batch, as
many batches as before and the rate divided by p, the scaled speedup S is p times serial's time over the measured one, and
f = (p - S) / (p - 1):

{table(["ranks", "batch", "scaled speedup", "serial fraction f"], weak)}
"""


def accuracy(measured):
    serial, synced = (
        percent(figures.serial_accuracy(measured)),
        [r["accuracy"] for r in figures.fixed(measured)],
    )
    rows = [
        [figures.workers(r), r["masters"], f"{r['staleness']:.1f}", percent(r["accuracy"])]
        for r in figures.served(measured, "adaptive")
    ]
    return f"""
## Accuracy by workers and masters

{table(["workers", "masters", "mean staleness", "test accuracy"], rows)}

Serially it is {serial}. How many masters there are changes who owns which layer, not what is computed; how many workers,
how stale the gradients are. (The masters' default rule is another optimizer than the plain steps of serial training: with
one worker, nothing being stale, it is the better one.)

Synchronous training is serial training with the additions in another order: {percent(min(synced))} to
{percent(max(synced))} here, with other random batches. That takes rank 0's weights on all ranks at the start. Where each
goes on with the weights that it drew itself, the sum of the gradients belongs to none of the networks: that, and not the
exchange, is how synchronous runs lose accuracy.
"""


def splitting(measured):
    sizes, rows = figures.layer_sizes(measured), []
    for count in sorted({r["masters"] for r in measured["async"]}):
        shares = figures.owned(measured, count)
        took = [
            f"{r['seconds']:.2f} s on {starred(measured, r['ranks'])}"
            for r in figures.served(measured, "adaptive")
            if r["masters"] == count
        ]
        each = ", ".join(f"{share:,}" for share in shares)
        rows.append([count, each, f"{percent(max(shares) / sum(sizes))}", ", ".join(took)])
    return f"""
## Why the parameter server is split

Every gradient goes to a master, and every new value comes from one. For each batch a worker sends and receives
{sum(sizes):,} numbers once; one master does so for all W workers, and makes all their updates. It is the first to be busy
all the time, and from then on more workers only queue. M masters divide the traffic, the updates and the memory.

{table(["masters", "numbers that each owns", "of the fullest", "time on ranks"], rows)}

Whole layers divide badly: one of them has {percent(max(sizes) / sum(sizes))} of this network, and its master as much of all
traffic, however many masters there are; with as many masters as layers, one of them owns the input's placeholder alone.
And every master is a rank that computes no gradients.
"""


def divergence(measured):
    plain, ours, rows = figures.served(measured, "plain"), figures.served(measured, "adaptive"), []
    for one, other in zip(plain, ours, strict=True):
        both = [percent(one["accuracy"]), percent(other["accuracy"])]
        rows.append(
            [figures.workers(one), one["masters"], f"{one['staleness']:.1f}", one["most stale"], *both]
        )
    lost = [r for r in plain if r["accuracy"] < HALF]
    seen = ""
    if lost and min(r["accuracy"] for r in ours) > HALF:
        seen = (
            f"Here that happened with {figures.workers(lost[0])} workers: {percent(lost[0]['accuracy'])}, where guessing "
            f"is 10 %. With the default rule the least of all was {percent(min(r['accuracy'] for r in ours))}."
        )
    return f"""
## Why asynchronous training diverges, and what stops it

While a worker computes, the other workers' gradients are applied. With W workers its own comes about W - 1 updates late:
computed where the parameters were, applied where they are. A step that is as long as a fresh gradient allows is then taken
W times in the same direction before anybody has seen what it did. The parameters overshoot, the sigmoids saturate, their
gradients vanish, and training does not come back. {seen}

{table(["workers", "masters", "mean staleness", "the most", "plain rule", "default rule"], rows)}

What stops it is the masters' rule (`adaptive`, paceline's default). It divides every coordinate of a gradient by the root
mean square of those before it, so that no gradient makes a long step; it shortens the steps as the staleness that it sees
grows; and it answers with a point between the last values and their average. A smaller learning rate helps as well, but
must be chosen anew for every number of workers, and makes all of them learn more slowly.
"""


def costs(measured):
    rows = []
    for p in map(int, measured["allreduce"]):
        row = figures.sums(measured, p)[-1]
        for name in ("naive", "ring"):
            found, (each, everything) = row[name], figures.formula(name, p, row)
            rows.append(
                [
                    name,
                    starred(measured, p),
                    f"{row['size']:,}",
                    f"{found['bytes']:,} ({each:,})",
                    f"{found['bytes in all']:,} ({everything:,})",
                    f"{1000 * found['seconds']:.1f}",
                ]
            )
    equal, cases = figures.as_formula(measured)
    return f"""
## What the two allreduces cost

| | messages a rank | numbers a rank | numbers in all |
|---|---|---|---|
| naive | p - 1 | (p - 1) n | p (p - 1) n |
| ring | 2 (p - 1) | 2 (p - 1) / p n | 2 (p - 1) n |

Naively every rank sends its whole array to each of the others, and all together send more with the square of p. Round the
ring a rank sends p - 1 blocks of n / p numbers twice: less than 2 n, however many ranks there are. Counted where they are
sent, in bytes (of rank 0, and of all ranks together), with the formula's value in brackets, for sums of double precision:

{table(["way", "ranks", "n", "bytes a rank", "bytes in all", "time (ms)"], rows)}

In {equal} of {cases} measured cases (sizes, kinds of numbers, operations) the bytes in all were exactly the formula's. The
ring pays with 2 (p - 1) messages one after the other: for small arrays the naive way can be the faster one.
"""


def wrapped(block):
    return textwrap.fill(" ".join(block.split()), 120, break_long_words=False, break_on_hyphens=False)


def masters(count):
    return f"{count} master{'s' * (count > 1)}"


def starred(measured, p):
    return f"{p} *" if p > measured["machine"]["cores"] else str(p)


def percent(fraction):
    return f"{100 * fraction:.1f} %"


def table(names, rows):
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
