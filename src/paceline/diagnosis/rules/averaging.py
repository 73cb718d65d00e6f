"""Ranks that train apart and are averaged learn less: each takes a p-th of the steps, and what is far apart has no mean."""

from __future__ import annotations

from paceline.diagnosis import _advice as advice
from paceline.diagnosis._case import Case
from paceline.diagnosis._finding import Cause
from paceline.diagnosis._tried import joined
from paceline.diagnosis._words import count, percent

NAME = "averaging"
SHORT = "ranks train apart on parts that are too small, or are averaged too rarely"


def find(case: Case) -> Cause | None:
    """Less was learned than by serial training, by a strategy that averages parameters."""
    if case.worse is None or case.name not in advice.APART or case.at.ranks < 2:
        return None
    ranks, steps = case.at.ranks, round(case.at.timing.steps)
    samples = case.config.get("samples")
    of = f" on {samples // ranks:,} samples each" if samples and case.name != "gossip" else ""
    row = ""
    if case.serial is not None and case.serial.timing.steps > steps:
        row = f", where serial takes {round(case.serial.timing.steps):,}"
    words = (
        f"{count(ranks, 'rank')} train apart{of} and are averaged {_how_often(case)}; each takes "
        f"{count(steps, 'step')} in a row{row}{_parts(case)}; {case.worse.words}"
    )
    return Cause(rule=NAME, share=case.worse.amount, words=words, advice=_remedies(case), of_accuracy=True)


def _how_often(case: Case) -> str:
    every = case.option("every")
    if case.name == "weight-average" or every == 1:
        return "after every step"
    return "once, at the end" if every is None else f"every {every} steps"


def _parts(case: Case) -> str:
    """How good the parts were by themselves, where that is known."""
    found = [(run.summary.get("findings") or {}).get("parts") or () for run in case.at.runs]
    known = [
        part["test_accuracy"] for parts in found for part in parts if part.get("test_accuracy") is not None
    ]
    return f"; alone the parts reach {percent(min(known))} to {percent(max(known))}" if known else ""


def _remedies(case: Case) -> str:
    epochs = int(case.config.get("epochs") or 1)
    more = f"--epochs {epochs * case.at.ranks} (as many steps in a row as serial)"
    every = case.option("every")
    if case.name == "psgd":
        often = min(10, max(1, round(case.at.timing.steps) // advice.AVERAGES))
        return joined(
            case, [f"--strategy local-sgd:every={often} (averages on the way)", more], of_accuracy=True
        )
    if case.name == "weight-average":
        rate = case.config.get("lr")
        larger = (
            [f"--lr {rate * case.at.ranks:g} (the mean of p batches bears a larger step)"] if rate else []
        )
        larger = [] if case.astray else larger
        return joined(case, [*larger, more, "--strategy sync"], of_accuracy=True)
    tried = []
    if every is None or every > 1:
        tried.append(advice.strategy(case, every=max(1, (every or 40) // 4)))
    if case.name == "local-sgd" and not case.option("outer_momentum"):
        tried.append(advice.strategy(case, outer_momentum=0.9, outer_lr=0.7))
    return joined(case, [*tried, more], of_accuracy=True)
