"""Measure the network between hosts with real MPI: what a message costs its ends, its latency, and the rate of the line.

    machine = calibrate_hosts(parse_hosts("a:8,b:8"))     this machine, the first of them, and the network between them
    machine.save("cluster.json")                          paceline simulate … --network cluster.json

Each rank of the first host has a partner on the second. Small messages go back and forth between one pair; long ones are
sent by one pair alone, which gives the rate of one connection, and by all pairs at once, which gives that of the card.
No collective is measured: a simulated one follows from its messages.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.comm import channel, mpi_of
from paceline.comm.shared import split_node
from paceline.errors import AgreedError
from paceline.machine.calibration import (
    SECONDS,
    calibrate,
    eager_limit,
    prepare_calls,
    record_as_in_training,
    spread,
)
from paceline.machine.profile import Machine
from paceline.vmpi.network import Network, presets

if TYPE_CHECKING:
    from paceline.launch import Host

log = logging.getLogger(__name__)
SMALL = 8
FIRST, MOST = (
    1 << 18,
    1 << 27,
)  # bytes of the long messages: doubled from the first until one takes long enough
LEAST, MOST_TIMES = 5, 25  # times that the rate is measured
LONG = 0.2  # seconds of a long message, beside which latencies do not matter
FASTER = 1.1  # all pairs at once, compared with one: less than this many times as fast is the same
DIGITS = 3


def calibrate_hosts(
    hosts: Sequence[Host], ranks: Sequence[int] | None = None, *, seconds: float = SECONDS
) -> Machine:
    """Measure this machine, the first of these hosts, and the network between them, with all their ranks.

    The hosts are assumed to be alike. `ranks` and `seconds`: as for `calibrate`.
    """
    from paceline.launch import call

    machine = calibrate(ranks, seconds=seconds)
    log.info("measuring between %s", " and ".join(host.name for host in hosts[:2]))
    count, limit = sum(host.slots for host in hosts), 120 + 20 * seconds
    answer = call(
        measure_between, {"seconds": seconds}, ranks=count, threads=1, hosts=hosts, time_limit=limit
    )
    return replace(machine, network=str(network_of(answer)))


def measure_between(comm: Any, *, seconds: float) -> dict[str, Any]:
    """Measure between the first two hosts of these ranks for about `seconds`; return JSON values. Collective."""
    hosts = _ranks_of_hosts(comm)
    if len(hosts) < 2:
        raise AgreedError(
            "to measure the network between hosts, ranks must be on at least two; all are on one"
        )
    pairs = list(zip(*hosts[:2], strict=False))
    rank = comm.Get_rank()
    alone = comm.Split(0 if rank in pairs[0] else 1, rank)
    found: dict[str, Any] = {"ranks_per_node": max(map(len, hosts))}
    if rank in pairs[0]:
        found |= _measure_pair(alone, seconds / 2)
    alone.Free()
    one = _measure_rate(comm, pairs[:1], seconds / 4)
    found["rate"] = {"one": one, "all": _measure_rate(comm, pairs, seconds / 4) if len(pairs) > 1 else one}
    return found  # complete on rank 0


def _ranks_of_hosts(comm: Any) -> list[list[int]]:
    """Return the ranks of each host, which is identified by its first rank; collective."""
    first = np.array([comm.Get_rank()])
    node = split_node(comm)
    node.Bcast(first)
    node.Free()
    every = np.empty(comm.Get_size(), first.dtype)
    comm.Allgather(first, every)
    return [np.flatnonzero(every == number).tolist() for number in np.unique(every)]


def _measure_pair(pair: Any, seconds: float) -> dict[str, Any]:
    """Measure messages between the two ranks of `pair`: seconds of the sender's call, and of one way; collective."""
    limit = eager_limit(pair)
    sizes = [SMALL, limit]
    sending, way = [], []
    for n in sizes:
        calling = prepare_calls(pair, n)
        calling(3)
        sending.append([n, _shared_mean(pair, calling(_rounds(pair, calling, seconds / 4))[1])])
        going = _prepare_back_and_forth(pair, n)
        going(3)
        way.append([n, _shared_mean(pair, going(_rounds(pair, going, seconds / 4))[0])])
    return {"eager_limit": limit, "send": sending, "way": way}


def _rounds(comm: Any, once: Callable[[int], Any], seconds: float) -> int:
    start = time.perf_counter()
    once(3)
    took = np.array([(time.perf_counter() - start) / 3])
    comm.Allreduce(mpi_of(comm).IN_PLACE, took, mpi_of(comm).MAX)
    return int(np.clip(seconds / took[0], 5, 5000))


def _mean(laps: Sequence[float]) -> float:
    """Return the mean without the longest fiftieth, as of all costs of a machine."""
    return spread(list(laps))[2]


def _shared_mean(comm: Any, laps: Sequence[float]) -> float:
    value = np.array([_mean(laps)])
    comm.Allreduce(mpi_of(comm).IN_PLACE, value, mpi_of(comm).SUM)
    return float(value[0]) / int(comm.Get_size())


def _prepare_back_and_forth(pair: Any, nbytes: int) -> Callable[[int], tuple[list[float]]]:
    """Return a function that sends messages back and forth: seconds of each way."""
    own, rank = channel(record_as_in_training(pair)), pair.Get_rank()
    here, there = np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    clock = time.perf_counter

    def rounds(count: int) -> tuple[list[float]]:
        laps = []
        pair.Barrier()
        for _ in range(count):
            start = clock()
            came = own.Irecv(there, 1 - rank)
            if rank == 0:
                own.Isend(here, 1 - rank).Wait()
            came.Wait()
            if rank == 1:
                own.Isend(here, 1 - rank).Wait()
            laps.append((clock() - start) / 2)
        return (laps,)

    return rounds


def _measure_rate(comm: Any, pairs: Sequence[tuple[int, int]], seconds: float) -> float:
    """Return the bytes per second from the first ranks of these pairs to the second ones; collective.

    It is the rate of what a long message takes longer than one of a quarter of its length, so that neither latencies nor
    what a line lets pass at once matter. That should be three quarters of the long one's time. Where other programs
    disturb the measurement so much that it is less than half, the rate is that of the long messages alone.
    """
    nbytes = FIRST
    while _send_long(comm, pairs, nbytes) < LONG and nbytes < MOST:
        nbytes *= 2
    until = time.perf_counter() + seconds
    long, short, go_on = [], [], np.ones(1, bool)
    while go_on[0]:
        long.append(_send_long(comm, pairs, nbytes))
        short.append(_send_long(comm, pairs, nbytes // 4))
        whole, quarter = float(np.median(long)), float(np.median(short))
        disturbed = whole - quarter < whole / 2
        enough = len(long) >= (MOST_TIMES if disturbed else LEAST)
        go_on[0] = not enough or (not disturbed and time.perf_counter() < until)
        comm.Bcast(go_on)
    rate = nbytes / whole if disturbed else (nbytes - nbytes // 4) / (whole - quarter)
    return len(pairs) * rate


def _send_long(comm: Any, pairs: Sequence[tuple[int, int]], nbytes: int) -> float:
    """Let the first rank of each pair send to the second; return the seconds until all have arrived; collective."""
    rank, answer = comm.Get_rank(), np.zeros(1, np.uint8)
    message = np.zeros(nbytes, np.uint8)
    comm.Barrier()
    start = time.perf_counter()
    for source, dest in pairs:
        if rank == source:
            comm.Send(message, dest)
            comm.Recv(answer, dest)
        elif rank == dest:
            comm.Recv(message, source)
            comm.Send(answer, source)
    comm.Barrier()
    took = np.array([time.perf_counter() - start])
    comm.Bcast(took)
    return float(took[0])


def network_of(answer: dict[str, Any]) -> Network:
    """Return the network with the figures that `measure_between` has found.

    Of a small message's time, what neither end spends is the latency. The connections of several ranks share a card in
    equal parts, also where one of them alone fills it. Its name is that of the usual network with the nearest rate.

    >>> answer = {"ranks_per_node": 4, "eager_limit": 65000, "send": [[8, 6e-6], [65000, 22e-6]],
    ...           "way": [[8, 45e-6], [65000, 6e-4]], "rate": {"one": 1.17e8, "all": 1.18e8}}
    >>> network_of(answer).latency, network_of(answer).stream
    (3.3e-05, 118000000.0)
    >>> print(network_of(answer))
    1gbe:latency=33us,overhead=6us,bandwidth=118MB/s,copy-bandwidth=4060MB/s,stream=118MB/s,eager-limit=65kB,ranks-per-node=4
    """
    (small, own), (large, longer) = answer["send"]
    one, every = answer["rate"]["one"], answer["rate"]["all"]
    bandwidth, copying = _round(max(one, every)), (longer - own) / (large - small)
    stream = math.inf
    if every > FASTER * one:
        stream = _round(one)
    elif answer["ranks_per_node"] > 1:
        stream = bandwidth
    usual = min(
        (network for name, network in presets().items() if name.endswith("gbe")),
        key=lambda network: abs(math.log(network.bandwidth / bandwidth)),
    )
    return replace(
        usual,
        latency=_round(max(0.0, answer["way"][0][1] - 2 * own)),
        bandwidth=bandwidth,
        overhead=_round(own),
        copy_bandwidth=_round(1 / copying) if copying > 0 else math.inf,
        stream=stream,
        eager_limit=answer["eager_limit"],
        ranks_per_node=answer["ranks_per_node"],
    )


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
