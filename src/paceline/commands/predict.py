"""`paceline predict`: print the classes or numbers that a trained network predicts."""

from __future__ import annotations

import argparse
import sys

import numpy as np

from paceline.commands import import_from_here, parse_path
from paceline.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = """
examples:
  paceline predict runs/20260101-120000-sync-n4-s0
  paceline predict RUN --data new.npz --out predictions.npz
"""
    parser.add_argument("run", metavar="RUN", type=parse_path, help="folder of the run whose network is used")
    parser.add_argument("--data", metavar="DATA", help="samples to predict (default: the data of the run)")
    parser.add_argument(
        "--split",
        choices=("train", "validation", "test", "all"),
        help="which samples (default: test, or all if --data is given)",
    )
    parser.add_argument(
        "--out", type=parse_path, metavar="FILE", help="write scores and classes to an .npz file"
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="run the code (module:attribute) that the run names as its model or data",
    )
    parser.add_argument("--json", action="store_true", help="print accuracy and loss as one JSON object")


def main(args: argparse.Namespace) -> int:
    """Predict; print the class or classes of one sample per line, by name if it has one, or the accuracy as JSON."""
    from paceline.files import check_place, json_text, write_arrays
    from paceline.prediction import predict
    from paceline.text import one_line, percent

    if args.out is not None:
        if args.out.suffix != ".npz":
            raise UsageError(f"--out takes the name of an .npz file; got {args.out}")
        check_place(args.out)
    import_from_here()
    predicted = predict(args.run, data=args.data, split=args.split, trust=args.trust)
    if args.out is not None:
        write_arrays(args.out, {"scores": predicted.scores, "classes": predicted.classes})
    if args.json:
        found = {"samples": len(predicted.scores), "accuracy": predicted.accuracy, "loss": predicted.loss}
        print(json_text(found if predicted.cut is None else {**found, "cut": predicted.cut}))
        return 0
    if args.out is None:
        rows = predicted.classes if predicted.classes.size else predicted.scores
        rows = rows.reshape(len(rows), -1)
        names = dict(enumerate(predicted.class_names))
        if predicted.classes.size and names and rows.shape[1] == 1:
            print(*(one_line(names.get(number, str(number))) for number in rows[:, 0]), sep="\n")
        else:
            np.savetxt(sys.stdout, rows, fmt="%g")
    accuracy = "" if predicted.accuracy is None else f", accuracy {percent(predicted.accuracy)}"
    loss = "unknown" if predicted.loss is None else f"{predicted.loss:.4f}"
    cut = "" if predicted.cut is None else f" (the run was {predicted.cut}: its last checkpoint)"
    print(f"{len(predicted.scores):,} samples, mean loss {loss}{accuracy}{cut}", file=sys.stderr)
    return 0
