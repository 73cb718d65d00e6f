"""Computing is too small for its exchange: more than EXCHANGE of a step goes to messages and sums.

The batch at which it would not be: exchange and update stay as they are, and computing goes by the line of a gradient's
seconds against its samples. Where one size alone was timed, computing grows at most in proportion, so that it takes at
least such a batch; where sizes were timed that take equally long, nobody knows. What another collective or rarer
exchanges would do is beside it.
"""

from __future__ import annotations

from paceline.diagnosis import _advice as advice
from paceline.diagnosis._advice import EXCHANGE, joined
from paceline.diagnosis._case import Case
from paceline.diagnosis._finding import Cause
from paceline.diagnosis._words import count, duration, listed, percent
from paceline.diagnosis.rules import master_queue

NAME = "small computing"
SHORT = "a step computes too little for what it exchanges"
AVERAGING = ("local-sgd", "elastic", "gossip")


def find(case: Case) -> Cause | None:
    """More than a fifth of a step is exchange, and no queue at a master explains it."""
    timing = case.at.timing
    share = timing.share("exchange", "answer")
    few = case.at.ranks < 2 or case.at.oversubscribed  # who has no core is late for any exchange
    if few or share < EXCHANGE or master_queue.find(case) is not None:
        return None
    exchange = timing.exchange + timing.answer
    does = "exchanges and waits for its masters' answers" if timing.answer else "exchanges"
    words = (
        f"at {count(case.at.ranks, 'rank')} a step computes for {duration(timing.compute)} and {does} for "
        f"{duration(exchange)}, {percent(share)} of the step"
    )
    told, tried = _larger(case)
    words += told
    cheaper = case.at.place.cheapest(
        str(case.option("allreduce", "auto")),
        _parameters(case),
        str(case.config.get("dtype")),
        in_place=case.name == "sync",
    )
    if cheaper is not None:
        words += (
            f"; by theory allreduce={cheaper[0]} takes {percent(cheaper[1])} of the time of "
            f"{case.option('allreduce')}"
        )
        tried.append(advice.strategy(case, allreduce=cheaper[0]))
    tried += _rarer(case, exchange)
    return Cause(rule=NAME, share=share, words=words, advice=joined(case, tried))


def _larger(case: Case) -> tuple[str, list[str]]:
    """From which batch on it is less, in words, and the settings of that batch, or of one on the way to it."""
    batch, most, line = batch_without(case), advice.largest_batch(case), case.computing
    under = f"it is under {percent(EXCHANGE)}"
    if batch is None:
        grow = "by its given costs computing does not grow with the samples"
        if line.basis == "timed":
            grow = f"gradients of {_sizes(case)} samples took about as long: nobody knows from which batch on {under}"
        endless = 1 << 62 if most else 1
        setting = advice.batch_setting(case, endless, "more samples for each exchange")
        return f"; {grow}", [setting] if setting else []
    by = {
        "timed": f" (by gradients of {_sizes(case)} samples)",
        "given": " (by the costs of computing in the runs simulated here)",
        "proportion": " at the earliest (one size alone was timed; computing grows at most in proportion to the samples)",
    }[line.basis]
    about = "" if case.simulated else "about "
    words = (
        f"; {under} from a batch of {about}{batch:,} on{by if line.basis == 'proportion' or about else ''}"
    )
    if most is not None and batch > most:
        whose = "a rank's" if case.whole_batches else "the"
        words += f", more than 1/{advice.STEPS} of {whose} training samples"
    setting = advice.batch_setting(case, batch, "more computing for each exchange")
    return words, [setting] if setting else []


def _sizes(case: Case) -> str:
    """The numbers of samples whose gradients were timed often."""
    scales = [s for s in (*case.serials, *case.scales) if s.threads == case.at.threads]
    return listed(
        sorted({size for s in scales if not s.oversubscribed or s is case.at for size in s.timing.by_count})
    )


def batch_without(case: Case) -> int | None:
    """The batch from which on the exchange is less than EXCHANGE of a step; None where computing does not grow with it."""
    timing = case.at.timing
    exchange = timing.exchange + timing.answer
    own = advice.own_samples(case, exchange * (1 / EXCHANGE - 1) - timing.update)
    return None if own is None else advice.batch_of(case, own)


def _rarer(case: Case, exchange: float) -> list[str]:
    """What averaging every so many steps would make of it, where that may be advised."""
    averaging = case.name in AVERAGING and case.option("every") is not None
    now = int(case.option("every", 1)) if averaging else 1
    found = advice.rarer(case, exchange * now)
    if found is None or found[0] <= now:
        return []
    every, share = found
    change = advice.strategy(case, every=every) if averaging else f"--strategy local-sgd:every={every}"
    return [f"{change} (one exchange in {count(every, 'step')}: {percent(share)} of the time)"]


def _parameters(case: Case) -> int:
    return int(case.at.runs[0].summary.get("parameters") or 0)
