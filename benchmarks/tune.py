"""The choice of `paceline tune` against a study of the same space: how much slower than the best candidate it is.

    python benchmarks/tune.py --problems mlp,cnn,wide,gpt --budget 60s --study 150s --json benchmarks/results/tune.json

For each problem, `paceline tune` searches within its budget. Then a study runs the candidates of the same space for as long
as it may: first the choice with three seeds, then all others in random order, each for twice the epochs that the choice
needed; a run that takes more than 2.5 times as long as the choice is ended, because it has lost. The fastest three of the
study are repeated with the other two seeds. Printed are the choice, its seconds to the target in the study, the best of
the study, their ratio, and how long each side took. With --study 0s only the searches are made.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from where import where

ROOT = Path(__file__).parent.parent
SEEDS = (0, 1, 2)
REPEATED = 3  # candidates of the study
FOR_REPEATS = 0.25  # of the study's time
STARTING = 6.0  # seconds of a run besides training, at most


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


def tune(problem: Problem, budget: str, runs: Path, seed: int) -> tuple[str, str, float]:
    """Search; return the whole output, its last line, and the seconds that it took."""
    start = time.perf_counter()
    command = [
        sys.executable,
        "-m",
        "paceline",
        "tune",
        "--target",
        problem.target,
        "--budget",
        budget,
        "--runs",
        str(runs),
    ]
    done = subprocess.run(
        [*command, "--seed", str(seed), *problem.words], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout, done.stdout.rstrip().rpartition("\n")[2], time.perf_counter() - start


def prepare(problem: Problem, runs: Path, seed: int) -> Any:
    """Return a folder and a function that makes the search of `paceline tune` there, without searching."""
    from paceline.cli import Parser
    from paceline.commands import tune as command

    parser = Parser()
    command.add_arguments(parser)
    words = ["--target", problem.target, "--runs", str(runs), "--seed", str(seed), "--quiet", *problem.words]
    return command.prepare(parser.parse_args(words))


def find_choice(search: Any, line: str) -> Any:
    """Return the candidate whose command a search has printed."""
    from paceline.tune.answer import spell_command

    def settings(text: str) -> list[str]:
        return [word for word in shlex.split(text) if not word.startswith(("--epochs=", "--lr="))]

    def rate(text: str) -> float:
        return next((float(word[5:]) for word in shlex.split(text) if word.startswith("--lr=")), 0.0)

    alike = [one for one in search.trials if settings(spell_command(search, one, 1)) == settings(line)]
    found = min(alike, key=lambda one: abs((one.lr or 0.0) - rate(line)))
    return replace(found, lr=rate(line) or None)


def study(problem: Problem, line: str, seconds: float, runs: Path, seed: int) -> dict[str, Any]:
    """Run the candidates of the search's space, the choice first; return the times to the target."""
    from paceline.config import Config
    from paceline.tune.search import Observed, Trial

    began = time.perf_counter()
    folder, make = prepare(problem, runs, seed)
    with folder.lock() as lock:
        search = make(lock)
        choice = find_choice(search, line)
        search.trials.setdefault(choice, Trial(choice))
        printed = next(
            (int(word[9:]) for word in shlex.split(line) if word.startswith("--epochs=")), Config().epochs
        )
        epochs, tried, walls = 2 * printed + 1, 0, []

        def left() -> float:
            return seconds - (time.perf_counter() - began)

        def run(candidate: Any, number: int, limit: float) -> None:
            if left() > STARTING:
                start = time.perf_counter()
                found = search.bench.run(
                    candidate, epochs=epochs, seed=number, limit=max(STARTING, min(limit, left()))
                )
                if isinstance(found, Observed):
                    search.note(candidate, number, found)
                    walls.append(time.perf_counter() - start)

        for number in SEEDS:
            run(choice, number, left())
        limit = 2.5 * min(walls, default=seconds) + STARTING
        others = [one for one in search.trials if one != choice]
        random.Random(seed).shuffle(others)
        until = FOR_REPEATS * seconds
        for candidate in others:
            if left() < until:
                break
            tried += 1
            run(candidate, 0, limit)
        fastest = sorted(search.times(), key=lambda one: search.times()[one].mean)[:REPEATED]
        for candidate in fastest:
            for number in SEEDS:
                if number not in search.trials[candidate].runs:
                    run(candidate, number, limit)
    return result(search, choice, others, tried, time.perf_counter() - began)


def result(search: Any, choice: Any, others: list[Any], tried: int, took: float) -> dict[str, Any]:
    """Compare the choice with the best of the study, each with all of its runs."""
    times = {one: fmean(timing.seconds) for one, timing in search.times().items() if not timing.missed}
    sure = {one: each for one, each in times.items() if len(search.trials[one].runs) == len(SEEDS)} or times
    best = min(sure, key=lambda one: sure[one]) if sure else None
    own = times.get(choice)
    return {
        "choice": str(choice), "choice_seconds": own, "best": None if best is None else str(best),
        "best_seconds": None if best is None else sure[best],
        "ratio": None if best is None or own is None else own / sure[best],
        "tried": tried + 1, "candidates": len(others) + 1, "seconds": took, "runs": as_data(search),
    }  # fmt: skip


def as_data(search: Any) -> list[dict[str, Any]]:
    """Return every run compactly: its settings, and the seconds and values at the ends of its epochs."""
    return [
        {
            **vars(one), "seed": seed, "epochs": run.epochs, "seconds": round(run.seconds, 4),
            "points": [[round(at, 4), round(value, 5)] for at, value in run.points],
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
    parser.add_argument("--budget", default="120s", help="of each search")
    parser.add_argument("--study", default="20m", help="of each study; 0s: none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH")))
    )
    sys.path.insert(0, str(ROOT / "src"))
    from paceline.config import duration

    found: dict[str, Any] = {}
    for name in args.problems.split(","):
        problem = PROBLEMS[name]
        with tempfile.TemporaryDirectory() as place:
            try:
                said, line, took = tune(problem, args.budget, Path(place) / "tune", args.seed)
            except subprocess.CalledProcessError as failed:
                print(f"{name}: tune ended with status {failed.returncode}", flush=True)
                continue
            print(f"== {name} ==\n{said}", flush=True)
            found[name] = {
                "target": problem.target, "budget": args.budget,
                "tune": {"seconds": took, "command": line, "runs": records(Path(place) / "tune")},
            }  # fmt: skip
            if (limit := duration(args.study) or 0.0) > 0:
                found[name]["study"] = study(problem, line, limit, Path(place) / "study", args.seed)
        if args.json:
            args.json.write_text(json.dumps({**where(), "problems": found}) + "\n")
    show(found)


def show(found: dict[str, Any]) -> None:
    """Print one line for each problem."""
    for name, one in found.items():
        tuned, studied = one["tune"], one.get("study")
        if studied is None:
            print(f"{name}: {tuned['seconds']:.0f} s: {tuned['command']}")
            continue
        ratio = "unknown" if studied["ratio"] is None else f"{studied['ratio']:.2f} times the best"
        own, best = (
            "never" if each is None else f"{each:.3g} s"
            for each in (studied["choice_seconds"], studied["best_seconds"])
        )
        print(
            f"{name} ({one['target']}): tune {tuned['seconds']:.0f} s, {studied['choice']}: {own}; study "
            f"{studied['seconds']:.0f} s, {studied['tried']} of {studied['candidates']} candidates, best "
            f"{studied['best']}: {best}; {ratio}"
        )


if __name__ == "__main__":
    main()
