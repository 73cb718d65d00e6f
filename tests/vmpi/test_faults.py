"""Each fault does what it says, by virtual times; ranks that live go on, or one error says what happened."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline.collectives import allreduce
from paceline.comm import revoke
from paceline.errors import UsageError
from paceline.vmpi import Network, run
from paceline.vmpi.constants import ERR_PROC_FAILED, ERR_PROC_FAILED_PENDING, ERR_REVOKED
from paceline.vmpi.errors import Deadlock, MPIError, RankFailed, mpi_error
from paceline.vmpi.faults import (
    cut_link,
    delay,
    fail_at,
    load_faults,
    node,
    pause,
    shuffle,
    slow,
    slow_link,
)

SECOND = Network(name="a second", latency=1.0, bandwidth=math.inf, overhead=0.0)  # and some microseconds


def about(*seconds: float) -> Any:
    return pytest.approx(list(seconds), abs=1e-3)


def relay(comm: Any, when: float = 0.0) -> float:
    """Rank 0 sends to the last rank, which says when it has it."""
    last = comm.size - 1
    if comm.rank == 0:
        comm.Compute(when)
        comm.Send(np.zeros(4), dest=last)
    elif comm.rank == last:
        comm.Recv(np.empty(4), source=0)
    return comm.Wtime()


def arrival(*faults: Any, when: float = 0.0, **more: Any) -> float:
    return run(relay, when, **{"ranks": 2, "network": SECOND, "faults": faults, **more}).values[-1]


# ---- messages


def test_without_faults_a_message_takes_a_second() -> None:
    assert [arrival(), arrival(when=3.0)] == about(1, 4)


def test_a_cut_link_holds_messages_until_it_is_back() -> None:
    cut = cut_link(0, 1, at=2, until=5)
    assert [arrival(cut, when=when) for when in (0.5, 1.5, 3, 6)] == about(1.5, 6, 6, 7)
    assert [
        arrival(cut_link(1, 0, at=2, until=5), when=3),
        arrival(cut_link(0, None, at=2, until=5), when=3),
    ] == about(6, 6)


def test_a_link_between_nodes() -> None:
    def program(comm: Any, dest: int) -> float:
        if comm.rank == 0:
            comm.Send(np.zeros(1), dest)
        elif comm.rank == dest:
            comm.Recv(np.empty(1), source=0)
        return comm.Wtime()

    pairs = Network(name="pairs", latency=1.0, bandwidth=math.inf, overhead=0.0, ranks_per_node=2)
    cut = cut_link(node(0), node(1), until=5)
    ends = [run(program, n, ranks=6, network=pairs, faults=[cut]).seconds for n in range(1, 6)]
    assert ends == about(0, 6, 6, 1, 1)


@pytest.mark.parametrize("rendezvous", [False, True])
def test_what_is_lost_on_a_cut_link_is_named_by_the_deadlock(rendezvous: bool) -> None:
    with pytest.raises(Deadlock) as raised:
        arrival(cut_link(0, 1, at=2), when=3, rendezvous=rendezvous)
    said = str(raised.value)
    assert "the link between rank 0 and rank 1 was cut 2000 ms after the start and never restored" in said
    assert "32 bytes with tag 0 from Send of rank 0 at vmpi/test_faults.py" in said
    assert ("2 of 2 ranks are waiting" if rendezvous else "1 of 2 ranks is waiting") in said


def test_data_that_were_announced_before_the_cut_are_held_too() -> None:
    # announced at 0, there at 1, asked for until 2, there at 3
    assert [arrival(rendezvous=True), arrival(cut_link(0, 1, at=1.5, until=9), rendezvous=True)] == about(
        3, 11
    )
    with pytest.raises(Deadlock, match="lost on it"):
        arrival(cut_link(0, 1, at=1.5), rendezvous=True)


def test_messages_of_a_pair_stay_in_order_when_the_first_is_late() -> None:
    def program(comm: Any) -> Any:
        got = [np.empty(1), np.empty(1)]
        if comm.rank == 0:
            comm.Send(np.array([1.0]), dest=1)
            comm.Compute(2.0)
            comm.Send(np.array([2.0]), dest=1)
            return None
        comm.Recv(got[0])
        comm.Recv(got[1])
        return float(got[0][0]), float(got[1][0]), comm.Wtime()

    assert run(program, ranks=2, network=SECOND, faults=[delay(by=5, until=1)]).values[1] == about(1, 2, 6)


def test_delays_are_for_those_that_match() -> None:
    late = delay(source=0, by=2, at=1, until=4)
    assert [arrival(late, when=when) for when in (0.5, 1, 3.9, 4)] == about(1.5, 4, 6.9, 5)
    assert [
        arrival(delay(source=1, by=2)),
        arrival(delay(dest=1, by=2)),
        arrival(delay(dest=0, by=2)),
    ] == about(1, 3, 1)
    assert arrival(delay(by=2), delay(by=3)) == pytest.approx(6, abs=1e-3)


def test_a_slow_link() -> None:
    later = slow_link(0, 1, by=2, at=1)
    assert [arrival(slow_link(1, 0, by=10)), arrival(later), arrival(later, when=1)] == about(10, 1, 3)


def test_collectives_of_mpi_feel_the_links_between_their_members() -> None:
    def program(comm: Any, apart: bool) -> float:
        part = comm.Split(comm.rank // 2 if apart else 0)
        part.Allreduce(np.ones(1), np.empty(1))
        return comm.Wtime()

    def ends(*faults: Any, apart: bool = False) -> Any:
        return run(program, apart, ranks=4, network="10gbe", faults=faults).values

    assert ends(cut_link(0, 2, until=5)) == about(5, 5, 5, 5)
    assert ends(cut_link(0, 2, until=5), apart=True) == about(0, 0, 0, 0)
    assert ends(delay(source=3, by=1), apart=True) == about(0, 0, 1, 1)
    for rank in range(4):  # each of them receives something
        assert ends(delay(dest=rank, by=1)) == about(1, 1, 1, 1)
    assert ends(delay(source=3, dest=3, by=1)) == about(0, 0, 0, 0)
    with pytest.raises(Deadlock, match=r"rank 0 and rank 2 was cut .*\n  Allreduce of 4 ranks"):
        ends(cut_link(0, 2))


# ---- ranks that are slow


def compute(comm: Any, *pieces: float) -> list[float]:
    ends = []
    for seconds in pieces:
        comm.Compute(seconds)
        ends.append(comm.Wtime())
    return ends


def test_a_slow_rank_takes_longer_from_when_to_when() -> None:
    def ends(fault: Any) -> Any:
        outcome = run(compute, 1.0, 1.0, 2.0, ranks=2, faults=[fault])
        assert outcome.values[0] == [1, 2, 4]
        return outcome.values[1]

    assert ends(slow(rank=1, by=4)) == [4, 8, 16]
    assert ends(slow(rank=1, by=4, at=1)) == [1, 5, 13]
    assert ends(slow(rank=1, by=4, at=0.5, until=3)) == [2.5, 3.875, 5.875]


def test_a_pause_stops_computing_and_waiting() -> None:
    assert run(compute, 1.0, 1.0, ranks=1, faults=[pause(rank=0, at=0.5, seconds=10)]).values == [[11, 12]]
    stopped = [arrival(pause(rank=1, at=at, seconds=3)) for at in (0.5, 2)]
    assert stopped == about(3.5, 1)


def test_slow_ranks_and_pauses_add_up() -> None:
    faults = [
        slow(rank=0, by=2, at=1, until=3),
        pause(rank=0, at=2, seconds=5),
        slow(rank=0, by=2, at=0, until=9),
    ]
    # a half by 1, a quarter of what is left by 2, nothing until 7, then at half speed
    assert run(compute, 1.0, ranks=1, faults=faults).values == [[7.5]]


def test_shuffle_is_another_schedule_for_every_seed() -> None:
    def ends(seed: int) -> Any:
        outcome = run(relay, 1.0, ranks=2, network=SECOND, seed=seed, faults=[shuffle(most=3, work=2)])
        return outcome.values

    found = [ends(seed) for seed in range(20)]
    assert found == [ends(seed) for seed in range(20)]
    sent, got = zip(*found, strict=True)
    assert len(set(got)) == 20
    assert all(1 <= time <= 3.1 for time in sent)
    assert max(sent) - min(sent) > 1
    flights = [b - a for a, b in found]
    assert all(1 <= time <= 4.1 for time in flights)
    assert max(flights) - min(flights) > 1.5


# ---- ranks that die


def test_a_rank_dies_at_its_time_whatever_it_does() -> None:
    def program(comm: Any) -> str:
        if comm.rank == 1:
            comm.Compute(100.0)
        if comm.rank == 2:
            comm.Recv(np.empty(1), source=3)
        if comm.rank == 3:
            comm.Compute(3.0)
        return "alive"

    faults = [fail_at(rank=rank, time=7.5) for rank in (1, 2, 3)]
    outcome = run(program, ranks=4, faults=faults)
    assert outcome.values == ["alive", None, None, "alive"]
    assert outcome.killed == {1: 7.5, 2: 7.5}
    assert outcome.clocks == about(0, 7.5, 7.5, 3)


def test_the_dead_do_nothing_in_what_their_program_has_for_the_end() -> None:
    def program(comm: Any) -> Any:
        if comm.rank == 0:
            return [comm.Iprobe(source=1), comm.Compute(9.0), comm.Iprobe(source=1)]
        try:
            comm.Compute(2.0)
        finally:
            comm.Send(np.zeros(1), dest=0)
        return None

    with pytest.raises(RankFailed, match="noticed in Probe"):
        run(program, ranks=2, faults=[fail_at(rank=1, time=1)])


def test_what_was_sent_before_the_death_is_received() -> None:
    def program(comm: Any) -> Any:
        got = np.zeros(1)
        if comm.rank == 0:
            comm.Compute(5.0)
            comm.Recv(got, source=1)
            return float(got[0])
        comm.Send(np.array([4.0]), dest=0)
        comm.Compute(9.0)
        return None

    assert run(program, ranks=2, faults=[fail_at(rank=1, time=2)]).values == [4.0, None]


CALLS: dict[str, Any] = {
    "Recv": lambda comm, x: comm.Recv(x, source=1),
    "Irecv": lambda comm, x: comm.Irecv(x, source=1).Wait(),
    "Ssend": lambda comm, x: comm.Ssend(x, dest=1),
    "Probe": lambda comm, x: comm.Probe(source=1),
    "Barrier": lambda comm, x: comm.Barrier(),
    "Allreduce": lambda comm, x: comm.Allreduce(x, np.empty_like(x)),
    "Dup": lambda comm, x: comm.Dup(),
    "Iallreduce": lambda comm, x: comm.Iallreduce(x, np.empty_like(x)).Wait(),
    "Recv (any)": lambda comm, x: comm.Recv(x),
    "Probe (any)": lambda comm, x: comm.Probe(),
    "Sendrecv (recv)": lambda comm, x: comm.Sendrecv(x.copy(), dest=0, recvbuf=x, source=1, sendtag=9),
}


@pytest.mark.parametrize("wait", [0.0, 4.0], ids=["waiting", "later"])
@pytest.mark.parametrize("call", CALLS)
def test_who_waits_for_a_dead_rank_is_told(call: str, wait: float) -> None:
    def program(comm: Any) -> Any:
        x = np.full(2, 5.0)
        if comm.rank == 1:
            comm.Compute(10.0)
        comm.Compute(wait)
        with pytest.raises(MPIError) as raised:
            CALLS[call](comm, x)
        assert raised.value.Get_error_class() == ERR_PROC_FAILED
        assert x.tolist() == [5, 5]
        name = call.partition(" (any")[0]
        assert "rank 1 was killed 1000 ms after the start" in str(raised.value)
        assert f"rank 0 noticed in {name} at vmpi/test_faults.py" in str(raised.value)
        return comm.Wtime()

    outcome = run(program, ranks=2, faults=[fail_at(rank=1, time=1, detected=0.25)])
    assert outcome.values[:1] == about(1.25 if not wait else 4)


@pytest.mark.parametrize("call", ["Recv", "Probe"])
def test_who_waits_for_a_dead_rank_of_another_group_is_told(call: str) -> None:
    """A rank of another group is not the member of the own group with the same number."""

    def program(comm: Any) -> Any:
        here = comm.Split(comm.rank % 2)
        between = here.Create_intercomm(0, comm, 1 - comm.rank % 2)
        if comm.rank % 2:
            comm.Compute(1.0)
            between.Send(np.full(1, comm.rank), dest=0)
        elif comm.rank == 0:
            found, message = [], np.zeros(1, int)
            for source in (0, 1):  # ranks 1 and 3
                try:
                    getattr(between, call)(*[message][: call == "Recv"], source=source)
                    found.append(source)
                except MPIError as error:
                    found.append(str(error).partition(" was")[0])
            return found
        else:
            comm.Compute(9.0)
        return None

    for dead, found in ((2, [0, 1]), (3, [0, "MPI_ERR_PROC_FAILED: rank 3"])):
        outcome = run(program, ranks=4, faults=[fail_at(rank=dead, time=0.5)])
        assert outcome.values[0] == found


ACCESSES: dict[str, Any] = {
    "Put": lambda window, x: window.Put(x, 1),
    "Get": lambda window, x: window.Get(x, 1),
    "Accumulate": lambda window, x: window.Accumulate(x, 1),
    "Compare_and_swap": lambda window, x: window.Compare_and_swap(x, x, x.copy(), 1),
}


@pytest.mark.parametrize("call", ACCESSES)
def test_who_accesses_the_memory_of_a_dead_rank_is_told(call: str) -> None:
    """It lives on, and is told as soon as the death is known."""

    def program(comm: Any) -> Any:
        from mpi4py import MPI

        window = MPI.Win.Allocate(8, 8, comm=comm)
        window.Lock_all()
        comm.Compute(9.0 if comm.rank else 1.0)
        with pytest.raises(MPIError, match=f"PROC_FAILED: rank 1 was killed 500 ms .* noticed in {call}"):
            ACCESSES[call](window, np.ones(1))
        return comm.Wtime()

    outcome = run(program, ranks=2, network="10gbe", faults=[fail_at(rank=1, time=0.5, detected=2)])
    assert outcome.values[:1] == about(2.5)


@pytest.mark.parametrize("end", ["Fence", "Flush", "Complete"])
def test_one_sided_message_that_is_lost_on_a_cut_link_is_named_by_the_deadlock(end: str) -> None:
    def program(comm: Any) -> None:
        from mpi4py import MPI

        window = MPI.Win.Allocate(8, 8, comm=comm)
        others = comm.Get_group().Excl([comm.rank])
        begin: dict[str, Any] = {"Fence": window.Fence, "Flush": window.Lock_all, "Complete": lambda: None}
        begin[end]()
        if end == "Complete":
            window.Post(others)
            window.Start(others)
        comm.Compute(1.0)
        if comm.rank == 0:
            window.Put(np.ones(1), 1)
        {"Fence": window.Fence, "Flush": window.Flush_all, "Complete": window.Complete}[end]()
        memory = np.frombuffer(window.tomemory())
        assert memory[0] == 0
        comm.Barrier()

    with pytest.raises(Deadlock) as raised:
        run(program, ranks=2, network="10gbe", faults=[cut_link(0, 1, at=0.5)])
    assert "rank 0 is waiting in Win.Flush at" in str(raised.value)
    lost = str(raised.value).partition("the link between rank 0 and rank 1 was cut 500 ms after the start")[2]
    assert "and never restored; lost on it:\n" in lost
    assert "\n  a one-sided message of 8 bytes" in lost


def test_a_death_after_a_communicator_was_freed() -> None:
    def program(comm: Any) -> float:
        part = comm.Dup()
        x = np.zeros(1)
        part.Sendrecv(x.copy(), (comm.rank + 1) % comm.size, recvbuf=x, source=(comm.rank - 1) % comm.size)
        part.Free()
        del part
        comm.Compute(1.0 if comm.rank else 9.0)
        if comm.rank:
            with pytest.raises(MPIError, match="PROC_FAILED: rank 0"):
                comm.Barrier()
        return float(comm.Wtime())

    outcome = run(program, ranks=3, faults=[fail_at(rank=0, time=2)])
    assert outcome.values[1:] == about(2, 2)


@pytest.mark.parametrize("strict", [True, False])
def test_data_of_the_dead_never_come(strict: bool) -> None:
    def program(comm: Any) -> Any:
        if comm.rank == 1:
            comm.Ssend(np.zeros(1), dest=0)
        comm.Compute(4.0)
        into = np.ones(1)
        with pytest.raises(MPIError, match="PROC_FAILED: rank 1"):
            comm.Recv(into, source=1)
        assert into[0] == 1
        return comm.Wtime()

    outcome = run(program, ranks=2, faults=[fail_at(rank=1, time=2)], strict=strict)
    assert outcome.values[:1] == about(4)


def test_a_receive_from_anybody_waits_on_once_the_death_is_acknowledged() -> None:
    def program(comm: Any) -> Any:
        got = np.zeros(1)
        if comm.rank == 1:
            comm.Compute(9.0)
        if comm.rank == 2:
            comm.Compute(5.0)
            comm.Send(np.array([7.0]), dest=0)
        if comm.rank == 0:
            receiving = comm.Irecv(got)
            classes = []
            for _ in range(2):  # as often as it is asked
                with pytest.raises(MPIError) as raised:
                    receiving.Wait()
                classes.append(raised.value.Get_error_class())
            assert classes == [ERR_PROC_FAILED_PENDING] * 2
            failed = comm.Get_failed()
            assert failed.Translate_ranks([0], comm.Get_group()) == [1]
            assert comm.Ack_failed() == 1
            at = comm.Wtime()
            receiving.Wait()
            comm.Isend(got, dest=0).Wait()
            comm.Recv(got)
            return float(got[0]), at, comm.Wtime()
        return None

    assert run(program, ranks=3, faults=[fail_at(rank=1, time=1)]).values[0] == about(7, 1.001, 5)


def test_a_message_that_comes_meanwhile_is_received() -> None:
    def program(comm: Any) -> Any:
        got = np.zeros(1)
        if comm.rank == 0:
            receiving = comm.Irecv(got)
            comm.Compute(8.0)  # the death is heard of before the message comes
            receiving.Wait()
            return float(got[0])
        comm.Compute(5.0)
        comm.Send(np.array([7.0]), dest=0)
        return None

    faults = [fail_at(rank=1, time=1)]
    assert run(program, ranks=3, faults=faults).values[0] == 7
    assert run(program, ranks=3, faults=faults, rendezvous=True).values[0] == 7


# ---- going on


def ring_sum(x: np.ndarray, comm: Any) -> np.ndarray:
    total, out, into = x.copy(), x.copy(), np.empty_like(x)
    for _ in range(comm.size - 1):
        receiving = comm.Irecv(into, (comm.rank - 1) % comm.size)
        sending = comm.Isend(out, (comm.rank + 1) % comm.size)
        receiving.Wait()
        sending.Wait()
        total += into
        out[...] = into
    return total


def own_sum(x: np.ndarray, comm: Any) -> np.ndarray:
    total = np.empty_like(x)
    comm.Allreduce(x, total)
    return total


def by(algorithm: str) -> Any:
    def add_up(x: np.ndarray, comm: Any) -> np.ndarray:
        total = np.empty_like(x)
        allreduce(x, total, comm, algorithm=algorithm)
        return total

    return add_up


def survive(world: Any, steps: int, add_up: Any) -> Any:
    """Sum over all ranks at each step, over the survivors once some are dead."""
    comm, sums, told = world, [], []
    for _ in range(steps):
        world.Step()
        world.Compute(0.1)
        while True:
            mine, flag = np.full(20, 10.0**world.rank), 1
            try:
                total = add_up(mine, comm)
            except MPIError as error:
                told.append(error.Get_error_class())
                revoke(comm)
                flag = 0
            comm.Ack_failed()
            try:
                agreed = comm.Agree(flag)
            except MPIError:
                agreed = 0
            if agreed:
                break
            assert comm.Is_revoked() or flag
            comm = comm.Shrink()
        sums.append(int(total[0]))
    return sums, comm.size, set(told)


NETWORKS = ["loopback", "10gbe", "1gbe:ranks-per-node=2"]
WAYS = {
    "a ring of its own": (ring_sum, NETWORKS),
    "MPI's": (own_sum, NETWORKS),
    **{name: (by(name), NETWORKS) for name in ("naive", "ring", "rabenseifner", "hierarchical", "auto")},
    "shared-memory": (by("shared-memory"), NETWORKS[:1]),
}


@pytest.mark.parametrize("rendezvous", [False, True], ids=["eager", "rendezvous"])
@pytest.mark.parametrize(
    ("way", "network"), [(way, network) for way, (_, networks) in WAYS.items() for network in networks]
)
def test_recovery_goes_on_with_the_sum_over_the_survivors(way: str, network: str, rendezvous: bool) -> None:
    add_up = WAYS[way][0]
    faults = [fail_at(rank=2, step=3), fail_at(rank=0, time=0.75), shuffle(most=1e-4, work=0.2)]
    for seed in range(3):
        outcome = run(
            survive, 12, add_up, ranks=5, network=network, rendezvous=rendezvous, faults=faults, seed=seed
        )
        assert list(outcome.killed) == [2, 0]
        alive = [value for value in outcome.values if value is not None]
        sums = alive[0][0]
        assert [value[:2] for value in alive] == [(sums, 3)] * 3, seed
        assert sums[:3] == [11111] * 3
        assert sums[3] == 11011
        assert sums[-1] == 11010
        assert all(told <= {ERR_PROC_FAILED, ERR_REVOKED} for _, _, told in alive)
        assert any(ERR_PROC_FAILED in told for _, _, told in alive)


def test_a_revoked_communicator_is_of_no_use_any_more() -> None:
    def program(comm: Any) -> Any:
        part = comm.Dup()
        x = np.zeros(1)
        classes = []
        if comm.rank == 0:
            comm.Compute(2.0)
            part.Revoke()
        calls = (
            lambda: part.Recv(x, source=1 - comm.rank),
            lambda: part.Send(x, dest=1 - comm.rank),
            lambda: part.Probe(),
            lambda: part.Barrier(),
        )
        for call in calls:
            with pytest.raises(MPIError) as raised:
                call()
            classes.append(raised.value.Get_error_class())
        assert part.Is_revoked()
        assert not comm.Is_revoked()
        assert part.Get_failed().Get_size() == 0
        part.Free()
        comm.Barrier()
        return classes, comm.Wtime()

    for classes, time in run(program, ranks=2).values:
        assert classes == [ERR_REVOKED] * 4
        assert [time] == about(2)


def test_a_sender_that_waits_is_told_of_the_revocation() -> None:
    def program(comm: Any) -> Any:
        if comm.rank == 0:
            comm.Compute(2.0)
            comm.Revoke()
        elif comm.rank == 1:
            with pytest.raises(MPIError, match="ERR_REVOKED"):
                comm.Ssend(np.zeros(1), dest=0)
        else:
            comm.Compute(3.0)
            with pytest.raises(MPIError, match="ERR_REVOKED"):
                comm.Ssend(np.zeros(1), dest=0)
        return comm.Wtime()

    assert run(program, ranks=3, network="1gbe").values == about(2, 2, 3)


def test_agreement_is_bitwise_and_says_so_where_a_death_was_not_acknowledged() -> None:
    def program(comm: Any) -> Any:
        assert comm.Agree(0b111 - comm.rank) == (0b111 & 0b110 & 0b101)
        comm.Compute(2.0)
        with pytest.raises(MPIError, match=r"ERR_PROC_FAILED: rank 1 .* noticed in Agree"):
            comm.Agree(1)
        comm.Get_failed()
        comm.Ack_failed()
        return comm.Agree(6 + comm.rank)

    assert run(program, ranks=3, faults=[fail_at(rank=1, time=1)]).values == [
        0b110 & 0b1000,
        None,
        0b110 & 0b1000,
    ]


def test_without_recovery_there_is_one_error_that_says_it() -> None:
    def program(comm: Any) -> None:
        for _ in range(10):
            comm.Step()
            comm.Compute(0.5)
            own_sum(np.ones(1), comm)

    with pytest.raises(RankFailed) as raised:
        run(program, ranks=4, faults=[fail_at(rank=3, step=4)])
    said = str(raised.value)
    assert "\n" not in said
    assert "MPI_ERR_PROC_FAILED: rank 3 was killed 2000." in said
    assert "in its step 4; rank " in said
    assert "noticed in Allreduce at vmpi/test_faults.py" in said


def test_a_death_that_nobody_notices_is_in_the_outcome() -> None:
    outcome = run(compute, 2.0, ranks=2, faults=[fail_at(rank=1, time=1)])
    assert outcome.values == [[2.0], None]
    assert outcome.killed == {1: 1.0}


def test_who_waits_for_somebody_who_gave_up_is_a_deadlock_that_names_the_dead() -> None:
    def program(comm: Any) -> None:
        x = np.zeros(1)
        if comm.rank == 1:
            with pytest.raises(MPIError):
                comm.Recv(x, source=2)
        elif comm.rank == 0:
            comm.Recv(x, source=1)
        else:
            comm.Compute(5.0)

    with pytest.raises(Deadlock, match=r"1 of 3 ranks is waiting.*killed earlier: rank 2"):
        run(program, ranks=3, faults=[fail_at(rank=2, time=1)])


def test_the_real_mpi4py_catches_it_where_a_program_has_imported_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class RealError(RuntimeError):  # as mpi4py's: made from a number and nothing else
        def __new__(cls, number: int) -> RealError:
            return super().__new__(cls, int(number))

    module = SimpleNamespace(Exception=RealError, Get_library_version=str, ERR_PROC_FAILED=99)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", module)  # type: ignore[arg-type]
    with pytest.raises(RealError, match="MPI_ERR_PROC_FAILED: rank 1 was killed") as raised:
        raise mpi_error("ERR_PROC_FAILED", "rank 1 was killed")
    assert isinstance(raised.value, MPIError)
    assert raised.value.Get_error_class() == raised.value.Get_error_code() == int(raised.value) == 99


# ---- scripts


def test_a_script_of_faults(tmp_path: Any) -> None:
    path = tmp_path / "faults.py"
    path.write_text(
        "fail_at(rank=3, step=100)\nfor r in range(2):\n    slow(rank=r, by=r + 2)\ncut_link(node(0), 5, until=2)\n"
    )
    assert load_faults(path) == [
        fail_at(rank=3, step=100),
        slow(rank=0, by=2),
        slow(rank=1, by=3),
        cut_link(node(0), 5, until=2),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("slow(rank=1, by=2)\nfail_at(rank=1)", "line 2: fail_at needs either a step or a time; got step=None, time=None"),
        ("slow_link(2, 2, by=3)", "line 1: slow_link needs two ranks or nodes; got rank 2 twice"),
        ("slow(rank=1, by=0.5)", "line 1: by of slow must be a number of at least 1; got 0.5"),
        ("\n\nfail_it(rank=1)", "line 3: name 'fail_it' is not defined; choose one of fail_at, cut_link, "),
        ("fail_at(3, step=1", "line 1: '(' was never closed"),
        ("fail_at(3, step=1)", "line 1: fail_at() takes 0 positional arguments but 1 positional argument"),
        ("def f():\n    pause(rank=1, at=-1, seconds=1)\nf()", "line 2: at of pause must be a number of at least 0"),
        ("cut_link(0, 1, at=3, until=2)", "line 1: until of cut_link must come after at=3; got 2"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_script_is_said_in_one_line(tmp_path: Any, text: str, said: str) -> None:
    path = tmp_path / "faults.py"
    path.write_text(text)
    with pytest.raises(UsageError) as raised:
        load_faults(path)
    assert f"{path}, {said}" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_script_that_is_not_there(tmp_path: Any) -> None:
    with pytest.raises(UsageError) as raised:
        load_faults(tmp_path / "none.py")
    assert str(raised.value) == f"cannot read {tmp_path}/none.py: no such file or directory"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (fail_at(rank=4, time=1), "fail_at: there is no rank 4; the ranks are 0 to 3"),
        (slow(rank=9, by=2), "slow: there is no rank 9; the ranks are 0 to 3"),
        (cut_link(0, node(3)), "cut_link: there is no node 3; the nodes are 0 to 1"),
    ],
)
def test_faults_of_ranks_that_are_not_there(fault: Any, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        run(relay, ranks=4, network="10gbe:ranks-per-node=2", faults=[fault])
    assert str(raised.value) == said
