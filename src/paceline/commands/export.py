"""`paceline export`: convert runs for TensorBoard and MLflow."""

from __future__ import annotations

import argparse

from paceline.commands import add_folders, parse_path
from paceline.errors import UsageError
from paceline.export import TOOLS

EXPERIMENT = "paceline"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = """
examples:
  paceline export runs --to tensorboard --out boards        # then: tensorboard --logdir boards
  paceline export runs --to mlflow --out mlruns --experiment iris
  paceline export runs/RUN --to mlflow --tracking-uri http://localhost:5000

Runs that have been exported before are left as they are.
"""
    add_folders(parser)
    parser.add_argument("--to", required=True, choices=TOOLS, help="the tool to export to")
    parser.add_argument("--out", type=parse_path, metavar="DIR", help="folder to write to")
    parser.add_argument(
        "--tracking-uri", metavar="URI", help="mlflow only: a server or database to write to instead of --out"
    )
    parser.add_argument(
        "--experiment",
        metavar="NAME",
        help=f"mlflow only: the experiment that the runs belong to (default: {EXPERIMENT})",
    )


def main(args: argparse.Namespace) -> int:
    """Export the runs; print where each is."""
    from paceline.export import check_installed, runs_in

    check_installed(args.to)
    if args.to == "tensorboard":
        for name, value in (("tracking-uri", args.tracking_uri), ("experiment", args.experiment)):
            if value is not None:
                raise UsageError(f"--{name} is only for mlflow; tensorboard needs --out DIR")
        if args.out is None:
            raise UsageError("export to tensorboard needs a folder: give --out DIR")
        from paceline.export.tensorboard import to_tensorboard

        for run in runs_in(args.runs):
            place, new = to_tensorboard(run, args.out)
            print(place if new else f"{place} (already there)")
        return 0
    from paceline.export.mlflow import Store, uri_of

    store = Store(uri_of(args.out, args.tracking_uri), args.experiment or EXPERIMENT)
    for run in runs_in(args.runs):
        number, new = store.add(run)
        print(f"{run.folder}: run {number}{'' if new else ' (already there)'}")
    return 0
