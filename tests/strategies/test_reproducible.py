"""`--reproducible V`: 1, 2, 4 ... V ranks end with the same bits, real and simulated ones."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import fit
from paceline.config import Config
from paceline.errors import UsageError
from paceline.training.rank import Fitted
from tests.ranks import on_ranks

MLP: dict[str, Any] = {
    "model": "mlp:16,8", "data": "iris", "epochs": 3, "batch": 50, "lr": 0.5, "seed": 3,
}  # fmt: skip
CNN: dict[str, Any] = {
    "model": "cnn", "data": "synthetic:samples=150,features=20x20,classes=3", "epochs": 1, "batch": 36,
}  # fmt: skip


def scores(fitted: Fitted) -> list[float | None]:
    epochs = [(epoch.validation_loss, epoch.validation_accuracy) for epoch in fitted.history]
    return [score for pair in epochs for score in pair] + [fitted.test_loss, fitted.test_accuracy]


@pytest.mark.parametrize(
    ("settings", "network"),
    [
        (MLP, "loopback"),
        (MLP | {"strategy": "sync:allreduce=shared-memory", "update": "adam", "lr": 0.01}, "loopback"),
        (MLP | {"strategy": "sync:allreduce=recursive-doubling"}, "loopback"),
        (MLP | {"strategy": "sync:allreduce=hierarchical"}, "10gbe:ranks-per-node=2"),
        (MLP, "10gbe:ranks-per-node=1"),
        (MLP, "10gbe:ranks-per-node=3"),
        (MLP | {"draws": 5, "batch": 5}, "10gbe:ranks-per-node=4"),
        (MLP | {"update": "tests.strategies.own_updates:Clipped"}, "loopback"),
        (CNN, "loopback"),
    ],
    ids=str,
)
def test_simulated_ranks_end_with_the_same_bits(machine: str, settings: dict[str, Any], network: str) -> None:
    given = {**settings, "reproducible": 8, "runs": None, "quiet": True}
    serial = fit(**{**given, "strategy": "serial"})
    for ranks in (1, 2, 4, 8):
        fitted = fit(on="sim", ranks=ranks, network=network, machine=machine, **given)
        assert np.array_equal(fitted.model.x, serial.model.x), ranks
        assert scores(fitted) == scores(serial)


def test_without_it_the_bits_depend_on_the_ranks(machine: str) -> None:
    """Otherwise the tests above would show nothing."""
    one, eight = (
        fit(on="sim", ranks=ranks, machine=machine, runs=None, quiet=True, **MLP).model.x for ranks in (1, 8)
    )
    assert not np.array_equal(one, eight)
    assert np.allclose(one, eight, atol=1e-4)


@pytest.mark.parametrize(
    "settings",
    [MLP, pytest.param(CNN | {"strategy": "sync:allreduce=recursive-doubling"}, marks=pytest.mark.once)],
    ids=["mlp", "cnn"],
)
def test_real_ranks_end_with_the_same_bits(machine: str, settings: dict[str, Any]) -> None:
    found = on_ranks("tests.strategies.reproducible_cases:digests", 4, time_limit=600, **settings)
    assert list(found[0]) == ["1", "2", "4"]
    simulated = fit(on="sim", ranks=4, machine=machine, runs=None, quiet=True, reproducible=8, **settings)
    expected = hashlib.sha256(np.asarray(simulated.model.x).tobytes()).hexdigest()
    assert {digest for of_rank in found for digest in of_rank.values()} == {expected}


def test_resumed_on_another_number_of_ranks(machine: str, tmp_path: Path) -> None:
    given = {**MLP, "update": "adam", "lr": 0.01, "reproducible": 8, "quiet": True}
    whole = fit(**{**given, "strategy": "serial"}, runs=None)
    begun = fit(
        **(given | {"epochs": 1}), on="sim", ranks=2, machine=machine, runs=tmp_path, checkpoint_every="epoch"
    )
    assert begun.run is not None
    resumed = fit(resume=begun.run, ranks=8, epochs=2, quiet=True)
    assert np.array_equal(resumed.model.x, whole.model.x)


@pytest.mark.parametrize(
    ("settings", "ranks", "said"),
    [
        ({"reproducible": 6}, 2, "reproducible must be a power of two; got 6"),
        ({"reproducible": 0}, 1, "reproducible must be a whole number of at least 1; got 0"),
        ({"reproducible": 8, "batch": None, "batch_per_rank": 4}, 2, "reproducible needs batch"),
        ({"reproducible": 8}, 3, "reproducible=8 needs a number of ranks that divides 8; got 3"),
        ({"reproducible": 8}, 16, "reproducible=8 needs a number of ranks that divides 8; got 16"),
        ({"reproducible": 8, "strategy": "local-sgd"}, 2, "local-sgd cannot be reproducible"),
        ({"reproducible": 8, "tolerate_failures": True}, 2, "reproducible and tolerate-failures exclude"),
        ({"reproducible": 8, "strategy": "sync:balance=true"}, 2, "balance=true cannot be reproducible"),
        (
            {"reproducible": 8, "strategy": "sync:allreduce=ring"},
            2,
            "adds in a fixed order: auto, .*; got ring",
        ),
    ],
    ids=str,
)
def test_refusals(machine: str, settings: dict[str, Any], ranks: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        fit(on="sim", ranks=ranks, machine=machine, runs=None, quiet=True, **(MLP | settings))


def test_hierarchical_needs_regular_nodes(machine: str) -> None:
    given = {**MLP, "strategy": "sync:allreduce=hierarchical", "reproducible": 8}
    with pytest.raises(UsageError, match="the same number of ranks, a power of two, on every node"):
        fit(
            on="sim",
            ranks=8,
            network="10gbe:ranks-per-node=3",
            machine=machine,
            runs=None,
            quiet=True,
            **given,
        )


def test_threads_are_one_unless_given() -> None:
    assert (Config(reproducible=4).threads, Config(reproducible=4, threads=2).threads, Config().threads) == (
        1,
        2,
        None,
    )
