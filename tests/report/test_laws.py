"""Amdahl's and Gustafson's laws are found in points that follow them, and in those that nearly do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paceline.compare import laws
from paceline.compare.rows import rows_of
from paceline.figures import Lines
from paceline.record import Run, find_runs
from paceline.record.environment import layout
from paceline.report.document import Section, Table, Text
from paceline.report.scaling import fits_of, scaling
from paceline.report.series import series_of
from tests.report.conftest import copy_run, rewrite

RANKS = [2, 4, 8, 16]


@pytest.mark.parametrize("s", [0.0, 0.01, 0.3, 1.0, 1.5])
def test_exact_laws(s: float) -> None:
    p = np.array(RANKS, float)
    exact = {"Amdahl": p / (1 + s * (p - 1)), "Gustafson": s + (1 - s) * p}
    for law, speedups in exact.items():
        found = laws.fit(law, [1, *RANKS], [1.0, *speedups])  # type: ignore[arg-type]
        assert found.serial == pytest.approx(s, abs=1e-9)
        assert found.residual == pytest.approx(0, abs=1e-8)
        assert found.at(RANKS) == pytest.approx(speedups)


def test_the_nearest_is_found() -> None:
    p, drawn = np.array(RANKS, float), np.random.default_rng(0)
    for _ in range(20):
        measured = p ** drawn.uniform(0.2, 1.2) * drawn.uniform(0.7, 1.1, len(p))
        tried = np.linspace(0, 3, 300_001)[:, None]
        for law, speedups in (("Amdahl", p / (1 + tried * (p - 1))), ("Gustafson", p - tried * (p - 1))):
            missed = np.sqrt(((speedups - measured) ** 2).mean(axis=1))
            found = laws.fit(law, RANKS, measured.tolist())  # type: ignore[arg-type]
            assert found.serial == pytest.approx(tried[missed.argmin(), 0], abs=2e-5)
            assert found.residual == pytest.approx(missed.min(), abs=1e-6)


def make_runs(
    runs: list[Run], folder: Path, strategy: str, seconds: dict[int, float], **more: object
) -> list[Run]:
    """Make runs with these times, on a machine of 16 cores; all computed 1,200 samples."""
    return [
        copy_run(runs[0], folder, strategy="serial" if ranks == 1 else strategy, ranks=ranks, train_seconds=took, threads=1,
                samples_per_second=1200 / took, cores=16, **more)
        for ranks, took in seconds.items()
    ]  # fmt: skip


def blocks(section: Section | None) -> tuple[Lines, Table]:
    assert section is not None
    figure = next(b for b in section.blocks if isinstance(b, Lines) and b.name == "speedup-1")
    return figure, next(b for b in section.blocks if isinstance(b, Table))


def test_strong_scaling_is_amdahls(runs: list[Run], tmp_path: Path) -> None:
    times = {p: 10 * (0.1 + 0.9 / p) for p in (1, 2, 4, 8)}
    rows = rows_of(make_runs(runs, tmp_path, "sync", times))
    figure, table = blocks(scaling(rows, 1))
    ((name, setting, amdahl, missed, gustafson, missed_more, nearer),) = table.rows
    assert (name, setting, nearer) == ("sync", "Amdahl", "Amdahl")
    assert (amdahl, missed) == (pytest.approx(0.1), pytest.approx(0, abs=1e-7))
    assert gustafson > amdahl  # type: ignore[operator]
    assert missed_more > 0.1  # type: ignore[operator]
    dashed = next(curve for curve in figure.curves if curve.origin == "fit")
    assert dashed.label == "sync: Amdahl, s = 10.0 %"
    assert dashed.y == pytest.approx([10 / (10 * (0.1 + 0.9 / x)) for x in dashed.x])
    assert (dashed.x[0], dashed.x[-1]) == (1.0, 8.0)


PER_RANK = {"batch": None, "batch_per_rank": 10}


@pytest.mark.parametrize(
    ("strategy", "more"),
    [
        ("sync", PER_RANK),
        ("main-worker", PER_RANK),
        *((name, {}) for name in ("weight-average", "local-sgd", "elastic")),
    ],
)
def test_work_between_exchanges_that_grows_is_gustafsons(
    runs: list[Run], tmp_path: Path, strategy: str, more: dict[str, object]
) -> None:
    times = {p: 10 / (p - 0.2 * (p - 1)) for p in (1, 2, 4, 8)}
    rows = rows_of(make_runs(runs, tmp_path, strategy, times, **more))
    _, table = blocks(scaling(rows, 1))
    ((_, setting, _, _, gustafson, missed, nearer),) = table.rows
    assert (setting, nearer) == ("Gustafson", "Gustafson")
    assert (gustafson, missed) == (pytest.approx(0.2), pytest.approx(0, abs=1e-12))


@pytest.mark.parametrize("more", [{}, PER_RANK])
@pytest.mark.parametrize(
    "strategy", ["parameter-server", "hogwild", "gossip", "psgd", "local-sgd:every=none"]
)
def test_batches_that_are_as_many_on_any_ranks_are_amdahls(
    runs: list[Run], tmp_path: Path, strategy: str, more: dict[str, object]
) -> None:
    """Whole batches on each rank, but the same number of them in all, and nothing that all come to with more of them."""
    times = {p: 10 * (0.1 + 0.9 / p) for p in (1, 2, 4, 8)}
    _, table = blocks(scaling(rows_of(make_runs(runs, tmp_path, strategy, times, **more)), 1))
    assert table.rows[0][1] == "Amdahl"


@pytest.mark.parametrize("seconds", [[10.0, 4.8, 2.3, 1.1], [10.0, 10.0, 10.0, 10.0]])
def test_where_both_laws_miss_by_the_same_neither_is_nearer(
    runs: list[Run], tmp_path: Path, seconds: list[float]
) -> None:
    """Faster than ideal, both say S = p; as fast as one process, both S = 1."""
    times = dict(zip((1, 2, 4, 8), seconds, strict=True))
    _, table = blocks(scaling(rows_of(make_runs(runs, tmp_path, "psgd", times)), 1))
    ((*_, missed, _, missed_too, nearer),) = table.rows
    assert missed == pytest.approx(missed_too, abs=1e-7)
    assert nearer == "neither"


def test_what_is_oversubscribed_is_drawn_hollow_and_not_fitted(runs: list[Run], tmp_path: Path) -> None:
    times = {p: 10 * (0.1 + 0.9 / p) for p in (1, 2, 4)} | {32: 50.0}
    rows = rows_of(make_runs(runs, tmp_path, "sync", times))
    figure, table = blocks(scaling(rows, 1))
    assert table.rows[0][2] == pytest.approx(0.1)
    curve = next(curve for curve in figure.curves if curve.label == "sync")
    assert curve.oversubscribed == (False, False, True)
    assert "Hollow: more ranks than cores" in figure.caption


@pytest.mark.parametrize(
    ("times", "why"),
    [
        (
            {1: 10.0, 2: 6.0, 32: 5.0},
            "at least two rank counts above 1; there is only one (not counting those with more ranks than cores)",
        ),
        ({2: 6.0, 4: 5.0}, "sync: there is no serial run to compare with."),
    ],
)
def test_too_few_points_are_not_fitted(
    runs: list[Run], tmp_path: Path, times: dict[int, float], why: str
) -> None:
    rows = rows_of(make_runs(runs, tmp_path, "sync", times))
    section = scaling(rows, 1)
    assert section is not None
    note = section.blocks[-1]
    assert isinstance(note, Text)
    assert why in note.lines[0]
    assert not any(c.origin == "fit" for b in section.blocks if isinstance(b, Lines) for c in b.curves)


def test_what_diverged_is_a_gap(runs: list[Run], tmp_path: Path) -> None:
    times = {p: 10 * (0.1 + 0.9 / p) for p in (1, 2, 4)}
    rows = rows_of([
        *make_runs(runs, tmp_path, "sync", times),
        *make_runs(runs, tmp_path, "sync", {8: 0.1}, diverged="the loss has run away"),
    ])  # fmt: skip
    figure, _ = blocks(scaling(rows, 1))
    curve = next(curve for curve in figure.curves if curve.label == "sync")
    assert curve.x == (2.0, 4.0, 8.0)
    assert curve.y[2] is None
    (one,) = [one for one in series_of(rows) if one.strategy == "sync"]
    assert fits_of(one, rows).fits[0].serial == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("whole", "stopped", "why"),
    [
        ([1], [2, 4], "all runs diverged"),
        ([1, 2, 4], [2, 4], "every row has runs that diverged"),
        ([2, 4], [1], "the serial runs to compare with diverged"),
        (
            [1, 2],
            [4],
            "a fit needs at least two rank counts above 1; there is only one (not counting runs that diverged)",
        ),
    ],
)
def test_why_nothing_is_fitted_where_runs_diverged(
    runs: list[Run], tmp_path: Path, whole: list[int], stopped: list[int], why: str
) -> None:
    """That there is no serial run is said where there is none."""
    rows = rows_of([
        *make_runs(runs, tmp_path, "sync", {p: 10 / p for p in whole}),
        *make_runs(runs, tmp_path, "sync", {p: 1 / p for p in stopped}, diverged="the loss has run away"),
    ])  # fmt: skip
    section = scaling(rows, 1)
    assert section is not None
    note = section.blocks[-1]
    assert isinstance(note, Text)
    (line,) = note.lines
    assert line.startswith("Not fitted: sync: ")
    assert line.endswith(f"{why}.")


def test_one_number_of_ranks_is_no_scaling(runs: list[Run], tmp_path: Path) -> None:
    assert scaling(rows_of(make_runs(runs, tmp_path, "sync", {1: 10.0, 2: 6.0})), 1) is None


def test_ranks_on_several_nodes_have_the_cores_of_all(runs: list[Run], tmp_path: Path) -> None:
    made = make_runs(runs, tmp_path, "sync", {1: 10.0, 2: 6.0, 32: 2.0})
    for of_ranks, cores, crowded in (
        ([0] * 32, [16], True),
        ([0] * 16 + [1] * 16, [16, 16], False),
        ([0, 1] * 16, [16, 16], False),
        ([0] * 16 + [1] * 16, [16, 8], True),  # the fullest node counts
        ([0] * 20 + [1] * 12, [32, 16], False),
    ):
        rewrite(made[2].folder / "environment.json", nodes={"ranks": of_ranks, "cores": cores})
        rows = rows_of([Run(run.folder) for run in made])
        assert [row.oversubscribed for row in rows] == [False, False, crowded]
        assert layout(Run(made[2].folder)) == tuple(of_ranks)


def test_simulated_ranks_that_share_cores_are_not_fitted(runs: list[Run], tmp_path: Path) -> None:
    times = {p: 10 * (0.1 + 0.9 / p) for p in (1, 2, 4)} | {32: 50.0}
    made = make_runs(runs, tmp_path, "sync", times)
    for told, crowded in (
        (
            {"network": "loopback"},
            True,
        ),  # of before these were stored: one node, with the cores of the machine
        ({"network": "10gbe"}, False),  # a node each
        ({"network": "gone.json"}, True),
        ({"network": "mine", "ranks_per_node": 32, "node_cores": 8}, True),
        ({"network": "mine", "ranks_per_node": 8, "node_cores": 8}, False),
        ({"network": "mine", "ranks_per_node": None, "node_cores": None}, False),
    ):
        for run in made:
            rewrite(run.folder / "config.json", simulated=told)
        rows = rows_of([Run(run.folder) for run in made])
        assert [row.oversubscribed for row in rows] == [False, False, False, crowded], told
        figure, table = blocks(scaling(rows, 1))
        assert (table.rows[0][2] == pytest.approx(0.1)) == crowded
        curve = next(curve for curve in figure.curves if curve.origin == "simulated")
        assert curve.oversubscribed == (False, False, crowded)


def test_records_of_simulated_ranks_tell_what_a_node_is(matrix: Path) -> None:
    told = [run.simulated for run in find_runs([matrix]) if run.simulated]
    assert {(one["network"], one["ranks_per_node"], one["node_cores"]) for one in told} == {
        ("10gbe:ranks-per-node=2", 2, None),
        ("1gbe", 1, None),
    }


def test_speedups_have_logarithmic_axes_with_the_ideal_as_a_straight_line(
    runs: list[Run], tmp_path: Path
) -> None:
    rows = rows_of(make_runs(runs, tmp_path, "sync", {1: 10.0, 2: 80.0, 4: 60.0}))
    figure = next(b for b in scaling(rows, 1).blocks if isinstance(b, Lines) and b.name == "speedup-1")  # type: ignore[union-attr]
    assert all((axis.log, axis.base) == (True, 2) for axis in (figure.x, figure.y))
    (ideal,) = (curve for curve in figure.curves if curve.origin == "ideal")
    assert ideal.x == ideal.y == (1, 4)
