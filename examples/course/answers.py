"""The answers to the course's questions, in words, with the figures of what was measured."""

import textwrap

from speed import laws, times
from wording import QUIET, percent, starred, table

import figures

SPOILED = 0.05  # of the accuracy, below the best of the same rule


def answers(measured):
    """The whole of REPORT.md."""
    parts = [head, times, laws, accuracy, splitting, divergence, costs]
    blocks = [block for part in parts for block in part(measured).strip().split("\n\n")]
    return "\n\n".join(block if block[0] in "|#" else wrapped(block) for block in blocks) + "\n"


def spoiled(plain):
    """Runs of the rule `plain` that have learnt something, and far less than those with few workers."""
    best = max(r["accuracy"] for r in plain)
    some = [r for r in plain if figures.GUESSING <= r["accuracy"] < best - SPOILED]
    if not some:
        return ""
    said = ", ".join(f"{percent(r['accuracy'])} with {figures.workers(r)}" for r in some)
    return f"Fewer workers can spoil it as well: {said}. "


def head(measured):
    machine, settings, seconds = (
        measured["machine"],
        measured["settings"],
        [r["seconds"] for r in measured["serial"]],
    )
    layers = "-".join(map(str, measured["serial"][0]["layers"]))
    busy = (
        f"**Other work was running while this was measured**: before each case the machine was looked at "
        f"{machine['looks']} times, and {machine['others']:.1f} other threads (the mean of all cases) were running at "
        "every look. The times below are longer than this machine's own."
        if machine["others"] > QUIET
        else ""
    )
    crowds = figures.left_out(measured)
    missing = (
        f"Nothing synchronous was measured on {' and '.join(map(str, crowds))} ranks: with more than {figures.CROWD} for "
        "each core, all of which wait for each other at every step, the times would be the scheduler's. "
        if crowds
        else ""
    )
    runs = [*figures.fixed(measured), *figures.served(measured, "adaptive")]
    crowded = (
        "An asterisk marks more ranks than cores. Such ranks take turns: together they compute no more than one rank a "
        "core would, and each may have to wait for its turn. They are here for their accuracy and for what they send. "
        if max(r["ranks"] for r in runs) > machine["cores"]
        else ""
    )
    most = max(len(r["times"]) for r in runs)
    apart = max([max(seconds) / min(seconds), *(r["times"][-1] / r["times"][0] for r in runs)])
    repeated = (
        f"Parallel runs were made up to {most} times where they are short (those of the rule `plain` once): the table has "
        f"the median, the least and the most, and the mean accuracy. The same run took up to {apart:.1f} times as long as "
        "another time; where there is one only, it can be off by as much. "
        if most > 1
        else "Every parallel run was made once. "
    )
    return f"""
# Report

Made by `python3 report.py` on {machine["cores"]} cores ({machine["processor"]}) with {machine["mpi"]}, Python
{machine["python"]} and NumPy {machine["numpy"]}, one thread a process. Network {layers};
{settings["epochs"]} epoch{"s" * (settings["epochs"] > 1)} of {settings["batches"]} batches of {settings["batch"]} samples,
learning rate 0.1 on the summed gradient. (In the asynchronous runs with the masters' default rule, `adaptive`, the rate
plays nearly no part; docs/rules.md has why.) Times are those of `fit`, the start of MPI included and validation left out.
Serial was run alone, between the others: {len(seconds)} times, {min(seconds):.2f} to {max(seconds):.2f} s, of which the
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

Serially it is {serial}. How many masters there are changes who owns which layer, not what is computed; how many workers,
how stale the gradients are. (The masters' default rule is another optimizer than the plain steps of serial training: with
one worker, nothing being stale, it is the better one. The learning rate plays nearly no part in it: the gradient's size is
divided out, and of the rate the fourth root is left.)

Where p divides the batch, synchronous training is serial training with the additions in another order; where it does not,
a step has p (m // p) of the m samples. Each rank draws from its own p-th of the samples. It came to
{percent(min(synced))} to {percent(max(synced))} here. For that all ranks must begin with rank 0's weights. Where each
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

{table(["masters", "numbers that each owns", "share of the fullest master", "time on ranks"], rows)}

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
    lost = [r for r in plain if r["accuracy"] < figures.GUESSING]
    seen = f"With the default rule the least of all was {percent(min(r['accuracy'] for r in ours))}."
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

While a worker computes, the other workers' gradients are applied. With W workers its own comes about W - 1 updates late:
computed where the parameters were, applied where they are. A step that is as long as a fresh gradient allows is then taken
W times in the same direction before anybody has seen what it did. The parameters overshoot, the sigmoids saturate, their
gradients vanish, and training does not come back. {seen}

{table(["workers", "masters", "mean staleness (plain)", "the most (plain)", "accuracy, plain", "accuracy, default"], rows)}

A staleness is that of every gradient of every layer, the input's placeholder left out, at whichever master applied it.

What stops it is the masters' rule (`adaptive`, paceline's default). It divides every coordinate of a gradient by the root
mean square of those before it, so that no gradient makes a long step; it shortens the steps as the staleness that it sees
grows; and it answers with a point between the last values and their average. With the plain rule a smaller
learning rate helps as well, but must be chosen anew for every number of workers, and makes all of them learn more slowly;
with the default rule the learning rate plays nearly no part.
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
    which = f"all {cases}" if equal == cases else f"{equal} of {cases}"
    average = (
        " Where p does not divide n, the ring's value for one rank is the average of all, and rank 0 may send a little "
        "more or less."
        if any(row["size"] % int(p) for p, rows in measured["allreduce"].items() for row in rows)
        else ""
    )
    return f"""
## What the two allreduces cost

| | messages a rank | numbers a rank | numbers in all |
|---|---|---|---|
| naive | p - 1 | (p - 1) n | p (p - 1) n |
| ring | 2 (p - 1) | 2 (p - 1) / p n (on average, where p does not divide n) | 2 (p - 1) n |

Naively every rank sends its whole array to each of the others, and all together send more with the square of p. Round the
ring a rank sends p - 1 blocks of n / p numbers twice: less than 2 n, however many ranks there are. Counted where they are
sent, in bytes (of rank 0, and of all ranks together), with the formula's value in brackets, for sums of double
precision:

{table(["way", "ranks", "n", "bytes a rank", "bytes in all", "time (ms)"], rows)}

In {which} measured cases (ways, ranks, sizes, kinds of numbers, operations) the bytes in all were exactly the formula's.
The ring pays with 2 (p - 1) messages one after the other: for small arrays the naive way can be the faster one.{average}
"""


def wrapped(block):
    return textwrap.fill(" ".join(block.split()), 120, break_long_words=False, break_on_hyphens=False)
