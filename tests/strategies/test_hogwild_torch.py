"""HogWild through torch.multiprocessing: no MPI, the same record, and an end whatever happens."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline import UsageError, fit
from paceline.comm import torch_processes as _processes
from paceline.comm.torch_processes import TorchProcesses
from paceline.launch import mpiexec
from paceline.strategies import hogwild
from paceline.strategies.hogwild import Hogwild

ROOT = Path(__file__).parent.parent.parent
STRATEGY = "hogwild:backend=torch"
DIGITS = {"epochs": 8, "batch": 16, "lr": 3.0}
MODELS = "tests.strategies.hogwild_torch_models"
BLOCKED = """
import sys

class NoMpi:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "mpi4py":
            raise ImportError("mpi4py is not to be imported here")

sys.meta_path.insert(0, NoMpi())
"""


def without_mpi(folder: Path) -> dict[str, str]:
    """The environment of processes that cannot import mpi4py, and whose warnings are errors."""
    (folder / "sitecustomize.py").write_text(BLOCKED)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "PYTHONWARNINGS": "error"}


def train(folder: Path, *words: str, ranks: int = 2) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "paceline", "train", "--strategy", STRATEGY, "-n", str(ranks), *words]
    return subprocess.Popen(
        command,
        env=without_mpi(folder),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def left_in_shared_memory() -> set[str]:
    """The files of torch (`torch_PROCESS_...`) whose process has ended: those of other tests may still be in use."""
    names = [file.name for file in Path("/dev/shm").iterdir() if file.name.startswith("torch_")]
    return {name for name in names if not lives(int(name.split("_")[1]))}


@pytest.fixture
def nothing_left() -> Any:
    before = left_in_shared_memory()
    yield
    assert left_in_shared_memory() <= before


# ---- training


@pytest.mark.usefixtures("nothing_left")
def test_without_mpi_close_to_serial_and_recorded_like_every_run(tmp_path: Path) -> None:
    serial = fit("mlp:32", "digits", strategy="serial", **DIGITS, runs=None, quiet=True)  # type: ignore[arg-type]
    words = [f"--{name}={value}" for name, value in DIGITS.items()]
    out, err = train(tmp_path, "--data=digits", "--model=mlp:32", "--json", *words).communicate(timeout=280)
    found = json.loads(out)
    assert serial.test_accuracy is not None
    assert serial.test_accuracy > 0.9
    assert found["test_accuracy"] > serial.test_accuracy - 0.04
    assert err.count("epoch ") == 8
    assert (found["ranks"], found["steps"], found["bytes_sent"]) == (2, serial.steps, 0)
    assert found["findings"]["staleness"]["histogram"]

    run = paceline.Run(tmp_path / found["run"])
    assert run.complete
    assert run.environment["mpi"] is None
    assert len(run.summary["seconds_by_rank"]) == 2
    assert dealt(run, 2) == list(range(serial.steps))
    for command in ("predict", "report"):
        done = subprocess.run(
            [sys.executable, "-m", "paceline", command, str(run.folder)], env=without_mpi(tmp_path), cwd=tmp_path,
            capture_output=True, text=True, timeout=280,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def dealt(run: paceline.Run, ranks: int) -> list[int]:
    """The steps of which samples were computed, by whichever process; each process has as many turns."""
    steps = run.steps
    assert len(set(np.bincount(steps["rank"], minlength=ranks))) == 1
    return sorted(steps["step"][steps["count"] > 0].tolist())


@pytest.mark.usefixtures("nothing_left")
def test_a_module_and_arrays_from_a_script_without_a_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, paceline, torch\n"
        "from torch import nn\n"
        "torch.manual_seed(0)\n"
        "digits = paceline.load('digits').train\n"
        "inputs, labels = np.empty((len(digits), 8, 8), np.float32), np.empty(len(digits), np.int64)\n"
        "digits.take(np.arange(len(digits)), inputs, labels)\n"
        "def net():\n"
        "    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))\n"
        "same = dict(epochs=5, batch=16, lr=0.1, threads=1, runs=None, quiet=True)\n"
        "serial = paceline.fit(net(), (inputs, labels), strategy='serial', **same)\n"
        "module = net()\n"
        f"fitted = paceline.fit(module, (inputs, labels), strategy={STRATEGY!r}, ranks=2, **same)\n"
        "with torch.no_grad():\n"
        "    right = (module(torch.from_numpy(inputs)).argmax(1).numpy() == labels).mean()\n"
        "print(fitted.ranks, serial.test_accuracy, fitted.test_accuracy, right)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], env=without_mpi(tmp_path), cwd="/", capture_output=True, text=True, timeout=280
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ranks, serial, accuracy, right = map(float, done.stdout.split())
    assert ranks == 2
    assert serial > 0.88
    assert accuracy > serial - 0.04
    assert right > 0.9


def test_more_processes_than_batches(tmp_path: Path) -> None:
    fitted = fit(
        "mlp:4", "iris", strategy=Hogwild(backend="torch"), ranks=2, epochs=3, batch=10, draws=1, runs=tmp_path, quiet=True
    )  # fmt: skip
    assert fitted.strategy == STRATEGY
    assert fitted.run is not None
    assert dealt(paceline.Run(fitted.run), 2) == list(range(3))
    assert fitted.samples_per_second is not None
    assert round(fitted.samples_per_second * fitted.train_seconds) == 30


def test_one_process_is_serial(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch  # noqa: F401

    monkeypatch.setattr("paceline.launch.prepare.mpi", None)  # nobody calls it
    for model in ("mlp:8", "tests.test_fit:linear"):
        same: dict[str, Any] = {
            "model": model,
            "data": "iris",
            "epochs": 2,
            "batch": 10,
            "runs": None,
            "quiet": True,
        }
        alone, serial = (fit(**same, strategy=name) for name in (STRATEGY, "serial"))
        assert (alone.model.x == serial.model.x).all()
        assert alone.strategy == STRATEGY


# ---- how it ends


def test_a_failing_process_is_named_once_and_ends_the_run(tmp_path: Path) -> None:
    with train(tmp_path, "--data=iris", "--batch=10", f"--model={MODELS}:raises") as job:
        out, err = job.communicate(timeout=280)
    assert (job.returncode, out) == (1, "")
    assert err.count("Traceback") == 1
    assert err.startswith(("process 0 of 2 failed:\n", "process 1 of 2 failed:\n"))
    assert err.endswith("ArithmeticError: this process has had enough\n")


@pytest.mark.usefixtures("nothing_left")
def test_a_process_that_is_killed_ends_the_run(tmp_path: Path) -> None:
    with train(tmp_path, "--data=iris", "--batch=10", "--quiet", f"--model={MODELS}:kills") as job:
        out, err = job.communicate(timeout=280)
    assert (job.returncode, out) == (137, "")
    assert err == "process 1 of 2 was ended by signal 9 (Killed); the others were ended with it\n"


def test_ctrl_c_ends_every_process(tmp_path: Path) -> None:
    with train(tmp_path, "--data=iris", "--batch=10", "--quiet", f"--model={MODELS}:lingers") as job:
        assert job.stdout is not None
        processes = [int(job.stdout.readline().split()[1]) for _ in range(2)]
        job.send_signal(signal.SIGINT)
        out, err = job.communicate(timeout=280)
    said = [
        "signal 2 (Interrupt): the ranks are asked to save a checkpoint and stop; a second one ends them at once",
        "ended before training began",
    ]
    assert (job.returncode, out, err.splitlines()) == (130, "", said)
    assert not any(map(lives, processes))


def lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def test_what_the_processes_refuse_is_one_line(tmp_path: Path) -> None:
    with train(tmp_path, "--data=iris", "--model=tests.failing:no_model") as job:
        out, err = job.communicate(timeout=280)
    assert (job.returncode, out) == (2, "")
    assert err == (
        "paceline train: a model must be a paceline model, a torch.nn.Module or a pair (module, loss); got int\n"
    )


@pytest.mark.mpi
def test_an_mpi_job_is_refused(tmp_path: Path) -> None:
    words = ["-m", "paceline", "train", "--strategy", STRATEGY, "--data=iris", "--model=mlp:4", "--batch=10"]
    command, environment = mpiexec(2, [sys.executable, *words])
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 2
    assert (
        "paceline train: hogwild:backend=torch starts its processes itself and cannot use the 2 ranks of an MPI job: "
        "run it without mpiexec or srun, and give their number (-n 2, or ranks=2 of fit)\n"
    ) in done.stderr
    assert done.stderr.count("paceline train") == 1


def test_refusals_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="unknown backend of hogwild 'gloo'; choose one of mpi, torch"):
        Hogwild(backend="gloo")  # type: ignore[arg-type]
    monkeypatch.setattr(hogwild, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="hogwild:backend=torch needs PyTorch, which is not installed"):
        fit("mlp:4", "iris", strategy=STRATEGY, ranks=2, batch=10, runs=None)


# ---- the communicator


def together(size: int, work: Any) -> list[Any]:
    """What `work(comm)` returns in each of `size` threads that are connected like processes."""
    pipes = [multiprocessing.Pipe() for _ in range(1, size)]
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        ends = [pipe[0] for pipe in pipes] if rank == 0 else [pipes[rank - 1][1]]
        results[rank] = work(TorchProcesses(rank, ends, size))
        for end in ends:
            end.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(280)
    return results


@pytest.mark.parametrize("size", [1, 2, 5])
def test_collective_calls(size: int) -> None:
    def work(comm: TorchProcesses) -> list[Any]:
        rank = comm.Get_rank()
        sums, rows, from_last = np.empty((2, 3)), np.empty((size, 2), np.int32), np.full(1 << 17, rank)
        comm.Allreduce(np.full((2, 3), rank + 0.5), sums)
        comm.Allgather(np.array([rank, -rank], np.int32), rows)
        comm.Bcast(from_last, root=size - 1)
        parts = np.empty(size * (size - 1) // 2)
        comm.Gatherv(np.full(rank, float(rank)), [parts, range(size)] if rank == 0 else None)
        pairs = np.empty((size, 2), np.int16)
        comm.Gather(np.array([rank, 7], np.int16), pairs if rank == 0 else None)
        comm.Barrier()
        return [sums, rows, from_last, (parts, pairs) if rank == 0 else None]

    for rank, (sums, rows, from_last, gathered) in enumerate(together(size, work)):
        assert (sums == size * size / 2).all()
        assert rows.tolist() == [[r, -r] for r in range(size)]
        assert (from_last == size - 1).all()
        if rank == 0:
            parts, pairs = gathered
            assert parts.tolist() == [r for r in range(size) for _ in range(r)]
            assert pairs.tolist() == [[r, 7] for r in range(size)]


def test_a_process_that_another_has_left_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_processes, "PATIENCE", 0.0)

    def work(comm: TorchProcesses) -> str:
        if comm.Get_rank() == 1:
            return "left"
        with pytest.raises(RuntimeError, match="another process ended while process 0 waited for it") as told:
            comm.Barrier()
        return str(told.value)

    assert together(2, work)[1] == "left"
