"""Runs that go on when simulated ranks die, at any step."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from paceline import fit
from paceline.comm import channel
from paceline.errors import UsageError
from paceline.launch import run
from paceline.record import Run
from paceline.record.checkpoint import State
from paceline.strategies import Strategy
from paceline.training.resuming import is_failure
from paceline.vmpi.errors import mpi_error
from paceline.worker import Saves, Worker
from tests.simulate.costs import COSTS

RUN: dict[str, Any] = {
    "model": "mlp:12", "data": "iris", "on": "sim", "ranks": 4, "batch": 8, "epochs": 4, "lr": 0.3, "quiet": True,
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _machine(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Costs that are given need not be measured."""
    path = tmp_path_factory.mktemp("machine") / "costs.json"
    COSTS.save(path)
    RUN["machine"] = str(path)


def with_deaths(folder: Path, strategy: str | Strategy, *deaths: tuple[int, int], **more: Any) -> Any:
    faults = folder / "faults.py"
    faults.write_text("".join(f"fail_at(rank={rank}, step={step})\n" for rank, step in deaths))
    return fit(**{**RUN, **more}, strategy=strategy, runs=folder, faults=str(faults), tolerate_failures=True)


@pytest.mark.parametrize("update", ["sgd", "momentum"])
@pytest.mark.parametrize(
    "strategy", ["sync:allreduce=ring", "sync:allreduce=shared-memory", "sync:allreduce=native"]
)
def test_sync_ends_where_an_undisturbed_run_ends(strategy: str, update: str, tmp_path: Path) -> None:
    whole = fit(**RUN, strategy=strategy, update=update, runs=None)
    for number, death in enumerate([(0, 0), (1, 7), (3, 14), (2, 15), (0, 40)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        left = with_deaths(folder, strategy, death, update=update)
        assert left.ranks == 3
        assert left.test_loss == pytest.approx(whole.test_loss, rel=1e-4)
        assert [epoch.epoch for epoch in left.history] == [0, 1, 2, 3]
        assert left.findings["failures"][0]["ranks"] == (death[0],)
        assert left.findings["failures"][0]["redone"] <= 1


@pytest.mark.parametrize(
    "strategy",
    ["main-worker", "weight-average", "local-sgd:every=4", "elastic:every=3", "psgd", "gossip", "hogwild"],
)
def test_others_go_on_with_what_is_left(strategy: str, tmp_path: Path) -> None:
    left = with_deaths(tmp_path, strategy, (1, 3), (3, 5))
    assert left.ranks == 2
    failures = left.findings["failures"]  # psgd notices both only at the end
    assert sorted(rank for failure in failures for rank in failure["ranks"]) == [1, 3]
    assert sum("died in epoch" in remark for remark in left.remarks) == len(failures)
    config = json.loads((left.run / "config.json").read_text())
    assert config["ranks"] == 2
    assert len(config["resumed"]) == len(failures)
    assert left.history[-1].epoch == 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tolerate_failures": True}, "cannot continue without a rank"),
        ({"checkpoint_every": "5s"}, "cannot be saved"),
    ],
)
@pytest.mark.parametrize("on", ["sim", "mpi"])
def test_a_strategy_that_cannot_be_saved_is_refused_before_anything_starts(
    on: str, settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    def mine(me: Worker) -> None:
        raise AssertionError

    given = {name: value for name, value in RUN.items() if name != "machine" or on == "sim"}
    with pytest.raises(UsageError, match=words):
        fit(**{**given, "on": on}, strategy=mine, runs=tmp_path, **settings)
    assert not list(tmp_path.iterdir())


@dataclass(frozen=True, kw_only=True)
class Prepared(Strategy):
    """Rank 0 is ready to regroup when another rank dies, and the others are not yet."""

    saves: ClassVar[Saves] = "itself"

    def train(self, me: Worker) -> None:
        def regroup(comm: Any, alive: Sequence[int], state: State, run: Path | None) -> str:
            comm.Barrier()
            return "regrouped"

        if me.rank == 0:
            me.when_ranks_die(regroup)
        for epoch in me.epochs():
            for batch in me.batches(epoch):
                me.gradient(batch)
                me.allreduce(me.model.g)
                me.step(me.model.g, batch.total)
            me.validate(epoch)


def test_ranks_regroup_together_or_not_at_all(tmp_path: Path) -> None:
    left = with_deaths(tmp_path, Prepared(), (1, 0))
    assert left.ranks == 3
    assert left.history[-1].epoch == 3
    assert left.findings["failures"][0]["lost"] == ""


@pytest.mark.parametrize("which", ["made", "of collectives", "the run's own"])
@pytest.mark.parametrize("kind", ["ERR_IN_STATUS", "ERR_PENDING"])
def test_an_error_of_several_requests_tells_of_a_death_if_one_communicator_was_revoked(
    which: str, kind: str
) -> None:
    told: list[tuple[bool, bool, bool]] = []

    def mine(me: Worker) -> None:
        made = me.comm.Dup()
        chosen = {"made": made, "of collectives": channel(made).bare, "the run's own": me.comm.bare}[which]
        error = mpi_error(kind, "of one of two requests")
        before = is_failure(error, me.comm.bare, me)
        me.control.wait()
        if me.rank == 0:
            chosen.Revoke()
        me.control.wait()
        told.append((before, is_failure(error, me.comm.bare), is_failure(error, me.comm.bare, me)))

    fit(**{**RUN, "ranks": 2}, strategy=mine, runs=None)
    assert told == [(False, which == "the run's own", True)] * 2


# ---- on real ranks

DYING = """
import os
import signal
import sys

from paceline.cli import main
from paceline.launch import world
from paceline.strategies import parameter_server
from paceline.worker import Worker


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


if world().rank == 1:
    setattr({"wait_for_end": parameter_server, "follow_first": Worker}[sys.argv[1]], sys.argv[1], die)
words = ["--data", "iris", "--model", "mlp:4", "--strategy", "parameter-server", "--epochs", "2", "--batch", "10"]
sys.exit(main(["train", *words, "--runs", "runs", "--name", "run", "--json", "--quiet", "--tolerate-failures"]))
"""


@pytest.mark.once
@pytest.mark.mpi
@pytest.mark.parametrize("moment", ["wait_for_end", "follow_first"])
def test_a_worker_that_dies_when_training_ends_is_survived(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    command = [sys.executable, "dying.py", moment]
    assert run(3, command, on_line=said.append, survive=True, time_limit=280) == 0, said
    assert len(said) == 2, said  # and the results
    assert said[0].startswith("paceline: rank 1 died in epoch 3: 2 ranks continued")
    (death,) = Run(tmp_path / "runs/run").summary["findings"]["failures"]
    assert (death["ranks"], death["left"]) == ([1], 2)
