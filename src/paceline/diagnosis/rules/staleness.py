"""Gradients that are old when they are applied, or not applied at all, and a model that has learned less for it."""

from __future__ import annotations

from paceline.diagnosis import advice
from paceline.diagnosis.advice import join_worthwhile
from paceline.diagnosis.case import Case, Cause, DiagnosisRule
from paceline.text import count, share

# Updates that a gradient is late on average.
OLD = 0.5
# The part of the gradients that may be dropped before it matters.
DROPPED = 0.02


def find(case: Case) -> Cause | None:
    """Return a cause if less was learned than by serial training, and gradients were late or dropped."""
    old = case.at.finding("staleness", "mean") or 0.0
    applied, dropped = (case.at.finding(f"gradients_{what}") or 0 for what in ("applied", "dropped"))
    lost = dropped / (applied + dropped) if dropped else 0.0
    if case.worse is None or case.at.diverged or (old < OLD and lost < DROPPED):
        return None
    largest = case.at.finding("staleness", "largest")
    most = "" if largest is None else f" (at most {largest})"
    words = f"at {count(case.at.ranks, 'rank')} gradients are {old:.1f} updates old on average{most}"
    words += f", and {share(lost)} of them were dropped" if dropped else ""
    return Cause(
        rule=RULE.name,
        share=case.worse.amount,
        words=f"{words}; {case.worse.words}",
        advice=remedies(case, dropped=lost >= DROPPED),
        of_accuracy=True,
    )


def remedies(case: Case, *, dropped: bool = False) -> str:
    """Format remedies for a strategy that learns less, or diverges, because of old gradients."""
    tried = advice.own_changes(case, "dropped gradients") if dropped else []
    tried += advice.own_changes(case, "divergence" if case.at.diverged else "old gradients")
    tried += advice.other_strategies(case, "old gradients")
    least = min([case.at.ranks, *(scale.ranks for scale in case.scales if scale.diverged)])
    fewer = advice.fewer_good_ranks(case, least)
    tried += [] if fewer is None else [f"-n {fewer}"]
    return join_worthwhile(case, tried, of_accuracy=True)


RULE = DiagnosisRule(name="staleness", short="gradients are too old", find=find)
