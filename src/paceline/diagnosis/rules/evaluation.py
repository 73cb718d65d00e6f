"""Evaluation that takes as long as training: it counts in no time and no speedup, but users wait for it."""

from __future__ import annotations

from statistics import fmean

from paceline.diagnosis.case import Case, Cause, DiagnosisRule
from paceline.text import count, duration, share

PART = 0.5


def find(case: Case) -> Cause | None:
    """Return a cause if evaluation took at least half as long as training."""
    runs = case.at.runs
    evaluated = fmean(run.summary["seconds"].get("evaluation") or 0.0 for run in runs)
    trained, epochs = case.at.seconds, int(case.config.get("epochs") or 0)
    if trained <= 0 or evaluated < PART * trained or epochs < 2:
        return None
    words = (
        f"evaluating after each of {count(epochs, 'epoch')} takes {duration(evaluated)} in all, "
        f"{share(evaluated / trained)} of the {duration(trained)} of training; times and speedups leave it out, but "
        "you wait for it"
    )
    steps = runs[0].summary.get("steps") or 0
    draws = f"--epochs 1 --draws {steps} (as many batches, drawn at random, and one evaluation)"
    return Cause(rule=RULE.name, share=None, words=words, advice=draws)


RULE = DiagnosisRule(name="evaluation", short="evaluation, which is not counted, takes long", find=find)
