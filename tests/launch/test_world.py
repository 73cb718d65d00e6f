"""Whether a process is a rank of a job is told by its variables alone."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from paceline.errors import UsageError
from paceline.launch import World, verify, world
from paceline.launch.world import mismatch

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_RANK": "5",
}  # fmt: skip
MPICH = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
ALLOCATION = {"SLURM_JOB_ID": "9", "SLURM_NTASKS": "8", "SLURM_TASKS_PER_NODE": "4(x2)", "SLURM_NNODES": "2"}
BATCH = {**ALLOCATION, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
STEP = {
    **BATCH, "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
}  # fmt: skip


@pytest.mark.parametrize(
    ("variables", "launcher"),
    [
        (OPEN_MPI, "mpiexec of Open MPI"),
        (MPICH, "mpiexec of MPICH"),
        (STEP, "srun"),
        (STEP | {"PMI_RANK": "5", "PMI_SIZE": "8", "PMI_FD": "3"}, "srun"),
        (STEP | OPEN_MPI, "mpiexec of Open MPI"),  # mpiexec's daemons are a step of Slurm's
        (STEP | {"SLURM_STEP_NUM_TASKS": "2"} | MPICH, "mpiexec of MPICH"),
    ],
)
def test_a_rank_knows_its_job(variables: dict[str, str], launcher: str) -> None:
    assert world(variables) == World(rank=5, size=8, local_rank=1, local_size=4, launcher=launcher)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        ALLOCATION,  # a shell of salloc's
        BATCH,  # a batch script
        STEP | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},  # srun --pty bash
        {"PMI_SIZE": "8"},
    ],
)
def test_a_plain_process_is_no_rank(variables: dict[str, str]) -> None:
    assert world(variables) is None


def test_uneven_nodes_are_read() -> None:
    tasks = STEP | {"SLURM_STEP_TASKS_PER_NODE": "3(x2),2"}
    assert [world(tasks | {"SLURM_NODEID": node}).local_size for node in "012"] == [3, 3, 2]  # type: ignore[union-attr]


@pytest.fixture
def singleton(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose MPI sees one rank, whatever the launcher promised."""
    comm = SimpleNamespace(Get_size=lambda: 1)
    said = "Open MPI v5.0.11, package: Open MPI user@host Distribution, ident: 5.0.11"
    monkeypatch.setitem(
        sys.modules, "mpi4py.MPI", SimpleNamespace(COMM_WORLD=comm, Get_library_version=lambda: said)
    )


@pytest.mark.usefixtures("singleton")
class TestAJobThatFellApart:
    def test_is_refused_by_its_first_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in (STEP | {"SLURM_PROCID": "0"}).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(UsageError) as refused:
            verify(1)
        sentence = str(refused.value)
        assert sentence.startswith("srun cannot start Open MPI 5.0.11: 8 ranks would be 8 jobs of 1; ")
        assert "salloc -n 8 mpiexec" in sentence
        assert "paceline[mpich]" in sentence
        assert "\n" not in sentence

    def test_is_left_in_silence_by_the_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in STEP.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as left:
            verify(1)
        assert left.value.code == 2

    def test_is_known_from_what_was_asked_for(self) -> None:
        with pytest.raises(UsageError, match="4 ranks would be 4 jobs of 1"):
            verify(1, promised=4)

    def test_one_rank_alone_is_what_it_is(self) -> None:
        verify(1)
        verify(1, promised=1)


def test_a_communicator_of_some_ranks_is_no_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in MPICH.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(
        sys.modules, "mpi4py.MPI", SimpleNamespace(COMM_WORLD=SimpleNamespace(Get_size=lambda: 8))
    )
    verify(3)


def test_each_mismatch_has_its_cure() -> None:
    assert "--mpi=pmi2 -n 4" in mismatch(4, "MPICH 5.0.2", "srun")
    assert "the mpiexec of MPICH 5.0.2" in mismatch(4, "MPICH 5.0.2", "mpiexec of Open MPI")
