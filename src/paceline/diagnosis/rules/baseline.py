"""A serial baseline that has more threads than each of the ranks that it is compared with."""

from __future__ import annotations

from paceline.diagnosis._case import Case
from paceline.diagnosis._finding import Cause
from paceline.diagnosis._words import count, times

NAME = "baseline with many threads"
SHORT = "the serial baseline already uses several cores"


def find(case: Case) -> Cause | None:
    """The serial runs had more threads than a rank."""
    serial, at = case.serial, case.at
    if serial is None or serial.threads <= at.threads:
        return None
    words = (
        f"the serial baseline computes with {count(serial.threads, 'thread')}, each of the {count(at.ranks, 'rank')} with "
        f"{at.threads}: what is called 1x has {times(serial.threads / at.threads)} the threads of a rank"
    )
    peer = case.peer
    if peer is not None and at.seconds > 0:
        words += (
            f"; against serial with {count(peer.threads, 'thread')} it is {times(peer.seconds / at.seconds)}"
        )
    return Cause(rule=NAME, share=None, words=words, advice=f"-n 1 --strategy serial --threads {at.threads}")
