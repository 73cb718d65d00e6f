"""Measure this machine with real MPI, so that simulated runs take as long as real ones.

    machine = calibrate()              messages, collectives and memory, with 2, 4, 8 … ranks at the same time
    machine.save("machine.json")       paceline simulate … --network machine.json

The ranks are started for it, each on its own core; nothing else should be running.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from paceline.errors import UsageError
from paceline.machine.profile import Machine
from paceline.vmpi import Curves, Link
from paceline.vmpi.compute import make_monotonic

log = logging.getLogger(__name__)

# 8 bytes to 4 MiB; two for each doubling where arrays outgrow one cache after the other.
SIZES = tuple(
    sorted(
        [
            *(8 << k for k in (0, 3, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19)),
            *(3 << k for k in (15, 16, 17, 18)),
        ]
    )
)
SECONDS = 12.0  # for each number of ranks


def calibrate(ranks: Sequence[int] | None = None, *, seconds: float = SECONDS) -> Machine:
    """Measure what messages, MPI's collectives and passes over memory cost on this machine.

    `ranks`: numbers of ranks to measure with, powers of two; by default 2, 4, 8 … up to the cores. `seconds`: the time
    for each of them.
    """
    from paceline.launch import call

    wanted = check_ranks(ranks)
    answers = []
    for count in wanted:
        log.info("measuring with %d ranks", count)
        limit = 60 + 20 * seconds
        answers.append(
            call(measure_ranks, {"seconds": seconds}, ranks=count, threads=1, one_node=True, time_limit=limit)
        )
    if not all(answer["bound"] for answer in answers):
        log.warning("other programs were running: measure again when this machine is idle")
    return make_machine(answers)


def measure_ranks(comm: Any, *, seconds: float) -> dict[str, Any]:
    """Measure on the ranks of an MPI communicator, for about `seconds`; return JSON values. Collective."""
    from paceline.machine._microbenchmarks import measure

    return measure(comm, sizes=list(SIZES), seconds=seconds)


def make_machine(answers: Sequence[dict[str, Any]]) -> Machine:
    """Make a machine from the answers of `measure_ranks`, one for each number of ranks."""
    from paceline.launch import machine_cores
    from paceline.record.environment import command_without_paths, processor

    first = answers[0]
    return Machine(
        processor=processor(),
        cores=machine_cores(),
        mpi=first["mpi"],
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        command=command_without_paths(),
        bound=all(answer["bound"] for answer in answers),
        eager_limit=first["eager_limit"],
        post=_post(first),
        poll=first["poll"],
        progress={
            kind: Curves.of({answer["ranks"]: answer[kind] for answer in answers})
            for kind in ("hidden", "calls")
            if all(answer.get(kind) for answer in answers)
        },
        link=link_of(answers),
        collectives={
            "Barrier": Curves.of({answer["ranks"]: [[0, answer["barrier"]]] for answer in answers}),
            "Fence": Curves.of({answer["ranks"]: [[0, answer["fence"]]] for answer in answers}),
            "Allreduce": _curves(answers, "allreduce"),
        },
        memory={
            **{kind: _curves(answers, kind) for kind in ("combine", "sum", "copy")},
            # What does not fit into a cache is not in another core's cache either, so more bytes can take less time.
            **{
                kind: Curves.of({answer["ranks"]: answer[kind] for answer in answers})
                for kind in ("recombine", "cold")
            },
        },
    )


def check_ranks(ranks: Sequence[int] | None) -> list[int]:
    """Check the numbers of ranks to measure with, and return them in order.

    >>> check_ranks([4, 2])
    [2, 4]
    >>> check_ranks([3])
    Traceback (most recent call last):
    paceline.errors.UsageError: a calibration needs ranks that are powers of two, from 2; got 3
    """
    from paceline.launch import machine_cores

    if ranks is None:
        most = max(2, machine_cores())
        return [1 << k for k in range(1, most.bit_length())]
    for count in ranks:
        if count < 2 or count & (count - 1):
            raise UsageError(f"a calibration needs ranks that are powers of two, from 2; got {count}")
    if not ranks:
        raise UsageError("a calibration needs at least one number of ranks; got none")
    return sorted(set(ranks))


def link_of(answers: Sequence[dict[str, Any]]) -> Link:
    """Return the link that reproduces the measured exchanges.

    The part of a small exchange that is neither end's own time is the flight, the same for all sizes; the rest of a
    long exchange is the receiver's time, which copies the message.
    """
    send, flight, take = {}, {}, {}
    for answer in answers:
        ranks, limit, post = answer["ranks"], answer["eager_limit"], _post(answer)
        sending, taking = dict(answer["send"]), dict(answer["take"])
        rests = [
            seconds - post - sending[n] - taking[n]
            for n, seconds in answer["exchange"]
            if n <= limit and n in taking
        ]
        way = max(sorted(rests)[len(rests) // 2], 0.0) if rests else 0.0
        copied = []
        for n, seconds in answer["exchange"]:
            rest = seconds - post - sending[n] - (1 if n <= limit else 2) * way
            copied.append([n, max(rest, 0.1e-6)])
        ends = [copied[0][0], copied[-1][0]]
        send[ranks] = _monotonic(answer["send"], limit)
        flight[ranks] = [[n, way] for n in ends]
        take[ranks] = _monotonic(copied, limit)
        alone = dict(answer["alone"])
        if alone:  # one rank that takes a message while no other does
            ratios = {n: min(1.0, alone[n] / taking[n]) for n, _ in copied if n in alone and n in taking}
            take[1] = _monotonic([[n, seconds * ratios.get(n, 1.0)] for n, seconds in take[ranks]], limit)
    return Link(send=Curves.of(send), flight=Curves.of(flight), take=Curves.of(take))


def _post(answer: dict[str, Any]) -> float:
    """Return the seconds to post a receive, of short messages: posting a long one may also copy what has arrived."""
    posts = sorted(seconds for n, seconds in answer["post"] if n <= answer["eager_limit"])
    return float(posts[len(posts) // 2])


def _curves(answers: Sequence[dict[str, Any]], name: str) -> Curves:
    return Curves.of({answer["ranks"]: _monotonic(answer[name]) for answer in answers})


def _monotonic(points: Sequence[Sequence[float]], limit: float = 0) -> list[list[float]]:
    """Lower the points that noise made too high, eager messages and others separately."""
    eager = [point for point in points if point[0] <= limit]
    return make_monotonic(eager) + make_monotonic(points[len(eager) :])
