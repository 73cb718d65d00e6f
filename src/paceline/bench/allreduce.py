"""`paceline bench allreduce`: every collective at every size, on this machine, beside the theory.

For each: the median, 10th and 90th percentile of the time (a call lasts until its last rank is done); the
bandwidths that nccl-tests defines, algbw = size / time and busbw = algbw * 2(p-1)/p; messages and bytes
that the busiest rank really sent, beside the formula; the time that the alpha-beta-gamma model gives; and
whether the sums are right.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from paceline import names as registry
from paceline.bench.question import PICTURES, Question, check_file, read_ranks, read_sizes
from paceline.errors import UsageError

EPILOG = """
examples:
  paceline bench allreduce -n 2,4,8
  paceline bench allreduce -n 4 --sizes 437544,16MiB --algorithms ring,native --plot ring.svg

columns: algbw = size / time, busbw = algbw * 2(p-1)/p, as nccl-tests defines them; messages and bytes are
those that the busiest rank sent, counted, beside what the formula says (for native: calls of MPI, and bytes
handed to it); model is alpha * rounds + beta * bytes + gamma * bytes combined.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to measure, and where the result goes."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("-n", dest="ranks", default="2,4,8", help="numbers of ranks; default: 2,4,8")
    parser.add_argument(
        "--sizes", default="1KiB..64MiB", help="a list or a range of bytes; default: 1KiB..64MiB"
    )
    parser.add_argument("--algorithms", help="names, with commas between; default: all")
    parser.add_argument("--dtype", default="float32", help="default: float32")
    parser.add_argument("--repeats", type=int, default=100, help="calls of each, at most; default: 100")
    parser.add_argument("--seconds", type=float, default=0.3, help="for the calls of each; default: 0.3")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it: .png, .svg or .pdf")


def main(args: argparse.Namespace) -> int:
    """Measure; print the table; 1 if a sum was wrong or a count was not the formula's."""
    from paceline.bench._table import table
    from paceline.launch import world

    if (here := world()) is not None:  # each rank of that job would start a benchmark of its own
        if here.rank != 0:
            return 2
        raise UsageError(f"bench starts its ranks itself: -n {here.size}, not {here.launcher}")
    names = registry.names("collectives") if args.algorithms is None else args.algorithms.split(",")
    question = Question(
        ranks=read_ranks(args.ranks),
        sizes=read_sizes(args.sizes),
        algorithms=tuple(dict.fromkeys(name.strip() for name in names)),
        dtype=args.dtype,
        repeats=args.repeats,
        seconds=args.seconds,
    )
    check_file("--json", args.json)
    check_file("--plot", args.plot, PICTURES)
    result = run(question)
    sys.stdout.write(table(result) + "\n")
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    if args.plot is not None:
        from paceline.bench._plot import plot

        plot(result, args.plot)
    cells = [cell for job in result["jobs"] for cell in job["cells"]]
    return 0 if all(cell["right"] and cell["as_formula"] is not False for cell in cells) else 1


def run(question: Question) -> dict[str, Any]:
    """Start the ranks, once for each number of them; return what was measured, with the theory beside it."""
    from paceline.record.environment import environment

    jobs = [_job(question, ranks) for ranks in question.ranks]
    return {"benchmark": "allreduce", **asdict(question), "environment": environment(threads=1), "jobs": jobs}


def _job(question: Question, ranks: int) -> dict[str, Any]:
    from paceline import launch
    from paceline.bench._ranks import measure

    arguments = {k: v for k, v in asdict(question).items() if k != "ranks"}
    try:
        job = launch.call(measure, arguments, ranks=ranks, threads=1)
    except launch.RanksFailedError as failed:
        raise SystemExit(failed.status) from None
    cores = launch.usable_cores()
    itemsize = np.dtype(question.dtype).itemsize
    cells = [_with_theory(cell, ranks, itemsize, job["machine"]) for cell in job["cells"]]
    return {"ranks": ranks, "cores": cores, "oversubscribed": ranks > cores, **job, "cells": cells}


def _with_theory(cell: dict[str, Any], p: int, itemsize: int, machine: dict[str, float]) -> dict[str, Any]:
    """A measured cell with its statistics, bandwidths, formula and model."""
    from paceline.collectives import CostModel, cost, has_cost

    low, median, high = np.percentile(cell["seconds"], [10, 50, 90]).tolist()
    n, name = cell["size"] // itemsize, cell["algorithm"]
    formula = model = None
    if has_cost(name):
        costs = [cost(name, n=n, p=p, r=r, itemsize=itemsize) for r in range(p)]
        formula = [[each.messages, itemsize * each.sent] for each in costs]
        model = max(CostModel(**machine).seconds(each, itemsize) for each in costs)
    return {
        **cell,
        "median": median,
        "p10": low,
        "p90": high,
        "algbw": cell["size"] / median,
        "busbw": cell["size"] / median * 2 * (p - 1) / p,
        "formula": formula,
        "as_formula": None if formula is None else formula == cell["sent"],
        "model": model,
    }
