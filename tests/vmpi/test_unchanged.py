"""Programs written for mpi4py run on simulated ranks as they are, whether or not mpi4py.MPI has been imported."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from paceline import vmpi
from paceline.vmpi.errors import RankFailed
from tests.ranks import ROOT, on_ranks

P = 4
# Everything that this process must not do itself: with mpi4py.MPI imported it could not start an mpiexec.
WITH_MPI = """
import json, sys
from mpi4py import MPI
from paceline import vmpi
from paceline.vmpi.errors import RankFailed
from tests.vmpi import plain

before = MPI.COMM_WORLD
found = vmpi.run(lambda comm: plain.main(), ranks=4, network="10gbe:ranks-per-node=4").values
again = vmpi.run(plain.case, ranks=4).values
assert found == again
assert plain.MPI is MPI is sys.modules["mpi4py.MPI"] and plain.comm is before is MPI.COMM_WORLD
assert MPI.COMM_WORLD.Get_size() == 1 and plain.Status is MPI.Status
try:
    vmpi.run(lambda comm: plain.no_such_thing(), ranks=2)
except RankFailed:
    assert plain.MPI is MPI and plain.comm is before
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def judged() -> list[Any]:
    return on_ranks("tests.vmpi.plain:case", P, alone=True)  # uses the world itself


def _plain() -> Any:
    """The program, imported where mpi4py.MPI never was."""
    spec = importlib.util.spec_from_file_location("plain_program", ROOT / "tests" / "vmpi" / "plain.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with vmpi.replace_mpi4py():
        spec.loader.exec_module(module)
    return module


@pytest.mark.mpi
@pytest.mark.parametrize("network", ["loopback", "10gbe:ranks-per-node=4,jitter=0.2"])
def test_as_under_mpiexec(network: str, judged: list[Any]) -> None:
    plain = _plain()
    values = vmpi.run(plain.case, ranks=P, network=network).values
    assert json.loads(json.dumps(values)) == judged


@pytest.mark.mpi
def test_with_the_real_one_imported(judged: list[Any]) -> None:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITH_MPI],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == judged


def test_nothing_is_left_behind() -> None:
    import mpi4py

    def program(comm: Any) -> Any:
        from mpi4py import MPI

        assert MPI is sys.modules["mpi4py.MPI"] is comm.MPI
        assert comm == MPI.COMM_WORLD
        assert MPI.COMM_SELF.Get_size() == 1
        assert isinstance(MPI.COMM_WORLD, MPI.Comm)
        assert MPI.Is_initialized()
        return [MPI.Get_processor_name(), MPI.Wtime()]

    before = sys.modules.get("mpi4py.MPI")
    found = vmpi.run(program, ranks=4, network="10gbe:ranks-per-node=2").values
    assert found == [["node0", 0.0], ["node0", 0.0], ["node1", 0.0], ["node1", 0.0]]
    assert sys.modules.get("mpi4py.MPI") is before
    assert ("MPI" in vars(mpi4py)) == (before is not None)


def test_only_a_rank_has_a_world() -> None:
    with vmpi.replace_mpi4py() as MPI, pytest.raises(RuntimeError, match="only a simulated rank has"):
        MPI.COMM_WORLD.Get_rank()


def test_threads_are_refused() -> None:
    def program(comm: Any) -> str:
        from mpi4py import MPI

        found = []

        def call() -> None:
            try:
                MPI.COMM_WORLD.Get_rank()
            except NotImplementedError as error:
                found.append(str(error))

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        return found[0]

    said = "the simulator has no threads that call MPI: only the ranks themselves can"
    assert vmpi.run(program, ranks=2).values == [said, said]


def test_a_thread_with_a_communicator_of_its_own_is_refused() -> None:
    def program(comm: Any) -> list[str]:
        found: list[str] = []
        own = comm.Dup()

        def use() -> None:
            try:
                own.recv()
            except NotImplementedError as error:
                found.append(str(error))

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        comm.Barrier()  # the ranks themselves continue
        return found

    said = "the simulator has no threads that call MPI: only the ranks themselves can"
    assert vmpi.run(program, ranks=3, strict=False).values == [[said]] * 3


def test_modules_of_mpi4py() -> None:
    """mpi4py.util is bound to the simulator's MPI in a run, and as it was before after it."""

    def program(comm: Any) -> Any:
        from mpi4py import MPI
        from mpi4py.util import dtlib, pkl5, sync

        assert pkl5.MPI is MPI
        world = pkl5.Intracomm(MPI.COMM_WORLD)
        rank, size = world.rank, world.size
        found = world.bcast({"a": np.arange(10)} if rank == 0 else None)["a"].sum()
        rows = world.allgather(np.full(1000, rank))
        swapped = world.alltoall([np.full(2, 10 * rank + other) for other in range(size)])
        half = comm.Split(rank % 2)
        between = pkl5.Intercomm(half.Create_intercomm(0, comm, 1 - rank % 2))
        root = (MPI.ROOT if half.rank == 0 else MPI.PROC_NULL) if rank % 2 == 0 else 0
        others, told = between.allgather(rank), between.bcast("from 0", root)
        made = dtlib.from_numpy_dtype(np.dtype([("a", "i4"), ("b", "f8")], align=True))
        counter = sync.Counter(comm=comm)
        drawn = [next(counter) for _ in range(3)]
        counter.free()
        return (
            int(found), [int(row[0]) for row in rows], [int(row[0]) for row in swapped], others, told,
            made.Get_size(), drawn,
        )  # fmt: skip

    before = {name for name in sys.modules if name.startswith("mpi4py.")}
    for _ in range(2):  # the second run has a module of its own
        values = vmpi.run(program, ranks=4).values
        for rank, (found, rows, swapped, others, told, made, _) in enumerate(values):
            assert (found, rows, made) == (45, [0, 1, 2, 3], 12)
            assert swapped == [10 * other + rank for other in range(4)]
            assert others == [other for other in range(4) if other % 2 != rank % 2]
            assert told == ("from 0" if rank % 2 else None)
        assert sorted(number for *_, drawn in values for number in drawn) == list(range(12))
    assert {name for name in sys.modules if name.startswith("mpi4py.")} == before


@pytest.mark.parametrize("how", ["from mpi4py.futures import MPICommExecutor", "import mpi4py.util.pool"])
def test_pools_are_refused(how: str) -> None:
    with pytest.raises(RankFailed, match=r"the simulator has no threads, which mpi4py\.futures needs"):
        vmpi.run(lambda comm: exec(how, {}), ranks=2)


def test_ranks_sleep_in_virtual_time() -> None:
    really = time.sleep

    def program(comm: Any) -> float:
        if comm.rank:
            time.sleep(1000.0 * comm.rank)
            comm.Send(np.zeros(1), 0)
        else:
            while not comm.Iprobe():
                time.sleep(10)
            for source in range(1, comm.size):
                comm.Recv(np.zeros(1), source)
        with pytest.raises(ValueError, match="non-negative"):
            time.sleep(-1)
        return float(comm.Wtime())

    found = vmpi.run(program, ranks=3).values
    assert found == pytest.approx([2000.0, 1000.0, 2000.0], rel=1e-3)
    assert time.sleep is really


def test_a_loop_that_waits_for_the_clock_ends() -> None:
    def program(comm: Any) -> list[float]:
        from mpi4py import MPI

        found = []
        for seconds in (1e-4, 2.0):
            start = MPI.Wtime()
            while MPI.Wtime() < start + seconds:
                pass
            found.append(MPI.Wtime() - start)
            comm.Barrier()
        start = [MPI.Wtime() for _ in range(900)]
        comm.Compute(1.0)
        return [*found, start[-1] - start[0], MPI.Wtime() - start[0]]

    for found in vmpi.run(program, ranks=2).values:
        assert found == pytest.approx([1e-4, 2.0, 0.0, 1.0], rel=0.02)


def test_waiting_for_a_process_takes_no_virtual_time() -> None:
    def program(comm: Any) -> float:
        subprocess.run(["sleep", "0.05"], check=True, timeout=280)
        return float(comm.Wtime())

    assert vmpi.run(program, ranks=2).values == [0.0, 0.0]
