"""What programs take, through the whole kernel, against what they take by hand on a network with round figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline import vmpi
from paceline.machine import Machine
from paceline.vmpi import Curves, Link, Network
from paceline.vmpi.network import Node


def _flat(*points: Any) -> Curves:
    return Curves.of({1: points})


# In a node: up to 100 bytes a message costs 1 to send, 2 to fly, 3 to take. Longer: announced in 4, which fly 5; taken in
# 10, and after 5 more the sender knows. A receive takes 0.25 to post, a look in vain 0.125.
NODE = Machine(
    cores=4,
    eager_limit=100,
    post=0.25,
    poll=0.125,
    link=Link(
        send=_flat([0, 1.0], [100, 1.0], [101, 4.0], [10_000, 4.0]),
        flight=_flat([0, 2.0], [100, 2.0], [101, 5.0], [10_000, 5.0]),
        take=_flat([0, 3.0], [100, 3.0], [101, 10.0], [10_000, 10.0]),
    ),
)
# Between nodes: 1 of either end's own time, 8 on the way, 16 bytes a second; above 64 bytes it is announced.
BETWEEN = Network(latency=8.0, bandwidth=16.0, overhead=1.0, eager_limit=64, node=NODE)
INSIDE = Network(latency=8.0, bandwidth=16.0, overhead=1.0, node=NODE, ranks_per_node=None)


def _clocks(program: Callable[[Any], object], ranks: int, network: Network, **options: Any) -> list[float]:
    return vmpi.run(program, ranks=ranks, network=network, **options).clocks


def _one(nbytes: int, wait: float = 0.0, late: float = 0.0) -> Callable[[Any], object]:
    """Rank 0 sends after `wait`; rank 1 receives after `late`."""

    def program(comm: Any) -> None:
        data = np.zeros(nbytes, np.uint8)
        if comm.rank == 0:
            comm.Compute(wait)
            comm.Send(data, 1)
        else:
            comm.Compute(late)
            comm.Recv(data, 0)

    return program


@pytest.mark.parametrize(
    ("network", "nbytes", "wait", "late", "clocks"),
    [
        # in a node: sent 1, flies 2, is taken in 3, whoever waits for whom
        (INSIDE, 32, 0.0, 0.0, [1.0, 1 + 2 + 3.0]),
        (INSIDE, 32, 7.0, 0.0, [8.0, 7 + 1 + 2 + 3.0]),
        (INSIDE, 32, 0.0, 50.0, [1.0, 50 + 0.25 + 3.0]),
        # announced 4, flies 5; the receiver copies for 10; the sender hears of it after 5
        (INSIDE, 500, 0.0, 0.0, [4 + 5 + 10 + 5.0, 4 + 5 + 10.0]),
        (INSIDE, 500, 0.0, 50.0, [50.25 + 10 + 5, 50.25 + 10]),
        # between nodes: own 1, on the way 8, 32 bytes through the card 2, own 1
        (BETWEEN, 32, 0.0, 0.0, [1.0, 1 + 8 + 2 + 1.0]),
        (BETWEEN, 32, 0.0, 50.0, [1.0, 50.25 + 1]),
        # announced 1 + 8; asked for 1 + 8 + 1; then 8 on the way and 10 through the card; own 1. The sender has done with
        # it when the last byte has left.
        (BETWEEN, 160, 0.0, 0.0, [9 + 10 + 10.0, 9 + 10 + 8 + 10 + 1.0]),
        (BETWEEN, 160, 0.0, 50.0, [50.25 + 10 + 10, 50.25 + 10 + 8 + 10 + 1]),
    ],
)
def test_one_message(network: Network, nbytes: int, wait: float, late: float, clocks: list[float]) -> None:
    assert _clocks(_one(nbytes, wait, late), 2, network) == pytest.approx(clocks, rel=1e-12)


def test_nothing_is_eager_where_all_is_announced() -> None:
    assert _clocks(_one(32), 2, BETWEEN, rendezvous=True) == [9 + 10 + 2.0, 9 + 10 + 8 + 2 + 1.0]


def test_computing_hides_a_message() -> None:
    def program(comm: Any) -> None:
        data = np.zeros(32, np.uint8)
        request = comm.Isend(data, 1) if comm.rank == 0 else comm.Irecv(data, 0)
        comm.Compute(30.0)
        request.Wait()

    # posted 0.25, 30 of computing; the message came at 11 and is taken in 1
    assert _clocks(program, 2, BETWEEN) == [31.0, 31.25]


def test_two_senders_share_the_receivers_card() -> None:
    def program(comm: Any) -> None:
        data = np.zeros(32, np.uint8)
        if comm.rank:
            comm.Send(data, 0)
        else:
            for _ in range(2):
                comm.Recv(data)

    # Both messages are at the card at 9; each needs it for 2. The receiver takes the first one at 11, the second at 13.
    assert _clocks(program, 3, BETWEEN) == [13 + 1.0, 1.0, 1.0]


def test_two_senders_of_a_node_share_its_card() -> None:
    def program(comm: Any) -> None:
        data = np.zeros(64, np.uint8)
        if comm.rank < 2:
            comm.Send(data, comm.rank + 2)
        else:
            comm.Recv(data, comm.rank - 2)

    network = Network(latency=8.0, bandwidth=16.0, overhead=1.0, eager_limit=64, node=NODE, ranks_per_node=2)
    # One leaves at 1, the other at 5, when the card is free again; 8 on the way, 4 through the card, own 1.
    assert sorted(_clocks(program, 4, network)) == [1.0, 1.0, 1 + 8 + 4 + 1.0, 5 + 8 + 4 + 1.0]


def test_both_ways_at_once() -> None:
    def program(comm: Any) -> None:
        mine, theirs = np.zeros(32, np.uint8), np.zeros(32, np.uint8)
        comm.Sendrecv(mine, 1 - comm.rank, recvbuf=theirs, source=1 - comm.rank)

    # posted 0.25, own 1, 8 and 2, own 1: each way has its own half of the cards
    assert _clocks(program, 2, BETWEEN) == [12.25, 12.25]


# A long message is copied in 1 while no other rank copies, in 2 while one does, in 4 while three do; the rest takes none.
NOTHING = _flat([0, 0.0])
COPIED = 1 << 20
SHARED = Network(
    latency=0.0, bandwidth=1.0, ranks_per_node=None,
    node=Node(link=Link(
        send=NOTHING, flight=NOTHING,
        take=Curves.of({number: [[COPIED - 1, 0.0], [COPIED, float(number)]] for number in (1, 2, 4)}),
    )),
)  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 3, 5, 16])
def test_two_ranks_that_exchange_take_as_long_whatever_the_number_of_others(ranks: int) -> None:
    def program(comm: Any) -> None:
        data = np.zeros(COPIED, np.uint8)
        for turn in range(6 if comm.rank < 2 else 0):
            (comm.Send if turn % 2 == comm.rank else comm.Recv)(data, 1 - comm.rank)

    clocks = _clocks(program, ranks, SHARED)
    assert clocks == [1 + 5 * 2.0] * 2 + [0.0] * (ranks - 2)


def test_copies_slow_each_other_down_in_the_order_of_time() -> None:
    def program(comm: Any) -> None:
        data = np.zeros(COPIED, np.uint8)
        if comm.rank % 2:
            for _ in range(3):
                comm.Recv(data, comm.rank - 1)
        else:
            for request in [comm.Isend(data, comm.rank + 1) for _ in range(3)]:
                request.Wait()

    # All are announced at the start. Rank 1 copies first, when nobody else has begun to.
    assert _clocks(program, 4, SHARED)[1::2] == [1 + 2 + 2.0, 2 + 2 + 2.0]


def test_origins_of_puts_copy_into_the_same_memory_at_the_same_time() -> None:
    def program(comm: Any) -> float:
        window = vmpi.MPI.Win.Allocate(COPIED if comm.rank == 0 else 0, comm=comm)
        window.Fence()
        begun = comm.Wtime()
        if comm.rank:
            window.Put(np.zeros(COPIED, np.uint8), 0)
        window.Fence()
        window.Free()
        return comm.Wtime() - begun

    assert vmpi.run(program, ranks=3, network=SHARED).values == [2.0] * 3


# The same over TCP: both ends copy, but in next to no time.
TCP = replace(BETWEEN, copy_bandwidth=1e18)


@pytest.mark.parametrize(
    ("network", "looks", "clocks"),
    [
        # Rank 0 has announced its 160 bytes long before. Rank 1 posts its receive (50.25), announces (51.25, there 59.25)
        # and waits: now it asks (52.25, there 60.25). Rank 0 had asked at 60.25, before its data leave at 61.25, so both
        # pass at once: 10 through the cards, 8 on the way, own 1.
        (TCP, False, [60.25 + 8 + 1 + 10 + 8 + 1, 61.25 + 10 + 8 + 1]),
        # Rank 1 knows of the message when it posts its receive: it asks first (51.25, there 59.25), then announces. The
        # data of rank 0 leave at 60.25, until 70.25, and its own request goes behind them.
        (TCP, True, [70.25 + 8 + 1 + 10 + 8 + 1, 70.25 + 8 + 1 + 10]),
        # If the card reads the memory, requests do not pass the same connection.
        (BETWEEN, True, [60.25 + 8 + 1 + 10 + 8 + 1, 60.25 + 10 + 8 + 1]),
    ],
)
def test_requests_wait_for_data_of_their_connection(
    network: Network, looks: bool, clocks: list[float]
) -> None:
    def program(comm: Any) -> None:
        mine, theirs, other = np.zeros(160, np.uint8), np.zeros(160, np.uint8), 1 - comm.rank
        if comm.rank == 1:
            comm.Compute(50.0)
            assert not looks or comm.Iprobe(0)
        receiving, sending = comm.Irecv(theirs, other), comm.Isend(mine, other)
        receiving.Wait()
        sending.Wait()

    assert _clocks(program, 2, network) == clocks


def test_looking_in_vain() -> None:
    def program(comm: Any) -> Any:
        data = np.zeros(32, np.uint8)
        if comm.rank == 0:
            comm.Send(data, 1)
            return None
        request, looks = comm.Irecv(data, 0), 0
        while not request.Test():
            looks += 1
        return looks

    outcome = vmpi.run(program, ranks=2, network=BETWEEN)
    # Posted until 0.25; looked every 0.125 until the message is there at 11; taken in 1.
    assert outcome.values[1] == (11 - 0.25) / 0.125
    assert outcome.clocks[1] == 12.0


@pytest.mark.parametrize(
    ("call", "seconds"),
    [
        # Dissemination among 4: two rounds of a message and its answer at once, 0.25 + 2 (1 + 0) + 8
        (lambda comm, values: comm.Barrier(), 2 * 10.25),
        # A binomial tree of two rounds: 32 bytes more, 2 more
        (lambda comm, values: comm.Bcast(values), 2 * 12.25),
        (lambda comm, values: comm.Allreduce(values, np.empty_like(values)), 2 * 12.25),
        # Each has 32 bytes: 2 in the first round, 4 in the second
        (lambda comm, values: comm.Allgather(values, np.empty((4, 32), np.uint8)), 12.25 + 14.25),
    ],
)
def test_collectives_leave_together(call: Any, seconds: float) -> None:
    def program(comm: Any) -> None:
        comm.Compute(3.0 * comm.rank)
        call(comm, np.zeros(32, np.uint8))

    assert _clocks(program, 4, BETWEEN) == [9.0 + seconds] * 4


def test_computing_behind_a_collective() -> None:
    def program(comm: Any) -> None:
        total = np.zeros(32, np.uint8)
        request = comm.Iallreduce(np.zeros(32, np.uint8), total)
        comm.Compute(20.0)
        request.Wait()

    assert _clocks(program, 4, replace(BETWEEN, progress="thread")) == [2 * 12.25] * 4
    # Without a thread only the first of its four rounds is done before the ranks call again.
    assert _clocks(program, 4, BETWEEN) == [20.0 + 0.75 * 2 * 12.25] * 4


def test_making_communicators_costs_nothing_but_the_waiting() -> None:
    def program(comm: Any) -> None:
        comm.Compute(comm.rank)
        comm.Dup().Split(comm.rank % 2).Free()

    assert _clocks(program, 4, BETWEEN) == [3.0] * 4


def test_work_costs_what_the_model_of_computing_says() -> None:
    class Slowing:
        def start(self, node: Any, seed: int = 0) -> Slowing:
            return self

        def seconds(self, kind: str, amount: float, rank: int) -> float:
            return {"update": 2.0, "copy": 0.5}[kind] * amount * (rank + 1)

    def program(comm: Any) -> None:
        comm.Work("update", 3)
        comm.Work("copy", 4)

    assert _clocks(program, 2, BETWEEN, compute=Slowing()) == [8.0, 16.0]


def test_bytes_and_messages_are_counted() -> None:
    outcome = vmpi.run(_one(160), ranks=2, network=BETWEEN)
    assert (outcome.messages, outcome.bytes) == (1, 160)
    assert outcome.seconds == max(outcome.clocks)


def test_collectives_and_one_sided_calls_are_counted() -> None:
    def program(comm: Any) -> None:
        from mpi4py import MPI

        window = MPI.Win.Allocate(8, comm=comm)
        window.Fence()
        window.Put(np.ones(1), (comm.rank + 1) % comm.size)
        window.Fence()
        window.Free()
        comm.Barrier()
        comm.allreduce(1)

    outcome = vmpi.run(program, ranks=3)
    assert outcome.messages == outcome.bytes == 0
    assert outcome.collectives >= 2
    assert outcome.one_sided == 3


# ---- collectives of uneven parts

N = 100_000
LONG = 10 * N


def _gatherv(comm: Any, lengths: list[int]) -> None:
    into = [np.empty(sum(lengths), "b"), lengths] if comm.rank == 0 else None
    comm.Gatherv(np.zeros(lengths[comm.rank], "b"), into)


def _scatterv(comm: Any, lengths: list[int]) -> None:
    comm.Scatterv(
        [np.zeros(sum(lengths), "b"), lengths] if comm.rank == 0 else None,
        np.empty(lengths[comm.rank], "b"),
    )


def _allgatherv(comm: Any, lengths: list[int]) -> None:
    comm.Allgatherv(np.zeros(lengths[comm.rank], "b"), [np.empty(sum(lengths), "b"), lengths])


def _alltoallv(comm: Any, lengths: list[int]) -> None:
    """Every rank sends as much to all others as `lengths` says."""
    mine = lengths[comm.rank]
    comm.Alltoallv(
        [np.zeros(mine * comm.size, "b"), [mine] * comm.size], [np.empty(sum(lengths), "b"), lengths]
    )


def _reduce_scatter(comm: Any, lengths: list[int]) -> None:
    comm.Reduce_scatter(np.zeros(sum(lengths), "b"), np.empty(lengths[comm.rank], "b"), lengths)


EQUAL: list[tuple[Callable[..., None], Callable[[Any], None]]] = [
    (_gatherv, lambda comm: comm.Gather(np.zeros(N, "b"), np.empty(N * comm.size, "b") if comm.rank == 0 else None)),
    (_scatterv, lambda comm: comm.Scatter(np.zeros(N * comm.size, "b") if comm.rank == 0 else None, np.empty(N, "b"))),
    (_allgatherv, lambda comm: comm.Allgather(np.zeros(N, "b"), np.empty(N * comm.size, "b"))),
    (_alltoallv, lambda comm: comm.Alltoall(np.zeros(N * comm.size, "b"), np.empty(N * comm.size, "b"))),
    (_reduce_scatter, lambda comm: comm.Reduce_scatter_block(np.zeros(N * comm.size, "b"), np.empty(N, "b"))),
]  # fmt: skip


@pytest.mark.parametrize("network", ["loopback", "10gbe", "10gbe:ranks-per-node=3"])
@pytest.mark.parametrize(("uneven", "equal"), EQUAL, ids=lambda case: getattr(case, "__name__", ""))
def test_parts_of_one_length_cost_as_much_as_equal_ones(
    uneven: Callable[..., None], equal: Callable[[Any], None], network: str
) -> None:
    found = vmpi.run(uneven, [N] * 6, ranks=6, network=network).seconds
    assert found == pytest.approx(vmpi.run(equal, ranks=6, network=network).seconds)


@pytest.mark.parametrize("network", ["10gbe", "10gbe:ranks-per-node=3"])
@pytest.mark.parametrize("call", [_gatherv, _scatterv, _allgatherv, _alltoallv])
@pytest.mark.parametrize("one", [1, 5])
def test_one_long_part_takes_its_bytes_and_not_many_times_more(
    call: Callable[..., None], one: int, network: str
) -> None:
    """The card of the node that sends or receives most must let them pass; at most log2 6 times in a tree."""
    lengths = [0] * 6
    lengths[one] = LONG
    seconds = vmpi.run(call, lengths, ranks=6, network=network).seconds
    per_node = 3 if "node" in network else 1
    copies = 6 - per_node if call is _alltoallv else 1
    rooted = call in (_gatherv, _scatterv) and one < per_node
    least = 0.0 if rooted else copies * LONG / Network.named("10gbe").bandwidth
    assert least <= seconds <= 4 * max(least, LONG / Network.named("10gbe").bandwidth)


def test_everybody_sends_to_one_through_its_card() -> None:
    def program(comm: Any) -> None:
        only = [LONG if rank == 0 else 0 for rank in range(comm.size)]
        comm.Alltoallv(
            [np.zeros(LONG, "b"), only], [np.empty(LONG * 8, "b"), [LONG if comm.rank == 0 else 0] * 8]
        )

    for network, crossing in (("10gbe", 7), ("10gbe:ranks-per-node=4", 4)):
        seconds = vmpi.run(program, ranks=8, network=network).seconds
        assert 1.0 < seconds / (crossing * LONG / Network.named("10gbe").bandwidth) < 1.8


def test_neighbours_exchange_what_leaves_their_node() -> None:
    def program(comm: Any) -> None:
        ring = comm.Create_cart([comm.size], [True])
        ring.Neighbor_alltoall(np.zeros(2 * N, "b"), np.zeros(2 * N, "b"))

    for network, crossing in (("10gbe", 2), ("10gbe:ranks-per-node=4", 2)):
        seconds = vmpi.run(program, ranks=16, network=network).seconds
        assert 1.0 < seconds / (crossing * N / Network.named("10gbe").bandwidth) < 1.8


# ---- groups of ranks that share cards and uplinks


def _in_groups(comm: Any, colour: Callable[[int], int]) -> None:
    group = comm.Split(colour(comm.rank))
    group.Allreduce(np.zeros(LONG, "b"), np.zeros(LONG, "b"))


@pytest.mark.parametrize(
    ("network", "ranks", "colour", "times"),
    [
        # Four groups of one rank on each of four nodes: 2 3/4 n each, all through one card, through two, through four.
        ("10gbe:ranks-per-node=4", 16, lambda rank: rank % 4, 4 * 1.5),
        ("10gbe:ranks-per-node=4,cards=2", 16, lambda rank: rank % 4, 2 * 1.5),
        ("10gbe:ranks-per-node=4,cards=4", 16, lambda rank: rank % 4, 1.5),
        # Groups on different nodes do not meet, nor do those behind different switches.
        ("10gbe", 8, lambda rank: rank // 4, 1.5),
        ("10gbe:nodes-per-switch=4,oversubscription=4", 8, lambda rank: rank // 4, 1.5),
        # Four pairs across an uplink that carries one of them at a time, two, or all four.
        ("10gbe:nodes-per-switch=4,oversubscription=4", 8, lambda rank: rank % 4, 4.0),
        ("10gbe:nodes-per-switch=4,oversubscription=2", 8, lambda rank: rank % 4, 2.0),
        ("10gbe:nodes-per-switch=4", 8, lambda rank: rank % 4, 1.0),
    ],
)
def test_groups_share_cards_and_uplinks(
    network: str, ranks: int, colour: Callable[[int], int], times: float
) -> None:
    seconds = vmpi.run(_in_groups, colour, ranks=ranks, network=network).seconds
    assert 1.0 < seconds / (times * LONG / Network.named("10gbe").bandwidth) < 1.5


# ---- non-blocking collectives behind computing

NUMBERS = 1 << 18


def _behind(comm: Any, seconds: float, tests: int = 0) -> float:
    """Return how long a rank waits for an Iallreduce after it has computed, with some tests in between."""
    request = comm.Iallreduce(np.zeros(NUMBERS, np.float32), np.zeros(NUMBERS, np.float32))
    for _ in range(tests):
        comm.Compute(seconds / (tests + 1))
        request.Test()
    comm.Compute(seconds / (tests + 1))
    before = comm.Wtime()
    request.Wait()
    return float(comm.Wtime() - before)


def test_progress_needs_calls() -> None:
    alone = max(vmpi.run(_behind, 0.0, ranks=4, network="10gbe").values)
    # 4 ranks: four rounds, of which the call that starts it does one.
    waited = vmpi.run(_behind, 1.0, ranks=4, network="10gbe").values
    assert waited == pytest.approx([0.75 * alone] * 4)
    # Each test advances it by another round.
    waited = vmpi.run(_behind, 1.0, 2, ranks=4, network="10gbe").values
    assert waited == pytest.approx([0.25 * alone] * 4)
    assert max(vmpi.run(_behind, 1.0, 3, ranks=4, network="10gbe").values) == pytest.approx(0.0, abs=1e-9)
    assert max(vmpi.run(_behind, 1.0, ranks=4, network="10gbe:progress=thread").values) == 0.0


@pytest.mark.parametrize("last", range(4))
def test_progress_waits_for_the_rank_that_calls_last(last: int) -> None:
    def program(comm: Any) -> float:
        request = comm.Iallreduce(np.zeros(NUMBERS, np.float32), np.zeros(NUMBERS, np.float32))
        comm.Compute(2.0 if comm.Get_rank() == last else 1.0)
        request.Wait()
        return float(comm.Wtime())

    alone = max(vmpi.run(_behind, 0.0, ranks=4, network="10gbe").values)
    assert vmpi.run(program, ranks=4, network="10gbe").values == pytest.approx([2.0 + 0.75 * alone] * 4)


@pytest.mark.parametrize("progress", ["calls", "thread"])
def test_call_that_waits_comes_after_what_is_in_flight(progress: str) -> None:
    def program(comm: Any) -> float:
        request = comm.Iallreduce(np.zeros(NUMBERS, np.float32), np.zeros(NUMBERS, np.float32))
        comm.Barrier()
        after = comm.Wtime()
        request.Wait()
        return float(after)

    alone = max(vmpi.run(_behind, 0.0, ranks=4, network="10gbe").values)
    latest = max(vmpi.run(program, ranks=4, network=f"10gbe:progress={progress}").values)
    assert 0.9 * alone < latest < 1.1 * alone


def test_measured_share_is_hidden() -> None:
    hidden = {"hidden": Curves.of({4: [[1 << 10, 0.0], [1 << 20, 0.4]]})}
    network = replace(Network.named("10gbe"), node=replace(Node.typical(), progress=hidden))
    alone = max(vmpi.run(_behind, 0.0, ranks=4, network="10gbe").values)
    waited = vmpi.run(_behind, 1.0, ranks=4, network=network).values
    assert waited == pytest.approx([0.6 * alone] * 4)


def test_measured_calls_advance_it() -> None:
    """Five calls after the one that starts it; a tenth of it is hidden, so each does 18 % of it."""
    known = {"hidden": Curves.of({4: [[0, 0.1]]}), "calls": Curves.of({4: [[0, 5.0]]})}
    network = replace(Network.named("10gbe"), node=replace(Node.typical(), progress=known))
    alone = max(vmpi.run(_behind, 0.0, ranks=4, network="10gbe").values)
    for tests in (0, 1, 4):
        waited = vmpi.run(_behind, 1.0, tests, ranks=4, network=network).values
        assert waited == pytest.approx([(0.9 - 0.18 * tests) * alone] * 4)
    assert max(vmpi.run(_behind, 1.0, 5, ranks=4, network=network).values) == pytest.approx(0.0, abs=1e-9)


def test_rank_that_ends_without_waiting_lets_others_go_on() -> None:
    def program(comm: Any) -> float:
        request = comm.Iallreduce(np.zeros(NUMBERS, np.float32), np.zeros(NUMBERS, np.float32))
        if comm.Get_rank():
            request.Wait()
        return float(comm.Wtime())

    assert max(vmpi.run(program, ranks=3, network="10gbe", strict=False).values) > 0
