"""Measure this machine with real MPI, so that simulated runs take as long as real ones.

    machine = calibrate()              messages, collectives and memory, with 2, 4, 8 … ranks at the same time
    machine.save("machine.json")       paceline simulate … --network machine.json

The ranks are started for it, each on its own core; nothing else should be running.

All ranks of a node measure at the same time. Messages are measured as a round of recursive doubling, with all its Python
code, and counted and timed as in training. Every buffer has just been written by the rank that sends it. Each end's own
part of a message's time is measured separately. A cost is a mean, because the seconds of a run are sums, and rounds in
which one rank is late are part of them. An exchange is a median: in a loop without barriers its mean has far more waiting
for late partners than a collective has.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.comm import Recorded, channel, mpi_of
from paceline.comm.clocks import Stopwatch
from paceline.comm.recording import Timer
from paceline.comm.shared import CACHE_LINE, SharedMemory
from paceline.errors import UsageError
from paceline.launch.resources import CORES_VARIABLE
from paceline.machine.profile import Machine
from paceline.vmpi import Curves, Link
from paceline.vmpi.compute import make_monotonic

Array = NDArray[Any]
Rounds = Callable[[int], tuple[list[float], ...]]
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
SWEEPS = 3  # so that a noisy moment affects all measurements and not just one
WARM = 3  # rounds at the start of a sweep that do not count, because caches are cold
BEHIND = (1 << 14, 1 << 17, 1 << 20)  # bytes of non-blocking Allreduces that are measured behind computing
MOST_CALLS = 64
OTHER_WORK = 4 << 20  # bytes that evict what was computed from a core's own caches
AT_ONCE = 1 << 18  # bytes of messages that are taken one after the other, at most four
SETTLED = (
    50e-6  # seconds after which every rank has left a broadcast, and messages or announcements have arrived
)


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
        send[ranks] = _make_monotonic(answer["send"], limit)
        flight[ranks] = [[n, way] for n in ends]
        take[ranks] = _make_monotonic(copied, limit)
        alone = dict(answer["alone"])
        if alone:  # one rank that takes a message while no other does
            ratios = {n: min(1.0, alone[n] / taking[n]) for n, _ in copied if n in alone and n in taking}
            take[1] = _make_monotonic(
                [[n, seconds * ratios.get(n, 1.0)] for n, seconds in take[ranks]], limit
            )
    return Link(send=Curves.of(send), flight=Curves.of(flight), take=Curves.of(take))


def _post(answer: dict[str, Any]) -> float:
    """Return the seconds to post a receive, of short messages: posting a long one may also copy what has arrived."""
    posts = sorted(seconds for n, seconds in answer["post"] if n <= answer["eager_limit"])
    return float(posts[len(posts) // 2])


def _curves(answers: Sequence[dict[str, Any]], name: str) -> Curves:
    return Curves.of({answer["ranks"]: _make_monotonic(answer[name]) for answer in answers})


def _make_monotonic(points: Sequence[Sequence[float]], limit: float = 0) -> list[list[float]]:
    """Lower the points that noise made too high, eager messages and others separately."""
    eager = [point for point in points if point[0] <= limit]
    return make_monotonic(eager) + make_monotonic(points[len(eager) :])


# ---- on the ranks


def measure_ranks(comm: Any, *, seconds: float) -> dict[str, Any]:
    """Measure on the ranks of an MPI communicator, for about `seconds`; return JSON values. Collective.

    A value is the median over ranks of the mean of its rounds, of an exchange of their median. `spreads` in the result has,
    of every measurement, the tenth percentile, the median, the mean and the ninetieth.
    """
    p = comm.Get_size()
    limit = eager_limit(comm)
    lengths = sorted({*SIZES, limit, limit + 1, 2 * limit})
    cells: dict[str, Rounds] = {"barrier": prepare_barriers(comm)}
    cells.update({f"behind {n}": prepare_behind_computing(comm, n) for n in BEHIND})
    to_free: list[Callable[[], None]] = []
    for n in lengths:
        cells[f"exchange {n}"] = prepare_exchange(comm, n)
        cells[f"combining {n}"] = prepare_combining(comm, n)
        cells[f"calls {n}"] = prepare_calls(comm, n)
        cells[f"taking {n}"] = prepare_taking(comm, n)
        if p == 2:
            cells[f"alone {n}"] = prepare_taking(comm, n, alone=True)
    for n in SIZES:
        cells[f"allreduce {n}"] = prepare_allreduce(comm, n)
    amounts = {n: row_bytes(n, p) for n in SIZES if n >= 64 * p}
    for n, length in amounts.items():
        cells[f"rows {n}"], free = prepare_rows(comm, length)
        to_free.append(free)
    spreads = _measure_cells(comm, cells, seconds)
    found = {name: [mean for _, _, mean, _ in spreads[name]] for name in cells}
    for n in lengths:
        found[f"exchange {n}"][0] = spreads[f"exchange {n}"][0][1]
    for free in to_free:
        free()

    def table(name: str, place: int = 0, at: dict[int, int] | None = None) -> list[list[float]]:
        points = [(n, found[f"{name} {n}"][place]) for n in lengths if f"{name} {n}" in found]
        points = [(n, value) for n, value in points if np.isfinite(value)]
        return [[n if at is None else at[n], value] for n, value in points]

    library = " ".join(
        mpi_of(comm).Get_library_version().strip("\0 \n").splitlines()[0].split(",")[0].split()
    )
    return {
        "ranks": p,
        "mpi": library,
        "bound": CORES_VARIABLE in os.environ,
        "eager_limit": limit,
        "poll": float(np.median(measure_polling(comm, 200))),
        "exchange": table("exchange"),
        "combine": table("combining"),
        "recombine": table("exchange", 1),
        "post": table("calls"),
        "send": table("calls", 1),
        "take": table("taking"),
        "alone": table("alone"),
        "allreduce": table("allreduce"),
        "cold": [
            [n, max(0.0, later - soon)]
            for (n, soon), (_, later) in zip(table("allreduce"), table("allreduce", 1), strict=True)
        ],
        "copy": table("rows", 0, amounts),
        "sum": table("rows", 1, amounts),
        "barrier": found["barrier"][0],
        "fence": found["barrier"][1],
        "hidden": [[n, hidden_share(*found[f"behind {n}"][:2])] for n in BEHIND],
        "calls": [[n, found[f"behind {n}"][2]] for n in BEHIND],
        "spreads": spreads,
    }


def _measure_cells(comm: Any, cells: dict[str, Rounds], seconds: float) -> dict[str, list[list[float]]]:
    """Return the spreads of all measurements, which take turns and get the same time each."""
    counts = {}
    for name, rounds in cells.items():
        rounds(WARM)
        comm.Barrier()
        start = time.perf_counter()
        rounds(WARM)
        one = np.array([(time.perf_counter() - start) / WARM])
        comm.Allreduce(mpi_of(comm).IN_PLACE, one, mpi_of(comm).MAX)
        counts[name] = int(np.clip(seconds / SWEEPS / len(cells) / one[0], 2, 2000)) + WARM
    laps: dict[str, list[list[float]]] = {name: [] for name in cells}
    for _ in range(SWEEPS):
        for name, rounds in cells.items():
            comm.Barrier()
            for place, some in enumerate(rounds(counts[name])):
                if len(laps[name]) <= place:
                    laps[name].append([])
                laps[name][place] += some[WARM:]
    found = {}
    for name, all_laps in laps.items():
        mine = np.array([spread(some) for some in all_laps])
        every = np.empty((comm.Get_size(), *mine.shape))
        comm.Allgather(mine, every)
        found[name] = [[_median(column) for column in of_place] for of_place in every.transpose(1, 2, 0)]
    return found


def spread(laps: list[float]) -> list[float]:
    """Return the tenth percentile, the median, the mean without the longest fiftieth and the ninetieth percentile."""
    known = np.sort(np.asarray(laps)[np.isfinite(laps)]) if laps else np.empty(0)
    if not known.size:
        return [float("nan")] * 4
    low, middle, high = np.percentile(known, [10, 50, 90])
    return [float(low), float(middle), float(known[: known.size - known.size // 50].mean()), float(high)]


def _median(values: Any) -> float:
    """Return the median of the finite values: failed rounds are NaN."""
    known = np.asarray(values)[np.isfinite(values)] if len(values) else np.empty(0)
    return float(np.median(known)) if known.size else float("nan")


# Messages.


def record_as_in_training(comm: Any) -> Recorded:
    """Return the communicator of a rank that is training, in the middle of an exchange."""
    watch = Stopwatch(time.perf_counter)
    watch.switch("exchange")
    return Recorded(comm, timer=Timer(watch))


def prepare_exchange(comm: Any, nbytes: int) -> Callable[[int], tuple[list[float], list[float]]]:
    """Return a function for rounds of recursive doubling: seconds of each exchange, and of each sum."""
    own, rank, p = channel(record_as_in_training(comm)), comm.Get_rank(), comm.Get_size()
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
            sending, receiving = own.Isend(mine, partner), own.Irecv(theirs, partner)
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


def prepare_combining(comm: Any, nbytes: int) -> Callable[[int], tuple[list[float]]]:
    """Return a function that measures adding received numbers to own ones, into memory no other rank has read."""
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
            sending, receiving = own.Isend(send, partner), own.Irecv(inbox, partner)
            receiving.Wait()
            start = clock()
            add(came, x, total)
            added.append(clock() - start)
            sending.Wait()
        return (added,)

    return rounds


def prepare_calls(comm: Any, nbytes: int) -> Callable[[int], tuple[list[float], list[float]]]:
    """Return a function for the same exchanges: seconds of the call that posts a receive, and of the send."""
    own, partner = channel(record_as_in_training(comm)), comm.Get_rank() ^ 1
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


def prepare_taking(comm: Any, nbytes: int, *, alone: bool = False) -> Callable[[int], tuple[list[float]]]:
    """Return a function that measures taking a message which has arrived, or was announced, before.

    All ranks take messages at the same time; `alone`: only rank 1, from rank 0. They are synchronized by the clock of
    the machine, because a rank that waits in MPI would already take in what has arrived.
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


def measure_polling(comm: Any, count: int) -> list[float]:
    """Return the seconds of tests that find no message."""
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
    """Return the longest message that is sent before the receiver asks for it, up to 16 MiB. Collective."""
    low, high = 0, 16 << 20
    while high - low > 1:
        middle = (low + high) // 2 if high - low < 8192 or low else 4096
        if _is_eager(comm, middle):
            low = middle
        else:
            high = middle
        if high - low <= 16 and low:  # the size of a header does not matter
            break
    return low


def _is_eager(comm: Any, nbytes: int) -> bool:
    """Return True if a send completes although its receiver is waiting for another message."""
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


# Memory and MPI's own collectives.


def prepare_rows(comm: Any, nbytes: int) -> tuple[Rounds, Callable[[], None]]:
    """Return a function that measures an exchange in shared memory, and one that frees the memory. Collective.

    It measures the seconds of copying `nbytes` into a row and of summing a slice: every rank writes its row, all
    wait, and each sums its columns of all rows, which the others have just written.
    """
    p, rank = comm.Get_size(), comm.Get_rank()
    shared = SharedMemory(comm, p * nbytes)
    every = shared.memory.reshape(p, nbytes).view(np.float32)
    mine = np.zeros(nbytes // 4, np.float32)
    width = max(nbytes // 4 // p, CACHE_LINE // 4) // 16 * 16
    columns = every[:, rank * width : (rank + 1) * width]
    total = np.empty(columns.shape[1], np.float32)
    add = channel(comm).operation(np.add, np.dtype(np.float32), nbytes)
    clock = time.perf_counter

    def rounds(count: int) -> tuple[list[float], ...]:
        copied, summed = [], []
        for _ in range(count):
            mine.fill(1)
            start = clock()
            np.copyto(every[rank], mine)
            copied.append(clock() - start)
            shared.fence()
            start = clock()
            if total.size:
                add.combine_rows(columns, total)
            summed.append(clock() - start)
            shared.fence()
        return copied, summed

    return rounds, shared.free


def row_bytes(amount: int, p: int) -> int:
    """Return the length of a row if a p-th of p rows is `amount` bytes: whole cache lines for every rank."""
    return max(CACHE_LINE * p, amount // (CACHE_LINE * p) * CACHE_LINE * p)


def prepare_barriers(comm: Any) -> Rounds:
    """Return a function that measures MPI's barrier, and that of shared memory."""
    shared = SharedMemory(comm, CACHE_LINE)
    clock = time.perf_counter

    def laps(call: Callable[[], None], count: int) -> list[float]:
        found, last = [], clock()
        for _ in range(count):
            call()
            now = clock()
            found.append(now - last)
            last = now
        return found

    def rounds(count: int) -> tuple[list[float], ...]:
        return laps(comm.Barrier, count), laps(shared.fence, count)

    return rounds


def prepare_allreduce(comm: Any, nbytes: int) -> Rounds:
    """Return a function that measures MPI's Allreduce in place, of numbers just written; and again after other work."""
    values, other = np.zeros(max(nbytes // 4, 1), np.float32), np.zeros(OTHER_WORK // 4, np.float32)
    in_place, add = mpi_of(comm).IN_PLACE, mpi_of(comm).SUM
    clock = time.perf_counter

    def once() -> float:
        comm.Barrier()
        start = clock()
        comm.Allreduce(in_place, values, add)
        return clock() - start

    def rounds(count: int) -> tuple[list[float], ...]:
        warm, cold = [], []
        for _ in range(count):
            values.fill(1)
            warm.append(once())
            values.fill(1)
            other.fill(1)
            cold.append(once())
        return warm, cold

    return rounds


def prepare_behind_computing(comm: Any, nbytes: int) -> Rounds:
    """Return a function that measures a non-blocking Allreduce alone, and what is left of it after computing for long.

    The second: how long Wait takes after the ranks have computed, without a call, for at least twice as long as it takes.
    The third: how many calls of Test it takes until it is done, with as much computing before each.
    """
    values, total = np.ones(nbytes // 4, np.float32), np.zeros(nbytes // 4, np.float32)
    work, add, clock = np.ones(1 << 12, np.float32), mpi_of(comm).SUM, time.perf_counter

    def once(least: float) -> tuple[float, float]:
        comm.Barrier()
        start = clock()
        request = comm.Iallreduce(values, total, add)
        while clock() - start < least:
            np.multiply(work, 1.0, out=work)
        computed = clock()
        request.Wait()
        return computed - start, clock() - computed

    def count_calls(least: float) -> float:
        comm.Barrier()
        request = comm.Iallreduce(values, total, add)
        for done in range(1, MOST_CALLS + 1):
            start = clock()
            while clock() - start < least:
                np.multiply(work, 1.0, out=work)
            if request.Test():
                return float(done)
        request.Wait()
        return float(MOST_CALLS)

    def rounds(count: int) -> tuple[list[float], ...]:
        alone, rest, tested = [], [], []
        for _ in range(count):
            alone.append(sum(once(0.0)))
            longest = np.array([alone[-1]])
            comm.Allreduce(mpi_of(comm).IN_PLACE, longest, mpi_of(comm).MAX)
            rest.append(once(2 * float(longest[0]))[1])
            tested.append(count_calls(float(longest[0])))
        return alone, rest, tested

    return rounds


def hidden_share(alone: float, rest: float) -> float:
    """Return the part of a non-blocking Allreduce that computing hides, from what it takes alone and what is left.

    >>> hidden_share(0.010, 0.008), hidden_share(0.010, 0.011)
    (0.2, 0.0)
    """
    return round(min(1.0, max(0.0, 1 - rest / alone)), 3) if alone > 0 else 0.0
