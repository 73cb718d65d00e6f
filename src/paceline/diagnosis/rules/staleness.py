"""Gradients that are old when they are applied, or not applied at all, and a model that has learned less for it."""

from __future__ import annotations

from paceline.diagnosis import _advice as advice
from paceline.diagnosis._advice import joined
from paceline.diagnosis._case import Case
from paceline.diagnosis._finding import Cause
from paceline.diagnosis._words import count, percent

NAME = "staleness"
SHORT = "gradients are too old"
# Updates that a gradient is late on average.
OLD = 0.5
# The part of the gradients that may be dropped before it matters.
DROPPED = 0.02


def find(case: Case) -> Cause | None:
    """Less was learned than by serial training, and gradients were late or were dropped."""
    old = case.at.found("staleness", "mean") or 0.0
    applied, dropped = (case.at.found(f"gradients_{what}") or 0 for what in ("applied", "dropped"))
    lost = dropped / (applied + dropped) if dropped else 0.0
    if case.worse is None or case.at.diverged or (old < OLD and lost < DROPPED):
        return None
    largest = case.at.found("staleness", "largest")
    most = "" if largest is None else f", {largest} at most"
    words = f"at {count(case.at.ranks, 'rank')} gradients are {old:.1f} updates old on average{most}"
    words += f", {percent(lost)} of them were not applied" if dropped else ""
    return Cause(
        rule=NAME,
        share=case.worse.amount,
        words=f"{words}; {case.worse.words}",
        advice=remedies(case, dropped=lost >= DROPPED),
        of_accuracy=True,
    )


def remedies(case: Case, *, dropped: bool = False) -> str:
    """What keeps a stale strategy from going astray."""
    tried: list[str] = []
    rate = case.config.get("lr")
    lower = [f"--lr {rate / 2:g}"] if rate else []
    if case.name == "parameter-server":
        rule = str(case.option("rule")).partition(":")[0]
        if dropped and case.option("backup"):
            tried.append(advice.strategy(case, backup=case.option("backup") - 1))
        if rule != "adaptive" and case.config.get("update", "sgd") == "sgd":
            tried.append(f"{advice.strategy(case, rule='adaptive')} (steps that bear old gradients)")
        else:
            if rule == "adaptive" and case.at.diverged:  # of the rate the fourth root counts
                tried += [f"--lr {rate / 16:g} (half the step)"] if rate else []
            elif rule == "adaptive":
                tried.append(
                    f"--epochs {2 * int(case.config.get('epochs') or 1)} (more gradients for each worker)"
                )
            else:
                tried.append(advice.strategy(case, rule="gap-aware"))
            if case.option("bound") is None and not case.option("backup"):
                tried.append(f"{advice.strategy(case, bound=1)} (nobody far ahead)")
        tried += lower if rule != "adaptive" else []
    else:
        tried += [*lower, "--strategy parameter-server:rule=adaptive"]
    least = min([case.at.ranks, *(scale.ranks for scale in case.scales if scale.diverged)])
    fewer = advice.fewer_good(case, least)
    tried += [] if fewer is None else [f"-n {fewer}"]
    return joined(case, tried, of_accuracy=True)
