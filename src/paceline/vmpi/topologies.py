"""Communicators of one group of ranks, and topologies: which ranks are neighbours, and collectives among neighbours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, ClassVar, NoReturn

import numpy as np

from paceline.vmpi import constants as c
from paceline.vmpi.buffers import BufferMemory, RankParts, unpack_spec
from paceline.vmpi.communicator import (
    COMM_KINDS,
    Comm,
    add_persistent,
    current_world,
    make_comm,
    pickle_object,
    unpickle_object,
)
from paceline.vmpi.constants import UNDEFINED
from paceline.vmpi.errors import mpi_error
from paceline.vmpi.groups import CollectiveRequest, CommState, Group
from paceline.vmpi.handles import raise_unsupported

Neighbours = list[int]


@dataclass(frozen=True, kw_only=True)
class CartTopology:
    """A grid: ranks in row-major order, and along each dimension a neighbour on either side."""

    kind: ClassVar[str] = "cart"
    number: ClassVar[int] = c.CART
    dims: list[int]
    periods: list[bool]
    none: int
    """The number of no rank, MPI.PROC_NULL, which a rank at the end of a dimension has for a neighbour."""

    def coordinates(self, rank: int) -> list[int]:
        found = []
        for size in reversed(self.dims):
            rank, here = divmod(rank, size)
            found.append(here)
        return found[::-1]

    def rank_at(self, coordinates: Sequence[int]) -> int:
        found = 0
        for size, periodic, here in zip(self.dims, self.periods, coordinates, strict=True):
            if periodic:
                here %= size
            elif not 0 <= here < size:
                return self.none
            found = found * size + here
        return found

    def shift(self, rank: int, direction: int, disp: int) -> int:
        """Return the rank that is `disp` steps away along one dimension."""
        there = self.coordinates(rank)
        there[direction] += disp
        return self.rank_at(there)

    def neighbours(self, rank: int) -> tuple[Neighbours, Neighbours]:
        """Return the ranks that a rank receives from, and those that it sends to, in order."""
        found = [self.shift(rank, axis, step) for axis in range(len(self.dims)) for step in (-1, 1)]
        return found, found

    def slots(self, rank: int) -> list[tuple[int, int]]:
        """Return, for each message that a rank sends, its receiver and where that expects it."""
        # What goes to the left comes from the right, even where both are the same rank.
        return [(dest, place ^ 1) for place, dest in enumerate(self.neighbours(rank)[1])]


@dataclass(frozen=True, kw_only=True)
class GraphTopology:
    """A graph that all ranks know: `sources` and `destinations` of each, and weights if they were given."""

    kind: str
    number: int
    sources: list[Neighbours]
    destinations: list[Neighbours]
    source_weights: list[list[int]] | None = None
    dest_weights: list[list[int]] | None = None
    index: list[int] | None = None
    edges: list[int] | None = None

    def neighbours(self, rank: int) -> tuple[Neighbours, Neighbours]:
        """Return the ranks that a rank receives from, and those that it sends to, in order."""
        return self.sources[rank], self.destinations[rank]

    def slots(self, rank: int) -> list[tuple[int, int]]:
        """Return, for each message that a rank sends, its receiver and where that expects it."""
        found: list[tuple[int, int]] = []
        for place, dest in enumerate(self.destinations[rank]):
            before = self.destinations[rank][:place].count(dest)
            expected = [slot for slot, source in enumerate(self.sources[dest]) if source == rank]
            found.append((dest, expected[before] if before < len(expected) else -1))
        return found


class Intracomm(Comm):
    """A communicator of one group of ranks, which can be arranged in a topology or connected with another."""

    __slots__ = ()

    @classmethod
    def _fits(cls, state: CommState) -> bool:
        return state.groups is None

    # ---- groups

    def Create_group(self, group: Group, tag: int = 0) -> Any:
        """Make a communicator of the ranks of a group. Only the members of the group call it."""
        self._unwrap()
        if isinstance(tag, int) and tag < 0:
            raise mpi_error("ERR_TAG", f"a tag must be at least 0; got {tag}")
        members = tuple(group.members)
        if self.me.number not in members:
            return Intracomm()
        made = self.kernel.forming.join(
            (self.context, members, tag),
            self.me.number,
            len(members),
            lambda: CommState(self.kernel, members, ""),
        )
        return make_comm(made, members.index(self.me.number))

    @classmethod
    def Create_from_group(
        cls, group: Group, stringtag: str = "org.mpi4py", info: Any = None, errhandler: Any = None
    ) -> Any:
        return current_world().Create_group(group, stringtag)

    def Create_intercomm(self, local_leader: int, peer_comm: Any, remote_leader: int, tag: int = 0) -> Any:
        """Connect this group with another one, whose leader has rank `remote_leader` in `peer_comm`."""
        self._unwrap()
        mine: Any = tuple(self.members)
        if self.rank == local_leader:
            sent = peer_comm.isend(mine, remote_leader, tag)
            theirs = peer_comm.recv(source=remote_leader, tag=tag)
            sent.wait()
            theirs = self.bcast(theirs, local_leader)
        else:
            theirs = self.bcast(None, local_leader)
        return connect(self.me, self.rank, mine, tuple(theirs), tag)

    # ---- topologies

    def Create_cart(self, dims: Sequence[int], periods: Any = None, reorder: bool = False) -> Any:
        sizes = [int(size) for size in dims]
        if periods is None or isinstance(periods, (bool, int)):
            periodic = [bool(periods)] * len(sizes)
        else:
            periodic = [bool(each) for each in periods]
        if len(periodic) != len(sizes):
            raise ValueError(f"{len(sizes)} dimensions need as many periods; got {len(periodic)}")
        ranks = prod(sizes)
        if any(size < 1 for size in sizes) or ranks > self.size:
            raise mpi_error("ERR_DIMS", f"a grid {sizes} does not fit {self.size} ranks")
        topology = CartTopology(dims=sizes, periods=periodic, none=self.kernel.special.proc_null)
        return self._arrange("Create_cart", topology, ranks)

    def Create_graph(self, index: Sequence[int], edges: Sequence[int], reorder: bool = False) -> Any:
        ends = [int(each) for each in index]
        if ends and ends[0] == 0:
            ends = ends[1:]
        all_edges = [int(edge) for edge in edges]
        if len(ends) > self.size or any(not 0 <= edge < self.size for edge in all_edges):
            raise mpi_error("ERR_TOPOLOGY", f"a graph of {len(ends)} ranks does not fit {self.size}")
        around = [all_edges[start:stop] for start, stop in pairwise([0, *ends])]
        topology = GraphTopology(
            kind="graph", number=c.GRAPH, sources=around, destinations=around, index=ends, edges=all_edges
        )
        return self._arrange("Create_graph", topology, len(ends))

    def Create_dist_graph_adjacent(
        self, sources: Any, destinations: Any, sourceweights: Any = None, destweights: Any = None, info: Any = None,
        reorder: bool = False,
    ) -> Any:  # fmt: skip
        """Arrange the ranks in a graph of which each tells its own neighbours."""
        origins, targets = _ranks(sources), _ranks(destinations)
        given = origins, targets, _weights(sourceweights, origins), _weights(destweights, targets)

        def build(rows: list[Any]) -> GraphTopology:
            origins, targets, into, out = map(list, zip(*rows, strict=True))
            heavy = any(each is not None for each in [*into, *out])
            return GraphTopology(
                kind="dist_graph", number=c.DIST_GRAPH, sources=origins, destinations=targets,
                source_weights=[each or [] for each in into] if heavy else None,
                dest_weights=[each or [] for each in out] if heavy else None,
            )  # fmt: skip

        return self._arrange("Create_dist_graph_adjacent", build, self.size, given)

    def Create_dist_graph(
        self, sources: Sequence[int], degrees: Sequence[int], destinations: Sequence[int], weights: Any = None,
        info: Any = None, reorder: bool = False,
    ) -> Any:  # fmt: skip
        """Arrange the ranks in a graph of which each tells any edges."""
        targets = _ranks(destinations)
        heavy = _weights(weights, targets)
        starts = np.cumsum([0, *degrees]).tolist()
        edges = [
            (int(source), targets[place], heavy[place] if heavy else 1)
            for source, start, stop in zip(sources, starts, starts[1:], strict=False)
            for place in range(start, stop)
        ]

        def build(rows: list[Any]) -> GraphTopology:
            into: list[list[tuple[int, int]]] = [[] for _ in rows]
            out: list[list[tuple[int, int]]] = [[] for _ in rows]
            for row, _ in rows:
                for source, dest, weight in row:
                    out[source].append((dest, weight))
                    into[dest].append((source, weight))
            weighted = any(each for _, each in rows)
            return GraphTopology(
                kind="dist_graph", number=c.DIST_GRAPH,
                sources=[[rank for rank, _ in each] for each in into],
                destinations=[[rank for rank, _ in each] for each in out],
                source_weights=[[weight for _, weight in each] for each in into] if weighted else None,
                dest_weights=[[weight for _, weight in each] for each in out] if weighted else None,
            )  # fmt: skip

        return self._arrange("Create_dist_graph", build, self.size, (edges, heavy is not None))

    def _arrange(self, name: str, topology: Any, ranks: int, given: Any = None) -> Any:
        """Return a communicator of the first `ranks` ranks with a topology, or with one built from what all give."""

        def finish(rows: list[Any]) -> list[Any]:
            built = topology(rows) if callable(topology) else topology
            made = CommState(self.kernel, tuple(self.members[:ranks]), "", None, built)
            return [made] * len(rows)

        made = self._agree(name, given, finish)
        return make_comm(made, self.rank) if self.rank < ranks else Intracomm()

    def Cart_map(self, dims: Sequence[int], periods: Any = None) -> int:
        return self.rank if self.rank < prod(dims) else UNDEFINED

    def Graph_map(self, index: Sequence[int], edges: Sequence[int]) -> int:
        ranks = len(index) - (1 if len(index) and index[0] == 0 else 0)
        return self.rank if self.rank < ranks else UNDEFINED

    # ---- other programs

    def Spawn(self, *arguments: Any, **options: Any) -> NoReturn:
        raise_unsupported("processes that are started by processes (Spawn)")

    Spawn_multiple = Accept = Connect = Spawn


def connect(me: Any, rank: int, mine: tuple[int, ...], theirs: tuple[int, ...], tag: Any) -> Any:
    """Return the communicator that connects a rank's group with another."""
    low, high = sorted((mine, theirs))
    if set(low) & set(high):
        raise mpi_error("ERR_COMM", "the two groups of an intercommunicator must not have ranks in common")
    made = me.kernel.forming.join(
        (low, high, tag), me.number, len(low) + len(high),
        lambda: CommState(me.kernel, (*low, *high), "", (low, high)),
    )  # fmt: skip
    return make_comm(made, rank)


def _ranks(given: Any) -> list[int]:
    return [] if given is None else [int(rank) for rank in given]


def _weights(given: Any, edges: list[int]) -> list[int] | None:
    """Return the weights of edges; None if they have none."""
    if given is None or (isinstance(given, int) and given == c.UNWEIGHTED):
        return None
    if isinstance(given, int) and given == c.WEIGHTS_EMPTY:
        if edges:
            raise ValueError(f"WEIGHTS_EMPTY is for no edges; there are {len(edges)}")
        return []
    weights = [int(weight) for weight in given]
    if len(weights) != len(edges):
        raise ValueError(f"{len(edges)} edges need as many weights; got {len(weights)}")
    return weights


class Topocomm(Intracomm):
    """A communicator whose ranks have neighbours, and the collectives among them."""

    __slots__ = ()

    @classmethod
    def _fits(cls, state: CommState) -> bool:
        return state.topology is not None

    @property
    def inoutedges(self) -> tuple[Neighbours, Neighbours]:
        """The ranks that this one receives from, and those that it sends to."""
        sources, destinations = self.state.topology.neighbours(self.rank)
        return list(sources), list(destinations)

    inedges = property(lambda self: self.inoutedges[0])
    outedges = property(lambda self: self.inoutedges[1])
    indegree = property(lambda self: len(self.inedges))
    outdegree = property(lambda self: len(self.outedges))
    degrees = property(lambda self: (self.indegree, self.outdegree))

    def _exchange(self, name: str, rows: list[Any], take: Any, nbytes: int) -> CollectiveRequest:
        """Send `rows`, one to each destination; `take` is given one for each source, None where there is none."""
        topology = self.state.topology

        def finish(given: list[Any]) -> list[Any]:
            found: list[list[Any]] = [
                [None] * len(topology.neighbours(rank)[0]) for rank in range(len(given))
            ]
            for rank, (_, (sent, _)) in enumerate(given):
                for row, (dest, slot) in zip(sent, topology.slots(rank), strict=True):
                    if dest >= 0 and slot >= 0:
                        found[dest][slot] = row
            return found

        def weigh(given: list[Any]) -> int:
            node, members = self.kernel.wires.node, self.state.members
            if len({node[member] for member in members}) == 1:
                return max(int(also[1]) for _, also in given)
            sent, received = Counter[int](), Counter[int]()
            for rank, (_, (parts, _)) in enumerate(given):
                for row, (dest, _) in zip(parts, topology.slots(rank), strict=True):
                    if dest >= 0 and node[members[dest]] != node[members[rank]]:
                        sent[node[members[rank]]] += len(row)
                        received[node[members[dest]]] += len(row)
            return max([0, *sent.values(), *received.values()])

        return self._meet(
            name, None, finish, into=None, arguments=(), take=take, also=(rows, nbytes), nbytes=weigh
        )

    def _parts(self, given: Any, members: int, *, writing: bool, how: str) -> RankParts:
        if how != "":
            return RankParts(given, members, writing=writing, types=how == "w")
        data, count, start, datatype = (
            unpack_spec(given) if isinstance(given, (list, tuple)) else (given,) + (None,) * 3
        )
        found = RankParts(
            [data, None if count is None else [count] * members, start, datatype], members, writing=writing
        )
        if len(set(found.lengths())) > 1:
            raise ValueError(f"{sum(found.lengths())} bytes cannot be cut into {members} equal blocks")
        return found

    def _gather_from(self, name: str, sendbuf: Any, recvbuf: Any, how: str) -> CollectiveRequest:
        send = BufferMemory(sendbuf, writing=False)
        parts = self._parts(recvbuf, self.indegree, writing=True, how=how)
        row = send.read()
        return self._exchange(name, [row] * self.outdegree, parts.take, send.nbytes * self.outdegree)

    def _swap_with(self, name: str, sendbuf: Any, recvbuf: Any, how: str) -> CollectiveRequest:
        send = self._parts(sendbuf, self.outdegree, writing=False, how=how)
        parts = self._parts(recvbuf, self.indegree, writing=True, how=how)
        rows = [send.of(place).read() for place in range(self.outdegree)]
        return self._exchange(name, rows, parts.take, sum(map(len, rows)))

    def Neighbor_allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        self._gather_from("Neighbor_allgather", sendbuf, recvbuf, "").Wait()

    def Neighbor_allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        self._gather_from("Neighbor_allgatherv", sendbuf, recvbuf, "v").Wait()

    def Neighbor_alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        self._swap_with("Neighbor_alltoall", sendbuf, recvbuf, "").Wait()

    def Neighbor_alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        self._swap_with("Neighbor_alltoallv", sendbuf, recvbuf, "v").Wait()

    def Neighbor_alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        self._swap_with("Neighbor_alltoallw", sendbuf, recvbuf, "w").Wait()

    def Ineighbor_allgather(self, sendbuf: Any, recvbuf: Any) -> CollectiveRequest:
        return self._gather_from("Ineighbor_allgather", sendbuf, recvbuf, "")

    def Ineighbor_allgatherv(self, sendbuf: Any, recvbuf: Any) -> CollectiveRequest:
        return self._gather_from("Ineighbor_allgatherv", sendbuf, recvbuf, "v")

    def Ineighbor_alltoall(self, sendbuf: Any, recvbuf: Any) -> CollectiveRequest:
        return self._swap_with("Ineighbor_alltoall", sendbuf, recvbuf, "")

    def Ineighbor_alltoallv(self, sendbuf: Any, recvbuf: Any) -> CollectiveRequest:
        return self._swap_with("Ineighbor_alltoallv", sendbuf, recvbuf, "v")

    def Ineighbor_alltoallw(self, sendbuf: Any, recvbuf: Any) -> CollectiveRequest:
        return self._swap_with("Ineighbor_alltoallw", sendbuf, recvbuf, "w")

    def neighbor_allgather(self, sendobj: Any) -> list[Any]:
        row = pickle_object(sendobj)
        return self._exchange_objects("neighbor_allgather", [row] * self.outdegree)

    def neighbor_alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        rows = [pickle_object(each) for each in sendobj]
        if len(rows) != self.outdegree:
            raise ValueError(f"{self.outdegree} neighbours need as many objects; got {len(rows)}")
        return self._exchange_objects("neighbor_alltoall", rows)

    def _exchange_objects(self, name: str, rows: list[bytes]) -> list[Any]:
        met = self._exchange(name, rows, None, sum(map(len, rows)))
        met.Wait()
        return [None if row is None else unpickle_object(row) for row in met.result]


add_persistent(
    Topocomm, "Ineighbor_allgather", "Ineighbor_allgatherv", "Ineighbor_alltoall", "Ineighbor_alltoallv",
    "Ineighbor_alltoallw",
)  # fmt: skip


class Cartcomm(Topocomm):
    """A communicator whose ranks are arranged in a grid.

    >>> from paceline import vmpi
    >>> def program(comm):
    ...     grid = comm.Create_cart([2, 3], periods=[False, True])
    ...     return grid.coords, grid.Shift(1, 1), grid.Shift(0, 1)[1] >= 0
    >>> vmpi.run(program, ranks=6).values[2]
    ([0, 2], (1, 0), True)
    """

    __slots__ = ()

    @classmethod
    def _fits(cls, state: CommState) -> bool:
        return isinstance(state.topology, CartTopology)

    def Get_dim(self) -> int:
        return len(self.state.topology.dims)

    dim = ndim = property(Get_dim)

    def Get_topo(self) -> tuple[list[int], list[int], list[int]]:
        topology = self.state.topology
        return list(topology.dims), list(map(int, topology.periods)), topology.coordinates(self.rank)

    topo = property(Get_topo)
    dims = property(lambda self: self.Get_topo()[0])
    periods = property(lambda self: self.Get_topo()[1])
    coords = property(lambda self: self.Get_topo()[2])

    def Get_cart_rank(self, coords: Sequence[int]) -> int:
        found: int = self.state.topology.rank_at([int(each) for each in coords])
        if found < 0:
            raise mpi_error("ERR_ARG", f"there is no rank at {list(coords)}")
        return found

    def Get_coords(self, rank: int) -> list[int]:
        if not 0 <= rank < self.size:
            raise mpi_error(
                "ERR_RANK", f"rank {rank} does not exist; this grid has ranks 0 to {self.size - 1}"
            )
        return self.state.topology.coordinates(rank)  # type: ignore[no-any-return]

    def Shift(self, direction: int, disp: int) -> tuple[int, int]:
        """Return the ranks to receive from and to send to when data moves `disp` steps along a dimension."""
        if not 0 <= direction < self.Get_dim():
            raise mpi_error("ERR_DIMS", f"there is no dimension {direction}")
        topology = self.state.topology
        return topology.shift(self.rank, direction, -disp), topology.shift(self.rank, direction, disp)

    def Sub(self, remain_dims: Sequence[Any]) -> Any:
        """Split the grid into grids of some of its dimensions."""
        dims, periods, coords = self.Get_topo()
        kept = [axis for axis, remains in enumerate(remain_dims) if remains]
        color = 0
        for axis, size in enumerate(dims):
            if axis not in kept:
                color = color * size + coords[axis]
        part = self.Split(color, self.rank)
        found = part.Create_cart([dims[axis] for axis in kept], [periods[axis] for axis in kept])
        part.Free()
        return found


class Graphcomm(Topocomm):
    """A communicator whose ranks are arranged in a graph that all of them know."""

    __slots__ = ()

    @classmethod
    def _fits(cls, state: CommState) -> bool:
        return getattr(state.topology, "kind", "") == "graph"

    def Get_dims(self) -> tuple[int, int]:
        return len(self.index), len(self.edges)

    dims = property(Get_dims)
    nnodes = property(lambda self: self.Get_dims()[0])
    nedges = property(lambda self: self.Get_dims()[1])

    def Get_topo(self) -> tuple[list[int], list[int]]:
        topology = self.state.topology
        return list(topology.index), list(topology.edges)

    topo = property(Get_topo)
    index = property(lambda self: self.Get_topo()[0])
    edges = property(lambda self: self.Get_topo()[1])

    def Get_neighbors_count(self, rank: int) -> int:
        return len(self.Get_neighbors(rank))

    def Get_neighbors(self, rank: int) -> Neighbours:
        return list(self.state.topology.neighbours(rank)[1])

    neighbors = property(lambda self: self.Get_neighbors(self.rank))
    nneighbors = property(lambda self: len(self.neighbors))


class Distgraphcomm(Topocomm):
    """A communicator whose ranks are arranged in a graph of which each knows its own neighbours."""

    __slots__ = ()

    @classmethod
    def _fits(cls, state: CommState) -> bool:
        return getattr(state.topology, "kind", "") == "dist_graph"

    def Get_dist_neighbors_count(self) -> tuple[int, int, bool]:
        return self.indegree, self.outdegree, self.state.topology.source_weights is not None

    def Get_dist_neighbors(self) -> tuple[Neighbours, Neighbours, Any]:
        topology, rank = self.state.topology, self.rank
        weights = None
        if topology.source_weights is not None:
            weights = list(topology.source_weights[rank]), list(topology.dest_weights[rank])
        return (*self.inoutedges, weights)


COMM_KINDS.update(intra=Intracomm, cart=Cartcomm, graph=Graphcomm, dist_graph=Distgraphcomm)
