"""Settings as they are typed, and the sizes that they would need: what rules advise with."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

from paceline.diagnosis._case import Case
from paceline.errors import UsageError
from paceline.job import strategy_name

# The exchange may take this part of a step.
EXCHANGE = 0.2
# Samples must have this part in the time of a gradient, or a line through noise is taken for a cost.
GROWS = 0.05
# Numbers of steps between averages that people choose.
EVERY = (2, 5, 10, 20, 50, 100, 200, 500, 1000)


def strategy(case: Case, **changes: Any) -> str:
    """The case's strategy with other options: --strategy sync:balance=true."""
    assert case.options is not None
    return f"--strategy {strategy_name(replace(case.options, **changes))}"  # type: ignore[type-var]


def own_samples(case: Case, seconds: float) -> int | None:
    """Samples in a rank's step that compute for so long; None where more samples take next to no longer."""
    line = case.computing
    if line.each * case.at.timing.samples <= GROWS * line.seconds(case.at.timing.samples):
        return None
    return line.samples_for(seconds)


def batch_of(case: Case, own: int) -> int:
    """The batch, as the settings count it, in which a rank has so many samples in a step."""
    return own if case.whole_batches else own * case.at.timing.workers


def larger_batch(case: Case, seconds: float) -> str | None:
    """The setting with which a rank's step computes for so long; None where there is no such batch."""
    own = own_samples(case, seconds)
    return None if own is None else batch_setting(case, batch_of(case, own))


def batch_setting(case: Case, batch: int) -> str | None:
    """How to ask for at least this batch, a power of two; None where the data does not have so many samples."""
    whole = 1 << (batch - 1).bit_length()
    samples = case.config.get("samples")
    most = None if samples is None else samples // case.at.ranks if case.whole_batches else samples
    if most is not None and batch > most:
        return None
    whole = whole if most is None else min(whole, most)
    if case.config.get("batch_per_rank") is not None and not case.whole_batches:
        return f"--batch-per-rank {ceil(whole / case.at.ranks)}"
    return f"--batch {whole}"


def present_batch(case: Case) -> int:
    """The batch, as the settings count it."""
    found = case.at.runs[0].summary.get("global_batch")
    return int(found) if found else round(batch_of(case, round(case.at.timing.samples)))


def rarer(case: Case, exchange: float) -> tuple[int, float]:
    """How many steps a rank must take by itself for such exchanges to be EXCHANGE of the time, and their part then."""
    timing = case.at.timing
    alone = timing.update + case.computing.seconds(present_batch(case))
    needed = exchange * (1 / EXCHANGE - 1) / alone if alone > 0 else 1.0
    every = next((number for number in EVERY if number >= needed), EVERY[-1])
    return every, exchange / every / (alone + exchange / every)


def fewer_ranks(case: Case) -> int:
    """The next smaller number of ranks that was tried, or half, or as few as the strategy can do with."""
    tried = [scale.ranks for scale in case.scales if scale.ranks < case.at.ranks]
    wanted = tried[-1] if tried else max(1, case.at.ranks // 2)
    return next((ranks for ranks in range(wanted, case.at.ranks) if possible(case, ranks)), case.at.ranks)


def possible(case: Case, ranks: int) -> bool:
    """Whether the strategy can use so many ranks."""
    if case.options is None:
        return ranks > 0
    try:
        case.options.check(ranks)
    except UsageError:
        return False
    return ranks > 0
