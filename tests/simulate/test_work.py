"""Work that is known by its figures alone: its file, and predictions by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline import names
from paceline.cli import main
from paceline.errors import UsageError
from paceline.simulate.options import Options
from paceline.simulate.scaling import Scaling
from paceline.simulate.work import Layer, Work, work_load

PLAIN = "batch = 100\nseconds = 1.0\nparameters = 10_000_000\njitter = 0\n"


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "net.toml"
    path.write_text(text)
    return path


def _rate(work: Work, network: str, strategy: str, ranks: int) -> float:
    candidate = work_load(work, Options(network=network)).candidate(strategy, ranks)
    return candidate.measure(candidate.scenario, candidate.length()).samples_per_second


def test_total_of_parameters_becomes_equal_layers(tmp_path: Path) -> None:
    work = Work.load(_file(tmp_path, "batch = 8\nsamples_per_second = 4\nparameters = 100\n"))
    assert work.name == "net"
    assert work.seconds == 2.0
    assert len(work.layers) == 32
    assert {layer.parameters for layer in work.layers} == {3, 4}
    assert work.parameters == 100
    assert work.costs().work["gradient"].at(4, ranks=1) == 1.0
    assert work.config().batch_per_rank == 8
    assert work.config(batch=64).batch_per_rank is None


def test_counts_may_be_written_as_powers_of_ten(tmp_path: Path) -> None:
    work = Work.load(_file(tmp_path, "batch = 8.0\nseconds = 1\nparameters = 25.6e6\n"))
    assert (work.batch, work.parameters) == (8, 25_600_000)
    with pytest.raises(UsageError, match="parameters must be a whole number"):
        Work.load(_file(tmp_path, "batch = 8\nseconds = 1\nparameters = 25.5\n"))


def test_there_is_a_batch_for_every_rank_unless_the_file_says_how_many_samples_there_are(
    tmp_path: Path,
) -> None:
    assert Work.load(_file(tmp_path, PLAIN)).samples == 1 << 20
    assert Work.load(_file(tmp_path, PLAIN), ranks=65_536).samples == 65_536 * 100
    assert Work.load(_file(tmp_path, PLAIN + "samples = 5000\n"), ranks=65_536).samples == 5000


def test_reasons_name_the_update_and_the_bytes_of_a_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def reason(text: str, network: str, *more: str) -> str:
        words = [f"--work={_file(tmp_path, text)}", f"--network={network}", "--ranks=4", f"--out={tmp_path}"]
        assert main(["simulate", "scaling", *words, *more]) == 0
        return " ".join(capsys.readouterr().out.split())

    said = reason(f"{PLAIN}update_seconds = 0.5\n", "100gbe-rdma", "--batch=400")
    assert "computing that does not shrink: every rank updates all parameters, in 500 ms" in said
    said = reason(PLAIN, "1gbe:ranks-per-node=2")
    assert "moving bytes: 40 MB per rank, of whom the 2 of a node share a card of 118 MB/s" in said
    said = reason(PLAIN, "1gbe:ranks-per-node=2,cards=2")
    assert "of a node share 2 cards of 118 MB/s" in said
    said = reason(PLAIN, "100gbe:inside=nvlink,stream=1Gbit/s")
    assert (
        "40 MB per rank through a card of 12.1 GB/s, over connections of at most 125 MB/s each: without it"
        in said
    )
    said = reason(PLAIN, "1gbe:copy-bandwidth=50MB/s")
    assert "40 MB per rank through a card of 118 MB/s, copied by each end at 50 MB/s: without it" in said
    said = reason(PLAIN, "1gbe:nodes-per-switch=2,oversubscription=8")
    assert "through a card of 118 MB/s, with 2 nodes behind an uplink of 29.4 MB/s: without it" in said
    said = reason(PLAIN, "1gbe:nodes-per-switch=4,oversubscription=8")
    assert "uplink" not in said  # all are behind one switch


def test_layers_and_passes(tmp_path: Path) -> None:
    text = """
    batch = 1
    forward_seconds = 1.0
    backward_seconds = 4.0
    element_bytes = 2
    overlap = true
    bucket = 25
    [[layers]]
    name = "convolution"
    parameters = 10
    share = 3
    [[layers]]
    parameters = 30
    """
    work = Work.load(_file(tmp_path, text))
    assert (work.seconds, work.forward, work.element_bytes) == (5.0, 0.2, 2)
    assert work.layers == [Layer(parameters=10, share=3.0, name="convolution"), Layer(parameters=30)]
    model = work_load(work, Options()).model
    assert model.x.nbytes == 80
    assert work.strategy == "sync:allreduce=native,overlap=true,bucket=25"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch = 1", "give the speed of one device once: samples_per_second, seconds, or forward_seconds and"),
        ("batch = 1\nseconds = 1\nsamples_per_second = 1", "give the speed of one device once"),
        ("batch = 1\nforward_seconds = 1", "give both forward_seconds and backward_seconds, or neither"),
        ("seconds = 1", "batch is missing: the samples that a device computes in a step"),
        ("batch = 1\nseconds = 1", "parameters is missing: give their number, or [[layers]] with the parameters of each"),
        ("batch = 0\nseconds = 1", "batch must be a whole number from 1 to 1,000,000,000; got 0"),
        ("batch = true\nseconds = 1", "batch must be a whole number from 1 to 1,000,000,000; got True"),
        ("batch = 1\nseconds = nan", "seconds must be a number above 0; got nan"),
        ("batch = 1\nseconds = 'fast'", "seconds must be a number above 0; got 'fast'"),
        ("batch = 1\nseconds = 1\nparameter = 3", "unknown key 'parameter'; choose one of name, source, batch,"),
        ("batch = 1\nseconds = 1\nparameters = 3\nbucket = 1", "bucket needs overlap = true"),
        ("batch = 1\nseconds = 1\nparameters = 3\noverlap = 1", "overlap must be true or false; got 1"),
        ("batch = 1\nseconds = 1\nparameters = 3\njitter = 2", "jitter must be at most 1; got 2"),
        ("batch = 1\nseconds = 1\nparameters = 3\nelement_bytes = 3", "element_bytes must be one of 2, 4, 8; got 3"),
        ("batch = 1\nseconds = 1\nparameters = 3\nname = \"a\\nb\"", "name must be a string of one line"),
        ("batch = 9\nseconds = 1\nparameters = 3\nsamples = 8", "samples must be at least a batch of 9; got 8"),
        ("batch = 1\nseconds = 1\nlayers = 3", "layers must be tables, [[layers]], with their parameters"),
        ("batch = 1\nseconds = 1\n[[layers]]\nname = 'a'", "layer 1: parameters is missing"),
        (
            "batch = 1\nseconds = 1\nparameters = 3\n[[layers]]\nparameters = 2",
            "the layers have 2 parameters; got parameters = 3",
        ),
        ("batch = ", "is not TOML"),
        ("", "batch is missing"),
        ("batch = -1\nseconds = 1", "batch must be a whole number from 1 to 1,000,000,000; got -1"),
        (f"batch = 1\nseconds = 1{'0' * 400}", "seconds must be a number above 0 and below 1e+300; got 1000"),
        (
            "batch = 1\nsamples_per_second = 1e-200",
            "a step must take from 1e-09 to 1e+09 seconds; a batch of 1 takes 1e+200",
        ),
        ("batch = 1\nseconds = 1e-200", "a batch of 1 takes 1e-200"),
        ("batch = 8\nseconds = 1\n[[layers]]\nparameters = 3\ntimes = 0", "layer 1: times must be a whole number from 1"),
        ("batch = 8\nseconds = 1\naccumulation = 9", "accumulation must be a whole number from 1 to 8; got 9"),
        ("batch = 8\n[samples_per_second]", "samples_per_second needs every batch once"),
        ("batch = 8\n[seconds]\n8 = 1\n08 = 2", "seconds needs every batch once"),
        ("batch = 8\n[seconds]\n8 = -1", "seconds: 8 must be a number above 0; got -1"),
        ("batch = 8\n[seconds]\nfast = 1", "seconds must be a number, or a table of numbers by batch; got the key 'fast'"),
        ("batch = 8\n[seconds]\n4 = 1\n2 = 0.5", "seconds must have the batch of 8; got 2, 4"),
        (
            "batch = 8\n[seconds]\n4 = 3\n8 = 1",
            "seconds: a batch of 8 takes less time than one of 4: 1 s and 3 s",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _file(tmp_path, text)
    with pytest.raises(UsageError, match=r"net\.toml") as refused:
        Work.load(path)
    assert message in str(refused.value)
    assert main(["simulate", "scaling", f"--work={path}", f"--out={tmp_path / 'out'}"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert message in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--slow=9:2x", "--ranks=1,2"], "slow: there is no rank 9; the ranks are 0 to 1"),
        ([f"--ranks={'9' * 5000}"], "--ranks has a number of 5000 digits"),
        (["--ranks=2", "--network=10gbe:cards=0"], "cards of 10gbe must be at least 1; got 0"),
    ],
)
def test_other_mistakes_are_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "scaling", f"--work={_file(tmp_path, PLAIN)}", *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--data=iris"],
        ["--data=mnist"],
        ["--labels=numbers"],
        ["--model=mlp:3"],
        ["--dtype=float64"],
        ["--accuracy"],
        ["--threads=2"],
        ["--lr-scaling=linear", "--batch-per-rank=2"],
    ],
)
def test_settings_that_the_file_replaces(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "scaling", f"--work={_file(tmp_path, PLAIN)}", *words]) == 2
    assert "leave out --" in capsys.readouterr().err


def test_synchronous_step_by_hand(tmp_path: Path) -> None:
    work = Work.load(_file(tmp_path, PLAIN))
    # A second of computing, then NCCL's ring: 2 3/4 of 40 MB at 1 GB/s, 6 hops.
    network = "10gbe:bandwidth=1GB/s,latency=0,overhead=0,library=nccl"
    rate = _rate(work, network, "sync:allreduce=native", 4)
    assert rate == pytest.approx(400 / (1 + 0.06), rel=1e-3)
    # Averages every 10 steps cost a tenth of that.
    assert _rate(work, network, "local-sgd:every=10,allreduce=native", 4) == pytest.approx(
        400 / 1.006, rel=1e-3
    )


def test_parameter_server_by_hand(tmp_path: Path) -> None:
    # One server answers when both workers' 40 MB are there. The one that is answered first is 40 ms ahead from then on, so
    # that a step is a second of computing and three transfers: its own, the other's, and the answer.
    layer = Layer(parameters=10**7)
    work = Work(name="net", batch=100, seconds=1.0, layers=[layer], jitter=0.0)
    network = "10gbe:bandwidth=1GB/s,latency=0,overhead=0,copy-bandwidth=inf"
    rate = _rate(work, network, "parameter-server:bound=0,placement=even", 3)
    assert rate == pytest.approx(200 / (1 + 0.12), rel=0.02)


def test_device_is_less_efficient_with_the_small_pieces_of_a_fixed_batch(tmp_path: Path) -> None:
    """Strong scaling: 64 samples in 0.6 s, 32 in 0.4 s, so that 16 take 0.3 s and 0.2 s are lost to every step."""
    text = "batch = 64\nparameters = 100\njitter = 0\n[seconds]\n32 = 0.4\n64 = 0.6\n"
    work = Work.load(_file(tmp_path, text))
    assert work.samples_per_second == pytest.approx(64 / 0.6)
    on = work_load(work, Options(network="nvlink"), batch=64)
    for ranks, seconds in ((1, 0.6), (2, 0.4), (4, 0.3)):
        candidate = on.candidate("sync:allreduce=native", ranks)
        timing = candidate.measure(candidate.scenario, candidate.length())
        assert timing.samples_per_second == pytest.approx(64 / seconds, rel=1e-3)


def test_only_the_last_backward_pass_hides_the_exchange(tmp_path: Path) -> None:
    """Of a second, four passes: 0.75 s without exchange, then a forward pass of 1/12 s and a backward pass of 1/6 s."""
    text = f"{PLAIN}overlap = true\nbucket = 1\naccumulation = 4\n"
    work = Work.load(_file(tmp_path, text))
    assert work.unsent(100) == pytest.approx(5 / 6)
    # The ring takes 0.6 s: 0.6 s of 1.43 s begin at 5/6 s, less than a bucket's time later.
    network = "10gbe:bandwidth=100MB/s,latency=0,overhead=0,library=nccl"
    assert _rate(work, network, work.strategy, 4) == pytest.approx(400 / (5 / 6 + 0.6), rel=0.02)
    whole = Work.load(_file(tmp_path, text.replace("accumulation = 4\n", "")))
    assert _rate(whole, network, whole.strategy, 4) == pytest.approx(400 / 1.0, rel=0.03)


def test_part_of_a_fixed_batch_has_fewer_passes(tmp_path: Path) -> None:
    """Four devices compute a quarter of a batch of 100 each, in one pass of 0.25 s: its backward pass of 1/6 s overlaps."""
    work = Work.load(_file(tmp_path, f"{PLAIN}overlap = true\nbucket = 1\naccumulation = 4\n"))
    network = "10gbe:bandwidth=100MB/s,latency=0,overhead=0,library=nccl"
    candidate = work_load(work, Options(network=network), batch=100).candidate(work.strategy, 4)
    rate = candidate.measure(candidate.scenario, candidate.length()).samples_per_second
    assert rate == pytest.approx(
        100 / (0.25 / 3 + 0.6), rel=0.02
    )  # 0.23 s if only a quarter of a pass overlapped


def test_tied_embedding_is_sent_last(tmp_path: Path) -> None:
    """The gradient of an embedding that is also the last layer is complete at the end: 80 % of 0.6 s are not hidden."""
    tied = "batch = 100\nseconds = 1.0\njitter = 0\noverlap = true\nbucket = 1\n"
    tied += '[[layers]]\nname = "embedding"\nparameters = 8_000_000\nshare = 0.001\n'
    tied += '[[layers]]\nname = "block"\nparameters = 500_000\ntimes = 4\n'
    work = Work.load(_file(tmp_path, tied))
    assert [layer.parameters for layer in work.layers] == [8_000_000, 500_000, 500_000, 500_000, 500_000]
    network = "10gbe:bandwidth=100MB/s,latency=0,overhead=0,library=nccl"
    assert _rate(work, network, work.strategy, 4) == pytest.approx(400 / (1 + 0.8 * 0.6), rel=0.02)
    spread = Work.load(_file(tmp_path, f"{PLAIN}overlap = true\nbucket = 1\n"))
    assert _rate(spread, network, spread.strategy, 4) == pytest.approx(400, rel=0.03)


def test_more_parameters_than_memory(tmp_path: Path) -> None:
    """A trillion parameters of two bytes: 2 TB that nobody writes, for the strategies that exchange all of them."""
    text = "batch = 1\nseconds = 1000.0\nparameters = 1_000_000_000_000\nelement_bytes = 2\njitter = 0\n"
    work = Work.load(_file(tmp_path, text))
    rate = _rate(work, "nvlink", "sync:allreduce=native", 2)
    assert rate == pytest.approx(2 / (1000 + 2e12 / 120e9), rel=1e-3)
    assert _rate(work, "nvlink", "sync:allreduce=native,overlap=true,bucket=1000", 2) > rate


def test_half_the_bytes_take_half_the_time(tmp_path: Path) -> None:
    whole, half = (
        Work(
            name="net",
            batch=1,
            seconds=1e-6,
            layers=[Layer(parameters=10**7)],
            jitter=0.0,
            element_bytes=size,
        )
        for size in (4, 2)
    )
    network = "10gbe:latency=0,overhead=0,library=nccl"
    slow, fast = (_rate(work, network, "sync:allreduce=native", 4) for work in (whole, half))
    assert fast == pytest.approx(2 * slow, rel=0.01)


def test_command_predicts_many_ranks_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = 'name = "ResNet-50"\nbatch = 32\nsamples_per_second = 300\nparameters = 25_557_032\n'
    words = [
        "simulate",
        "scaling",
        f"--work={_file(tmp_path, text)}",
        "--network=1gbe:ranks-per-node=4,inside=pcie",
    ]
    assert main([*words, "--ranks=1,4,64", f"--out={tmp_path / 'out'}"]) == 0
    said = capsys.readouterr().out
    title = "ResNet-50, 25,557,032 parameters, batch 32 a rank; 1gbe:ranks-per-node=4,inside=pcie, 4 ranks per node\n"
    assert said.startswith(title)
    assert "bandwidth" in said
    told = json.loads((tmp_path / "out" / "scaling.json").read_text())
    points = {point["ranks"]: point for point in told["strategies"][0]["points"]}
    assert told["parameters"] == 25_557_032
    assert points[1]["samples_per_second"] == pytest.approx(300)
    # 2 63/64 102 MB through each card, at 94 % of a gigabit.
    assert points[64]["step_seconds"] == pytest.approx(32 / 300 + 1.71, rel=0.05)
    assert points[64]["without"]["bandwidth"] < 0.2 * points[64]["step_seconds"]


@pytest.mark.parametrize("strategy", names.names("strategies"))
def test_every_strategy_is_predicted_or_refused_in_one_line(tmp_path: Path, strategy: str) -> None:
    """Each on one rank and on eight of two nodes, with reasons; what needs the memory of one node says so."""
    layers = "[[layers]]\nparameters = 6_000_000\n[[layers]]\nparameters = 4_000_000\n"
    text = f"batch = 100\nseconds = 1.0\njitter = 0\nsamples = 4_000\n{layers}"
    work = Work.load(_file(tmp_path, text))
    on = work_load(work, Options(network="25gbe:ranks-per-node=4,inside=nvlink"))
    [curve] = Scaling(workload=on, strategies=[strategy], ranks=[1, 8]).predict().curves
    assert curve.points, curve.left_out
    assert all(point.step_seconds >= 0.99 for point in curve.points if point.ranks == 1)
    assert all("\n" not in why for why in curve.left_out.values())
    assert {point.ranks for point in curve.points} | set(curve.left_out) == {1, 8}
    shown = curve.points[-1]
    assert shown.ranks == 1 or shown.without
    assert curve.summary.count(". ") >= 1


def test_name_with_letters_that_no_font_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _file(tmp_path, f'name = "réseau 深层"\n{PLAIN}')
    words = [f"--work={path}", "--ranks=1,2", "--network=10gbe"]
    assert main(["simulate", "scaling", *words, f"--out={tmp_path / 'out'}"]) == 0
    said = capsys.readouterr()
    assert "réseau 深层" in said.out
    assert not said.err


def test_work_has_no_values_to_follow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--work", str(_file(tmp_path, PLAIN)), "--strategy", "psgd:tolerance=0.01", "--ranks", "1,2"]
    assert main(["simulate", "scaling", *words, "-o", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err.strip()
    assert "psgd:tolerance=0.01 does depends on values" in said
    assert said.count("\n") == 0
    assert not (tmp_path / "out").exists()
