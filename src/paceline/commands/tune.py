"""`paceline tune`: find what reaches a target first on this machine, within a budget of time."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.commands import (
    Given,
    add_settings,
    handle_signals,
    import_from_here,
    interrupt_on_signals,
    parse_path,
)
from paceline.config import Config, Program, parse_duration
from paceline.errors import UsageError
from paceline.simulate.options import Options

if TYPE_CHECKING:
    from paceline.compare.metric import Goal
    from paceline.study.folder import Folder
    from paceline.tune.forecast import Forecast
    from paceline.tune.running import Runs
    from paceline.tune.search import Search
    from paceline.tune.space import Choices, Space

EXAMPLES = """
examples:
  paceline tune --data mnist --model cnn --target 98% --budget 10m
  paceline tune --data digits --model mlp:64 --target 90% --budget 60s
  paceline tune --data mnist --target 97% --budget 5m --strategy sync       # ranks, threads, batch and learning rate only
  paceline tune --data mnist --target 97% --strategy serial,sync,local-sgd:every=16 -n 1,4 --batch 64,256
  paceline tune --data mnist --target 97% --for 64 --network 10gbe          # a machine that you do not have, simulated
  paceline tune --target 'perplexity<=9' --budget 30m program.py --its-own --arguments
  paceline tune --target 'perplexity<=9' --batch 16,32 program.py --batch {batch} --seed {seed}

Searched are the strategy and its options, ranks, threads, the batch and the learning rate; of those that are given here,
only the values given, separated by commas. A program has its own batch and learning rate, unless its arguments have {batch}
or {lr} in their place; {seed} stands for the seed, which differs between repetitions. The last line is the command to
copy. Runs are ordinary records in DIR: the same command again continues from them.
Ctrl-C ends the search, and what has been found so far is the answer.
exit status: 0 an answer, also if nothing reached the target, which it says; 2 bad input; 130, 143, 138 interrupted by
             Ctrl-C, SIGTERM, SIGUSR1, after the answer
"""
# Settings that a search does not take: they tie the batch to the ranks, or a run to another.
NOT_HERE = ("batch_per_rank", "lr_scaling", "replay", "reproducible")
# Settings that are searched: of each, the values to choose from may be given.
SEARCHED = ("strategy", "batch", "lr", "threads")
LEAST_BUDGET = 1.0
# In less, nothing is left for runs once the costs of the work have been measured.
FORECAST_FROM = 40.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = EXAMPLES
    parser.usage = "paceline tune --target VALUE [options] [PROGRAM.py [arguments of the program]]"
    what = parser.add_argument_group("what to find")
    what.add_argument(
        "--target", metavar="VALUE",
        help="what to reach on the validation samples: 98%%, accuracy>=0.98, loss<=0.3",
    )  # fmt: skip
    what.add_argument(
        "--budget", default="10m", metavar="TIME", help="time for the search: 60s, 10m, 1h (default: 10m)"
    )
    groups = add_settings(parser, but=(*NOT_HERE, *SEARCHED, "epochs"))
    how, where = groups["how to train"], groups["where to run"]
    how.add_argument(
        "--epochs", action=Given, type=int, default=Config.epochs, metavar="N",
        help="maximum number of passes over the training data in a run (default: as many as the budget allows, or "
        f"{Config.epochs} if the schedule depends on them)",
    )  # fmt: skip
    how.add_argument(
        "--strategy", type=_strategies, default=(), metavar="LIST", help="search only these strategies"
    )
    how.add_argument("--batch", type=_integers, default=(), metavar="LIST", help="search only these batches")
    how.add_argument(
        "--lr", type=_numbers, default=(), metavar="LIST", help="search only these learning rates"
    )
    where.add_argument(
        "-n", "--ranks", type=_integers, default=(), metavar="LIST",
        help="search only these numbers of ranks (default: up to the cores)",
    )  # fmt: skip
    where.add_argument(
        "--threads",
        type=_integers,
        default=(),
        metavar="LIST",
        help="search only these numbers of threads per rank",
    )
    where.add_argument(
        "--for", dest="for_ranks", type=int, metavar="P",
        help="search for a machine with P cores, on simulated ranks, instead of this one",
    )  # fmt: skip
    where.add_argument(
        "--network", metavar="NETWORK",
        help="with --for: the network between its ranks, such as 10gbe:ranks-per-node=16 (default: one machine)",
    )  # fmt: skip
    parser.add_argument(
        "--runs",
        type=parse_path,
        metavar="DIR",
        help="folder for the runs (default: runs/tune-DATA-MODEL or, with --for, runs/tune-DATA-MODEL-for-P-NETWORK)",
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="PROGRAM.py",
        help="a program with its own training loop, as for `paceline run`, instead of --data and --model",
    )  # fmt: skip


def _strategies(text: str) -> tuple[str, ...]:
    """Return the strategies in a list; a comma may also stand between the options of one.

    >>> _strategies("serial,parameter-server:masters=2,bound=4,sync")
    ('serial', 'parameter-server:masters=2,bound=4', 'sync')
    """
    found: list[str] = []
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise argparse.ArgumentTypeError(f"must be strategies such as serial,sync; got {text!r}")
    for word in words:
        if found and re.match(r"[\w-]+=", word):
            found[-1] += f",{word}"
        else:
            found.append(word)
    return tuple(dict.fromkeys(found))


def _integers(text: str) -> tuple[int, ...]:
    return _values(text, int, "whole numbers such as 1,2,4")


def _numbers(text: str) -> tuple[float, ...]:
    return _values(text, float, "numbers such as 0.1,0.2")


def _values(text: str, kind: Callable[[str], Any], what: str) -> tuple[Any, ...]:
    try:
        return tuple(dict.fromkeys(kind(word) for word in text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be {what}; got {text!r}") from None


def main(args: argparse.Namespace) -> int:
    """Search; print what was found and, in the last line, the command to copy."""
    began = time.monotonic()
    made: list[Search] = []
    with interrupt_on_signals() as signals:
        try:
            _search(args, began, made, signals)
        except KeyboardInterrupt:
            if made:
                made[0].interrupted = True
            else:
                print("paceline tune: interrupted before the first run", file=sys.stderr)
        if made:
            with handle_signals(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
                _print_answer(made[0], args.budget)  # as a whole
    if made and not made[0].interrupted:
        return 0
    return 128 + signals[0] if signals else 130


def _search(args: argparse.Namespace, began: float, made: list[Search], signals: list[int]) -> None:
    """Make a search, put it into `made` and let it run; `signals` gets a signal that interrupts it before that."""
    with ExitStack() as held:
        with _note_interrupts(signals) as noted:
            from paceline import launch

            if launch.world() is not None:
                raise UsageError("tune starts its runs itself: run it without mpiexec or srun")
            import_from_here()
            folder, make = prepare(args, began)
            search, runs = make(held.enter_context(folder.lock()))
            made.append(search)
        if noted:
            search.interrupt()
            return
        search.run()
        if search.times():
            runs.drop_checkpoints()


@contextmanager
def _note_interrupts(signals: list[int]) -> Iterator[list[int]]:
    """Note the first Ctrl-C, SIGTERM or SIGUSR1 inside the block; a second one raises KeyboardInterrupt.

    An exception that a signal raises while modules are imported may be lost, and an answer needs the candidates.
    Yield a list that has the first signal if it came; if it is not Ctrl-C, `signals` gets it, too.
    """
    noted: list[int] = []

    def note(number: int, frame: object) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)
        with suppress(OSError):  # not print, which may have been interrupted while it wrote
            os.write(2, b"paceline tune: interrupted; the answer follows (Ctrl-C again ends at once)\n")
        if number != signal.SIGINT:
            signals.append(number)

    with handle_signals(note, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        yield noted


def _print_answer(search: Search, budget: str) -> None:
    """Print what was tried, what was left out, and the answer."""
    from paceline.tune.answer import conclude, list_left_out, results

    answer = conclude(search)
    print(_heading(search, budget))
    for text in (results(search), "\n".join(f"left out: {line}" for line in list_left_out(search))):
        if text:
            print(f"\n{text}")
    print(f"\n{answer.found}\n{answer.sure}\n{answer.second}\n{answer.command}", flush=True)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is tuned, a network on data or a program, and its candidates."""

    space: Space
    title: str
    slug: str
    """The problem in the name of the folder for its runs."""
    samples: int = 0
    """Training samples of an epoch; those of a program are unknown."""
    forecast: Forecast | None = None


def prepare(
    args: argparse.Namespace, began: float | None = None
) -> tuple[Folder, Callable[[int], tuple[Search, Runs]]]:
    """Check all input; return the folder of the runs, and a function that makes the search and its runs when it is locked.

    `began`: when the budget began, by `time.monotonic()`; by default when the search is made.
    """
    from paceline.study.folder import Folder
    from paceline.study.run import Trains
    from paceline.text import count
    from paceline.tune.running import RunProgress, Runs
    from paceline.tune.search import MOST_EPOCHS, Search

    goal, budget = _goal(args), _budget(args)
    given = set(getattr(args, "given", ()))
    choices, config = _choices(args), _config(args)
    options, cores = _machine(args)
    program = _program(args, given, goal)
    if program is not None:
        problem = _problem_of_program(program, config, choices, options, cores)
    else:
        problem = _problem_of_data(goal, config, choices, options, cores)
    space, slug = problem.space, problem.slug
    if options is not None:
        slug += f"-for-{cores}" + (f"-{_slug(args.network)}" if args.network else "")
    folder = Folder(args.runs or Path("runs") / f"tune-{slug}")
    folder.check()
    tell = _tell(began, quiet=args.quiet)
    limited = "epochs" in given or not space.grows
    epochs = 1 if program is not None else config.epochs if limited else MOST_EPOCHS
    modules = Path() if program is None else Path(program.file).absolute().parent

    def make(lock: int) -> tuple[Search, Runs]:
        runs = Runs(
            folder=folder, space=space, metric=goal.metric, samples=problem.samples, tell=tell,
            start=Trains(runs=folder.path, lock=lock, modules=modules, extendable=space.grows),
            progress=RunProgress(budget) if program is not None and options is None else None,
        )  # fmt: skip
        about: dict[str, Any] = {
            "title": f"tune: {problem.title}",
            "target": goal.text,
            "search": {"draws": config.draws},
        }
        if known := runs.open(about):
            tell(f"continuing from {count(known, 'run')} in {folder.path}")
        if program is None and not space.grows:
            tell(
                f"all runs have {count(epochs, 'epoch')} (--epochs), because the schedule {config.schedule} depends on "
                "the length of a run"
            )
        search = Search(
            space=space,
            goal=goal,
            bench=runs,
            budget=budget,
            began=began,
            speeds=problem.forecast if budget >= FORECAST_FROM or options is not None else None,
            most_epochs=epochs,
            tell=tell,
        )
        return search, runs

    return folder, make


def _goal(args: argparse.Namespace) -> Goal:
    from paceline.compare.metric import Goal

    if args.target is None:
        after = any(word.partition("=")[0] == "--target" for word in args.program)
        where = (
            f" before the program: paceline tune --target … {args.program[0]}" if after else ": --target 98%"
        )
        raise UsageError(f"give a target{where}")
    return Goal.parse(args.target)


def _budget(args: argparse.Namespace) -> float:
    budget = parse_duration(args.budget)
    if budget is None or budget < LEAST_BUDGET:
        raise UsageError(
            f"budget must be a time of at least 1 s, such as 60s, 10m or 1h; got {args.budget!r}"
        )
    return budget


def _config(args: argparse.Namespace) -> Config:
    """Return the settings that all runs share and, of those that are searched, the first values given."""
    config = Config(
        **{
            each.name: getattr(args, each.name)
            for each in fields(Config)
            if each.name not in (*NOT_HERE, *SEARCHED)
        },
        **{name: values[0] for name in SEARCHED if (values := getattr(args, name))},
    )
    if config.epochs < 1:
        raise UsageError(f"epochs must be at least 1 for a search; got {config.epochs}")
    return config


def _choices(args: argparse.Namespace) -> Choices:
    """Return what to choose from; raise a UsageError for a value that no run can have."""
    from paceline.tune.space import Choices

    for name in SEARCHED:
        for value in getattr(args, name):
            Config(**{name: value})
    return Choices(
        strategies=args.strategy, ranks=args.ranks, threads=args.threads, batches=args.batch, rates=args.lr
    )


def _program(args: argparse.Namespace, given: set[str], goal: Goal) -> Program | None:
    """Return the program to tune, whose runs end at the target; raise a UsageError for settings that it has itself."""
    from paceline.study.cells import PROGRAM_SETTINGS
    from paceline.study.file import check_session
    from paceline.vmpi.program import compile_script

    words = args.program[1:] if args.program[:1] == ["--"] else args.program
    if not words:
        return None
    if own := sorted(given - set(PROGRAM_SETTINGS)):
        raise UsageError(f"a program has its own {', '.join(own)}: leave out --{own[0].replace('_', '-')}")
    compile_script(Path(words[0]))
    check_session(Path(words[0]))
    program = Program(file=words[0], arguments=tuple(words[1:]), until=goal.text)
    program.check_placeholders(("seed", "batch", "lr"))
    for name in ("batch", "lr"):
        used = any(f"{{{name}}}" in word for word in program.arguments)
        if used and not getattr(args, name):
            raise UsageError(
                f"{{{name}}} needs the values to choose from: give --{name}=A,B before {program.file}"
            )
        if getattr(args, name) and not used:
            raise UsageError(
                f"a program has its own {name}: leave out --{name}, or write {{{name}}} in the program's arguments where "
                "it belongs"
            )
    return program


def _nodes(options: Options | None, cores: int) -> int:
    """Return the number of nodes of the machine to search for."""
    from paceline.machine import load_network

    return 1 if options is None else load_network(options.network).nodes(cores)


def _machine(args: argparse.Namespace) -> tuple[Options | None, int]:
    """Return the options of a simulated machine, and the cores of the machine to search for."""
    from paceline import launch
    from paceline.machine import load_network

    if args.for_ranks is None and args.network is not None:
        raise UsageError("network is for a simulated machine: give --for P with it")
    if args.for_ranks is not None and args.for_ranks < 1:
        raise UsageError(f"for must be a number of cores, at least 1; got {args.for_ranks}")
    cores = args.for_ranks or launch.allocated_cores()
    here = "this machine (--for P simulates another one)" if args.for_ranks is None else "the machine"
    for name, numbers in (("ranks", args.ranks), ("threads", args.threads if args.for_ranks is None else ())):
        for number in numbers:
            if not 1 <= number <= cores:
                raise UsageError(f"{name} must be from 1 to {cores}, the cores of {here}; got {number}")
    if args.for_ranks is None:
        return None, cores
    options = Options() if args.network is None else Options(network=args.network)
    load_network(options.network)
    return options, args.for_ranks


def _problem_of_program(
    program: Program, config: Config, choices: Choices, options: Options | None, cores: int
) -> Problem:
    from paceline.tune.space import USUAL_RATE, make_space

    space = make_space(
        config, cores=cores, samples=0, rate=USUAL_RATE, choices=choices, options=options,
        nodes=_nodes(options, cores), program=program,
    )  # fmt: skip
    title = shlex.join([program.file, *program.arguments])
    return Problem(space=_check_space(space), title=title, slug=_slug(Path(program.file).stem))


def _problem_of_data(
    goal: Goal, config: Config, choices: Choices, options: Options | None, cores: int
) -> Problem:
    """Load the data and build the model, which is not trained here."""
    from paceline import launch
    from paceline.training.job import Job, build_component
    from paceline.tune.forecast import Forecast
    from paceline.tune.space import USUAL_BATCH, USUAL_RATE, make_space
    from paceline.updates import choose_rate

    with launch.limit_threads(1):
        job = Job(config=replace(config, strategy="serial"), runs=None)
        data, _ = job.check(1)
        job.check_memory(data, job.build_strategy(), 1)
        model = job.build(data)
        usual = float(getattr(model, "default_rate", USUAL_RATE))
        rate = config.lr or choose_rate(build_component("updates", config.update), usual)
        for strategy in choices.strategies:
            Job(config=replace(config, strategy=strategy), data=data, runs=None).build_strategy()
        space = make_space(
            config, cores=cores, samples=len(data.train), rate=rate, choices=choices, options=options,
            nodes=_nodes(options, cores), data=data,
        )  # fmt: skip
        _check_space(space)
    _check_goal(goal, data)
    batch = min(4 * USUAL_BATCH, max(one.batch or 1 for one in space.candidates))
    return Problem(
        space=space,
        title=f"{config.data}, {config.model}",
        slug=f"{_slug(config.data)}-{_slug(config.model)}",
        samples=len(data.train),
        forecast=Forecast(base=config, data=data, model=model, batch=batch, options=options),
    )


def _check_space(space: Space) -> Space:
    """Return the candidates, unless there are none."""
    if not space.candidates:
        many = (
            "serial has one rank, other strategies have at least two, and ranks times threads must be at most "
            f"{space.cores}, the number of cores"
        )
        why = next(iter(space.refused.values()), many)
        raise UsageError(f"there is nothing to search: {why}")
    return space


def _check_goal(goal: Goal, data: Any) -> None:
    """Refuse a target that no run of this problem can have."""
    if goal.metric.name not in ("accuracy", "loss"):
        raise UsageError(f"a target must be an accuracy or a loss; runs have no {goal.metric.name}")
    if goal.metric.name == "loss" and goal.value <= 0:
        raise UsageError(f"a target loss must be above 0: no run can reach {goal}")
    if goal.metric.name == "accuracy" and not data.classes:
        raise UsageError(
            f"{data.name} has no classes, so there is no accuracy: give a target such as loss<=0.3"
        )


def _slug(text: str) -> str:
    """Return a text as a part of a folder's name.

    >>> _slug("mlp:128,64"), _slug("../my data.csv")
    ('mlp-128-64', 'my-data.csv')
    """
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")[-60:] or "own"


def _tell(began: float | None, *, quiet: bool) -> Any:
    """Return a function that writes a line of progress, with the time."""
    from paceline.text import clock_time

    start = time.monotonic() if began is None else began

    def tell(line: str) -> None:
        if not quiet:
            print(f"{clock_time(time.monotonic() - start):>7}  {line}", file=sys.stderr, flush=True)

    return tell


def _heading(search: Search, budget: str) -> str:
    from paceline.text import count

    space, base = search.space, search.space.base
    place = "this machine" if space.options is None else f"a simulated machine ({space.options.network})"
    program = space.program
    what = shlex.join([base.data, base.model] if program is None else [program.file, *program.arguments])
    return f"{what}: {search.goal} on {place} with {count(space.cores, 'core')}, within {budget}"
