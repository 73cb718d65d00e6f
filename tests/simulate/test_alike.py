"""Ranks that do the same are simulated as one, with the results of ranks that are simulated one by one."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.config import Config
from paceline.data import Dataset, load
from paceline.record import Run
from paceline.simulate import training
from paceline.simulate.case import Workload
from paceline.simulate.options import Options
from paceline.simulate.training import Simulation, simulate
from paceline.training.rank import Fitted, Job
from paceline.vmpi import Compute, Curves, Network, parse_network
from paceline.vmpi.alike import GroupTime, NotAlike, run_alike
from tests.simulate.costs import COSTS, WORK

SUMS = ("native", "ring", "recursive-doubling", "auto")
STRATEGIES = [
    *(f"sync:allreduce={name}" for name in SUMS),
    *(f"local-sgd:allreduce={name},every=3" for name in SUMS[:2]),
    "local-sgd:allreduce=native,warmup=2,outer-momentum=0.9",
    "weight-average:allreduce=recursive-doubling",
    "sync:allreduce=native,overlap=true,bucket=0.001",
]
NETWORKS = (
    "loopback", "10gbe", "infiniband", "25gbe:ranks-per-node=4", "nvlink", "10gbe:nodes-per-switch=2,oversubscription=3",
    "25gbe:ranks-per-node=4,inside=nvlink,cards=2", "10gbe:jitter=0.2", "infiniband:ranks-per-node=4,sockets=2,cores=4",
)  # fmt: skip
# The times of computing depend on the number of ranks on a node.
SHARED = replace(
    COSTS, work={kind: Curves.of({1: points, 4: [[n, 2 * t] for n, t in points]}) for kind, points in WORK.items()}
)  # fmt: skip


@pytest.fixture(scope="module")
def iris() -> Dataset:
    return load("iris")


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> list[list[range]]:
    """Return a list that gets the groups of every run whose ranks were simulated as one."""
    found: list[list[range]] = []

    def note(function: Any, groups: list[range], **named: Any) -> Any:
        values = run_alike(function, groups, **named)
        found.append(groups)
        return values

    monkeypatch.setattr(training, "run_alike", note)
    return found


def both(workload: Workload, strategy: str, ranks: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the results of a run with ranks simulated as one if they can be, and one by one."""

    def run() -> dict[str, Any]:
        candidate = workload.candidate(strategy, ranks)
        fitted: Fitted = workload.run(candidate, candidate.scenario, candidate.whole_run)
        return {name: value for name, value in vars(fitted).items() if name != "model"}

    one = run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Simulation, "_find_groups", lambda self: [])
        return one, run()


@pytest.mark.parametrize("network", NETWORKS)
def test_results_are_those_of_ranks_simulated_one_by_one(
    network: str, iris: Dataset, whole: list[list[range]]
) -> None:
    draw = random.Random(network)
    for strategy in STRATEGIES:
        own = not strategy.startswith("sync")
        config = Config(
            data="iris", model=draw.choice(["mlp:8", "mlp:200"]), epochs=draw.choice([1, 2]),
            batch=draw.choice([5, 7]) if own else draw.choice([2, 40, 50, 60]), draws=draw.choice([None, 9]),
        )  # fmt: skip
        options = Options(jitter=draw.choice([0.0, 0.3]), slow=draw.choice(["", "1:3x"]))
        workload = Workload(
            config=config, data=iris, costs=draw.choice([COSTS, SHARED]), network=parse_network(network), options=options
        )  # fmt: skip
        one, other = both(workload, strategy, draw.choice([2, 4, 5, 7, 8, 13]))
        assert one == other, (strategy, config, options)
    assert whole


@pytest.mark.parametrize(
    "network",
    ["nvlink", "25gbe:ranks-per-node=4,inside=pcie", "1gbe:library=nccl", "10gbe:progress=thread,jitter=0.2"],
)
def test_sums_in_the_background_are_those_of_ranks_simulated_one_by_one(
    network: str, iris: Dataset, whole: list[list[range]]
) -> None:
    """Of buckets that are done before, during and after the backward pass, on ranks with the same and other samples."""
    draw = random.Random(network)
    for layers, bucket in (("64,64,64,64", 0.002), ("64,64,64,64", 0.02), ("300,300", 0.1), ("8", 1)):
        config = Config(
            data="iris", model=f"mlp:{layers}", epochs=2, batch=draw.choice([16, 50]), draws=draw.choice([None, 9])
        )  # fmt: skip
        options = Options(jitter=draw.choice([0.0, 0.3]), slow=draw.choice(["", "1:3x"]))
        workload = Workload(
            config=config, data=iris, costs=COSTS, network=parse_network(network), options=options
        )
        strategy = f"sync:allreduce=native,overlap=true,bucket={bucket}"
        one, other = both(workload, strategy, draw.choice([4, 7, 13]))
        assert one == other, (config, options)
        assert len(whole) == 1, strategy
        whole.clear()


@pytest.mark.parametrize(
    ("strategy", "most"),
    [
        ("local-sgd:allreduce=native", 24),
        ("weight-average:allreduce=native", 24),
        ("sync:allreduce=native", 4 * 24),
    ],
)
def test_steps_of_all_ranks_together_limit_how_many_are_simulated_as_one(
    strategy: str, most: int, iris: Dataset, whole: list[list[range]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a local method a run's batches are divided among the ranks; in `sync` every rank has a part of each."""
    config = Config(data="iris", model="mlp:8", batch=5, epochs=1, draws=24)
    workload = Workload(config=config, data=iris, costs=COSTS, network=Network.named("10gbe"))
    candidate = workload.candidate(strategy, 4)
    for limit, groups in ((most - 1, 0), (most, 1)):
        monkeypatch.setattr(training, "MOST_STEPS", limit)
        workload.run(candidate, candidate.scenario, candidate.whole_run)
        assert len(whole) == groups


def test_ranks_with_fewer_samples_are_groups_of_their_own(iris: Dataset, whole: list[list[range]]) -> None:
    config = Config(data="iris", model="mlp:8", batch=50, epochs=1)
    workload = Workload(config=config, data=iris, costs=COSTS, network=Network.named("10gbe"))
    one, other = both(workload, "sync:allreduce=native", 16)
    assert one == other
    # 120 training samples, batches of 50 and 20 at the end: 3 of them; 15 samples to validate with, and 15 to test.
    assert [ranks.start for ranks in whole[0]] == [0, 2, 3, 4, 8, 15]


@pytest.mark.parametrize(
    ("strategy", "network"),
    [
        ("sync:allreduce=ring", "10gbe:ranks-per-node=2"),  # whose messages are sent one by one
        ("sync:allreduce=hierarchical", "10gbe:ranks-per-node=2"),
        ("sync:allreduce=shared-memory", "loopback"),
        ("sync:allreduce=native,overlap=true", "10gbe"),
        ("sync:allreduce=native,balance=true", "10gbe"),
        ("parameter-server", "10gbe"),
        ("gossip", "10gbe"),
    ],
)
def test_ranks_that_differ_are_simulated_one_by_one(
    strategy: str, network: str, iris: Dataset, whole: list[list[range]]
) -> None:
    config = Config(data="iris", model="mlp:8", batch=16, epochs=1, draws=9)
    workload = Workload(config=config, data=iris, costs=COSTS, network=parse_network(network))
    one, other = both(workload, strategy, 4)
    assert one == other
    assert not whole


class Noted:
    """Progress that is noted in a list."""

    def __init__(self, into: list[Any], *given: Any) -> None:
        self._into = into
        into.append(given)

    def step(self, step: int, loss: float) -> None:
        self._into.append(step)

    def epoch(self, epoch: Any) -> None:
        self._into.append(epoch)

    def close(self) -> None:
        self._into.append("end")


def test_record_is_that_of_ranks_simulated_one_by_one(tmp_path: Path, whole: list[list[range]]) -> None:
    COSTS.save(tmp_path / "costs.json")
    options = Options(network="10gbe", compute=False, machine=str(tmp_path / "costs.json"), jitter=0.2)
    config = Config(data="iris", model="mlp:200", batch=50, epochs=2, strategy="sync:allreduce=native")

    def record(name: str) -> tuple[list[Any], dict[str, Any], dict[str, Any], list[str]]:
        """Return what a recorded run shows, its steps and its summary, and the files in its folder."""
        shown: list[Any] = []
        job = Job(config=config, runs=tmp_path, run_name=name)
        fitted = simulate(job, 13, options, progress=lambda *given: Noted(shown, *given))
        assert fitted.run is not None
        run = Run(fitted.run)
        steps = {column: repr(values.tolist()) for column, values in run.steps.items()}
        return shown, steps, {**run.summary, "run": ""}, sorted(path.name for path in run.folder.iterdir())

    one = record("one")
    assert len(whole) == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Simulation, "_find_groups", lambda self: [])
        assert record("other") == one


def pretend(function: Any, *groups: range, compute: Compute | None = None) -> list[Any]:
    return run_alike(
        function, groups, network=Network.named("10gbe"), compute=compute, carries=lambda kind, nbytes: True
    )


def test_values_of_groups_are_those_of_their_ranks() -> None:
    def program(comm: Any) -> tuple[float, float]:
        mine, total, first = (
            np.array([comm.Get_rank() + 1.0]),
            np.empty(1),
            np.array([float(comm.Get_rank())]),
        )
        comm.Allreduce(mine, total)
        comm.Bcast(first)
        return float(total[0]), float(first[0])

    # Ranks 0 to 2 are as the first of them, 3 and 4 too: 1 + 1 + 1 + 4 + 4.
    assert pretend(program, range(3), range(3, 5)) == [(11.0, 0.0)] * 2


@pytest.mark.parametrize(
    "differ",
    [
        lambda comm: comm.Isend(np.zeros(1), 0),
        lambda comm: comm.Split(0),
        lambda comm: comm.Bcast(np.zeros(1), root=1),
        lambda comm: comm.Allreduce(np.zeros(1), np.zeros(1), comm.MPI.MAX),
        lambda comm: comm.Barrier() if comm.Get_rank() else comm.Dup(),
        lambda comm: comm.Barrier() if comm.Get_rank() else None,
    ],
)
def test_what_tells_ranks_apart_is_noticed(differ: Any) -> None:
    with pytest.raises(NotAlike):
        pretend(differ, range(2), range(2, 4))


def test_decision_by_clocks_that_differ_is_noticed() -> None:
    def program(comm: Any) -> bool:
        comm.Work("step", 1)
        return bool(comm.Wtime() >= 1.5)

    assert pretend(program, range(2), compute=Compute(work={"step": 1.0})) == [False]
    with pytest.raises(NotAlike, match="clocks"):
        pretend(program, range(2), compute=Compute(work={"step": 1.0}, slow={1: 2.0}))


def test_times_are_numbers_of_each_rank() -> None:
    times = GroupTime(np.array([1.0, 2.0]))
    assert (0.5 + times + times - 1.0).of.tolist() == [1.5, 3.5]
    assert float(times) == 1.0
