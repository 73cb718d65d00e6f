"""A serial baseline that has more threads than each of the ranks that it is compared with."""

from __future__ import annotations

from paceline.diagnosis.case import Case
from paceline.diagnosis.findings import Cause
from paceline.text import count, times

NAME = "baseline with many threads"
SHORT = "the serial baseline already uses several cores"


def find(case: Case) -> Cause | None:
    """The serial runs had more threads than a rank."""
    serial, at = case.serial, case.at
    if serial is None or serial.threads <= at.threads:
        return None
    ours = f"each of the {count(at.ranks, 'rank')} uses {at.threads}"
    words = f"the serial baseline uses {count(serial.threads, 'thread')}, {ours}"
    peer = case.peer
    if peer is not None and at.seconds > 0:
        words += f"; the speedup over serial with {count(peer.threads, 'thread')} is {times(peer.seconds / at.seconds)}"
    return Cause(rule=NAME, share=None, words=words, advice=f"-n 1 --strategy serial --threads {at.threads}")
