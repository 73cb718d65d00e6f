"""The search without runs: a deterministic clock, speeds and courses of learning."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from paceline.compare.metric import Goal
from paceline.compare.noise import Timing, differ
from paceline.config import Config, Program
from paceline.errors import UsageError
from paceline.tune.answer import conclude, list_left_out, results
from paceline.tune.search import LONGER, FailedRun, Observed, Point, Search
from paceline.tune.space import Candidate, Choices, Space, make_space

START = 1.0  # seconds of a run besides training
GOAL = Goal.parse("90%")


def one_thread(**settings: object) -> Candidate:
    return Candidate(**{"strategy": "serial", "batch": 64, "lr": 0.1, **settings})  # type: ignore[arg-type]


ALONE = one_thread()
THREADS = one_thread(threads=8)
SYNC = one_thread(strategy="sync", ranks=8)
SERVER = one_thread(strategy="parameter-server", ranks=8)


@dataclass
class Machine:
    """Runs without runs: seconds of an epoch, and the epochs that each candidate needs for 90 %."""

    seconds: dict[Candidate, float]
    needs: dict[Candidate, float]
    noise: Callable[[Candidate, int], float] = lambda candidate, seed: 1.0
    now: float = 0.0
    ran: list[tuple[Candidate, int, int]] = field(default_factory=list)
    """Candidate, epochs and seed of each run, in order."""
    records: dict[tuple[Candidate, int], Observed] = field(default_factory=dict)
    stop_after: float = math.inf
    spare: float = 0.0
    """Seconds before its limit at which a run is ended."""

    def clock(self) -> float:
        return self.now

    def find(self, candidate: Candidate, *, epochs: int, seed: int) -> Observed | None:
        found = self.records.get((candidate, seed))
        return found if found is not None and found.epochs >= epochs else None

    def run(self, candidate: Candidate, *, epochs: int, seed: int, limit: float) -> Observed | FailedRun:
        each = self.seconds[candidate] * self.noise(candidate, seed)
        took = START + epochs * each
        if self.now + took > self.stop_after:
            self.now = self.stop_after
            raise KeyboardInterrupt
        self.ran.append((candidate, epochs, seed))
        if took > limit:
            self.now += limit - self.spare
            return FailedRun(why="late", late=True)
        self.now += took
        needs = self.needs[candidate]
        points = tuple(Point(n, n * each, min(1.0, 0.9 * (n / needs) ** 0.1)) for n in range(1, epochs + 1))
        found = Observed(epochs=epochs, points=points, seconds=epochs * each, wall=took)
        self.records[candidate, seed] = found
        return found

    def saved_epochs(self, candidate: Candidate, *, epochs: int) -> int:
        return 0

    def cut(self) -> Observed | None:
        return None

    def probe(self, candidate: Candidate, *, draws: int, limit: float) -> float | None:
        self.now += START
        return self.seconds[candidate]


@dataclass
class Exact:
    """Predictions that are right."""

    seconds: dict[Candidate, float]

    def prepare(self, seconds: float, limit: float) -> None:
        pass

    def epoch_seconds(self, candidate: Candidate) -> float | None:
        return self.seconds.get(candidate)

    def learn(self, candidate: Candidate, seconds: float) -> None:
        pass


def space_of(*candidates: Candidate, given: tuple[str, ...] = ("lr",)) -> Space:
    return Space(base=Config(data="digits"), candidates=candidates, cores=8, fixed_rates="lr" in given)


def search_on(
    machine: Machine, *candidates: Candidate, budget: float = 600.0, predict: bool = True
) -> Search:
    return Search(
        space=space_of(*candidates), goal=GOAL, bench=machine, budget=budget, clock=machine.clock,
        speeds=Exact(machine.seconds) if predict else None,
    )  # fmt: skip


def four(**needs: float) -> Machine:
    """A machine on which threads bring 4 times, ranks 6 times the speed of one thread."""
    seconds = {ALONE: 1.2, THREADS: 0.3, SYNC: 0.2, SERVER: 0.25}
    usual = {"ALONE": 10.0, "THREADS": 10.0, "SYNC": 10.0, "SERVER": 30.0, **needs}
    return Machine(seconds, {globals()[name]: value for name, value in usual.items()})


def test_one_process_is_tried_first_and_the_fastest_is_found() -> None:
    machine = four()
    search = search_on(machine, ALONE, THREADS, SYNC, SERVER)
    search.run()
    assert [candidate for candidate, _, _ in machine.ran[:3]] == [ALONE, THREADS, SYNC]
    assert conclude(search).chosen == SYNC
    assert conclude(search).timing is not None
    assert conclude(search).timing.mean == pytest.approx(2.0)  # type: ignore[union-attr]


def test_the_epochs_of_a_strategy_that_is_evaluated_only_at_its_end_are_those_of_its_runs() -> None:
    average = one_thread(strategy="psgd", ranks=8)
    machine = Machine({average: 0.1}, {average: 30.0})
    run = machine.run

    def keep_last(candidate: Candidate, *, epochs: int, seed: int, limit: float) -> Observed | FailedRun:
        found = run(candidate, epochs=epochs, seed=seed, limit=limit)
        if isinstance(found, Observed):
            found = machine.records[candidate, seed] = replace(found, points=found.points[-1:])
        return found

    machine.run = keep_last  # type: ignore[method-assign]
    search = search_on(machine, average)
    search.run()
    assert search.times()[average].missed == 0
    longest = max(epochs for _, epochs, seed in machine.ran if seed == 0)
    assert longest >= 30
    assert {epochs for _, epochs, seed in machine.ran if seed > 0} == {longest}
    assert f"--epochs={longest}" in conclude(search).command.split()


def test_threads_win_where_ranks_are_slower() -> None:
    machine = four()
    machine.seconds[SYNC] = 0.6
    search = search_on(machine, ALONE, THREADS, SYNC, SERVER)
    search.run()
    assert conclude(search).chosen == THREADS


def test_what_takes_the_same_steps_more_slowly_is_left_out_without_a_run() -> None:
    machine = four(THREADS=5.0, SYNC=5.0)
    machine.seconds |= {SYNC: 0.7}
    search = search_on(machine, THREADS, SYNC)
    search.run()
    assert SYNC not in {candidate for candidate, _, _ in machine.ran}
    assert "learns no more from a sample" in search.trials[SYNC].left_out
    assert any("sync on 8 ranks" in line for line in list_left_out(search))


@pytest.mark.parametrize("threads", [80.0, 5.0])
def test_a_strategy_with_its_own_optimizer_is_compared_with_one_process_that_has_it(threads: float) -> None:
    server = replace(SERVER, optimizer="adaptive")
    rule = one_thread(strategy="serial:rule=adaptive", optimizer="adaptive")
    machine = four(ALONE=threads, THREADS=threads, SYNC=threads, SERVER=10.0)
    machine.seconds |= {server: 0.17, rule: 0.18, SYNC: 0.35}
    machine.needs |= {server: 10.0, rule: 5.0}
    search = search_on(machine, ALONE, THREADS, SYNC, server, rule)
    search.run()
    # 80 epochs of serial training say nothing about another optimizer, so one process with it is among the first.
    assert [candidate for candidate, _, _ in machine.ran[:3]] == [ALONE, THREADS, rule]
    answer = conclude(search)
    assert answer.chosen == rule
    assert answer.found.endswith("; it uses the rule adaptive instead of sgd")
    assert "--strategy=serial:rule=adaptive" in answer.command


def test_ranks_learn_no_more_than_one_process_with_their_optimizer() -> None:
    server = replace(SERVER, optimizer="adaptive")
    rule = one_thread(strategy="serial:rule=adaptive", optimizer="adaptive")
    machine = four()
    machine.seconds |= {server: 0.5, rule: 0.18}
    machine.needs |= {server: 5.0, rule: 5.0}
    search = search_on(machine, ALONE, THREADS, SYNC, server, rule)
    search.run()
    assert conclude(search).chosen == rule
    assert not search.trials[server].runs
    assert search.trials[server].left_out == (
        "0.500 s an epoch in the simulator; learns no more from a sample than serial:rule=adaptive with 1 thread, which is "
        "faster"
    )


def test_a_run_that_learns_no_more_just_below_the_target_makes_way_for_others() -> None:
    machine = four(ALONE=1.1, THREADS=1.1, SYNC=1.1)
    slower = replace(SYNC, lr=0.05)
    machine.seconds[slower], machine.needs[slower] = 0.2, 40.0
    run = machine.run

    def run_to_plateau(candidate: Candidate, *, epochs: int, seed: int, limit: float) -> Observed | FailedRun:
        found = run(candidate, epochs=epochs, seed=seed, limit=limit)
        if isinstance(found, Observed) and candidate != slower:
            points = tuple(point._replace(value=min(point.value, 0.895)) for point in found.points)
            found = machine.records[candidate, seed] = replace(found, points=points)
        return found

    machine.run = run_to_plateau  # type: ignore[method-assign]
    search = search_on(machine, ALONE, THREADS, SYNC, slower, budget=200.0)
    search.run()
    assert conclude(search).chosen == slower


def test_other_learning_rates_of_what_nearly_reached_the_target_are_tried() -> None:
    """An epoch with batches of 256 takes half as long, but is not quite enough with its first learning rate."""
    large = one_thread(batch=256, lr=0.2)
    machine = Machine(
        seconds=defaultdict(lambda: 1.0, {large: 0.5}),
        needs=defaultdict(lambda: 99.0, {ALONE: 1.0, large: 1.2}),
    )
    better = replace(large, lr=0.4)
    machine.seconds[better], machine.needs[better] = 0.5, 1.0
    search = search_on(machine, ALONE, large)
    search.space = replace(search.space, fixed_rates=False)
    search.run()
    assert conclude(search).chosen == better


def test_rates_far_above_the_usual_ones_are_found_with_small_batches_too() -> None:
    """Epochs fall with the rate for each sample, up to a rate that is stable, as for a small table of numbers."""
    space = make_space(
        Config(data="digits"), cores=2, samples=1600, rate=0.1, choices=Choices(strategies=("serial",))
    )

    class Needs(dict):  # type: ignore[type-arg]
        def __missing__(self, one: Candidate) -> float:
            assert one.lr is not None
            assert one.batch is not None
            if one.optimizer:
                return 30.0
            return (1 if one.equals_serial else 2) * 0.1 * one.batch / one.lr if one.lr <= 0.2 else math.inf

    class Seconds(dict):  # type: ignore[type-arg]
        def __missing__(self, one: Candidate) -> float:
            assert one.batch is not None
            return 1600 / one.batch * (1e-3 + 1e-5 * one.batch) * (1.0 if one.serial else 2.0)

    machine = Machine(Seconds(), Needs())
    search = Search(space=space, goal=GOAL, bench=machine, budget=120.0, clock=machine.clock, speeds=None)
    search.run()
    chosen = conclude(search).chosen
    assert (chosen.batch, chosen.lr) == (16, 0.2)


def test_the_only_one_that_reached_the_target_is_not_certain_while_others_are_untried() -> None:
    machine = four(ALONE=1.0)
    machine.stop_after = 3.0
    search = search_on(machine, ALONE, THREADS, SYNC, SERVER)
    search.run()
    assert conclude(search).sure == (
        "how sure: not certain: no other has reached the target yet, and 3 candidates could not be tried to the end; the "
        "search was interrupted, and the same command continues it"
    )
    assert list_left_out(search) == [
        f"1 candidate stopped before the end of an epoch, because the search was interrupted: {THREADS}",
        f"2 candidates not tried, because the search was interrupted: {SYNC} and others",
    ]


def test_an_answer_is_no_surer_than_the_candidates_that_were_tried() -> None:
    search = search_on(four(), ALONE, THREADS, SYNC, SERVER)
    for candidate, took in ((ALONE, 1000.0), (THREADS, 2.0)):
        for seed, noise in enumerate((1.0, 1.02, 0.98)):
            point = Point(1, took * noise, 0.95)
            search.note(candidate, seed, Observed(epochs=1, points=(point,), seconds=took * noise, wall=None))
    assert conclude(search).sure == (
        "how sure: 478 to 523 times as fast as the second best, with 95 % confidence, but 2 candidates could not be tried "
        "to the end"
    )


def test_no_run_is_longer_than_the_fastest_so_far() -> None:
    machine = four(SERVER=1000.0)
    search = search_on(machine, ALONE, THREADS, SYNC, SERVER)
    search.run()
    [epochs] = [epochs for candidate, epochs, _ in machine.ran if candidate == SERVER]
    assert epochs * machine.seconds[SERVER] <= 1.2 * conclude(search).timing.mean  # type: ignore[union-attr]


def test_rungs_grow_and_keep_a_third_while_nothing_reaches_the_target() -> None:
    many = [one_thread(lr=rate) for rate in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)]
    machine = Machine(dict.fromkeys(many, 1.0), {one: 900.0 - 500 * one.lr for one in many})  # type: ignore[operator]
    search = search_on(machine, *many, budget=2400.0)
    search.run()
    sizes = [len(taken) for _, taken in search.rungs]
    seconds = [allowance for allowance, _ in search.rungs]
    assert sizes[:3] == [9, 3, 1]
    assert seconds[1] == LONGER * seconds[0]
    assert seconds[2] == LONGER * seconds[1]
    assert set(search.rungs[1][1]) == set(many[-3:])
    assert search.rungs[2][1] == (many[-1],)


def test_nothing_reaches_the_target_and_the_nearest_is_given() -> None:
    machine = Machine({ALONE: 1.0, THREADS: 0.5}, {ALONE: 1e9, THREADS: 1e9})
    search = search_on(machine, ALONE, THREADS, budget=120.0)
    search.run()
    answer = conclude(search)
    assert machine.now <= 120.0
    assert answer.chosen == THREADS
    assert answer.timing is None
    assert "nothing reached accuracy >= 90.00 %" in answer.found
    longest = max(epochs for candidate, epochs, _ in machine.ran if candidate == THREADS)
    assert f"--epochs={longest}" in answer.command.split()
    assert results(search).count("\n") == 2


def search_records(values: dict[int, list[float]], *candidates: Candidate) -> Search:
    """Return a search that only finds records of the first candidate: by seed, its values after each epoch."""
    machine = Machine(dict.fromkeys(candidates, 1.0), dict.fromkeys(candidates, 1.0))
    for seed, found in values.items():
        points = tuple(Point(n, 0.5 * n, value) for n, value in enumerate(found, 1))
        machine.records[candidates[0], seed] = Observed(
            epochs=len(found), points=points, seconds=0.5 * len(found)
        )
    search = search_on(machine, *candidates, budget=0.5)
    search.run()
    return search


def test_what_misses_the_target_with_a_seed_is_second_though_it_is_faster() -> None:
    """And the same candidate is named as second best and in the sentence on how sure the answer is."""
    search = search_records({0: [0.91], 1: [0.5, 0.91]}, ALONE, THREADS)  # after 0.5 and 1 s
    for seed, value in ((0, 0.91), (1, 0.5)):
        search.note(THREADS, seed, Observed(epochs=1, points=(Point(1, 0.6, value),), seconds=0.6))
    answer = conclude(search)
    assert answer.chosen == ALONE
    assert answer.sure.startswith(
        f"how sure: not certain: {THREADS} takes 20 % less time on average, but did not reach the target in 1 of 2 runs"
    )
    assert answer.second.startswith(f"second best: {THREADS}")


@pytest.mark.parametrize(
    ("values", "epochs", "seed"),
    [
        (
            {0: [0.5, 0.91, 0.8, 0.8], 1: [0.5, 0.6, 0.7, 0.9]},
            2,
            None,
        ),  # after 4 epochs, it has left the target
        ({0: [0.5, 0.6, 0.8, 0.8], 1: [0.5, 0.6, 0.9]}, 3, 1),
    ],
)
def test_the_command_ends_at_the_target_with_its_own_seed(
    values: dict[int, list[float]], epochs: int, seed: int | None
) -> None:
    answer = conclude(search_records(values, ALONE))
    assert answer.epochs == epochs
    words = answer.command.split()
    assert f"--epochs={epochs}" in words
    assert [word for word in words if word.startswith("--seed")] == (
        [] if seed is None else [f"--seed={seed}"]
    )


def test_the_command_of_the_nearest_ends_where_it_was_nearest() -> None:
    answer = conclude(search_records({0: [0.5, 0.7, 0.89, 0.6, 0.6]}, ALONE))
    assert "89.00 % after 1.50 s" in answer.found
    assert "--epochs=3" in answer.command.split()
    answer = conclude(search_records({0: [0.5, 0.6], 1: [0.5, 0.7]}, ALONE))
    assert {"--epochs=2", "--seed=1"} <= set(answer.command.split())


def test_the_only_candidate_is_not_compared() -> None:
    assert conclude(search_records({0: [0.5, 0.9]}, ALONE)).sure == "how sure: it was the only candidate"


def test_advice_is_about_what_kept_the_search_from_the_target() -> None:
    spent = search_records({0: [0.5, 0.6]}, ALONE)
    assert conclude(spent).sure == "how sure: not at all; try a longer budget or an easier target"
    spent.interrupted = True
    assert conclude(spent).sure == (
        "how sure: not at all; the search was interrupted, and the same command continues it"
    )
    machine = four(ALONE=1e9)
    limited = search_on(machine, ALONE)
    limited.most_epochs = 7
    limited.run()
    assert conclude(limited).sure == (
        "how sure: not at all; try more epochs (--epochs; these runs had 7) or an easier target"
    )


def test_runs_of_a_fixed_length_need_more_epochs_and_not_more_time() -> None:
    machine = four(ALONE=1e9)
    search = search_on(machine, ALONE)
    search.most_epochs, search.space = 5, replace(search.space, base=Config(data="digits", schedule="cosine"))
    search.run()
    assert [epochs for _, epochs, _ in machine.ran] == [5]
    answer = conclude(search)
    assert (
        answer.sure
        == "how sure: not at all; try more epochs (--epochs; these runs had 5) or an easier target"
    )
    assert "--epochs=5" in answer.command.split()


def test_the_command_names_the_strategy_and_the_epochs_even_if_they_are_the_defaults() -> None:
    default = Config()
    sync = one_thread(strategy=default.strategy, ranks=2)
    words = conclude(search_records({0: [0.5] * (default.epochs - 1) + [0.9]}, sync)).command.split()
    assert f"--strategy={default.strategy}" in words
    assert f"--epochs={default.epochs}" in words


@pytest.mark.parametrize("budget", [1.5, 3.0, 7.0, 20.0, 50.0, 100.0])
def test_the_budget_is_kept_and_there_is_always_an_answer(budget: float) -> None:
    machine = four()
    search = search_on(machine, ALONE, THREADS, SYNC, SERVER, budget=budget)
    search.run()
    assert machine.now <= budget
    assert conclude(search).command.startswith("paceline train ")


@pytest.mark.parametrize("after", [0.5, 3.0, 8.0, 14.0])
def test_an_interrupted_search_answers_with_the_best_so_far(after: float) -> None:
    machine = four()
    machine.stop_after = after
    search = search_on(machine, ALONE, THREADS, SYNC, SERVER)
    search.run()
    answer = conclude(search)
    assert search.interrupted
    assert answer.command.startswith("paceline train ")
    reached = search.times()
    assert answer.timing == (reached[answer.chosen] if reached else None)


def test_the_answer_of_an_interrupted_search_measures_and_simulates_nothing() -> None:
    machine = four()

    class Interrupted(Exact):
        def prepare(self, seconds: float, limit: float) -> None:
            raise KeyboardInterrupt

        def epoch_seconds(self, candidate: Candidate) -> float | None:
            raise AssertionError("a prediction needs what was not measured")

    search = search_on(machine, ALONE, THREADS, SYNC, SERVER)
    search.speeds = Interrupted(machine.seconds)
    search.run()
    assert conclude(search).chosen == THREADS


def test_candidates_that_failed_for_the_same_reason_are_in_one_line() -> None:
    search = search_on(four(), ALONE, THREADS, SYNC, SERVER)
    for seconds, one in enumerate((ALONE, THREADS, SYNC)):
        where = f"runs/my-runs/20261119-22155{seconds}-{one.strategy}-n1-s0-90a5a07b/checkpoints"
        search.trials[one].failed = f"cannot write a checkpoint to {where}: no space left on device"
    search.trials[SERVER].failed = "exit status 1"
    assert list_left_out(search) == [
        "3 candidates that failed (cannot write a checkpoint to its folder/checkpoints: no space left on device): "
        f"{ALONE} and others",
        f"1 candidate that failed (exit status 1): {SERVER}",
    ]


def test_a_search_goes_on_from_its_records() -> None:
    whole = four()
    search = search_on(whole, ALONE, THREADS, SYNC, SERVER)
    search.run()
    machine = four()
    machine.stop_after = 8.0
    search_on(machine, ALONE, THREADS, SYNC, SERVER).run()
    before = len(machine.ran)
    assert 0 < before < len(whole.ran)
    machine.stop_after = math.inf
    again = search_on(machine, ALONE, THREADS, SYNC, SERVER)
    again.run()
    assert len(set(machine.ran)) == len(machine.ran)  # nothing twice
    assert conclude(again).command == conclude(search).command
    runs = len(machine.ran)
    search_on(machine, ALONE, THREADS, SYNC, SERVER).run()
    assert len(machine.ran) == runs  # everything is known


def test_a_search_that_goes_on_knows_the_learning_rates_that_were_tried_besides() -> None:
    twice, four_times = one_thread(lr=0.2), one_thread(lr=0.4)
    machine = Machine(defaultdict(lambda: 0.5), {})
    for rate, needs in ((ALONE, 8), (twice, 4), (four_times, 2)):
        points = tuple(Point(n, 0.5 * n, 0.9 if n >= needs else 0.5) for n in range(1, needs + 1))
        machine.records[rate, 0] = Observed(epochs=needs, points=points, seconds=0.5 * needs)
    machine.stop_after = 0.0
    search = Search(
        space=space_of(ALONE, given=()), goal=GOAL, bench=machine, budget=60.0, clock=machine.clock
    )
    search.run()
    assert conclude(search).chosen == four_times


def test_a_run_that_is_far_slower_than_predicted_shows_how_slow_others_like_it_are() -> None:
    machine = four()
    other = one_thread(threads=8, lr=0.2)
    machine.seconds |= {THREADS: 60.0, other: 60.0}
    machine.needs[other] = 10.0
    search = search_on(machine, ALONE, THREADS, other, SYNC)
    search.speeds = Exact({**machine.seconds, THREADS: 0.3, other: 0.3})
    search.run()
    assert search.trials[THREADS].failed.startswith("too slow")
    assert (search.epoch_seconds(THREADS) or 0.0) > 1.0
    assert [candidate for candidate, _, _ in machine.ran].count(THREADS) == 1
    assert other not in [candidate for candidate, _, _ in machine.ran]
    assert conclude(search).chosen == SYNC


def test_no_run_is_started_that_would_be_ended_at_once() -> None:
    machine = four()
    limits: list[float] = []
    run = machine.run

    def note(candidate: Candidate, *, epochs: int, seed: int, limit: float) -> Observed | FailedRun:
        limits.append(limit)
        return run(candidate, epochs=epochs, seed=seed, limit=limit)

    machine.run = note  # type: ignore[method-assign]
    search_on(machine, ALONE, THREADS, SYNC, SERVER, budget=14.0).run()
    assert limits
    assert min(limits) > START * (len(limits) > 1)


def test_a_budget_of_a_few_seconds_is_used_for_runs() -> None:
    machine = four()
    machine.seconds |= {ALONE: 0.01}
    search = search_on(machine, ALONE, budget=3.0)
    search.run()
    assert len(machine.ran) == 2
    assert conclude(search).chosen == ALONE
    assert machine.now <= 3.0


def test_noise_is_measured_and_a_verdict_is_given_only_where_the_intervals_part() -> None:
    machine = four()
    machine.seconds |= {SYNC: 0.29}
    machine.noise = lambda candidate, seed: 1.0 + 0.2 * math.sin(7 * seed + len(str(candidate)))
    search = search_on(machine, ALONE, THREADS, SYNC)
    search.run()
    found = search.times()
    assert len(found[THREADS].seconds) > 1
    assert len(found[SYNC].seconds) > 1
    assert not differ(found[THREADS], found[SYNC])
    assert "the difference is within the noise" in conclude(search).sure


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ({SYNC: [0], THREADS: [0]}, "each was run only once"),
        ({SYNC: [0], THREADS: [0, 1, 2]}, "the answer was run only once"),
        ({SYNC: [0, 1, 2], THREADS: [0]}, "the latter was run only once"),
        ({SYNC: [0, 1, 2], THREADS: [0, 1, 2]}, "the difference is within the noise"),
    ],
)
def test_an_uncertain_answer_says_which_was_run_once(runs: dict[Candidate, list[int]], said: str) -> None:
    machine = four()
    machine.seconds |= {SYNC: 0.25}
    machine.noise = lambda candidate, seed: (1.0, 1.5, 0.6)[seed]
    for candidate, seeds in runs.items():
        for seed in seeds:
            machine.run(candidate, epochs=20, seed=seed, limit=math.inf)
    search = search_on(machine, THREADS, SYNC, budget=0.5)
    search.run()
    assert {one: len(timing.seconds) for one, timing in search.times().items()} == {
        one: len(seeds) for one, seeds in runs.items()
    }
    assert f"but {said}" in conclude(search).sure


@pytest.mark.parametrize(
    ("slowed", "said"),
    [
        ([SYNC], "; other programs slowed down runs of the answer: measure again without them"),
        ([THREADS], f"; other programs slowed down runs of {THREADS}: measure again without them"),
        ([SYNC, THREADS], "; other programs slowed down runs of both: measure again without them"),
        ([ALONE], "the same is true of 1 other"),
    ],
)
def test_the_answer_says_that_the_machine_was_busy(slowed: list[Candidate], said: str) -> None:
    machine = four()
    machine.seconds |= {SYNC: 0.25}
    for candidate in (SYNC, THREADS, ALONE):
        found = machine.run(candidate, epochs=20, seed=0, limit=math.inf)
        assert isinstance(found, Observed)
        machine.records[candidate, 0] = replace(found, disturbed=candidate in slowed)
    search = search_on(machine, THREADS, SYNC, ALONE, budget=0.5)
    search.run()
    answer = conclude(search)
    assert answer.chosen == SYNC
    assert answer.sure.endswith(said)


def test_the_budget_is_spent_as_long_as_a_longer_run_might_reach_the_target() -> None:
    machine = four()
    machine.seconds |= {THREADS: 30.0, SYNC: 30.0}
    search = search_on(machine, ALONE, THREADS, SYNC, budget=20.0)
    search.run()
    assert search.budget - machine.now > START  # time is left, but nothing fits
    assert "(the budget is spent)" in conclude(search).found


def test_a_run_that_the_budget_ends_has_not_failed() -> None:
    machine = four()
    program = Program(file="own.py", arguments=())
    candidates = tuple(one_thread(threads=threads, batch=None, lr=None) for threads in (8, 1))
    machine.seconds |= dict.fromkeys(candidates, 30.0)
    machine.spare = 1.0
    search = Search(
        space=replace(space_of(*candidates), program=program), goal=GOAL, bench=machine, budget=20.0,
        clock=machine.clock, most_epochs=1,
    )  # fmt: skip
    search.run()
    assert [candidate for candidate, _, _ in machine.ran] == [candidates[0]]
    assert not any(trial.failed for trial in search.trials.values())
    answer = conclude(search)
    assert (
        answer.found == f"no run got to the end of an epoch (the budget is spent); {candidates[0]} was late"
    )
    assert answer.chosen == candidates[0]
    assert "the command below is the one that was stopped" in answer.sure
    assert list_left_out(search) == [
        f"1 candidate stopped before the end of an epoch, for lack of time: {candidates[0]}",
        f"1 candidate not tried, for lack of time: {candidates[1]}",
    ]


def test_where_a_program_hangs_with_all_threads_one_thread_comes_before_other_batches() -> None:
    machine = four()
    candidates = tuple(one_thread(threads=threads, batch=batch) for threads in (8, 1) for batch in (16, 64))
    machine.seconds |= dict.fromkeys(candidates, 5.0)
    machine.needs |= dict.fromkeys(candidates, 1.0)
    run, order = machine.run, list[Candidate]()

    def hang(candidate: Candidate, **settings: Any) -> Observed | FailedRun:
        order.append(candidate)
        if candidate.threads == 8:
            machine.now += 30.0
            return FailedRun(why="it seems to hang", stuck=True)
        return run(candidate, **settings)

    machine.run = hang  # type: ignore[method-assign]
    search = Search(
        space=replace(space_of(*candidates), program=Program(file="own.py", arguments=())), goal=GOAL,
        bench=machine, budget=50.0, clock=machine.clock, most_epochs=1,
    )  # fmt: skip
    search.run()
    assert [one.threads for one in order[:2]] == [8, 1]
    assert conclude(search).chosen.threads == 1


def test_a_third_of_the_budget_is_for_repetitions_of_a_program() -> None:
    counts = (8, 7, 6, 5, 4, 3, 2, 1)
    candidates = tuple(one_thread(threads=threads, batch=None, lr=None) for threads in counts)
    machine = Machine({one: 8.0 / one.threads for one in candidates}, dict.fromkeys(candidates, 1.0))
    machine.noise = lambda candidate, seed: 1.0 + 0.1 * seed
    search = Search(
        space=replace(space_of(*candidates), program=Program(file="own.py", arguments=())), goal=GOAL,
        bench=machine, budget=30.0, clock=machine.clock, most_epochs=1,
    )  # fmt: skip
    search.run()
    assert any(trial.untried for trial in search.trials.values())  # there was no time for everything
    assert sum(seed > 0 for _, _, seed in machine.ran) >= 2
    assert conclude(search).timing.interval is not None  # type: ignore[union-attr]


def test_rates_stay_within_eight_times_those_of_the_known_rules() -> None:
    """Though every doubling brings a little."""
    machine = Machine(defaultdict(lambda: 1.0), defaultdict(float))
    machine.needs |= {one_thread(lr=0.1 * 2**n): 20.0 - n for n in range(-9, 10)}
    search = search_on(machine, ALONE)
    search.space = replace(search.space, fixed_rates=False)
    search.run()
    assert max(candidate.lr for candidate, _, _ in machine.ran) == 0.8  # type: ignore[type-var]


def test_the_first_milliseconds_of_a_run_say_little_about_its_speed() -> None:
    """An epoch of one process takes a tenth of its first one; ranks, which have trained for longer, look faster."""
    machine = Machine({ALONE: 0.0001, SYNC: 0.0003}, {ALONE: 60.0, SYNC: 60.0})
    run = machine.run

    def run_slowly_at_first(
        candidate: Candidate, *, epochs: int, seed: int, limit: float
    ) -> Observed | FailedRun:
        found = run(candidate, epochs=epochs, seed=seed, limit=limit)
        if isinstance(found, Observed):
            points = tuple(point._replace(seconds=point.seconds + 0.0009) for point in found.points)
            found = replace(found, points=points, seconds=found.seconds + 0.0009)
            machine.records[candidate, seed] = found
        return found

    machine.run = run_slowly_at_first  # type: ignore[method-assign]
    search = search_on(machine, ALONE, SYNC, budget=60.0, predict=False)
    machine.records[ALONE, 0] = machine.run(ALONE, epochs=1, seed=0, limit=9.0)  # type: ignore[assignment]
    machine.records[SYNC, 0] = machine.run(SYNC, epochs=90, seed=0, limit=9.0)  # type: ignore[assignment]
    search.run()
    assert conclude(search).chosen == ALONE


def test_no_other_rates_are_tried_for_what_needs_one_epoch() -> None:
    machine = Machine(defaultdict(lambda: 1.0), defaultdict(lambda: 1.0))
    search = search_on(machine, ALONE)
    search.space = replace(search.space, fixed_rates=False)
    search.run()
    assert {candidate for candidate, _, _ in machine.ran} == {ALONE}


def test_of_two_strategies_that_take_as_much_effort_none_is_called_simpler() -> None:
    slower, faster = (one_thread(strategy=name, ranks=8) for name in ("gossip", "local-sgd"))
    assert slower.effort == faster.effort > SYNC.effort > ALONE.effort


def test_of_two_that_cannot_be_told_apart_the_simpler_one_is_given() -> None:
    machine = four()
    machine.seconds |= {SYNC: 0.297}
    machine.noise = lambda candidate, seed: 1.0 + 0.1 * (seed % 3 - 1)
    search = search_on(machine, ALONE, THREADS, SYNC)
    search.run()
    found = search.times()
    assert found[SYNC].mean < found[THREADS].mean
    assert not differ(found[THREADS], found[SYNC])
    assert conclude(search).chosen == THREADS
    assert "the simpler one is given" in conclude(search).sure


def test_clear_differences_need_few_repetitions_and_are_stated() -> None:
    machine = four()
    machine.noise = lambda candidate, seed: 1.0 + 0.01 * seed
    search = search_on(machine, ALONE, THREADS, SYNC)
    search.run()
    assert conclude(search).chosen == SYNC
    assert len(search.times()[SYNC].seconds) == 3
    assert [seed for candidate, _, seed in machine.ran if candidate == THREADS] == [0]
    assert machine.now < 0.5 * search.budget


def test_a_seed_that_misses_the_target_counts_against_a_candidate() -> None:
    assert Timing(seconds=(1.0,), missed=1).key > Timing(seconds=(5.0, 5.0)).key


def test_a_failed_candidate_is_not_tried_again() -> None:
    machine = four()

    def fail(candidate: Candidate, **settings: object) -> Observed | FailedRun:
        if candidate == SYNC:
            machine.ran.append((candidate, 0, 0))
            return FailedRun(why="no such network")
        return run(candidate, **settings)  # type: ignore[arg-type]

    run, machine.run = machine.run, fail  # type: ignore[method-assign]
    search = search_on(machine, ALONE, THREADS, SYNC)
    search.run()
    assert [candidate for candidate, _, _ in machine.ran].count(SYNC) == 1
    assert conclude(search).chosen == THREADS
    assert any("no such network" in line for line in list_left_out(search))


def test_a_candidate_that_failed_in_an_earlier_search_does_not_end_this_one() -> None:
    machine = four()
    find = machine.find

    def find_failed(candidate: Candidate, **settings: int) -> Observed | FailedRun | None:
        return FailedRun(why="it failed before") if candidate == SYNC else find(candidate, **settings)

    machine.find = find_failed  # type: ignore[method-assign, assignment]
    search = search_on(machine, ALONE, SYNC, THREADS)
    search.run()
    assert conclude(search).chosen == THREADS
    assert search.trials[SYNC].failed == "it failed before"


def test_twice_the_learning_rate_is_tried_after_the_search() -> None:
    machine = Machine({}, {})
    rates = {0.1 * 2.0**k: 8.0 + 2 * abs(k - 2) for k in range(-8, 9)}

    class Half(dict):  # type: ignore[type-arg]
        def __missing__(self, key: Candidate) -> float:
            return 0.5

    class Needs(dict):  # type: ignore[type-arg]
        def __missing__(self, key: Candidate) -> float:
            return next(
                needs for rate, needs in rates.items() if math.isclose(rate, key.lr or 0, rel_tol=0.01)
            )

    machine.seconds, machine.needs = Half(), Needs()
    search = Search(
        space=space_of(ALONE, given=()), goal=GOAL, bench=machine, budget=600.0, clock=machine.clock,
        speeds=None,
    )  # fmt: skip
    search.run()
    assert {candidate.lr for candidate, _, _ in machine.ran} >= {0.1, 0.2, 0.05, 0.4}
    assert conclude(search).chosen.lr == 0.4


def test_long_epochs_are_measured_by_short_runs_first() -> None:
    machine = four(ALONE=1.0, THREADS=1.0, SYNC=1.0, SERVER=1.0)
    machine.seconds = {one: 60 * seconds for one, seconds in machine.seconds.items()}
    machine.batches = lambda candidate: 1000  # type: ignore[attr-defined]
    search = search_on(machine, ALONE, THREADS, SYNC, SERVER, budget=120.0, predict=False)
    search.run()
    assert machine.now <= 120.0
    assert (ALONE, 1, 0) not in machine.ran  # its epoch takes more than half of the budget
    assert conclude(search).chosen == SYNC


@pytest.mark.parametrize("late", [False, True])
def test_the_search_goes_on_without_predictions_if_the_work_cannot_be_measured(late: bool) -> None:
    """In time or at all, as when MPI cannot start ranks."""
    machine, told = four(), list[str]()

    class Unknown(Exact):
        def prepare(self, seconds: float, limit: float) -> None:
            machine.now += limit if late else 1.0
            raise UsageError("what the work costs could not be measured: it took too long")

    search = search_on(machine, ALONE, THREADS, SYNC, SERVER, budget=60.0)
    search.speeds, search.tell = Unknown(machine.seconds), told.append
    search.run()
    assert machine.now <= 60.0
    assert conclude(search).chosen == SYNC
    assert told[1].endswith("could not be measured: it took too long; the search goes on without predictions")


def test_short_runs_that_measure_speed_leave_time_for_a_whole_one_where_they_take_long_to_start() -> None:
    machine = four(ALONE=1.0, THREADS=1.0, SYNC=1.0, SERVER=1.0)
    machine.seconds = {ALONE: 7.0, THREADS: 100.0, SYNC: 13.0, SERVER: 13.0}
    machine.batches = lambda candidate: 1000  # type: ignore[attr-defined]
    probe, run = machine.probe, machine.run

    def start_slowly(candidate: Candidate, **settings: Any) -> Any:
        machine.now += 12.0
        settings["limit"] -= 12.0
        return (probe if "draws" in settings else run)(candidate, **settings)

    machine.probe = machine.run = start_slowly  # type: ignore[method-assign]
    search = search_on(machine, ALONE, THREADS, SYNC, SERVER, budget=50.0)
    search.run()
    assert machine.now <= 50.0
    assert conclude(search).timing is not None


def test_if_there_was_no_time_for_a_run_the_fastest_that_was_measured_is_given() -> None:
    machine = four()
    machine.seconds = {ALONE: 30.0, THREADS: 300.0}
    machine.batches = lambda candidate: 1000  # type: ignore[attr-defined]
    search = search_on(machine, ALONE, THREADS, budget=20.0, predict=False)
    search.run()
    answer = conclude(search)
    assert answer.found == "no run got to the end of an epoch (the budget is spent)"
    assert answer.chosen == ALONE


def test_an_epoch_of_a_few_batches_is_run_instead_of_measured() -> None:
    machine = four()
    machine.batches = lambda candidate: 23  # type: ignore[attr-defined]
    machine.probe = None  # type: ignore[method-assign, assignment]
    search = search_on(machine, ALONE, THREADS, SYNC, SERVER, predict=False)
    search.run()
    assert conclude(search).chosen == SYNC


def test_a_whole_run_shows_how_long_an_epoch_takes_though_a_short_one_seemed_faster() -> None:
    """Its steps, but not the pauses between them."""
    machine = four()
    machine.seconds |= {ALONE: 3.0}
    machine.batches = lambda candidate: 1000  # type: ignore[attr-defined]
    machine.probe = lambda candidate, **_: 0.5  # type: ignore[method-assign]
    search = search_on(machine, ALONE, predict=False)
    search.run()
    assert search.epoch_seconds(ALONE) == pytest.approx(3.0)


def test_without_predictions_other_candidates_train_for_as_long_as_one_process() -> None:
    """One epoch of a few milliseconds would show nothing."""
    machine = four(ALONE=500.0, THREADS=500.0, SYNC=500.0)
    machine.seconds = {ALONE: 0.02, THREADS: 0.02, SYNC: 0.02}
    search = search_on(machine, ALONE, THREADS, SYNC, budget=30.0, predict=False)
    search.run()
    first = {one: epochs for one, epochs, _ in reversed(machine.ran)}
    assert first[SYNC] >= 10


def test_the_first_whole_run_takes_the_usual_steps() -> None:
    """A large batch with a high rate may be expected to be faster, but may not learn at all."""
    bold = one_thread(strategy="sync", ranks=8, batch=1024, lr=1.6)
    machine = Machine({ALONE: 30.0, SYNC: 12.0, bold: 3.0}, {ALONE: 2.0, SYNC: 2.0, bold: 1e9})
    search = search_on(machine, ALONE, SYNC, bold, budget=150.0)
    search.run()
    assert machine.ran[0][0] == SYNC
    assert conclude(search).timing is not None


def test_a_rung_with_too_few_to_choose_from_goes_on_with_others() -> None:
    poor = one_thread(lr=0.01)
    machine = Machine({poor: 30.0, ALONE: 30.0}, {poor: 1e9, ALONE: 1.0})
    search = search_on(machine, poor, ALONE, budget=130.0)
    search.run()
    assert ALONE in [candidate for candidate, _, _ in machine.ran[:2]]
    assert conclude(search).chosen == ALONE


def test_a_run_that_is_ended_counts_as_far_as_it_got() -> None:
    machine = four()
    cut = Observed(epochs=2, points=(Point(1, 1.2, 0.5), Point(2, 2.4, 0.7)), seconds=2.4)
    machine.cut = lambda: cut  # type: ignore[method-assign]
    machine.stop_after = 1.0
    search = search_on(machine, ALONE, THREADS)
    search.run()
    assert search.interrupted
    answer = conclude(search)
    assert answer.chosen == ALONE
    assert "70.00 % after 2.40 s" in answer.found
    assert answer.command.endswith("--epochs=2 --threads=1")


def test_a_search_whose_first_runs_all_fail_ends() -> None:
    machine = four()
    machine.run = lambda candidate, **_: FailedRun(why="no data")  # type: ignore[method-assign]
    with pytest.raises(UsageError, match="every run failed: no data"):
        search_on(machine, ALONE, THREADS, SYNC, SERVER).run()
