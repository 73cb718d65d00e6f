"""What messages cost, by hand on small cases; and how networks are spelled."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paceline import vmpi
from paceline.errors import UsageError
from paceline.machine import Machine, load_network
from paceline.vmpi import MPI, Curves, Link
from paceline.vmpi.network import (
    Hop,
    Network,
    StepCosts,
    Wires,
    collective_seconds,
    nccl_seconds,
    parse_network,
    presets,
)


def _flat(*points: Sequence[float]) -> Curves:
    return Curves.of({1: points})


# Inside a node: up to 100 bytes a message costs 1 + n/100 to send, 2 to fly, 3 + n/100 to take; above that 4 to
# announce, 5 to fly, 10 + n/100 to take.
NODE = Machine(
    cores=4,
    eager_limit=100,
    post=0.25,
    poll=0.125,
    link=Link(
        send=_flat([0, 1.0], [100, 2.0], [101, 4.0], [1001, 4.0]),
        flight=_flat([0, 2.0], [100, 2.0], [101, 5.0], [1001, 5.0]),
        take=_flat([0, 3.0], [100, 4.0], [101, 11.01], [1001, 20.01]),
    ),
)


def _network(**changes: object) -> Network:
    plain: dict[str, object] = {"latency": 8.0, "bandwidth": 16.0, "overhead": 1.0, "eager_limit": 64}
    return Network(**{**plain, "node": NODE, **changes})  # type: ignore[arg-type]


# ---- between nodes


def test_eager_between_nodes() -> None:
    wires = _network().wires(2)
    assert wires.node == [0, 1]
    assert wires.contended(0, 1)
    assert wires.eager(0, 1, 64)
    assert not wires.eager(0, 1, 65)
    # the sender is free after o; o + L + n/B until it is there; the receiver's o
    assert wires.send(0, 1, 32, 100.0, True) == (101.0, 101.0 + 8.0 + 2.0, 1.0)


def test_rendezvous_between_nodes() -> None:
    wires = _network().wires(2)
    assert wires.send(0, 1, 160, 0.0, False) == (1.0, 9.0, 0.0)  # announced: o, L
    # asked for at 20: o + L + o, then L + n/B; the sender has done with it when the last byte has left
    assert wires.fetch(0, 1, 160, 20.0) == (30.0 + 8.0 + 10.0, 1.0, 30.0 + 10.0)


def test_copies_overlap_with_the_way_but_for_one_piece() -> None:
    wires = _network(copy_bandwidth=64.0, eager_limit=1 << 20).wires(2)
    free, comes, taking = wires.send(0, 1, 64, 0.0, True)  # one piece: copied, sent, copied
    assert (free, comes, taking) == (1.0 + 1.0, 2.0 + 8.0 + 4.0, 1.0 + 1.0)
    n, first = 1 << 20, (1 << 16) / 64
    free, comes, taking = wires.send(0, 1, n, 100.0, True)
    assert free == 101.0 + n / 64
    assert comes + taking == 100.0 + 2 * 1.0 + 2 * first + 8.0 + n / 16


def test_two_ranks_of_a_node_share_its_card_one_after_the_other() -> None:
    wires = _network(ranks_per_node=2).wires(6)
    assert wires.node == [0, 0, 1, 1, 2, 2]
    assert wires.send(0, 2, 64, 0.0, True)[1] == 1 + 8 + 4
    assert (
        wires.send(1, 4, 64, 0.0, True)[1] == 1 + 8 + 4 + 4
    )  # to another node: it waits for the card at its own
    assert wires.send(5, 3, 64, 0.0, True)[1] == 1 + 8 + 4 + 4  # and for the card of the node that it goes to


def test_a_card_sends_and_receives_at_a_time() -> None:
    wires = _network().wires(2)
    assert wires.send(0, 1, 64, 0.0, True)[1] == 13.0
    assert wires.send(1, 0, 64, 0.0, True)[1] == 13.0


def test_a_card_that_is_promised_for_later_is_free_until_then() -> None:
    wires = _network().wires(3)
    assert wires.fetch(0, 1, 160, 0.0)[2] == 20.0  # leaves from 10 to 20
    assert wires.send(0, 2, 64, 1.0, True)[1] == 14.0  # leaves from 2 to 6, before it
    assert wires.send(0, 2, 64, 5.0, True)[1] == 18.0  # from 6 to 10
    assert wires.send(0, 2, 32, 5.5, True)[1] == 30.0  # there is no room left: from 20 to 22


def test_a_message_that_was_held_up_holds_up_nobody_else_where_it_goes() -> None:
    wires = _network().wires(4)
    wires.send(0, 1, 64, 0.0, True)
    assert (
        wires.send(0, 2, 64, 0.0, True)[1] == 17.0
    )  # held up at its own card until 5; comes in from 13 to 17
    assert wires.send(3, 2, 64, 0.0, True)[1] == 13.0  # comes in from 9 to 13


# ---- inside a node


def test_eager_inside_a_node_does_not_touch_the_card() -> None:
    wires = _network(ranks_per_node=2).wires(4)
    assert not wires.contended(0, 1)
    assert wires.eager(0, 1, 100)
    assert not wires.eager(0, 1, 101)
    assert wires.send(0, 1, 50, 10.0, True) == (11.5, 13.5, 3.5)
    assert wires.send(0, 2, 64, 10.0, True)[1] == 10 + 13.0


def test_rendezvous_inside_a_node_is_copied_by_the_receiver() -> None:
    wires = _network(ranks_per_node=None).wires(2)
    assert wires.send(0, 1, 1001, 0.0, False) == (4.0, 9.0, 0.0)
    there, taking, released = wires.fetch(0, 1, 1001, 20.0)
    assert (there, taking, released) == (20.0, 20.01, 20.0 + 20.01 + 5.0)


def test_what_is_forced_to_be_eager_or_not_still_has_a_cost() -> None:
    wires = _network(ranks_per_node=None).wires(2)
    free, arrives, taking = wires.send(0, 1, 1001, 0.0, True)  # copied in as long as it is copied out
    assert (free, arrives, taking) == (2.0 + (20.01 - 11.01), free + 2.0, 20.01)
    assert wires.send(0, 1, 50, 0.0, False) == (4.0, 9.0, 0.0)
    assert wires.fetch(0, 1, 50, 9.0) == (9.0, 3.5, 9.0 + 3.5 + 5.0)


def test_costs_inside_a_node_go_by_its_ranks() -> None:
    flat = _flat([0, 0.0], [100, 0.0])
    take = Curves.of({2: [[0, 1.0], [100, 2.0]], 8: [[0, 3.0], [100, 4.0]]})
    machine = Machine(link=Link(send=flat, flight=flat, take=take))

    def taking(ranks: int) -> float:
        return _network(ranks_per_node=None, node=machine).wires(ranks).send(0, 1, 50, 0.0, True)[2]

    assert [taking(ranks) for ranks in (2, 4, 8, 64)] == [1.5, 2.5, 3.5, 3.5]


def test_long_messages_take_longer_while_others_are_taken() -> None:
    flat = _flat([0, 0.0], [100, 0.0])
    take = Curves.of(
        {1: [[0, 1.0], [1 << 20, 1.0]], 2: [[0, 2.0], [1 << 20, 2.0]], 4: [[0, 4.0], [1 << 20, 4.0]]}
    )
    machine = Machine(link=Link(send=flat, flight=flat, take=take))
    network = _network(ranks_per_node=None, node=machine)

    def taking(*copies: tuple[int, int, float]) -> list[float]:
        wires = network.wires(8)
        return [wires.fetch(source, dest, 1 << 20, now)[1] for source, dest, now in copies]

    one, two, three, four = 1.0, 2.0, 2 * math.log2(3), 4.0
    assert taking(*((0, k, 0.0) for k in range(1, 6))) == pytest.approx([one, two, three, four, four])
    just_before = taking((0, 1, 0.0), (0, 2, 0.0), (0, 3, 4.5), (0, 3, 6.5))
    assert just_before == [one, two, two, one]
    assert taking(*((0, 1, 2.0 * k) for k in range(4))) == [one] * 4  # one rank after the other
    assert taking(*((k % 2, 1 - k % 2, 2.0 * k) for k in range(6))) == [one, *[two] * 5]


def test_jitter_is_drawn_from_what_the_run_gives() -> None:
    jittery = _network(jitter=0.5, ranks_per_node=2)

    def times(seed: int | None) -> list[float]:
        wires = jittery.wires(4, None if seed is None else random.Random(seed))
        return [wires.send(0, to, 0, 0.0, True)[1] for to in (1, 2, 3)]

    assert times(1) == times(1) != times(2)
    assert times(None) == [3.0, 9.0, 9.0]
    assert all(t > own for t, own in zip(times(1), (1.0, 1.0, 1.0), strict=True))


# ---- MPI's own collectives


def test_collectives_on_one_node_are_as_measured() -> None:
    measured = {"Barrier": _flat([0, 7.0]), "Allreduce": Curves.of({2: [[8, 1.0], [16, 2.0]]})}
    machine = Machine(link=NODE.link, collectives=measured)
    wires = _network(ranks_per_node=None, node=machine).wires(4)
    assert wires.collective("Barrier", range(4), 0) == 7.0
    assert wires.collective("Allreduce", range(4), 12) == 1.5
    assert wires.collective("Barrier", range(1), 0) == 0.0


def test_a_collective_that_was_not_measured_is_as_much_faster_as_one_that_was() -> None:
    plain = _network(ranks_per_node=None).wires(4)
    whole = plain.collective("Allreduce", range(4), 8)
    machine = replace(NODE, collectives={"Allreduce": _flat([0, whole / 4], [16, whole / 4])})
    wires = _network(ranks_per_node=None, node=machine).wires(4)
    assert wires.collective("Bcast", range(4), 8) == plain.collective("Bcast", range(4), 8) / 4


def test_barrier_between_nodes_is_rounds_of_small_messages() -> None:
    wires = _network().wires(8)
    assert wires.collective("Barrier", range(8), 0) == 3 * (0.25 + 1 + 8 + 1)


def test_collectives_inside_a_node_and_between_nodes() -> None:
    wires = _network(ranks_per_node=2).wires(8)
    inside, between = 0.25 + 1 + 2 + 3, 0.25 + 1 + 8 + 1
    # Three rounds of all ranks, in one of which both partners are on one node: no slower than an Allgather of nothing.
    assert wires.collective("Barrier", range(8), 0) == inside + 2 * between
    assert wires.collective("Allgather", range(8), 0) == inside + 2 * between
    assert wires.collective("Barrier", range(2), 0) == inside
    assert wires.collective("Barrier", [0, 2], 0) == between


@pytest.mark.parametrize("p", [1, 2, 3, 8, 100])
@pytest.mark.parametrize(
    "name",
    [
        "Barrier",
        "Bcast",
        "Reduce",
        "Allreduce",
        "Allgather",
        "Gather",
        "Scatter",
        "Alltoall",
        "Scan",
        "Split",
    ],
)
def test_collectives_cost_no_less_than_they_must(name: str, p: int) -> None:
    steps = StepCosts(lambda n: 1.0 + n, lambda n: 0.5 * n)
    for n in (0, 8, 1e6):
        told = collective_seconds(name, p, n, steps)
        assert told >= (math.ceil(math.log2(p)) if p > 1 else 0)
        if p > 1 and name != "Barrier":
            assert told >= n / 2  # nobody can have all of it without as many bytes
    assert collective_seconds(name, p, 1e6, steps) >= collective_seconds(name, p, 8, steps)


GUIDELINES = [  # n: the bytes of a whole buffer; b: of a rank's part
    ("Reduce", "n", [("Allreduce", "n")]),
    ("Reduce", "n", [("Reduce_scatter", "n"), ("Gather", "b")]),
    ("Allreduce", "n", [("Reduce", "n"), ("Bcast", "n")]),
    ("Allreduce", "n", [("Reduce_scatter", "n"), ("Allgather", "b")]),
    ("Allreduce", "n", [("Scan", "n"), ("Bcast", "n")]),
    ("Reduce_scatter", "n", [("Reduce", "n"), ("Scatter", "n")]),
    ("Reduce_scatter", "n", [("Allreduce", "n")]),
    ("Bcast", "n", [("Scatter", "n"), ("Allgather", "b")]),
    ("Bcast", "n", [("Allreduce", "n")]),
    ("Scatter", "n", [("Bcast", "n")]),
    ("Scatter", "n", [("Alltoall", "n")]),
    ("Gather", "b", [("Allgather", "b")]),
    ("Gather", "b", [("Reduce", "n")]),
    ("Allgather", "b", [("Gather", "b"), ("Bcast", "n")]),
    ("Allgather", "b", [("Alltoall", "n")]),
    ("Allgather", "b", [("Allreduce", "n")]),
    ("Alltoall", "n", [("Allgather", "n")]),
    ("Barrier", "b", [("Allgather", "b")]),
]


@pytest.mark.parametrize(
    "text",
    [
        "10gbe", "infiniband", "loopback", "50gbe", "10gbe:ranks-per-node=4", "infiniband:ranks-per-node=4,cards=2",
        "10gbe:nodes-per-switch=4,oversubscription=4", "10gbe:nodes-per-switch=2,oversubscription=8,ranks-per-node=2",
        "10gbe:cyclic=3", "infiniband:ranks-per-node=4,inside=nvlink,library=mpi",
    ],
)  # fmt: skip
def test_no_collective_is_slower_than_others_that_replace_it(text: str) -> None:
    for p in range(2, 18):
        wires = parse_network(text).wires(p)
        for part in (0, 8, 1024, 65536, 1 << 20):
            sizes = {"n": part * p, "b": part}
            for name, size, others in GUIDELINES:
                found = wires.collective(name, range(p), sizes[size])
                bound = sum(wires.collective(other, range(p), sizes[each]) for other, each in others)
                assert found <= bound * (1 + 1e-6), (name, others, p, part)


def test_reduce_by_hand() -> None:
    """Three ranks and 1200 bytes of 16 B/s: two steps of a ring with 400 bytes, then two parts of 400 to the root."""
    wires = _network(latency=0.0, overhead=0.0, eager_limit=10**6).wires(3)
    assert wires.collective("Reduce", range(3), 1200) == pytest.approx(4 * (0.25 + 400 / 16))
    # Scattered in the same parts; the root's own does not move.
    assert wires.collective("Scatter", range(3), 1200) == pytest.approx(2 * (0.25 + 400 / 16))


@pytest.mark.parametrize("inside", [None, "nvlink"])
def test_gather_brings_only_what_other_nodes_have_through_the_card(inside: str | None) -> None:
    """Ranks 0 and 1 are on one node: of three parts of a million bytes, one passes the card."""
    wires = parse_network("10gbe:ranks-per-node=2").wires(3)
    if inside is not None:
        wires = parse_network(f"10gbe:ranks-per-node=2,inside={inside}").wires(3)
    line = 1e6 * wires.per_byte
    assert wires.collective("Gather", range(3), 1_000_000) == pytest.approx(line, rel=0.4)
    assert wires.collective("Scatter", range(3), 3_000_000) == pytest.approx(line, rel=0.6)


def test_long_allreduces_take_the_algorithm_that_sends_least() -> None:
    steps = StepCosts(lambda n: 1.0 + n, lambda n: 0.0)
    assert collective_seconds("Allreduce", 8, 8e9, steps) == pytest.approx(2 * 7 / 8 * 8e9)
    assert collective_seconds("Allreduce", 8, 0, steps) == 3.0


def test_gathering_takes_no_more_bytes_than_there_are() -> None:
    steps = StepCosts(lambda n: n, lambda n: 0.0)
    assert [collective_seconds("Gather", p, 8, steps) for p in (2, 4, 5, 8, 17)] == [8, 24, 32, 56, 128]
    assert [collective_seconds("Allgather", p, 8, steps) for p in (2, 4, 5, 8, 17)] == [8, 24, 32, 56, 128]


def test_collectives_of_very_many_members() -> None:
    wires = presets()["10gbe"].wires(65536)
    everyone = range(65536)
    assert 0 < wires.collective("Barrier", everyone, 0) < wires.collective("Allreduce", everyone, 1 << 20)


# ---- spelling


def test_every_preset_parses_and_is_spelled_alike() -> None:
    for name, network in presets().items():
        assert load_network(name) == network
        assert str(network) == name


@pytest.mark.parametrize(
    "text",
    ["10gbe:latency=3e-05s,ranks-per-node=4", "loopback:jitter=0.1", "1gbe:copy-bandwidth=inf,overhead=0"],
)
def test_spelling_comes_back(text: str) -> None:
    assert load_network(str(load_network(text))) == load_network(text)


@pytest.mark.parametrize(
    "text",
    [
        "10gbe:latency=20us,bandwidth=10Gbit/s,overhead=500ns,stream=1.25GB/s,eager-limit=8KiB",
        "10gbe:latency=0,bandwidth=117MB/s,copy-bandwidth=inf,eager-limit=65kB,oversubscription=2,nodes-per-switch=4",
        "infiniband:bandwidth=25Gbit/s,eager-limit=65441B",
    ],
)
def test_spelling_is_what_people_write(text: str) -> None:
    network = load_network(text)
    assert {*str(network).partition(":")[2].split(",")} == {*text.partition(":")[2].split(",")}


@given(
    seconds=st.floats(0, 86_400, allow_subnormal=False),
    rate=st.floats(1, 1e18),
    limit=st.integers(0, 1 << 60),
)
@example(seconds=0.0, rate=1.0, limit=2**53 + 1)
def test_every_value_is_read_back_to_the_last_bit(seconds: float, rate: float, limit: int) -> None:
    network = replace(presets()["10gbe"], latency=seconds, stream=rate, eager_limit=limit)
    assert parse_network(str(network)) == network


def test_units() -> None:
    network = load_network("10gbe:latency=20us,bandwidth=25Gbit/s,overhead=500ns,eager-limit=8KiB,jitter=0.1")
    assert (network.latency, network.bandwidth) == (20e-6, 3.125e9)
    assert (network.overhead, network.eager_limit, network.jitter) == (500e-9, 8192, 0.1)
    assert load_network("10gbe:bandwidth=1.2GB/s,ranks-per-node=all").ranks_per_node is None
    assert load_network("10gbe:bandwidth=117MB/s").bandwidth == 117e6


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "11gbe",
            "unknown network '11gbe'; choose one of loopback, 1gbe, 10gbe, 25gbe, 40gbe,",
        ),
        ("10gbe:fast", "10gbe takes option=value; got 'fast'"),
        ("10gbe:speed=3", "unknown option of 10gbe 'speed'; choose one of latency"),
        ("10gbe:latency=20", "latency of 10gbe must have a unit, such as 20us"),
        (
            "10gbe:latency=xus",
            "latency of 10gbe must be a number with a unit, such as 20us; got 'xus'; choose one",
        ),
        (
            "10gbe:bandwidth=10Gbps",
            "bandwidth of 10gbe must be a number with a unit, such as 10Gbit/s; got '10Gbps'; choose one of Mbit/s, Gbit/s",
        ),
        ("10gbe:bandwidth=-1Gbit/s", "bandwidth of 10gbe must be above 0; got -1Gbit/s"),
        ("10gbe:eager-limit=-1KiB", "eager-limit of 10gbe must be at least 0; got -1KiB"),
        ("10gbe:eager-limit=infMB", "eager-limit of 10gbe must be finite; got infMB"),
        (
            "loopback:bandwidth=1Gbit/s",
            "bandwidth of loopback is that between nodes, and all ranks are on one node",
        ),
        ("loopback:latency=1ms", "latency of loopback is that between nodes, and all ranks are on one node"),
        (
            "loopback:nodes-per-switch=2,oversubscription=2",
            "nodes-per-switch of loopback needs several nodes, and all ranks are on one node",
        ),
        ("10gbe:socket-latency=1s", "socket-latency of 10gbe needs sockets, such as sockets=2"),
        (
            "loopback:socket-bandwidth=1GB/s,sockets=1",
            "socket-bandwidth of loopback needs sockets, such as sockets=2",
        ),
        ("10gbe:latency=1us,latency=2us", "10gbe: latency is given twice"),
        ("10gbe:cards=2,", "10gbe:cards=2, has a comma with nothing before or after it"),
        ("10gbe:latency=-1us", "latency of 10gbe must be at least 0"),
        ("10gbe:bandwidth=0", "bandwidth of 10gbe must be above 0"),
        ("10gbe:bandwidth=0.5B/s", "bandwidth of 10gbe must be at least 1 B/s; got 0.5B/s"),
        ("10gbe:latency=1e300s", "latency of 10gbe must be at most 86400; got 1e300s"),
        (f"10gbe:cards={'9' * 5000}", "cards of 10gbe must be a whole number; got '99999999999999999999…'"),
        ("10gbe:ranks-per-node=0", "ranks-per-node of 10gbe must be at least 1; got 0"),
        ("10gbe:ranks-per-node=x", "ranks-per-node of 10gbe must be a whole number, or all"),
        ("10gbe:jitter=nan", "jitter of 10gbe must be a number"),
        ("/nowhere/machine.json", "cannot read /nowhere/machine.json: no such file or directory"),
    ],
)
def test_refusals(text: str, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        load_network(text)
    assert str(refused.value).startswith(told)
    assert "\n" not in str(refused.value)


# ---- machines


def test_a_machine_comes_back_from_its_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "machine.json"
    NODE.save(path)
    assert Machine.load(path) == NODE
    assert load_network(str(path)).node == NODE
    assert load_network(str(path)).ranks_per_node is None
    assert load_network(f"10gbe:machine={path}").node == NODE
    for option, told in (
        ("bandwidth=1GB/s", "is that between nodes, and all ranks are on one node"),
        ("socket-bandwidth=1GB/s", "needs sockets, such as sockets=2"),
        (
            "ranks-per-node=2",
            f"needs a network between the nodes, such as 10gbe:ranks-per-node=2,machine={path}, or",
        ),
    ):
        with pytest.raises(UsageError, match=f"of {path} {told}"):
            load_network(f"{path}:{option}")
    assert [left.name for left in tmp_path.iterdir()] == ["machine.json"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"kind": "costs"}, "is not the file of a machine"),
        ({"format": 99}, "has format 99; this paceline reads 1"),
        ({"eager_limit": None}, "is damaged"),
        ({"link": {"send": {"2": [[2, 1.0], [1, 1.0]]}}}, "is damaged: a table needs increasing amounts"),
        ({"memory": {"copy": {"2": [[1, -1.0]]}}}, "is damaged: a table needs amounts and seconds"),
    ],
)
def test_other_files_are_refused_in_a_line(tmp_path, change, told) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "machine.json"
    path.write_text(json.dumps({**NODE.values(), **change}))
    with pytest.raises(UsageError, match=told) as refused:
        Machine.load(path)
    assert "\n" not in str(refused.value)
    path.write_text("{")
    with pytest.raises(UsageError, match=r"is not the file of a machine, as .* writes it: it is not JSON: "):
        Machine.load(path)


# ---- several cards, switches, sockets, ranks dealt in turn


def test_ranks_of_a_node_use_its_cards_in_turn() -> None:
    # 160 bytes pass a card in 10; both ranks of node 0 send at the same time.
    one = _network(ranks_per_node=2, eager_limit=1000).wires(4)
    assert [one.send(rank, rank + 2, 160, 0.0, True)[1] for rank in (0, 1)] == [1 + 8 + 10, 1 + 8 + 20]
    two = _network(ranks_per_node=2, eager_limit=1000, cards=2).wires(4)
    assert [two.send(rank, rank + 2, 160, 0.0, True)[1] for rank in (0, 1)] == [1 + 8 + 10] * 2


def test_nodes_of_a_switch_share_its_uplink() -> None:
    # 4 nodes of rate 16 behind 2 switches: an uplink of 2 x 16 / 4 = 8 bytes a second, 20 for 160 bytes.
    wires = _network(nodes_per_switch=2, oversubscription=4.0, eager_limit=1000).wires(4)
    assert wires.send(0, 1, 160, 0.0, True)[1] == 1 + 8 + 10  # the same switch
    assert wires.send(2, 0, 160, 100.0, True)[1] == 100 + 1 + 8 + 20
    assert (
        wires.send(3, 1, 160, 100.0, True)[1] == 100 + 1 + 20 + 8 + 20
    )  # after the other, through the uplink
    # Announced: asked for (1 + 8 + 1), then the same.
    assert wires.fetch(0, 2, 160, 200.0) == (200 + 10 + 8 + 20, 1.0, 200 + 10 + 20)


def test_uplinks_of_full_rate_cost_nothing() -> None:
    plain, switched = (
        _network(eager_limit=1000).wires(4),
        _network(nodes_per_switch=2, eager_limit=1000).wires(4),
    )
    for source, dest in ((0, 2), (1, 3), (2, 0)):
        assert plain.send(source, dest, 160, 0.0, True) == switched.send(source, dest, 160, 0.0, True)


def test_oversubscription_slows_exchanges_but_not_rings() -> None:
    gigabit = StepCosts(lambda n: 2 * n, lambda n: 0.0, lambda n: n)
    # A ring's 2 (p - 1) steps of n / p at rate 1, against log2 p exchanges of n at rate 1/2, or Rabenseifner's.
    assert collective_seconds("Allreduce", 4, 8.0, gigabit) == 2 * 3 * 2.0
    alike = StepCosts(lambda n: 2 * n, lambda n: 0.0)
    assert collective_seconds("Allreduce", 4, 8.0, alike) == 2 * 3 * 4.0


def _oversubscribed() -> tuple[Wires, float]:
    """Return 8 nodes of rate 16 behind 2 switches with uplinks of 4 x 16 / 4 = 16, and the cost of each of their steps."""
    wires = _network(
        latency=0.0, overhead=0.0, nodes_per_switch=4, oversubscription=4.0, eager_limit=10**6
    ).wires(8)
    return wires, NODE.post


def test_alltoall_over_uplinks_takes_as_long_as_its_bytes_take_to_pass_them() -> None:
    wires, post = _oversubscribed()
    # 7 steps of 160 bytes; 1, 2, 3, 4, 3, 2 and 1 of the 4 nodes behind a switch send out of it: 2560 bytes at 16.
    assert wires.collective("Alltoall", range(8), 1280) == 7 * post + 2560 / 16
    # Short parts: Bruck's 3 rounds of half of it, with 1, 2 and 4 nodes.
    assert wires.collective("Alltoall", range(8), 8) == 3 * post + (1 + 2 + 4) * 4 / 16
    # Twice the rate: steps in which at most 2 nodes send out are as fast as the cards.
    faster = _network(
        latency=0.0, overhead=0.0, nodes_per_switch=4, oversubscription=2.0, eager_limit=10**6
    ).wires(8)
    assert faster.collective("Alltoall", range(8), 1280) == 7 * post + 10 * (1 + 1 + 1.5 + 2 + 1.5 + 1 + 1)


def test_tree_crosses_an_uplink_once_in_a_round() -> None:
    wires, post = _oversubscribed()
    flat = _network(latency=0.0, overhead=0.0, eager_limit=10**6).wires(8)
    # Scattered in rounds of 640, 320 and 160 bytes, then around a ring in 7 steps of 160: no more than on one switch.
    assert wires.collective("Bcast", range(8), 1280) == 10 * post + (640 + 320 + 160 + 7 * 160) / 16
    assert wires.collective("Bcast", range(8), 1) == 3 * (post + 1 / 16)
    for name in ("Bcast", "Gather", "Scatter"):
        assert wires.collective(name, range(8), 1280) <= flat.collective(name, range(8), 1280) + 4 * post
    # An uplink that is half as fast as a card.
    slow = _network(
        latency=0.0, overhead=0.0, nodes_per_switch=4, oversubscription=8.0, eager_limit=10**6
    ).wires(8)
    assert slow.collective("Scatter", range(8), 1280) == 3 * post + (640 + 320 + 160) / 8


def test_rabenseifner_halves_between_neighbours_before_it_crosses_an_uplink() -> None:
    wires, post = _oversubscribed()
    # Halves of 4 and 2 bytes behind a switch, then 1 of each of its 4 nodes through the uplink; all of it back again.
    assert wires.collective("Reduce", range(8), 8) == 3 * (post + 8 / 16)  # a tree
    assert wires.collective("Allreduce", range(8), 8) == 6 * post + 2 * (4 + 2 + 4 * 1) / 16
    # Long arrays: around a ring in 7 steps of 160, then gathered in rounds of 160, 320 and 640.
    assert wires.collective("Reduce", range(8), 1280) == 10 * post + (7 * 160 + 640 + 320 + 160) / 16
    # An uplink that is half as fast as a card does not slow down what stays behind its switch.
    slow = _network(
        latency=0.0, overhead=0.0, nodes_per_switch=4, oversubscription=8.0, eager_limit=10**6
    ).wires(8)
    assert slow.collective("Allreduce", range(8), 80) == 6 * post + 2 * ((40 + 20) / 16 + 4 * 10 / 8)
    # Three switches, of ranks 0 to 2, 3 to 5, 6 and 7: of the second, 3 exchanges with 2, then all with 1, 6 and 7.
    steps = StepCosts(lambda n: n, lambda n: 0.0, behind=3)
    assert [steps.count_pairs_apart(distance, 8) for distance in (1, 2, 4)] == [1, 3, 3]


def test_message_between_sockets() -> None:
    slow = _network(ranks_per_node=4, sockets=2, socket_bandwidth=10.0, socket_latency=0.5).wires(4)
    near = _network(ranks_per_node=4).wires(4)
    assert slow.memory == [0, 0, 1, 1]
    assert not slow.uniform
    assert slow.send(0, 1, 100, 0.0, True) == near.send(0, 1, 100, 0.0, True) == (2.0, 4.0, 4.0)
    assert slow.send(0, 2, 100, 0.0, True) == (2.0, 4.5, 10.0)  # 100 bytes at 10 a second, 0.5 later
    assert slow.fetch(0, 3, 901, 0.0) == pytest.approx((0.0, 90.1, 90.1 + 5.5))
    assert near.fetch(0, 3, 901, 0.0)[1] == pytest.approx(19.01)


def test_ranks_dealt_to_nodes_in_turn() -> None:
    network = _network(cyclic=3)
    assert network.nodes(5) == 3
    assert network.nodes(2) == 2
    assert network.wires(5).node == [0, 1, 2, 0, 1]
    assert [network.ranks_on_node(ranks) for ranks in (2, 3, 4, 6, 7)] == [1, 1, 2, 2, 3]
    assert str(Network.named("10gbe", cyclic=3, ranks_per_node=4)) == "10gbe:cyclic=3"
    assert Network.named("loopback", cyclic=3).node_cores(2) is None  # of several nodes nothing was measured
    assert not network.wires(5).contended(0, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("10gbe:oversubscription=2", "oversubscription of 10gbe needs nodes-per-switch"),
        ("10gbe:oversubscription=0.5,nodes-per-switch=4", "oversubscription of 10gbe must be at least 1; got 0.5"),
        ("10gbe:cards=0", "cards of 10gbe must be at least 1; got 0"),
        ("10gbe:cards=two", "cards of 10gbe must be a whole number; got 'two'"),
        ("10gbe:cards=2", "cards of 10gbe must be at most ranks-per-node, because a rank uses one of them; got 2 and 1"),
        ("10gbe:sockets=4,ranks-per-node=2", "sockets of 10gbe must be at most ranks-per-node"),
        ("10gbe:inside=lvnink", "unknown inside of 10gbe 'lvnink'; choose one of nvlink,"),
        ("25gbe:inside-bandwidth=4GB/s", "inside-bandwidth of 25gbe needs inside, the links of a node's GPUs: one of"),
        ("pcie:inside-bandwidth=0GB/s", "inside-bandwidth of pcie must be above 0; got 0GB/s"),
        (
            "pcie:bandwidth=4GB/s",
            "bandwidth of pcie is that between nodes, and all ranks are on one node; the links of its GPUs have inside-",
        ),
        ("10gbe:cyclic=2,ranks-per-node=4", "ranks-per-node of 10gbe has no effect with cyclic, which deals ranks"),
        ("pcie,inside-bandwidth=4GB/s", "options of a network follow a colon: pcie:inside-bandwidth=4GB/s; got "),
        ("nvlink:latency=5us", "latency of nvlink is that between nodes, and all ranks are on one node"),
        (
            "nvlink:ranks-per-node=4",
            "ranks-per-node of nvlink needs a network between the nodes, such as 10gbe:ranks-per-node=4,inside=nvlink, or",
        ),
        ("loopback:cyclic=3", "cyclic of loopback needs a network between the nodes, such as 10gbe:cyclic=3, or its"),
        ("10gbe:library=gloo", "unknown library of 10gbe 'gloo'; choose one of mpi, nccl"),
    ],
)  # fmt: skip
def test_bad_topology(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        load_network(text)
    assert str(refused.value).startswith(message)


def test_every_network_can_be_written_down_and_read_again() -> None:
    for name, preset in presets().items():
        # Nothing connects several nodes of a network for one.
        rate = "bandwidth=2GB/s," if preset.ranks_per_node is None else ""
        for text in (name, f"{name}:{rate}ranks-per-node=2,cards=2,nodes-per-switch=4,library=nccl"):
            assert str(load_network(text)) == text
            assert load_network(str(load_network(text))) == load_network(text)


def test_connection_of_two_ranks_carries_one_message_at_a_time() -> None:
    # 160 bytes pass the card in 10, and the connection, of 4 a second, in 40.
    wires = _network(eager_limit=1000, stream=4.0).wires(3)
    assert wires.send(0, 1, 160, 0.0, True)[1] == 1 + 8 + 40
    assert wires.send(0, 1, 160, 0.0, True)[1] == 1 + 40 + 8 + 40
    # Another connection is not held up by them.
    assert wires.send(0, 2, 160, 0.0, True)[1] == 1 + 8 + 40
    assert wires.fetch(2, 1, 160, 100.0) == (100 + 10 + 8 + 40, 1.0, 100 + 10 + 40)


def _arrivals(wires: Wires, *pairs: tuple[int, int], nbytes: int) -> list[float]:
    """Return when messages that are sent at once arrive, when all of them are known."""
    flows = []
    for source, dest in pairs:
        wires.send(source, dest, nbytes, 0.0, True)
        assert wires.flow is not None
        flows.append(wires.flow)
    return [flow.arrives() for flow in flows]


@pytest.mark.parametrize("to_one", [False, True])
def test_connections_share_a_card_in_equal_parts(to_one: bool) -> None:
    pairs = [(rank, 0) if to_one else (0, rank) for rank in range(1, 9)]
    # A card of 16 bytes a second carries four connections of 4: messages of 160 bytes take 40.
    few = _network(eager_limit=1000, stream=4.0).wires(9)
    assert _arrivals(few, *pairs[:4], nbytes=160) == [1 + 8 + 40] * 4
    # Of eight each has 2, and of three that could have 6 each 5 1/3.
    assert _arrivals(_network(eager_limit=1000, stream=4.0).wires(9), *pairs, nbytes=160) == [1 + 8 + 80] * 8
    some = _network(eager_limit=1000, stream=6.0).wires(9)
    assert _arrivals(some, *pairs[:3], nbytes=96) == [pytest.approx(1 + 8 + 96 / (16 / 3))] * 3


def test_connections_that_could_fill_a_card_share_it() -> None:
    # Alone, 160 bytes pass a card of 16 bytes a second in 10; two connections need 20 for both.
    alone = _network(eager_limit=1000, stream=16.0).wires(3)
    assert _arrivals(alone, (0, 1), nbytes=160) == [1 + 8 + 10]
    assert (
        _arrivals(_network(eager_limit=1000, stream=16.0).wires(3), (0, 1), (0, 2), nbytes=160)
        == [1 + 8 + 20] * 2
    )
    # Faster connections than the card are not limited: messages pass one after the other.
    in_turn = _network(eager_limit=1000, stream=17.0).wires(3)
    assert [in_turn.send(0, dest, 160, 0.0, True)[1] for dest in (1, 2)] == [1 + 8 + 10, 1 + 8 + 20]


def test_messages_of_different_lengths_share_a_card() -> None:
    wires = _network(eager_limit=1000, stream=8.0).wires(5)
    flows = []
    for dest, nbytes in ((1, 40), (2, 80), (3, 120), (4, 160)):
        wires.send(0, dest, nbytes, 0.0, True)
        flows.append(wires.flow)
    # All at 4 until the first is through after 10, at 16/3 until the second is after 7.5, then at 8 for 5 and for 10.
    ends = [9 + 10, 9 + 17.5, 9 + 22.5, 9 + 27.5]
    assert [flow and flow.arrives() for flow in flows] == pytest.approx(ends)


def test_later_message_slows_down_those_on_their_way() -> None:
    wires = _network(eager_limit=1000, stream=16.0 / 1.5).wires(3)
    assert wires.send(0, 1, 160, 0.0, True)[1] == 1 + 8 + 15
    first = wires.flow
    wires.send(0, 2, 160, 9.0, True)  # 9 seconds after the first, which has 64 bytes left: 8 for each
    assert first is not None
    assert first.arrives() == pytest.approx(1 + 8 + 9 + 64 / 8)
    assert wires.flow is not None
    assert wires.flow.arrives() == pytest.approx(10 + 8 + 8 + 96 / (16.0 / 1.5))


@pytest.mark.parametrize("seed", range(5))
def test_what_is_known_of_connections_comes_true(seed: int) -> None:
    draw, now, flows = random.Random(seed), 0.0, []
    wires = _network(eager_limit=10**6, stream=5.0, latency=2.0).wires(6)
    for _ in range(40):
        now += draw.choice([0.0, 0.0, 1.0, 7.0])
        source, dest = draw.sample(range(4), 2)
        if draw.random() < 0.5:
            wires.send(source, dest, draw.choice([0, 1, 80, 400]), now, True)
        else:
            wires.fetch(source, dest, draw.choice([0, 1, 80, 400]), now)
        assert wires.flow is not None
        flows.append(wires.flow)
    known = [flow.leaves() for flow in flows]
    for dest in range(4):  # much later: all of them are through
        wires.send(dest, (dest + 1) % 4, 1, 1e6, True)
    assert all(len(flow.ends) == 2 for flow in flows)
    assert [flow.leaves() for flow in flows] == pytest.approx(known)
    # No connection was faster than it can be, and no card either.
    for flow in flows:
        assert flow.leaves() - flow.start >= flow.nbytes / 5.0 * (1 - 1e-9)
    for card in range(4):
        mine = [flow for flow in flows if flow.connection[0] == card]
        busy = max(flow.leaves() for flow in mine) - min(flow.start for flow in mine)
        assert sum(flow.nbytes for flow in mine) <= 16.0 * busy * (1 + 1e-9)


def test_connections_share_an_uplink() -> None:
    # An uplink of 2 x 16 / 4 = 8 bytes a second carries two connections of 4; of three each has 8/3.
    network = _network(nodes_per_switch=2, oversubscription=4.0, eager_limit=1000, stream=4.0)
    assert _arrivals(network.wires(6), (0, 2), (1, 3), (2, 3), nbytes=160) == [1 + 8 + 40] * 3
    ends = _arrivals(network.wires(6), (0, 2), (1, 3), (0, 3), nbytes=160)
    assert ends == [pytest.approx(1 + 8 + 60)] * 3


def test_ranks_receive_when_connections_have_shared_the_card() -> None:
    def program(comm: Any, count: int, nbytes: int) -> float:
        buffer = np.zeros(nbytes, np.uint8)
        if comm.Get_rank() == 0:
            MPI.Request.Waitall([comm.Isend(buffer, dest) for dest in range(1, count + 1)])
        elif comm.Get_rank() <= count:
            comm.Recv(buffer, 0)
        return float(comm.Wtime())

    def last(count: int, nbytes: int, limit: int) -> float:
        network = _network(stream=4.0, eager_limit=limit)
        return max(vmpi.run(program, count, nbytes, ranks=9, network=network).values)

    for limit in (0, 10**6):
        alone = last(1, 16_000, limit)
        assert last(4, 16_000, limit) == pytest.approx(alone, rel=0.01)
        assert last(8, 16_000, limit) == pytest.approx(2 * alone, rel=0.02)


@pytest.mark.parametrize("limit", [0, 10**9])
@pytest.mark.parametrize("copies", [16.0, 64.0, 8.0])
def test_receiver_copies_messages_while_they_share_its_card(copies: float, limit: int) -> None:
    """The card passes 8 MiB in 8 * 2^16 s, two to eight connections of 4 B/s at a time; copying adds a piece of 2^16 B."""
    nbytes, piece = 1 << 20, 65536 / copies

    def program(comm: Any, count: int, busy: float) -> float:
        rank, buffers = comm.Get_rank(), [np.zeros(nbytes, np.uint8) for _ in range(count)]
        if rank == 0:
            requests = [comm.Irecv(buffer, source) for source, buffer in enumerate(buffers, 1)]
            if busy:
                comm.Compute(busy)
            MPI.Request.Waitall(requests)
        elif rank <= count:
            comm.Send(buffers[0], 0)
        return float(comm.Wtime())

    def last(count: int, busy: float = 0.0) -> float:
        network = _network(stream=4.0, copy_bandwidth=copies, eager_limit=limit)
        return float(vmpi.run(program, count, busy, ranks=9, network=network).values[0])

    for count in (1, 2, 4, 8):
        line, copying = nbytes * max(1 / 4, count / 16), count * nbytes / copies
        assert last(count) == pytest.approx(max(line, copying) + 2 * piece, abs=100)
    if limit:  # a rank that computes copies nothing: all of it is left for afterwards
        assert last(8, busy=2e6) == pytest.approx(2e6 + 8 * nbytes / copies, abs=100)


def test_receiver_of_several_messages_copies_one_that_comes_alone_as_before() -> None:
    def program(comm: Any) -> float:
        rank, buffer = comm.Get_rank(), np.zeros(1 << 20, np.uint8)
        if rank == 0:
            for source in (1, 2):
                comm.Recv(buffer, source)
        else:
            comm.Compute(1e6 * rank)
            comm.Send(buffer, 0)
        return float(comm.Wtime())

    # The second one is announced after 2e6 + 1 s, asked for in 8 + 1 + 8 + 1, copied in pieces of 4096 s by both ends.
    network = _network(stream=4.0, copy_bandwidth=16.0, eager_limit=0)
    end = 2e6 + 18 + 4096 + 8 + (1 << 18) + 4096 + 1
    assert vmpi.run(program, ranks=3, network=network).values[0] == pytest.approx(end, abs=2)


def test_messages_of_a_connection_keep_their_order() -> None:
    def program(comm: Any) -> list[int]:
        rank, size, found = comm.Get_rank(), comm.Get_size(), []
        if rank == 0:  # short and long, announced and not, to all others
            sizes = [4000, 1, 3000, 70_000, 2, 50]
            data = [np.full(count, place, np.uint8) for place, count in enumerate(sizes)]
            MPI.Request.Waitall([comm.Isend(one, dest) for one in data for dest in range(1, size)])
        else:
            for _ in range(6):
                buffer = np.zeros(70_000, np.uint8)
                comm.Recv(buffer, MPI.ANY_SOURCE)
                found.append(int(buffer[0]))
        return found

    values = vmpi.run(program, ranks=6, network="25gbe:stream=100MB/s,eager-limit=3500B", strict=False).values
    assert values[1:] == [list(range(6))] * 5


def test_connections_wait_for_collectives_and_collectives_for_them() -> None:
    wires = _network(eager_limit=10**6, stream=4.0).wires(6)
    end = wires.join("Allreduce", range(4), 640, 0.0)
    assert wires.send(0, 1, 160, 0.0, True)[1] > 1 + 8 + 40
    assert wires.send(4, 5, 160, 0.0, True)[1] == 1 + 8 + 40  # other cards
    busy = _network(eager_limit=10**6, stream=4.0).wires(4)
    busy.send(0, 1, 16_000, 0.0, True)  # 1000 seconds of the cards of both
    assert busy.join("Allreduce", range(4), 640, 0.0) > 1000 + end - 100


# ---- NCCL


def test_nccl_ring_by_hand() -> None:
    lane, wire = Hop(1.0, 0.001), Hop(10.0, 0.01)
    # 4 GPUs of one node: 6 steps of a quarter of the array, by lane.
    assert (
        nccl_seconds("Allreduce", 4, 1, 4000.0, inside=lane, between=wire, start=5.0)
        == 5 + 6 * 1 + 6 * 1000 * 0.001
    )
    # On 2 nodes the ring passes between them twice in each of its two rounds, and the wire is the slowest link.
    ring = 5 + 2 * 1 + 4 * 10 + 6 * 1000 * 0.01
    tree = 5 + 2 * (1 + 10) + 2 * 4000 * 0.01 / 0.9
    assert (
        nccl_seconds("Allreduce", 4, 2, 4000.0, inside=lane, between=wire, start=5.0)
        == min(ring, tree)
        == ring
    )
    # Few bytes among many nodes: a tree.
    assert nccl_seconds("Allreduce", 64, 64, 0.0, inside=lane, between=wire, start=5.0) == 5 + 2 * 6 * 10
    assert nccl_seconds("Alltoall", 4, 2, 1.0, inside=lane, between=wire) is None


def test_links_of_gpus_at_another_rate() -> None:
    """Without P2P, 4 GB/s: a ring of 4 GPUs moves 1.5 n bytes through each link."""
    for text in ("pcie:inside-bandwidth=4GB/s", "25gbe:inside=pcie,inside-bandwidth=4GB/s,ranks-per-node=4"):
        network = load_network(text)
        taken = network.wires(4).join("Allreduce", range(4), 400_000_000, 0.0)
        assert taken == pytest.approx(1.5 * 0.4 / 4, rel=1e-3)
        assert load_network(str(network)) == network
    assert load_network("nvlink:inside=pcie").node == load_network("pcie").node
    # Between nodes the preset's own rate does not matter.
    assert load_network("nvlink:ranks-per-node=2,bandwidth=10Gbit/s").bandwidth == 1.25e9


def test_nccl_is_the_default_between_gpus() -> None:
    assert load_network("25gbe:inside=pcie").uses_nccl
    assert load_network("nvlink").uses_nccl
    assert not load_network("25gbe:inside=pcie,library=mpi").uses_nccl
    assert not load_network("25gbe").uses_nccl


# ---- collectives in flight at the same time


def test_collectives_wait_for_those_before() -> None:
    wires = _network().wires(4)
    alone = wires.collective("Allreduce", range(4), 64)
    everyone = range(4)
    ends = [wires.join("Allreduce", everyone, 64, 0.0) for _ in range(3)]
    assert ends[0] == alone
    working = ends[1] - ends[0]
    assert working == alone - 2 * 8.0  # two exchanges of 64 bytes: only their latencies overlap
    assert ends[2] - ends[1] == pytest.approx(working)
    assert wires.join("Allreduce", everyone, 64, 1000.0) == 1000.0 + alone


def test_collectives_and_messages_share_the_card() -> None:
    wires = _network(eager_limit=1000).wires(4)
    end = wires.join("Allreduce", range(4), 640, 0.0)
    late = wires.send(0, 1, 160, 0.0, True)[1]
    assert late > 1 + 8 + 10  # after the bytes of the collective
    assert late < end + 1 + 8 + 10
    busy = _network(eager_limit=10**6).wires(4)
    busy.send(0, 1, 16_000, 0.0, True)  # holds the cards of both until 1000
    assert busy.join("Allreduce", range(4), 640, 0.0) > 1000
    other = _network(eager_limit=10**6).wires(6)
    other.send(4, 5, 16_000, 0.0, True)
    assert other.join("Allreduce", range(4), 640, 0.0) == end  # other cards
