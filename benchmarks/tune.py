"""The choice of `paceline tune` against a study of the same space: how much slower than the best candidate it is.

    python benchmarks/tune.py --problems mlp --budget 45s --seconds 8m --runs proof --json proof/tune.json
    python benchmarks/tune.py --budget 120s --seconds 2h --runs proof --json proof/tune.json
    python benchmarks/tune.py --problems mlp --options="--strategy serial,sync -n 1,16 --batch 64,256" ...

For each problem, `paceline tune` searches within its budget. Then a study runs the candidates of the same space: first the
choice with three seeds, then every other candidate once, in random order, each for up to four times the epochs of the
choice; a run that trains for much longer than the choice took to the target is ended, because it has lost. As in a search,
twice and half the learning rate of the best come next. Then the fastest three of the study are repeated with the other
seeds. `--options` restrict both sides, `--only` the study. Printed are the answer of the search, the seconds to the
target of its choice in the study, the best of the study, their ratio, and how long each side took.

Everything is kept in the folder of `--runs`: the same command goes on where the last call ended, until every candidate has
been run. `--seconds` limits one call; the JSON is written after each problem. With --no-study only searches are made.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from where import where

ROOT = Path(__file__).parent.parent
SEEDS = (0, 1, 2)
REPEATED = 3  # candidates of the study
LOST = 1.2  # times as long to the target as the choice
STARTING = 6.0  # seconds of a run besides training, at least


@dataclass(frozen=True)
class Problem:
    """A network, its data and a target; a program is given by its words."""

    target: str
    data: str = "mnist"
    model: str = ""
    program: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """Return the arguments of `paceline tune` that say what to train."""
        return list(self.program) or ["--data", self.data, "--model", self.model]


GPT = (str(ROOT / "examples" / "lm" / "parallel.py"), "--windows", "1500", "--epochs", "3", "--batch", "16")
PROBLEMS = {
    "digits": Problem("90%", data="digits", model="mlp:64"),
    "mlp": Problem("95%", model="mlp:128,64"),
    "cnn": Problem("97%", model="cnn"),
    "wide": Problem("97%", model="mlp:4096,1024,activation=relu,loss=cross-entropy"),
    "gpt": Problem("perplexity<=14", program=GPT),
}


def words_of(problem: Problem, options: str, runs: Path, seed: int) -> list[str]:
    """Return the arguments of `paceline tune` for a problem, besides the budget."""
    return [
        "--target", problem.target, "--runs", str(runs), "--seed", str(seed), *shlex.split(options), *problem.words
    ]  # fmt: skip


def tune(words: list[str], budget: str) -> tuple[str, float]:
    """Search; return what was printed, and the seconds that it took."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "paceline", "tune", "--budget", budget, *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.rstrip(), time.perf_counter() - start


def prepare(words: list[str]) -> Any:
    """Return a folder and a function that makes the search of `paceline tune` there, without searching."""
    from paceline.cli import Parser
    from paceline.commands import tune as command

    parser = Parser()
    command.add_arguments(parser)
    return command.prepare(parser.parse_args(["--quiet", *words]))


def find_choice(search: Any, line: str) -> Any:
    """Return the candidate whose command a search has printed."""
    from paceline.tune.answer import spell_command

    def settings(text: str) -> list[str]:
        return [word for word in shlex.split(text) if not word.startswith(("--epochs=", "--lr=", "--seed="))]

    def rate(text: str) -> float:
        return next((float(word[5:]) for word in shlex.split(text) if word.startswith("--lr=")), 0.0)

    alike = [one for one in search.trials if settings(spell_command(search, one, 1)) == settings(line)]
    found = min(alike, key=lambda one: abs((one.lr or 0.0) - rate(line)))
    return replace(found, lr=rate(line) or None)


def study(
    words: list[str], line: str, until: float, state: dict[str, Any], save: Any, seed: int, only: str
) -> None:
    """Run candidates of the search's space, the choice first, until all are done or a time is reached; update `state`."""
    from paceline.config import Config
    from paceline.tune.search import Observed, Trial

    folder, make = prepare(words)
    lost, before, began = state.setdefault("lost", {}), state.get("seconds", 0.0), time.perf_counter()
    with folder.lock() as lock:
        search, _ = make(lock)
        choice = find_choice(search, line)
        search.trials.setdefault(choice, Trial(choice))
        printed = next(
            (int(word[9:]) for word in shlex.split(line) if word.startswith("--epochs=")), Config().epochs
        )

        def observe(candidate: Any, number: int, limit: float) -> bool:
            """Run a candidate, unless that is recorded or it has lost; return False if there is no time for it."""
            key = f"{candidate}, seed {number}"
            epochs = printed + 1 + printed // 2 if candidate == choice else 4 * printed + 2
            found = search.bench.find(candidate, epochs=epochs, seed=seed + number)
            if found is None and key not in lost:
                left = until - time.perf_counter()
                if left < STARTING:
                    return False
                found = search.bench.run(candidate, epochs=epochs, seed=seed + number, limit=min(limit, left))
                state["seconds"] = before + time.perf_counter() - began
                if not isinstance(found, Observed):
                    if found.late and left < limit:
                        return False  # it is run again in the next call
                    lost[key] = found.why
                    found = search.bench.cut() or found  # it may have reached the target before
                save()
            if isinstance(found, Observed):
                search.note(candidate, number, found)
            return True

        others = [one for one in search.trials if one != choice and re.search(only, str(one))]
        random.Random(seed).shuffle(others)
        complete = all(observe(choice, number, math.inf) for number in SEEDS)
        runs = search.trials[choice].runs.values()
        overhead = max((run.wall - run.seconds for run in runs if run.wall), default=0.0)
        state["overhead"] = max(state.get("overhead", STARTING), overhead)
        limit = math.inf
        if choice in search.times():
            limit = LOST * max(search.times()[choice].seconds) + state["overhead"]
        for candidate in others:
            if not complete:
                break
            complete = observe(candidate, 0, limit)
        while complete and (best := search.best()) is not None:  # other learning rates, as in a search
            new = [one for one in search.space.neighbours(best) if one not in search.trials]
            search.trials |= {one: Trial(one) for one in new}
            others += new
            complete = all(observe(one, 0, limit) for one in new)
            if search.best() == best:
                break
        if complete:  # the best of single runs may be the luckiest
            times = search.times()
            for candidate in sorted(times, key=lambda one: times[one].mean)[:REPEATED]:
                complete = complete and all(observe(candidate, number, limit) for number in SEEDS)
    tried = 1 + sum(bool(search.trials[one].runs) or f"{one}, seed 0" in lost for one in others)
    state |= {"complete": complete, "seconds": before + time.perf_counter() - began}
    state |= result(search, choice, tried, len(others) + 1, complete)


def result(search: Any, choice: Any, tried: int, candidates: int, complete: bool) -> dict[str, Any]:
    """Compare the choice with the best of the study, each with all of its runs.

    The best has three runs. Before the fastest have been repeated, it may have one, which may have been lucky.
    """
    times = {one: fmean(timing.seconds) for one, timing in search.times().items() if not timing.missed}
    sure = times
    if complete:
        sure = {one: each for one, each in times.items() if len(search.trials[one].runs) == len(SEEDS)}
    best = min(sure, key=lambda one: sure[one]) if sure else None
    own = times.get(choice)
    return {
        "choice": str(choice), "choice_seconds": own, "best": None if best is None else str(best),
        "best_seconds": None if best is None else sure[best],
        "ratio": None if best is None or own is None else own / sure[best],
        "tried": tried, "candidates": candidates, "runs": as_data(search),
    }  # fmt: skip


def as_data(search: Any) -> list[dict[str, Any]]:
    """Return every run compactly: its settings, and the seconds and values at the ends of its epochs."""
    return [
        {
            **vars(one), "seed": seed, "epochs": run.epochs, "seconds": round(run.seconds, 4),
            "points": [[round(point.seconds, 4), round(point.value, 5)] for point in run.points],
        }
        for one, trial in search.trials.items()
        for seed, run in sorted(trial.runs.items())
    ]  # fmt: skip


def records(runs: Path) -> list[dict[str, Any]]:
    """Return the runs of a search compactly, from their records."""
    from paceline.record import find_runs

    found = []
    for run in sorted(find_runs([runs]), key=lambda run: run.folder.name):
        names = ("strategy", "ranks", "threads", "batch", "lr", "epochs", "draws", "seed")
        points = [
            [
                round(epoch["train_seconds"], 4),
                epoch["validation_accuracy"] or epoch["metrics"].get("perplexity"),
            ]
            for epoch in run.epochs
        ]
        found.append({**{name: run.config.get(name) for name in names}, "points": points})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", default="mlp,cnn,wide,gpt", help=f"of {', '.join(PROBLEMS)}")
    parser.add_argument("--options", default="", help="of `paceline tune`, to restrict both sides")
    parser.add_argument("--budget", default="120s", help="of each search")
    parser.add_argument("--seconds", default="9m", help="of this call")
    parser.add_argument("--only", default="", help="a regular expression for the candidates of the study")
    parser.add_argument("--no-study", action="store_true", help="only search")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, required=True, help="folder for all runs, to go on from")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH")))
    )
    sys.path.insert(0, str(ROOT / "src"))
    from paceline.config import parse_duration

    until = time.perf_counter() + (parse_duration(args.seconds) or 0.0)
    found: dict[str, Any] = {}
    for name in args.problems.split(","):
        problem, place = PROBLEMS[name], args.runs / name
        found[name] = one = _read(place / "state.json")
        asked = {"target": problem.target, "options": args.options, "budget": args.budget, "seed": args.seed}
        if any(one.get(key, value) != value for key, value in asked.items()):
            parser.error(f"{place} has another proof ({one['target']}, {one['options']!r}, {one['budget']})")
        one |= asked

        def save(place: Path = place, one: dict[str, Any] = one) -> None:
            _write(place / "state.json", one)

        if "tune" not in one:
            try:
                said, took = tune(words_of(problem, args.options, place / "tune", args.seed), args.budget)
            except subprocess.CalledProcessError as failed:
                print(f"{name}: tune ended with status {failed.returncode}", flush=True)
                del found[name]
                continue
            command = said.rpartition("\n")[2]
            one["tune"] = {"seconds": took, "said": said, "command": command, "runs": records(place / "tune")}
            save()
        print(f"== {name} ==\n{one['tune']['said']}", flush=True)
        if not args.no_study:
            words = words_of(problem, args.options, place / "study", args.seed)
            state = one.setdefault("study", {})
            study(words, one["tune"]["command"], until, state, save, args.seed, args.only)
            save()
        if args.json:
            _write(args.json, {**where(), "problems": found})
        show(name, one)


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def _write(path: Path, values: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_text(json.dumps(values) + "\n")
    new.replace(path)


def show(name: str, one: dict[str, Any]) -> None:
    """Print a line for a problem."""
    tuned, studied = one["tune"], one.get("study")
    if studied is None:
        print(f"{name}: {tuned['seconds']:.0f} s: {tuned['command']}", flush=True)
        return
    ratio = "unknown" if studied["ratio"] is None else f"{studied['ratio']:.2f} times the best"
    own, best = (
        "never" if each is None else f"{each:.3g} s"
        for each in (studied["choice_seconds"], studied["best_seconds"])
    )
    state = "complete" if studied["complete"] else "not complete: the same command goes on"
    share = tuned["seconds"] / studied["seconds"] if studied["seconds"] else math.inf
    print(
        f"{name} ({one['target']}): tune {tuned['seconds']:.0f} s, {studied['choice']}: {own}; study "
        f"{studied['seconds']:.0f} s ({state}), {studied['tried']} of {studied['candidates']} candidates, best "
        f"{studied['best']}: {best}; {ratio}, in {100 * share:.0f} % of the study's time",
        flush=True,
    )


if __name__ == "__main__":
    main()
