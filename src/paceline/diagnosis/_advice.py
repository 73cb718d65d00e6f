"""Settings as they are typed, and the sizes that they would need: what rules advise with."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import replace
from math import ceil
from typing import Any

from paceline.diagnosis._case import Case, Scale
from paceline.errors import UsageError
from paceline.training.job import built_in, strategy_name

# The exchange may take this part of a step.
EXCHANGE = 0.2
# Numbers of steps between averages that people choose.
EVERY = (2, 5, 10, 20, 50, 100, 200, 500, 1000)
# A run keeps at least so many averages: with fewer it is one average at the end, which learns less.
AVERAGES = 10
# An epoch keeps at least so many steps of each rank: with fewer nothing is learned in it.
STEPS = 8
# Strategies whose ranks train apart between averages.
APART = ("psgd", "local-sgd", "weight-average", "elastic", "gossip")
MORE_NODES = "what more nodes would do"


def strategy(case: Case, **changes: Any) -> str:
    """The case's strategy with other options: --strategy sync:balance=true."""
    assert case.options is not None
    return f"--strategy {strategy_name(replace(case.options, **changes))}"  # type: ignore[type-var]


# ---- batches


def own_samples(case: Case, seconds: float) -> int | None:
    """Samples in a rank's step that compute for so long; None where more samples were not seen to take longer."""
    return case.computing.samples_for(seconds) if case.grows(case.computing) else None


def batch_of(case: Case, own: int) -> int:
    """The batch, as the settings count it, in which a rank has so many samples in a step."""
    return own if case.whole_batches else own * case.at.timing.workers


def largest_batch(case: Case) -> int | None:
    """The largest that is advised: an epoch keeps STEPS steps of each rank; None where the data is not known."""
    samples = case.config.get("samples")
    return (
        None
        if not samples
        else int(samples) // STEPS // (case.at.timing.workers if case.whole_batches else 1)
    )


def larger_batch(case: Case, seconds: float, why: str) -> str | None:
    """The setting with which a rank's step computes for so long, or as near to it as a batch may come."""
    own = own_samples(case, seconds)
    return None if own is None else batch_setting(case, batch_of(case, own), why)


def batch_setting(case: Case, batch: int, why: str) -> str | None:
    """How to ask for this batch, a power of two, or for as much of it as is advised; None where that is no larger.

    Nor where a larger one may not be advised.
    """
    if not may_grow(case):
        return None
    whole, most, now = 1 << (batch - 1).bit_length(), largest_batch(case), present_batch(case)
    if most is not None and whole > most:
        whole = most if batch <= most else 1 << (most.bit_length() - 1) if most else 0
    # Half of the way is worth a word where it is far.
    return None if whole <= now or (whole < batch and whole < 2 * now) else batch_typed(case, whole, why)


def may_grow(case: Case) -> bool:
    """Whether a larger batch may be advised: fewer steps are not for who has learned less, nor is what large ones cost."""
    if case.worse is None:
        return True
    divided = not case.whole_batches and case.config.get("batch_per_rank") is not None
    return case.config.get("draws") is not None and not divided  # an epoch keeps its steps


def batch_typed(case: Case, batch: int, why: str) -> str:
    """The setting of a larger batch, and what has to be minded with it."""
    setting = f"--batch {batch}"
    if case.config.get("batch_per_rank") is not None and not case.whole_batches:
        setting = f"--batch-per-rank {ceil(batch / case.at.ranks)}"
    if case.config.get("draws") is not None:  # an epoch is so many batches, of whatever size
        return f"{setting} ({why}; larger steps: mind --lr)"
    epochs = ceil(int(case.config.get("epochs") or 1) * batch / max(1, present_batch(case)))
    return f"{setting} ({why}; fewer updates: mind --lr, and --epochs {epochs} for as many)"


def present_batch(case: Case) -> int:
    """The batch, as the settings count it."""
    found = case.at.runs[0].summary.get("global_batch")
    return int(found) if found else round(batch_of(case, round(case.at.timing.samples)))


# ---- averages


def rarer(case: Case, exchange: float) -> tuple[int, float] | None:
    """How many steps a rank may take by itself for such exchanges to be EXCHANGE of the time, and their part then.

    As near to it as most_apart allows; None where that is not even two steps.
    """
    timing, most = case.at.timing, most_apart(case)
    alone = timing.update + case.computing.seconds(present_batch(case))
    needed = exchange * (1 / EXCHANGE - 1) / alone if alone > 0 else 1.0
    known = [number for number in EVERY if number <= most]
    every = next((number for number in known if number >= needed), known[-1] if known else None)
    return None if every is None else (every, exchange / every / (alone + exchange / every))


def most_apart(case: Case) -> int:
    """Steps that ranks may take by themselves so that AVERAGES are left; none where averaging was seen to learn less.

    That `psgd` learns less, which averages once, says nothing of those that average on the way.
    """
    others = (other for other in case.beside or (case,) if other.name in APART[1:])
    if any(other.loss(scale) is not None for other in others for scale in other.scales):
        return 0
    timing = case.at.timing
    batches = timing.steps * (timing.workers if case.whole_batches else 1)
    return int(batches / case.at.ranks // AVERAGES)


# ---- ranks


def ranks(case: Case, number: int) -> str:
    """How to ask for so many ranks, each with a core: here, or else simulated on more nodes."""
    return f"-n {number}" if case.at.fits(number) else elsewhere(case, number, MORE_NODES)


def elsewhere(case: Case, number: int, why: str, each: int | None = None) -> str:
    """How to simulate so many ranks on nodes with one rank, or `each`, and with the strategy that can be used there."""
    real = "--on sim " if case.at.runs[0].simulated is None else ""
    nodes = "" if each is None else f":ranks-per-node={each}"
    shared = case.option("allreduce") == "shared-memory"
    other = f" {strategy(case, allreduce='hierarchical')}" if shared else ""
    return f"{real}-n {number} --network 10gbe{nodes}{other} ({why})"


def fewer_ranks(case: Case) -> int | None:
    """The next smaller number of ranks that was tried, or half; None: the strategy cannot do with it, or it is slower."""
    tried = {scale.ranks: scale.seconds for scale in case.scales if scale.ranks < case.at.ranks}
    if tried and max(tried) > 1:
        return max(tried) if tried[max(tried)] < case.at.seconds else None
    half = range(max(2, case.at.ranks // 2), case.at.ranks)
    return next((number for number in half if possible(case, number)), None)


def fewer_good(case: Case, than: int) -> int | None:
    """The largest smaller number of ranks that was tried and learned as much as serial, or half; None: there is none."""
    good = [s.ranks for s in case.scales if 1 < s.ranks < than and not s.diverged and case.loss(s) is None]
    half = max(good, default=max(2, than // 2))
    return half if half < than and possible(case, half) else None


def possible(case: Case, number: int) -> bool:
    """Whether the strategy can use so many ranks."""
    if case.options is None:
        return number > 0
    try:
        case.options.check(number)
    except UsageError:
        return False
    return number > 0


# ---- Advice in words, without what cannot be typed, cannot run here, or was measured and is no better.


def joined(case: Case, tried: Iterable[str], *, of_accuracy: bool = False) -> str:
    """What is worth a try, one after the other; `of_accuracy`: it is to learn more, and not to be faster."""
    return ", or ".join(dict.fromkeys(each for each in tried if worth(case, each, of_accuracy=of_accuracy)))


def settings_in(advice: str) -> dict[str, str]:
    """The settings of one thing to try, without its reason.

    >>> settings_in("-n 8 --strategy parameter-server:masters=4 (each holds half as much)")
    {'n': '8', 'strategy': 'parameter-server:masters=4'}
    """
    words = shlex.split(re.sub(r"\(.*\)", "", advice))
    return {name.lstrip("-"): value for name, value in zip(words[::2], words[1::2], strict=False)}


def worth(case: Case, advice: str, *, of_accuracy: bool = False) -> bool:
    """Whether the runs that there are leave anything to be hoped for from it."""
    given = settings_in(advice)
    number = int(given.get("n", case.at.ranks))
    if not _accepted(case, given, number):
        return False
    if given.keys() - {"n", "strategy"}:
        return True
    if number > case.at.ranks and not case.at.fits(number):
        return False
    known = _measured(case, given.get("strategy", case.strategy), number)
    return known is None or known is case.at or _better(known, case.at, of_accuracy=of_accuracy)


def _accepted(case: Case, given: dict[str, str], number: int) -> bool:
    if "strategy" not in given:
        return possible(case, number)
    strategy = built_in(given["strategy"])
    if strategy is None:
        return False
    batch, samples = given.get("batch", case.config.get("batch")), case.config.get("samples")
    try:
        strategy.check(number)
        strategy.check_update(str(case.config.get("update", "sgd")))
        if batch and samples:
            strategy.check_data(number, int(batch), int(samples))
    except UsageError:
        return False
    return not strategy.whole_batches or case.config.get("lr_scaling", "none") == "none"


def _measured(case: Case, strategy: str, number: int) -> Scale | None:
    """The runs that there are of a strategy on so many ranks, of the same kind as the case's."""
    wanted = built_in(strategy)
    for other in case.beside:
        if other.simulated == case.simulated and (
            other.strategy == strategy or (wanted is not None and other.options == wanted)
        ):
            found = [scale for scale in other.scales if scale.ranks == number]
            if found:
                return next((scale for scale in found if scale.runs == case.at.runs), found[0])
    return None


def _better(known: Scale, than: Scale, *, of_accuracy: bool) -> bool:
    if known.diverged:
        return False
    if not of_accuracy:
        return known.seconds < than.seconds
    mine, its = than.means("test_accuracy"), known.means("test_accuracy")
    return mine is None or its is None or its[0] > mine[0]
