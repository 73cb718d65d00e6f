"""The command line and the environment of a job."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.errors import UsageError
from paceline.launch._home import home_settings
from paceline.launch._library import find
from paceline.launch._settings import clean, folder_settings, for_library, report_options, terminal_options
from paceline.launch._threads import thread_variables, threads_per_rank, usable_cores


def mpiexec(
    ranks: int,
    command: Sequence[str],
    threads: int | None = None,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    crowded: bool = False,
    terminal: bool = False,
) -> tuple[list[str], dict[str, str]]:
    """The command line and the environment that start `command` on `ranks` ranks of this machine.

    Inside a Slurm allocation the ranks are spread over its nodes. `folder` is for `run`: where the job may keep
    its segments and sockets. `environment`: more variables for the ranks. `crowded`: they will share cores, with
    each other (which is found out here, too) or with something else, and must yield while they wait. `terminal`:
    their output is to be seen at once, lines without an end, too; lines of several ranks may then mix.

    >>> argv, variables = mpiexec(2, ["python", "-V"], threads=3)
    >>> argv[-4:], variables["OMP_NUM_THREADS"]
    (['-n', '2', 'python', '-V'], '3')
    """
    if ranks < 1:
        raise UsageError(f"ranks must be at least 1; got {ranks}")
    library = find()
    nodes = allocated_nodes()
    here = -(-ranks // nodes)
    options, settings = for_library(library, crowded=crowded or here > usable_cores(), one_node=nodes == 1)
    if folder is not None and nodes == 1:
        settings |= folder_settings(library, folder)
        options += report_options(library)
    if terminal:
        options += terminal_options(library)
    variables = (
        clean(dict(os.environ))
        | home_settings()
        | settings
        | thread_variables(threads_per_rank(here, threads))
    )
    variables |= environment or {}
    return [str(library.mpiexec), *options, "-n", str(ranks), *command], variables


def allocated_nodes() -> int:
    """The nodes that a job started here will have: those of the surrounding Slurm allocation, or this one."""
    if "SLURM_JOB_ID" not in os.environ:
        return 1
    return int(os.environ.get("SLURM_JOB_NUM_NODES") or os.environ.get("SLURM_NNODES") or 1)
