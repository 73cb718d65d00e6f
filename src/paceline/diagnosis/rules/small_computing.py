"""Computing is too small for its exchange: more than EXCHANGE of a step goes to messages and sums.

The batch at which it would not be: exchange and update stay as they are, and computing goes by the measured line of a
gradient's seconds against its samples. What shared memory, another collective or rarer exchanges would do is beside it.
"""

from __future__ import annotations

from paceline.diagnosis import _advice as advice
from paceline.diagnosis._advice import EXCHANGE
from paceline.diagnosis._case import Case
from paceline.diagnosis._finding import Cause
from paceline.diagnosis._words import count, duration, percent
from paceline.diagnosis.rules import master_queue

NAME = "small computing"
SHORT = "a step computes too little for what it exchanges"
# A batch of so many times the data is as good as none.
ENDLESS = 100
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
    batch = batch_without(case)
    setting = None if batch is None else advice.batch_setting(case, batch)
    tried: list[str] = []
    way = "" if case.computing.fitted else ", if computing is in proportion to the samples"
    if batch is None or (setting is None and batch > ENDLESS * int(case.config.get("samples") or 1)):
        words += "; computing hardly grows with the samples, so that no batch that the data has changes that"
    elif setting is None:
        words += f"; it would be under {percent(EXCHANGE)} from a batch of {batch:,} on, more than the data has{way}"
    else:
        words += f"; it is under {percent(EXCHANGE)} from a batch of {batch:,} on{way}"
        tried.append(f"{setting} (larger steps, and fewer: mind --lr and --epochs)")
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
    tried.append(_rarer(case, exchange))
    return Cause(rule=NAME, share=share, words=words, advice=", or ".join(tried))


def batch_without(case: Case) -> int | None:
    """The batch from which on the exchange is less than EXCHANGE of a step; None where computing does not grow with it."""
    timing = case.at.timing
    exchange = timing.exchange + timing.answer
    own = advice.own_samples(case, exchange * (1 / EXCHANGE - 1) - timing.update)
    return None if own is None else advice.batch_of(case, own)


def _rarer(case: Case, exchange: float) -> str:
    """What averaging every so many steps would make of it."""
    averaging = case.name in AVERAGING and case.option("every") is not None
    now = int(case.option("every", 1)) if averaging else 1
    every, share = advice.rarer(case, exchange * now)
    change = advice.strategy(case, every=every) if averaging else f"--strategy local-sgd:every={every}"
    return f"{change} (one exchange in {count(every, 'step')}: {percent(share)} of the time)"


def _parameters(case: Case) -> int:
    return int(case.at.runs[0].summary.get("parameters") or 0)
