"""The parts of a diagnosis: a cause, the diagnosis of a strategy, and the rule that finds a cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.diagnosis.case import Case


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One thing that keeps a strategy from scaling.

    >>> Cause(rule="oversubscribed cores", share=0.5, words="4 ranks on 2 cores", advice="-n 2").lost
    0.5
    """

    rule: str
    """Its name."""
    share: float | None
    """The part of a step's time that it takes or, if `of_accuracy`, the accuracy that is lost; None: neither."""
    words: str
    """A description of the problem, with figures and their units."""
    advice: str
    """Settings to try next, as they are typed."""
    of_accuracy: bool = False
    ranks: int | None = None
    """The smallest number of ranks that it was found on; None until a diagnosis has it."""
    short: str = ""
    """The cause in a few words, if they differ from its rule's."""

    @property
    def lost(self) -> float:
        """The weight of the cause, at most 1: a point of accuracy counts as much as a tenth of the time."""
        share = self.share or 0.0
        return min(1.0, 10 * share if self.of_accuracy else share)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The reasons why one strategy stops scaling on one problem, and what to try next."""

    strategy: str
    """As written in its runs' records, followed by how it was run if that is unusual: `sync (replay)`."""
    ranks: int
    """The number of ranks examined: the scaling limit, or the most ranks that were tried."""
    summary: str
    """One sentence with the scaling limit and the main cause."""
    causes: tuple[Cause, ...]
    """Most important first; at least one."""
    simulated: str = ""
    """A description of the simulation; empty for real ranks."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A name, the cause in a few words, and a function that finds it in a case."""

    name: str
    short: str
    find: Callable[[Case], Cause | None]

    def cause(self, case: Case) -> Cause | None:
        """Return the cause found, with the number of ranks that the case examines unless the rule sets it."""
        found = self.find(case)
        return found if found is None or found.ranks is not None else replace(found, ranks=case.at.ranks)
