"""Traces of simulated ranks, and of records that hold none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import UsageError, fit
from paceline.cli import main
from paceline.files import write_arrays
from paceline.record import Run
from paceline.trace import _figure, select_steps, timeline_of, whole_window
from tests.trace.cases import SMALL, STRATEGIES, every_call
from tests.trace.checks import check_all, check_format, check_nesting, check_seconds, write_trace


def simulate(runs: Path, machine: str, name: str, *, ranks: int = 5, **settings: Any) -> Run:
    strategy: Any = every_call if name == "every_call" else name
    more = {**SMALL, "trace": True, "network": "10gbe:ranks-per-node=2", **settings}
    fitted = fit(
        "mlp:8", "iris", strategy=strategy, ranks=ranks, on="sim", runs=runs, machine=machine, **more
    )
    assert fitted.run is not None
    return Run(fitted.run)


@pytest.mark.parametrize(
    "name", [*STRATEGIES, "sync:allreduce=hierarchical", "elastic:every=2", "weight-average"]
)
def test_simulated_ranks(machine: str, name: str, tmp_path: Path) -> None:
    network = {"network": "loopback"} if name == "every_call" else {}
    run = simulate(tmp_path, machine, name, **network)
    trace = check_all(run, tmp_path / "trace.json")
    flows: dict[int, list[float]] = {}
    for event in trace["traceEvents"]:
        if event["ph"] in "sf":
            flows.setdefault(event["id"], []).append(event["ts"])
    assert all(
        sent <= received for sent, received in flows.values()
    )  # in one time, nothing comes before it went


def test_serial(tmp_path: Path) -> None:
    fitted = fit("mlp:8", "iris", strategy="serial", runs=tmp_path, trace=True, **SMALL)
    assert fitted.run is not None
    check_all(Run(fitted.run), tmp_path / "trace.json")


def test_the_same_simulation_gives_the_same_bytes(machine: str, tmp_path: Path) -> None:
    files = []
    for number in range(2):
        run = simulate(tmp_path, machine, "parameter-server", seed=3)
        path = tmp_path / f"{number}.json.gz"
        check_format(write_trace(run, path), 5)
        files.append((path.read_bytes(), (run.folder / "trace.npz").read_bytes()))
    assert files[0] == files[1]
    plain = simulate(tmp_path, machine, "parameter-server", seed=3, trace=False)
    assert plain.summary["seconds_by_rank"] == run.summary["seconds_by_rank"]  # to look costs nothing there
    assert plain.trace is None


def test_without_a_trace_steps_are_known(
    machine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = simulate(tmp_path, machine, "sync:allreduce=ring", trace=False, slow="2:3x")
    trace = write_trace(run, tmp_path / "trace.json")
    complete = check_format(trace, 5)
    check_seconds(complete, run, traced=False)
    assert "train with --trace" in capsys.readouterr().out
    waits = [e["dur"] / 1e6 for e in complete if e["name"] == "wait" and e["tid"] == 0]
    assert sum(waits) == pytest.approx(run.summary["seconds_by_rank"][0]["wait"], rel=1e-5)
    run = simulate(tmp_path, machine, "parameter-server", trace=False)
    trace = write_trace(run, tmp_path / "trace.json")
    check_seconds(check_format(trace, 5), run, traced=False)
    assert "nothing is known about rank 0" in capsys.readouterr().out
    names = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"]
    assert names[:2] == ["rank 0 (master)", "rank 1 (worker)"]


def test_a_trace_and_a_picture_are_two_files(
    machine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, path = simulate(tmp_path, machine, "sync:allreduce=ring"), str(tmp_path / "run.svg")
    assert main(["trace", str(run.folder), "-o", path, "--picture", path]) == 2
    assert (
        capsys.readouterr().err
        == f"paceline trace: the trace and the picture need two files; both are {path}\n"
    )


@pytest.mark.parametrize("name", ["sync:allreduce=ring", "parameter-server", "main-worker", "gossip"])
def test_some_steps_alone(machine: str, tmp_path: Path, name: str) -> None:
    run = simulate(tmp_path, machine, name, slow="2:3x")
    everything = write_trace(run, tmp_path / "trace.json")
    found = write_trace(run, tmp_path / "some.json", "--steps", "2..3")
    complete = check_format(found, 5)
    steps = [e for e in complete if e["cat"] == "step"]
    assert {e["name"] for e in steps} == {"step 2", "step 3"}
    taken = run.steps["rank"][np.isin(run.steps["step"], (2, 3))]
    assert sorted(e["tid"] for e in steps) == sorted(taken.tolist())

    def moments(
        event: dict[str, Any],
    ) -> tuple[int, int]:  # whole nanoseconds: sums of microseconds are not exact
        return round(1000 * event["ts"]), round(1000 * event["ts"]) + round(1000 * event.get("dur", 0))

    def lies(event: dict[str, Any], *, last: int = 0) -> bool:
        start, end = moments(event)
        return any(
            e["tid"] == event["tid"] and moments(e)[0] <= start and end + last <= moments(e)[1] for e in steps
        )

    # On ranks that take steps there is nothing outside of these, and all that was in them.
    taking = set(run.steps["rank"].tolist())
    inside = [
        e for e in everything["traceEvents"] if e["ph"] == "X" and e["tid"] in taking and e["dur"] and lies(e)
    ]
    assert [e for e in complete if e["tid"] in taking and e["dur"]] == inside
    # Of the others, what they did for these: every message of these steps is there, and no other.
    every = messages(everything)
    ends = [[lies(end, last=1) for end in pair] for pair in every]  # at an end, it is the next step's
    masters = [[end["tid"] not in taking for end in pair] for pair in every]
    wanted = [
        pair
        for pair, within, master in zip(every, ends, masters, strict=True)
        if all(a or b for a, b in zip(within, master, strict=True)) and any(within)
    ]
    assert wanted or name == "gossip"  # the other end of a message is in another step there
    assert messages(found) == wanted
    busy = {e["tid"] for e in complete if e["cat"] == "work"}
    assert busy == set(taken.tolist()) | (set(range(5)) - taking)
    one = check_format(write_trace(run, tmp_path / "one.json", "--steps", "3"), 5)
    assert {e["name"] for e in one if e["cat"] == "step"} == {"step 3"}
    assert main(["trace", str(run.folder), "-o", str(tmp_path / "no.json"), "--steps", "90..91"]) == 2


def messages(trace: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The two ends of each message, in order."""
    ends = [{**e, "id": 0} for e in trace["traceEvents"] if e["ph"] in "sf"]
    return [ends[place : place + 2] for place in range(0, len(ends), 2)]


def test_the_picture_of_some_steps_has_no_others(machine: str, tmp_path: Path) -> None:
    run = simulate(tmp_path, machine, "parameter-server", slow="2:3x")
    timeline = select_steps(timeline_of(run), (2, 3))
    axes = _figure(run, timeline, whole_window(timeline)).axes[0]
    assert {text.get_text() for text in axes.texts if text.get_text()} <= {"step 2", "step 3"}
    scale = 1e6 if "ms" in axes.get_xlabel() else 1e3
    begin = whole_window(timeline)[0]
    for bars in axes.collections:
        for box in (path.get_extents() for path in bars.get_paths()):
            rank = round((box.y0 + box.y1) / 2)
            steps = [span for span in timeline.steps if span.rank == rank]
            assert rank == 0 or any(
                (span.start - begin) / scale <= box.x0 + 1e-6 and box.x1 - 1e-6 <= (span.end - begin) / scale
                for span in steps
            )
    path = tmp_path / "steps.svg"
    words = ["-o", str(tmp_path / "t.json"), "--picture", str(path), "--steps", "2..3"]
    assert main(["trace", str(run.folder), *words]) == 0
    assert path.stat().st_size > 5000


def test_a_long_trace_is_cut_and_says_so(
    machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("paceline.training.rank.event_limit", lambda ranks: 40)
    run = simulate(tmp_path, machine, "sync:allreduce=ring")
    trace = run.trace
    assert trace is not None
    assert np.bincount(trace["rank"]).tolist() == [40] * 5
    assert "the trace holds the first 40 events of each rank; 5 of 5 had more" in run.summary["remarks"]
    found = write_trace(run, tmp_path / "trace.json", "--picture", str(tmp_path / "steps.svg"))
    check_format(found, 5)
    assert found["otherData"]["events not kept"] == trace["lost"].sum() > 0
    assert "truncated when it was recorded" in capsys.readouterr().out


def test_old_records_are_refused_in_a_line(
    machine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = simulate(tmp_path, machine, "sync", trace=False)
    old = {name: column for name, column in run.steps.items() if name not in ("start", "wait")}
    write_arrays(run.folder / "steps.npz", old)
    read = Run(run.folder).steps
    assert set(read) == {*old, "wait"}
    assert not read["wait"].any()  # what old records do not have is zero for all readers
    assert main(["trace", str(run.folder), "-o", str(tmp_path / "trace.json")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "its record is too old to have the start of each step" in said
    assert not (tmp_path / "trace.json").exists()


def test_refusals(machine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="a trace is stored in the run's folder"):
        fit("mlp:8", "iris", strategy="serial", runs=None, trace=True, **SMALL)
    run = simulate(tmp_path, machine, "sync")
    out = ["-o", str(tmp_path / "trace.json")]
    assert main(["trace", str(run.folder), *out, "--picture", "steps.bmp"]) == 2
    assert "a picture must end in one of .png, .svg, .pdf; got steps.bmp" in capsys.readouterr().err
    for words, said in (
        (["-o", "/nope/x.json"], "cannot write /nope/x.json: there is no folder /nope"),
        ([*out, "--picture", "/nope/x.svg"], "cannot write /nope/x.svg: there is no folder /nope"),
        (["-o", str(tmp_path)], f"cannot write {tmp_path}: it is a folder"),
    ):
        assert main(["trace", str(run.folder), *words]) == 2
        assert capsys.readouterr() == ("", f"paceline trace: {said}\n")
    assert not (tmp_path / "trace.json").exists()
    for steps in ("3..2", "a", "-1"):
        with pytest.raises(SystemExit) as left:
            main(["trace", str(run.folder), *out, "--steps", steps])
        assert left.value.code == 2
    assert main(["trace", str(tmp_path / "none"), *out]) == 2


def test_a_bad_nesting_would_be_seen() -> None:
    with pytest.raises(AssertionError):
        check_nesting([{"ts": 0.0, "dur": 2.0}, {"ts": 1.0, "dur": 2.0}])
