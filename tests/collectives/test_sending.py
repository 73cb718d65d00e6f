"""Gradients sent between nodes during the backward pass, or in fewer bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline import vmpi
from paceline.collectives import Sending, make_exchange, parse_compression
from paceline.collectives import _compression as compression
from paceline.comm.channel import Lane, Tasks, channel
from paceline.errors import UsageError
from tests.collectives import sendings
from tests.ranks import on_ranks

LAYOUTS = {2: [[0, 1]], 3: [[0, 0, 1], [2, 1, 0]], 4: [[0, 0, 1, 1], [0, 1, 0, 1]], 5: [[0, 0, 1, 1, 1]]}


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_buckets_that_are_sent_early_add_up_to_the_gradient(ranks: int) -> None:
    vmpi.run(sendings.overlap, ranks=ranks)


@pytest.mark.parametrize("ranks", LAYOUTS)
def test_buckets_between_nodes_whose_ranks_share_memory(ranks: int) -> None:
    vmpi.run(lambda comm: sendings.overlap_on_nodes(comm, LAYOUTS[ranks]), ranks=ranks)


@pytest.mark.parametrize("ranks", [2, 4])
def test_compressed_sums_are_close_and_their_bytes_are_those_of_the_formula(ranks: int) -> None:
    layouts = [None, *LAYOUTS[ranks]]
    outcome = vmpi.run(lambda comm: sendings.compressed(comm, layouts), ranks=ranks)
    limits = {"bfloat16": 0.01, "float16": 0.001, "topk:share=0.1": 0.2, "powersgd:rank=2": 0.2}
    for compress, error, _ in outcome.values[0]:
        assert 0 < error < limits[compress], (compress, error)
    sent = {compress: nbytes for compress, _, nbytes in outcome.values[0][::-1]}
    assert sent["bfloat16"] == sent["float16"]
    assert sent["topk:share=0.1"] < sent["bfloat16"]
    assert sent["powersgd:rank=2"] < 2 * sent["bfloat16"]


@pytest.mark.parametrize("compress", ["topk:share=0.02", "powersgd:rank=1"])
def test_nothing_is_lost_that_is_not_sent(compress: str) -> None:
    outcome = vmpi.run(lambda comm: sendings.remembered(comm, compress), ranks=3)
    assert max(outcome.values) < 1e-5


def test_with_mpi() -> None:
    on_ranks("tests.collectives.sendings:overlap", 3)
    on_ranks("tests.collectives.sendings:overlap_on_nodes", 3, layouts=LAYOUTS[3])
    on_ranks("tests.collectives.sendings:compressed", 3, layouts=[None, *LAYOUTS[3]], steps=4)


def test_messages_travel_while_a_rank_computes() -> None:
    """1 MB at 1 Gbit/s takes 8 ms each way; so does the computing between the start of the sum and its end."""
    network = vmpi.parse_network("1gbe")

    def seconds(comm: Any, background: bool) -> float:
        x, own = np.ones(250_000, np.float32), channel(comm)
        tasks, lane = Tasks(own), Lane(own, 0)
        from paceline.collectives.ring import allreduce

        comm.Barrier()
        start = comm.me.t
        if background:
            tasks.start(lambda: allreduce(x, x, lane))
        for _ in range(20):
            comm.Compute(1e-3)
            tasks.advance()
        if not background:
            tasks.start(lambda: allreduce(x, x, lane))
        tasks.finish()
        assert (x == 2).all()
        return float(comm.me.t - start)

    def most(background: bool) -> float:
        return max(vmpi.run(lambda comm: seconds(comm, background), ranks=2, network=network).values)

    assert most(False) > 0.027
    assert most(True) < 0.021


def test_an_error_in_a_task_reaches_its_caller() -> None:
    def fail(comm: Any) -> str:
        tasks = Tasks(channel(comm))
        with pytest.raises(ZeroDivisionError):
            tasks.start(lambda: 1 / 0)
        return "done"

    assert vmpi.run(fail, ranks=1).values == ["done"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gzip", "unknown compression 'gzip'; choose one of none, bfloat16, float16, topk, powersgd"),
        ("topk:share=0", "share of compress=topk must be above 0 and at most 1; got 0"),
        ("topk:share=nan", "share of compress=topk must be above 0 and at most 1; got nan"),
        ("topk:0.1", "compress=topk takes topk:share=…; got 'topk:0.1'"),
        ("topk:share=few", "compress=topk:share=few needs a number; got 'few'"),
        ("powersgd:rank=0", "rank of compress=powersgd must be at least 1; got 0"),
        ("powersgd:rank=1.5", "compress=powersgd:rank=1.5 needs a whole number; got '1.5'"),
        ("bfloat16:rank=1", "compress=bfloat16 takes no options; got 'bfloat16:rank=1'"),
    ],
)
def test_unknown_compressions_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_compression(text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("name", ["auto", "hierarchical", "shared-memory"])
def test_ranks_that_share_memory_send_nothing(name: str) -> None:
    def refused(comm: Any) -> str:
        with pytest.raises(UsageError) as caught:
            make_exchange(name, sendings.Layers(np.zeros(605)), comm, sending=Sending(compress="bfloat16"))
        return str(caught.value)

    said = vmpi.run(refused, ranks=2).values
    assert said[0] == said[1]
    assert said[0].startswith(
        f"compress=bfloat16 is for messages between nodes; with {name} the ranks of one node"
    )


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize("factor", [1.0, 0.125])
def test_rounding_to_two_bytes(name: str, factor: float) -> None:
    """NumPy and PyTorch round to the same bits, ties to even, and keep signs, infinities and NaNs."""
    torch = pytest.importorskip("torch")
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32)
    bits[:4] = 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800000, 0x3F808000
    values, scale = bits.view(np.float32), np.float32(factor)
    plain = compression._make_numpy_format(*compression.NUMPY[name])
    found = []
    with np.errstate(all="ignore"):
        for made in (plain, compression._make_torch_format(torch, name, plain)):
            short, other, back = (
                np.empty((2, bits.size), np.uint16),
                np.empty(bits.size, np.uint16),
                values.copy(),
            )
            made.narrow(values, scale, short[0])
            made.narrow(values[::-1].copy(), scale, short[1])
            made.add(short[0], short[1], other)
            made.widen(other, np.float32(1 / factor), back)
            found.append(back)
    assert np.array_equal(*found, equal_nan=True)
    if name == "bfloat16" and factor == 1:
        made = torch.from_numpy(values.copy()).bfloat16()
        total = (made.float() + made.flip(0).float()).bfloat16().float().numpy()
        assert np.array_equal(found[0], total, equal_nan=True)
