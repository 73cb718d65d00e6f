"""The parts of MPI beyond messages and collectives: against real ranks, and against cases computed by hand."""

from __future__ import annotations

import builtins
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import vmpi
from paceline.vmpi.errors import MPIError, RankFailed
from tests.ranks import on_ranks
from tests.vmpi.capabilities import CASES, play


def _plain(found: Any) -> Any:
    """Tuples become lists, as in what comes back from real ranks."""
    return json.loads(json.dumps(found))


@pytest.mark.mpi
def test_as_real_ranks() -> None:
    expected = _plain(on_ranks("tests.vmpi.capabilities:play", 4))
    found = _plain(vmpi.run(play, ranks=4).values)
    for rank, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        for (name, result), (_, right) in zip(mine, theirs, strict=True):
            assert result == right, f"{name} on rank {rank}"


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_no_network_changes_the_result(case: str, ranks: int) -> None:
    plain = vmpi.run(CASES[case], ranks=ranks).values
    for network in ("1gbe", "infiniband:ranks-per-node=2"):
        assert vmpi.run(CASES[case], ranks=ranks, network=network, seed=3).values == plain


def test_a_column_of_a_matrix() -> None:
    def program(comm: Any) -> list[float]:
        from mpi4py import MPI

        column = MPI.DOUBLE.Create_vector(3, 1, 4).Commit()
        matrix = np.arange(12.0).reshape(3, 4) if comm.rank == 0 else np.zeros((3, 4))
        comm.Bcast([matrix, 1, column])
        return matrix.reshape(-1).tolist()

    assert vmpi.run(program, ranks=2).values[1] == [0, 0, 0, 0, 4, 0, 0, 0, 8, 0, 0, 0]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("rows", [10, 10_000], ids=["eager", "announced"])
def test_a_column_in_a_message(rows: int, strict: bool) -> None:
    def program(comm: Any) -> bool:
        from mpi4py import MPI

        column = MPI.DOUBLE.Create_vector(rows, 1, 3).Commit()
        numbers = np.arange(3.0 * rows).reshape(rows, 3)
        matrix = numbers if comm.rank == 0 else np.zeros((rows, 3))
        if comm.rank == 0:
            comm.Send([matrix, 1, column], 1)
        else:
            comm.Recv([matrix, 1, column], 0)
        return bool((matrix[:, 0] == numbers[:, 0]).all() and (matrix[:, 1] == 0).all() == comm.rank)

    assert vmpi.run(program, ranks=2, strict=strict).values == [True, True]


def test_fetch_and_op_goes_in_the_order_of_clocks() -> None:
    def program(comm: Any) -> int:
        from mpi4py import MPI

        window = MPI.Win.Allocate(8, comm=comm)
        np.frombuffer(window.tomemory(), "i8")[0] = 0
        window.Fence()
        comm.Compute(1.0 * (comm.size - comm.rank))
        before = np.zeros(1, "i8")
        window.Fetch_and_op(np.ones(1, "i8"), before, 0)
        window.Fence()
        window.Free()
        return int(before[0])

    assert vmpi.run(program, ranks=5).values == [4, 3, 2, 1, 0]


@pytest.mark.parametrize("nbytes", [0, 8, 5000, 1 << 20])
def test_a_put_takes_as_long_as_a_message(nbytes: int) -> None:
    def put(comm: Any) -> float:
        from mpi4py import MPI

        window = MPI.Win.Allocate(nbytes, comm=comm)
        window.Fence()
        start = comm.Wtime()
        if comm.rank == 0:
            window.Put(np.zeros(nbytes, "u1"), 1)
            window.Flush(1)
        spent = comm.Wtime() - start
        window.Fence()
        window.Free()
        return float(spent)

    def send(comm: Any) -> float:
        comm.Barrier()
        start = comm.Wtime()
        if comm.rank == 0:
            comm.Send(np.zeros(nbytes, "u1"), 1)
        else:
            comm.Recv(np.zeros(nbytes, "u1"), 0)
        return float(comm.Wtime() - start)

    for network in ("loopback", "10gbe:ranks-per-node=1"):
        one_sided = vmpi.run(put, ranks=2, network=network).values[0]
        message = max(vmpi.run(send, ranks=2, network=network).values)
        assert one_sided == pytest.approx(message, rel=0.3)
        assert one_sided > 0


@pytest.mark.parametrize("calls", ["puts into one", "gets from one", "puts to all"])
@pytest.mark.parametrize(
    ("network", "seconds", "parallel"),
    [  # of one MB, copied by what is named
        ("nvlink", 1e6 / 120e9 + 0.85e-6, ()),  # the links of the GPU
        ("pcie4", 1e6 / 20e9 + 1.425e-6, ()),
        ("loopback", None, ("puts into one", "gets from one")),  # the processor of each origin
        ("100gbe", 1e6 / 6e9 + 1.5e-6, ("gets from one", "puts to all")),  # the processor that receives
        ("50gbe", 1e6 / 5.885e9, ()),  # the card, which is slower than copying, shared by connections
    ],
)
def test_one_sided_calls_wait_for_what_copies_them(
    network: str, seconds: float | None, parallel: tuple[str, ...], calls: str
) -> None:
    nbytes = 1_000_000

    def program(comm: Any, count: int) -> float:
        from mpi4py import MPI

        window = MPI.Win.Allocate(nbytes, comm=comm)
        data, rank = np.zeros(nbytes, "u1"), comm.rank
        window.Fence()
        start = comm.Wtime()
        if calls == "puts to all":
            for target in range(1, count + 1) if rank == 0 else ():
                window.Put(data, target)
        elif 0 < rank <= count:
            (window.Put if calls == "puts into one" else window.Get)(data, 0)
        window.Flush_all()
        spent = comm.Wtime() - start
        window.Fence()
        window.Free()
        return float(spent)

    one, seven = (max(vmpi.run(program, count, ranks=8, network=network).values) for count in (1, 7))
    if calls not in parallel and seconds is not None:
        expected = 7 * seconds if network == "50gbe" else one + 6 * seconds
        assert seven == pytest.approx(expected, rel=0.08 if network == "50gbe" else 0.01)
    elif calls not in parallel:
        assert seven > 5 * one
    elif network == "loopback":
        assert one <= seven < 2 * one  # they share the memory only
    else:
        assert seven == pytest.approx(one + 6 * 1e6 / 12.125e9, rel=0.02)  # the card


def test_an_access_outside_an_epoch_is_an_error() -> None:
    def program(comm: Any) -> None:
        from mpi4py import MPI

        window = MPI.Win.Allocate(8, comm=comm)
        window.Put(np.zeros(1), 0)

    with pytest.raises(RankFailed, match="outside an epoch") as failed:
        vmpi.run(program, ranks=2)
    assert isinstance(failed.value.error, MPIError)


def test_an_access_beyond_the_window_is_an_error() -> None:
    def program(comm: Any) -> None:
        from mpi4py import MPI

        window = MPI.Win.Allocate(8, comm=comm)
        window.Fence()
        window.Put(np.zeros(2), 0)

    with pytest.raises(RankFailed, match="bytes 0 to 16 are outside the 8 bytes of rank 0's window"):
        vmpi.run(program, ranks=2)


def test_a_rank_given_as_a_float() -> None:
    def program(comm: Any) -> list[float]:
        found = np.zeros(1)
        if comm.rank == 0:
            comm.Send(np.ones(1), 1.0)
        else:
            comm.Recv(found, 0.0)
        return found.tolist()

    assert vmpi.run(program, ranks=2).values[1] == [1.0]


def test_every_rank_has_its_own_modules(tmp_path: Any) -> None:
    (tmp_path / "shared.py").write_text("values = []\n")
    (tmp_path / "program.py").write_text(
        "import shared\nfrom mpi4py import MPI\n"
        "shared.values.append(MPI.COMM_WORLD.rank)\nMPI.COMM_WORLD.Barrier()\n"
        "def main(comm):\n    return shared.values\n"
    )
    script = vmpi.Script(tmp_path / "program.py", "main")
    with script.imitate_python():
        assert vmpi.run(script, ranks=3).values == [[0], [1], [2]]


MODULES = {
    "plugin.py": "import nested\nfrom mpi4py import MPI\nvalues = [MPI.COMM_WORLD.rank]\nnested.seen.append(values)\n",
    "nested.py": "seen = []\n",
    "parts/piece.py": "values = []\n",  # a package without __init__.py
    "added/library/__init__.py": "values = []\nfrom . import inner\n",
    "added/library/inner.py": "from importlib.resources import files\ntext = files(__package__)\n",
    "tasks.py": "class Task:\n    def run(self):\n        return 'done'\n",
}
IMPORTS = """
import importlib, importlib.util, sys
from pathlib import Path
from mpi4py import MPI

def main(comm):
    plugin = importlib.import_module("plugin")
    comm.Barrier()
    import nested, plugin as again
    piece = importlib.import_module("parts.piece")
    sys.path.insert(0, str(Path(__file__).parent / "added"))
    import library
    for each in (piece, library):
        each.values.append(comm.rank)
    comm.Barrier()
    task = None
    if comm.rank == 1:
        from tasks import Task
        task = Task()
    done = comm.bcast(task, root=1).run()  # whose module only rank 1 has imported
    try:
        importlib.import_module("parts.missing")
    except ModuleNotFoundError as error:
        missing = error.name
    found = importlib.util.find_spec("nested").origin == nested.__file__
    here = library.inner.text.joinpath("inner.py").is_file()
    return [plugin is again, plugin.values, nested.seen, piece.values, library.values, done, missing, found, here]
"""


def test_every_rank_has_its_own_modules_however_they_are_imported(tmp_path: Path) -> None:
    for name, text in MODULES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "program.py").write_text(IMPORTS)
    script = vmpi.Script(tmp_path / "program.py", "main")
    before = builtins.__import__, importlib.import_module
    with script.imitate_python():
        values = vmpi.run(script, ranks=3).values
    assert values == [
        [True, [rank], [[rank]], [rank], [rank], "done", "parts.missing", True, True] for rank in range(3)
    ]
    assert (builtins.__import__, importlib.import_module) == before
    assert not {"plugin", "nested", "parts", "library", "tasks"} & set(sys.modules)


def test_modules_of_a_program_behave_like_modules(tmp_path: Path) -> None:
    (tmp_path / "lazy.py").write_text(
        "def __getattr__(name):\n    if name == 'later':\n        return 7\n    raise AttributeError(name)\n"
        "def __dir__():\n    return ['later']\n"
    )
    (tmp_path / "plain.py").write_text("value = []\n")
    (tmp_path / "program.py").write_text(
        "import pickle\nimport __main__, lazy, plain\nfrom lazy import later\n"
        "def main(comm):\n"
        "    plain.value.append(comm.rank)\n"
        "    found = comm.bcast(plain, root=1)\n"  # as dill and cloudpickle pickle the modules of a function
        "    return [later, lazy.later, hasattr(lazy, 'never'), dir(lazy), 'value' in dir(plain), plain.__doc__,\n"
        "            found is plain, found.value]\n"
    )
    script = vmpi.Script(tmp_path / "program.py", "main")
    with script.imitate_python():
        values = vmpi.run(script, ranks=3).values
    assert values == [[7, 7, False, ["later"], True, None, True, [rank]] for rank in range(3)]


def test_one_sided_calls_take_no_operations_made_from_functions() -> None:
    def program(comm: Any) -> int:
        from mpi4py import MPI

        operation = MPI.Op.Create(lambda a, b, datatype: None)
        window = MPI.Win.Allocate(8, 8, comm=comm)
        window.Fence()
        try:
            window.Accumulate(np.ones(1), 0, op=operation)
        except MPI.Exception as error:
            return int(error.Get_error_class() == MPI.ERR_OP)
        finally:
            window.Fence()
            window.Free()
            operation.Free()
        return -1

    assert vmpi.run(program, ranks=2).values == [1, 1]
