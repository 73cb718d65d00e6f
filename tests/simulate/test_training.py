"""Training on simulated ranks: the same parameters, record and report as on real ones, in virtual time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import fit
from paceline import names as registry
from paceline.cli import main
from paceline.compare.rows import rows_of
from paceline.compare.verdict import verdict
from paceline.errors import UsageError
from paceline.files import read_arrays
from paceline.machine import Costs
from paceline.record import Run, find_runs
from paceline.record.environment import layout, node_of
from paceline.report import write_report
from paceline.simulate import model as _memory
from paceline.simulate.training import Simulation
from paceline.training.rank import Fitted
from paceline.vmpi import Curves
from paceline.vmpi.errors import Deadlock, RankFailed
from tests import ranks as started
from tests.ranks import ROOT
from tests.simulate.costs import COSTS
from tests.simulate.training_cases import SMALL, average_once, waits_for_ever

NODES = "10gbe:ranks-per-node=2"
STRATEGIES = [
    "sync",
    "sync:allreduce=ring",
    "main-worker",
    "weight-average",
    "local-sgd:every=2",
    "elastic:every=2",
    "psgd",
    "parameter-server:masters=2,rule=staleness",
    "parameter-server:placement=even,bound=2",
    "gossip",
    "hogwild:every=2",
]


@pytest.fixture
def simulated(machine: str) -> Any:
    def simulated(strategy: Any = "sync", ranks: int = 4, **settings: Any) -> Fitted:
        given = {**SMALL, "runs": None, "network": NODES, "machine": machine, **settings}
        model, data = given.pop("model"), given.pop("data")
        return fit(model, data, strategy=strategy, ranks=ranks, on="sim", quiet=True, **given)

    return simulated


# ---- what is computed


@pytest.mark.parametrize("network", ["loopback", NODES])
def test_sync_on_simulated_ranks_is_serial_training(simulated: Any, network: str) -> None:
    serial = fit(SMALL["model"], SMALL["data"], strategy="serial", batch=30, draws=6, epochs=2, dtype="float64",
                 runs=None, quiet=True)  # fmt: skip
    for name in registry.names("collectives"):
        if name == "shared-memory" and network != "loopback":
            continue
        for ranks in (2, 3, 5, 7):
            found = simulated(f"sync:allreduce={name}", ranks, dtype="float64", network=network)
            np.testing.assert_allclose(found.model.x, serial.model.x, rtol=1e-9, atol=1e-12)
            assert found.loss == pytest.approx(serial.loss, abs=1e-9)
            assert found.test_accuracy == serial.test_accuracy
            assert found.simulated
            assert found.train_seconds > 0


@pytest.mark.mpi
def test_simulated_ranks_end_with_the_bits_of_real_ones(simulated: Any) -> None:
    strategies = [
        "sync:allreduce=ring",
        "sync:allreduce=recursive-doubling",
        "local-sgd:every=2,allreduce=ring",
        "main-worker",
    ]
    for strategy, real in zip(
        strategies,
        started.on_ranks("tests.simulate.training_cases:trained", 4, strategies=strategies)[0],
        strict=True,
    ):
        assert simulated(strategy, 4).model.x.tobytes().hex() == real, strategy


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_trains(simulated: Any, strategy: str, tmp_path: Path) -> None:
    found = simulated(strategy, 5, draws=None, epochs=3, lr=None, runs=tmp_path)
    assert found.diverged is None
    assert found.test_accuracy > 0.5
    assert len(found.history) == 3
    assert found.run is not None
    run = Run(found.run)
    assert run.simulated is not None
    seconds = run.summary["seconds_by_rank"]
    assert len(seconds) == 5
    assert all(value >= 0 for of_rank in seconds for value in of_rank.values())
    assert run.steps["loss"].size >= 5
    assert set(run.steps["rank"]) <= set(range(5))


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if not name.startswith("psgd")])
def test_time_alone_is_the_same_time(simulated: Any, strategy: str, tmp_path: Path) -> None:
    """What is computed has no part in how long it takes."""
    full = simulated(strategy, 5, jitter=0.1)
    time_only = simulated(strategy, 5, jitter=0.1, compute=False, runs=tmp_path)
    assert time_only.train_seconds == full.train_seconds
    trained = [
        {**found.seconds, "evaluation": 0} for found in (time_only, full)
    ]  # which sends the losses, as text
    assert trained[0] == trained[1]
    assert (time_only.messages_sent, time_only.bytes_sent) == (full.messages_sent, full.bytes_sent)
    assert [epoch.train_seconds for epoch in time_only.history] == [
        epoch.train_seconds for epoch in full.history
    ]
    quality = (
        time_only.test_accuracy,
        time_only.test_loss,
        time_only.loss,
        time_only.validation_accuracy,
        time_only.diverged,
    )
    assert quality == (None, None, None, None, None)
    assert {(epoch.loss, epoch.validation_loss) for epoch in time_only.history} == {(None, None)}
    run = Run(time_only.run or "")
    assert run.summary["test_accuracy"] is None
    with pytest.raises(UsageError, match="has no trained model: only time was simulated"):
        run.restore(full.model)


def test_a_function_of_a_worker_is_a_strategy_here_too(simulated: Any) -> None:
    found = simulated(average_once, 4, draws=None, epochs=4)
    assert found.test_accuracy > 0.5
    assert found.messages_sent == 4 * 4


def test_a_model_given_as_an_object_is_trained_in_place(simulated: Any) -> None:
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    before = net[1].weight.detach().clone()
    found = simulated("sync:allreduce=ring", 3, model=net)
    assert found.model.module is net  # type: ignore[attr-defined]
    assert not torch.equal(net[1].weight, before)
    assert np.array_equal(net[1].weight.detach().numpy().ravel(), found.model.x[:640])


def test_shared_parameters_change_no_bit(simulated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    strategies = [
        "sync:allreduce=ring",
        "weight-average",
        "parameter-server:rule=plain",
        "sync:allreduce=shared-memory",
    ]
    apart = [simulated(s, 6, network="loopback").model.x.copy() for s in strategies]
    pools: list[Any] = []
    make = _memory.Pool.__init__
    monkeypatch.setattr(_memory.Pool, "__init__", lambda self, x: (pools.append(self), make(self, x))[1])
    monkeypatch.setattr("paceline.simulate.training.PAYS", 0)
    together = [simulated(s, 6, network="loopback").model.x for s in strategies]
    assert all((a == b).all() for a, b in zip(apart, together, strict=True))
    assert pools[0].shared >= 12 * 4  # of 12 steps, on five ranks of which one writes
    assert all(pool.fd < 0 for pool in pools)


# ---- time


def test_serial_takes_what_its_steps_take(simulated: Any) -> None:
    found = simulated("serial", 1)
    gradient = 50e-6 + 29 / 63 * 350e-6
    update = 1e-6 + (found.parameters - 1) / 99_999 * 19e-6
    assert found.train_seconds == pytest.approx(12 * (gradient + update))
    assert found.seconds["exchange"] == found.seconds["wait"] == 0
    assert found.samples_per_second == pytest.approx(12 * 30 / found.train_seconds)


def test_a_slow_rank_makes_the_others_wait(simulated: Any, tmp_path: Path) -> None:
    even, uneven = (
        simulated("sync:allreduce=ring", 4, batch=32, slow=slow, runs=tmp_path) for slow in ("", "2:4x")
    )
    assert (even.model.x == uneven.model.x).all()
    seconds = Run(uneven.run or "").summary["seconds_by_rank"]
    assert seconds[2]["compute"] == pytest.approx(4 * seconds[0]["compute"])
    lost = seconds[2]["compute"] - seconds[0]["compute"]
    for rank in (0, 1, 3):
        assert seconds[rank]["wait"] == pytest.approx(lost, rel=0.2)
    assert seconds[2]["wait"] < 0.1 * lost
    assert uneven.train_seconds > even.train_seconds + 0.9 * lost


def test_the_first_master_does_more_than_the_others(simulated: Any, tmp_path: Path) -> None:
    costs = Costs(work={"serve": Curves.of({1: [[1, 1e-3]]}), "lead": Curves.of({1: [[1, 1e-2]]})}, cores=64)
    costs.save(tmp_path / "costs.json")
    settings = {"network": "loopback", "machine": str(tmp_path / "costs.json"), "runs": tmp_path}
    fitted = simulated("parameter-server:masters=2,placement=even", **settings)
    first, second = (row["update"] for row in Run(fitted.run).summary["seconds_by_rank"][:2])
    # The loss of every gradient, and the next batch for its worker; copies in memory take next to nothing.
    assert first - second == pytest.approx(2 * fitted.steps * 1e-2, rel=1e-4)


def test_a_slower_network_takes_longer(simulated: Any) -> None:
    times = [
        simulated("sync:allreduce=ring", 4, network=name).train_seconds
        for name in ("infiniband", "10gbe", "1gbe")
    ]
    assert times == sorted(times)
    assert times[0] < times[2]


# ---- the record and what is made of it


def test_the_record_says_what_was_simulated(simulated: Any, tmp_path: Path) -> None:
    found = simulated("sync", 4, slow="1:2x", runs=tmp_path)
    run = Run(found.run or "")
    assert run.simulated is not None
    assert {**run.simulated, "machine": 0, "costs": 0} == {
        "network": NODES, "slow": "1:2x", "jitter": 0.0, "compute": True, "rendezvous": False, "faults": None,
        "ranks_per_node": 2, "node_cores": None, "machine": 0, "costs": 0,
    }  # fmt: skip
    assert Costs.of(run.simulated["costs"]) == COSTS
    assert run.environment["processor"] == "one of ours"
    assert run.environment["mpi"] is None
    assert run.environment["simulated"]["machine"].startswith("messages in a node as on")
    assert run.summary["simulated"] is True


def test_the_record_says_where_ranks_are_that_are_placed_in_turn(simulated: Any, tmp_path: Path) -> None:
    run = Run(simulated("sync", 5, network="10gbe:cyclic=2", runs=tmp_path).run or "")
    assert run.simulated is not None
    assert (run.simulated["ranks_per_node"], run.simulated["node_cores"]) == (3, None)
    assert node_of(run) == (3, None)
    assert layout(run) == (0, 1, 0, 1, 0)


def test_the_tables_of_a_run_repeat_it(
    simulated: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = simulated("parameter-server", 4, runs=tmp_path)
    again = simulated("parameter-server", 4, machine=str(first.run), runs=tmp_path)
    assert again.train_seconds == first.train_seconds
    assert (again.model.x == first.model.x).all()
    monkeypatch.setattr("paceline.simulate.training.costs_of", lambda job, again: COSTS)
    simulated("sync", 4, machine=str(first.run))
    assert caplog.messages == [
        f"{first.run} has strategy parameter-server, not sync: what computing costs is measured here"
    ]
    real = fit("mlp:4", "iris", strategy="serial", epochs=1, runs=tmp_path, quiet=True)
    with pytest.raises(UsageError, match="was not simulated: it holds no machine"):
        simulated("sync", 4, machine=str(real.run))
    assert Run(real.run or "").simulated is None


def test_an_order_is_replayed(simulated: Any, tmp_path: Path) -> None:
    first = simulated("parameter-server:rule=staleness", 5, jitter=0.5, runs=tmp_path)
    again = simulated(
        "parameter-server:rule=staleness", None, replay=str(first.run), network="1gbe", runs=tmp_path
    )
    assert again.ranks == 5
    assert (again.model.x == first.model.x).all()
    assert again.findings["order"] == first.findings["order"]
    assert again.train_seconds > first.train_seconds


def test_reports_mark_what_is_simulated(simulated: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"draws": None, "epochs": 1, "runs": tmp_path}
    simulated("serial", 1, **settings)
    simulated("sync", 4, **settings)
    simulated("sync", 4, **settings, compute=False, network="1gbe")
    fit(SMALL["model"], SMALL["data"], strategy="serial", batch=30, **settings, quiet=True)
    runs = find_runs([tmp_path])
    for run in runs:  # as if all were on one machine
        run.environment["processor"], run.environment["cores"] = "one of ours", 2
    rows = rows_of(runs)
    assert len({row.problem for row in rows}) == 1
    assert [(row.strategy, row.ranks, row.simulated, row.runs) for row in rows] == [
        ("serial", 1, "", 1),
        ("serial", 1, NODES, 1),
        ("sync", 4, NODES, 1),
        ("sync", 4, "1gbe, time only", 1),
    ]
    by_kind = {(row.strategy, row.simulated): row for row in rows}
    virtual, real = by_kind["serial", NODES], by_kind["serial", ""]
    assert real.speedup == virtual.speedup == 1
    assert by_kind["sync", NODES].speedup == pytest.approx(
        virtual.train_seconds / by_kind["sync", NODES].train_seconds
    )
    assert not any(row.oversubscribed for row in rows)
    told, foretold = verdict(rows)
    assert told.startswith("serial, 1 rank")
    assert foretold.startswith(f"Simulated: sync, 4 ranks (simulated: {NODES}), in ")
    write_report(runs, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "(simulated: 1gbe, time only)" in page.replace("<wbr>", "")
    assert '<tr class="simulated">' in page
    assert "hatched: simulated" in page
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "again.html")]) == 0


# ---- the command line


def arguments(machine: str, *more: str) -> list[str]:
    words = [f"--{name}={value}" for name, value in SMALL.items()]
    return ["train", *words, "--on=sim", f"--machine={machine}", "--quiet", *more]


def test_the_command_trains_and_records(
    machine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(
        [*arguments(machine, "-n", "6", "--network", NODES, "--slow", "3:4x"), f"--runs={tmp_path}", "--json"]
    )
    told = json.loads(capsys.readouterr().out)
    assert status == 0
    assert told["simulated"] is True
    assert told["ranks"] == 6
    (run,) = find_runs([tmp_path])
    assert run.simulated is not None
    assert run.simulated["slow"] == "3:4x"
    assert main([*arguments(machine, "-n", "6", "--no-compute"), f"--runs={tmp_path}"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("sync on 6 simulated ranks, 1 thread each: ")
    assert "s of simulated training" in said
    assert "accuracy" not in said


def test_progress_is_told_in_both_times(
    machine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for word in arguments(machine, "-n", "2", f"--runs={tmp_path}") if word != "--quiet"]
    assert main(words) == 0
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("epoch 1/2  loss ")
    assert " s simulated  " in first
    assert second.endswith("  0:00 left")
    assert main([*words, "--no-compute"]) == 0
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("epoch 1/2  0.00")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--network=10gbe", "--slow=1:2x"], "network, slow are for simulated ranks: give --on sim (on"),
        (["--no-compute"], 'compute is for simulated ranks: give --on sim (on="sim" of fit) with it'),
        (["--on=sim", "--network=token-ring"], "unknown network 'token-ring'; choose one of loopback, 1gbe"),
        (["--on=sim", "-n", "4", "--slow=4:2x"], "slow: there is no rank 4; the ranks are 0 to 3"),
        (["--on=sim", "--slow=1:2x,"], "slow: 1:2x, has a comma with nothing before or after it"),
        (["--on=sim", "--slow=fast"], "slow must be RANK:FACTORx, as in 3:4x; got 'fast'"),
        (["--on=sim", "--slow=1:2x,1:3x"], "slow has rank 1 twice: 1:2x,1:3x"),
        (["--on=sim", "--jitter=-1"], "jitter must be a number from 0 to 2, such as 0.2 for a fifth; got -1.0"),
        (["--on=sim", "-n", "0"], "ranks must be at least 1; got 0"),
        (["--on=sim", "--machine=no-such-file"], "cannot read no-such-file: no such file or directory"),
        (["--on=sim", "--on-stall=abort"], "on-stall is for real ranks: simulated ones do not stall"),
        (["--on=sim", "--tolerate-failures", "--restarts=1"], "restarts is for real ranks: simulated ones are"),
        (["--on=sim", "-n", "2", "--strategy=hogwild:backend=torch"], "cannot be simulated; leave out backend=torch"),
        (["--on=sim", "-n", "2", "--strategy=parameter-server:masters=2"], "2 masters need at least 3 ranks"),
    ],
)  # fmt: skip
def test_refusals_are_one_line(
    words: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--data=iris", "--model=mlp:3", f"--runs={tmp_path / 'runs'}", *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert why in said
    assert not (tmp_path / "runs").exists()


def test_what_cannot_be_on_several_nodes_is_refused(
    machine: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["-n", "4", "--network=10gbe", "--strategy=sync:allreduce=shared-memory", f"--runs={tmp_path}"]
    assert main(arguments(machine, *words)) == 2
    assert capsys.readouterr().err == (
        "paceline train: shared-memory needs all ranks on one node; there are 4 nodes; choose hierarchical\n"
    )
    assert not list(tmp_path.iterdir())


def test_errors_of_the_simulation_end_the_run(
    machine: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["-n", "3", f"--runs={tmp_path}"]
    assert main(arguments(machine, *words, "--strategy=tests.simulate.training_cases:waits_for_ever")) == 1
    said = capsys.readouterr().err
    assert said.startswith("paceline train: deadlock: 3 of 3 ranks are waiting")
    assert "training_cases.py" in said
    assert main(arguments(machine, *words, "--strategy=tests.simulate.training_cases:breaks")) == 1
    said = capsys.readouterr().err
    assert "ZeroDivisionError: there is nothing to divide by\npaceline train: rank 1 of 3 failed" in said
    assert [run.exists() for run in tmp_path.glob("*/summary.json")] == []
    assert len(list(tmp_path.glob("*/config.json"))) == 2
    assert find_runs([tmp_path]) == []


def test_faults_come_from_a_script(machine: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = tmp_path / "faults.py"
    runs = tmp_path / "runs"
    for who in (2, 0):
        script.write_text(f"fail_at(rank={who}, step=5)\n")
        assert main(arguments(machine, "-n", "4", f"--faults={script}", f"--runs={runs}")) == 1
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert f"rank {who} was killed" in said
        assert "in its step 5" in said
    script.write_text("slow(rank=1, by=3)\n")
    assert main(arguments(machine, "-n", "4", f"--faults={script}", f"--runs={runs}")) == 0
    (run,) = find_runs([runs])
    assert run.simulated is not None
    assert run.simulated["faults"] == "slow(rank=1, by=3)\n"
    seconds = run.summary["seconds_by_rank"]
    assert seconds[1]["compute"] == pytest.approx(3 * seconds[0]["compute"])


def test_in_python_the_errors_are_the_simulators(simulated: Any) -> None:
    with pytest.raises(Deadlock):
        simulated(waits_for_ever, 2)
    with pytest.raises(RankFailed):
        simulated("tests.simulate.training_cases:breaks", 2)
    with pytest.raises(UsageError, match="unknown place to run on 'moon'"):
        fit("mlp:3", "iris", on="moon")
    with pytest.raises(UsageError, match="call fit outside of an MPI job"):
        fit("mlp:3", "iris", on="sim", comm=object())


def test_models_are_made_for_every_rank_and_given_back(
    simulated: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Simulation] = []
    enter = Simulation.__enter__
    monkeypatch.setattr(Simulation, "__enter__", lambda self: (kept.append(self), enter(self))[1])
    simulated("sync", 5)
    assert len({id(model) for model in kept[0].models}) == 5
    simulated("sync", 5, compute=False)
    assert len(kept[1].models) == 1


# ---- the same, to the bit

DETERMINED = """
import sys
from paceline.cli import main
for strategy in ("parameter-server", "gossip", "hogwild", "sync"):
    assert main([*sys.argv[1:], "--strategy", strategy]) == 0
"""


def test_the_same_seed_gives_the_same_record(machine: str, tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for number, folder in enumerate(folders):
        words = arguments(machine, "-n", "5", "--network", NODES, "--jitter=0.2", f"--runs={folder}")
        surroundings = {**os.environ, "PYTHONHASHSEED": str(number + 1)}
        subprocess.run(
            [sys.executable, "-c", DETERMINED, *words],
            check=True,
            env=surroundings,
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
    of = [{run.config["strategy"]: run for run in find_runs([folder])} for folder in folders]
    assert len(of[0]) == len(of[1]) == 4
    for strategy, first in of[0].items():
        second = of[1][strategy]
        names = {path.name for path in first.folder.glob("*.npz")}
        assert {"steps.npz", "model.npz"} <= names
        for name in names:
            a, b = read_arrays(first.folder / name), read_arrays(second.folder / name)
            assert all(np.array_equal(a[key], b[key], equal_nan=True) for key in a), (strategy, name)
        assert {**first.summary, "run": 0} == {**second.summary, "run": 0}
        assert first.epochs == second.epochs
        assert first.config == second.config


def test_another_seed_gives_another_order(simulated: Any) -> None:
    orders = {simulated("parameter-server", 6, jitter=0.3, seed=seed).findings["order"] for seed in range(3)}
    assert len(orders) == 3
