"""Starting ranks: the right mpiexec with the right settings for the MPI that is installed."""

from __future__ import annotations

from paceline.launch._command import mpiexec
from paceline.launch._job import run, terminal_width
from paceline.launch._library import Library, find
from paceline.launch._threads import apply_threads, threads_per_rank, usable_cores

__all__ = [
    "Library",
    "apply_threads",
    "find",
    "mpiexec",
    "run",
    "terminal_width",
    "threads_per_rank",
    "usable_cores",
]
