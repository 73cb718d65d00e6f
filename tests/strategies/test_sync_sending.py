"""sync whose gradients travel between nodes during the backward pass, or in fewer bytes; mostly on simulated ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import fit
from paceline.collectives import choose_bucket
from paceline.compare.theory import theory_of
from paceline.errors import UsageError
from paceline.record import Run, checkpoint
from paceline.strategies import Load
from paceline.strategies.sync import Sync
from tests.simulate.costs import COSTS
from tests.worker.test_checkpoints import cut

RUN: dict[str, Any] = {
    "model": "mlp:24,12", "data": "iris", "on": "sim", "batch": 12, "epochs": 3, "lr": 0.3, "quiet": True,
    "network": "1gbe",
}  # fmt: skip
WAYS = [
    "allreduce=ring,overlap=true,bucket=0.0002",
    "allreduce=native,overlap=true,bucket=0.0002",
    "allreduce=auto,overlap=true,bucket=0.0002",
    "allreduce=ring,compress=bfloat16",
    "allreduce=auto,overlap=true,bucket=0.0002,compress=float16",
    "allreduce=hierarchical,compress=topk:share=0.1",
    "allreduce=ring,overlap=true,bucket=0.0002,compress=powersgd:rank=1",
]
EXACT = [way for way in WAYS if "compress" not in way]


@pytest.fixture(scope="module", autouse=True)
def _machine(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Costs that are given need not be measured."""
    path = tmp_path_factory.mktemp("machine") / "costs.json"
    COSTS.save(path)
    RUN["machine"] = str(path)


def spell(way: str) -> str:
    return f"sync:{way}"


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("way", EXACT)
def test_overlap_is_synchronous_training(way: str, ranks: int) -> None:
    plain = fit(**RUN, strategy="sync:allreduce=ring", ranks=ranks, runs=None)
    early = fit(**RUN, strategy=spell(way), ranks=ranks, runs=None)
    assert np.allclose(plain.model.x, early.model.x, rtol=1e-4, atol=1e-5)
    if ranks == 2:
        assert np.array_equal(plain.model.x, early.model.x)  # two numbers have one sum


@pytest.mark.parametrize(("network", "compute"), [("1gbe", False), ("1gbe:ranks-per-node=2", True)])
@pytest.mark.parametrize("way", WAYS)
def test_the_bytes_are_those_of_the_formula(way: str, network: str, compute: bool, tmp_path: Path) -> None:
    run = fit(**{**RUN, "network": network}, strategy=spell(way), ranks=4, runs=tmp_path, compute=compute)
    record = Run(run.run)
    expected = theory_of(record)
    assert expected.bytes == record.summary["bytes_sent"] > 0
    assert expected.messages == record.summary["messages_sent"]
    whole = fit(
        **{**RUN, "network": network}, strategy="sync:allreduce=ring", ranks=4, runs=tmp_path, compute=compute
    )
    if "compress" in way and "ring" in way:
        assert run.bytes_sent < 0.7 * whole.bytes_sent


def test_overlap_hides_the_exchange() -> None:
    """Sending takes longer than computing here, and what is sent meanwhile is not waited for."""
    settings = {**RUN, "model": "mlp:128,128,128", "data": "digits", "batch": 512, "epochs": 1}

    def seconds(way: str) -> float:
        run = fit(**settings, strategy=spell(way), ranks=2, runs=None, compute=False)
        return float(run.train_seconds)

    after, during = seconds("allreduce=ring"), seconds("allreduce=ring,overlap=true,bucket=0.01")
    short = seconds("allreduce=ring,overlap=true,bucket=0.01,compress=bfloat16")
    assert during < 0.85 * after
    assert short < 0.7 * after


@pytest.mark.parametrize(
    ("allreduce", "nodes"),
    [("ring", ""), ("native", ""), ("auto", "ranks-per-node=2"), ("hierarchical", "ranks-per-node=2")],
)
def test_buckets_are_chosen_from_measured_costs(allreduce: str, nodes: str, tmp_path: Path) -> None:
    """The longer a message takes at least, the larger are the buckets; what was measured is recorded, not counted."""
    settings = {**RUN, "model": "mlp:128,128,128,128,128,128", "data": "digits", "batch": 64, "epochs": 1}
    found = []
    for latency in ("2us", "20us", "2ms"):
        network = ",".join([f"1gbe:latency={latency}", *([nodes] if nodes else [])])
        run = fit(
            **{**settings, "network": network}, strategy=f"sync:allreduce={allreduce},overlap=true", ranks=4,
            runs=tmp_path, compute=False,
        )  # fmt: skip
        record = Run(run.run)
        exchange = record.summary["findings"]["exchange"]
        assert theory_of(record).bytes == run.bytes_sent
        found.append((exchange["measured"]["latency"], exchange["measured"]["bucket"], -exchange["buckets"]))
    assert found == sorted(found)
    assert found[0][1] < found[2][1]
    assert found[0][2] < found[2][2]


def test_measured_buckets_are_those_of_the_recorded_costs(tmp_path: Path) -> None:
    run = fit(**RUN, strategy="sync:allreduce=ring,overlap=true", ranks=3, runs=tmp_path)
    plain = fit(**RUN, strategy="sync:allreduce=ring", ranks=3, runs=None)
    assert np.allclose(plain.model.x, run.model.x, rtol=1e-4, atol=1e-5)
    costs = Run(run.run).summary["findings"]["exchange"]["measured"]
    size = run.model.g.nbytes
    assert costs["bucket"] == choose_bucket(size, costs["latency"], costs["seconds_per_byte"])


@pytest.mark.parametrize("way", WAYS[3:])
def test_compressed_training_learns(way: str) -> None:
    plain = fit(**{**RUN, "epochs": 15}, strategy="sync:allreduce=ring", ranks=4, runs=None)
    short = fit(**{**RUN, "epochs": 15}, strategy=spell(way), ranks=4, runs=None)
    assert not np.array_equal(plain.model.x, short.model.x)
    assert short.test_loss < 1.3 * plain.test_loss


@pytest.mark.parametrize("way", [WAYS[0], *WAYS[3:]])
def test_same_bits_from_a_checkpoint(way: str, tmp_path: Path) -> None:
    whole = fit(
        **RUN, strategy=spell(way), ranks=4, update="momentum", runs=tmp_path / "runs",
        checkpoint_every="4 steps", checkpoints=99,
    )  # fmt: skip
    numbers = checkpoint.numbers(whole.run, 0)
    again = fit(resume=cut(whole.run, tmp_path / "same", numbers[2]), quiet=True)
    assert np.array_equal(whole.model.x, again.model.x)
    assert again.bytes_sent == whole.bytes_sent
    fewer = fit(resume=cut(whole.run, tmp_path / "fewer", numbers[2]), ranks=3, quiet=True)
    assert fewer.test_loss == pytest.approx(whole.test_loss, rel=0.2)


@pytest.mark.parametrize(
    ("way", "update"),
    [(WAYS[0], "sgd"), (WAYS[1], "momentum"), (WAYS[2], "momentum"), (WAYS[5], "sgd"), (WAYS[6], "momentum")],
)
def test_runs_go_on_when_a_rank_dies(way: str, update: str, tmp_path: Path) -> None:
    whole = fit(**RUN, strategy=spell(way), ranks=4, update=update, runs=None)
    (tmp_path / "faults.py").write_text("fail_at(rank=2, step=9)\n")
    left = fit(
        **RUN, strategy=spell(way), ranks=4, update=update, runs=tmp_path,
        faults=str(tmp_path / "faults.py"), tolerate_failures=True,
    )  # fmt: skip
    assert left.ranks == 3
    assert left.test_loss == pytest.approx(whole.test_loss, rel=1e-4 if way in EXACT else 0.1)


def test_a_traced_run(tmp_path: Path) -> None:
    run = fit(**RUN, strategy=spell(WAYS[0]), ranks=3, runs=tmp_path, trace=True)
    assert Run(run.run).summary["bytes_sent"] == run.bytes_sent


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compress": "zip"}, "unknown compression 'zip'"),
        ({"bucket": 1.0}, "bucket of sync needs overlap=true"),
        (
            {"bucket": -1.0, "overlap": True},
            "bucket of sync must be auto or a number of megabytes above 0; got -1",
        ),
        ({"bucket": float("nan"), "overlap": True}, "bucket of sync must be auto or a number of megabytes"),
        ({"bucket": "large", "overlap": True}, "bucket of sync must be auto or a number of megabytes"),
        ({"allreduce": "shared-memory", "overlap": True}, "overlap=true is for messages between nodes"),
        ({"allreduce": "shared-memory", "compress": "topk"}, "compress=topk is for messages between nodes"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Sync(**options)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "plan", [None, 3, {}, {"buckets": 1, "gathers": False, "sums": 3}, {"buckets": 1, "gathers": False, "sums": [[[1]]]},
             {"buckets": 1, "gathers": False, "sums": [[[1, "x"]]]}, {"buckets": 1, "gathers": False, "sums": [[]] * 9}],
)  # fmt: skip
def test_a_damaged_record_has_no_formula(plan: Any) -> None:
    load = Load(ranks=3, parameters=10, steps=5, findings={"exchange": plan})
    assert Sync(allreduce="ring", compress="bfloat16").traffic(load).bytes is None


def test_what_is_rounded_is_not_serial() -> None:
    assert Sync(overlap=True, allreduce="ring").equals_serial
    assert not Sync(compress="bfloat16", allreduce="ring").equals_serial
    assert Sync().equals_serial


def test_one_node_and_reproducible_sums_are_refused() -> None:
    with pytest.raises(UsageError, match="overlap=true is for messages between nodes; with auto"):
        Sync(overlap=True).check_nodes(1)
    Sync(overlap=True).check_nodes(2)
    Sync(overlap=True, allreduce="ring").check_nodes(1)
    with pytest.raises(UsageError, match="sync:compress=float16 cannot be reproducible"):
        Sync(compress="float16", allreduce="recursive-doubling").check_reproducible()
