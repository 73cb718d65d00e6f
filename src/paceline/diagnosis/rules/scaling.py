"""Nothing is wrong, the speedup is more than ranks can give, or there are too few runs to tell."""

from __future__ import annotations

from paceline.compare.verdict import is_superlinear
from paceline.diagnosis import advice
from paceline.diagnosis.case import Case, Cause, DiagnosisRule
from paceline.diagnosis.rules.batch_growth import find_grown_batch
from paceline.text import count, share, times

EFFICIENCY = 0.75


def find_scales_well(case: Case) -> Cause | None:
    """Return a cause if efficiency is 75 % on the most ranks, accuracy matches serial training, and nothing diverged."""
    speedup, ranks, stops = case.speedup(case.at), case.at.ranks, case.limit
    if speedup is None or stops is None or ranks < 2 or speedup / ranks < EFFICIENCY:
        return None
    # More ranks are not the answer if fewer are the fastest or less is learned, nor if the ranks alone are not the reason.
    if case.at.oversubscribed or not stops.rising or case.worse is not None or case.astray:
        return None
    if find_grown_batch(case) is not None or find_implausible(case) is not None:
        return None
    words = (
        f"{count(ranks, 'rank')} are {times(speedup)} as fast as serial: {share(speedup / ranks)} efficiency"
    )
    return Cause(rule=SCALES_WELL.name, share=None, words=words, advice=advice.ranks(case, 2 * ranks))


def find_implausible(case: Case) -> Cause | None:
    """Return a cause if even the slowest run is faster than its cores can make it, and its batches are not larger."""
    at, serial, speedup = case.at, case.serial, case.speedup(case.at)
    grown = not case.whole_batches and case.config.get("batch_per_rank") is not None
    if serial is None or speedup is None or at.ranks < 2 or case.simulated or grown:
        return None
    ours, theirs = ([run.summary["train_seconds"] for run in scale.runs] for scale in (at, serial))
    if not is_superlinear(min(theirs) / max(ours), at.ranks * at.threads):
        return None
    runs = "on one run each" if len(ours) == len(theirs) == 1 else f"on {len(ours)} and {len(theirs)} runs"
    words = (
        f"{count(at.ranks, 'rank')} are {times(speedup)} as fast as serial {runs}: more than {count(at.ranks, 'rank')} can "
        "give, so serial's time was probably that of a busy machine"
    )
    again = f"-n 1 --strategy serial --seed {int(case.config.get('seed') or 0) + 1}"
    return Cause(
        rule=IMPLAUSIBLE.name, share=None, words=words, advice=f"{again} (run it with nothing else running)"
    )


IMPLAUSIBLE = DiagnosisRule(
    name="implausible speedup", short="the speedup is implausible: measure again", find=find_implausible
)

SCALES_WELL = DiagnosisRule(name="scales well", short="it scales well", find=find_scales_well)


def find_too_few(case: Case) -> Cause | None:
    """Return a cause if there is no serial run, or only one number of ranks."""
    missing, tried = [], []
    if case.serial is None:
        missing.append("there is no serial run of this problem, so the speedup is unknown")
        tried.append("-n 1 --strategy serial")
    numbers = [scale.ranks for scale in case.judged]
    if len(numbers) == 1:
        (only,) = numbers
        some = "rank count was tried" if case.judged == case.scales else "rank count tried has enough cores"
        missing.append(f"only one {some} ({only}), so the scaling limit is unknown")
        more = [2 * only] if case.at.fits(2 * only) else []
        less = [n for n in (only // 2, only - 1) if n > 1 and case.at.fits(n)]
        order = (*more, *less) if _does_well(case) else (*less, *more)
        lost = case.worse is not None or case.at.diverged  # more ranks would lose more
        untried = less if lost else (*order, 2 * only)  # if these do not fit, on more nodes
        other = next((number for number in untried if advice.can_use(case, number)), None)
        tried += [] if other is None else [advice.ranks(case, other)]
    if not missing:
        return None
    return Cause(rule=TOO_FEW.name, share=None, words="; ".join(missing), advice=", and ".join(tried))


def _does_well(case: Case) -> bool:
    """Return True if the workers do well as far as is known: then more are the next to try, else fewer."""
    speedup = case.speedup(case.at)
    slow = speedup is not None and speedup < EFFICIENCY * case.at.timing.workers
    return not slow


TOO_FEW = DiagnosisRule(name="too few runs", short="there are too few runs to tell", find=find_too_few)
