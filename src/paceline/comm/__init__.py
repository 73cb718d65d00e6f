"""Communicators with mpi4py's interface, and paceline's additions to them.

recording         a communicator that counts messages and bytes (`Recorded`) and times its calls (`Timer`)
tracing           every call with its times, for `--trace`
channel           the private duplicate of a communicator that collectives use, with scratch and shared memory;
                  collectives that go on while their rank computes (`Tasks`, `Lane`)
operations        reduction operations as functions of two arrays; the MPI module of a communicator (`mpi_of`)
shared            memory shared by the ranks of a node
control           agreement, sums and gathering outside of training
clocks            stopwatches, and one origin of time for all ranks
torch_processes   a communicator of processes without MPI
"""

from __future__ import annotations

from paceline.comm.channel import Channel, channel, is_revoked, pretend_nodes, revoke
from paceline.comm.operations import Operation, mpi_of
from paceline.comm.recording import Counts, MessageCount, Recorded

__all__ = [
    "Channel",
    "Counts",
    "MessageCount",
    "Operation",
    "Recorded",
    "channel",
    "is_revoked",
    "mpi_of",
    "pretend_nodes",
    "revoke",
]
