"""Training that was stopped because its loss ran away."""

from __future__ import annotations

from paceline.diagnosis._case import Case
from paceline.diagnosis._finding import Cause
from paceline.diagnosis._words import count
from paceline.diagnosis.rules import staleness

NAME = "divergence"
SHORT = "training diverged"


def find(case: Case) -> Cause | None:
    """A run diverged, on whatever number of ranks."""
    wild = [scale for scale in case.scales if scale.diverged]
    if not wild:
        return None
    first = wild[0]
    runs = [run for run in first.runs if run.summary.get("diverged")]
    some = "training" if len(runs) == len(first.runs) else f"{len(runs)} of {count(len(first.runs), 'run')}"
    also = [scale.ranks for scale in wild[1:]]
    more = f" (also at {', '.join(map(str, also))})" if also else ""
    rate = case.config.get("lr")
    words = f"at {count(first.ranks, 'rank')}{more} {some} diverged with --lr {rate:g}: {first.diverged}" if rate else (
        f"at {count(first.ranks, 'rank')}{more} {some} diverged: {first.diverged}"
    )  # fmt: skip
    stale = first.found("staleness", "mean") is not None
    lower = f"--lr {rate / 2:g}, or " if rate else ""
    remedy = staleness.remedies(case) if stale else f"{lower}--schedule warmup"
    return Cause(
        rule=NAME,
        share=1.0,
        words=words,
        advice=f"{remedy}, or --on-divergence halve (goes back and halves the step by itself)",
        of_accuracy=True,
    )
