"""Cores that are not what a comparison assumes: shared by too many ranks, or used by the threads of one process.

Where there are more ranks, or threads of ranks, than cores, they take turns, and a waiting rank keeps its core busy.
"""

from __future__ import annotations

from paceline.diagnosis import advice
from paceline.diagnosis.advice import join_worthwhile
from paceline.diagnosis.case import Case, Cause, DiagnosisRule
from paceline.text import count, times


def find_oversubscribed(case: Case) -> Cause | None:
    """Return a cause if the ranks of a node have more threads than it has cores."""
    at, cores = case.at, case.at.place.cores
    if not at.oversubscribed or cores is None:
        return None
    threads = at.threads if at.runs[0].simulated is None else 1
    wanted = at.place.on_node * threads
    each = "" if threads == 1 else f" with {threads} threads each"
    words = (
        f"{count(at.place.on_node, 'rank')}{each} share {count(cores, 'core')} ({wanted / cores:.1f} per core): their "
        "times say nothing about scaling"
    )
    nodes = -(-at.ranks // at.place.on_node)
    fewer = threads > 1 and at.ranks <= cores
    tried = [
        f"--threads {max(1, cores // at.place.on_node)}" if fewer else f"-n {cores * nodes}",
        advice.on_more_nodes(case, at.ranks, "to see it with a core for each rank"),
    ]
    return Cause(
        rule=OVERSUBSCRIBED.name, share=1 - cores / wanted, words=words, advice=join_worthwhile(case, tried)
    )


OVERSUBSCRIBED = DiagnosisRule(
    name="oversubscribed cores", short="there are more ranks than cores", find=find_oversubscribed
)


def find_baseline(case: Case) -> Cause | None:
    """Return a cause if the serial runs had more threads than a rank."""
    serial, at = case.serial, case.at
    if serial is None or serial.threads <= at.threads:
        return None
    ours = f"each of the {count(at.ranks, 'rank')} uses {at.threads}"
    words = f"the serial baseline uses {count(serial.threads, 'thread')}, {ours}"
    peer = case.peer
    if peer is not None and at.seconds > 0:
        words += f"; the speedup over serial with {count(peer.threads, 'thread')} is {times(peer.seconds / at.seconds)}"
    return Cause(
        rule=BASELINE.name, share=None, words=words, advice=f"-n 1 --strategy serial --threads {at.threads}"
    )


BASELINE = DiagnosisRule(
    name="baseline with many threads",
    short="the serial baseline already uses several cores",
    find=find_baseline,
)


def find_threads(case: Case) -> Cause | None:
    """Return a cause if one process with more threads than a rank has is faster than the ranks examined."""
    serial, at = case.serial, case.at
    more = [
        one for one in case.serials if serial is not None and one.threads > max(serial.threads, at.threads)
    ]
    fastest = min(more, key=lambda one: one.seconds, default=None)
    if fastest is None or fastest.seconds >= at.seconds:
        return None
    words = (
        f"one process with {count(fastest.threads, 'thread')} is {times(at.seconds / fastest.seconds)} as fast as "
        f"{count(at.ranks, 'rank')} of {count(at.threads, 'thread')}"
    )
    advised = f"-n 1 --strategy serial --threads {fastest.threads}"
    return Cause(rule=THREADS.name, share=None, words=words, advice=advised)


THREADS = DiagnosisRule(
    name="threads are faster", short="threads use the cores better than ranks", find=find_threads
)
