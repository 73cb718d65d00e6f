"""What is wrong when ranks cannot go on, or have ended and left something over."""

from __future__ import annotations

import sys
from math import inf
from typing import Any, NoReturn

from greenlet import getcurrent

from paceline.sim import _sites
from paceline.sim.errors import Deadlock, Unfinished, Unmatched


def check_end(kernel: Any) -> None:
    """Nobody goes on any more: all must have ended, and nothing may be left over."""
    waiting = [rank for rank in kernel.ranks if rank.alive and not rank.greenlet.dead]
    if waiting:
        _stuck(
            kernel, waiting, f"{len(waiting):,} of {len(kernel.ranks):,} ranks wait, and nothing is under way"
        )
    if not kernel.strict or (kernel.faults is not None and kernel.faults.excuses()):
        return
    for rank in kernel.ranks:
        if rank.alive:
            _check_rank(rank)


def check_polling(kernel: Any, often: int) -> None:
    """Ranks look for what nobody sends: all that have not ended wait or have looked often, and nothing is on its way."""
    living = [rank for rank in kernel.ranks if rank.alive and not rank.greenlet.dead]
    for rank in living:
        if rank.inbox or not ((rank.waiting and rank.wake == inf) or rank.in_vain >= often):
            return
    looking = sum(rank.in_vain >= often for rank in living)
    _stuck(
        kernel, living,
        f"{looking:,} of {len(kernel.ranks):,} ranks look again and again for what nobody sends",
    )  # fmt: skip


def _stuck(kernel: Any, waiting: list[Any], why: str) -> NoReturn:
    said = []
    for rank in waiting:
        where = _sites.spelled(_place(rank))
        doing = rank.doing if isinstance(rank.doing, str) else rank.doing.wanted()
        how = "looks for messages" if rank.in_vain and not rank.waiting else f"waits in {doing or 'a call'}"
        said.append(f"rank {rank.number} {how} at {where}, {1e3 * rank.t:.6g} ms after the start")
        there = [message for queue in rank.unexpected.values() for message in queue]
        if there:
            more = f", and {len(there) - 1:,} more" if len(there) > 1 else ""
            said.append(f"  and has not asked for {there[0].spelled()}{more}")
    dead = [rank.number for rank in kernel.ranks if not rank.alive]
    gone = f" ({', '.join(f'rank {number}' for number in dead[:8])} had been killed)" if dead else ""
    lost = "" if kernel.faults is None else kernel.faults.told()
    lacking = "".join(f"\n  {meeting.lacking(group)}" for meeting, group in kernel.meetings.items())
    raise Deadlock(f"deadlock: {why}{gone}{_sites.listed(said)}{lacking}{lost}")


def _place(rank: Any) -> Any:
    """Where a rank is in the user's program."""
    if rank.greenlet is not getcurrent():
        return _sites.of_greenlet(rank.greenlet)
    return _sites.of_frame(sys._getframe(1))


def _check_rank(rank: Any) -> None:
    """Nothing may be left over of a rank that has ended."""
    while rank.inbox:  # what came for a receive that nobody has waited for is no message without a receive
        rank.inbox.pop(0)[2].arrive(rank)
    left = [message for queue in rank.unexpected.values() for message in queue]
    left = [message for message in left if message.sender.alive]
    if left:
        raise Unmatched(
            "unmatched: messages that nobody received" + _sites.listed(message.spelled() for message in left)
        )
    if rank.open:
        receives = [request for request in rank.open.values() if not request.done and request.receives]
        if receives:
            raise Unmatched(
                "unmatched: receives that no message came for"
                + _sites.listed(request.spelled() for request in receives)
            )
        raise Unfinished(
            "unfinished: what was never waited for, or freed"
            + _sites.listed(request.spelled() for request in rank.open.values())
        )
