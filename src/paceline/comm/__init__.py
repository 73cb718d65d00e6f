"""Communicators: mpi4py's own, and one that counts what it sends."""

from __future__ import annotations

from paceline.comm._channel import Channel, channel, pretend_nodes, revoke
from paceline.comm._mpi import mpi
from paceline.comm._operation import Operation
from paceline.comm.recording import Counts, Recorded, Traffic

__all__ = [
    "Channel",
    "Counts",
    "Operation",
    "Recorded",
    "Traffic",
    "channel",
    "mpi",
    "pretend_nodes",
    "revoke",
]
