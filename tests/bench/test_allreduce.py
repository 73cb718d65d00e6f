from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import names as registry
from paceline.bench import SIZES, read_ranks, read_sizes
from paceline.commands import bench
from paceline.commands.bench import draw, table
from paceline.compare.laws import fit_line
from paceline.errors import UsageError
from paceline.text import size

STARTS_RANKS = True
pytestmark = pytest.mark.once  # other tests compare bytes and formulas with every MPI


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return parser.parse_args(["allreduce", *words])


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any], Path]:
    """One real benchmark of every collective on 2 and 3 ranks; status, result and the folder of its files."""
    folder = tmp_path_factory.mktemp("bench")
    files = ["--json", str(folder / "result.json"), "--plot", str(folder / "result.svg")]
    status = bench.main(arguments("-n", "2,3", "--sizes", "4,437544", "--seconds", "0.01", *files))
    return status, json.loads((folder / "result.json").read_text()), folder


def test_every_collective_is_measured_right_and_as_its_formula_says(measured: Any) -> None:
    status, result, _ = measured
    assert status == 0
    for job, ranks in zip(result["jobs"], (2, 3), strict=True):
        cells = job["cells"]
        assert {cell["algorithm"] for cell in cells} == set(registry.names("collectives"))
        assert {cell["size"] for cell in cells} == {4, 437544}
        assert len(cells) == 2 * len(registry.names("collectives"))
        for cell in cells:
            assert cell["right"]
            assert cell["sent"] == cell["formula"], cell["algorithm"]
            assert len(cell["sent"]) == job["ranks"] == ranks


def test_the_ring_sends_what_is_known_of_it(measured: Any) -> None:
    _, result, _ = measured
    (ring,) = [c for c in result["jobs"][1]["cells"] if c["algorithm"] == "ring" and c["size"] == 437544]
    assert ring["sent"] == [[4, 583392]] * 3  # 2(p-1) messages, 2(p-1)/p n bytes


def test_figures_follow_from_the_times(measured: Any) -> None:
    _, result, _ = measured
    for job in result["jobs"]:
        machine = job["machine"]
        assert all(machine[name] >= 0 for name in ("alpha", "beta", "gamma", "call"))
        for cell in job["cells"]:
            assert 0 < min(cell["seconds"]) <= cell["p10"] <= cell["median"] <= cell["p90"]
            assert cell["algbw"] == pytest.approx(cell["size"] / np.median(cell["seconds"]))
            assert cell["busbw"] == pytest.approx(cell["algbw"] * 2 * (job["ranks"] - 1) / job["ranks"])
            assert cell["model"] > machine["call"]


def test_the_result_names_the_machine_and_the_mpi(measured: Any) -> None:
    _, result, _ = measured
    assert re.match("Open MPI|MPICH", result["jobs"][0]["mpi"])
    assert result["environment"]["cores"] >= 1
    assert result["jobs"][0]["oversubscribed"] == (result["jobs"][0]["cores"] < 2)


def test_the_picture_has_every_name(measured: Any) -> None:
    _, _, folder = measured
    picture = (folder / "result.svg").read_text()
    assert "<svg" in picture
    for words in ("ring", "shared-memory", "bus bandwidth (GB/s)", "time (us)", "array size", "427.3 KiB"):
        assert f">{words}</text>" in picture, words


def test_the_picture_does_not_grow_wider_with_rank_counts(measured: Any, tmp_path: Path) -> None:
    _, result, _ = measured
    draw({**result, "jobs": 4 * result["jobs"]}, tmp_path / "four.svg")
    width = re.search(r'<svg [^>]*width="([\d.]+)pt"', (tmp_path / "four.svg").read_text())
    assert width is not None
    assert float(width[1]) < 800  # pages shrink wider pictures, and their text


def test_the_table_has_a_line_for_every_cell(measured: Any) -> None:
    _, result, _ = measured
    text = table(result)
    lines = text.splitlines()
    for name in registry.names("collectives"):
        assert sum(f" {name} " in line for line in lines) == 4
    assert sum(line.endswith("right") for line in lines) == sum(len(job["cells"]) for job in result["jobs"])
    assert lines[0].startswith("2 ranks on ")
    assert "427.3 KiB" in text


@pytest.mark.parametrize(
    ("wrong", "verdict"),
    [({"right": False}, "wrong"), ({"as_formula": False}, "unlike formula"), ({"as_formula": None}, "right")],
)
def test_a_wrong_sum_or_count_is_said_and_is_the_exit_status(
    wrong: dict[str, Any], verdict: str, measured: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    _, result, _ = measured
    first = result["jobs"][0]
    other = {**result, "jobs": [{**first, "cells": [{**first["cells"][0], **wrong}]}]}
    monkeypatch.setattr("paceline.bench.run", lambda question, hosts: other)
    assert bench.main(arguments()) == (verdict != "right")
    assert capsys.readouterr().out.rstrip().endswith(verdict)


def test_a_collective_without_a_formula_is_measured_all_the_same(measured: Any) -> None:
    _, result, _ = measured
    first = result["jobs"][0]
    cell = {**first["cells"][0], "formula": None, "as_formula": None, "model": None}
    assert table({**result, "jobs": [{**first, "cells": [cell]}]}).split()[-1] == "right"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("-ntwo", "-n takes rank counts such as 2,4,8; got 'two'"),
        ("-n2,,4", "-n takes rank counts"),
        ("-n-2", "-n takes rank counts"),
        ("-n1", "an allreduce needs at least 2 ranks; got 1"),
        ("--sizes=big", "sizes must look like 1KiB..64MiB or 4096,437544,16MiB; got 'big'"),
        ("--sizes=1XB", "sizes must look like"),
        ("--sizes=", "sizes must look like"),
        ("--sizes=8KiB..4KiB", "sizes must rise from at least 1 byte; got '8KiB..4KiB'"),
        ("--sizes=0", "sizes must rise from at least 1 byte"),
        ("--sizes=1.0001KiB", "sizes must be whole bytes; got '1.0001KiB'"),
        ("--sizes=6", "sizes must be multiples of float32's 4 bytes; got 6"),
        ("--algorithms=ring,rng", "unknown collective 'rng'; choose one of auto, hierarchical, naive"),
        ("--dtype=float99", "dtype must be a NumPy number type; got 'float99'"),
        ("--dtype=str", "dtype must be a NumPy number type; got 'str'"),
        ("--repeats=0", "repeats must be at least 1; got 0"),
        ("--seconds=0", "seconds must be positive and finite; got 0"),
        ("--seconds=nan", "seconds must be positive and finite; got nan"),
        ("--seconds=inf", "seconds must be positive and finite; got inf"),
        ("--json=/nowhere/at/all.json", "cannot write /nowhere/at/all.json: there is no folder /nowhere/at"),
        ("--json=/tmp", "cannot write /tmp: it is a folder"),
        ("--plot=picture.bmp", "a picture must end in one of .png, .svg, .pdf; got picture.bmp"),
        ("--plot=/nowhere/picture.png", "cannot write /nowhere/picture.png: there is no folder /nowhere"),
    ],
)
def test_bad_input_is_one_line_before_anything_starts(
    word: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.bench.run", lambda question: pytest.fail("ranks were started"))
    with pytest.raises(UsageError, match=re.escape(message)) as raised:
        bench.main(arguments(word))
    assert "\n" not in str(raised.value)


def test_inside_a_job_no_rank_starts_a_benchmark_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.bench.run", lambda question: pytest.fail("ranks were started"))
    for name, value in {"SIZE": "4", "LOCAL_SIZE": "4", "LOCAL_RANK": "1", "RANK": "1"}.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    assert bench.main(arguments("-n2")) == 2
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    with pytest.raises(UsageError, match="bench starts its ranks itself: -n 4, not mpiexec of Open MPI"):
        bench.main(arguments("-n2"))


def test_ranks_and_sizes() -> None:
    assert read_ranks("8, 2,8") == (8, 2)
    assert read_sizes("1KiB..64MiB") == tuple(1024 * 4**k for k in range(9))
    assert read_sizes("2MB, 1.5 KiB,3") == (3, 1536, 2_000_000)
    assert [size(value) for value in (3, 1536, 1 << 30)] == ["3 B", "1.5 KiB", "1 GiB"]


@settings(deadline=None)
@given(a=st.floats(1e-7, 1e-3), b=st.floats(1e-12, 1e-8))
def test_a_line_is_found_from_its_points(a: float, b: float) -> None:
    found = fit_line(SIZES, a + b * np.array(SIZES, float))
    assert found == pytest.approx((a, b), rel=0.02)
