"""`paceline watch`: follow runs in progress, in the terminal and on a local page."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.commands import add_folders

if TYPE_CHECKING:
    from rich.console import Group

    from paceline.report.live import LiveRun, LiveState

EXAMPLES = """
examples:
  paceline watch runs                      while `paceline train` or `paceline study` is running in another terminal
  paceline watch runs/mine --port 8000

The page is served to this machine alone, and refreshes itself; it works for complete runs, too. Ctrl-C ends it.
"""
EVERY = 1.0  # seconds between two looks at the folders
SHOWN = 8  # runs at most in the terminal, besides those that go on
GAP = 2  # spaces between two columns
NAME = 28  # characters of a run's name that a narrow terminal should have space for
WAITING = "waiting, by rank"
# The columns that a narrow terminal should show, the most important first.
IMPORTANT = ("state", "quality", "epoch", "left", "settings", "samples/s", "waiting", "loss")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = EXAMPLES
    add_folders(parser)
    parser.add_argument(
        "--port", type=int, default=0, metavar="N", help="serve the page on this port (default: a free one)"
    )


def main(args: argparse.Namespace) -> int:
    """Show the state of the runs until Ctrl-C."""
    from paceline.report.live import serve, state_of

    state_of(args.runs)  # refuse folders that do not exist
    server, address = serve(args.runs, args.port)
    try:
        print(f"page: {address}", flush=True)
        (_draw if sys.stdout.isatty() else _print)(args.runs)
    except KeyboardInterrupt:
        return 0
    finally:
        server.shutdown()
        server.server_close()
        if server.follower.writing:  # ended in the middle of drawing, its thread would abort the process
            sys.stdout.flush()
            os._exit(0)
    return 0


def _draw(places: list[Path]) -> None:
    """Draw a table that changes, until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    from paceline.report.live import state_of

    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(_table(state_of(places), console.width), refresh=True)
            time.sleep(EVERY)


def _table(state: LiveState, width: int) -> Group:
    """Return what a study will do, and the runs, one line each, with as many columns as fit into `width`."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from paceline.report.live import NONE_YET
    from paceline.text import count

    plan = [Text(state.plan)] if state.plan else []
    if not state.runs:
        return Group(*plan, Text(NONE_YET))
    shown = state.runs[: max(SHOWN, sum(run.state == "running" for run in state.runs))]
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    columns = _choose_columns(shown, state.headings, width)
    for name, cells in columns.items():
        widest = max(map(len, (name, *cells)))
        table.add_column(name, no_wrap=True, overflow="ellipsis", min_width=0 if name == "run" else widest)
    for number, run in enumerate(shown):
        cells = [cells[number] for cells in columns.values()]
        table.add_row(*map(Text, cells), style="bold" if run.state == "running" else "")
    earlier = len(state.runs) - len(shown)
    return Group(*plan, table, *([Text(f"and {count(earlier, 'earlier run')}")] if earlier else []))


def _choose_columns(runs: Sequence[LiveRun], headings: Sequence[str], width: int) -> dict[str, list[str]]:
    """Return the columns that fit into `width`, by their headings, each with a cell for every run.

    If there is too little space, names of runs are shortened, waiting is shown as a range, and the columns are left out
    that are empty or less important.
    """
    columns = {name: [run.cells()[name] for run in runs] for name in headings}
    # There is space for one metric.
    columns["quality"] = [cell.partition(", ")[0] for cell in columns["quality"]]
    widest = {name: max(map(len, (name, *cells))) for name, cells in columns.items()}
    if sum(widest.values()) + GAP * (len(columns) - 1) <= width:
        return columns
    columns = {("waiting" if name == WAITING else name): cells for name, cells in columns.items()}
    columns["waiting"] = [run.waiting_range() for run in runs]
    chosen, room = {"run"}, width - min(NAME, widest["run"])
    for name in IMPORTANT:
        taken = GAP + max(map(len, (name, *columns.get(name, ()))))
        if any(columns.get(name, ())) and taken <= room:
            chosen.add(name)
            room -= taken
    space = max(1, room + min(NAME, widest["run"]))
    columns["run"] = [_shorten(name, space) for name in columns["run"]]
    return {name: cells for name, cells in columns.items() if name in chosen}


def _shorten(name: str, width: int) -> str:
    """Shorten a name in its middle: its end has the ranks and the seed.

    >>> _shorten("sync-allreduce-ring-n16-s0", 16)
    'sync-allre…16-s0'
    """
    if len(name) <= width:
        return name
    tail = (width - 1) // 3
    return f"{name[: width - 1 - tail]}…{name[len(name) - tail :]}"


def _print(places: list[Path]) -> None:
    """Print a line whenever a run has gone on, until Ctrl-C."""
    from paceline.report.live import NONE_YET, state_of

    said: dict[str, tuple[str, int]] = {}
    state = state_of(places)
    if not state.runs:
        print(NONE_YET, flush=True)
    while True:
        for run in reversed(state.runs):
            now = (run.state, run.epoch)
            if said.get(run.name) != now:
                said[run.name] = now
                cells = {
                    name: cell for name, cell in run.cells().items() if cell and name in state.headings[1:]
                }
                words = [
                    f"{'' if name in ('settings', 'quality', 'state') else name} {cell}".strip()
                    for name, cell in cells.items()
                ]
                print(f"{run.name}: {'; '.join(words)}", flush=True)
        time.sleep(EVERY)
        state = state_of(places)
