"""A fresh copy of the five modules beside somebody else's network.py and main.py."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.course import other_network
from tests.course.programs import COURSE, run_alone, run_on_ranks

FIVE = (
    "my_naive_allreduce", "my_ring_allreduce", "sync_network", "sync_network_collective", "async_network",
)  # fmt: skip
SYNC = {"sizes": [12, 7, 5, 3], "batch": 8, "batches": 6, "epochs": 2}
Ranks = list[dict[str, Any]]


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    for name in FIVE:
        shutil.copy(COURSE / f"{name}.py", tmp_path)
    here = Path(__file__).parent
    shutil.copy(here / "other_network.py", tmp_path / "network.py")
    shutil.copy(here / "program.py", tmp_path)
    return tmp_path


def train_module(ranks: int, beside: Path, **asked: Any) -> tuple[Ranks, list[str]]:
    """Train; return what every rank ends with, all of them having the same network, and what was printed."""
    out = beside / f"{asked['module']}-{ranks}"
    out.mkdir()
    status, lines = run_on_ranks(ranks, beside / "program.py", json.dumps(asked | {"out": str(out)}))
    assert status == 0, lines
    everyone = []
    for rank in range(ranks):
        with np.load(out / f"{rank}.npz") as file:
            everyone.append(dict(file))
    for name, values in everyone[0].items():
        if name not in "xy":
            assert all(np.array_equal(values, other[name]) for other in everyone), name
    return everyone, lines


def serially(sizes: list[int], batches: list[tuple[Any, Any]]) -> other_network.NeuralNetwork:
    """Rank 0's network after plain SGD with these batches."""
    network = other_network.NeuralNetwork(sizes, 0.05, 8, 6, 2, np.matmul)
    for x, y in batches:
        network.forward_prop(x)
        network.step(*network.back_prop(y))
    return network


def agree(found: dict[str, Any], network: other_network.NeuralNetwork) -> None:
    for i in range(1, len(network.weights)):
        assert found[f"w{i}"].dtype == np.float32
        np.testing.assert_allclose(found[f"w{i}"], network.weights[i], rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(found[f"b{i}"], network.biases[i], rtol=1e-3, atol=1e-5)
    assert (found["w0"].tolist(), found["b0"].tolist()) == ([0], [0] * 12)


@pytest.mark.once
@pytest.mark.mpi
@pytest.mark.parametrize("module", ["sync_network", "sync_network_collective"])
def test_synchronous_training_is_serial_training_with_all_ranks_samples(beside: Path, module: str) -> None:
    """Also where a layer has fewer numbers than there are ranks; and every rank began with weights of its own."""
    everyone, lines = train_module(4, beside, module=module, **SYNC)
    steps = [
        (
            np.concatenate([rank["x"][k] for rank in everyone]),
            np.concatenate([rank["y"][k] for rank in everyone]),
        )
        for k in range(SYNC["batches"] * SYNC["epochs"])  # type: ignore[operator]
    ]
    assert [x.shape for x, _ in steps] == [(8, 12)] * 12
    agree(everyone[0], serially([12, 7, 5, 3], steps))
    assert [line.partition(":")[0] for line in lines] == ["epoch 0", "epoch 1", "in the end"]
    assert lines[1].split()[-1] == lines[2].split()[-1]


def samples(ranks: Ranks, epoch: slice) -> list[tuple[float, ...]]:
    """All that the ranks took in these of their steps."""
    return sorted(tuple(x) for rank in ranks for batch in rank["x"][epoch] for x in batch)


def test_ranks_share_the_samples_out_however_batches_are_drawn(beside: Path) -> None:
    """With one seed for all; and in order, all of the data: each sample once, as many as are wanted and no more."""
    everyone, _ = train_module(2, beside, module="sync_network", same_seed=True, started=True, **SYNC)
    assert not set(samples(everyone[:1], slice(None))) & set(samples(everyone[1:], slice(None)))
    asked = SYNC | {"module": "sync_network_collective", "in_order": True, "batches": 14}
    everyone, _ = train_module(2, beside, **asked)
    assert [len(rank["x"]) for rank in everyone] == [28, 28]
    first = samples(everyone, slice(0, 14))
    assert len(set(first)) == len(first) == 14 * 8
    asked = SYNC | {"module": "async_network", "masters": 1, "in_order": True, "batches": 14}
    everyone, _ = train_module(3, beside, **asked)
    assert [len(rank["x"]) for rank in everyone] == [0, 14, 14]
    first = samples(everyone, slice(0, 7))
    assert len(set(first)) == len(first) == 14 * 8


def test_one_worker_and_the_plain_rule_are_serial_training(beside: Path) -> None:
    asked = {"module": "async_network", "masters": 2, "rule": "plain", "rows": True, **SYNC}
    everyone, lines = train_module(3, beside, **asked)
    assert [len(rank["x"]) for rank in everyone] == [0, 0, 12]
    worker = everyone[2]
    agree(everyone[0], serially([12, 7, 5, 3], list(zip(worker["x"], worker["y"], strict=True))))
    assert lines[1].split()[-1] == lines[2].split()[-1]  # what was validated last was the complete network


@pytest.mark.once
@pytest.mark.mpi
def test_masters_with_a_placeholder_alone_and_workers_without_a_batch(beside: Path) -> None:
    asked = SYNC | {"module": "async_network", "masters": 4, "batches": 3, "same_seed": True}
    everyone, lines = train_module(8, beside, **asked)
    assert [len(rank["x"]) for rank in everyone] == [0, 0, 0, 0, 2, 2, 2, 0]
    assert [line.partition(":")[0] for line in lines] == ["epoch 0", "epoch 1", "in the end"]
    assert lines[1].split()[-1] == lines[2].split()[-1]
    start = other_network.NeuralNetwork([12, 7, 5, 3], 0.05, 8, 6, 2, np.matmul)
    assert all(np.abs(everyone[0][f"w{i}"] - start.weights[i]).max() > 0 for i in (1, 2, 3))


def test_a_rank_that_fails_ends_all(beside: Path) -> None:
    asked = SYNC | {"module": "async_network", "masters": 1, "fails": 2, "out": str(beside)}
    status, lines = run_on_ranks(3, beside / "program.py", json.dumps(asked))
    assert status == 1
    assert lines[0].startswith("rank 2 of 3 on ")
    assert lines[-1] == "ZeroDivisionError: division by zero"


def test_a_rank_that_leaves_is_named(beside: Path) -> None:
    asked = SYNC | {"module": "sync_network", "leaves": 1, "out": str(beside)}
    assert run_on_ranks(2, beside / "program.py", json.dumps(asked)) == (
        3,
        ["rank 1 of 2 called sys.exit(3) while others continued; they are ended"],
    )


def test_fit_works_once(beside: Path) -> None:
    """The first time on a process alone, too; MPI cannot be started again."""
    asked = SYNC | {"module": "sync_network", "again": True, "out": str(beside)}
    status, lines = run_alone(beside / "program.py", json.dumps(asked))
    assert status == 2
    assert lines[2].startswith("in the end: ")
    assert lines[3:] == ["program.py: MPI has already ended in this process and cannot be started again"]


def test_the_allreduces_leave_mpis_automatic_start_alone(beside: Path) -> None:
    (beside / "automatic.py").write_text(
        "import sys, mpi4py\n"
        "from my_naive_allreduce import *\nfrom my_ring_allreduce import *\n"
        "assert 'mpi4py.MPI' not in sys.modules and mpi4py.rc.initialize and mpi4py.rc.finalize in (None, True)\n"
        "from mpi4py import MPI\nassert MPI.Is_initialized()\n"
        "import numpy as np\nrecv = np.zeros(3)\nringallreduce(np.ones(3), recv, MPI.COMM_WORLD, MPI.SUM)\n"
        "allreduce(recv, recv, MPI.COMM_WORLD, MPI.SUM)\nprint(recv)"
    )
    assert run_on_ranks(2, beside / "automatic.py") == (0, ["[4. 4. 4.]"] * 2)


def test_the_five_modules_need_nothing_else() -> None:
    allowed = {"itertools", "paceline", "numpy", "mpi4py", "network", *FIVE}
    for name in FIVE:
        words = [line.split() for line in (COURSE / f"{name}.py").read_text().splitlines()]
        imported = {line[1].partition(".")[0] for line in words if line[:1] in (["import"], ["from"])}
        assert imported <= allowed, name
