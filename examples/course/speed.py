"""The answers about run times: how long, why, and what Amdahl's and Gustafson's laws say about them."""

from wording import NAMES, QUIET, mark_crowded, masters, percent, table

import figures

AS_GOOD = 0.02  # accuracy that a run may lose against serial training


def times(measured):
    t1 = figures.serial_time(measured)
    runs = [(NAMES[r["way"]], r, "") for r in figures.fixed(measured)]
    runs += [
        (f"async, {masters(r['masters'])}", r, figures.workers(r))
        for r in figures.served(measured, "adaptive")
    ]
    rows = [["serial", 1, "", f"{t1:.2f}", "", "1.00", percent(figures.serial_accuracy(measured))]]
    for name, r, workers in runs:
        s, many = r["seconds"], r["times"]
        spread = f"{many[0]:.2f} to {many[-1]:.2f} ({len(many)})" if len(many) > 1 else "(1)"
        ranks = mark_crowded(measured, r["ranks"])
        rows.append([name, ranks, workers, f"{s:.2f}", spread, f"{t1 / s:.2f}", percent(r["accuracy"])])
    name, best, _ = min(runs, key=lambda run: run[1]["seconds"])
    factor = t1 / best["seconds"]
    verdict = (
        f"The fastest was {name} on {best['ranks']} ranks, {factor:.2f} times as fast as one process."
        if factor > 1
        else f"None of these was faster than one process; the closest was {name} on {best['ranks']} ranks, at {factor:.2f} "
        "times its speed."
    )
    verdict += fastest_plain(measured, t1)
    names = ["way", "ranks", "workers", "time (s)", "minimum to maximum (runs)", "speedup", "test accuracy"]
    return f"""
## Run times and speedup

{table(names, rows)}

{verdict} The next table shows where the time of a step goes, on rank 0, in milliseconds; the last column is the time of an
allreduce of about the gradient's size when ranks do nothing else and start together:

{of_a_step(measured)}
"""


def fastest_plain(measured, t1):
    """Name the fastest run of the rule `plain` that is about as accurate as serial training, if there is one."""
    least = figures.serial_accuracy(measured) - AS_GOOD
    good = [r for r in figures.served(measured, "plain") if r["accuracy"] >= least]
    if not good:
        return ""
    best = min(good, key=lambda r: r["seconds"])
    return (
        " (Masters that apply every gradient as it arrives, `--rule plain`, have less to compute: "
        f"{masters(best['masters'])} on {best['ranks']} ranks took {best['seconds']:.2f} s, "
        f"{t1 / best['seconds']:.2f} times as fast as one process, to {percent(best['accuracy'])}, in one run. "
        "With more workers that rule fails, see below.)"
    )


def of_a_step(measured):
    """A table of it, and what follows from that."""
    serial, fixed, gradient = (
        figures.cases(measured["serial"], "how")[0],
        figures.fixed(measured),
        sum(figures.layer_sizes(measured)),
    )
    alone = {r["ranks"]: figures.like_the_gradient(measured, r["ranks"]) for r in fixed}
    whole, computing, _, rest = figures.split(measured, serial)
    quicker = 0  # exchanges in training that took less than the allreduce alone
    rows, said = [["serial", 1, *(f"{ms:.2f}" for ms in (whole, computing)), "", f"{rest:.2f}", ""]], []
    for r in fixed:
        mine = figures.split(measured, r)
        bare = 1000 * alone[r["ranks"]]["ring" if r["way"] == "sync" else "MPI"]["seconds"]
        quicker += mine[2] < bare
        rows.append(
            [
                NAMES[r["way"]],
                mark_crowded(measured, r["ranks"]),
                *(f"{ms:.2f}" for ms in mine),
                f"{bare:.2f}",
            ]
        )
        if r["ranks"] == min(alone):
            said.append(one_step(measured, r, mine, bare, (whole, computing, rest)))
    size = alone[min(alone)]["size"]
    smaller = (
        f" (The allreduce alone is of {size:,} numbers, the most that were measured; the gradient has {gradient:,}, so it "
        "would take longer.)"
        if size < gradient / 2
        else f" (The allreduce alone is of {size:,} numbers; the gradient has {gradient:,}.)"
    )
    if quicker:
        smaller += (
            f" In {quicker} row{'s' * (quicker > 1)} it is longer than the exchange in training: it was measured in other "
            "jobs, at other times, on other cores, so that column is only a rough guide."
        )
    names = ["way", "ranks", "a step", "computing", "exchange and waiting", "the rest", "allreduce alone"]
    return f"""{table(names, rows)}

The rest is drawing batches, packing the gradients into one array, updating the weights and,
spread over all steps, the start of MPI.{smaller}

{" ".join(said)} {crowded(measured, fixed, alone)} What helps is more computing for each exchange: larger batches, see the
next answer."""


def one_step(measured, r, mine, bare, serial):
    """Say what dividing a batch saves and costs."""
    whole, computing, exchange, rest = mine
    saved, longer, waiting = serial[1] - computing, whole - serial[0], exchange - bare
    computed = (
        f"saves {saved:.2f} ms of computing" if saved > 0 else f"takes {-saved:.2f} ms longer to compute"
    )
    why = "ranks wait for each other, and the caches hold other data"
    if measured["machine"]["others"] > QUIET:
        why += "; and other work was running"
    of_it = (
        f"of which the allreduce alone explains {bare:.2f}; training adds the other {waiting:.2f}: {why}"
        if waiting > bare / 5
        else "about what the allreduce takes alone"
    )
    change = f"{longer:.2f} ms longer" if longer > 0 else f"{-longer:.2f} ms shorter"
    return (
        f"With {NAMES[r['way']].removeprefix('sync, ')}, on {r['ranks']} ranks, each step {computed}, "
        f"and pays {exchange:.2f} ms for the exchange, {of_it}. "
        f"The rest is {abs(rest - serial[2]):.2f} ms {'more' if rest > serial[2] else 'less'} than "
        f"in serial training. In total a step is {change}."
    )


def crowded(measured, fixed, alone):
    """Describe ranks that share cores."""
    shared = [r for r in fixed if r["ranks"] > measured["machine"]["cores"]]
    if not shared:
        return ""
    worst = max(shared, key=lambda r: figures.split(measured, r)[2])
    exchange = figures.split(measured, worst)[2]
    bare = 1000 * alone[worst["ranks"]]["ring" if worst["way"] == "sync" else "MPI"]["seconds"]
    return (
        "With more ranks than cores, a rank waits at every step for others that have no core at that moment: "
        f"the maximum is {exchange:.2f} ms ({NAMES[worst['way']]} on {worst['ranks']} ranks, where the allreduce alone "
        f"takes {bare:.2f})."
    )


def laws(measured):
    t1, settings = figures.serial_time(measured), measured["settings"]
    strong, weak, fitted, fractions = [], [], [], {}
    for way, name in NAMES.items():
        points = sorted((r["ranks"], t1 / r["seconds"]) for r in figures.fixed(measured, way))
        fitted.append(f"{figures.fitted_fraction(points):.2f} ({name})")
        fractions[name] = [figures.serial_fraction(s, p) for p, s in points]
        for (p, s), f in zip(points, fractions[name], strict=True):
            strong.append([name, mark_crowded(measured, p), f"{s:.2f}", f"{f:.2f}"])
    scaled = [(r["ranks"], r["ranks"] * t1 / r["seconds"]) for r in figures.grown(measured)]
    for p, s in scaled:
        weak.append(
            [mark_crowded(measured, p), settings["batch"] * p, f"{s:.2f}", f"{(p - s) / (p - 1):.2f}"]
        )
    return f"""
## Amdahl or Gustafson?

Amdahl's law is for fixed work. However many ranks there are, an epoch has {settings["batches"]} batches of
{settings["batch"]} samples, of which each rank gets {settings["batch"]} // p. Amdahl's serial fraction f follows from each
speedup S: f = (1/S - 1/p) / (1 - 1/p). Fitted over all p it is {" and ".join(fitted)}.

{table(["way", "ranks", "speedup", "serial fraction f"], strong)}

If a part of the program were serial, f would be the same for all p, and below 1. {parts_of_fraction(fractions)}

Gustafson's law is for work that grows with the ranks. With {settings["batch"]} samples for each rank in every batch, the
same number of batches and the rate divided by p, the scaled speedup S is p times the serial time over the measured one,
and f = (p - S) / (p - 1):

{table(["ranks", "batch", "scaled speedup", "serial fraction f"], weak)}

{conclusion(measured, t1, scaled)}
"""


def parts_of_fraction(fractions):
    """Say what f consists of, as far as the figures show."""
    every = [f for found in fractions.values() for f in found]
    what = (
        "It contains the exchange, including waiting, which one process does not have, and the rest, which every rank does "
        "in full."
    )
    above = (
        "All of them are above 1: every speedup is below 1."
        if min(every) > 1
        else "A value above 1 means that p ranks are slower than one process."
        if max(every) > 1
        else ""
    )
    if min(map(len, fractions.values())) < 2:
        return f"{what} {above}"
    grows = [name for name, found in fractions.items() if found == sorted(found)]
    change = (
        "f grows with p."
        if len(grows) == len(fractions)
        else f"f grows with p ({grows[0]}), or changes without order ({next(n for n in fractions if n not in grows)})."
        if grows
        else "f differs for each p, without order."
    )
    return f"{what} {change} {above}"


def conclusion(measured, t1, scaled):
    """Say which law applies, and what it says about these figures."""
    best = max(figures.fixed(measured), key=lambda r: t1 / r["seconds"])
    s, p = t1 / best["seconds"], best["ranks"]
    f = figures.serial_fraction(s, p)
    amdahl = (
        f"The best speedup was {s:.2f} on {p} ranks, f = {f:.2f}: none of the rank counts tried makes these batches "
        "faster on this machine."
        if s <= 1
        else f"The best speedup was {s:.2f} on {p} ranks, f = {f:.2f}: with that f, at most {1 / f:.1f} on any number."
        if f > 0
        else f"The best speedup was {s:.2f} on {p} ranks, with no visible serial part."
    )
    q, g = max(scaled, key=lambda point: point[1])
    same = max(t1 / r["seconds"] for r in figures.fixed(measured, "sync") if r["ranks"] == q)
    gustafson = (
        f"more samples a second than one process, {g:.2f} times as many, on {q} ranks"
        if g > 1
        else f"still no more samples a second than one process: at best {g:.2f} times as many, on {q} ranks"
    )
    return (
        "**The conclusion.** The course's batch stays the same when ranks are added, so Amdahl's law is the one that "
        f"applies. {amdahl} Gustafson's law applies if the batch grows. The exchange costs the same for the larger "
        f"batch, but there is more computing beside it. Here that gives {gustafson} (with the batch "
        f"divided, our ring had {same:.2f}). The growing batch costs accuracy for the same number of samples, because "
        "there are fewer steps."
    )
