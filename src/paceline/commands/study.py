"""`paceline study`: run every cell of a study file, and write one report."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.commands import add_hosts, import_from_here, interrupt_on_signals, parse_path
from paceline.simulate.options import PLACES

if TYPE_CHECKING:
    from paceline.study.cells import Cell
    from paceline.study.file import Study
    from paceline.study.folder import Folder
    from paceline.study.run import StudyState

EXAMPLES = """
examples:
  paceline study studies/quickstart.toml
  paceline study mine.toml --dry-run
  paceline study mine.toml --only "sync* 4 ranks*"
  paceline study mine.toml --on sim

Stop it with Ctrl-C and start it again at any time: finished runs are kept. The run that is under way saves a checkpoint
first; a second Ctrl-C ends it at once.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "file",
        type=parse_path,
        metavar="FILE.toml",
        help="the study file (see docs/studies.md for its format)",
    )
    parser.add_argument(
        "--on",
        choices=PLACES,
        default="mpi",
        help="where to train, if FILE does not say it: on real ranks or on simulated ones (default: mpi)",
    )
    add_hosts(parser)
    parser.add_argument(
        "--runs",
        type=parse_path,
        metavar="DIR",
        help="folder for the runs (default: runs/NAME for NAME.toml)",
    )
    parser.add_argument(
        "--only",
        metavar="PATTERN",
        help="run only cells whose --dry-run line contains PATTERN; * matches anything",
    )
    parser.add_argument("--dry-run", action="store_true", help="list the cells and run nothing")
    parser.add_argument(
        "--trust",
        action="store_true",
        help="with --dry-run: import the code (module:attribute) that FILE names, to check it",
    )
    parser.add_argument("--retry-failed", action="store_true", help="also run cells that failed before")
    parser.add_argument(
        "-o",
        "--out",
        type=parse_path,
        metavar="FILE",
        help="where to write the report (default: report.html in DIR)",
    )


def main(args: argparse.Namespace) -> int:
    """Run what is missing; print the tables and where the report is."""
    from paceline import launch
    from paceline.errors import UsageError
    from paceline.names import refuse_user_code

    if launch.world() is not None:
        raise UsageError("a study starts its runs itself: run it without mpiexec or srun")
    import_from_here()
    sys.path.insert(1, str(args.file.parent.absolute()))
    with interrupt_on_signals() as signals:
        try:
            with refuse_user_code(str(args.file), trust=args.trust or not args.dry_run):
                return _study(args)
        except KeyboardInterrupt as stopped:
            if not args.dry_run:
                print(f"stopped{stopped}; continue with: {_again()}", file=sys.stderr)
            return 128 + signals[0] if signals else 130


def _study(args: argparse.Namespace) -> int:
    """Read and check the file, then list its cells or run what is missing."""
    from paceline.errors import UsageError
    from paceline.launch import allocated_nodes, parse_hosts
    from paceline.study.file import BadStudyError, mistakes, read
    from paceline.study.folder import Folder

    nodes = len(parse_hosts(args.hosts)) if args.hosts is not None else allocated_nodes()
    try:
        study = read(args.file)
        cells = study.cells(args.on)
        folders = {str(Path(cell.program.file).absolute().parent) for cell in cells if cell.program}
        sys.path += sorted(folders - set(sys.path))  # strategies that are beside a program
        if wrong := mistakes(cells, nodes):
            raise BadStudyError(wrong)
    except BadStudyError as bad:
        for line in (*bad.lines, *(mistakes(bad.rest.cells(args.on), nodes) if bad.rest else ())):
            print(f"paceline study: {args.file}: {line}", file=sys.stderr)
        return 2
    spell = _speller(cells)
    chosen = [cell for cell in cells if args.only is None or fnmatchcase(spell(cell), f"*{args.only}*")]
    if not chosen:
        raise UsageError(f"no cell of {args.file} matches {args.only!r}; --dry-run lists them")
    folder = Folder(args.runs or Path("runs") / args.file.stem)
    args.out = args.out or folder.path / "report.html"
    folder.check()
    _check_report(folder, args.out)
    _check_hosts(args, chosen, folder)
    if args.dry_run:
        return _list(folder, chosen, spell, args.retry_failed)
    with folder.lock() as lock:
        return _run(args, study, folder, chosen, spell, lock)


def _check_hosts(args: argparse.Namespace, cells: Sequence[Cell], folder: Folder) -> None:
    """Refuse hosts that cannot be used, or that are too few for a cell; `--dry-run` asks none of them."""
    from paceline.errors import UsageError
    from paceline.launch import check_hosts, parse_hosts

    if args.hosts is None:
        return
    if all(cell.options is not None for cell in cells):
        raise UsageError("simulated ranks are all in this process; leave out --hosts")
    hosts = parse_hosts(args.hosts)
    slots, most = sum(host.slots for host in hosts), max((c.ranks for c in cells if c.on_ranks), default=1)
    if most > slots:
        raise UsageError(f"{most} ranks do not fit on the hosts, which take {slots}")
    if not args.dry_run:
        check_hosts(hosts, ranks=most, shared=folder.path)


def _check_report(folder: Folder, report: Path) -> None:
    """Refuse a place where the report could not be written; make nothing."""
    from paceline.errors import UsageError
    from paceline.report.writing import FORMATS, check

    if report.suffix not in FORMATS:
        raise UsageError(f"unknown format of {report}; its name must end with one of {', '.join(FORMATS)}")
    new = not folder.path.exists() and report.parent.absolute() == folder.path.absolute()
    check([] if new else [report])  # the study makes its folder first


def _run(
    args: argparse.Namespace,
    study: Study,
    folder: Folder,
    cells: list[Cell],
    spell: Callable[[Cell], str],
    lock: int,
) -> int:
    from paceline.study.run import Trains, make_display, open_folder, run_missing

    state = open_folder(folder, study, cells, retry=args.retry_failed)
    show = make_display(sys.stderr, total=len(cells), done=len(cells) - len(state.missing))
    start = Trains(
        runs=folder.path, lock=lock, modules=args.file.parent, timeout=study.timeout, hosts=args.hosts
    )
    try:
        run_missing(folder, state, start, show, spell)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f": {len(state.done)} of {len(cells)} cells are done") from None
    finally:
        show.close()
    named = {cell.key for cell in study.list_all_cells()}
    return _end(args, folder, [run.folder for key in named for run in state.found.get(key, ())], state)


def _end(args: argparse.Namespace, folder: Folder, runs: Sequence[Path], state: StudyState) -> int:
    """Print the tables and write the report, as `paceline report` does."""
    from paceline.commands.report import report_on
    from paceline.text import count

    if runs:
        report_on(sorted(runs), [args.out])
    if state.failed:
        print(
            f"{count(len(state.failed), 'cell')} failed: {folder.path / 'failed'} has the reasons; "
            "--retry-failed tries again",
            file=sys.stderr,
        )
    return 1 if state.failed else 0


def _list(folder: Folder, cells: list[Cell], spell: Callable[[Cell], str], retry: bool) -> int:
    """Print which cells are done and which would be run, in order."""
    from paceline.study.run import state_of
    from paceline.text import clock_time

    state = state_of(folder, cells, retry=retry)
    for cell in cells:
        kind = "done" if cell.key in state.done else "failed" if cell.key in state.failed else "missing"
        print(f"{kind:7}  {spell(cell)}")
    left = state.pace.estimate(state.missing)
    time = "" if not state.missing else ", time unknown" if left is None else f", about {clock_time(left)}"
    print(
        f"{len(cells)} cells: {len(state.done)} done, {len(state.failed)} failed, "
        f"{len(state.missing)} missing{time}"
    )
    if any(map(_is_crowded, cells)):
        print("* more ranks than cores")
    return 0


def _speller(cells: Sequence[Cell]) -> Callable[[Cell], str]:
    """Return a function that describes a cell by the settings in which cells differ, with * if ranks share cores."""
    from paceline.study.cells import find_varying, spell_cell

    names = find_varying(cells)
    return lambda cell: spell_cell(cell, names) + (" *" if _is_crowded(cell) else "")


def _is_crowded(cell: Cell) -> bool:
    from paceline.launch import allocated_cores

    return cell.oversubscribes(allocated_cores())


def _again() -> str:
    from paceline.record.environment import command

    return shlex.join(command())
