"""Measuring a machine and a job: what is made of the figures, by hand; and small measurements, really made."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.config import Config
from paceline.errors import UsageError
from paceline.machine import Costs, Machine, costs_of, make_compute, measure_costs
from paceline.machine import costs as _calibrate_costs
from paceline.machine.calibration import calibrate, link_of
from paceline.machine.costs import merge_tables
from paceline.models.mlp import MLP
from paceline.training.job import Job
from paceline.vmpi import Curves, Network
from tests.ranks import on_ranks

SIZES = [8, 100, 101, 1000]


def _answer(ranks: int, **changes: Any) -> dict[str, Any]:
    """Exchanges of 10 (8 bytes), 11, 20 and 50 (1000 bytes) seconds."""
    plain = {
        "ranks": ranks,
        "eager_limit": 100,
        "post": [[n, 1.0] for n in SIZES],
        "send": [[8, 2.0], [100, 3.0], [101, 2.0], [1000, 2.0]],
        "take": [[8, 4.0], [100, 4.0], [101, 9.0], [1000, 30.0]],
        "exchange": [[8, 10.0], [100, 11.0], [101, 20.0], [1000, 50.0]],
        "alone": [],
    }
    return {**plain, **changes}


@pytest.mark.parametrize("nbytes", SIZES)
def test_the_link_gives_the_exchanges_that_were_measured(nbytes: int) -> None:
    link = link_of([_answer(2)])
    measured = dict(_answer(2)["exchange"])
    assert link.both_ways(nbytes, 2, eager=nbytes <= 100, post=1.0) == measured[nbytes]
    assert link.flight.at(nbytes, 2) == 3.0  # 10 - 1 - 2 - 4


def test_one_that_takes_alone_is_faster_by_as_much_as_was_measured() -> None:
    alone = [[8, 4.0], [100, 8.0], [101, 9.0], [1000, 15.0]]
    link = link_of([_answer(2, alone=alone), _answer(4)])
    assert link.take.at(1000, 2) == 50 - 1 - 2 - 2 * 3
    assert link.take.at(1000, 1) == link.take.at(1000, 2) / 2
    assert link.take.at(100, 1) == link.take.at(100, 2)  # never slower


def test_noise_does_not_make_longer_messages_cheaper() -> None:
    exchange = [[8, 10.0], [100, 11.0], [101, 20.0], [1000, 15.0]]
    link = link_of([_answer(2, exchange=exchange)])
    assert link.take.at(1000, 2) == link.take.at(101, 2)


def test_both_measurements_in_one_table() -> None:
    alone = {"gradient": [[1, 1.0], [2, 2.0]], "evaluate": [[1, math.nan]]}
    together = {"gradient": [[1, 3.0], [4, 2.0]], "serve": [[1, 5.0]], "factors": []}
    assert merge_tables(alone, together) == {"gradient": [[1.0, 2.0], [4.0, 2.0]], "serve": [[1.0, 5.0]]}


def test_refusals() -> None:
    with pytest.raises(UsageError, match="powers of two, from 2; got 6"):
        calibrate([2, 6])
    with pytest.raises(UsageError, match="at least one number of ranks"):
        calibrate([])
    with pytest.raises(UsageError, match=r"must be at least 1; got \[0\]"):
        measure_costs(_job(), [0])


# ---- really measured


@pytest.mark.once
@pytest.mark.mpi
def test_a_short_calibration(tmp_path: Path) -> None:
    machine = calibrate([2], seconds=0.4)
    machine.save(tmp_path / "machine.json")
    assert Machine.load(tmp_path / "machine.json") == machine
    assert 16 <= machine.eager_limit <= 16 << 20
    assert machine.mpi
    assert machine.post > 0
    assert machine.poll > 0
    small, large = (machine.link.both_ways(n, 2, eager=n < 100, post=machine.post) for n in (8, 4 << 20))
    assert 0 < small < large
    passes = [machine.memory[kind] for kind in ("combine", "recombine", "sum", "copy")]
    for curves in (machine.collectives["Allreduce"], *passes):
        assert 0 < curves.at(1024, 2) < curves.at(4 << 20, 2)
    assert machine.collectives["Barrier"].at(0, 2) > 0
    assert Network.named("loopback", node=machine).wires(2).fetch(0, 1, 1 << 20, 0.0)[1] > 0


def _job(model: Any = None, **changes: Any) -> Job:
    config = Config(**{"data": "iris", "model": "mlp:8", "strategy": "sync", "batch": 16, **changes})
    return Job(config=config, model=model, runs=None)


def test_costs_of_a_job_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    costs = costs_of(_job(), [1, 2], seconds=0.05)
    assert {"gradient", "update", "evaluate"} <= set(costs.work)
    assert list(costs.work["gradient"].tables) == [1, 2]
    assert 0 < costs.work["gradient"].at(1, 1) <= costs.work["gradient"].at(16, 1)
    ranks = make_compute(None, costs).start([0, 0])
    assert ranks.seconds("gradient", 8, 0) > 0

    def refused(*_: Any, **__: Any) -> Costs:
        raise AssertionError("measured again")

    monkeypatch.setattr(_calibrate_costs, "measure_costs", refused)
    assert costs_of(_job(), [1, 2]) == costs
    alone = costs_of(_job(strategy="local-sgd"), [1, 2])  # was measured on the way
    assert alone.work["gradient"].tables[1] == costs.work["gradient"].tables[1]
    for other in (
        _job(batch=8),
        _job(update="adam"),
        _job(model=MLP([4, 9, 3])),
        _job(strategy="parameter-server"),
    ):
        with pytest.raises(AssertionError, match="measured again"):
            costs_of(other, [1, 2])
    with pytest.raises(AssertionError, match="measured again"):
        costs_of(_job(), [1, 2], again=True)


def test_a_model_that_was_given_is_known_by_its_kind_and_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    made: list[Job] = []

    def measured(job: Job, *_: Any, **__: Any) -> Costs:
        made.append(job)
        return Costs(work={"gradient": Curves.of({1: [[1, float(len(made))]]})})

    monkeypatch.setattr(_calibrate_costs, "measure_costs", measured)

    def of(width: int, seed: int) -> Costs:
        return costs_of(_job(model=MLP([4, width, 3], seed=seed), strategy="local-sgd"))

    first = of(9, 1)
    assert of(9, 2) == first
    assert of(7, 1) != first
    assert len(list(tmp_path.glob("costs-*.json"))) == 2
    damaged = next(iter(tmp_path.glob("costs-*.json")))
    damaged.write_text(json.dumps({"kind": "costs"}))
    for width in (9, 7):
        of(width, 3)
    assert len(made) == 3  # what is damaged is measured again, the other not


@pytest.mark.once
def test_work_together() -> None:
    told = on_ranks(
        "tests.machine.calibration_cases:work", 2,
        strategies=["sync", "sync:allreduce=ring", "parameter-server:rule=plain"], model="mlp:40,40", data="digits",
        batch=8,
    )  # fmt: skip
    assert repr(told[0]) == repr(told[1])  # every rank knows what all have measured (NaN: too little)
    shared, ring, server = (told[0][name]["more"] for name in told[0])
    parameters = 64 * 40 + 40 + 40 * 40 + 40 + 40 * 10 + 10
    assert ring["update"][0][0] == 2 * shared["update"][0][0] == parameters
    assert ring["factors"] == []
    assert [size for size, _ in shared["gradient"]] == [1, 2, 4]
    assert [size for size, _ in shared["factors"]] == [1, 2, 4]
    assert [amount for amount, _ in shared["part"]] == [parameters * size for size in (1, 2, 4)]
    pieces = [40 * 65, 40 * 41, 10 * 41, parameters]
    assert sorted(size for size, _ in server["rule"]) == sorted(pieces)
    assert {"serve", "lead", "prepare"} <= server.keys()
    for measured in (shared, ring, server):
        for kind in measured.keys() - {"spread"}:
            assert np.all(np.array(measured[kind]) > 0)
