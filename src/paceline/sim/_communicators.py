# ruff: noqa: N802 (mpi4py's names)
"""What can be asked of a communicator, and how others are made from a part of its ranks."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from paceline.sim._constants import UNDEFINED
from paceline.sim._groups import Group, Met, meet
from paceline.sim._members import CONGRUENT, IDENT, SIMILAR, UNEQUAL, Ranks
from paceline.sim.errors import Aborted


class Communicators:
    """Names, groups, and communicators made from groups."""

    __slots__ = ()
    group: Any
    kernel: Any
    me: Any
    members: Any
    name: str
    rank: int

    @property
    def MPI(self) -> Any:
        """The names that go with this communicator: what stands in for mpi4py.MPI."""
        from paceline.sim import MPI

        module = sys.modules.get("mpi4py.MPI")
        return module if hasattr(module, "simulated") else MPI

    def Get_name(self) -> str:
        return self.name

    def Set_name(self, name: str) -> None:
        comm: Any = self
        comm.name = name

    def Is_intra(self) -> bool:
        return True

    is_inter, is_intra, is_topo = False, True, False

    def Get_topology(self) -> int:
        return UNDEFINED

    def Get_group(self) -> Ranks:
        return Ranks(self.members, self.me.number)

    def Create(self, group: Ranks) -> Any:
        """A communicator of the ranks of a group; all ranks of this one call it, with the same group."""

        def finish(given: list[Any]) -> list[Any]:
            made: dict[Any, Group] = {}
            found: list[Any] = []
            for rank, members in enumerate(given):
                number = self.members[rank]
                if number not in members:
                    found.append(None)
                    continue
                if members not in made:
                    made[members] = Group(self.kernel, members, "")
                found.append((made[members], members.index(number)))
            return found

        met = meet(self, "Create", tuple(group.members), finish, free_of_charge=True)
        met.Wait()
        return self._made(met.result)

    def Create_group(self, group: Ranks, tag: int = 0) -> Any:
        """A communicator of the ranks of a group; only these call it."""
        members = tuple(group.members)
        if self.me.number not in members:
            return self._made(None)
        key, forming = (members, tag), self.group.forming
        made, missing = forming.get(key) or (Group(self.kernel, members, ""), len(members))
        forming[key] = made, missing - 1
        if missing == 1:
            del forming[key]
        return self._made((made, members.index(self.me.number)))

    def _made(self, found: Any) -> Any:
        from paceline.sim._comm import Comm
        from paceline.sim._nobody import COMM_NULL

        return COMM_NULL if found is None else Comm(*found)

    def Clone(self) -> Any:
        return self.Dup()  # type: ignore[attr-defined]

    def Dup_with_info(self, info: Any) -> Any:
        return self.Dup()  # type: ignore[attr-defined]

    def Idup(self, info: Any = None) -> tuple[Any, Met]:
        """A duplicate, to be used when the request is done."""
        from paceline.sim._comm import Comm

        made: Any = Comm.__new__(Comm)

        def take(found: Group) -> None:
            Comm.__init__(made, found, self.rank)

        def finish(given: list[Any]) -> list[Group]:
            return [Group(self.kernel, self.members, self.name)] * len(given)

        return made, meet(self, "Idup", None, finish, free_of_charge=True, take=take)

    @classmethod
    def Compare(cls, comm1: Any, comm2: Any) -> int:
        if comm1.group is comm2.group:
            return IDENT
        same = Ranks.Compare(Ranks(comm1.members), Ranks(comm2.members))
        return {IDENT: CONGRUENT, SIMILAR: SIMILAR}.get(same, UNEQUAL)

    def Abort(self, errorcode: int = 0) -> NoReturn:
        """End the simulation, whatever the others do."""
        raise Aborted(errorcode)

    def Get_parent(self) -> Any:
        return self._made(None)

    def Set_errhandler(self, errhandler: Any) -> None:
        """Errors are exceptions, always."""

    def Delete_attr(self, keyval: int) -> None:
        self._attributes.pop(keyval, None)  # type: ignore[attr-defined]
