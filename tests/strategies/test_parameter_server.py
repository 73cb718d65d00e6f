"""The asynchronous parameter server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import names as registry
from paceline import names as spec
from paceline.config import Config
from paceline.errors import UsageError
from paceline.models.mlp import MLP
from paceline.record import Run
from paceline.report import write_report
from paceline.strategies import Facts
from paceline.strategies.parameter_server import ParameterServer
from paceline.strategies.parameter_server._pieces import APPLIED, DROPPED, LEFT, RESTORED
from paceline.training.job import Job, adopt_replayed_settings, check_replay
from tests.ranks import on_ranks

CASES = "tests.strategies.server_cases"


def test_one_worker_and_the_plain_rule_are_serial_training() -> None:
    for rank in on_ranks(f"{CASES}:one_worker", 4):
        check_that_it_was_serial(rank)


def check_that_it_was_serial(found: dict[str, float]) -> None:
    assert len(found) in (3, 6, 9)  # a rank may be none of a job's
    for what, difference in found.items():
        assert difference == 0.0 if "loss" not in what else difference < 1e-9, what


@pytest.mark.once
def test_torch_models(tmp_path: Path) -> None:
    found = on_ranks(f"{CASES}:torch_models", 5, folder=str(tmp_path))
    assert len(found[0]["one worker"]) == 9
    for rank in found[:4]:
        check_that_it_was_serial(rank["one worker"])
    check_that_everything_arrived([rank["arrived"] for rank in found[:4]], 2, 4, {"draws": 4})
    # BatchNorm: the workers' statistics, not those of a network that has seen nothing, on every rank
    normed = [rank["batch norm"] for rank in found]
    assert all(rank == normed[0] for rank in normed)
    assert normed[0]["accuracy"] > 0.8
    assert np.ptp(normed[0]["buffers"]["2.running_var"]) > 0
    assert normed[0]["buffers"]["2.num_batches_tracked"][0] > 6  # those of a worker, in 6 epochs


ARRIVING = [
    ("masters=1", 4, {}),
    ("masters=2,share=dynamic", 5, {"draws": 7}),
    ("masters=3,placement=even,rule=dana", 5, {"draws": 11}),
    ("masters=2,bound=1", 5, {"draws": 10}),
    ("masters=1", 6, {"draws": 3, "epochs": 2}),  # more workers than batches
    ("masters=1,share=dynamic", 6, {"draws": 2, "epochs": 1}),
    ("masters=1", 3, {"epochs": 0}),
]


def test_every_gradient_is_applied_and_every_message_received(tmp_path: Path) -> None:
    by_rank = on_ranks(f"{CASES}:everything_arrives", 6, folder=str(tmp_path), cases=ARRIVING)
    for number, (strategy, ranks, more) in enumerate(ARRIVING):
        found = [rank[number] for rank in by_rank[:ranks]]
        check_that_everything_arrived(found, int(strategy.split("masters=")[1][0]), ranks, more)


def check_that_everything_arrived(found: list[Any], masters: int, ranks: int, more: dict[str, Any]) -> None:
    for rank, said in enumerate(found):
        assert said["open"] == said["left"] == 0
        for other, count in said["sent"].items():
            assert found[int(other)]["received"][str(rank)] == count
    assert len({said["x"] for said in found}) == 1
    assert len({said["history"] for said in found}) == 1
    first = found[0]
    updates = {name: np.array(column) for name, column in first["updates"].items()}
    steps = first["steps"]
    epochs = more.get("epochs", 3)
    if epochs and "draws" in more:
        assert steps == list(range(epochs * more["draws"]))  # together exactly the epochs' batches
    assert all(rank >= masters for rank in first["ranks"])
    pieces = 1 + int(updates["piece"].max(initial=0))
    assert (updates["event"] == DROPPED).sum() == 0
    for piece in range(pieces if epochs else 0):
        applied = (updates["event"] == APPLIED) & (updates["piece"] == piece)
        assert sorted(updates["step"][applied].tolist()) == steps  # applied once each, by every master
    assert (updates["event"] == LEFT).sum() == masters * (ranks - masters)
    assert first["findings"]["gradients_applied"] == len(steps)
    assert first["findings"]["gradients_acknowledged"] == len(steps)
    assert first["epochs"] == epochs
    assert first["same"]
    if epochs:
        assert first["validations"][-1] == pytest.approx(
            first["last"]
        )  # of the complete model, not of a part


def test_bytes_are_those_of_the_formula(tmp_path: Path) -> None:
    epochs, draws, workers, masters = 2, 6, 2, 2
    cases = [("masters=2", 4, {"draws": draws, "epochs": epochs})]
    found = [
        rank[0] for rank in on_ranks(f"{CASES}:everything_arrives", 4, folder=str(tmp_path), cases=cases)
    ]
    net = MLP([64, 16, 10])
    x, header = 8 * net.x.size, 8 * 6
    first = 8 * (net.layers[0].stop - net.layers[0].start)  # the larger one: not master 0's
    batches = epochs * draws
    expected = batches * (2 * x + masters * header + 8)  # gradients, values, headers, which batch is next
    expected += workers * masters * header  # leaving
    expected += (epochs + 1) * first  # the other master's layer at every epoch's end, and at last
    expected += 2 * 8  # the order to end
    assert found[0]["bytes"] == expected


@pytest.mark.once
def test_every_rule_learns(tmp_path: Path) -> None:
    rules = registry.names("rules")
    more = {rule: {"epochs": 2, "lr": 0.05 if rule == "rms" else 0.2} for rule in rules}
    cases = [(f"masters=1,rule={rule}", 4, more[rule]) for rule in rules]
    for rule, found in zip(
        rules, on_ranks(f"{CASES}:everything_arrives", 4, folder=str(tmp_path), cases=cases)[0], strict=True
    ):
        assert found["accuracy"] > 0.5, rule
        staleness = found["findings"]["staleness"]
        assert sum(staleness["histogram"]) == 2 * 58 * 2
        assert 0 < staleness["mean"] < 10
        assert staleness["mean_gap"] > 0
        assert [piece["layers"] for piece in staleness["pieces"]] == [[0], [1]]


@pytest.mark.once
def test_a_slow_worker_holds_nobody_up(tmp_path: Path) -> None:
    found = on_ranks(f"{CASES}:slow_worker", 4, folder=str(tmp_path), strategy="masters=1,share=dynamic")[0]
    assert found["accuracy"] > 0.6
    assert found["findings"]["gradients_applied"] == sum(found["done"])
    assert found["done"][1] < min(found["done"][2:])  # it does what it can, and the others do the rest


@pytest.mark.once
def test_a_bound_keeps_the_fast_within_reach_of_the_slow(tmp_path: Path) -> None:
    found = on_ranks(
        f"{CASES}:slow_worker", 4, folder=str(tmp_path), strategy="masters=1,share=dynamic,bound=2"
    )[0]
    done = [0, 0, 0]
    left: set[int] = set()
    for worker, event in zip(found["workers"][::1], found["events"], strict=True):
        if event == LEFT:
            left.add(worker)
        else:
            done[worker] += 1
        # Two pieces a batch; a batch may be begun by who is 2 ahead, and arrives when that is 3.
        active = [done[w] for w in range(3) if w not in left]
        assert not active or max(active) - min(active) <= 2 * 3 + 1
    assert max(done) > 2


@pytest.mark.once
def test_rounds_do_without_the_slowest(tmp_path: Path) -> None:
    found = on_ranks(
        f"{CASES}:slow_worker", 4, folder=str(tmp_path), strategy="masters=1,share=dynamic,backup=1"
    )[0]
    assert found["findings"]["gradients_dropped"] > 0
    total = found["findings"]["gradients_dropped"] + found["findings"]["gradients_applied"]
    assert total == sum(found["done"])
    workers, events = np.array(found["workers"]), np.array(found["events"])
    assert set(workers[events == DROPPED].tolist()) >= {0}  # worker 0, rank 1, is the slow one
    assert found["findings"]["staleness"]["largest"] == 0
    assert found["accuracy"] > 0.6


@pytest.mark.once
def test_a_replay_gives_the_same_bits(tmp_path: Path) -> None:
    few = {"draws": 40}
    back = {"draws": 200, "batch": 5, "lr": 3.0, "model": "mlp:16,activation=relu", "on_divergence": "halve"}
    cases = [
        ("masters=2", few),
        ("masters=3,placement=even,share=dynamic", few),
        ("masters=1,bound=1", few),
        ("masters=2,backup=1", few),
        ("masters=2,rule=plain", back),
    ]
    for rank in on_ranks(f"{CASES}:replayed", 6, folder=str(tmp_path), cases=cases):
        for case, found in zip(cases, rank, strict=True):
            assert (found["equal"], found["order"], found["loss"]) == (True, True, True), case
        assert rank[-1]["events"][RESTORED] >= 2  # both masters went back


def test_a_replay_takes_what_was_not_given_and_refuses_what_is_damaged(tmp_path: Path) -> None:
    cases = [("masters=1,share=dynamic", 3, {"draws": 6})]
    on_ranks(f"{CASES}:everything_arrives", 3, folder=str(tmp_path), cases=cases)
    (folder,) = tmp_path.iterdir()
    config = adopt_replayed_settings(Config(replay=str(folder)), given=())
    assert (config.data, config.draws, config.strategy) == (
        "digits", 6, "parameter-server:masters=1,share=dynamic",
    )  # fmt: skip
    check_replay(config, 3, Run(folder).config["samples"], replayable=True)
    adopt_replayed_settings(
        Config(replay=str(folder), strategy="parameter-server:share=dynamic,masters=1"), given=("strategy",)
    )
    with pytest.raises(UsageError, match=r"data is digits in .*, got mnist"):
        adopt_replayed_settings(Config(replay=str(folder), data="mnist"), given=("data",))
    with pytest.raises(UsageError, match="was made on 3 ranks; the job has 4"):
        check_replay(config, 4, Run(folder).config["samples"], replayable=True)
    with pytest.raises(UsageError, match="only a parameter-server run records an order"):
        check_replay(config, 3, 0, replayable=False)
    whole = Run(folder).updates
    short, lacking = {n: c[:-2] for n, c in whole.items()}, {n: c for n, c in whole.items() if n != "worker"}
    mixed = {n: c[::-1] for n, c in whole.items()}
    for damaged, words in (
        (short, "its order does not match summary.json"),
        (mixed, "its order does not match summary.json"),
        (lacking, "it has no column 'worker'"),
        ({n: c for n, c in whole.items() if n != "step"}, "it has no step"),
    ):
        np.savez(folder / "updates.npz", **damaged)
        with pytest.raises(UsageError, match=words):
            check_replay(config, 3, Run(folder).config["samples"], replayable=True)
    (folder / "updates.npz").write_bytes(b"")
    with pytest.raises(UsageError, match="cannot be read"):
        check_replay(config, 3, Run(folder).config["samples"], replayable=True)


def test_divergence_stops_the_run_in_words(tmp_path: Path) -> None:
    found = on_ranks(f"{CASES}:diverging", 4, folder=str(tmp_path), on_divergence="stop", lr=100.0)
    assert len({rank["diverged"] for rank in found}) == 1
    assert "the loss" in found[0]["diverged"]
    assert "with a recent staleness of" in found[0]["diverged"]
    assert found[0]["applied"] < 6 * 288


@pytest.mark.once
def test_divergence_halves_the_step_and_goes_back(tmp_path: Path) -> None:
    found = on_ranks(f"{CASES}:diverging", 4, folder=str(tmp_path), on_divergence="halve", lr=100.0)
    assert found[0]["diverged"] is None
    assert found[0]["finite"]
    assert found[0]["history"] == 6
    assert "training diverged" in found[0]["remarks"][-1]
    assert "half the step" in found[0]["remarks"][-1]
    # The report can be made of what blew up, and each epoch has a time of its own.
    (folder,) = tmp_path.iterdir()
    write_report([Run(folder)], tmp_path / "page.html")
    seconds = [epoch["train_seconds"] for epoch in Run(folder).epochs]
    assert seconds == sorted(set(seconds))


@pytest.mark.parametrize(
    ("options", "ranks", "words"),
    [
        ({"masters": 4}, 4, "4 masters need at least 5 ranks"),
        ({}, 1, "1 master needs at least 2 ranks"),
        ({"backup": 3}, 4, "backup=3 must leave a gradient"),
    ],
)
def test_too_few_ranks_are_refused(options: dict[str, Any], ranks: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ParameterServer(**options).check(ranks)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"masters": 0}, "masters must be at least 1"),
        ({"rule": "wishful"}, "unknown rule 'wishful'; choose one of adaptive"),
        ({"rule": "clip:norm=0"}, "norm"),
        ({"bound": -1}, "bound must be at least 0"),
        ({"bound": 1, "backup": 1}, "exclude each other"),
    ],
)
def test_options_are_checked_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ParameterServer(**options)


def test_what_would_do_nothing_or_harm_is_refused() -> None:
    with pytest.raises(
        UsageError, match="rule=dana has its own momentum: it cannot be combined with --update adam"
    ):
        ParameterServer(rule="dana").check_update("adam")
    with pytest.raises(UsageError, match="masters is given twice"):
        spec.parse("strategies", "parameter-server:masters=1,masters=2")
    scaled = Config(data="iris", strategy="gossip", batch_per_rank=8, lr_scaling="linear")
    with pytest.raises(UsageError, match="lr-scaling=linear is for a global batch that grows"):
        Job(config=scaled).check(2)
    with pytest.raises(UsageError, match="3 masters cannot each own a layer"):
        Job(config=Config(data="iris", model="mlp:8", strategy="parameter-server:masters=3")).check_early(5)
    with pytest.raises(UsageError, match="rule=adaptive makes the whole step itself: --update momentum"):
        ParameterServer(rule="adaptive").check_update("momentum")
    ParameterServer(rule="adaptive").check_update("sgd")
    ParameterServer().check_update("momentum")
    ParameterServer(rule="plain").check_update("momentum")


def test_the_rule_is_chosen_by_the_update() -> None:
    assert ParameterServer().for_update("sgd") == ParameterServer(rule="adaptive")
    for update in ("adam", "sgd:weight-decay=0.1", "momentum:beta=0.5", "my_module:Update"):
        assert ParameterServer(masters=2).for_update(update) == ParameterServer(masters=2, rule="plain")
    assert ParameterServer(rule="clip").for_update("adam").rule == "clip"
    # what is recorded and measured is the rule that was used
    for update, rule in (("sgd", "adaptive"), ("adam", "plain")):
        assert Facts.of(ParameterServer(), ranks=3, update=update).options["rule"] == rule
    with_sgd, with_adam = (
        ParameterServer().remedies("old gradients", update=update) for update in ("sgd", "adam")
    )
    assert with_sgd[0].factors == {"epochs": 2}
    assert with_adam[0].options == {"rule": "gap-aware"}


def test_more_masters_than_layers_are_refused_with_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"3 masters cannot each own a layer .* 2; .*placement=even"):
        ParameterServer(masters=3).check_model(8, MLP([64, 16, 10]))
