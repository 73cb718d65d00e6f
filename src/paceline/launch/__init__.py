"""Starting ranks, and calling functions on them: the right mpiexec, with the right settings, for the installed MPI.

job          run a command on ranks, with MPI or, for torch, without; its output, signals and exit status (`run`)
calling      call a function on ranks that are started for it (`call`)
library      which MPI is installed (`find`), and its command line and environment (`mpiexec`)
hosts        several hosts without Slurm: parse a list of them, check them (`check_hosts`)
prepare      start MPI in this process (`mpi`, `communicator`, `by_hand`); pmi is its relay to Slurm
world        the job that this process is a rank of (`world`, `verify`)
guard        end all ranks when one fails (`abort_on_error`) or in any case (`end_ranks`); requests to stop (`StopRequests`)
resources    cores, threads, memory and other limits of this process; idle cores reserved for ranks (`take_cores`)
supervise    the script that makes sure that nothing of a job is left behind; remote starts it on other hosts
"""

from __future__ import annotations

from paceline.launch.calling import RanksFailedError, call
from paceline.launch.guard import (
    REQUESTS,
    StopRequests,
    abort_on_error,
    announce_failure,
    announce_run,
    end_ranks,
    is_first_to_say,
    leave,
    leave_survivors,
    note_survivors,
    survivors,
    watch_each_other,
)
from paceline.launch.hosts import Host, answering_hosts, check_hosts, parse_hosts
from paceline.launch.job import JobOutcome, run
from paceline.launch.library import Library, allocated_nodes, find, mpiexec
from paceline.launch.prepare import AgreedErrorHook, apply_settings, by_hand, communicator, mpi, refuse
from paceline.launch.resources import (
    allocated_cores,
    allowed_cores,
    apply_threads,
    check_memory,
    check_ranks,
    keep_memory,
    limit_threads,
    machine_cores,
    set_thread_variables,
    take_cores,
    threads_of_rank,
    threads_per_rank,
    usable_cores,
)
from paceline.launch.supervise import STALLED
from paceline.launch.world import World, requeued_job, verify, world

__all__ = [
    "REQUESTS",
    "STALLED",
    "AgreedErrorHook",
    "Host",
    "JobOutcome",
    "Library",
    "RanksFailedError",
    "StopRequests",
    "World",
    "abort_on_error",
    "allocated_cores",
    "allocated_nodes",
    "allowed_cores",
    "announce_failure",
    "announce_run",
    "answering_hosts",
    "apply_settings",
    "apply_threads",
    "by_hand",
    "call",
    "check_hosts",
    "check_memory",
    "check_ranks",
    "communicator",
    "end_ranks",
    "find",
    "is_first_to_say",
    "keep_memory",
    "leave",
    "leave_survivors",
    "limit_threads",
    "machine_cores",
    "mpi",
    "mpiexec",
    "note_survivors",
    "parse_hosts",
    "refuse",
    "requeued_job",
    "run",
    "set_thread_variables",
    "survivors",
    "take_cores",
    "threads_of_rank",
    "threads_per_rank",
    "usable_cores",
    "verify",
    "watch_each_other",
    "world",
]
