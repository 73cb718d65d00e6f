"""Collectives that are evaluated for all ranks at once take the same virtual time as their messages, bit for bit."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import paceline
from paceline import vmpi
from paceline.collectives import allreduce
from paceline.simulate.training import Simulation
from paceline.vmpi import program, rounds
from paceline.vmpi.compute import Compute
from paceline.vmpi.faults import slow

COMPUTE = Compute(work={"combine": 1e-10, "recombine": 3e-10}, slow={1: 2.5})


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that gets True for every collective that is evaluated, and False for every one that is not."""
    found: list[bool] = []
    finish = rounds._finish

    def note(kernel: Any, gathering: Any, *given: Any) -> None:
        finish(kernel, gathering, *given)
        found.append(not gathering.by_messages)

    monkeypatch.setattr(rounds, "_finish", note)
    return found


def by_messages(*given: Any, **named: Any) -> vmpi.Outcome:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "can_evaluate", lambda kernel: False)
        return vmpi.run(*given, **named)


def sums(
    comm: Any, algorithm: str, count: int, dtype: str, skew: float, in_place: bool, neighbours: bool
) -> Any:
    """Return what several allreduces give, after computing for random times, with messages to the neighbour between."""
    rank, size = comm.Get_rank(), comm.Get_size()
    draw, found = random.Random(1000 * count + rank), []
    for step in range(4):
        comm.Compute(skew * draw.random() * (draw.random() < 0.7))
        values = np.array([draw.gauss(0, 100) for _ in range(count)]).astype(dtype)
        total = values if in_place else np.empty_like(values)
        if neighbours and step % 2:
            theirs = np.empty(50)
            receiving = comm.Irecv(theirs, (rank - 1) % size)
            sending = comm.Isend(np.full(50, rank, float), (rank + 1) % size)
            if step > 2:
                allreduce(values.copy(), values.copy(), comm, algorithm=algorithm)
            receiving.Wait()
            sending.Wait()
        allreduce(values, total, comm, algorithm=algorithm)
        found.append(total.tobytes())
        if step == 2:
            comm.Barrier()
    return found


NETWORKS = (
    "loopback", "10gbe", "10gbe:eager-limit=0", "infiniband:eager-limit=0", "infiniband", "10gbe:ranks-per-node=2", "25gbe",
)  # fmt: skip


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("algorithm", ["ring", "recursive-doubling", "rabenseifner"])
def test_times_and_results_are_those_of_the_messages(algorithm: str, network: str, ends: list[bool]) -> None:
    draw = random.Random(f"{algorithm} {network}")
    for _ in range(6):
        neighbours = draw.random() < 0.3
        given = (
            algorithm, draw.choice([1, 17, 100, 1000, 3000]), draw.choice(["f4", "f8", "i4"]),
            draw.choice([0, 1e-7, 1e-6, 1e-5, 1e-4, 1e-2]), draw.random() < 0.5, neighbours,
        )  # fmt: skip
        settings = {
            "ranks": draw.choice([3, 4, 6, 7, 8, 13]), "network": network, "strict": False,
            "compute": draw.choice([None, COMPUTE]), "rendezvous": draw.random() < 0.2,
            "collectives_only": not neighbours and draw.random() < 0.7, "seed": draw.randrange(2),
        }  # fmt: skip
        evaluated, sent = vmpi.run(sums, *given, **settings), by_messages(sums, *given, **settings)
        assert evaluated == sent, (given, settings)
    assert any(ends) == (network not in ("10gbe:ranks-per-node=2", "25gbe"))


def test_short_messages_may_pass_before_the_long_ones_of_earlier_rounds(ends: list[bool]) -> None:
    """Ranks that begin early send their short messages while their partners still wait for long ones of slow ranks."""
    given = ("rabenseifner", 20011, "f4", 1e-2, True, False)
    settings = {"ranks": 16, "network": "infiniband", "strict": False, "collectives_only": True}
    evaluated, sent = vmpi.run(sums, *given, **settings), by_messages(sums, *given, **settings)
    assert evaluated == sent
    assert ends == [True] * 4


def test_rank_that_a_fault_makes_slow_is_slow_in_a_collective() -> None:
    def ring(comm: Any) -> float:
        values = np.ones(2000)
        allreduce(values, values, comm, algorithm="ring")
        return float(comm.Wtime())

    def time(**settings: Any) -> list[float]:
        work = {"combine": 1e-6}  # seconds of a byte, so that 3 sums of 4,000 bytes in a row take 12 ms
        found = vmpi.run(
            ring, ranks=4, compute=Compute(work=work, **settings.pop("more", {})), strict=False, **settings
        )
        return found.values  # type: ignore[no-any-return]

    assert max(time()) == pytest.approx(12e-3, rel=0.01)
    slowed = time(faults=[slow(rank=1, by=4)])
    assert slowed == time(more={"slow": {1: 4.0}})
    assert max(slowed) > 40e-3


def test_another_message_ends_the_evaluation(ends: list[bool]) -> None:
    """A rank that is held in a collective goes on when another rank, which has not called it, needs its answer."""

    def ask(comm: Any) -> list[float]:
        values, answer = np.full(4, comm.Get_rank(), float), np.zeros(1 << 14)
        receiving = comm.Irecv(answer, 0) if comm.Get_rank() == 1 else None
        if comm.Get_rank() == 0:
            comm.Compute(1e-3)
            comm.Ssend(np.ones(1 << 14), 1)  # taken by rank 1 while it waits in the allreduce
        allreduce(values, values, comm, algorithm="recursive-doubling")
        if receiving is not None:
            receiving.Wait()
        return [*values.tolist(), float(answer.sum())]

    for network in ("loopback", "infiniband"):
        settings = {"ranks": 8, "network": network, "strict": False}
        assert vmpi.run(ask, **settings) == by_messages(ask, **settings)
    assert not ends


def test_a_rank_that_never_calls_leaves_the_others_in_a_deadlock() -> None:
    def leave(comm: Any) -> None:
        values = np.ones(8)
        for _ in range(1 if comm.Get_rank() == 3 else 2):
            allreduce(values, values, comm, algorithm="ring")

    with pytest.raises(vmpi.errors.Deadlock, match="Irecv from rank 3"):
        vmpi.run(leave, ranks=5, strict=False)


def test_ranks_that_disagree_send_their_messages() -> None:
    def disagree(comm: Any) -> None:
        values = np.ones(8 + (comm.Get_rank() == 2))
        allreduce(values, values, comm, algorithm="recursive-doubling")

    with pytest.raises(vmpi.errors.RankFailed, match="message truncated"):
        vmpi.run(disagree, ranks=4, strict=False)


@pytest.mark.parametrize(
    "strategy",
    ["sync:allreduce=recursive-doubling", "local-sgd:allreduce=ring", "local-sgd:allreduce=rabenseifner"],
)
def test_training_takes_the_same_time(strategy: str, ends: list[bool], machine: str) -> None:
    def train() -> Any:
        return paceline.fit(
            "mlp:32", "iris", strategy=strategy, on="sim", ranks=12, network="infiniband:eager-limit=0", jitter=0.3,
            machine=machine, compute=False, epochs=2, batch=8, runs=None, quiet=True,
        ).summary()  # fmt: skip

    as_one = train()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Simulation, "_find_groups", lambda self: [])
        found = train()
        assert ends
        assert all(ends)
        patch.setattr(program, "can_evaluate", lambda kernel: False)
        assert repr(train()) == repr(found) == repr(as_one)
