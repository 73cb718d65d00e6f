"""Evaluation that takes as long as training: it is in no time and no speedup here, but somebody waits for it."""

from __future__ import annotations

from statistics import fmean

from paceline.diagnosis._case import Case
from paceline.diagnosis._finding import Cause
from paceline.diagnosis._words import count, duration, percent

NAME = "evaluation"
SHORT = "evaluation, which is not counted, takes long"
PART = 0.5


def find(case: Case) -> Cause | None:
    """Evaluating took half as long as training."""
    runs = case.at.runs
    evaluated = fmean(run.summary["seconds"].get("evaluation") or 0.0 for run in runs)
    trained, epochs = case.at.seconds, int(case.config.get("epochs") or 0)
    if trained <= 0 or evaluated < PART * trained or epochs < 2:
        return None
    words = (
        f"evaluating after each of {count(epochs, 'epoch')} takes {duration(evaluated)}, {percent(evaluated / trained)} of "
        f"the {duration(trained)} of training; no time and no speedup here counts it, but it is waited for"
    )
    steps = runs[0].summary.get("steps") or 0
    draws = f"--epochs 1 --draws {steps} (as many batches, drawn at random, and one evaluation)"
    return Cause(rule=NAME, share=None, words=words, advice=draws)
