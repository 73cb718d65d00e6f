"""Ranks that train separately and are averaged learn less: each takes a p-th of the steps, on a p-th of the data."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from paceline.diagnosis import advice
from paceline.diagnosis.advice import join_worthwhile
from paceline.diagnosis.case import Case, Cause, DiagnosisRule
from paceline.text import count

# If averaging costs more than training on parts.
BAD_AVERAGE = "the average of the ranks' models is worse than each of them"


@dataclass(frozen=True, kw_only=True)
class AveragingLosses:
    """The accuracies of the ranks' own models, and the losses due to training apart and to averaging, over all runs."""

    least: float
    most: float
    apart: float
    """The mean loss of a rank's own model compared with serial."""
    mean: float
    """The further loss of the average."""
    every: bool
    """True if in each run the average is worse than every rank's model."""

    @property
    def by_mean(self) -> bool:
        """True if most is lost to averaging itself."""
        return self.every and self.mean > self.apart


def find(case: Case) -> Cause | None:
    """Return a cause if a strategy that averages models learned less than serial training."""
    if case.worse is None or not case.facts.averages or case.at.ranks < 2:
        return None
    ranks, steps = case.at.ranks, round(case.at.timing.steps)
    samples = case.config.get("samples")
    of = f" on {samples // ranks:,} samples each" if samples and case.facts.own_data else ""
    serial = ""
    if case.serial is not None and case.serial.timing.steps > steps:
        serial = f", serial takes {round(case.serial.timing.steps):,}"
    parts = _parts(case, case.worse.amount)
    words = (
        f"{count(ranks, 'rank')} train separately{of} and are averaged {_how_often(case)}; each takes "
        f"{count(steps, 'step')}{serial}{_in_words(parts)}; {case.worse.words}"
    )
    by_mean = parts is not None and parts.by_mean
    return Cause(
        rule=RULE.name,
        share=case.worse.amount,
        words=words,
        advice=_remedies(case, by_mean=by_mean),
        of_accuracy=True,
        short=BAD_AVERAGE if by_mean else "",
    )


def _how_often(case: Case) -> str:
    every = case.facts.interval
    if every is None:
        return "once, at the end"
    return "after every step" if every == 1 else f"every {every} steps"


def _parts(case: Case, lost: float) -> AveragingLosses | None:
    """Return the accuracies of the ranks' own models; None if unknown."""
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
    return AveragingLosses(
        least=min(every),
        most=max(every),
        apart=lost - mean,
        mean=mean,
        every=all(average < min(own) for average, own in known),
    )


def _in_words(parts: AveragingLosses | None) -> str:
    if parts is None:
        return ""
    alone = f"; on their own the ranks reach {100 * parts.least:.1f} % to {100 * parts.most:.1f} %"
    if not parts.every:
        return alone
    apart = f"{100 * parts.apart:.1f}" if parts.apart > 0 else "nothing"
    return (
        f"{alone}, all better than their average: averaging costs {100 * parts.mean:.1f} points, the smaller parts of the "
        f"data cost {apart}"
    )


def _remedies(case: Case, *, by_mean: bool) -> str:
    facts, rate = case.facts, case.config.get("lr")
    epochs = int(case.config.get("epochs") or 1) * case.at.ranks
    more = f"--epochs {epochs} (as many steps as serial)"
    if facts.interval is None and not facts.interval_option:
        often = min(10, max(1, round(case.at.timing.steps) // advice.AVERAGES))
        tried = advice.other_strategies(case, "single average", often)
        # More steps take the models further from each other: no remedy if their average is what is bad.
        tried += advice.other_strategies(case, "bad average") if by_mean else [more]
    elif facts.interval == 1 and not facts.interval_option:
        tried = [] if case.astray or not rate else [
            f"--lr {rate * case.at.ranks:g} (the mean of {case.at.ranks} batches allows a larger step)"
        ]  # fmt: skip
        tried += [more, *advice.other_strategies(case, "drift")]
    else:
        every = facts.interval or 40
        tried = [advice.strategy(case, **{facts.interval_option: max(1, every // 4)})] if every > 1 else []
        tried += [*advice.own_changes(case, "drift"), more]
    return join_worthwhile(case, tried, of_accuracy=True)


RULE = DiagnosisRule(
    name="averaging", short="ranks train on too little data each, or are averaged too rarely", find=find
)
