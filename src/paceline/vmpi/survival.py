"""How the ranks that live go on when one has died: ULFM, as mpi4py 4.1 spells it.

try:
    comm.Allreduce(mine, total)
except MPI.Exception as error:                    # ERR_PROC_FAILED here, ERR_REVOKED there
    comm.Revoke()                                 # whoever still waits for somebody stops waiting
    comm = comm.Shrink()                          # those who live
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paceline.vmpi.errors import mpi_error
from paceline.vmpi.groups import Group, Met
from paceline.vmpi.sites import site, spelled

if TYPE_CHECKING:
    from paceline.vmpi.failures import Faults

Given = dict[int, Any]


class Survival:
    """The calls of a communicator that work when some of its ranks are dead."""

    __slots__ = ()

    def Revoke(self) -> None:
        """Let everything that is under way on this communicator, and that comes, fail on all its ranks."""
        _faults(self).losses.revoke(self)

    def Is_revoked(self) -> bool:
        """Whether this rank has heard that somebody revoked it."""
        faults = _me(self).kernel.faults
        return faults is not None and faults.losses.is_revoked(self)

    def Get_failed(self) -> Any:
        """The group of the dead that this rank has heard of."""
        from paceline.vmpi.members import Ranks

        kernel = _me(self).kernel
        kernel.look(_me(self))
        return Ranks(() if kernel.faults is None else kernel.faults.losses.known(self), _me(self).number)

    def Ack_failed(self, num_to_ack: int | None = None) -> int:
        """Receives from anybody wait again, though some are dead; returns how many of the dead are acknowledged."""
        faults = _me(self).kernel.faults
        return 0 if faults is None else faults.losses.acknowledge(self, num_to_ack)

    def Agree(self, flag: int) -> int:
        """All flags of those who live, bit by bit `and`ed; an error on all where a death is not acknowledged by all."""
        faults = _faults(self)
        met = _rescue(self, "Agree", (int(flag), set(faults.losses.acknowledged(self))), _agree)
        met.Wait()
        agreed, unseen = met.result
        if unseen:
            line = spelled(site())
            told = faults.describe(unseen[0])
            raise mpi_error("ERR_PROC_FAILED", f"{told}; rank {_me(self).number} noticed in Agree at {line}")
        return int(agreed)

    def Shrink(self) -> Any:
        """A communicator of those who live, in the same order."""
        met = _rescue(self, "Shrink", None, _shrink)
        met.Wait()
        return type(self)(*met.result)


class Rescue:
    """A call that ends when all members of a group who live have come to it."""

    def __init__(self, faults: Faults, group: Group, finish: Callable[[Rescue, Given], Given]) -> None:
        self.faults, self.group, self._finish = faults, group, finish
        self._requests: dict[int, Met] = {}
        self._given: Given = {}
        self._latest = 0.0

    def come(self, rank: Any, name: str, given: Any) -> Met:
        self._requests[rank.number] = met = Met(rank, name, None)
        self._given[rank.number] = given
        self._latest = max(self._latest, rank.t)
        self.try_to_end()
        return met

    @property
    def dead(self) -> list[int]:
        return [number for number in self.group.members if number in self.faults.dead]

    def try_to_end(self) -> None:
        kernel, faults = self.faults.kernel, self.faults
        living = tuple(number for number in self.group.members if number not in faults.dead)
        if not all(number in self._requests for number in living):
            return
        faults.rescues = {key: rescue for key, rescue in faults.rescues.items() if rescue is not self}
        # Twice all to all, as an agreement is, and not before everybody can know who is dead.
        end = max([self._latest, *(faults.dead[number].known for number in self.dead)])
        if len(living) > 1:
            end += 2 * kernel.wires.collective("Allreduce", living, 8)
        results = self._finish(self, {number: self._given[number] for number in living})
        for number in living:
            self._requests[number].result = results[number]
            kernel.put(kernel.ranks[number], end, self._requests[number])


def _me(comm: Any) -> Any:
    return comm.me


def _faults(comm: Any) -> Faults:
    from paceline.vmpi.failures import faults_of

    return faults_of(comm.me.kernel)


def _rescue(comm: Any, name: str, given: Any, finish: Callable[[Rescue, Given], Given]) -> Met:
    faults = _faults(comm)
    faults.check(comm.me)
    counted = (name, comm.group.context, comm.me.number)
    call = faults.rescued[counted] = faults.rescued.get(counted, -1) + 1
    key = (name, comm.group.context, call)
    rescue = faults.rescues.get(key)
    if rescue is None:
        rescue = faults.rescues[key] = Rescue(faults, comm.group, finish)
    return rescue.come(comm.me, name, given)


def _agree(rescue: Rescue, given: Given) -> Given:
    flag = -1
    for mine, _ in given.values():
        flag &= mine
    unseen = [dead for dead in rescue.dead if any(dead not in seen for _, seen in given.values())]
    return dict.fromkeys(given, (flag, unseen))


def _shrink(rescue: Rescue, given: Given) -> Given:
    group = Group(rescue.group.kernel, tuple(given), rescue.group.name)
    return {number: (group, rank) for rank, number in enumerate(given)}
