"""weight-average, local-sgd, elastic and psgd do what a few lines of NumPy say, on any number of ranks."""

from __future__ import annotations

import re
from typing import Any

import pytest

from paceline import fit
from paceline.config import Config
from paceline.errors import UsageError
from paceline.strategies.elastic import Elastic
from paceline.strategies.local_sgd import LocalSgd
from paceline.strategies.psgd import Psgd
from paceline.strategies.weight_average import WeightAverage
from paceline.training.job import Job
from tests.ranks import on_ranks

CASES = "tests.strategies.averaging_cases"
STRATEGIES = [
    "weight-average",
    "weight-average:allreduce=ring",
    "local-sgd:every=1",
    "local-sgd:every=3,allreduce=native",
    "local-sgd:every=5,warmup=4",
    "local-sgd:every=4,outer-momentum=0.9,outer-lr=0.7",
    "local-sgd:every=2,outer-lr=0.5,warmup=3",
    "local-sgd:every=none",
    "local-sgd:warmup=1000",
    "elastic:every=3",
    "elastic:every=1,moving-rate=0.2",
    "psgd",
]


def check(found: list[list[dict[str, Any]]], runs: list[Any]) -> None:
    for rank, rows in enumerate(found):
        mine = [run for run in runs if rank < run[2]]
        for run, row in zip(mine, rows, strict=True):
            assert row["moved"] > 1e-3, run
            assert row["off"] < 1e-10, (run, rank, row)
            for got, wanted in row["accuracies"]:
                assert got == pytest.approx(wanted), (run, rank, row)


@pytest.mark.once
def test_mlp_against_numpy() -> None:
    runs = [(name, "MLP", 4) for name in STRATEGIES]
    runs += [(name, "DRAWN", 2) for name in STRATEGIES]  # one rank has a batch more
    runs += [(name, "DRAWN", 1) for name in STRATEGIES[5:]]
    runs += [(name, "ODD", 4) for name in STRATEGIES[::3]]  # a turn for which most have nothing left
    runs += [(name, "FEW", 3) for name in STRATEGIES[1::2]]  # a rank that never has a batch
    check(on_ranks(f"{CASES}:against_numpy", 4, runs=runs), runs)


@pytest.mark.once
def test_torch_models() -> None:
    names = ("weight-average", "local-sgd:every=2,warmup=1", "elastic:every=2", "psgd")
    runs = [(name, "CNN", 3) for name in names]
    found = on_ranks(f"{CASES}:torch_models", 3, runs=runs)
    check([cnn for cnn, _ in found], runs)
    first, *others = (statistics for _, statistics in found)
    assert all(other == first for other in others)
    assert all(any(run["mean"]) for run in first)
    assert min(run["test"] for run in first) > 0.3


@pytest.mark.once
def test_every_part_of_psgd_says_how_it_ended() -> None:
    runs = [("psgd", "MLP", 3), ("psgd:tolerance=0.15", "LONG", 3), ("psgd", "FEW", 3)]
    found = on_ranks(f"{CASES}:against_numpy", 3, runs=runs)
    check(found, runs)
    for rows in found:
        for row in rows:
            for part, wanted in zip(*row["parts"], strict=True):
                assert part["loss"] == pytest.approx(wanted.pop("loss"))
                assert {name: part[name] for name in wanted} == pytest.approx(wanted)
                assert not part["diverged"]
    whole, ended, few = (
        [(part["epochs"], part["converged"]) for part in row["parts"][0]] for row in found[0]
    )
    assert whole == [(2, False)] * 3
    assert len(set(ended)) > 1
    assert all(converged or epochs == 8 for epochs, converged in ended)
    assert few == [(3, False)] * 3
    assert [part["loss"] is None for part in found[0][2]["parts"][0]] == [False, False, True]


@pytest.mark.once
def test_strategies_that_must_agree_exactly() -> None:
    for rank in on_ranks(f"{CASES}:to_the_bit", 3):
        assert len(rank) == 4 * 5
        assert all(rank.values()), rank


def test_one_rank_is_serial() -> None:
    (found,) = on_ranks(f"{CASES}:alone", 1)
    assert len(found) == 4
    assert max(found.values()) == 0


@pytest.mark.once
def test_momentum_and_schedule() -> None:
    for differences in on_ranks(f"{CASES}:with_memory", 3):
        assert max(differences) < 1e-10


def test_messages_and_bytes() -> None:
    (found, *_) = on_ranks(f"{CASES}:traffic", 2)  # 7 draws of two ranks: 4 turns an epoch, 3 epochs
    assert found == {
        "weight-average": [24, 24, 0],
        "local-sgd:every=4": [6, 6, 0],
        "local-sgd:every=4,warmup=2": [10, 10, 0],
        "psgd": [2, 2, 0],
        "elastic:every=5": [6, 6, 0],
    }


@pytest.mark.once
def test_divergence_is_stopped_or_survived() -> None:
    found = on_ranks(f"{CASES}:diverging", 2)
    for rank in found:
        assert len(rank) == 5
        for run in rank:
            assert run["stopped"], run
            assert run["epochs"] < 12, run
            assert run["halved"] is None, run
            assert run["finite"], run
            assert run["alike"], run
            assert run["accuracy"] > 0.5, run


@pytest.mark.once
def test_psgd_of_real_labels() -> None:
    for average, remarks in on_ranks(f"{CASES}:regression", 2):
        assert average["test_accuracy"] is None
        assert re.fullmatch(
            r"test loss: [\d.]+ for the average, [\d.]+ to [\d.]+ for its parts; after 1 epoch",
            remarks[0],
        )


def test_psgd_says_what_came_of_it() -> None:
    fitted = fit("mlp:8", "iris", strategy="psgd:tolerance=0.5", epochs=9, batch=10, runs=None, quiet=True)
    (remark,) = fitted.remarks
    epochs = len(fitted.history)
    assert 1 < epochs < 9
    assert remark == (
        f"test accuracy: {100 * fitted.test_accuracy:.2f} % for the average, {100 * fitted.test_accuracy:.2f} % to "
        f"{100 * fitted.test_accuracy:.2f} % for its parts; 1 of 1 converged, after {epochs} epochs"
    )


@pytest.mark.parametrize("strategy", ["weight-average", "local-sgd", "elastic", "psgd"])
def test_no_epochs_no_training(strategy: str) -> None:
    fitted = fit("mlp:8", "iris", strategy=strategy, epochs=0, batch=10, runs=None, quiet=True)
    serial = fit("mlp:8", "iris", strategy="serial", epochs=0, batch=10, runs=None, quiet=True)
    assert (fitted.model.x == serial.model.x).all()
    assert fitted.history == ()
    with pytest.raises(UsageError, match="a batch of 40 is more than the 30 training samples that each of 4"):
        Job(config=Config(data="iris", batch=40, strategy=strategy)).check(4)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: WeightAverage(allreduce="rng"), "unknown collective 'rng'; choose one of"),
        (
            lambda: LocalSgd(every=0),
            "every of local-sgd (or none: at the end only) must be at least 1; got 0",
        ),
        (lambda: LocalSgd(warmup=-1), "warmup of local-sgd must be at least 0; got -1"),
        (lambda: LocalSgd(outer_momentum=1.0), "outer-momentum of local-sgd must be at least 0 and below 1"),
        (lambda: LocalSgd(outer_lr=0.0), "outer-lr of local-sgd must be above 0; got 0"),
        (lambda: LocalSgd(allreduce="rng"), "unknown collective 'rng'"),
        (lambda: Elastic(every=0), "every of elastic must be at least 1; got 0"),
        (lambda: Elastic(moving_rate=0.0), "moving-rate of elastic must be above 0; got 0"),
        (
            lambda: Elastic(moving_rate=0.4).check(4),
            "must be below 2 / (ranks + 1), or the centre oscillates",
        ),
        (lambda: Elastic(allreduce="rng"), "unknown collective 'rng'"),
        (lambda: Psgd(tolerance=-0.1), "tolerance of psgd must be at least 0; got -0.1"),
        (lambda: Psgd(allreduce="rng"), "unknown collective 'rng'"),
    ],
)
def test_refused(make: Any, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        make()
