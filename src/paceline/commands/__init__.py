"""The commands of `paceline`: one module each, with `add_arguments(parser)` and `main(args)`.

Several commands have the settings of runs and simulations as arguments; names, types and help come from their classes.
"""

from __future__ import annotations

import argparse
import signal
import sys
import typing
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from paceline.config import Config, Safety
from paceline.errors import UsageError
from paceline.simulate.options import Options

if TYPE_CHECKING:
    from paceline.launch import Host

GROUPS = {
    "what to train": ("data", "labels", "model", "dtype"),
    "how to train": (
        "strategy", "update", "lr", "clip", "schedule", "lr_scaling", "batch", "batch_per_rank", "epochs", "draws",
        "seed", "reproducible", "on_divergence", "replay",
    ),
    "where to run": ("threads",),
}  # fmt: skip


def import_from_here() -> None:
    """Make modules in the working directory importable, as in `--model my_module:build_net`."""
    try:
        here = Path.cwd()
    except OSError:
        raise UsageError("the working directory no longer exists; change to another one") from None
    sys.path.insert(0, str(here))


def parse_path(text: str) -> Path:
    """Return a path given as an argument; an empty one, as of an unset shell variable, would be the working directory.

    >>> parse_path("runs/mine")
    PosixPath('runs/mine')
    """
    if not text:
        raise argparse.ArgumentTypeError("must be a name; got an empty one")
    return Path(text)


class Given(argparse.Action):
    """An action that stores the value and records that it was given."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, values)
        namespace.given = {*getattr(namespace, "given", ()), self.dest}


def add_settings(parser: argparse.ArgumentParser, *, but: Collection[str] = ()) -> dict[str, Any]:
    """Add the settings of a run, except for `but`, and return the groups that they are in."""
    groups = {title: parser.add_argument_group(title) for title in GROUPS}
    group_of = {name: groups[title] for title, members in GROUPS.items() for name in members}
    _add_fields(Config, group_of, but)
    return groups


def add_safety(group: Any) -> None:
    """Add the settings that protect a run."""
    _add_fields(Safety, {setting.name: group for setting in fields(Safety)})


def add_simulation(group: Any, *, but: Collection[str] = ()) -> None:
    """Add the settings of a simulation, except for `but`; what is not given stays None."""
    _add_fields(Options, {setting.name: group for setting in fields(Options)}, but, unset=True)


def _add_fields(
    of: type[Any], group_of: dict[str, Any], but: Collection[str] = (), *, unset: bool = False
) -> None:
    """Add one argument, except for `but`, for each field of a dataclass of settings; `unset`: None if it is not given."""
    kinds = typing.get_type_hints(of)
    for setting in fields(of):
        if setting.name in but:
            continue
        kind, default, group = kinds[setting.name], setting.default, group_of[setting.name]
        flag, about = setting.name.replace("_", "-"), setting.metadata["help"]
        assert default is not MISSING
        initial = None if unset else default
        if kind is bool:
            flag = f"no-{flag}" if default else flag
            group.add_argument(
                f"--{flag}", dest=setting.name, action="store_const", const=not default, default=initial,
                help=about,
            )  # fmt: skip
            continue
        kind = next((one for one in typing.get_args(kind) if typing.get_origin(one) is Literal), kind)
        literal = typing.get_origin(kind) is Literal
        able = (kind, *typing.get_args(kind))
        shown = "" if default in (None, "") else f" (default: {default})"
        group.add_argument(
            f"--{flag}",
            action="store" if unset else Given,
            type=next((number for number in (int, float) if number in able), str),
            default=initial,
            choices=typing.get_args(kind) if literal else None,
            metavar=None if literal else setting.metadata["metavar"],
            help=(about + shown).replace("%", "%%"),
        )


def add_folders(parser: argparse.ArgumentParser) -> None:
    """Add the folders of the runs that a command is about."""
    what = "folders of runs, or folders that contain runs"
    parser.add_argument("runs", nargs="+", metavar="RUNS", type=parse_path, help=what)


def add_hosts(group: Any) -> None:
    """Add `--hosts`."""
    group.add_argument(
        "--hosts",
        metavar="LIST",
        help="start the ranks on these hosts by ssh: a:8,b:8, each with the number of its ranks",
    )


def read_hosts(args: argparse.Namespace, *, simulated: bool) -> tuple[Host, ...]:
    """Parse `--hosts`; if it is given and the number of ranks is not, all hosts are filled."""
    from paceline.launch import parse_hosts, world

    if args.hosts is None:
        return ()
    if simulated or world() is not None:
        why = "simulated ranks are all in this process" if simulated else "the ranks are already started"
        raise UsageError(f"{why}; leave out --hosts")
    hosts = parse_hosts(args.hosts)
    args.ranks = sum(host.slots for host in hosts) if args.ranks is None else args.ranks
    return hosts


def check_ranks(args: argparse.Namespace) -> None:
    """Refuse a number of ranks that no job has, or that is not that of the job of this process."""
    from paceline.launch import world

    here = world()
    if args.ranks is not None and args.ranks < 1:
        raise UsageError(f"ranks must be at least 1; got {args.ranks}")
    if here is not None and args.ranks not in (None, here.size):
        raise UsageError(f"-n {args.ranks} is not allowed inside a job of {here.size} ranks: leave it out")


@contextmanager
def handle_signals(handler: Any, *numbers: signal.Signals) -> Iterator[None]:
    """Handle these signals in another way inside the block."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def interrupt_on_signals() -> Iterator[list[int]]:
    """Treat SIGTERM and SIGUSR1 as Ctrl-C inside the block; yield a list that has the first if it came."""
    came: list[int] = []

    def stop(number: int, frame: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    with handle_signals(stop, signal.SIGTERM, signal.SIGUSR1):
        yield came
