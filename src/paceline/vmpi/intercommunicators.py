"""Intercommunicators: two groups of ranks, whose messages and collectives go from one group to the other.

In a call with a root, the root's own group only passes `root=MPI.ROOT` (the root) or `MPI.PROC_NULL` (the others); the
other group names the root by its rank. Every collective is one meeting of both groups, and costs what it would cost as
many ranks in one group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paceline.vmpi.buffers import BufferMemory, RankParts, equal_blocks
from paceline.vmpi.collectives import SUM, check_op, combine_all
from paceline.vmpi.communicator import (
    COMM_KINDS,
    Comm,
    check_color,
    combine_objects,
    current_world,
    make_comm,
    pickle_object,
    unpickle_object,
)
from paceline.vmpi.constants import ROOT, UNDEFINED
from paceline.vmpi.errors import mpi_error
from paceline.vmpi.groups import CollectiveRequest, CommState, Group
from paceline.vmpi.kernel import queue_of
from paceline.vmpi.topologies import connect

Rows = list[Any]


class Intercomm(Comm):
    """A communicator that connects two groups of ranks.

    >>> from paceline import vmpi
    >>> def program(comm):
    ...     half = comm.Split(comm.rank % 2)
    ...     other = half.Create_intercomm(0, comm, 1 - comm.rank % 2)
    ...     return other.allgather(comm.rank)
    >>> vmpi.run(program, ranks=4).values
    [[1, 3], [0, 2], [1, 3], [0, 2]]
    """

    __slots__ = ()

    @classmethod
    def _fits(cls, state: CommState) -> bool:
        return state.groups is not None

    def _fill(self, state: CommState, rank: int) -> None:
        number = current_world().me.number
        assert state.groups is not None
        mine, theirs = state.groups if number in state.groups[0] else state.groups[::-1]
        self.state, self.kernel = state, state.kernel
        self.rank = mine.index(number)
        self.place = state.members.index(number)
        self.members, self.peers = mine, theirs
        self.partners = [state.kernel.ranks[member] for member in theirs]
        self.size, self.reach = len(mine), len(theirs)
        self.context, self.base = state.context, queue_of(state.context, 0)
        self.key = queue_of(state.context, self.rank)
        self.me = state.kernel.ranks[number]

    @classmethod
    def Create_from_groups(
        cls, local_group: Group, local_leader: int, remote_group: Group, remote_leader: int,
        stringtag: str = "org.mpi4py", info: Any = None, errhandler: Any = None,
    ) -> Any:  # fmt: skip
        mine, theirs = tuple(local_group.members), tuple(remote_group.members)
        me = current_world().me
        return connect(me, mine.index(me.number), mine, theirs, stringtag)

    def Get_remote_group(self) -> Group:
        return Group(self.peers, self.me.number)

    def Get_remote_size(self) -> int:
        return self.reach

    remote_group = property(Get_remote_group)
    remote_size = property(Get_remote_size)

    @property
    def node_of(self) -> tuple[int, ...]:
        """The node of every rank of this rank's own group."""
        node = self.kernel.wires.node
        return tuple(node[member] for member in self.members)

    # ---- other communicators

    def Merge(self, high: bool = False) -> Any:
        """Return a communicator of both groups, first the one whose ranks pass `high=False`."""

        def finish(given: Rows) -> list[CommState]:
            low_side, high_side = self.state.groups
            if given[0] and not given[len(low_side)]:
                low_side, high_side = high_side, low_side
            return [CommState(self.kernel, (*low_side, *high_side), "")] * len(given)

        made = self._agree("Merge", bool(high), finish)
        return make_comm(made, made.members.index(self.me.number))

    def Create(self, group: Group) -> Any:
        """Make an intercommunicator of some ranks of each group."""
        self._unwrap()

        def finish(given: Rows) -> Rows:
            first = self.state.groups[0]
            sides = given[0], given[len(first)]
            if not all(sides):
                return [None] * len(given)
            made = CommState(self.kernel, (*sides[0], *sides[1]), "", sides)
            return [(made, 0) if number in made.members else None for number in self.state.members]

        return self._make_comm(self._agree("Create", tuple(group.members), finish))

    def Split(self, color: int = 0, key: int = 0) -> Any:
        self._unwrap()
        check_color(color)

        def finish(given: Rows) -> Rows:
            first = self.state.groups[0]
            parts: dict[int, tuple[list[Any], list[Any]]] = {}
            for place, (color, key) in enumerate(given):
                if color != UNDEFINED:
                    side = parts.setdefault(color, ([], []))[place >= len(first)]
                    side.append((key, place, self.state.members[place]))
            made: dict[int, CommState | None] = {}
            for color, sides in parts.items():
                groups: Any = tuple(tuple(number for *_, number in sorted(side)) for side in sides)
                made[color] = CommState(self.kernel, sum(groups, ()), "", groups) if all(groups) else None
            return [None if made.get(color) is None else (made[color], 0) for color, _ in given]

        return self._make_comm(self._agree("Split", (color, key), finish))

    # ---- collectives

    def _check_root(self, root: int) -> int:
        if root not in (ROOT, self.kernel.special.proc_null) and not 0 <= root < self.reach:
            raise mpi_error(
                "ERR_ROOT", f"root must be ROOT, PROC_NULL or a rank of the other group; got {root}"
            )
        return int(root)

    def _takes_part(self, root: int) -> bool:
        """Return True if this rank is in the group that the root is not in."""
        return root not in (ROOT, self.kernel.special.proc_null)

    def _swap_with_other(
        self, name: str, given: Any, pick: Callable[[Rows, int], Any], take: Any, nbytes: int
    ) -> CollectiveRequest:
        """Meet the other group. `pick` is given what that group contributed, and a rank; it returns the rank's result."""

        def finish(rows: Rows) -> Rows:
            first = len(self.state.groups[0])
            data = [each for _, (each, _) in rows]
            return [
                pick(data[first:], place) if place < first else pick(data[:first], place - first)
                for place in range(len(rows))
            ]

        return self._meet(
            name, None, finish, into=None, arguments=(), take=take, also=(given, nbytes),
            nbytes=lambda rows: max(int(also[1]) for _, also in rows),
        )  # fmt: skip

    def _one_to_all(
        self, name: str, root: int, given: Any, pick: Any, take: Any, nbytes: int
    ) -> CollectiveRequest:
        """Let the root give every rank of the other group its part."""

        def find(theirs: Rows, rank: int) -> Any:
            rows = [row for row in theirs if row is not None]
            return pick(rows[0], rank) if rows else None

        return self._swap_with_other(name, given, find, take if self._takes_part(root) else None, nbytes)

    def _bcast(self, name: str, buf: Any, root: int) -> CollectiveRequest:
        root = self._check_root(root)
        if root == ROOT:
            memory = BufferMemory(buf, writing=False)
            return self._one_to_all(name, root, memory.read(), lambda row, _: row, None, memory.nbytes)
        take = BufferMemory(buf, writing=True).write if self._takes_part(root) else None
        return self._one_to_all(name, root, None, lambda row, _: row, take, 0)

    def _scatter(self, name: str, sendbuf: Any, recvbuf: Any, root: int) -> CollectiveRequest:
        root = self._check_root(root)
        given = take = None
        if root == ROOT:
            whole = equal_blocks(sendbuf, self.reach, writing=False)
            each = whole.nbytes // self.reach
            data = whole.read()
            given = [data[rank * each : (rank + 1) * each] for rank in range(self.reach)]
        elif self._takes_part(root):
            take = BufferMemory(recvbuf, writing=True).write
        return self._one_to_all(name, root, given, lambda row, rank: row[rank], take, _weigh(given))

    def _scatterv(self, name: str, sendbuf: Any, recvbuf: Any, root: int) -> CollectiveRequest:
        root = self._check_root(root)
        given = take = None
        if root == ROOT:
            given = _rows(RankParts(sendbuf, self.reach, writing=False))
        elif self._takes_part(root):
            take = BufferMemory(recvbuf, writing=True).write
        return self._one_to_all(name, root, given, lambda row, rank: row[rank], take, _weigh(given))

    def _all_to_one(
        self, name: str, root: int, given: Any, join: Any, take: Any, nbytes: int
    ) -> CollectiveRequest:
        """Let every rank of the other group give something to the root."""

        def find(theirs: Rows, rank: int) -> Any:
            rows = [row for row in theirs if row is not None]
            return join(rows) if rows else None

        return self._swap_with_other(name, given, find, take if root == ROOT else None, nbytes)

    def _gather(self, name: str, sendbuf: Any, recvbuf: Any, root: int) -> CollectiveRequest:
        root = self._check_root(root)
        given = BufferMemory(sendbuf, writing=False).read() if self._takes_part(root) else None
        take = equal_blocks(recvbuf, self.reach, writing=True).write if root == ROOT else None
        return self._all_to_one(name, root, given, b"".join, take, len(given or b""))

    def _gatherv(self, name: str, sendbuf: Any, recvbuf: Any, root: int) -> CollectiveRequest:
        root = self._check_root(root)
        given = BufferMemory(sendbuf, writing=False).read() if self._takes_part(root) else None
        take = RankParts(recvbuf, self.reach, writing=True).take if root == ROOT else None
        return self._all_to_one(name, root, given, lambda rows: rows, take, len(given or b""))

    def _reduce(self, name: str, sendbuf: Any, recvbuf: Any, op: Any, root: int) -> CollectiveRequest:
        root = self._check_root(root)
        given = take = None
        if self._takes_part(root):
            send = BufferMemory(sendbuf, writing=False)
            made, kind = check_op(op, send.kind, send.layout), send.kind
            given = send.read()
        elif root == ROOT:
            into = BufferMemory(recvbuf, writing=True)
            made, kind, take = check_op(op, into.kind, into.layout), into.kind, into.write
        else:
            made, kind = None, ""

        def join(rows: Rows) -> Any:
            return rows

        def combine(rows: Any) -> None:
            assert take is not None
            take(combine_all(rows, made, kind))

        return self._all_to_one(name, root, given, join, combine, len(given or b""))

    def _allreduce(self, name: str, sendbuf: Any, recvbuf: Any, op: Any) -> CollectiveRequest:
        send, into = BufferMemory(sendbuf, writing=False), BufferMemory(recvbuf, writing=True)
        self._check_same(name, send, into)
        made = check_op(op, send.kind, send.layout)
        return self._swap_with_other(
            name, send.read(), lambda rows, _: combine_all(rows, made, send.kind), into.write, send.nbytes
        )

    def _reduce_scatter(
        self, name: str, sendbuf: Any, recvbuf: Any, counts: Sequence[int] | None, op: Any
    ) -> CollectiveRequest:
        into = BufferMemory(recvbuf, writing=True)
        send = BufferMemory(sendbuf, writing=False, blocks=self.size if "block" in name else 1)
        made = check_op(op, send.kind, send.layout)
        if counts is None:
            ends = [into.nbytes * (rank + 1) for rank in range(self.size)]
        else:
            ends = np.cumsum([int(count) * into.itemsize for count in counts]).tolist()

        def take(rows: Any) -> None:
            whole = combine_all(rows, made, into.kind)
            stop = ends[self.rank]
            into.write(whole[ends[self.rank - 1] if self.rank else 0 : stop])

        return self._swap_with_other(name, send.read(), lambda rows, _: rows, take, send.nbytes)

    def _allgather(self, name: str, sendbuf: Any, recvbuf: Any) -> CollectiveRequest:
        send, into = BufferMemory(sendbuf, writing=False), equal_blocks(recvbuf, self.reach, writing=True)
        return self._swap_with_other(
            name, send.read(), lambda rows, _: b"".join(rows), into.write, send.nbytes
        )

    def _allgatherv(self, name: str, sendbuf: Any, recvbuf: Any) -> CollectiveRequest:
        send, into = BufferMemory(sendbuf, writing=False), RankParts(recvbuf, self.reach, writing=True)
        return self._swap_with_other(name, send.read(), lambda rows, _: rows, into.take, send.nbytes)

    def _alltoall(self, name: str, sendbuf: Any, recvbuf: Any) -> CollectiveRequest:
        send = equal_blocks(sendbuf, self.reach, writing=False)
        into = equal_blocks(recvbuf, self.reach, writing=True)
        each, data = send.nbytes // self.reach, send.read()
        given = [data[rank * each : (rank + 1) * each] for rank in range(self.reach)]
        return self._swap_with_other(
            name, given, lambda rows, rank: b"".join(row[rank] for row in rows), into.write, send.nbytes
        )

    def _alltoallv(self, name: str, sendbuf: Any, recvbuf: Any) -> CollectiveRequest:
        types = name.endswith("w")
        given = _rows(RankParts(sendbuf, self.reach, writing=False, types=types))
        into = RankParts(recvbuf, self.reach, writing=True, types=types)
        return self._swap_with_other(
            name, given, lambda rows, rank: [row[rank] for row in rows], into.take, _weigh(given)
        )

    # ---- objects

    def bcast(self, obj: Any, root: int = 0) -> Any:
        root = self._check_root(root)
        given = pickle_object(obj) if root == ROOT else None
        met = self._one_to_all("bcast", root, given, lambda row, _: row, None, len(given or b""))
        met.Wait()
        return unpickle_object(met.result) if self._takes_part(root) else None

    def scatter(self, sendobj: Any, root: int = 0) -> Any:
        root = self._check_root(root)
        given = self._row(sendobj) if root == ROOT else None
        met = self._one_to_all("scatter", root, given, lambda row, rank: row[rank], None, _weigh(given))
        met.Wait()
        return unpickle_object(met.result) if self._takes_part(root) else None

    def gather(self, sendobj: Any, root: int = 0) -> Any:
        root = self._check_root(root)
        given = pickle_object(sendobj) if self._takes_part(root) else None
        met = self._all_to_one("gather", root, given, list, None, len(given or b""))
        met.Wait()
        return [unpickle_object(row) for row in met.result] if root == ROOT else None

    def allgather(self, sendobj: Any) -> list[Any]:
        given = pickle_object(sendobj)
        met = self._swap_with_other("allgather", given, lambda rows, _: rows, None, len(given))
        met.Wait()
        return [unpickle_object(row) for row in met.result]

    def alltoall(self, sendobj: Any) -> list[Any]:
        given = self._row(sendobj)
        met = self._swap_with_other(
            "alltoall", given, lambda rows, rank: [row[rank] for row in rows], None, _weigh(given)
        )
        met.Wait()
        return [unpickle_object(row) for row in met.result]

    def reduce(self, sendobj: Any, op: Any = None, root: int = 0) -> Any:
        root = self._check_root(root)
        given = pickle_object(sendobj) if self._takes_part(root) else None
        met = self._all_to_one("reduce", root, given, list, None, len(given or b""))
        met.Wait()
        return combine_objects(met.result, SUM if op is None else op) if root == ROOT else None

    def allreduce(self, sendobj: Any, op: Any = None) -> Any:
        given = pickle_object(sendobj)
        met = self._swap_with_other("allreduce", given, lambda rows, _: rows, None, len(given))
        met.Wait()
        return combine_objects(met.result, SUM if op is None else op)

    def _row(self, things: Any) -> list[bytes]:
        found = [pickle_object(thing) for thing in ([None] * self.reach if things is None else things)]
        if len(found) != self.reach:
            raise ValueError(f"expected one object for each of the {self.reach} ranks; got {len(found)}")
        return found


def _rows(parts: RankParts) -> list[bytes]:
    return [parts.of(rank).read() for rank in range(len(parts.slices))]


def _weigh(rows: list[bytes] | None) -> int:
    return sum(map(len, rows or ()))


COMM_KINDS["inter"] = Intercomm
