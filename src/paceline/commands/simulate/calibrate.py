"""`paceline simulate calibrate`: measure what messages and memory accesses cost, for simulations of this machine."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from paceline import text
from paceline.errors import UsageError

if TYPE_CHECKING:
    from paceline.machine import Machine

EPILOG = """
examples:
  paceline simulate calibrate
  paceline simulate calibrate -o machine.json --seconds 5
  paceline simulate scaling --ranks 1..16 --network machine.json       # all ranks on this machine
  paceline train --on sim -n 64 --network 10gbe:ranks-per-node=16,machine=machine.json

It starts 2, 4, 8 ... ranks, up to the number of cores. Nothing else should be running meanwhile.
"""
SMALL, LARGE = 8, 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = EPILOG
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        default=Path("machine.json"),
        metavar="FILE",
        help="where to write the result (default: machine.json)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="how long to measure with each number of ranks (default: 12)",
    )
    parser.add_argument(
        "-n",
        dest="ranks",
        metavar="LIST",
        help="numbers of ranks, powers of two, such as 2,4,8 (default: up to the number of cores)",
    )


def main(args: argparse.Namespace) -> int:
    """Measure and print the result."""
    from paceline.bench import check_file, read_ranks
    from paceline.machine.calibration import SECONDS, calibrate, check_ranks

    seconds = SECONDS if args.seconds is None else args.seconds
    if not 0 < seconds < math.inf:
        raise UsageError(f"seconds must be a finite number above 0; got {seconds:g}")
    check_file("--out", args.out)
    ranks = check_ranks(None if args.ranks is None else read_ranks(args.ranks))
    try:
        machine = calibrate(ranks, seconds=seconds)
    except RuntimeError as failed:  # the ranks have printed why
        print(f"paceline simulate: {failed}", file=sys.stderr)
        return 1
    machine.save(args.out)
    print(describe(machine))
    print(f"\nmachine: {args.out}")
    return 0


def describe(machine: Machine) -> str:
    """Return a table of a machine's costs by the number of ranks that are active at once."""
    link = machine.link
    counts = sorted(set(link.send.tables) & set(link.take.tables) - {1})
    rows: dict[str, list[str]] = {
        "ranks at once": [str(count) for count in counts],
        "8-byte message, us": [_us(_message(machine, SMALL, count)) for count in counts],
        "1-MiB message, GB/s": [f"{1e-9 * LARGE / _message(machine, LARGE, count):.2f}" for count in counts],
    }
    for name, nbytes in (("Barrier", 0), ("Allreduce", SMALL), ("Allreduce", LARGE)):
        curves = machine.collectives.get(name)
        if curves is not None:
            words = "MPI's Barrier, us" if name == "Barrier" else f"MPI's {name} of {text.size(nbytes)}, us"
            rows[words] = [_us(curves.at(nbytes, count)) for count in counts]
    for name, words in (("combine", "a + b"), ("sum", "summing rows"), ("copy", "copying")):
        curves = machine.memory.get(name)
        if curves is not None:
            rows[f"{words}, GB/s per rank"] = [
                f"{1e-9 * LARGE / curves.at(LARGE, count):.2f}" for count in counts
            ]
    eager = text.size(machine.eager_limit)
    head = (
        f"{machine.processor}, {machine.cores} cores, {machine.mpi}; messages up to {eager} are sent eagerly"
    )
    return f"{head}\n{text.table([(name, *cells) for name, cells in rows.items()])}"


def _message(machine: Machine, nbytes: int, ranks: int) -> float:
    eager = nbytes <= machine.eager_limit
    return machine.link.both_ways(nbytes, ranks, eager=eager, post=machine.post)


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.1f}"
