"""The comparison of the simulator with real runs between hosts: its parts, and its recorded predictions."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tools.hosts.network import bytes_per_second

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = (ROOT / "docs" / "figures.md").read_text()


@pytest.fixture(scope="module")
def simulated() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return importlib.import_module("simulated")
    finally:
        sys.path.pop(0)


def test_hosts_share_no_memory(simulated: Any) -> None:
    assert "sync:allreduce=shared-memory" in simulated.strategies(4)
    between = simulated.strategies(4, hosts=2)
    assert set(simulated.strategies(4)) - set(between) == {"sync:allreduce=shared-memory"}
    assert {simulated.work_of(name, hosts=2) for name in between} == {"local-sgd", "parameter-server"}


def test_a_host_is_measured_with_up_to_all_its_ranks(simulated: Any) -> None:
    assert [simulated.inside_ranks(ranks) for ranks in (1, 2, 8)] == [[2], [2], [2, 4, 8]]


@pytest.mark.parametrize(
    ("rate", "bytes_a_second"), [("100mbit", 12.5e6), ("2.5gbit", 312.5e6), ("8kbit", 1e3)]
)
def test_rates(rate: str, bytes_a_second: float) -> None:
    assert bytes_per_second(rate) == bytes_a_second


@pytest.mark.parametrize("rate", ["", "gbit", "1", "1gb", "0mbit", "1.2.3mbit", ".mbit", "-1gbit", "nanmbit"])
def test_wrong_rates_are_refused(rate: str) -> None:
    with pytest.raises(ValueError, match="a rate must look like 100mbit or 1gbit"):
        bytes_per_second(rate)


def test_ranks_that_cannot_be_divided_are_refused(simulated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["simulated.py", "measure", "--json", "none.json", "--hosts", "2", "--ranks", "2,3"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match="2,3 ranks cannot be divided among 2 hosts"):
        simulated.main()


def test_recorded_predictions_follow_from_the_measurement(simulated: Any) -> None:
    given = json.loads((RESULTS / "simulated-hosts-measured.json").read_text())
    recorded = json.loads((RESULTS / "simulated-hosts.json").read_text())
    with simulated.write_calibration(given) as machine:
        assert recorded["networks"] == {str(p): network for p, network in machine["networks"].items()}
        rows = simulated.exchanges(given, machine)
    expected = [row for row in recorded["rows"] if row["strategy"].startswith("exchange")]
    assert [(row["strategy"], row["setting"]) for row in rows] == [
        (row["strategy"], row["setting"]) for row in expected
    ]
    for row, other in zip(rows, expected, strict=True):
        assert row["measured"] == other["measured"]
        assert row["predicted"] == pytest.approx(other["predicted"], rel=1e-3)


def test_the_page_has_the_recorded_errors() -> None:
    recorded = json.loads((RESULTS / "simulated-hosts.json").read_text())["error of the mean step"]
    for kind in ("parameter-server", "sync", "exchange", "all"):
        errors = recorded[kind]
        assert f"{100 * errors['median']:.1f} % | {100 * errors['largest']:.0f} % |" in PAGE
