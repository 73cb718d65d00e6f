"""Communicators: mpi4py's own, and one that counts what it sends."""

from __future__ import annotations

from paceline.comm.channel import Channel, channel, pretend_nodes, revoke
from paceline.comm.counting import Counts, Recorded, Traffic
from paceline.comm.mpi import mpi_of
from paceline.comm.operations import Operation

__all__ = [
    "Channel",
    "Counts",
    "Operation",
    "Recorded",
    "Traffic",
    "channel",
    "mpi_of",
    "pretend_nodes",
    "revoke",
]
