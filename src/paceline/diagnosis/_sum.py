"""All causes of a case, in order of their weight, and the sentence that they come to."""

from __future__ import annotations

from paceline.diagnosis._case import Case
from paceline.diagnosis._finding import Cause, Diagnosis
from paceline.diagnosis._timing import PARTS
from paceline.diagnosis._words import count, duration, percent, times
from paceline.diagnosis.rules import RULES, scales_well
from paceline.sim._bottleneck import Limit
from paceline.sim._reasons import where

UNKNOWN = "unexplained"


def sum_up(case: Case) -> Diagnosis:
    """The diagnosis of one strategy."""
    found = [cause for rule in RULES if (cause := rule.cause(case)) is not None]
    if not found or (case.worse is not None and not any(cause.of_accuracy for cause in found)):
        found.append(_unexplained(case))
    causes = tuple(sorted(found, key=_weight))  # stable: in the order of the rules where they weigh alike
    return Diagnosis(
        strategy=case.way,
        ranks=case.at.ranks,
        summary=_summary(case, causes[0]),
        causes=causes,
        simulated=case.simulated,
    )


def _weight(cause: Cause) -> tuple[bool, float]:
    """What is lowest for the first: that nothing is wrong, then what most is lost to."""
    return cause.rule != scales_well.NAME, -cause.lost


def _summary(case: Case, main: Cause) -> str:
    short = next((rule.short for rule in RULES if rule.name == main.rule), "no rule explains why")
    if main.share is not None and main.rule != "divergence":
        much = f"{percent(main.share)} of the time"
        if main.of_accuracy:
            known = case.at.means("test_accuracy") is not None
            much = f"{100 * main.share:.1f} points of accuracy" if known else "a higher test loss"
        short += f" ({much} at {count(case.at.ranks, 'rank')})"
    simulated = f"simulated on {case.simulated}: " if case.simulated else ""
    return f"{simulated}{case.way} {_where(case)}: {short}"


def _where(case: Case) -> str:
    if case.limit is not None:
        return _limited(case, case.limit)
    good = [scale for scale in case.scales if not scale.diverged]
    if not good:
        return f"diverged on every number of ranks that was tried ({', '.join(str(s.ranks) for s in case.scales)})"
    first, fastest = good[0], min(good, key=lambda scale: scale.seconds)
    if len(good) == 1:
        return f"took {duration(first.seconds)} on {count(first.ranks, 'rank')}"
    if fastest is first:
        return f"is on no number of ranks faster than on {first.ranks}"
    faster = times(first.seconds / fastest.seconds)
    return f"is fastest on {count(fastest.ranks, 'rank')} ({faster} as fast as on {first.ranks})"


def _limited(case: Case, limit: Limit) -> str:
    """Where it stops scaling; of ranks that share cores it is not said that more make it faster."""
    by_ranks = {scale.ranks: scale for scale in case.scales}
    here = by_ranks.get(limit.at.ranks)
    if limit.reason in ("staleness", "accuracy"):
        return where(limit)
    if here is not None and here.oversubscribed:
        return f"is {times(limit.at.speedup)} as fast as serial on {count(here.ranks, 'rank')}, more than there are cores"
    if limit.at.ranks == 1:
        return where(limit).replace("faster than on one", "faster than serial")
    return where(limit)


def _unexplained(case: Case) -> Cause:
    timing = case.at.timing
    if case.worse is not None:
        rate, seed = case.config.get("lr"), int(case.config.get("seed") or 0)
        again = f"--seed {seed + 1} (one seed may be chance), or " if len(case.at.runs) == 1 else ""
        lower = f"--lr {rate / 2:g}" if rate else "--strategy sync"
        return Cause(
            rule=UNKNOWN,
            share=case.worse.amount,
            words=f"at {count(case.at.ranks, 'rank')} {case.worse.words}, and no rule says why",
            advice=f"{again}{lower}",
            of_accuracy=True,
        )
    parts = ", ".join(
        f"{part} {duration(getattr(timing, part))}" for part in PARTS if timing.share(part) >= 0.005
    )
    words = f"at {count(case.at.ranks, 'rank')} a step takes {duration(timing.total)} ({parts})"
    more = f"paceline trace {case.at.runs[0].folder.name}"
    return Cause(
        rule=UNKNOWN, share=None, words=f"{words}, and no rule says why that is no less", advice=more
    )
