"""Too few runs to tell where scaling stops, or whether there is any."""

from __future__ import annotations

from paceline.diagnosis import advice
from paceline.diagnosis.case import Case
from paceline.diagnosis.findings import Cause
from paceline.diagnosis.rules import scales_well

NAME = "too few runs"
SHORT = "there are too few runs to tell"


def find(case: Case) -> Cause | None:
    """There is no serial run, or only one number of ranks."""
    missing, tried = [], []
    if case.serial is None:
        missing.append("there is no serial run of this problem, so the speedup is unknown")
        tried.append("-n 1 --strategy serial")
    numbers = [scale.ranks for scale in case.scales]
    if len(numbers) == 1:
        (only,) = numbers
        missing.append(f"only one rank count was tried ({only}), so the scaling limit is unknown")
        more = [2 * only] if case.at.fits(2 * only) else []
        less = [n for n in (only // 2, only - 1) if n > 1 and case.at.fits(n)]
        order = (*more, *less) if _well(case) else (*less, *more)
        lost = case.worse is not None or case.at.diverged  # more ranks would lose more
        other = next(
            (n for n in (less if lost else order) if advice.possible(case, n)), None if lost else 2 * only
        )
        tried += [] if other is None else [advice.ranks(case, other)]
    if not missing:
        return None
    return Cause(rule=NAME, share=None, words="; ".join(missing), advice=", and ".join(tried))


def _well(case: Case) -> bool:
    """Return True if the workers do well as far as is known: then more are the next to try, else fewer."""
    speedup = case.speedup(case.at)
    slow = speedup is not None and speedup < scales_well.EFFICIENCY * case.at.timing.workers
    return not slow
