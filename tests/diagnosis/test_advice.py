"""What a diagnosis advises does what it says: simulated again with it, the cause is gone or less."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from paceline.diagnosis import diagnose
from paceline.diagnosis.advice import EXCHANGE, STEPS
from tests.diagnosis.runs import (
    LOOPBACK,
    SERIAL,
    TIME_ALONE,
    US,
    case_of,
    cause,
    only,
    parse_advice,
    simulate_runs,
)

RING = "sync:allreduce=ring"


def figure(words: str, before: str) -> int:
    """The number after these words."""
    found = re.search(rf"{re.escape(before)} ([\d,]+)", words)
    assert found is not None, words
    return int(found[1].replace(",", ""))


def again(folder: Path, tried: dict[str, str], strategy: str, ranks: int, **settings: Any) -> Any:
    """The same case with settings as advised."""
    changes = {name: value for name, value in tried.items() if name not in ("strategy", "n")}
    settings |= {name.replace("-", "_"): int(value) for name, value in changes.items()}
    runs = simulate_runs(
        folder, SERIAL, (tried.get("strategy", strategy), int(tried.get("n", ranks))), **settings
    )
    return case_of(runs)


def exchange_share(case: Any) -> float:
    """Return the share of a step that the exchange takes."""
    share: float = case.at.timing.share("exchange", "answer")
    return share


DEEP = {"model": "mlp:" + ",".join(["128"] * 12), "batch": 512, "compute": False}


def between_nodes(folder: Path, *runs: tuple[Any, ...], each: float = 100 * US, **settings: Any) -> list[str]:
    """The strategies that a case of small computing advises."""
    found = diagnose(simulate_runs(folder, SERIAL, *runs, given={"each": each}, **(DEEP | settings)))
    causes = [cause(one, "small computing") for one in found if one.strategy == runs[0][0]]
    return [
        tried["strategy"]
        for one in causes
        if one
        for tried in parse_advice(one.advice)
        if "strategy" in tried
    ]


@pytest.mark.parametrize("nodes", ["1gbe", "1gbe:ranks-per-node=2"])
def test_messages_between_nodes_are_hidden_or_shortened(nodes: str, tmp_path: Path) -> None:
    used = RING if nodes == "1gbe" else "sync"
    mark = "," if ":" in used else ":"
    tried = between_nodes(tmp_path / "before", (used, 4), network=nodes)
    assert f"{used}{mark}overlap=true" in tried
    assert f"{used}{mark}compress=bfloat16" in tried
    before = exchange_share(
        case_of(
            simulate_runs(
                tmp_path / "one", SERIAL, (used, 4), given={"each": 100 * US}, network=nodes, **DEEP
            )
        )
    )
    for change in ("overlap=true", "compress=bfloat16"):
        runs = simulate_runs(
            tmp_path / change,
            SERIAL,
            (used + mark + change, 4),
            given={"each": 100 * US},
            network=nodes,
            **DEEP,
        )
        assert exchange_share(case_of(runs)) < before - 0.05, change


@pytest.mark.parametrize(
    ("settings", "option"),
    [
        ({"network": "loopback"}, "overlap"),  # one node
        ({"network": "1gbe", "model": "mlp:30"}, "overlap"),  # too few parameters to cut
        ({"network": "1gbe", "each": 0.1 * US}, "overlap"),  # nothing to hide it behind
        ({"network": "1gbe", "model": "mlp:256,256,256,256"}, "overlap"),  # messages hardly move meanwhile
        ({"network": "1gbe", "model": "mlp:4096" + ",8" * 9}, "overlap"),  # nearly all is ready last
        ({"network": "loopback"}, "compress"),
        ({"network": "1gbe", "model": "mlp:30"}, "compress"),
    ],
)
def test_nothing_is_advised_that_would_not_help_between_nodes(
    settings: dict[str, Any], option: str, tmp_path: Path
) -> None:
    assert not any(option in tried for tried in between_nodes(tmp_path, (RING, 4), **settings))


def test_overlap_that_was_measured_to_be_slower_is_not_advised(tmp_path: Path) -> None:
    """It is in the same study, on a network on which it did not help."""
    tried = between_nodes(
        tmp_path, (RING, 4), (f"{RING},overlap=true,bucket=0.0001", 4), network="1gbe:latency=1ms"
    )
    assert f"{RING},overlap=true,bucket=0.0001" not in tried


@pytest.mark.parametrize(
    ("strategy", "ranks", "settings"),
    [
        (RING, 4, {"compute": False, "given": {"each": 50 * US}}),
        ("sync:allreduce=naive", 8, {**TIME_ALONE, "given": {"each": 5 * US}}),
        ("weight-average", 4, {"compute": False}),
        ("parameter-server", 2, {"compute": False}),
    ],
)
def test_from_the_batch_named_on_the_exchange_is_less_than_a_fifth(
    strategy: str, ranks: int, settings: dict[str, Any], tmp_path: Path
) -> None:
    before = simulate_runs(tmp_path / "before", SERIAL, (strategy, ranks), **settings)
    found = cause(only(before), "small computing")
    assert found is not None
    assert exchange_share(case_of(before)) == pytest.approx(found.share)
    batch = figure(found.words, "; a batch of")
    full = {"draws": 24, **settings}  # every batch is whole: an epoch of so few has a small one at its end
    after = again(tmp_path / "with", {"batch": str(batch)}, strategy, ranks, **full)
    assert exchange_share(after) <= EXCHANGE + 0.005
    fewer = again(tmp_path / "fewer", {"batch": str(batch * 4 // 5)}, strategy, ranks, **full)
    assert exchange_share(fewer) > EXCHANGE
    most = 1437 // STEPS // (1 if strategy.startswith("sync") else case_of(before).at.timing.workers)
    assert ("fewer than 8 steps in an epoch" in found.words) == (batch > most)
    (advice,) = [int(each["batch"]) for each in parse_advice(found.advice) if "batch" in each] or [64]
    assert batch <= advice <= most if batch <= most else 64 <= advice <= max(most, 64)


def test_what_else_is_advised_for_small_computing(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"given": {"each": 3 * US}, "epochs": 20, **TIME_ALONE}
    before = simulate_runs(tmp_path / "before", SERIAL, ("sync:allreduce=naive", 8), **settings)
    found = cause(only(before), "small computing")
    assert found is not None
    batch, cheaper, rarer = parse_advice(found.advice)
    assert batch.keys() == {"batch"}
    assert cheaper["strategy"] == "sync:allreduce=shared-memory"  # all ranks are on one node
    other = again(tmp_path / "other", cheaper, "", 8, **settings)
    assert other.at.timing.exchange < case_of(before).at.timing.exchange
    apart = again(tmp_path / "apart", rarer, "", 8, **settings)
    assert apart.strategy.startswith("local-sgd:")
    assert exchange_share(apart) <= EXCHANGE + 0.01


@pytest.mark.parametrize("options", ["overlap=true", "overlap=true,bucket=1", "compress=bfloat16"])
def test_shared_memory_is_advised_without_the_options_of_messages(options: str, tmp_path: Path) -> None:
    strategy = f"sync:allreduce=naive,{options}"
    runs = simulate_runs(tmp_path, SERIAL, (strategy, 8), given={"each": 3 * US}, **TIME_ALONE)
    found = cause(only(runs), "small computing")
    assert found is not None
    assert "sync:allreduce=shared-memory" in [each.get("strategy") for each in parse_advice(found.advice)]


def test_slow_ranks(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"slow": "3:4x", "epochs": 4, "given": {"each": 100 * US}, **TIME_ALONE}
    before = simulate_runs(tmp_path / "before", SERIAL, ("sync", 4), **settings)
    found = cause(only(before), "stragglers")
    assert found is not None
    balanced, dynamic, _ = parse_advice(found.advice)
    assert balanced == {"strategy": "sync:balance=true"}
    better = again(tmp_path / "balanced", balanced, "", 4, **settings)
    assert better.at.seconds < 0.75 * case_of(before).at.seconds
    assert better.at.timing.share("wait") < 0.6 * case_of(before).at.timing.share("wait")
    assert again(tmp_path / "dynamic", dynamic, "", 4, **settings).at.seconds < case_of(before).at.seconds


def test_a_slow_worker(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"slow": "4:4x", "epochs": 4, "batch": 8, **TIME_ALONE}
    before = simulate_runs(tmp_path / "before", SERIAL, ("parameter-server", 5), **settings)
    found = cause(only(before), "stragglers")
    assert found is not None
    assert "rank 4 takes 4.0 times as long" in found.words
    (tried,) = parse_advice(found.advice)
    saved = 1 - again(tmp_path / "after", tried, "", 5, **settings).at.seconds / case_of(before).at.seconds
    assert saved == pytest.approx(found.share, abs=0.05)  # the share is what the advice saves


def test_unevenness_by_chance(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"jitter": 0.4, "epochs": 20, **TIME_ALONE}
    before = simulate_runs(tmp_path / "before", SERIAL, ("sync", 4), **settings)
    found = cause(only(before), "stragglers")
    assert found is not None
    apart = again(tmp_path / "apart", parse_advice(found.advice)[0], "", 4, **settings)
    assert apart.at.timing.share("wait") < 0.5 * case_of(before).at.timing.share("wait")


def test_a_queue_at_the_master(tmp_path: Path) -> None:
    # What a master does goes by the parameters it holds, and a little by the gradients that it serves.
    settings: dict[str, Any] = {"batch": 8, "given": {"rule": 15e-9, "serve": 3 * US}, **TIME_ALONE}
    before = simulate_runs(tmp_path / "before", SERIAL, ("parameter-server", 9), **settings)
    found = cause(only(before), "master queue")
    assert found is not None
    more, larger = parse_advice(found.advice)
    assert more == {"strategy": "parameter-server:masters=2,placement=even"}
    assert larger.keys() == {"batch"}
    for name, tried in (("more", more), ("larger", larger)):
        after = again(tmp_path / name, tried, "parameter-server", 9, **settings)
        assert after.at.seconds < 0.95 * case_of(before).at.seconds
        assert after.at.timing.share("answer") < 0.8 * case_of(before).at.timing.share("answer")


def test_too_many_ranks_for_the_cores(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"given": {"cores": 2}, **TIME_ALONE}
    before = simulate_runs(tmp_path / "before", SERIAL, ("sync", 8), **settings)
    found = cause(only(before), "oversubscribed cores")
    assert found is not None
    fewer, _ = parse_advice(found.advice)
    assert again(tmp_path / "fewer", fewer, "sync", 8, **settings).at.seconds < case_of(before).at.seconds


def test_uneven_pieces(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"given": {"each": 100 * US}, **TIME_ALONE}
    before = simulate_runs(tmp_path / "before", SERIAL, (RING, 4), batch=6, **settings)
    found = cause(only(before), "uneven pieces")
    assert found is not None
    after = again(tmp_path / "after", parse_advice(found.advice)[0], RING, 4, **settings)
    assert after.at.timing.share("wait") < 0.05


def test_stale_gradients_and_ranks_apart(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"epochs": 4, "lr": 1.0, **LOOPBACK}
    stale = cause(
        only(simulate_runs(tmp_path / "stale", SERIAL, ("parameter-server:rule=plain", 9), **settings)),
        "staleness",
    )
    assert stale is not None
    assert stale.share is not None
    better = again(tmp_path / "better", parse_advice(stale.advice)[0], "", 9, **settings)
    assert better.strategy == "parameter-server:rule=adaptive"
    assert better.worse is None or better.worse.amount < stale.share / 4
    settings["batch"] = 16
    apart = cause(only(simulate_runs(tmp_path / "apart", SERIAL, ("psgd", 8), **settings)), "averaging")
    assert apart is not None
    assert apart.share is not None
    longer = again(tmp_path / "longer", parse_advice(apart.advice)[1], "psgd", 8, **settings)
    assert longer.worse is None or longer.worse.amount < apart.share / 4
