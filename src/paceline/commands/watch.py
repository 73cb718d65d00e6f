"""`paceline watch`: follow runs while they go on, in the terminal and on a local page."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from paceline.report.live import State

EXAMPLES = """
examples:
  paceline watch runs                      while `paceline train` or `paceline study` is running in another terminal
  paceline watch runs/mine --port 8000

The page is served to this machine alone, and refreshes itself; it works for complete runs, too. Ctrl-C ends it.
"""
EVERY = 1.0  # seconds between two looks at the folders
RANKS = 4  # more than these are not listed in the terminal
SHOWN = 8  # runs at most in the terminal, besides those that go on


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = EXAMPLES
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs, or folders that contain runs")
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

    with Live(console=Console(highlight=False), auto_refresh=False) as live:
        while True:
            live.update(_table(state_of(places)), refresh=True)
            time.sleep(EVERY)


def _table(state: State) -> Table:
    from rich.table import Table
    from rich.text import Text

    from paceline.text import count, share

    table = Table(title=Text(state.plan) if state.plan else None, box=None, pad_edge=False)
    for name in state.headings:
        table.add_column(name, overflow="fold")
    shown = max(SHOWN, sum(run.state == "running" for run in state.runs))
    for run in state.runs[:shown]:
        cells = {name: cell for name, cell in run.cells().items() if name in state.headings}
        # The time would be all that a narrow terminal shows, and lines should not be many.
        cells["run"] = re.sub(r"^\d{8}-\d{6}-|-[0-9a-f]{8}$", "", cells["run"])
        cells["quality"] = cells["quality"].partition(", ")[0]
        if len(run.waiting) > RANKS:
            cells["waiting, by rank"] = " to ".join(share(end(run.waiting.values())) for end in (min, max))
        table.add_row(*map(Text, cells.values()), style="bold" if run.state == "running" else "")
    if len(state.runs) > shown:
        table.caption = Text(count(len(state.runs) - shown, "earlier run"))
    return table


def _print(places: list[Path]) -> None:
    """Print a line whenever a run has gone on, until Ctrl-C."""
    from paceline.report.live import state_of

    said: dict[str, tuple[str, int]] = {}
    while True:
        state = state_of(places)
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
