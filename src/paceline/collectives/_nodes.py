"""Which ranks share a node: found once for each communicator."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from paceline.collectives import recursive_doubling
from paceline.comm import Channel


@dataclass(frozen=True)
class Nodes:
    """The ranks of a communicator by node; the same on every rank."""

    count: int
    """Nodes."""
    smallest: int
    """Ranks on the node that has the fewest."""
    largest: int
    """Ranks on the node that has the most."""


def nodes(comm: Channel) -> Nodes:
    """The layout of a channel's ranks. Collective the first time."""
    layout: Nodes = comm.fact("nodes", _look)
    return layout


def peers(comm: Channel) -> Channel:
    """The ranks with this one's place on every node; those with a place that some node lacks form a rest."""
    place = min(comm.node.rank, nodes(comm).smallest)
    return comm.child("peers", lambda c: c.Split(place, c.Get_rank()))


def _look(comm: Channel) -> Nodes:
    leader = np.array([comm.rank])
    recursive_doubling.allreduce(leader, leader, comm.node, np.minimum)
    leaders = np.zeros(comm.size, leader.dtype)
    leaders[comm.rank] = leader[0]
    recursive_doubling.allreduce(leaders, leaders, comm, np.add)
    sizes = Counter(leaders.tolist()).values()
    return Nodes(len(sizes), min(sizes), max(sizes))
