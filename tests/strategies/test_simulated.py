"""Strategies and updates of the users' own, and what built-in strategies do, on simulated ranks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples.own_strategy import SignVote

from paceline import fit
from paceline.data import Batches, load
from paceline.errors import UsageError
from paceline.models.mlp import build
from paceline.record import Run, checkpoint
from paceline.strategies.parameter_server import ParameterServer
from paceline.strategies.parameter_server._master import Outbox
from paceline.training.rank import Fitted
from paceline.worker import Worker, worker
from tests.simulate.costs import COSTS
from tests.worker.test_checkpoints import cut

CLIPPED = "tests.strategies.own_updates:Clipped"


@pytest.fixture
def simulated(tmp_path: Path) -> Any:
    machine = tmp_path / "costs.json"
    COSTS.save(machine)

    def simulated(strategy: Any, ranks: int, **settings: Any) -> Fitted:
        given = {"epochs": 2, "batch": 30, "draws": 6, "machine": str(machine), "runs": None, **settings}
        model, data = given.pop("model", "mlp:8"), given.pop("data", "iris")
        return fit(model, data, strategy=strategy, ranks=ranks, on="sim", quiet=True, **given)

    return simulated


def test_more_ranks_vote_than_a_byte_can_count(simulated: Any) -> None:
    digits, ranks = load("digits"), 200
    found = simulated(SignVote(), ranks, data="digits", model="mlp:4", batch=400, draws=1, epochs=1, lr=0.01)
    model, total = build(digits, 4, seed=0), 0.0
    before = model.x.copy()
    for rank in range(ranks):
        model.gradient(Batches(digits.train, batch=400, rank=rank, ranks=ranks, draws=1).at(0, 0))
        total = total + np.sign(model.g)
    assert np.abs(total).max() > 127
    np.testing.assert_allclose(found.model.x, before - np.float32(0.01) * np.sign(total), atol=1e-7)


def mixing(me: Worker) -> None:
    """A strategy with vector work of many kinds, and messages of its own."""
    me.broadcast()
    x, start, message = me.model.x, me.vector(), me.vector(more=1)
    rows = me.vectors(2)
    right, left = (me.rank + 1) % me.size, (me.rank - 1) % me.size
    for epoch in me.epochs():
        for batch in me.batches(epoch):
            start[:] = x
            me.gradient(batch)
            me.model.g *= 1.0
            me.step(me.model.g, batch.count)
            message[:-1] = x - start
            message[-1] = np.linalg.norm(x)
            requests = [me.comm.Irecv(rows[0], source=left), me.comm.Isend(message[:-1], dest=right)]
            type(requests[0]).Waitall(requests)
            x[10:20] += 0.5 * rows[0][10:20]
            rows[1] = np.maximum(x.astype(np.float64), rows[0])
            x -= 1e-3 * (rows[1] - x) * float(np.vdot(x, x) > -1)
        x[:] = me.mean()(x)
        me.validate(epoch)


@pytest.mark.parametrize("strategy", [SignVote(), mixing])
def test_a_strategy_of_ones_own_takes_the_same_time_with_and_without_computing(
    simulated: Any, strategy: Any, tmp_path: Path
) -> None:
    big = {
        "data": "digits",
        "model": "mlp:40",
        "lr": 0.003,
    }  # vectors that ranks share where nothing is computed
    full = simulated(strategy, 5, jitter=0.1, runs=tmp_path, **big)
    time_only = simulated(strategy, 5, jitter=0.1, compute=False, **big)
    assert full.diverged is None
    assert full.test_accuracy is not None
    assert time_only.train_seconds == full.train_seconds
    kinds = ("compute", "exchange", "wait", "update")
    assert [time_only.seconds[kind] for kind in kinds] == [full.seconds[kind] for kind in kinds]
    assert full.seconds["exchange"] > 0
    assert Run(full.run or "").simulated is not None


@pytest.mark.parametrize("strategy", ["sync:allreduce=shared-memory", "sync", "sync:allreduce=ring"])
def test_an_update_that_needs_the_whole_vector_gets_it(simulated: Any, strategy: str) -> None:
    serial = simulated("serial", 1, dtype="float64", update=CLIPPED)
    found = simulated(strategy, 4, dtype="float64", update=CLIPPED)
    np.testing.assert_allclose(found.model.x, serial.model.x, rtol=1e-9, atol=1e-12)


def test_an_update_that_says_nothing_is_applied_to_slices(simulated: Any) -> None:
    unmarked = CLIPPED.replace("Clipped", "Unmarked")
    whole = simulated("sync:allreduce=ring", 4, dtype="float64", update=unmarked)
    slices = simulated("sync:allreduce=shared-memory", 4, dtype="float64", update=unmarked)
    assert np.abs(whole.model.x - slices.model.x).max() > 1e-6


def test_masters_that_own_pieces_refuse_an_update_that_needs_the_whole_vector(simulated: Any) -> None:
    for options in ("", ",placement=even,masters=2"):
        with pytest.raises(
            UsageError, match=r"Clipped needs the whole vector, and masters update pieces of it; choose"
        ):
            simulated(f"parameter-server:rule=plain{options}", 4, update=CLIPPED)
    one = "parameter-server:rule=plain,placement=even"
    assert simulated(one, 3, update=CLIPPED).findings["gradients_applied"] == 12


@pytest.mark.parametrize("rule", ["adaptive", "dana", "rms", "clip:norm=0.05", "adaptive:step=0.004/mix=0.3"])
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_serial_with_a_rule_is_a_server_without_staleness(simulated: Any, rule: str, schedule: str) -> None:
    settings = {"dtype": "float64", "schedule": schedule}
    server = simulated(f"parameter-server:placement=even,rule={rule}", 2, **settings)
    serial = simulated(f"serial:rule={rule}", 1, **settings)
    np.testing.assert_allclose(serial.model.x, server.model.x, rtol=1e-12, atol=1e-14)
    assert [epoch.validation_loss for epoch in serial.history] == pytest.approx(
        [epoch.validation_loss for epoch in server.history], rel=1e-12
    )  # of the parameters, not of those that a worker computes with
    assert not np.allclose(serial.model.x, simulated("serial", 1, **settings).model.x)


def test_serial_with_a_rule_goes_on_bit_for_bit(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"epochs": 3, "batch": 30, "quiet": True, "threads": 1}
    whole = fit("mlp:8", "iris", strategy="serial:rule=adaptive", runs=tmp_path / "a", **settings,
                checkpoint_every="3 steps")  # fmt: skip
    assert whole.run is not None
    for number in checkpoint.numbers(whole.run, 0)[1:]:
        again = fit(resume=cut(whole.run, tmp_path / f"{number}", number), quiet=True)
        assert np.array_equal(again.model.x, whole.model.x)
        assert [epoch.validation_loss for epoch in again.history] == [
            e.validation_loss for e in whole.history
        ]


@pytest.mark.parametrize(
    ("rule", "update", "words"),
    [
        ("plain", "sgd", "rule=plain does nothing without staleness: choose serial, or another rule"),
        ("gap-aware", "sgd", "rule=gap-aware does nothing without staleness"),
        ("wishful", "sgd", "unknown rule 'wishful'; choose one of adaptive"),
        ("adaptive", "adam", "rule=adaptive makes the whole step itself: --update adam would have no effect"),
        ("dana", "momentum", "rule=dana has its own momentum: it cannot be combined with --update momentum"),
    ],
)
def test_a_rule_that_serial_cannot_use_is_refused(rule: str, update: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        fit("mlp:8", "iris", strategy=f"serial:rule={rule}", update=update, runs=None, quiet=True)


SERVERS = [("masters=1", 2), ("masters=2", 3), ("masters=3,placement=even", 4), ("share=dynamic,bound=0", 2)]


@pytest.mark.parametrize("update", ["adam:weight-decay=0.01", "momentum", "rms", "sgd:weight-decay=0.01"])
def test_a_server_takes_the_update_s_own_steps(simulated: Any, update: str) -> None:
    settings = {"dtype": "float64", "update": update, "schedule": "cosine", "lr": 0.01}
    serial = simulated("serial", 1, **settings)
    for options, ranks in SERVERS:
        found = simulated(f"parameter-server:{options}", ranks, **settings)
        assert np.array_equal(found.model.x, serial.model.x), options
        assert found.test_accuracy == serial.test_accuracy


def test_several_workers_share_the_state_at_the_masters(simulated: Any) -> None:
    settings = {"data": "digits", "model": "mlp:16", "lr": 0.01, "update": "adam", "epochs": 8, "draws": 50}
    found = simulated("parameter-server:masters=2", 6, **settings)
    assert found.test_accuracy > 0.8
    assert found.findings["staleness"]["mean"] > 1


def test_auto_is_adaptive_with_plain_sgd(simulated: Any) -> None:
    chosen, named = (simulated(f"parameter-server{rule}", 5) for rule in ("", ":rule=adaptive"))
    assert np.array_equal(chosen.model.x, named.model.x)
    assert (chosen.bytes_sent, chosen.train_seconds) == (named.bytes_sent, named.train_seconds)
    other = simulated("parameter-server", 5, update="sgd:weight-decay=1e-9")
    assert not np.allclose(other.model.x, named.model.x)


@dataclass(frozen=True, kw_only=True)
class Faded(ParameterServer):
    """A server whose workers' models multiply the rate by a half, a quarter and so on, each before its own gradient."""

    def train(self, me: Worker) -> None:
        gradient = me.gradient

        def fade(batch: Any, ready: Any = None) -> float:
            me.model.step_factor = 0.5 * me.step_factor  # type: ignore[attr-defined]
            return gradient(batch, ready)

        me.gradient = fade  # type: ignore[method-assign]
        super().train(me)


@dataclass(frozen=True, kw_only=True)
class Halving:
    """A schedule that halves the rate at every step, from a half."""

    def factor(self, step: int, steps: int) -> float:
        return 0.5 ** (step + 1)


@pytest.mark.parametrize("options", [{}, {"masters": 2}, {"rule": "plain"}])
def test_a_worker_s_factor_multiplies_the_rate_of_its_gradient(simulated: Any, options: Any) -> None:
    ranks, halving = options.get("masters", 1) + 1, "tests.strategies.test_simulated:Halving"
    settings = {"dtype": "float64", "lr": 4.0}
    scheduled = simulated(ParameterServer(**options), ranks, schedule=halving, **settings)
    found = simulated(Faded(**options), ranks, **settings)
    assert np.array_equal(found.model.x, scheduled.model.x)


@dataclass(frozen=True, kw_only=True)
class Quarter(ParameterServer):
    """A server whose workers' models ask for a quarter of the learning rate."""

    def train(self, me: Worker) -> None:
        me.model.step_factor = 0.25  # type: ignore[attr-defined]
        super().train(me)


def test_a_round_has_the_factor_of_its_gradients(simulated: Any) -> None:
    options: dict[str, Any] = {"rule": "plain", "backup": 1}
    asked = simulated(Quarter(**options), 4, lr=0.4)
    given = simulated(ParameterServer(**options), 4, lr=0.1)
    assert np.array_equal(asked.model.x, given.model.x)


def test_gossip_says_why_messages_were_not_sent(simulated: Any) -> None:
    found = simulated("gossip", 2, draws=60, slow="1:60x")
    messages = found.findings["messages"]
    assert messages["not_sent_low_weight"] > 0
    assert messages["not_sent"] == messages["not_sent_low_weight"] + messages["not_sent_under_way"]
    said = f"{messages['not_sent_low_weight']:,} not sent because the rank's weight was too low"
    assert said in found.remarks[0]
    assert ("still under way" in found.remarks[0]) == (messages["not_sent_under_way"] > 0)


def test_the_test_samples_are_evaluated_together_once(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated = []
    score_together = worker.score_together

    def counted(model: Any, split: Any, *others: Any) -> Any:
        evaluated.append(len(split))
        return score_together(model, split, *others)

    monkeypatch.setattr(worker, "score_together", counted)
    found = fit("mlp:8", "iris", strategy="psgd", ranks=1, batch=10, epochs=1, runs=None, quiet=True)
    assert evaluated == [15, 15]  # validation and test samples
    assert found.findings["average"]["test_loss"] == found.test_loss


def test_masters_keep_no_copy_for_every_epoch(simulated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, send_copy = [], Outbox.send_copy

    def counted(self: Outbox, *arguments: Any, **named: Any) -> None:
        send_copy(self, *arguments, **named)
        under_way.append(len(self.copies))

    monkeypatch.setattr(Outbox, "send_copy", counted)
    found = simulated("parameter-server:masters=2,placement=even", 4, epochs=40, draws=2)
    assert len(found.history) == 40
    assert len(under_way) > 40
    assert max(under_way) <= 4
