"""mpi4py is the judge: random programs receive on simulated ranks what they receive under a real mpiexec."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import vmpi
from tests.ranks import on_ranks
from tests.vmpi.players import ENDS, play
from tests.vmpi.programs import program

NETWORKS = ["loopback", "1gbe", "infiniband:ranks-per-node=2", "10gbe:ranks-per-node=2,jitter=0.5"]


def _differences(found: list[list[Any]], expected: list[list[Any]], seeds: list[int], p: int) -> list[str]:
    """Where rank, program and round differ, with what the round is."""
    return [
        f"seed {seed}, round {number} of rank {rank}: {mine} where {theirs} was expected, in {drawn}"
        for rank, (every, right) in enumerate(zip(found, expected, strict=True))
        for seed, ours, judged in zip(seeds, every, right, strict=True)
        for number, (mine, theirs, drawn) in enumerate(zip(ours, judged, program(seed, p), strict=True))
        if mine != theirs
    ]


@pytest.mark.mpi
@pytest.mark.parametrize(("p", "programs"), [(2, 16), (3, 16), (5, 12)])
def test_as_under_mpiexec(p: int, programs: int) -> None:
    seeds = list(range(programs))
    expected = on_ranks("tests.vmpi.players:play", p, seeds=seeds)
    for number, network in enumerate(NETWORKS):
        found = vmpi.run(_play, seeds, ranks=p, network=network, seed=number, rendezvous=number == 1).values
        assert _differences(found, expected, seeds, p) == []


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["Waitall", "Waitsome", "Testall", "Testsome"])
def test_an_error_of_several_requests_says_which_of_them_failed(name: str) -> None:
    for notes in (
        *on_ranks("tests.vmpi.test_oracle:truncated", 2, name=name),
        *vmpi.run(truncated, name, ranks=2).values,
    ):
        assert notes.startswith("statuses: [")
        assert "truncate" in notes.lower()


def truncated(comm: Any, name: str) -> str:
    """Return the notes of the error of a message that does not fit."""
    from mpi4py import MPI

    sent, room = np.zeros(9), np.zeros(3)
    sending = comm.Isend(sent, comm.rank)
    try:
        ENDS[name](MPI, [comm.Irecv(room, comm.rank)])
    except MPI.Exception as error:
        sending.Wait()
        return "\n".join(error.__notes__)
    return "no error"


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 10**9),
    p=st.integers(2, 7),
    network=st.sampled_from(NETWORKS),
    rendezvous=st.booleans(),
    strict=st.booleans(),
)
def test_no_order_of_events_changes_what_is_received(
    seed: int, p: int, network: str, rendezvous: bool, strict: bool
) -> None:
    plain = vmpi.run(_play, [seed], ranks=p).values
    settings = {"network": network, "seed": seed, "rendezvous": rendezvous, "strict": strict}
    found = vmpi.run(_play, [seed], ranks=p, **settings).values  # type: ignore[arg-type]
    assert _differences(found, plain, [seed], p) == []


def _play(comm: Any, seeds: list[int]) -> list[Any]:
    return play(comm, seeds=seeds)
