"""Ranks that compute at the same time slow each other down although each has a core: they share memory, caches and clock.

A gradient here is compared with one of as many samples in the serial run with as many threads: of the same batch, or on
the line through the serial run's gradients of several sizes.
"""

from __future__ import annotations

from paceline.diagnosis import advice
from paceline.diagnosis.advice import join_worthwhile
from paceline.diagnosis.case import Case, Cause, DiagnosisRule
from paceline.text import count, duration, share, times

SLOWER = 1.15
SHARE = 0.05
# A piece of at least this part of the serial batch counts as the same batch.
SAME = 0.99


def find(case: Case) -> Cause | None:
    """Return a cause if a sample takes a seventh longer than alone, and that is a twentieth of the step."""
    timing = case.at.timing
    alone = alone_seconds(case)
    if alone is None or case.at.oversubscribed or case.at.place.on_node < 2:
        return None
    here = computing_seconds(case)
    part = (here - alone) / timing.total if timing.total > 0 else 0.0
    if here < SLOWER * alone or part < SHARE:
        return None
    cores = case.at.place.cores
    though = (
        "" if cores is None else f" although there {'is' if cores == 1 else 'are'} {count(cores, 'core')}"
    )
    words = (
        f"at {count(case.at.ranks, 'rank')} a gradient of {timing.samples:.0f} samples takes {duration(here)} instead of "
        f"{duration(alone)} in a serial run ({times(here / alone)} as long){though}, because ranks share memory, caches "
        f"and clock speed; the difference is {share(part)} of the step"
    )
    fewer = advice.fewer_ranks(case)
    tried = [f"-n {fewer}"] if fewer is not None else []
    tried += ["--dtype float32 (half the bytes)"] if case.config.get("dtype") == "float64" else []
    each = fewer if fewer is not None and fewer > 1 else None
    tried.append(advice.on_more_nodes(case, case.at.ranks, advice.MORE_NODES, each))
    return Cause(rule=RULE.name, share=part, words=words, advice=join_worthwhile(case, tried))


def computing_seconds(case: Case) -> float:
    """Return the seconds of a gradient on the median rank here."""
    return case.at.timing.middle * case.at.timing.samples


def alone_seconds(case: Case) -> float | None:
    """Return the seconds of a gradient of as many samples in the serial run; None if that is not known."""
    peer, samples = case.peer, case.at.timing.samples
    if peer is None or not samples or not peer.timing.samples:
        return None
    if samples >= SAME * peer.timing.samples:
        return peer.timing.middle * samples
    return None if case.alone is None else case.alone.seconds(samples)


RULE = DiagnosisRule(name="slower computing", short="ranks slow each other's computing down", find=find)
