"""`paceline report`: compare runs."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which runs, and where the page goes."""
    parser.epilog = """
example:
  paceline report runs -o report.html
"""
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs, or folders that hold some")
    parser.add_argument("-o", "--out", type=Path, default=Path("report.html"), help="default: report.html")


def main(args: argparse.Namespace) -> int:
    """Write the page; print the tables and what is to be learned from each."""
    from paceline.record import find_runs
    from paceline.report import write_report
    from paceline.report._page import HEADINGS, cells
    from paceline.report._rows import rows_of
    from paceline.report._verdict import verdict

    runs = find_runs(args.runs)
    write_report(runs, args.out)
    rows = rows_of(runs)
    for problem in dict.fromkeys(row.problem for row in rows):
        tried = [row for row in rows if row.problem == problem]
        table = [HEADINGS, *map(cells, tried)]
        widths = [max(len(line[column]) for line in table) for column in range(len(HEADINGS))]
        print(f"\n{problem}")
        for line in table:
            first = line[0].ljust(widths[0])
            print("  " + "  ".join([first, *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]))
        print(verdict(tried))
    print(f"\nreport: {args.out}")
    return 0
