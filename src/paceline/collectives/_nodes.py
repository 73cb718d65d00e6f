"""Find which ranks share a node, once for each communicator."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from paceline.collectives import recursive_doubling
from paceline.collectives._cost import Nodes, one_node
from paceline.comm import Channel
from paceline.comm.shared import free_room
from paceline.errors import AgreedError
from paceline.text import amount


def nodes(comm: Channel) -> Nodes:
    """Return the layout of a channel's ranks. Collective the first time."""
    layout: Nodes = comm.fact("nodes", _find_nodes)
    return layout


def peers(comm: Channel) -> Channel:
    """Return the channel of the ranks with this one's place on their nodes.

    Ranks whose place does not exist on every node are put together in one channel.
    """
    place = min(comm.node.rank, nodes(comm).smallest)
    return comm.child("peers", lambda c: c.Split(place, c.Get_rank()))


def has_room(comm: Channel, nbytes: int) -> bool:
    """Return True if each node has `nbytes` of shared memory left. Collective the first time, for each size."""
    found: bool = comm.fact(f"room for {nbytes}", lambda channel: _has_room(channel, nbytes))
    return found


def require_room(comm: Channel, nbytes: int, what: str, otherwise: str = "") -> None:
    """Raise an AgreedError on all ranks if a node does not have `nbytes` of shared memory left. Collective."""
    if not has_room(comm, nbytes):
        raise AgreedError(f"{describe_room(comm, nbytes, what)}{otherwise and f', or {otherwise}'}")


def describe_room(comm: Channel, nbytes: int, what: str) -> str:
    """Return a sentence about shared memory that is too small, and how to get more."""
    free = free_room(comm.node.bare) or 0
    more = max(64, 1 << ((2 * nbytes) >> 20).bit_length())
    return (
        f"{what} needs {amount(nbytes)} of shared memory, and {amount(free)} are free: enlarge /dev/shm "
        f"(docker run --shm-size={more}m)"
    )


def _has_room(comm: Channel, nbytes: int) -> bool:
    free = free_room(comm.node.bare)
    if free is None:  # on every rank
        return True
    enough = np.array([int(free >= nbytes)])
    if comm.node.size == comm.size:
        comm.bare.Bcast(enough, 0)
    else:
        recursive_doubling.allreduce(enough, enough, comm, np.minimum)
    return bool(enough[0])


class _Same:
    """A tuple compared by identity: comparing two tuples of 65,536 ranks on each of these ranks would take too long."""

    __slots__ = ("of",)

    def __init__(self, of: tuple[int, ...]) -> None:
        self.of = of

    def __hash__(self) -> int:
        return id(self.of)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.of is other.of


@lru_cache(maxsize=16)
def _make_nodes(same: _Same) -> Nodes:
    return Nodes(same.of)


def _find_nodes(comm: Channel) -> Nodes:
    if comm.node_of is not None:
        return _make_nodes(_Same(comm.node_of))  # one object for all ranks of this process
    if comm.node.size == comm.size:
        return one_node(comm.size)
    first = np.array([comm.rank])
    recursive_doubling.allreduce(first, first, comm.node, np.minimum)  # a node is named by its first rank
    of = np.zeros(comm.size, first.dtype)
    of[comm.rank] = first[0]
    recursive_doubling.allreduce(of, of, comm, np.add)
    return Nodes(tuple(of.tolist()))
