"""`paceline study`: every run that a file asks for, and one report."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.commands import import_from_here
from paceline.simulate.options import PLACES

if TYPE_CHECKING:
    from paceline.study.cells import Cell
    from paceline.study.file import Study
    from paceline.study.folder import Folder
    from paceline.study.run import State

EXAMPLES = """
examples:
  paceline study studies/quickstart.toml
  paceline study mine.toml --dry-run
  paceline study mine.toml --only "sync* 4 ranks*"
  paceline study mine.toml --on sim

Stop it with Ctrl-C and start it again: what is done is kept.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which study, which of its cells, and where they are kept."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "file", type=Path, metavar="FILE.toml", help="the study (docs/studies.md has the format)"
    )
    parser.add_argument(
        "--on", choices=PLACES, default="mpi", help="real ranks, or simulated ones (default: mpi)"
    )
    parser.add_argument(
        "--runs", type=Path, metavar="DIR", help="where its runs are kept (default: runs/FILE)"
    )
    parser.add_argument(
        "--only", metavar="PATTERN", help="only cells whose line of --dry-run has this in it; * is anything"
    )
    parser.add_argument(
        "--dry-run", "--list", action="store_true", help="say what would be run, and run nothing"
    )
    parser.add_argument("--retry-failed", action="store_true", help="run cells again that failed before")
    parser.add_argument(
        "-o", "--out", type=Path, metavar="FILE", help="the report (default: report.html of DIR)"
    )


def main(args: argparse.Namespace) -> int:
    """Run what is missing; print the tables, and where the report is."""
    from paceline import launch
    from paceline.errors import UsageError
    from paceline.study.check import mistakes
    from paceline.study.file import BadStudyError, read
    from paceline.study.folder import Folder

    if launch.world() is not None:
        raise UsageError("a study starts its runs itself: leave out mpiexec or srun")
    import_from_here()
    sys.path.insert(1, str(args.file.parent.absolute()))
    try:
        study = read(args.file)
        cells = study.cells(args.on)
        if wrong := mistakes(cells):
            raise BadStudyError(wrong)
    except BadStudyError as bad:
        for line in (*bad.lines, *(mistakes(bad.rest.cells(args.on)) if bad.rest else ())):
            print(f"paceline study: {args.file}: {line}", file=sys.stderr)
        return 2
    spell = _speller(cells)
    chosen = [cell for cell in cells if args.only is None or _matches(args.only, spell(cell))]
    if not chosen:
        raise UsageError(f"no cell of {args.file} matches {args.only!r}; --dry-run lists them")
    folder = Folder(args.runs or Path("runs") / args.file.stem)
    args.out = args.out or folder.path / "report.html"
    folder.check(args.out)
    if args.dry_run:
        return _list(folder, chosen, spell, args.retry_failed)
    with folder.held() as lock:
        return _run(args, study, folder, chosen, spell, lock)


def _run(
    args: argparse.Namespace, study: Study, folder: Folder, cells: list[Cell], spell: Any, lock: int
) -> int:
    from paceline.study import progress as _progress
    from paceline.study.process import Trains
    from paceline.study.run import opened, run_missing

    state = None
    with _terminated() as signals:
        try:
            state = opened(folder, study, cells, retry=args.retry_failed)
            show = _progress.on(sys.stderr, total=len(cells), done=len(cells) - len(state.missing))
            start = Trains(runs=folder.path, lock=lock, modules=args.file.parent, timeout=study.timeout)
            try:
                run_missing(folder, state, start, show, spell)
            finally:
                show.close()
        except KeyboardInterrupt:
            far = "" if state is None else f": {len(state.done)} of {len(cells)} cells are done"
            print(f"stopped{far}; go on with: {_again()}", file=sys.stderr)
            return 128 + signals[0] if signals else 130
        named = {cell.key for cell in study.named()}
        return _end(args, folder, [run.folder for key in named for run in state.found.get(key, ())], state)


def _end(args: argparse.Namespace, folder: Folder, runs: Sequence[Path], state: State) -> int:
    """The tables on stdout and the report in its file, as `paceline report` makes them."""
    from paceline.commands import report

    if runs:
        parser = argparse.ArgumentParser()
        report.add_arguments(parser)
        report.main(parser.parse_args([*map(str, sorted(runs)), "-o", str(args.out)]))
    if state.failed:
        count = len(state.failed)
        print(
            f"{count} cell{'s' * (count > 1)} failed: {folder.path / 'failed'} has the reasons; "
            "--retry-failed tries again",
            file=sys.stderr,
        )
    return 1 if state.failed else 0


def _list(folder: Folder, cells: list[Cell], spell: Callable[[Cell], str], retry: bool) -> int:
    """What is there and what would be run, in order."""
    from paceline.study.run import state_of
    from paceline.text import clock_time

    state = state_of(folder, cells, retry=retry)
    for cell in cells:
        kind = "done" if cell.key in state.done else "failed" if cell.key in state.failed else "missing"
        print(f"{kind:7}  {spell(cell)}")
    left = state.pace.left(state.missing)
    time = "" if left is None or not state.missing else f", about {clock_time(left)}"
    print(
        f"{len(cells)} cells: {len(state.done)} done, {len(state.failed)} failed, "
        f"{len(state.missing)} missing{time}"
    )
    if any(map(_crowded, cells)):
        print("* more ranks than cores")
    return 0


def _speller(cells: Sequence[Cell]) -> Callable[[Cell], str]:
    """Cells in words: with the settings in which they differ, and a mark where ranks share cores."""
    from paceline.study.cells import told, varying

    names = varying(cells)
    return lambda cell: told(cell, names) + (" *" if _crowded(cell) else "")


def _crowded(cell: Cell) -> bool:
    from paceline.launch import allocated_cores

    return cell.oversubscribes(allocated_cores())


def _matches(pattern: str, line: str) -> bool:
    return fnmatchcase(line, f"*{pattern}*")


def _again() -> str:
    from paceline.record.environment import command

    return shlex.join(command())


@contextmanager
def _terminated() -> Iterator[list[int]]:
    """While inside, SIGTERM is Ctrl-C; the list has it, if it came."""
    came: list[int] = []

    def stop(number: int, frame: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, before)
