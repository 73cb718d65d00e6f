"""The answers to the course's questions, with the measured figures."""

import textwrap

from speed import laws, times
from wording import QUIET, mark_crowded, percent, table

import figures

SPOILED = 0.05  # accuracy lost against the best run of the same rule


def answers(measured):
    """Return the text of REPORT.md."""
    parts = [head, times, laws, accuracy, splitting, divergence, costs]
    blocks = [block for part in parts for block in part(measured).strip().split("\n\n")]
    return "\n\n".join(block if block[0] in "|#" else wrap(block) for block in blocks) + "\n"


def spoiled(plain):
    """Name the runs of the rule `plain` that learned something, but far less than those with few workers."""
    best = max(r["accuracy"] for r in plain)
    some = [r for r in plain if figures.GUESSING <= r["accuracy"] < best - SPOILED]
    if not some:
        return ""
    said = ", ".join(f"{percent(r['accuracy'])} with {figures.workers(r)}" for r in some)
    return f"Fewer workers can lose accuracy as well: {said}. "


def head(measured):
    machine, settings, seconds = (
        measured["machine"],
        measured["settings"],
        [r["seconds"] for r in measured["serial"]],
    )
    layers = "-".join(map(str, measured["serial"][0]["layers"]))
    busy = (
        f"**Other work was running during the measurements**: the machine was sampled {machine['looks']} times before "
        f"each case, and {machine['others']:.1f} other threads were running on average. The times below are longer than "
        "those of an idle machine."
        if machine["others"] > QUIET
        else ""
    )
    crowds = figures.left_out(measured)
    missing = (
        f"Nothing synchronous was measured on {' and '.join(map(str, crowds))} ranks: with more than {figures.CROWD} for "
        "each core, which wait for each other at every step, the times would only show the scheduler. "
        if crowds
        else ""
    )
    runs = [*figures.fixed(measured), *figures.served(measured, "adaptive")]
    crowded = (
        "An asterisk marks more ranks than cores. Such ranks take turns: together they compute no more than one rank per "
        "core would, and each may have to wait for its turn. They are shown for their accuracy and their messages. "
        if max(r["ranks"] for r in runs) > machine["cores"]
        else ""
    )
    most = max(len(r["times"]) for r in runs)
    apart = max([max(seconds) / min(seconds), *(r["times"][-1] / r["times"][0] for r in runs)])
    repeated = (
        f"Short parallel runs were repeated up to {most} times (those of the rule `plain` were not): the table has the "
        f"median, minimum and maximum time, and the mean accuracy. The slowest of the same runs took up to {apart:.1f} "
        "times as long as the fastest; a time from a single run can be off by as much. "
        if most > 1
        else "Every parallel case was run once. "
    )
    return f"""
# Report

Made by `python3 report.py` on {machine["cores"]} cores ({machine["processor"]}) with {machine["mpi"]}, Python
{machine["python"]} and NumPy {machine["numpy"]}, with one thread per process. Network {layers};
{settings["epochs"]} epoch{"s" * (settings["epochs"] > 1)} of {settings["batches"]} batches of {settings["batch"]} samples,
learning rate 0.1 on the summed gradient. (In the asynchronous runs with the masters' default rule, `adaptive`, the rate
has hardly any effect; docs/rules.md explains why.) Times are those of `fit`, including the start of MPI but not validation.
Serial was run alone, between the others, {len(seconds)} times: {min(seconds):.2f} to {max(seconds):.2f} s, of which the
median is used. {repeated}{busy}

{crowded}{missing}
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

{table(["workers", "masters", "mean staleness of all layers", "test accuracy"], rows)}

Serial training reaches {serial}. The number of masters decides who owns which layer, but not what is computed; the number
of workers decides how stale the gradients are. (The masters' default rule is a different optimizer from the plain steps of
serial training: with one worker, when nothing is stale, it is the better one. The learning rate has hardly any effect on
it: the size of the gradient is divided out, and only the fourth root of the rate remains.)

Where p divides the batch, synchronous training is serial training with the additions in another order; where it does not,
a step has p (m // p) of the m samples. Each rank draws from its own p-th of the samples. It reached
{percent(min(synced))} to {percent(max(synced))} here. For that, all ranks must start from rank 0's weights. If each rank
starts from its own random weights, the sum of the gradients belongs to none of the networks: that, and not the exchange,
is how synchronous runs lose accuracy.
"""


def splitting(measured):
    sizes, rows = figures.layer_sizes(measured), []
    for count in sorted({r["masters"] for r in measured["async"]}):
        shares = figures.owned(measured, count)
        took = [
            f"{r['seconds']:.2f} s on {mark_crowded(measured, r['ranks'])}"
            for r in figures.served(measured, "adaptive")
            if r["masters"] == count
        ]
        each = ", ".join(f"{share:,}" for share in shares)
        rows.append([count, each, f"{percent(max(shares) / sum(sizes))}", ", ".join(took)])
    return f"""
## Why the parameter server is split

Every gradient goes to a master, and every new value comes from one. For each batch, a worker sends and receives
{sum(sizes):,} numbers once; a single master does so for all W workers, and computes all their updates. It is the first to
be busy all the time, and from then on more workers only queue. M masters divide the traffic, the updates and the memory.

{table(["masters", "numbers owned by each", "share of the largest", "time on ranks"], rows)}

Whole layers divide badly: one of them has {percent(max(sizes) / sum(sizes))} of this network, and its master as much of all
traffic, however many masters there are; with as many masters as layers, one of them owns only the placeholder of the input.
And every master is a rank that computes no gradients.
"""


def divergence(measured):
    plain, ours, rows = figures.served(measured, "plain"), figures.served(measured, "adaptive"), []
    for one, other in zip(plain, ours, strict=True):
        both = [percent(one["accuracy"]), percent(other["accuracy"])]
        rows.append(
            [figures.workers(one), one["masters"], f"{one['staleness']:.1f}", one["most stale"], *both]
        )
    lost = [r for r in plain if r["accuracy"] < figures.GUESSING]
    seen = f"With the default rule the lowest accuracy was {percent(min(r['accuracy'] for r in ours))}."
    if lost:
        found = [r["accuracy"] for r in lost]
        most = f"to {percent(max(found))}" if len(found) > 1 else ""
        first = min(figures.workers(r) for r in lost)
        later = [r for r in plain if figures.workers(r) >= first]
        which = (
            f"in every run with {first} workers or more" if len(later) == len(lost) > 1
            else f"with {first} workers" if len(lost) == 1
            else f"in {len(lost)} of the {len(later)} runs with {first} workers or more"
        )  # fmt: skip
        seen = f"Here that happened {which}: {percent(min(found))} {most}, where guessing is 10 %. {spoiled(plain)}{seen}"
    return f"""
## Why asynchronous training diverges, and what stops it

While a worker computes, the gradients of the other workers are applied. With W workers its own arrives about W - 1 updates
late: computed where the parameters were, applied where they are now. A step as long as a fresh gradient allows is then
taken W times in the same direction before any worker has seen its effect. The parameters overshoot, the sigmoids saturate,
their gradients vanish, and training does not recover. {seen}

{table(["workers", "masters", "mean staleness (plain)", "maximum (plain)", "accuracy, plain", "accuracy, default"], rows)}

The staleness is that of every gradient of every layer, except the placeholder of the input, at the master that applied it.

What stops it is the masters' rule (`adaptive`, paceline's default). It divides every coordinate of a gradient by the root
mean square of the previous ones, so that no gradient makes a long step; it shortens the steps as staleness grows; and it
answers with a point between the latest values and their average. With the plain rule a smaller learning rate helps as
well, but it has to be chosen again for every number of workers, and slows down learning; with the default rule the
learning rate has hardly any effect.
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
                    mark_crowded(measured, p),
                    f"{row['size']:,}",
                    f"{found['bytes']:,} ({each:,})",
                    f"{found['bytes in all']:,} ({everything:,})",
                    f"{1000 * found['seconds']:.1f}",
                ]
            )
    equal, cases = figures.as_formula(measured)
    which = f"all {cases}" if equal == cases else f"{equal} of {cases}"
    average = (
        " Where p does not divide n, the ring's value for one rank is the average over all ranks, and rank 0 may send a "
        "little more or less."
        if any(row["size"] % int(p) for p, rows in measured["allreduce"].items() for row in rows)
        else ""
    )
    return f"""
## What the two allreduces cost

| | messages per rank | numbers per rank | numbers in total |
|---|---|---|---|
| naive | p - 1 | (p - 1) n | p (p - 1) n |
| ring | 2 (p - 1) | 2 (p - 1) / p n (on average, where p does not divide n) | 2 (p - 1) n |

In the naive way every rank sends its whole array to each of the others, and the total grows with the square of p. Around
the ring, a rank sends p - 1 blocks of n / p numbers twice: less than 2 n, however many ranks there are. The table has the
bytes sent by rank 0 and by all ranks together, with the value of the formula in brackets, for sums in double precision:

{table(["way", "ranks", "n", "bytes per rank", "bytes in total", "time (ms)"], rows)}

In {which} measured cases (ways, ranks, sizes, types, operations) the total bytes were exactly those of the formula. The
ring pays with 2 (p - 1) consecutive messages: for small arrays the naive way can be faster.{average}
"""


def wrap(block):
    return textwrap.fill(" ".join(block.split()), 120, break_long_words=False, break_on_hyphens=False)
