"""What computing costs: tables, nodes with more ranks than cores, stragglers."""

from __future__ import annotations

import math
import statistics

import pytest

from paceline.errors import UsageError
from paceline.machine import Costs, Machine, make_compute
from paceline.vmpi import Compute, Curves

GRADIENT = {"gradient": Curves.of({1: [[1, 2.0], [9, 4.0]], 4: [[1, 4.0], [9, 8.0]]})}


def _seconds(compute: Compute, amount: float, ranks: int, rank: int = 0) -> float:
    return compute.start([0] * ranks).seconds("gradient", amount, rank)


def test_tables_are_joined_by_lines_and_go_on() -> None:
    compute = Compute(work=GRADIENT)
    assert [_seconds(compute, amount, 1) for amount in (0.5, 1, 5, 9, 13)] == [2.0, 2.0, 3.0, 4.0, 5.0]


def test_between_numbers_of_ranks_it_goes_by_the_logarithm() -> None:
    compute = Compute(work=GRADIENT)
    assert [_seconds(compute, 9, ranks) for ranks in (1, 2, 4, 16)] == [4.0, 6.0, 8.0, 8.0]


def test_each_node_by_its_own_ranks() -> None:
    ranks = Compute(work=GRADIENT).start([0, 0, 0, 0, 1])
    assert (ranks.seconds("gradient", 9, 0), ranks.seconds("gradient", 9, 4)) == (8.0, 4.0)


def test_more_ranks_than_cores_take_turns() -> None:
    compute = Compute(work=GRADIENT, cores=4)
    assert _seconds(compute, 9, 8) == 2 * 8.0
    assert _seconds(Compute(work=GRADIENT, cores=1), 9, 2) == 2 * 4.0


def test_nothing_costs_nothing() -> None:
    ranks = Compute(work=GRADIENT).start([0])
    assert ranks.seconds("gradient", 0, 0) == 0.0
    assert ranks.seconds("unheard-of", 100, 0) == 0.0


def test_slow_ranks() -> None:
    ranks = Compute(work={"gradient": 1.0}, slow={1: 4.0}).start([0, 0, 0])
    assert [ranks.seconds("gradient", 2, rank) for rank in range(3)] == [2.0, 8.0, 2.0]


UNEVEN = Compute(work={"gradient": 1.0, "copy": 1.0}, jitter=0.5, pauses=(0.1, 3.0))


def test_unevenness_is_each_ranks_own_whoever_asks_first() -> None:
    one = UNEVEN.start([0] * 3, seed=7)
    other = UNEVEN.start([0] * 3, seed=7)
    by_rank = [[one.seconds("gradient", 1, rank) for _ in range(50)] for rank in range(3)]
    in_turn = [[other.seconds("gradient", 1, rank) for rank in (2, 0, 1)] for _ in range(50)]
    assert by_rank == [[row[at] for row in in_turn] for at in (1, 2, 0)]
    assert by_rank[0] != by_rank[1]
    again = UNEVEN.start([0] * 3, seed=8)
    assert [again.seconds("gradient", 1, 0) for _ in range(50)] != by_rank[0]


def test_jitter_has_its_sigma_and_leaves_memory_alone() -> None:
    ranks = Compute(work={"gradient": 1.0, "copy": 1.0}, jitter=0.5).start([0])
    taken = [ranks.seconds("gradient", 1, 0) for _ in range(4000)]
    logs = [math.log(seconds) for seconds in taken]
    assert statistics.mean(taken) == pytest.approx(1, abs=0.05)
    assert statistics.stdev(logs) == pytest.approx(0.5, rel=0.05)
    assert {ranks.seconds("copy", 1, 0) for _ in range(10)} == {1.0}


def test_pauses_have_their_rate_and_length() -> None:
    ranks = Compute(work={"gradient": 1.0}, pauses=(0.25, 10.0)).start([0])
    taken = [ranks.seconds("gradient", 1, 0) for _ in range(4000)]
    paused = sum((seconds - 1) / 10 for seconds in taken)
    assert all((seconds - 1) % 10 == 0 for seconds in taken)
    assert paused == pytest.approx(1000, rel=0.15)


def test_from_what_was_measured() -> None:
    costs = Costs(work=GRADIENT, cores=2)
    ranks = make_compute(Machine.typical(), costs, slow={0: 2.0}).start([0])
    assert ranks.seconds("gradient", 9, 0) == 8.0
    assert ranks.seconds("copy", 1 << 20, 0) > 0
    assert make_compute(None, costs).cores == 2


def test_costs_come_back_from_their_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    costs = Costs(work=GRADIENT, cores=2, about="a job", processor="some")
    costs.save(tmp_path / "costs.json")
    assert Costs.load(tmp_path / "costs.json") == costs
    with pytest.raises(UsageError, match="is not the file of a machine"):
        Machine.load(tmp_path / "costs.json")
    with pytest.raises(UsageError, match="cannot write"):
        costs.save(tmp_path / "nowhere" / "costs.json")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"work": {"gradient": [[2, 1], [1, 1]]}}, "the cost of gradient must be seconds, or points"),
        ({"work": {"gradient": "fast"}}, "the cost of gradient must be seconds, or points"),
        ({"work": {"gradient": -1.0}}, "the cost of gradient must be seconds, or points"),
        ({"slow": {3: 0.0}}, "a slow rank needs a number of at least 0 and a factor above 0; got 3: 0.0"),
        ({"jitter": -0.1}, "jitter must be at least 0; got -0.1"),
        ({"pauses": (0.0, 1.0)}, "pauses need a rate and a length above 0"),
        ({"cores": 0}, "cores must be at least 1; got 0"),
    ],
)
def test_refusals(given: dict[str, object], told: str) -> None:
    with pytest.raises(UsageError) as refused:
        Compute(**given)  # type: ignore[arg-type]
    assert str(refused.value).startswith(told)
