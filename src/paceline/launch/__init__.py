"""Starting ranks: the right mpiexec with the right settings for the MPI that is installed."""

from __future__ import annotations

import os
from collections.abc import Sequence

from paceline.errors import UsageError
from paceline.launch._library import Library, find
from paceline.launch._settings import clean, for_library
from paceline.launch._threads import apply_threads, thread_variables, threads_per_rank, usable_cores

__all__ = ["Library", "apply_threads", "find", "mpiexec", "threads_per_rank", "usable_cores"]


def mpiexec(
    ranks: int, command: Sequence[str], *, threads: int | None = None
) -> tuple[list[str], dict[str, str]]:
    """The command line and the environment that start `command` on `ranks` ranks of this machine.

    >>> argv, environment = mpiexec(2, ["python", "-V"], threads=3)
    >>> argv[-4:], environment["OMP_NUM_THREADS"]
    (['-n', '2', 'python', '-V'], '3')
    """
    if ranks < 1:
        raise UsageError(f"ranks must be at least 1; got {ranks}")
    library = find()
    options, settings = for_library(library, crowded=ranks > usable_cores())
    environment = clean(dict(os.environ)) | settings | thread_variables(threads_per_rank(ranks, threads))
    return [str(library.mpiexec), *options, "-n", str(ranks), *command], environment
