"""Starting ranks: the right mpiexec with the right settings for the MPI that is installed."""

from __future__ import annotations

from paceline.launch.by_hand import by_hand, refuse
from paceline.launch.calling import RanksFailedError, call
from paceline.launch.command import mpiexec
from paceline.launch.cores import allowed_cores, machine_cores, take_cores
from paceline.launch.guard import abort_on_error
from paceline.launch.job import run
from paceline.launch.library import Library, find
from paceline.launch.prepare import communicator, mpi, prepared
from paceline.launch.resources import (
    allocated_cores,
    apply_threads,
    set_thread_variables,
    threads_of_rank,
    threads_per_rank,
    usable_cores,
)
from paceline.launch.world import World, verify, world

__all__ = [
    "Library",
    "RanksFailedError",
    "World",
    "abort_on_error",
    "allocated_cores",
    "allowed_cores",
    "apply_threads",
    "by_hand",
    "call",
    "communicator",
    "find",
    "machine_cores",
    "mpi",
    "mpiexec",
    "prepared",
    "refuse",
    "run",
    "set_thread_variables",
    "take_cores",
    "threads_of_rank",
    "threads_per_rank",
    "usable_cores",
    "verify",
    "world",
]
