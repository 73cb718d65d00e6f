"""The network between hosts: what ranks measure, what follows from it, and the file that holds it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline import vmpi
from paceline.errors import UsageError
from paceline.machine import Machine, between, load_network, measure_between, network_of

ANSWER: dict[str, Any] = {
    "ranks_per_node": 4,
    "eager_limit": 65000,
    "send": [[8, 6e-6], [65000, 22e-6]],
    "way": [[8, 45e-6], [65000, 6e-4]],
    "rate": {"one": 1.17e8, "all": 1.18e8},
}
NETWORK = "1gbe:latency=30us,bandwidth=11.7MB/s,ranks-per-node=4"


def test_one_host_has_no_network() -> None:
    def measure(comm: Any) -> None:
        with pytest.raises(UsageError, match="ranks must be on at least two; all are on one"):
            measure_between(comm, seconds=0.01)

    vmpi.run(measure, ranks=2, network="loopback")


def test_ranks_measure_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(between, "LONG", 0.0)
    network = "10gbe:ranks-per-node=3,eager-limit=4KiB"
    found = vmpi.run(lambda comm: measure_between(comm, seconds=0.01), ranks=5, network=network).values
    assert found[0]["ranks_per_node"] == 3
    assert 4080 <= found[0]["eager_limit"] <= 4096
    assert [n for n, _ in found[0]["send"]] == [n for n, _ in found[0]["way"]] == [8, found[0]["eager_limit"]]
    assert set(found[0]["rate"]) == {"one", "all"}
    assert found[0]["rate"]["all"] != found[0]["rate"]["one"]
    assert all("send" not in other for other in found[1:3])  # only one pair sends small messages


def test_figures_follow_from_the_measurements() -> None:
    found = network_of(ANSWER)
    assert (found.name, found.latency, found.overhead) == ("1gbe", 3.3e-5, 6e-6)
    assert (found.bandwidth, found.stream) == (1.18e8, 1.18e8)
    assert network_of({**ANSWER, "ranks_per_node": 1}).stream == math.inf
    assert found.copy_bandwidth == pytest.approx((65000 - 8) / 16e-6, rel=0.01)
    assert (found.eager_limit, found.ranks_per_node) == (65000, 4)


def test_several_connections_that_are_faster_than_one() -> None:
    found = network_of({**ANSWER, "rate": {"one": 2e9, "all": 5e9}})
    assert (found.name, found.bandwidth, found.stream) == ("40gbe", 5e9, 2e9)


def test_own_time_that_does_not_grow_is_no_copying() -> None:
    assert network_of({**ANSWER, "send": [[8, 6e-6], [65000, 5e-6]]}).copy_bandwidth == math.inf


def test_a_message_that_its_ends_take_longer_for_has_no_latency() -> None:
    assert network_of({**ANSWER, "way": [[8, 5e-6], [65000, 6e-4]]}).latency == 0.0


def test_a_machine_holds_its_network(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    replace(Machine.typical(), network=NETWORK).save(file)
    found = load_network(str(file))
    assert str(found) == NETWORK
    assert found.node == Machine.load(file)
    assert load_network(f"{file}:ranks-per-node=2").ranks_per_node == 2
    other = load_network(f"infiniband:machine={file}")
    assert (other.latency, other.node) == (load_network("infiniband").latency, found.node)


def test_a_wrong_network_of_a_machine_is_refused_with_its_file(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    replace(Machine.typical(), network="1gbe:latency=7").save(file)
    with pytest.raises(UsageError, match=r"cluster.json: latency of 1gbe must have a unit"):
        load_network(str(file))
