"""Which ranks share a node: found once for each communicator."""

from __future__ import annotations

import numpy as np

from paceline.collectives import recursive_doubling
from paceline.collectives._layout import Nodes, one_node
from paceline.comm import Channel


def nodes(comm: Channel) -> Nodes:
    """The layout of a channel's ranks. Collective the first time."""
    layout: Nodes = comm.fact("nodes", _look)
    return layout


def peers(comm: Channel) -> Channel:
    """The ranks with this one's place on every node; those with a place that some node lacks form a rest."""
    place = min(comm.node.rank, nodes(comm).smallest)
    return comm.child("peers", lambda c: c.Split(place, c.Get_rank()))


def _look(comm: Channel) -> Nodes:
    if comm.node.size == comm.size:
        return one_node(comm.size)
    first = np.array([comm.rank])
    recursive_doubling.allreduce(first, first, comm.node, np.minimum)  # a node is named by its first rank
    of = np.zeros(comm.size, first.dtype)
    of[comm.rank] = first[0]
    recursive_doubling.allreduce(of, of, comm, np.add)
    return Nodes(tuple(of.tolist()))
