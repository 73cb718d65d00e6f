"""Blocks, pairs, nodes and costs: pure arithmetic, no ranks needed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.collectives import Cost, CostModel, Nodes, cost, cut, length, one_node
from paceline.collectives.auto import choose
from paceline.collectives.recursive_doubling import PowerOfTwo

sizes = st.integers(0, 10_000)
ranks = st.integers(1, 70)


@settings(deadline=None)
@given(n=sizes, parts=ranks, align=st.sampled_from([1, 4, 16]))
def test_parts_are_neighbours_that_cover_all_and_differ_by_one_unit_at_most(
    n: int, parts: int, align: int
) -> None:
    made = cut(n, parts, align)
    assert len(made) == parts
    assert [0, *(part.stop for part in made)] == [*(part.start for part in made), n]
    assert all(part.start % align == 0 or part.start == n for part in made)
    units = [-(-length(part) // align) for part in made]
    assert max(units) - min(units) <= 1
    assert max(units) == units[0]


@settings(deadline=None)
@given(p=ranks)
def test_a_power_of_two_of_ranks_takes_part(p: int) -> None:
    places = [PowerOfTwo(r, p) for r in range(p)]
    taking_part = [place.number for place in places if place.number is not None]
    assert sorted(taking_part) == list(range(places[0].size))
    assert places[0].size <= p < 2 * places[0].size
    assert all(place.rank_of(place.number) == place.rank for place in places if place.number is not None)


@settings(deadline=None)
@given(of=st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_nodes(of: list[int]) -> None:
    nodes = Nodes(tuple(of))
    assert nodes.count * nodes.smallest <= len(of) <= nodes.count * nodes.largest
    for rank in range(len(of)):
        peers = nodes.peers(rank)
        assert rank in peers
        assert len({of[q] for q in peers}) == len(peers)
        if nodes.place(rank) < nodes.smallest:
            assert len(peers) == nodes.count


@settings(deadline=None)
@given(n=st.integers(1, 10_000), p=st.integers(2, 70))
def test_what_all_ranks_send_together(n: int, p: int) -> None:
    def total(name: str) -> int:
        return sum(cost(name, n=n, p=p, r=r).sent for r in range(p))

    size = PowerOfTwo(0, p).size
    k, extra = size.bit_length() - 1, p - size
    assert total("naive") == p * (p - 1) * n
    assert total("ring") == 2 * (p - 1) * n
    assert total("recursive-doubling") == (k * size + 2 * extra) * n
    assert total("rabenseifner") == 2 * (size - 1) * n + 2 * extra * n
    assert total("shared-memory") == total("hierarchical") == 0
    assert total("native") == p * n


@settings(deadline=None)
@given(n=st.integers(1, 5000), of=st.lists(st.integers(0, 3), min_size=2, max_size=12))
def test_between_nodes_each_element_goes_as_often_as_between_as_many_ranks(n: int, of: list[int]) -> None:
    nodes = Nodes(tuple(of))
    sent = [cost("hierarchical", n=n, p=len(of), r=r, nodes=nodes).sent for r in range(len(of))]
    size = PowerOfTwo(0, nodes.count).size
    whole = cost("recursive-doubling", n=n, p=nodes.count).carried and (size.bit_length() - 1) * size
    assert sum(sent) == n * (whole + 2 * (nodes.count - size))


@settings(deadline=None)
@given(n=sizes, p=ranks)
def test_no_messages_for_one_rank_or_no_elements(n: int, p: int) -> None:
    for name in (
        "naive",
        "ring",
        "recursive-doubling",
        "rabenseifner",
        "shared-memory",
        "hierarchical",
        "auto",
    ):
        assert cost(name, n=0, p=p) == cost(name, n=n, p=1) == Cost()


def test_time_is_alpha_beta_gamma() -> None:
    machine = CostModel(alpha=1.0, beta=0.1, gamma=0.01)
    ring = cost("ring", n=400, p=4)
    assert machine.seconds(ring, itemsize=4) == pytest.approx(6 + 0.1 * 4 * 600 + 0.01 * 4 * 300)
    doubling = cost("recursive-doubling", n=400, p=6)  # 2 exchanges, and one before and after
    assert machine.seconds(doubling, itemsize=4) == pytest.approx(4 + 0.1 * 4 * 1600 + 0.01 * 4 * 1200)
    naive = cost("naive", n=400, p=4)
    assert machine.seconds(naive, itemsize=4) == pytest.approx(3 + 0.1 * 4 * 1200 + 0.01 * 4 * 2000)


def test_auto_goes_by_nodes_then_by_size() -> None:
    def name(nbytes: int, nodes: Nodes) -> str:
        return choose(nbytes, len(nodes.of), nodes).__name__.rpartition(".")[2]

    assert name(64 << 20, one_node(8)) == "shared_memory"
    assert name(64 << 20, Nodes((0, 0, 1, 1))) == name(64 << 20, Nodes((0, 0, 0, 1))) == "hierarchical"
    assert name(64, Nodes((0, 1, 2))) == "recursive_doubling"
    assert name(64 << 20, Nodes((0, 1, 2))) == "ring"
    assert name(64 << 20, Nodes((0, 1, 2, 3))) == "rabenseifner"
