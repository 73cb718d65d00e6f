"""Training from Python."""

from __future__ import annotations

import functools
import os
import runpy
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline import UsageError, fit
from paceline.launch import mpiexec
from paceline.strategies.sync import Sync

STARTS_RANKS = True
ROOT = Path(__file__).parent.parent
SMALL = {"epochs": 2, "batch": 10, "quiet": True, "runs": None}


def blobs(samples: int = 300, shape: tuple[int, ...] = (6,)) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    labels = random.integers(3, size=samples)
    inputs = random.normal(size=(samples, *shape)).astype(np.float32)
    inputs[np.arange(samples), labels] += 4
    return inputs, labels


def test_ranks_started_for_a_call_give_serial_s_result(tmp_path: Path) -> None:
    serial = fit("mlp:8", blobs(), strategy="serial", dtype="float64", **SMALL)
    settings: dict[str, Any] = {**SMALL, "runs": tmp_path}
    parallel = fit("mlp:8", blobs(), ranks=3, dtype="float64", **settings)
    assert parallel.ranks == 3
    assert np.abs(serial.model.x - parallel.model.x).max() < 1e-10
    assert parallel.test_accuracy == serial.test_accuracy
    assert parallel.history[-1].validation_accuracy == serial.history[-1].validation_accuracy
    assert parallel.run is not None
    assert paceline.Run(parallel.run).complete


def test_a_replay_takes_the_folder_that_fit_returned(tmp_path: Path) -> None:
    settings: dict[str, Any] = {**SMALL, "runs": tmp_path, "on": "sim"}
    first = fit("mlp:8", "iris", strategy="parameter-server", ranks=3, **settings)
    again = fit("mlp:8", "iris", replay=first.run, **settings)
    assert isinstance(first.run, Path)
    assert again.ranks == 3
    assert np.array_equal(first.model.x, again.model.x)


def test_data_may_be_a_path(tmp_path: Path) -> None:
    inputs, labels = blobs()
    np.savez(tmp_path / "mine.npz", inputs=inputs, labels=labels)
    settings: dict[str, Any] = {**SMALL, "runs": tmp_path / "runs"}
    fitted = fit("mlp:8", tmp_path / "mine.npz", strategy="serial", **settings)
    assert fitted.run is not None
    assert paceline.Run(fitted.run).config["data"] == str(tmp_path / "mine.npz")
    assert paceline.predict(fitted.run).accuracy == fitted.test_accuracy  # without the data


@pytest.mark.once
def test_a_module_is_trained_in_place_also_on_other_ranks() -> None:
    import torch
    from torch import nn

    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    before = module[0].weight.detach().clone()
    inputs, labels = blobs()
    fitted = fit(module, (inputs, labels), ranks=2, lr=0.1, epochs=6, batch=20, quiet=True, runs=None)
    assert not torch.equal(before, module[0].weight)
    assert module[1].running_mean.abs().sum() > 0
    module.eval()
    with torch.no_grad():
        right = (module(torch.from_numpy(inputs)).argmax(1).numpy() == labels).mean()
    assert right > 0.9
    assert fitted.test_accuracy > 0.8


@pytest.mark.once
def test_what_only_this_script_knows_travels() -> None:
    calls: list[int] = []  # a closure, a function and a class of no importable module

    def train(me: Any) -> None:
        me.broadcast()
        for epoch in me.epochs():
            for batch in me.batches(epoch):
                me.gradient(batch)
                paceline.allreduce(me.model.g, me.model.g, me.comm)
                me.step(me.model.g, batch.total + len(calls))
            me.validate(epoch)

    own = fit("mlp:8", blobs(), strategy=train, ranks=2, dtype="float64", **SMALL)
    serial = fit("mlp:8", blobs(), strategy="serial", dtype="float64", **SMALL)
    assert np.abs(own.model.x - serial.model.x).max() < 1e-10
    assert own.strategy.endswith("train")


@pytest.mark.once
def test_what_lies_beside_the_script_travels(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text(
        "def train(me):\n"
        "    me.broadcast()\n"
        "class Samples:\n"
        "    def __len__(self): return 40\n"
        "    def __getitem__(self, index): return [float(index)], index % 2\n"
    )
    script = tmp_path / "script.py"
    script.write_text(
        "import beside, paceline\n"
        "fitted = paceline.fit('mlp:4', beside.Samples(), strategy=beside.train, ranks=2, batch=8, quiet=True, runs=None)\n"
        "print(fitted.strategy, fitted.ranks)\n"
    )
    done = subprocess.run([sys.executable, str(script)], cwd="/", capture_output=True, text=True, timeout=280)
    assert done.stdout == "beside:train 2\n", done.stderr


@pytest.mark.once
def test_large_arrays_are_shared_not_copied() -> None:
    def where(me: Any) -> None:
        array = me.data.train.split.inputs
        while isinstance(array.base, np.ndarray):
            array = array.base
        if not isinstance(array, np.memmap):
            raise AssertionError(f"the data are {type(array)}")

    fit("mlp:8", blobs(20_000), strategy=where, ranks=2, **SMALL)


@pytest.mark.once
def test_a_map_style_dataset() -> None:
    class Pairs:
        def __init__(self) -> None:
            self.inputs, self.labels = blobs()

        def __len__(self) -> int:
            return len(self.labels)

        def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
            return self.inputs[index], int(self.labels[index])

    alone = fit("mlp:8", Pairs(), strategy="serial", **SMALL)
    together = fit("mlp:8", Pairs(), ranks=2, **SMALL)
    assert together.test_accuracy == pytest.approx(alone.test_accuracy)


@dataclass(frozen=True, kw_only=True)
class NeedsDepth(paceline.Strategy):
    depth: int

    def train(self, me: Any) -> None:
        raise AssertionError("never")


@pytest.mark.once
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"epocs": 3}, "unknown setting 'epocs' of fit; choose one of model, data, strategy, ranks"),
        ({"ranks": 0}, "ranks must be at least 1; got 0"),
        ({"ranks": "2"}, "ranks must be a whole number of at least 1; got '2'"),
        ({"ranks": 2.0}, "ranks must be a whole number of at least 1; got 2.0"),
        ({"ranks": True}, "ranks must be a whole number of at least 1; got True"),
        ({"model": None}, "model must be given as a name or as an object; got None"),
        ({"data": None}, "data must be given as a name or as an object; got None"),
        ({"strategy": 3}, "a strategy must be a name, a paceline Strategy or a function of a worker; got int"),
        ({"strategy": Path}, "Path is neither a paceline Strategy nor a function of a worker"),
        ({"strategy": NeedsDepth}, "NeedsDepth cannot be created: .*depth"),
        ({"update": Path}, "update must be a name, with options or without; got <class 'pathlib.Path'>"),
        ({"update": "pathlib:Path"}, "pathlib:Path is no update: it makes a PosixPath without start and apply"),
        ({"update": "builtins:range"}, "builtins:range cannot be created"),
        ({"schedule": "tests.failing:no_model"}, "is no schedule: it makes a int without factor"),
        ({"model": 7, "ranks": 2}, "a model must be"),
        ({"model": "mpl", "ranks": 2}, "unknown model 'mpl'"),
        ({"strategy": "serial", "ranks": 2}, "serial is one process"),
        ({"data": (np.zeros((4, 2)), np.zeros(3))}, "as many labels as samples"),
        ({"model": "mlp:4,loss=cross-entropy", "data": (np.zeros((40, 2)), np.linspace(0, 1, 40)), "ranks": 2, "batch": 8},
         "cross-entropy needs classes"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused_in_words(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        fit(**{"model": "mlp:4", "data": "iris", "runs": None, "quiet": True, **arguments})


@pytest.mark.once
@pytest.mark.parametrize("strategy", [Sync, functools.partial(lambda me, more: None, more=3)])
def test_strategies_that_are_classes_or_partial_functions(strategy: Any) -> None:
    fitted = fit("mlp:4", "iris", strategy=strategy, **SMALL)
    assert fitted.strategy in ("sync", "functools:partial")


def test_a_failing_rank_is_an_exception_here() -> None:
    def fails(me: Any) -> None:
        if me.rank == 1:
            raise ValueError("broken")
        me.comm.Barrier()

    with pytest.raises(RuntimeError, match="the 2 ranks ended with exit status 1"):
        fit("mlp:4", "iris", strategy=fails, ranks=2, **SMALL)


def test_in_a_script_under_mpiexec(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, paceline\n"
        "fitted = paceline.fit('mlp:4', 'iris', epochs=1, batch=10, quiet=True, runs=None)\n"
        "sys.stdout.write(f'{fitted.ranks} {fitted.model.x.sum():.6f}\\n')\n"  # in one piece
        "try:\n"
        "    paceline.fit('mlp:4', 'irsi', quiet=True)\n"
        "except paceline.UsageError as error:\n"
        "    sys.stdout.write('refused\\n')\n"
    )
    command, environment = mpiexec(3, [sys.executable, str(script)])
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert len(set(lines[:3])) == 1
    assert lines[0].startswith("3 ")
    assert lines[3:] == ["refused"] * 3


def run_on_ranks(folder: Path, *lines: str) -> tuple[int, str, list[str]]:
    """Run a program on 3 ranks; return its exit status, what it printed, and what it said without mpiexec's banner."""
    script = folder / "script.py"
    script.write_text("\n".join(["import sys, paceline", *lines, ""]))
    command, environment = mpiexec(3, [sys.executable, str(script)])
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=280)
    said = done.stderr.splitlines()
    return (
        done.returncode,
        done.stdout,
        said[: next((i for i, s in enumerate(said) if s[:3] in ("---", "===")), None)],
    )


def test_what_all_ranks_refuse_is_one_line_if_the_program_does_not_catch_it(tmp_path: Path) -> None:
    refused = "paceline.fit('mlp:4', 'irsi', quiet=True)"
    status, _, said = run_on_ranks(tmp_path, refused)
    assert status == 2
    assert len(said) == 1
    assert said[0].startswith("paceline: unknown data set 'irsi'")


def test_other_errors_of_a_program_have_their_traceback(tmp_path: Path) -> None:
    caught = ["try:", "    paceline.fit('mlp:4', 'irsi', quiet=True)", "except ValueError as error:"]
    for raised, last in (
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise RuntimeError('mine') from error", "RuntimeError: mine"),
    ):
        status, _, said = run_on_ranks(tmp_path, *caught, f"    {raised}")
        assert status == 1
        assert last in said


def linear() -> Any:
    from torch import nn

    return nn.Linear(4, 3)


@pytest.mark.once
@pytest.mark.parametrize("model", ["mlp:4", "tests.test_fit:linear"])
def test_torch_s_generator_is_left_as_it_was(model: str) -> None:
    import torch

    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    first, second = (fit(model, "iris", strategy=lambda me: None, seed=3, **SMALL).model.x for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert (first == second).all()  # drawn from the seed


def test_ranks_that_were_given_different_runs_do_not_wait_for_ever(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, paceline\n"
        "from mpi4py import MPI\n"
        "rank = MPI.COMM_WORLD.rank\n"
        "same = dict(quiet=True, batch=10, runs=None)\n"
        "arrays = np.zeros((40 + 10 * (rank == 2), 4)), np.arange(40 + 10 * (rank == 2)) % 2\n"
        "for data, other in (('iris', dict(epochs=3)), ('iris', dict(runs='runs')), ('iris', dict(threads=1)),\n"
        "                    (arrays, {}), ('iris', dict(lr=-1))):\n"
        "    try:\n"
        "        paceline.fit('mlp:4', data, **{**same, **(other if rank == 1 else {})})\n"
        "    except paceline.UsageError as error:\n"
        "        print(f'{rank}: {error}', flush=True)\n"
    )
    command, environment = mpiexec(3, [sys.executable, str(script)])
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    for said in (
        "rank 0 has epochs=5, rank 1 epochs=3",
        "rank 0 has record=False, rank 1 record=True",
        "rank 0 has threads=None, rank 1 threads=1",
        "rank 0 has training samples=32, rank 2 training samples=40",
    ):
        assert done.stdout.count(f"every rank must be given the same run; {said}\n") == 3, done.stdout
    assert done.returncode == 2
    assert "paceline: rank 1: lr must be a number above 0; got -1" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.once
def test_threads_hold_for_the_call_alone(tmp_path: Path) -> None:
    import torch
    from threadpoolctl import threadpool_info

    seen: list[Any] = []

    def widths() -> list[int]:
        return [torch.get_num_threads(), *(pool["num_threads"] for pool in threadpool_info())]

    def train(me: Any) -> None:
        seen.append(widths())

    torch.set_num_threads(2)
    before, variable = widths(), os.environ.get("OMP_NUM_THREADS")
    for threads in (3, 1):
        fitted = fit("mlp:4", "iris", strategy=train, **{**SMALL, "runs": tmp_path}, threads=threads)
        assert set(seen.pop()) == {threads}
        assert fitted.threads == threads
        assert fitted.run is not None
        assert paceline.Run(fitted.run).environment["threads_per_rank"] == threads
        assert widths() == before
        assert os.environ.get("OMP_NUM_THREADS") == variable


@pytest.mark.once
def test_an_ordinary_loop_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples/serial.py"), run_name="__main__")
    assert "accuracy 0." in capsys.readouterr().out


@pytest.mark.once
@pytest.mark.parametrize("name", ["parallel.py", "own_strategy.py"])
def test_examples_run(tmp_path: Path, name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)], cwd=tmp_path, capture_output=True, text=True, timeout=280,
        env={**os.environ, "PYTHONWARNINGS": "default"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "accuracy 0." in done.stdout


@pytest.mark.once
def test_both_programs_train_on_the_same_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example = runpy.run_path(str(ROOT / "examples/parallel.py"))
    monkeypatch.setattr(paceline, "fit", functools.partial(fit, quiet=True))
    example["main"]()
    [run] = (tmp_path / "runs").iterdir()
    assert paceline.Run(run).steps["count"].sum() == example["EPOCHS"] * len(example["digits"]()[0])


def test_the_example_of_all_strategies_says_how_many_ranks_it_needs() -> None:
    command = [sys.executable, str(ROOT / "examples/strategies.py"), "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("at least 3 ranks; got 2\n")
    assert "Traceback" not in done.stderr


@pytest.mark.once
def test_a_record_has_the_name_that_it_is_given(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"strategy": "serial", "epochs": 1, "batch": 50, "quiet": True, "name": "mine"}
    assert fit("mlp:4", "iris", runs=tmp_path, **settings).run == tmp_path / "mine"
    with pytest.raises(UsageError, match="exists already"):
        fit("mlp:4", "iris", runs=tmp_path, **settings)
    with pytest.raises(UsageError, match="cannot be given with resume or with runs=None"):
        fit("mlp:4", "iris", runs=None, **settings)
