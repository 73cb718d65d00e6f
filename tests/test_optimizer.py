"""`fit` with a torch optimizer, clipping and metrics: any exchange on any ranks gives what one process does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from paceline import fit  # noqa: E402
from paceline.errors import UsageError  # noqa: E402
from paceline.record import Run  # noqa: E402
from tests.optimizer_cases import (  # noqa: E402
    INPUTS,
    LABELS,
    SETTINGS,
    make_adafactor,
    make_net,
    make_optimizer,
    perplexity,
)
from tests.ranks import on_ranks  # noqa: E402

pytestmark = pytest.mark.once

COLLECTIVES = (
    "naive", "ring", "recursive-doubling", "rabenseifner", "hierarchical", "native", "shared-memory",
)  # fmt: skip
CLOSE = {"rtol": 1e-7, "atol": 1e-10}


@pytest.fixture(scope="module")
def serial() -> Any:
    return fit(make_net(), strategy="serial", runs=None, **SETTINGS)


def own_loop(steps_like: Any) -> np.ndarray:
    """The same training written with torch alone, on the batches that paceline drew."""
    from paceline.data import Batches, load

    data = load((INPUTS, LABELS))
    net = make_net()
    optimizer = make_optimizer(net)
    batches = Batches(data.train, batch=20, seed=0, dtype=np.dtype(np.float64))
    for epoch in range(2):
        for batch in batches.epoch(epoch):
            optimizer.zero_grad()
            outputs = net(torch.from_numpy(np.asarray(batch.inputs)))
            torch.nn.functional.cross_entropy(
                outputs, torch.from_numpy(np.asarray(batch.labels)).long()
            ).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.2)
            optimizer.step()
    return np.concatenate([p.detach().numpy().reshape(-1) for p in net.parameters()])


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_sync_equals_serial_with_adamw_and_clipping(serial: Any, machine: str, collective: str) -> None:
    network = "10gbe:ranks-per-node=2" if collective == "hierarchical" else "loopback"
    fitted = fit(
        make_net(), strategy=f"sync:allreduce={collective}", ranks=3, on="sim", network=network, machine=machine,
        runs=None, **SETTINGS,
    )  # fmt: skip
    np.testing.assert_allclose(fitted.model.x, serial.model.x, **CLOSE)
    assert fitted.metrics["perplexity"] == pytest.approx(serial.metrics["perplexity"], rel=1e-9)
    assert fitted.test_metrics["perplexity"] == pytest.approx(serial.test_metrics["perplexity"], rel=1e-9)


def test_real_ranks_equal_serial_with_adamw_and_clipping(serial: Any) -> None:
    for collective in ("ring", "shared-memory"):
        for x, valid, test in on_ranks(
            "tests.optimizer_cases:train", 2, strategy=f"sync:allreduce={collective}"
        ):
            np.testing.assert_allclose(x, serial.model.x, **CLOSE)
            assert valid == pytest.approx(serial.metrics["perplexity"], rel=1e-9)
            assert test == pytest.approx(serial.test_metrics["perplexity"], rel=1e-9)


@pytest.mark.parametrize("collective", ["ring", "shared-memory"])
def test_without_clipping_each_rank_may_update_its_own_part(machine: str, collective: str) -> None:
    settings = {**SETTINGS, "clip": None, "runs": None, "schedule": "cosine"}
    alone = fit(make_net(), strategy="serial", **settings)
    fitted = fit(
        make_net(), strategy=f"sync:allreduce={collective}", ranks=3, on="sim", machine=machine, **settings
    )
    np.testing.assert_allclose(fitted.model.x, alone.model.x, **CLOSE)


@pytest.mark.parametrize("collective", ["ring", "shared-memory"])
def test_an_optimizer_that_is_not_element_wise_gets_whole_vectors(machine: str, collective: str) -> None:
    settings = {**SETTINGS, "optimizer": make_adafactor, "runs": None}
    alone = fit(make_net(), strategy="serial", **settings)
    fitted = fit(
        make_net(), strategy=f"sync:allreduce={collective}", ranks=3, on="sim", machine=machine, **settings
    )
    np.testing.assert_allclose(fitted.model.x, alone.model.x, **CLOSE)


@pytest.mark.parametrize(
    "strategy",
    ["parameter-server:masters=2", "local-sgd:every=2", "elastic", "gossip", "hogwild", "weight-average"],
)
def test_every_strategy_takes_an_optimizer(machine: str, strategy: str) -> None:
    settings = {**SETTINGS, "clip": None, "epochs": 3, "runs": None}
    fitted = fit(make_net(), strategy=strategy, ranks=4, on="sim", machine=machine, **settings)
    assert fitted.diverged is None
    first, last = fitted.history[0], fitted.history[-1]
    assert last.loss < first.loss
    assert [epoch.metrics.keys() for epoch in fitted.history] == [{"perplexity"}] * 3
    assert fitted.metrics["perplexity"] == pytest.approx(np.exp(last.validation_loss), rel=1e-6)


def test_a_server_of_one_worker_steps_as_serial_does(machine: str) -> None:
    settings = {**SETTINGS, "clip": None, "runs": None}
    alone = fit(make_net(), strategy="serial", **settings)
    for masters in (1, 2):
        fitted = fit(
            make_net(), strategy=f"parameter-server:masters={masters},placement=even", ranks=masters + 1, on="sim",
            machine=machine, **settings,
        )  # fmt: skip
        np.testing.assert_allclose(fitted.model.x, alone.model.x, **CLOSE)


def test_it_is_what_torch_does_by_itself(serial: Any) -> None:
    np.testing.assert_allclose(serial.model.x, own_loop(serial), **CLOSE)


def test_what_an_optimizer_remembers_must_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    size, need = (
        sum(p.numel() for p in make_net().parameters()),
        2 * sum(p.nbytes for p in make_net().parameters()),
    )
    settings = {**SETTINGS, "strategy": "serial", "runs": None}
    monkeypatch.setattr("paceline.launch.resources.memory_available", lambda _: need - 1)
    with pytest.raises(
        UsageError, match=rf"AdamW keeps 2 numbers for each of the {size:,} parameters and needs"
    ):
        fit(make_net(), **settings)
    monkeypatch.setattr("paceline.launch.resources.memory_available", lambda _: need)
    fit(make_net(), **settings)


def test_a_module_with_a_loss_is_recorded_by_its_own_name(tmp_path: Path) -> None:
    loss = torch.nn.functional.cross_entropy
    fitted = fit((make_net(), loss), **{**SETTINGS, "strategy": "serial", "epochs": 1}, runs=tmp_path)
    assert Run(fitted.run).config["model"] == "torch.nn.modules.container:Sequential"


def test_a_run_is_recorded_and_goes_on_to_rounding_on_another_number_of_ranks(
    machine: str, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "strategy": "sync:allreduce=shared-memory", "clip": None}
    simulated = {"on": "sim", "machine": machine}
    whole = fit(make_net(), ranks=4, runs=None, **simulated, **settings)
    half = fit(
        make_net(), ranks=4, runs=tmp_path, checkpoint_every="epoch", **simulated, **{**settings, "epochs": 1}
    )
    run = Run(half.run)
    assert run.config["update"] == "AdamW(lr=0.01, weight_decay=0.1; group 2: weight_decay=0)"
    assert run.config["metrics"] == ["perplexity"]
    assert run.epochs[0]["metrics"] == half.metrics == run.summary["metrics"]
    assert run.summary["test_metrics"] == half.test_metrics
    with pytest.raises(UsageError, match=r"objects of a program \(.*update"):
        fit(make_net(), (INPUTS, LABELS), resume=half.run, epochs=1, quiet=True)
    again = fit(
        make_net(), (INPUTS, LABELS), resume=half.run, ranks=2, epochs=1, optimizer=make_optimizer,
        metrics={"perplexity": perplexity}, quiet=True,
    )  # fmt: skip
    np.testing.assert_allclose(again.model.x, whole.model.x, **CLOSE)
    same = fit(make_net(), ranks=2, runs=None, **simulated, **settings)
    np.testing.assert_allclose(again.model.x, same.model.x, **CLOSE)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lr": 0.1}, "lr and optimizer exclude each other: give the learning rate to the optimizer"),
        ({"update": "adam"}, "update and optimizer exclude each other"),
        ({"optimizer": torch.optim.SGD([torch.zeros(1)], lr=1)}, "a function from the module .* got SGD"),
        ({"optimizer": torch.optim.SGD}, "a function from the module .* calling it failed: TypeError"),
        ({"optimizer": lambda net: net}, "must be a torch.optim.Optimizer; got Sequential"),
        ({"optimizer": lambda net: torch.optim.LBFGS(net.parameters())}, "LBFGS computes several gradients"),
        ({"model": "mlp:8"}, "optimizer needs a torch module"),
        ({"clip": 0}, "clip must be a number above 0; got 0"),
        ({"clip": 1.0, "strategy": "parameter-server", "ranks": 2}, "--clip needs the whole vector"),
        ({"optimizer": make_adafactor, "clip": None, "strategy": "parameter-server", "ranks": 2},
         "^the optimizer .*make_adafactor needs the whole vector"),
        ({"metrics": perplexity}, "metrics must be functions of outputs and labels by name"),
        ({"metrics": {"loss": perplexity}}, "loss is always recorded"),
        ({"metrics": {"p": 3}}, "a metric must be a function of outputs and labels; p is of type int"),
        ({"metrics": {"a<b": perplexity}}, "the name of a metric"),
        ({"metrics": {"p": lambda outputs, labels: "high"}}, "the metric p must return a number; got str"),
        ({"metrics": {"p": lambda outputs: 1.0}}, "the metric p failed: TypeError"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_line(settings: dict[str, Any], words: str) -> None:
    given = {"model": make_net(), "strategy": "serial", "runs": None, **SETTINGS, **settings}
    with pytest.raises(UsageError, match=words) as caught:
        fit(**given)
    assert "\n" not in str(caught.value)


def test_a_metric_that_fails_on_rank_0_ends_every_rank() -> None:
    found = on_ranks("tests.optimizer_cases:fail", 2)
    assert found == ["the metric wrong failed: ZeroDivisionError: division by zero"] * 2


def test_a_network_in_numpy_has_metrics_of_arrays() -> None:
    seen: list[Any] = []

    def error(outputs: Any, labels: Any) -> float:
        seen.append((type(outputs), outputs.shape, labels.shape))
        return float((outputs.argmax(1) != labels).mean())

    fitted = fit("mlp:8", "iris", strategy="serial", epochs=2, batch=10, clip=1.0, runs=None, quiet=True,
                 metrics={"error": error})  # fmt: skip
    assert fitted.metrics["error"] == pytest.approx(1 - fitted.validation_accuracy)
    assert fitted.test_metrics["error"] == pytest.approx(1 - fitted.test_accuracy)
    assert seen[0][0] is np.ndarray
    assert seen[0][1][0] == seen[0][2][0]
