"""Ranks that train apart and are averaged learn less: each takes a p-th of the steps, and what is far apart has no mean."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from paceline.diagnosis import _advice as advice
from paceline.diagnosis._advice import joined
from paceline.diagnosis._case import Case
from paceline.diagnosis._finding import Cause
from paceline.diagnosis._words import count

NAME = "averaging"
SHORT = "ranks train apart on parts that are too small, or are averaged too rarely"
# Where more is lost to that the parts are averaged than to that they are parts.
MEAN = "the average of the ranks is worse than each of them alone"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """How good the ranks were by themselves, and what was lost to what: accuracies, of all runs."""

    least: float
    most: float
    apart: float
    """What a part by itself has less than serial, on average."""
    mean: float
    """What the average has less than that."""
    every: bool
    """Whether in each run the average is worse than every part."""

    @property
    def by_mean(self) -> bool:
        """Whether averaging itself is what most is lost to."""
        return self.every and self.mean > self.apart


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
    parts = _parts(case, case.worse.amount)
    words = (
        f"{count(ranks, 'rank')} train apart{of} and are averaged {_how_often(case)}; each takes "
        f"{count(steps, 'step')} in a row{row}{_told(parts)}; {case.worse.words}"
    )
    by_mean = parts is not None and parts.by_mean
    return Cause(
        rule=NAME,
        share=case.worse.amount,
        words=words,
        advice=_remedies(case, by_mean=by_mean),
        of_accuracy=True,
        short=MEAN if by_mean else "",
    )


def _how_often(case: Case) -> str:
    every = case.option("every")
    if case.name == "weight-average" or every == 1:
        return "after every step"
    return "once, at the end" if every is None else f"every {every} steps"


def _parts(case: Case, lost: float) -> Parts | None:
    """How good the parts were by themselves; None where that is not known."""
    known = []
    for run in case.at.runs:
        found = (run.summary.get("findings") or {}).get("parts") or ()
        own = [part["test_accuracy"] for part in found if part.get("test_accuracy") is not None]
        if own and run.summary.get("test_accuracy") is not None:
            known.append((float(run.summary["test_accuracy"]), own))
    if not known:
        return None
    every = [one for _, own in known for one in own]
    mean = fmean(fmean(own) - average for average, own in known)
    return Parts(
        least=min(every),
        most=max(every),
        apart=lost - mean,
        mean=mean,
        every=all(average < min(own) for average, own in known),
    )


def _told(parts: Parts | None) -> str:
    if parts is None:
        return ""
    said = f"; alone the parts reach {100 * parts.least:.1f} % to {100 * parts.most:.1f} %"
    if not parts.every:
        return said
    parted = f"{100 * parts.apart:.1f}" if parts.apart > 0 else "nothing"
    return (
        f"{said}, their average less than every one: averaging takes {100 * parts.mean:.1f} points, that they are smaller "
        f"{parted}"
    )


def _remedies(case: Case, *, by_mean: bool) -> str:
    epochs = int(case.config.get("epochs") or 1)
    more = f"--epochs {epochs * case.at.ranks} (as many steps in a row as serial)"
    every = case.option("every")
    if case.name == "psgd":
        often = min(10, max(1, round(case.at.timing.steps) // advice.AVERAGES))
        # More steps take the parts further from each other: no remedy where their average is what is bad.
        then = "--strategy sync (gradients are summed, and no parameters averaged)" if by_mean else more
        return joined(
            case, [f"--strategy local-sgd:every={often} (averages on the way)", then], of_accuracy=True
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
