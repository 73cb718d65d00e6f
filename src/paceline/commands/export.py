"""`paceline export`: runs for TensorBoard and MLflow."""

from __future__ import annotations

import argparse
from pathlib import Path

from paceline.errors import UsageError
from paceline.export import TOOLS

EXPERIMENT = "paceline"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which runs, to what, and where."""
    parser.epilog = """
examples:
  paceline export runs --to tensorboard --out boards        # then: tensorboard --logdir boards
  paceline export runs --to mlflow --out mlruns --experiment iris
  paceline export runs/RUN --to mlflow --tracking-uri http://localhost:5000

A run that is there already is left as it is.
"""
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs, or folders that hold some")
    parser.add_argument("--to", required=True, choices=TOOLS, help="what the runs are for")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where they are written")
    parser.add_argument(
        "--tracking-uri", metavar="URI", help="of mlflow: a server or database, in place of --out"
    )
    parser.add_argument(
        "--experiment", metavar="NAME", help=f"of mlflow: what the runs belong to (default: {EXPERIMENT})"
    )


def main(args: argparse.Namespace) -> int:
    """Write them; print where each is."""
    from paceline.export import check_installed, runs_in

    check_installed(args.to)
    if args.to == "tensorboard":
        for name, value in (("tracking-uri", args.tracking_uri), ("experiment", args.experiment)):
            if value is not None:
                raise UsageError(f"--{name} is for mlflow; tensorboard takes --out DIR")
        if args.out is None:
            raise UsageError("export to tensorboard needs a place: give --out DIR")
        from paceline.export.tensorboard import to_tensorboard

        for run in runs_in(args.runs):
            place, new = to_tensorboard(run, args.out)
            print(place if new else f"{place} (was there already)")
        return 0
    from paceline.export.mlflow import Store, uri_of

    store = Store(uri_of(args.out, args.tracking_uri), args.experiment or EXPERIMENT)
    for run in runs_in(args.runs):
        number, new = store.add(run)
        print(f"{run.folder}: run {number}{'' if new else ' (was there already)'}")
    return 0
