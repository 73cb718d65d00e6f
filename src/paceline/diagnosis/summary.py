"""All causes of a case in order of their weight, and a one-sentence summary."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.compare.metric import ACCURACY
from paceline.diagnosis.case import Case, Cause, Diagnosis
from paceline.diagnosis.rules import RULES, divergence
from paceline.diagnosis.rules.batch_growth import GROWN_BATCH
from paceline.diagnosis.rules.scaling import IMPLAUSIBLE, SCALES_WELL
from paceline.diagnosis.timing import PARTS
from paceline.simulate.bottleneck import Limit, describe_limit
from paceline.text import count, duration, join, share, times

UNKNOWN = "unexplained"
NO_RULE = "no rule explains it"
# Causes that come before all others.
FIRST = (SCALES_WELL.name, IMPLAUSIBLE.name)


def sum_up(case: Case) -> Diagnosis:
    """Diagnose one strategy."""
    found = [cause for rule in RULES if (cause := rule.cause(case)) is not None]
    if not found or (case.worse is not None and not any(cause.of_accuracy for cause in found)):
        found.append(_make_unknown_cause(case))
    less = _is_limited_by_accuracy(case)
    # Causes of equal weight stay in the order of the rules.
    causes = tuple(sorted(found, key=lambda cause: _weight(cause, of_accuracy=less)))
    return Diagnosis(
        strategy=case.way,
        ranks=case.at.ranks,
        summary=_summary(case, causes),
        causes=causes,
        simulated=case.simulated,
    )


def _is_limited_by_accuracy(case: Case) -> bool:
    """Return True if scaling stops because accuracy is lost."""
    return case.limit is not None and case.limit.reason in ("staleness", "accuracy")


def _weight(cause: Cause, *, of_accuracy: bool) -> tuple[bool, bool, float]:
    """Return a sort key: first that nothing is wrong, or that the times are; then the most expensive cause.

    `of_accuracy`: lost accuracy comes first, however much time is lost.
    """
    return cause.rule not in FIRST, of_accuracy and not cause.of_accuracy, -cause.lost


def _summary(case: Case, causes: Sequence[Cause]) -> str:
    main, less = causes[0], _is_limited_by_accuracy(case)
    said = [_describe_briefly(case, main)]
    # First why it gets no faster, or learns less; that it also does the other, or diverged on some ranks, comes after.
    asked = [cause for cause in causes if cause.share is not None and cause.of_accuracy == less]
    why = next((cause for cause in asked if cause.rule != divergence.RULE.name), main)
    if main.of_accuracy and why is not main and case.limit is not None:
        besides = "" if main.rule == divergence.RULE.name else "less is learned: "
        said = [_describe_briefly(case, why), f"{besides}{said[0]}"]
    if any(cause.rule == GROWN_BATCH.name for cause in causes if cause is not main):
        said.append(GROWN_BATCH.short)
    simulated = f"simulated on {case.simulated}: " if case.simulated else ""
    if main.rule == divergence.RULE.name and all(scale.diverged for scale in case.scales):
        said = said[1:]  # the limit says so
    return f"{simulated}{case.way} {_join(case, main, *_where(case), '; '.join(said))}"


def _join(case: Case, main: Cause, stops: str, used: str, why: str) -> str:
    """Join limit, efficiency and reason, so that the reason follows what it explains."""
    if not used:
        return f"{stops}: {why}" if why else stops
    assert case.limit is not None
    if _is_limited_by_accuracy(case):
        return f"{stops}: {why}; {used}"
    if case.limit.half is not None or main.rule in FIRST:
        return f"{stops}; {used}: {why}"
    if not case.limit.rising:
        return f"{stops}: {why}; {used}"
    if main.share is None:
        return f"{stops}; {used}; {why}"
    return f"{stops}; {used}. What it loses: {why}"


def _describe_briefly(case: Case, cause: Cause) -> str:
    """Describe a cause in a few words: its cost, and the number of ranks."""
    short = cause.short or next((rule.short for rule in RULES if rule.name == cause.rule), NO_RULE)
    wild = cause.rule == divergence.RULE.name
    if cause.share is None or (wild and all(scale.diverged for scale in case.scales)):
        return short
    much = f"{share(cause.share)} of the time "
    if wild:
        much = ""
    elif cause.of_accuracy:
        metric, of = (case.worse.metric, case.worse.where) if case.worse else (ACCURACY, "test")
        change = f"a {'lower' if metric.higher else 'higher'} {metric.heading(of)} "
        much = f"{100 * cause.share:.1f} points of accuracy " if metric.percent else change
    return f"{short} ({much}at {count(cause.ranks or case.at.ranks, 'rank')})"


def _where(case: Case) -> tuple[str, str]:
    """Describe the scaling limit and, if known, the efficiency."""
    if case.limit is not None:
        return _describe_scaling_limit(case, case.limit)
    good = [scale for scale in case.judged if not scale.diverged]
    if not good:
        every = all(run.summary.get("diverged") for scale in case.scales for run in scale.runs)
        some = "diverged" if every else "has diverged runs"
        tried = ", ".join(str(s.ranks) for s in case.scales)
        if len(case.scales) == 1:
            return f"{some} at the only rank count tried ({count(case.scales[0].ranks, 'rank')})", ""
        return f"{some} at every rank count tried ({tried})", ""
    first, fastest = good[0], min(good, key=lambda scale: scale.seconds)
    if len(good) == 1:
        return f"took {duration(first.seconds)} on {count(first.ranks, 'rank')}", ""
    if fastest is first:
        return f"is never faster than on {count(first.ranks, 'rank')}", ""
    faster = times(first.seconds / fastest.seconds)
    return f"is fastest on {count(fastest.ranks, 'rank')} ({faster} as fast as on {first.ranks})", ""


def _describe_scaling_limit(case: Case, limit: Limit) -> tuple[str, str]:
    """Describe the scaling limit, without claiming a speedup for ranks that share cores."""
    by_ranks = {scale.ranks: scale for scale in case.scales}
    here = by_ranks.get(limit.at.ranks)
    stops, _, used = describe_limit(limit).partition("; ")
    if _is_limited_by_accuracy(case):
        lost = [scale.ranks for scale in case.scales if not scale.diverged and case.loss(scale) is not None]
        up_to = "" if here is None else f" (on {here.ranks} it is {times(limit.at.speedup)} as fast)"
        ranks = f"{join(lost)} rank{'s' * (lost != [1])}"
        return f"learns less than serial on {ranks}{up_to}", used
    if here is not None and here.oversubscribed:
        return (
            f"is {times(limit.at.speedup)} as fast as serial on {count(here.ranks, 'rank')} (oversubscribed)",
            "",
        )
    if limit.at.ranks == 1 and not limit.rising:
        # Ranks without a core each may have been faster.
        stops = "is never faster than serial" + " with a core for each rank" * (case.judged != case.scales)
    return stops, used


def _make_unknown_cause(case: Case) -> Cause:
    timing = case.at.timing
    if case.worse is not None:
        rate, seed = case.config.get("lr"), int(case.config.get("seed") or 0)
        again = f"--seed {seed + 1} (one seed proves little), or " if len(case.at.runs) == 1 else ""
        lower = f"--lr {rate / 2:g}" if rate else "--schedule warmup"
        return Cause(
            rule=UNKNOWN,
            share=case.worse.amount,
            words=f"at {count(case.at.ranks, 'rank')} {case.worse.words}; no rule explains it",
            advice=f"{again}{lower}",
            of_accuracy=True,
            ranks=case.at.ranks,
        )
    parts = ", ".join(
        f"{part} {duration(getattr(timing, part))}" for part in PARTS if timing.share(part) >= 0.005
    )
    words = f"at {count(case.at.ranks, 'rank')} a step takes {duration(timing.total)} ({parts})"
    more = f"paceline trace {case.at.runs[0].folder.name}"
    return Cause(
        rule=UNKNOWN,
        share=None,
        words=f"{words}; no rule explains why it is no faster",
        advice=more,
        ranks=case.at.ranks,
    )
