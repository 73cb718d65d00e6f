"""Where less is learned: one criterion says so, the cause is what it is lost to, and no more ranks are advised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.diagnosis import diagnose
from paceline.diagnosis.advice import settings_in
from paceline.record import Run
from tests.diagnosis.runs import LOOPBACK, SERIAL, TIME_ALONE, case_of, cause, only, simulate_runs

SERVER = "parameter-server"
SEEDS = (0, 1, 2)
# By ranks: of three seeds, and seconds; measured with the reference network for pictures of digits on 16 cores.
ALONE = ((0.9809, 0.9848, 0.9812), 14.8)
PSGD = {
    1: ((0.9809, 0.9848, 0.9812), 13.0),
    2: ((0.9725, 0.9681, 0.9739), 6.99),
    4: ((0.9617, 0.9369, 0.963), 4.04),
    5: ((0.956, 0.9605, 0.96), 3.54),
}
HOGWILD = {
    3: ((0.9816, 0.9801, 0.9804), 5.52),
    4: ((0.9796, 0.9737, 0.9645), 4.38),
    5: ((0.9724, 0.9766, 0.9669), 3.61),
}


def make_runs(folder: Path, strategy: str, figures: dict[int, tuple[tuple[float, ...], float]]) -> list[Run]:
    """Make runs with such accuracies and seconds."""
    names = [("serial", 1), *((strategy, ranks) for ranks in figures)]
    runs = simulate_runs(
        folder, *((*name, {"seed": seed}) for name in names for seed in SEEDS), batch=16, **LOOPBACK
    )
    for run in runs:
        accuracies, seconds = ALONE if run.config["strategy"] == "serial" else figures[run.config["ranks"]]
        run.summary |= {"test_accuracy": accuracies[run.config["seed"]], "train_seconds": seconds}
    return runs


def test_ranks_that_are_averaged_and_learn_less_do_not_scale_well(tmp_path: Path) -> None:
    found = only(make_runs(tmp_path, "psgd", PSGD))
    assert found.summary == (
        "simulated on loopback: psgd learns less than serial on 2, 4 and 5 ranks (on 1 it is 1.14x as fast): ranks "
        "train on too little data each, or are averaged too rarely (1.1 points of accuracy at 2 ranks); "
        "efficiency stays above 50 %"
    )
    main = found.causes[0]
    assert (main.rule, main.ranks, main.share) == ("averaging", 2, pytest.approx(0.0108))
    assert main.words.endswith(
        "test accuracy is 97.1 %, serial's 98.2 % (mean of 3 seeds); on 4 ranks it is 95.4 %"
    )
    assert main.advice.startswith("--strategy local-sgd:every=")
    assert cause(found, "scales well") is None


def test_stale_ranks_that_learn_less_are_not_to_be_more(tmp_path: Path) -> None:
    found = only(make_runs(tmp_path, "hogwild", HOGWILD))
    assert found.summary.endswith(
        "hogwild learns less than serial on 5 ranks (on 4 it is 3.38x as fast): gradients are too old "
        "(1.0 points of accuracy at 5 ranks); efficiency stays above 50 %"
    )
    main = found.causes[0]
    assert (main.rule, main.ranks) == ("staleness", 5)
    assert main.advice.endswith("or -n 4")  # which was tried, and learned as much
    assert cause(found, "scales well") is None


@pytest.mark.parametrize("lost", [0.0, 0.0097, 0.0103, 0.0117, 0.04])
@pytest.mark.parametrize("spread", [0.0, 0.003, 0.05])
def test_where_it_stops_and_why_go_by_one_criterion(lost: float, spread: float, tmp_path: Path) -> None:
    figures = {2: ((0.9, 0.9, 0.9), 4.0), 4: ((0.9 - lost - spread, 0.9 - lost, 0.9 - lost + spread), 2.0)}
    runs = make_runs(tmp_path, "psgd", figures)
    for run in runs:
        if run.config["strategy"] == "serial":
            run.summary["test_accuracy"] = 0.9
    case = case_of(runs)
    less = lost > 0.01 and lost > spread / 3**0.5
    assert case.limit is not None
    assert (case.limit.reason == "accuracy") == less
    assert (case.worse is not None) == less
    assert case.at.ranks == 4
    found = only(runs)
    assert (cause(found, "scales well") is None) == less
    assert ("learns less than serial on 4 ranks (on 2 it is 3.70x as fast)" in found.summary) == less


@pytest.mark.parametrize(("ranks", "tried"), [(2, None), (8, "-n 4")])
def test_more_ranks_are_not_tried_where_there_is_one_number_that_learns_less(
    ranks: int, tried: str | None, tmp_path: Path
) -> None:
    found = cause(only(make_runs(tmp_path, "psgd", {ranks: ((0.9, 0.9, 0.9), 14.8 / ranks)})), "too few runs")
    assert found is not None
    assert (found.advice or None) == tried
    well = cause(
        only(make_runs(tmp_path / "well", "psgd", {ranks: (ALONE[0], 14.8 / ranks)})), "too few runs"
    )
    assert well is not None
    assert well.advice == f"-n {2 * ranks}"


def test_a_loss_of_the_only_rank_is_told_as_it_is(tmp_path: Path) -> None:
    found = only(make_runs(tmp_path, "psgd", {1: ((0.9, 0.9, 0.9), 10.0), 2: ((0.98, 0.98, 0.98), 5.0)}))
    assert "psgd learns less than serial on 1 rank" in found.summary
    assert (found.causes[0].rule, found.causes[0].ranks) == ("unexplained", 1)


def test_what_is_learned_less_comes_before_time_where_it_is_what_stops_scaling(tmp_path: Path) -> None:
    runs = simulate_runs(tmp_path, SERIAL, ("weight-average", 2), ("weight-average", 4))
    for run in runs:
        run.summary |= {
            "test_accuracy": {1: 0.9, 2: 0.9, 4: 0.88}[run.config["ranks"]],
            "train_seconds": 1 / run.config["ranks"],
        }
    found = only(runs)
    (lost, *_), time = found.causes, cause(found, "small computing")
    assert lost.rule == "averaging"
    assert time is not None
    assert time.lost > lost.lost
    assert "averaged too rarely (2.0 points of accuracy at 4 ranks); efficiency" in found.summary


def test_that_less_is_learned_is_explained_before_what_diverged_on_more(tmp_path: Path) -> None:
    runs = make_runs(tmp_path, "psgd", {2: PSGD[2], 4: PSGD[4], 5: PSGD[5]})
    for run in runs:
        run.summary["diverged"] = "the loss ran away" if run.config["ranks"] == 5 else None
    found = only(runs)
    assert [(each.rule, each.ranks) for each in found.causes[:2]] == [("divergence", 5), ("averaging", 2)]
    assert "learns less than serial on 2 and 4 ranks: " in found.summary
    assert "(1.1 points of accuracy at 2 ranks); training diverged (at 5 ranks); efficiency" in found.summary


def test_that_it_is_slow_is_explained_by_time(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"batch": None, "batch_per_rank": 4}
    runs = simulate_runs(tmp_path, SERIAL, ("main-worker", 3), ("main-worker", 8), **settings)
    for run in runs:
        run.summary["test_accuracy"] = 0.9 if run.config["ranks"] == 1 else 0.5
    found = only(runs)
    assert found.causes[0].rule == "large batch"
    assert "workers queue at the ranks that hold the parameters (" in found.summary
    assert found.summary.endswith(
        "; less is learned: the batch grows with the ranks, so there are fewer steps (40.0 points of accuracy at 8 ranks)"
    )
    assert "--batch 4 " not in found.causes[0].advice  # which seven workers cannot divide


def test_ranks_that_are_no_faster_do_not_scale_well(tmp_path: Path) -> None:
    runs = simulate_runs(tmp_path, SERIAL, ("sync", 4), ("sync", 5), given={"each": 1e-4}, **TIME_ALONE)
    for run in runs:
        run.summary["train_seconds"] = {1: 4.0, 4: 1.0, 5: 1.01}[run.config["ranks"]]
    found = only(runs)
    assert "gets no faster beyond 4 ranks (4.00x)" in found.summary
    assert cause(found, "scales well") is None
    assert not any("-n 10" in each.advice for each in found.causes)


def test_fewer_ranks_that_were_slower_are_not_near_those_that_are_advised(tmp_path: Path) -> None:
    runs = simulate_runs(tmp_path, SERIAL, ("sync", 8), ("sync", 16), given={"slower": 2.0}, **TIME_ALONE)
    for run in runs:
        run.summary["train_seconds"] = {1: 4.0, 8: 1.0, 16: 0.8}[run.config["ranks"]]
    found = cause(only(runs), "slower computing")
    assert found is not None
    assert found.ranks == 16
    assert [given.get("n") for part in found.advice.split(", or ") if (given := settings_in(part))] == ["16"]


def test_a_cause_tells_the_ranks_it_was_found_on(tmp_path: Path) -> None:
    plain = f"{SERVER}:masters=2,rule=plain"
    runs = simulate_runs(tmp_path, SERIAL, *((plain, ranks, {"seed": seed}) for ranks in (4, 8, 9) for seed in (0, 1)),
                **LOOPBACK)  # fmt: skip
    for run in runs:
        run.summary["test_accuracy"] = 0.9
        if (run.config["ranks"], run.config["seed"]) in ((8, 0), (9, 0), (9, 1)):
            run.summary |= {"diverged": "the loss ran away", "test_accuracy": 0.1}
    (found,) = diagnose(runs)
    main = found.causes[0]
    assert (main.rule, main.ranks, found.ranks) == ("divergence", 8, 4)
    assert main.words == "at 8 ranks 1 of 2 runs diverged with --lr 2 (at 9 all): the loss ran away"
    assert "or -n 4, or " in main.advice
    assert {each.ranks for each in found.causes[1:]} == {4}
    assert found.summary.endswith("; training diverged (at 8 ranks)")
    adaptive = f"{SERVER}:masters=2"
    for run in runs:
        run.config["strategy"] = adaptive if run.config["strategy"] == plain else "serial"
    most = diagnose(runs)[0].causes[0].advice
    assert "--lr 0.125 (half the step), or " in most
    assert "--epochs" not in most  # more of them are no remedy
    every = only([run for run in runs if run.config["ranks"] != 4])
    assert "has diverged runs at every rank count tried (8, 9)" in every.summary
    assert every.causes[0].ranks == 8
