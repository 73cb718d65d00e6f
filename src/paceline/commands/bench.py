"""`paceline bench`: measurements of this machine."""

from __future__ import annotations

import argparse

from paceline.bench import allreduce


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to measure."""
    kinds = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    about = "every collective at every size, against the theory and against MPI's own"
    allreduce.add_arguments(kinds.add_parser("allreduce", help=about, description=about))


def main(args: argparse.Namespace) -> int:
    """Measure."""
    return allreduce.main(args)
