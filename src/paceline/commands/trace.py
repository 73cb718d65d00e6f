"""`paceline trace`: a run in time, for Perfetto and as a picture."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from paceline.commands import parse_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = """
examples:
  paceline trace runs/RUN -o trace.json.gz                  # open it at https://ui.perfetto.dev or chrome://tracing
  paceline trace runs/RUN --picture steps.svg --steps 10..12

For a run made with `paceline train --trace`, the trace has every MPI call and every message. For any other run it has the
steps, and how long each rank computed, exchanged, waited and updated in them.
"""
    parser.add_argument("run", type=parse_path, metavar="RUN", help="a run's folder")
    parser.add_argument(
        "-o", "--out", type=parse_path, default=Path("trace.json"),
        help="the trace file, compressed if its name ends in .gz (default: trace.json)",
    )  # fmt: skip
    parser.add_argument(
        "--picture", type=parse_path, metavar="FILE", help="also draw a few steps, as .svg, .png or .pdf"
    )
    parser.add_argument(
        "--steps", type=steps_of, metavar="A..B",
        help="only these steps, such as 10..12, or a single one, such as 10 (default: all; in the picture, a few)",
    )  # fmt: skip


def steps_of(text: str) -> tuple[int, int]:
    """Parse steps: one number, or a range with both ends.

    >>> steps_of("10..12"), steps_of("7")
    ((10, 12), (7, 7))
    """
    found = re.fullmatch(r"(\d{1,15})(?:\.\.(\d{1,15}))?", text)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if last < first:
        raise argparse.ArgumentTypeError(
            f"steps must be one number or a range A..B with 0 <= A <= B; got {text}"
        )
    return first, last


def main(args: argparse.Namespace) -> int:
    """Write the trace and, if asked for, the picture; say what they lack."""
    from paceline.errors import UsageError
    from paceline.figures.drawing import check_format
    from paceline.files import check_place
    from paceline.record import Run
    from paceline.trace import draw, write_trace

    if args.picture is not None:
        check_format(args.picture)
        if args.picture.absolute() == args.out.absolute():
            raise UsageError(f"the trace and the picture need two files; both are {args.out}")
    for path in filter(None, (args.out, args.picture)):
        check_place(path)
    run = Run(args.run)
    timeline = write_trace(run, args.out, args.steps)
    if args.picture is not None:
        draw(run, args.picture, args.steps, timeline)
        print(f"picture: {args.picture}")
    if run.cut is not None:
        print(f"the run was {run.cut}: the trace ends at its last checkpoint")
    if not timeline.traced:
        print("the order within a step, calls and messages are unknown: train with --trace to record them")
    idle = sorted(set(range(timeline.ranks)) - {span.rank for span in timeline.work})
    if idle and not timeline.traced:
        print(f"nothing is known about {_list_ranks(idle)}: no steps are taken there")
    if timeline.lost:
        print(f"the trace was truncated when it was recorded: it lacks {timeline.lost:,} later events")
    print(f"trace: {args.out}")
    return 0


def _list_ranks(ranks: list[int]) -> str:
    """List ranks by number, at most eight of them.

    >>> _list_ranks([0]), _list_ranks([0, 1, 2])
    ('rank 0', 'ranks 0, 1, 2')
    """
    few = ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {few}"
