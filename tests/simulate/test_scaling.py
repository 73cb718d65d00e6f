"""Predictions of scaling: figures as the simulated runs have them, and each reason provoked by a case made for it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import fit
from paceline.commands._prediction import draw, table
from paceline.commands.simulate import load_parts, threaded_workloads
from paceline.config import Config
from paceline.data import load
from paceline.errors import UsageError
from paceline.machine import Costs, Machine, load_network
from paceline.simulate.bottleneck import ScalingPoint, find_limit, main_reason
from paceline.simulate.case import RunLength, Simulations, Workload, measure
from paceline.simulate.options import Options
from paceline.simulate.scaling import (
    Growth,
    Prediction,
    Scaling,
    ScalingCurve,
    describe,
    find_measured,
    to_values,
)
from paceline.simulate.training import simulate
from paceline.simulate.whatif import REASONS, Scenario
from paceline.simulate.work import Layer, Work, work_load
from paceline.training.job import Job
from paceline.vmpi import Compute, Curves, Network

US = 1e-6
RING = "sync:allreduce=ring"
# A network that takes no time, so that a test can make one thing of it slow.
INSTANT = "latency=0,bandwidth=inf,overhead=0,copy-bandwidth=inf"
FREE = Machine(
    cores=64,
    link=replace(
        Machine.typical().link,
        **{name: Curves.of({1: [[0, 0.0], [1, 0.0]]}) for name in ("send", "flight", "take")},
    ),
    poll=0.1 * US,
)


def bench(
    network: str = f"10gbe:{INSTANT}",
    *,
    work: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    **config: Any,
) -> Workload:
    """The network of `mlp:8` on iris, a sample of which takes 100 us; nothing else costs anything."""
    costs = Costs(
        processor="made for a test",
        cores=64,
        work={
            kind: Curves.of(points)
            for kind, points in ({"gradient": {1: [[1, 100 * US]]}} | (work or {})).items()
        },
    )
    settings = {"data": "iris", "model": "mlp:8", "batch": 32, "epochs": 2, **config}
    return Workload(
        config=Config(**settings),
        data=load("iris"),
        costs=costs,
        network=replace(load_network(network), node=FREE),
        options=Options(**(options or {})),
    )


def predict(on: Workload, *strategies: str, ranks: tuple[int, ...] = (1, 2, 4, 8), **how: Any) -> Prediction:
    return Scaling(workload=on, strategies=strategies, ranks=ranks, **how).predict()


def test_nothing_is_lost_where_nothing_costs_anything() -> None:
    [curve] = predict(bench(), RING).curves
    assert [point.ranks for point in curve.points] == [1, 2, 4, 8]
    assert [point.speedup for point in curve.points] == pytest.approx([1, 2, 4, 8], rel=1e-6)
    assert [point.efficiency for point in curve.points] == pytest.approx([1, 1, 1, 1], rel=1e-6)
    assert [main_reason(point) for point in curve.points] == [None] * 4
    assert curve.limit is not None
    assert (curve.limit.at.ranks, curve.limit.rising, curve.limit.half) == (8, True, None)
    assert "still gets faster at 8 ranks (8.00x); efficiency stays above 50 %" in curve.summary


@pytest.mark.parametrize(
    "strategy", [RING, "sync", "parameter-server", "weight-average", "local-sgd:every=2"]
)
def test_figures_are_those_of_simulated_runs(strategy: str, tmp_path: Path) -> None:
    on = replace(bench(batch=16), network=load_network("1gbe"))
    [curve] = predict(on, strategy, ranks=(4,)).curves
    [point] = curve.points
    on.costs.save(tmp_path / "costs.json")
    options = Options(network="1gbe", machine=str(tmp_path / "costs.json"), compute=False)
    length = on.candidate(strategy, 4).length()

    def trained(**changes: Any) -> float:
        """As `paceline train --on sim --no-compute` has it."""
        job = Job(config=replace(on.config, strategy=strategy, **changes), runs=None)
        return simulate(job, 4, options).train_seconds

    seconds = trained(epochs=length.epochs, draws=length.draws) - trained(epochs=0)
    samples = length.epochs * 120 if length.draws is None else length.draws * 16
    assert point.samples_per_second == pytest.approx(samples / seconds)
    assert point.step_seconds == pytest.approx(
        seconds / length.batches * (1 if "sync" in strategy else on.candidate(strategy, 4).workers)
    )


@pytest.mark.parametrize(
    ("strategy", "draws"),
    [
        ("gossip", None),
        ("gossip:every=8", 960),
        ("hogwild", 1000),
        ("hogwild", 18_001),
        ("parameter-server", 960),
    ],
)
def test_end_of_an_epoch_counts_once_an_epoch(strategy: str, draws: int | None) -> None:
    """Messages that are in flight at the end of an epoch take long on this network, compared with a batch."""
    on = replace(bench(model="mlp:64", epochs=3, draws=draws), network=load_network("1gbe:bandwidth=1Mbit/s"))
    candidate = on.candidate(strategy, 4)
    whole, before = (
        on.run(candidate, candidate.scenario, length)
        for length in (candidate.whole_run, candidate.no_steps())
    )
    samples = 3 * (120 if draws is None else 32 * draws)
    point = candidate.measure(candidate.scenario, candidate.length())
    assert candidate.length().simulated <= max(16_384, candidate.whole_run.batches // 2)
    assert point.samples_per_second == pytest.approx(
        samples / (whole.train_seconds - before.train_seconds), rel=0.03
    )


SHARED = {1: [[1, 100 * US]], 8: [[1, 800 * US]]}
REASONS_WANTED = [
    ("latency", RING, {"network": f"10gbe:{INSTANT},latency=5ms".replace("latency=0,", "")}),
    ("bandwidth", RING, {"network": "10gbe:latency=0,bandwidth=10MB/s,overhead=0,copy-bandwidth=inf", "model": "mlp:64"}),
    ("overhead", RING, {"network": "10gbe:latency=0,bandwidth=inf,overhead=3ms,copy-bandwidth=inf"}),
    ("memory", RING, {"memory": {"combine": 100 * US}}),
    ("masters", "parameter-server", {"work": {"serve": {1: [[1, 5000 * US]]}}}),
    ("masters", "parameter-server", {"work": {"rule": {1: [[1, 100 * US]]}}}),
    ("stragglers", RING, {"options": {"slow": "1:10x"}}),
    ("stragglers", RING, {"options": {"jitter": 1.0}}),
    ("compute", RING, {"work": {"gradient": {1: [[1, 0.01], [1000, 0.0101]]}}}),
    ("compute", RING, {"batch": 4}),
    ("compute", "weight-average", {"network": "loopback", "work": {"gradient": SHARED}, "batch": 8}),
    ("idle", "parameter-server:masters=2", {}),
]  # fmt: skip


def test_a_fixed_batch_of_each_rank_is_not_divided() -> None:
    """Larger batches would need less time for each sample; but a rank's batch is the same on any number of ranks."""
    faster = {"gradient": {1: [[1, 0.01], [64, 0.0101]]}}
    [curve] = predict(bench(work=faster, batch=None, batch_per_rank=8), RING).curves
    assert [point.efficiency for point in curve.points] == pytest.approx([1, 1, 1, 1], rel=1e-6)
    assert [main_reason(point) for point in curve.points] == [None] * 4


@pytest.mark.parametrize(("reason", "strategy", "how"), REASONS_WANTED)
def test_the_reason_is_what_was_made_slow(reason: str, strategy: str, how: dict[str, Any]) -> None:
    how = dict(how)
    memory = how.pop("memory", None)
    on = bench(**how)
    if memory:
        machine = replace(FREE, memory={kind: Curves.of({1: [[1, each]]}) for kind, each in memory.items()})
        on = replace(on, network=replace(on.network, node=machine))
    [curve] = predict(on, strategy, ranks=(4, 8) if "masters=2" not in strategy else (3, 4)).curves
    assert curve.limit is not None
    assert curve.limit.reason == reason, curve.summary
    share = curve.limit.shown.lost()[reason]
    assert f"{100 * share:.0f} % of it is" in curve.summary


def test_what_was_made_slow_is_told_with_its_figures() -> None:
    [curve] = predict(
        bench(f"10gbe:{INSTANT},latency=5ms".replace("latency=0,", "")), RING, ranks=(8,)
    ).curves
    [point] = curve.points
    # Short messages: 2 (p - 1) of them one after the other, and a batch of 32 in 8 pieces.
    assert point.step_seconds == pytest.approx(14 * 5e-3 + 4 * 100 * US)
    assert point.without["latency"] == pytest.approx(4 * 100 * US)
    assert "the latency of 14 messages one after the other, 5 ms each" in curve.summary
    assert "without it the speedup would be 8.00x instead of 0.05x" in curve.summary


def test_figures_of_ranks_that_are_placed_on_nodes_in_turn() -> None:
    on = bench("10gbe:latency=0,overhead=0,copy-bandwidth=inf,bandwidth=1MB/s,cyclic=2")
    assert describe(on).startswith("iris, mlp:8, batch 32; 10gbe:")
    assert ", ranks in turn on 2 nodes; " in describe(on)
    [curve] = predict(on, RING, ranks=(8,)).curves
    assert "per rank, of whom the 4 of a node share a card of 1 MB/s" in curve.summary


def test_what_hides_behind_the_first_reason_is_told_next() -> None:
    slow = bench(
        "10gbe:latency=1ms,bandwidth=inf,overhead=0,copy-bandwidth=inf", work={"serve": {1: [[1, 2000 * US]]}}
    )
    [curve] = predict(slow, "parameter-server", ranks=(8,)).curves
    assert "waiting for masters: one master serves 7 workers" in curve.summary
    assert ", without latency too " in curve.summary


def test_where_it_stops_and_that_the_next_rank_says_why() -> None:
    [curve] = predict(bench("1gbe:latency=20ms"), RING).curves
    assert curve.limit is not None
    assert (curve.limit.at.ranks, curve.limit.shown.ranks, curve.limit.half) == (1, 2, 2)
    assert curve.summary.startswith("is never faster than on one rank; efficiency is below 50 % from 2 ranks")
    assert "at 2 ranks a step takes" in curve.summary


def point(ranks: int, speedup: float, **more: Any) -> ScalingPoint:
    return ScalingPoint(ranks=ranks, step_seconds=1.0, samples_per_second=speedup, speedup=speedup, **more)


def test_staleness_is_a_reason_while_time_still_falls() -> None:
    points = [point(2, 1.5, accuracy=0.92, staleness=0.5), point(4, 2.5, accuracy=0.915, staleness=3.0)]
    points += [point(8, 4.0, accuracy=0.80, staleness=7.0), point(16, 4.5, accuracy=0.1, staleness=15.0)]
    found = find_limit(points, 0.92)
    assert (found.at.ranks, found.shown.ranks, found.reason) == (4, 8, "staleness")
    assert find_limit(points[:2], 0.92).reason is None
    # What learns less only where it is not faster any more stops for another reason.
    slow = [point(2, 3.0, accuracy=0.92), point(4, 2.0, accuracy=0.1)]
    assert find_limit(slow, 0.92).at.ranks == 2
    assert find_limit(slow, 0.92).reason is None
    without = [replace(each, staleness=None) for each in points]
    assert find_limit(without, 0.92).reason == "accuracy"


def test_accuracy_is_computed_and_sync_learns_what_serial_learns() -> None:
    on = bench(epochs=3, batch=8, lr=0.5)
    prediction = predict(on, RING, "parameter-server:rule=plain", ranks=(1, 4), accuracy=True)
    sync, server = prediction.curves
    assert prediction.serial_accuracy is not None
    assert {each.accuracy for each in sync.points} == {prediction.serial_accuracy}
    [four] = server.points
    assert four.accuracy is not None
    assert four.staleness == pytest.approx(2, abs=0.5)  # three workers
    whole = on.run(on.candidate("parameter-server:rule=plain", 4), on.candidate("parameter-server:rule=plain", 4).scenario,
                   RunLength(epochs=3, draws=None, batches=45), time_only=False)  # fmt: skip
    assert four.accuracy == whole.test_accuracy


def test_accuracy_needs_classes() -> None:
    inputs = np.random.default_rng(0).random((60, 4), dtype=np.float32)
    numbers = load((inputs, inputs.sum(axis=1)))
    assert numbers.target == "numbers"
    with pytest.raises(UsageError, match="needs classes"):
        predict(replace(bench(), data=numbers), RING, ranks=(1,), accuracy=True)


def test_what_cannot_run_is_left_out_and_said() -> None:
    prediction = predict(bench(), "parameter-server:masters=2", ranks=(2, 4))
    [curve] = prediction.curves
    assert [each.ranks for each in curve.points] == [4]
    assert curve.left_out == {2: "2 masters need at least 3 ranks (2 + 1 worker); the job has 2"}
    assert "not on 2: 2 masters need at least 3 ranks (2 + 1 worker)" in table("title", prediction, ())


def test_too_many_messages_are_not_simulated() -> None:
    [curve] = predict(bench("10gbe"), RING, ranks=(4, 8, 16), most=150).curves
    assert [each.ranks for each in curve.points] == [4, 8]
    assert "the limit is 150 (--messages)" in curve.left_out[16]
    # With nothing known of fewer ranks, they are tried first.
    [alone] = predict(bench("10gbe"), RING, ranks=(64,), most=150).curves
    assert not alone.points
    assert "would take about" in alone.left_out[64]


def test_a_strategy_that_can_never_run_is_refused() -> None:
    with pytest.raises(UsageError, match="4 masters need at least 5 ranks"):
        predict(bench(), "parameter-server:masters=4", ranks=(1, 2, 4))


@pytest.mark.parametrize("reason", REASONS)
def test_a_world_without_a_cost_differs_in_that_cost_alone(reason: str) -> None:
    compute = Compute(work={"gradient": 1.0, "copy": 1.0}, slow={2: 3.0}, jitter=0.5)
    network = Network.named("10gbe", jitter=0.1, node=Machine.typical())
    world = Scenario(network=network, compute=compute, masters=1, pieces=3, batch=6)
    changed = world.without(reason)
    assert changed != world
    same = {
        "latency": changed.network.bandwidth == network.bandwidth and changed.compute == compute,
        "bandwidth": changed.network.latency == network.latency and changed.compute == compute,
        "overhead": changed.network.latency == network.latency and changed.compute == compute,
        "memory": changed.network.latency == network.latency and changed.compute.slow == compute.slow,
        "masters": changed.network.latency == network.latency and changed.compute.slow.get(2) == 3.0,
        "stragglers": changed.network.latency == network.latency and changed.compute.work == compute.work,
        "compute": changed.network == network and changed.compute.slow == compute.slow,
    }
    assert same[reason]
    link, plain = Machine.of_network(changed.network).link, Machine.typical().link
    assert link.flight.at(8, 2) == (0.0 if reason == "latency" else plain.flight.at(8, 2))
    cheaper = reason in ("bandwidth", "overhead")
    assert (link.take.at(1 << 20, 2) < plain.take.at(1 << 20, 2)) == cheaper


def test_messages_grow_as_they_did() -> None:
    growth = Growth()
    assert growth.at(8) == 0.0
    growth.known[2] = 10.0
    assert growth.at(4) == 40.0  # nothing known of it: as badly as can be
    growth.known[4] = 20.0
    assert growth.at(8) == 40.0


# ---- what becomes of a prediction


def make_prediction(*, accuracy: bool = False) -> Prediction:
    points = tuple(
        point(
            p,
            p**0.8,
            without={"latency": 0.4},
            accuracy=0.95 - 0.02 * p if accuracy else None,
            staleness=float(p),
        )
        for p in (1, 2, 4)
    )
    curve = ScalingCurve(
        strategy=RING,
        points=points,
        left_out={8: "too much"},
        limit=find_limit(points),
        summary="rises. because",
    )
    on = bench()
    serial = on.candidate("serial", 1)
    return Prediction(serial=serial.measure(serial.scenario, serial.length()), serial_accuracy=0.95 if accuracy else None,
                      curves=(curve,))  # fmt: skip


def record(folder: Path, strategy: str, ranks: int, rate: float, *, threads: int = 1, **config: Any) -> None:
    """The folder of a real run, with other settings and another rate."""
    fitted = fit("mlp:8", "iris", strategy="serial", batch=32, epochs=1, runs=folder, quiet=True)
    assert fitted.run is not None
    for name, changes in (
        ("config.json", {"strategy": strategy, "ranks": ranks, **config}),
        ("environment.json", {"cores": 2, "nodes": {"ranks": [0] * ranks, "cores": [2]}}),
        ("summary.json", {"samples_per_second": rate, "threads": threads}),
    ):
        path = fitted.run / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_measured_points_are_those_of_the_same_work(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    record(tmp_path, RING, 2, 150.0)
    record(tmp_path, RING, 2, 170.0)
    record(tmp_path, RING, 4, 240.0)
    record(tmp_path, RING, 2, 1.0, model="mlp:9")
    record(tmp_path, RING, 2, 2.0, batch=64)
    record(tmp_path, RING, 2, 3.0, simulated={"network": "10gbe"})
    record(tmp_path, "sync", 2, 4.0)
    found = find_measured([tmp_path], bench().config, [RING], serial=1000.0)
    assert [(each.ranks, each.runs, each.speedup, each.against) for each in found] == [
        (2, 2, 0.16, "serial, simulated"),
        (4, 1, 0.24, "serial, simulated"),
    ]
    assert [each.oversubscribed for each in found] == [False, True]
    record(tmp_path, "serial", 1, 80.0)
    record(tmp_path, "serial", 1, 4000.0, threads=2)  # other threads are another baseline
    record(tmp_path, RING, 2, 5000.0, threads=2)
    found = find_measured([tmp_path], bench().config, [RING], serial=1000.0)
    assert [(each.speedup, each.against) for each in found] == [
        (2.0, "serial, measured"),
        (3.0, "serial, measured"),
    ]
    assert not caplog.records
    assert find_measured([tmp_path], bench(batch=16).config, [RING], serial=1.0) == ()
    assert "has this data, model and batch" in caplog.text


def test_the_picture_shows_every_line_and_the_measured_points(tmp_path: Path) -> None:
    record(tmp_path / "runs", RING, 2, 150.0)
    real = find_measured([tmp_path / "runs"], bench().config, [RING], serial=100.0)
    files = [tmp_path / "scaling.svg", tmp_path / "scaling.png"]
    draw("a title", make_prediction(accuracy=True), real, files)
    text = files[0].read_text()
    for words in ("a title", RING, "ideal", "ranks", "speedup relative to one process", "measured on real ranks",
                  "test accuracy (%)", "latency 60 %", "mean staleness"):  # fmt: skip
        assert words in text
    assert files[1].read_bytes().startswith(b"\x89PNG")
    draw("a title", make_prediction(), (), files[:1])
    assert "accuracy" not in files[0].read_text()
    assert "measured" not in files[0].read_text()


def test_the_table_and_the_json_hold_all_of_it(tmp_path: Path) -> None:
    record(tmp_path / "runs", RING, 4, 240.0)
    prediction, on = make_prediction(accuracy=True), bench("10gbe:ranks-per-node=4", options={"slow": "1:2x"})
    real = find_measured([tmp_path / "runs"], on.config, [RING], serial=100.0)
    said = table(describe(on), prediction, real)
    assert (
        "iris, mlp:8, batch 32; 10gbe:ranks-per-node=4, 4 ranks per node, slow 1:2x; computing as on made for a test"
        in said
    )
    assert "latency, 60 %" in said
    assert "2.40x*" in said
    assert "more ranks than cores" in said
    found = json.loads(json.dumps(to_values(on, prediction, real)))
    [curve] = found["strategies"]
    assert curve["limit"]["reason"] == "latency"
    assert curve["points"][2]["lost"] == {"latency": 0.6}
    assert curve["points"][2]["speedup_without"]["latency"] == pytest.approx(4**0.8 / 0.4)
    assert curve["left_out"] == [{"ranks": 8, "why": "too much"}]
    assert found["measured"][0]["speedup"] == 2.4
    assert Machine.of(found["machine"]) == Machine.of_network(on.network)
    assert Costs.of(found["costs"]) == on.costs
    assert found["environment"]["command"]


# ---- threads


def on_a_node(flight: float, **how: Any) -> Workload:
    """The workload on one node, in which a message takes this long."""
    on = bench("loopback", **how)
    slow = replace(FREE.link, flight=Curves.of({1: [[0, flight], [1, flight]]}))
    return replace(on, network=replace(on.network, node=replace(FREE, link=slow)))


def with_threads(flight: float, each: dict[int, float]) -> dict[int, Workload]:
    """The same by the number of ranks that use all 8 cores by threads, with the time that a sample takes then."""
    return {
        ranks: on_a_node(flight, work={"gradient": {1: [[1, sample]]}}, threads=8 // ranks)
        for ranks, sample in each.items()
    }


SLOW = 500 * US
# Threads that are worth half as much as cores.
HALF = {1: 100 * US / 4, 2: 100 * US / 2, 4: 100 * US}


def test_threads_win_where_messages_are_slow() -> None:
    found = predict(on_a_node(SLOW), RING, threaded=with_threads(SLOW, HALF))
    told = [(split.strategy, split.ranks, split.threads) for split in found.splits]
    assert told == [("serial", 1, 8), (RING, 2, 4), (RING, 4, 2)]
    assert found.splits[0].speedup == pytest.approx(4)
    assert found.threads.startswith(
        "threads win on nodes of 8 cores; compared with serial: one process with 8 threads 4.00x, "
    )
    best = max(point.speedup for point in found.curves[0].points)
    assert best < 4
    assert f"{RING} on 2 ranks {best:.2f}x" in found.threads


def test_ranks_win_where_threads_bring_little() -> None:
    little = {1: 90 * US, 2: 95 * US, 4: 100 * US}
    found = predict(on_a_node(0.0), RING, threaded=with_threads(0.0, little))
    assert found.threads.startswith(
        f"ranks alone win on nodes of 8 cores; compared with serial: {RING} on 8 ranks 8.00x, "
    )
    slow = predict(on_a_node(0.1), RING, threaded=with_threads(0.1, dict.fromkeys(HALF, 200 * US)))
    assert slow.threads.startswith(
        "neither ranks nor threads help on nodes of 8 cores; compared with serial: "
    )
    assert slow.threads.index("one process with 8 threads 0.50x") < slow.threads.index(RING)


def test_ranks_with_threads_win_on_several_nodes() -> None:
    nodes = f"10gbe:{INSTANT},ranks-per-node=1"
    threads = {1: bench(nodes, work={"gradient": {1: [[1, 20 * US]]}}, threads=8)}
    found = predict(bench(nodes), RING, ranks=(1, 2, 4), threaded=threads)
    assert [(split.ranks, split.threads) for split in found.splits] == [(1, 8), (2, 8), (4, 8)]
    assert found.threads.startswith(
        "ranks with threads win on nodes of 8 cores; compared with serial: "
        f"{RING} on 4 ranks of 8 threads 20.0x, "
    )


def test_threads_are_in_the_table_the_figure_and_the_json(tmp_path: Path) -> None:
    on = on_a_node(SLOW)
    found = predict(on, RING, threaded=with_threads(SLOW, HALF))
    shown = table("title", found, ())
    assert "with threads" in shown
    assert "threads win on nodes of 8 cores" in " ".join(shown.split())
    told = to_values(on, found, ())
    assert told["threads"] == found.threads
    assert [split["threads"] for split in told["splits"]] == [8, 4, 2]
    draw("title", found, (), [tmp_path / "a.svg"])
    assert f"{RING}, 2 to 4 threads a rank" in (tmp_path / "a.svg").read_text()
    without = predict(on, RING)
    assert (without.splits, without.threads) == ((), "")
    assert "with threads" not in table("title", without, ())


def test_the_cores_of_this_machine_are_divided(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measured: list[tuple[str, int, int | None]] = []

    def measure(job: Job, ranks: list[int], *, again: bool) -> Costs:
        measured.append((job.name(), *ranks, job.config.threads))
        return Costs(cores=8, work={"gradient": Curves.of({1: [[1, 50 * US]]})})

    monkeypatch.setattr("paceline.launch.machine_cores", lambda: 8)
    monkeypatch.setattr("paceline.simulate.training.costs_of", measure)
    on = replace(
        bench("loopback"), own_costs={"parameter-server": bench(work={"rule": {1: [[1, US]]}}).costs}
    )
    jobs = {name: on.job(name, on.config) for name in ("serial", RING, "parameter-server")}
    found = threaded_workloads(on, jobs, [1, 2, 4, 8, 16], lambda text: None)
    assert {ranks: workload.config.threads for ranks, workload in found.items()} == {1: 8, 2: 4, 4: 2}
    assert measured == [
        ("serial", 1, 8), *((name, ranks, 8 // ranks) for ranks in (2, 4) for name in jobs),
    ]  # fmt: skip
    assert "rule" in found[2].costs_of("parameter-server").work
    on.costs.save(tmp_path / "costs.json")
    filed = replace(on, options=Options(machine=str(tmp_path / "costs.json")))
    # What threads gain there is unknown.
    assert threaded_workloads(filed, jobs, [1, 2], lambda text: None) == {}


def test_accuracy_is_compared_under_the_same_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    given = Scaling._begin_serial_run

    def note(self: Scaling, batch: int, rule: str = "") -> Any:
        asked.append(rule)
        return given(self, batch, rule)

    monkeypatch.setattr(Scaling, "_begin_serial_run", note)
    predict(bench(epochs=1), "parameter-server", "gossip", ranks=(2,), accuracy=True)
    assert set(asked) == {"", "adaptive"}


def test_time_of_a_strategy_that_follows_values_is_that_of_the_computed_run(tmp_path: Path) -> None:
    strategy = "psgd:tolerance=0.9"  # which ends after its second epoch of eight
    on = bench(batch=16, epochs=8)
    [curve] = predict(on, strategy, ranks=(2,), accuracy=True).curves
    [point] = curve.points
    on.costs.save(tmp_path / "costs.json")
    options = Options(network=f"10gbe:{INSTANT}", machine=str(tmp_path / "costs.json"), compute=True)
    job = Job(config=replace(on.config, strategy=strategy), runs=None)
    fitted = simulate(job, 2, options)
    assert [part["epochs"] for part in fitted.findings["parts"]] == [2, 2]
    assert point.samples_per_second == pytest.approx(2 * 120 / fitted.train_seconds, rel=0.01)
    assert point.accuracy == fitted.test_accuracy
    assert "whole computed runs" in curve.summary


def test_course_that_follows_values_is_refused_without_them(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"psgd:tolerance=0\.5 does depends on values"):
        predict(bench(), "psgd:tolerance=0.5")
    job = Job(config=replace(bench().config, strategy="psgd:tolerance=0.5"), runs=None)
    with pytest.raises(UsageError, match="leave out --no-compute"):
        simulate(job, 2, Options(compute=False))
    assert predict(bench(), "psgd").curves[0].points


def test_processes_predict_what_one_does() -> None:
    on = bench(epochs=1, draws=12)
    one, several = (
        predict(
            on,
            "local-sgd",
            "sync",
            ranks=(1, 2),
            accuracy=True,
            jobs=jobs,
            load=partial(load_parts, None, on.config),
        )
        for jobs in (1, 2)
    )
    assert several == one
    assert all(point.accuracy is not None for curve in several.curves for point in curve.points)


def test_errors_of_other_processes_come_back() -> None:
    work = Work(name="net", batch=100, seconds=1.0, layers=[Layer(parameters=10**7)])
    on = work_load(work, Options(network="10gbe"))
    candidate = on.candidate(RING, 2)
    with Simulations(2, partial(load_parts, work, on.config)) as simulations:
        works = simulations.begin(measure, candidate, (), candidate.length(1))
        refused = simulations.begin(measure, replace(candidate, ranks=0), (), candidate.length(1))
        fails = simulations.begin(measure, candidate, ("no such cost",), candidate.length(1))
        assert works() == measure(candidate, (), candidate.length(1))
        with pytest.raises(UsageError):
            refused()
        with pytest.raises(RuntimeError, match="no such cost"):
            fails()
        ends = simulations.begin(sys.exit, candidate)
        with pytest.raises(RuntimeError, match="ended with status 1"):
            ends()
