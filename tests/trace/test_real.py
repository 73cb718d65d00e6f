"""Traces of real ranks: what the format asks for, and what the record says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.cli import main
from paceline.record import Run
from paceline.trace import _figure, timeline_of, typical_window
from tests.ranks import on_ranks
from tests.trace.cases import STRATEGIES
from tests.trace.checks import check_all


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """One job of three real ranks, which trains under every strategy in turn."""
    runs = str(tmp_path_factory.mktemp("real"))
    found = on_ranks("tests.trace.cases:traced", 3, runs=runs, strategies=STRATEGIES)[0]
    return {name: Run(folder) for name, folder in zip(STRATEGIES, found, strict=True)}


@pytest.mark.parametrize("name", STRATEGIES)
def test_real_ranks(real: dict[str, Run], name: str, tmp_path: Path) -> None:
    run = real[name]
    trace = check_all(run, tmp_path / "trace.json")
    calls = {e["name"].split()[0] for e in trace["traceEvents"] if e.get("cat") in ("wait", "exchange")}
    if name in ("sync", "hogwild"):
        assert calls == {"Fence"}
    if name == "every_call":
        assert calls >= {"Wait", "Test", "Waitall", "Waitany", "Waitsome", "Testall", "Testany", "Testsome"}


def test_starts_are_in_order_and_steps_do_not_overlap(real: dict[str, Run]) -> None:
    for name in ("sync", "main-worker", "parameter-server:masters=2"):
        steps = real[name].steps
        for rank in set(steps["rank"].tolist()):
            mine = steps["rank"] == rank
            spent = sum(steps[kind][mine].astype(float) for kind in ("compute", "exchange", "update", "wait"))
            ends = steps["start"][mine] + spent
            assert (ends[:-1] <= steps["start"][mine][1:] + 1e-6).all()
        assert (steps["start"] > 0).all()
    assert real["parameter-server:masters=2"].steps["wait"].sum() > 0


@pytest.mark.mpi
def test_started_ranks_are_told_to_trace(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = "--data iris --model mlp:8 --strategy sync:allreduce=naive --epochs 1 --draws 4 --batch 12 --quiet --json"
    assert main(["train", *words.split(), "-n", "2", "--runs", str(tmp_path), "--trace"]) == 0
    run = Run(json.loads(capfd.readouterr().out)["run"])
    check_all(run, tmp_path / "trace.json")


def test_clocks_of_several_machines() -> None:
    for off, alike in on_ranks("tests.trace.cases:clocks", 2):
        assert -10 < off < 10  # the clocks differ by an hour
        assert alike <= 0


@pytest.mark.parametrize("name", ["sync:allreduce=ring", "parameter-server:masters=2"])
def test_the_picture_shows_the_steps(real: dict[str, Run], name: str, tmp_path: Path) -> None:
    run = real[name]
    timeline = timeline_of(run)
    window = typical_window(timeline)
    axes = _figure(run, timeline, window).axes[0]
    rows = [label.get_text() for label in axes.get_yticklabels()]
    roles = ["", "", ""] if name.startswith("sync") else [", master", ", master", ", worker"]
    assert rows == [f"rank {rank}{role}" for rank, role in enumerate(roles)]
    assert axes.get_xlabel() in ("time (ms)", "time (us)")
    scale = 1e6 if axes.get_xlabel() == "time (ms)" else 1e3
    worker = [span for span in timeline.work if span.rank == 2]
    inside = sum(max(0, min(s.end, window[1]) - max(s.start, window[0])) for s in worker) / scale
    drawn = [
        box.width
        for bars in axes.collections
        for box in (path.get_extents() for path in bars.get_paths())
        if round((box.y0 + box.y1) / 2) == 2
    ]
    assert sum(drawn) == pytest.approx(inside, rel=1e-6)
    assert any(text.get_text().startswith("step ") for text in axes.texts)
    for suffix in (".svg", ".png"):
        path = tmp_path / f"steps{suffix}"
        assert main(["trace", str(run.folder), "-o", str(tmp_path / "t.json"), "--picture", str(path)]) == 0
        assert path.stat().st_size > 5000
