"""Every simulated rank of a program has the state of its Python process to itself, as under a real mpiexec."""

from __future__ import annotations

import atexit
import json
import logging
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import vmpi
from paceline.cli import main
from paceline.vmpi.errors import Deadlock, RankFailed
from tests.ranks import ROOT, on_ranks

P = 4
STATES = ROOT / "tests" / "vmpi" / "states.py"


def _simulate(file: Path, function: str, ranks: int = P, **options: Any) -> list[Any]:
    script = vmpi.Script(file, function)
    with script.imitate_python():
        return vmpi.run(script, ranks=ranks, **options).values


@pytest.mark.mpi
@pytest.mark.parametrize("function", ["case", "with_torch"])
def test_as_under_mpiexec(function: str) -> None:
    judged = on_ranks(f"tests.vmpi.states:{function}", P, alone=True)
    for seed in range(3):
        found = json.loads(json.dumps(_simulate(STATES, function, seed=seed)))
        for mine, expected in zip(found, judged, strict=True):
            assert mine == expected


STATE: dict[str, Callable[[], Any]] = {
    "argv": lambda: (id(sys.argv), list(sys.argv)),
    "streams": lambda: (sys.stdout, sys.stderr, sys.stdin, vars(sys)["stdout"], sys.excepthook, type(sys)),
    "environment": lambda: (dict(os.environ), vars(os.environ)["_data"]),
    "printenv": lambda: sorted(subprocess.run(["env"], capture_output=True, check=True).stdout.split(b"\n")),
    "folder": Path.cwd,
    "functions": lambda: (os.chdir, logging.shutdown),
    "root": lambda: (logging.root.level, list(logging.root.handlers), logging.root.manager.disable),
    "logger": lambda: vars(logging.getLogger("states.shared")).copy(),
    "classes": lambda: [list(vars(kind)) for kind in (logging.Logger, logging.Manager, os._Environ)],
    "random": lambda: (random.getstate(), random.random.__self__),
    "numpy": lambda: (
        str(np.random.mtrand._rand.get_state()),
        np.random.rand,
        np.random.seed,
        np.random.default_rng,
    ),
}

CHANGES = """
import builtins, logging, os, random, sys
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
sys.argv.append("more")
sys.stdout = sys.stderr = open(os.devnull, "w")
sys.excepthook = builtins.print = None
os.environ["STATE"] = "changed"
os.environ.pop("HOME", None)
os.chdir("/")
logging.basicConfig(level=logging.DEBUG, filename=os.devnull)
logging.getLogger("states.shared").setLevel(1)
logging.disable()
random.seed(1)
np.random.seed(1)
comm.Barrier()
sys.stdout.close()
"""
ENDINGS = {
    "returns": ("", None),
    "raises": ("if comm.rank == 1: raise ValueError('bad')\ncomm.Barrier()", RankFailed),
    "deadlock": ("comm.Recv(bytearray(1), (comm.rank + 1) % comm.size)", Deadlock),
    "exits": ("if comm.rank == 1: sys.exit(3)\ncomm.Barrier()", RankFailed),
    "aborts": ("if comm.rank == 1: comm.Abort(4)\ncomm.Barrier()", RankFailed),
    "interrupted": ("if comm.rank == 1: raise KeyboardInterrupt\ncomm.Barrier()", KeyboardInterrupt),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_state_is_restored(ending: str, tmp_path: Path) -> None:
    logging.getLogger("states.shared")
    before = {name: look() for name, look in STATE.items()}
    end, error = ENDINGS[ending]
    file = tmp_path / "program.py"
    file.write_text(CHANGES + end)
    script = vmpi.Script(file)
    with script.imitate_python():
        for _ in range(2):  # also between the runs of `--seeds`
            if error is None:
                vmpi.run(script, ranks=3)
            else:
                with pytest.raises(error):
                    vmpi.run(script, ranks=3)
            assert "STATE" not in os.environ
            assert Path.cwd() == before["folder"]
            assert logging.root.level == before["root"][0]
    for name, look in STATE.items():
        assert look() == before[name], name


def test_a_stream_that_a_thread_has_kept(capsys: pytest.CaptureFixture[str]) -> None:
    with vmpi.Script(STATES).imitate_python():
        kept = vars(sys)["stdout"]
        kept.write("before, ")
    kept.write("after")
    assert capsys.readouterr().out == "before, after"


def test_generators_of_torch_are_restored() -> None:
    import torch

    torch.manual_seed(5)
    expected = torch.rand(2).tolist()
    torch.manual_seed(5)
    _simulate(STATES, "with_torch", ranks=2)
    assert torch.rand(2).tolist() == expected


DRAWS = """
import random
import numpy as np

def draws(comm):
    comm.Barrier()
    found = [random.random(), np.random.rand(), np.random.default_rng().random()]
    random.seed()
    np.random.seed()
    return [*found, random.random(), np.random.rand()]

def of_torch(comm):
    import torch
    comm.Barrier()
    return [torch.rand(1).item()]
"""


@pytest.mark.parametrize("function", ["draws", "of_torch"])
def test_numbers_without_a_seed_are_those_of_the_run(function: str, tmp_path: Path) -> None:
    file = tmp_path / "draws.py"
    file.write_text(DRAWS)
    first, again, other = (_simulate(file, function, seed=seed) for seed in (7, 7, 8))
    assert first == again
    drawn = [number for values in (*first, *other) for number in values]
    assert len(set(drawn)) == len(drawn)


def test_output_of_one_rank_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(
        "import sys\nfrom mpi4py.MPI import COMM_WORLD as comm\n"
        "if comm.rank == 1: sys.stdout = open('one.txt', 'w')\n"
        "comm.Barrier()\nprint('rank', comm.rank)\ncomm.Barrier()\nprint('end', comm.rank)\n"
        "if comm.rank == 1: sys.stdout.close()\n"
    )
    assert main(["simulate", "run", "program.py", "-n", "3"]) == 0
    assert sorted(capfd.readouterr().out.splitlines()) == ["end 0", "end 2", "rank 0", "rank 2"]
    assert Path("one.txt").read_text() == "rank 1\nend 1\n"


def test_output_after_a_patch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """`mock.patch` restores what it finds in the module's namespace."""
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(
        "import io\nfrom unittest import mock\nfrom mpi4py.MPI import COMM_WORLD as comm\n"
        "with mock.patch('sys.stdout', io.StringIO()) as caught:\n"
        "    comm.Barrier()\n    print(comm.rank)\n    comm.Barrier()\n"
        "print(comm.rank, repr(caught.getvalue()))\n"
    )
    assert main(["simulate", "run", "program.py", "-n", "2"]) == 0
    assert sorted(capfd.readouterr().out.splitlines()) == [r"0 '0\n'", r"1 '1\n'"]


def test_log_files_are_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffered records are written at the end of a rank, as at the end of a process."""
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(
        "import logging, logging.handlers\nfrom mpi4py.MPI import COMM_WORLD as comm\n"
        "file = logging.FileHandler(f'{comm.rank}.log')\n"
        "logging.getLogger().addHandler(logging.handlers.MemoryHandler(100, target=file))\n"
        "log = logging.getLogger('program')\n"
        "comm.Barrier()\nlog.warning('from rank %d', comm.rank)\ncomm.Barrier()\n"
        "log.addHandler(file)\n"
    )
    assert main(["simulate", "run", "program.py", "-n", "3"]) == 0
    assert [Path(f"{rank}.log").read_text() for rank in range(3)] == [
        f"from rank {rank}\n" for rank in range(3)
    ]


def test_log_files_by_dict_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`dictConfig` closes all handlers that there are."""
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(
        "import logging, logging.config\nfrom mpi4py.MPI import COMM_WORLD as comm\n"
        "handler = {'class': 'logging.FileHandler', 'filename': f'{comm.rank}.log', 'mode': 'w'}\n"
        "root = {'handlers': ['file'], 'level': 'INFO'}\n"
        "logging.config.dictConfig({'version': 1, 'handlers': {'file': handler}, 'root': root})\n"
        "comm.Barrier()\nlogging.info('from rank %d', comm.rank)\n"
        "logging.shutdown()\n"
    )
    assert main(["simulate", "run", "program.py", "-n", "3"]) == 0
    assert [Path(f"{rank}.log").read_text() for rank in range(3)] == [
        f"from rank {rank}\n" for rank in range(3)
    ]


@pytest.mark.parametrize(("hook", "status"), [("comm.Abort(3)", 3), ("1 / 0", 1), ("pass", 1)])
def test_a_hook_for_exceptions_is_called(
    hook: str,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(
        "import sys\nfrom mpi4py.MPI import COMM_WORLD as comm\n"
        "def hook(kind, error, trace):\n"
        "    print(comm.rank, kind.__name__, error, trace.tb_frame.f_code.co_filename)\n"
        f"    {hook}\n"
        "sys.excepthook = hook\n"
        "if comm.rank == 1: raise ValueError('bad')\ncomm.Barrier()\n"
    )
    assert main(["simulate", "run", "program.py", "-n", "3"]) == status
    printed = capsys.readouterr()
    assert printed.out == "1 ValueError bad program.py\n"
    assert ("ValueError: bad" in printed.err) == (status == 1)


def test_ranks_that_are_ended_print_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(
        "import sys, traceback\nfrom mpi4py.MPI import COMM_WORLD as comm\n"
        "try:\n    if comm.rank == 1: raise ValueError('bad')\n    comm.Barrier()\n"
        "except BaseException:\n    traceback.print_exc()\n    print('ends', comm.rank)\n    comm.Abort(3)\n"
    )
    assert main(["simulate", "run", "program.py", "-n", "3"]) == 3
    printed = capsys.readouterr()
    assert printed.out == "ends 1\n"
    assert printed.err.count("Traceback") == 1
    assert "ValueError: bad" in printed.err


EXITS = """
import atexit, sys
from mpi4py import MPI

comm = MPI.COMM_WORLD

@atexit.register
def first():
    print("last of", comm.rank)

def fail():
    raise ValueError(comm.rank)

def say(what, end):
    print(what, comm.allreduce(comm.rank), end=end)

atexit.register(say, "sum", end="\\n")
atexit.register(fail)
atexit.register(say, "never")
atexit.unregister(say)
atexit.register(say, "all", end="\\n")
if comm.rank == 0:
    sys.exit(0)
"""


def test_functions_for_the_end_are_called_when_a_rank_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "program.py").write_text(EXITS)
    before = atexit.register, atexit.unregister
    assert main(["simulate", "run", str(tmp_path / "program.py"), "-n", "2"]) == 0
    assert (atexit.register, atexit.unregister) == before
    captured = capsys.readouterr()
    said = captured.out.splitlines()
    assert sorted(said) == ["all 1", "all 1", "last of 0", "last of 1"]
    for number in (0, 1):
        assert f"ValueError: {number}" in captured.err
    assert captured.err.count("Exception ignored in atexit callback") == 2
