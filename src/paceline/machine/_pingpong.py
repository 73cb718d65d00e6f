"""The ranks' side of a calibration, messages: what they cost when all ranks of a node exchange them at once.

What is measured is a round of recursive doubling, with all its Python and counted as it is in training. Every buffer has
just been written by the rank that sends it. What of a message's time is whose own is measured apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.comm import Recorded, channel

Array = NDArray[Any]
AT_ONCE = 1 << 18  # bytes of messages that are taken one after the other, but never more than four
SETTLED = (
    50e-6  # seconds in which everybody has left a broadcast, and in which messages or announcements have come
)


def exchange(comm: Any, nbytes: int) -> Callable[[int], tuple[list[float], list[float]]]:
    """Rounds of recursive doubling over `nbytes`: seconds of each exchange, and of each sum of what came."""
    own, rank, p = channel(Recorded(comm)), comm.Get_rank(), comm.Get_size()
    send, into, inbox = (np.zeros(nbytes, np.uint8) for _ in range(3))
    numbers = nbytes // 4 * 4
    a, b, total = (array[:numbers].view(np.float32) for array in (send, inbox, into))
    add = own.operation(np.add, np.dtype(np.float32), numbers)
    clock = time.perf_counter

    def rounds(count: int) -> tuple[list[float], list[float]]:
        exchanged, added = [], []
        mine, theirs, a_sum, x = send, inbox, total, a
        distance, last = 1, clock()
        for _ in range(count):
            partner = rank ^ distance
            receiving, sending = own.Irecv(theirs, partner), own.Isend(mine, partner)
            receiving.Wait()
            sending.Wait()
            before = clock()
            lower, upper = (b, x) if partner < rank else (x, b)
            add(lower, upper, a_sum)
            after = clock()
            exchanged.append(before - last)
            added.append(after - before)
            mine, x, distance = into, a_sum, 2 * distance if 2 * distance < p else 1
            last = after
        return exchanged, added

    return rounds


def combining(comm: Any, nbytes: int) -> Callable[[int], tuple[list[float]]]:
    """Seconds of adding what has come to numbers of one's own, into memory that no other rank has read."""
    own, partner = channel(comm), comm.Get_rank() ^ 1
    send, inbox = np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    numbers = nbytes // 4 * 4
    x, total = np.ones(numbers // 4, np.float32), np.ones(numbers // 4, np.float32)
    add = own.operation(np.add, np.dtype(np.float32), numbers)
    came = inbox[:numbers].view(np.float32)
    clock = time.perf_counter

    def rounds(count: int) -> tuple[list[float]]:
        added = []
        for _ in range(count):
            receiving, sending = own.Irecv(inbox, partner), own.Isend(send, partner)
            receiving.Wait()
            start = clock()
            add(came, x, total)
            added.append(clock() - start)
            sending.Wait()
        return (added,)

    return rounds


def calls(comm: Any, nbytes: int) -> Callable[[int], tuple[list[float], list[float]]]:
    """The same exchanges: seconds of the call that posts a receive, and of the one that sends."""
    own, partner = channel(Recorded(comm)), comm.Get_rank() ^ 1
    here, there = np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    clock = time.perf_counter

    def rounds(count: int) -> tuple[list[float], list[float]]:
        posting, sending = [], []
        for _ in range(count):
            start = clock()
            came = own.Irecv(there, partner)
            posted = clock()
            went = own.Isend(here, partner)
            sent = clock()
            came.Wait()
            went.Wait()
            posting.append(posted - start)
            sending.append(sent - posted)
        return posting, sending

    return rounds


def taking(comm: Any, nbytes: int, *, alone: bool = False) -> Callable[[int], tuple[list[float]]]:
    """Seconds that a rank takes for a message that has come, or was announced, before it looks.

    All ranks take at a time; `alone`: only rank 1, from rank 0. They go by the clock, which is one for the machine: who
    waited for another in MPI would take in there what has come.
    """
    rank = comm.Get_rank()
    partner = rank ^ 1
    sends, takes = (rank == 0, rank == 1) if alone else (True, True)
    at_once = min(4, max(1, AT_ONCE // nbytes))
    outgoing, incoming = (np.zeros((at_once, nbytes), np.uint8) for _ in range(2))
    start = np.zeros(1)
    clock = time.perf_counter

    def rounds(count: int) -> tuple[list[float]]:
        taken = []
        for _ in range(count):
            outgoing[...] = 1
            came = [comm.Irecv(row, partner) for row in incoming] if takes else []
            comm.Barrier()
            start[0] = clock() + SETTLED
            comm.Bcast(start)
            at = start[0]
            while clock() < at:
                pass
            went = [comm.Isend(row, partner) for row in outgoing] if sends else []
            late = clock() > at + SETTLED
            while clock() < at + SETTLED:
                pass
            before = clock()
            for request in came:
                request.Wait()
            if takes:
                taken.append(np.nan if late else (clock() - before) / at_once)
            for request in went:
                request.Wait()
        return (taken,)

    return rounds


def polling(comm: Any, count: int) -> list[float]:
    """Seconds of looking for a message in vain."""
    never = comm.Irecv(np.zeros(1, np.uint8), comm.Get_rank(), tag=99)
    looked = []
    for _ in range(count):
        start = time.perf_counter()
        never.Test()
        looked.append(time.perf_counter() - start)
    never.Cancel()
    never.Wait()
    return looked


def eager_limit(comm: Any) -> int:
    """The longest message that is sent before the receiver has asked for it, to 16 MiB. Collective."""
    low, high = 0, 16 << 20
    while high - low > 1:
        middle = (low + high) // 2 if high - low < 8192 or low else 4096
        if _is_eager(comm, middle):
            low = middle
        else:
            high = middle
        if high - low <= 16 and low:  # what a header takes is no matter
            break
    return low


def _is_eager(comm: Any, nbytes: int) -> bool:
    """Whether a message is done with that a rank, waiting for another one, has not asked for."""
    rank = comm.Get_rank()
    message, go_on, eager = np.zeros(nbytes, np.uint8), np.zeros(1, np.uint8), np.zeros(1, np.uint8)
    comm.Barrier()
    if rank == 0:
        request = comm.Isend(message, 1, tag=1)
        until = time.perf_counter() + 2e-3
        while not eager[0] and time.perf_counter() < until:
            eager[0] = request.Test()
        comm.Send(go_on, 1, tag=2)
        if not eager[0]:
            request.Wait()
    elif rank == 1:
        comm.Recv(go_on, 0, tag=2)
        comm.Recv(message, 0, tag=1)
    comm.Bcast(eager)
    return bool(eager[0])
