"""`paceline run`: start a program with its own training loop (`paceline.session`) on ranks."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from paceline.commands import add_hosts, add_simulation, check_ranks, parse_path, read_hosts
from paceline.config import SESSION, Program, Safety
from paceline.errors import UsageError
from paceline.simulate.options import PLACES, Options, options_of, pick_options

EPILOG = """
examples:
  paceline run -n 4 --strategy sync program.py --its-own --arguments
  paceline run -n 4 --strategy local-sgd:every=16 program.py
  paceline run --hosts a:8,b:8 --strategy gossip program.py
  paceline run -n 4 --until 'perplexity<=9' program.py           # end after the first epoch that reaches it
  paceline run --on sim -n 64 --network 10gbe program.py         # 64 simulated ranks in this process

The program says what it trains: see `paceline.session`. Settings given here have precedence over those in the program.
With --seed N, {seed} in the program's own arguments stands for N: paceline run --seed 3 program.py --seed {seed}
exit status: that of the program; 2 bad input, 75 a rank stalled (--on-stall abort), 128 + N a rank was ended by signal N
"""
# The settings of a session that can be given here.
SETTINGS = ("strategy", "runs", "name", "seed", "threads", "trace", "quiet", "stall_timeout", "on_stall")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = EPILOG
    parser.usage = "paceline run [options] PROGRAM.py [arguments of the program]"
    parser.add_argument("-n", "--ranks", type=int, metavar="P", help="start P ranks (default: 1)")
    parser.add_argument(
        "--strategy",
        metavar="STRATEGY",
        help="how the ranks train together, or module:class (default: the program's own, or sync)",
    )
    add_hosts(parser)
    parser.add_argument(
        "--on", choices=PLACES, default="mpi",
        help="run on real ranks, or on simulated ones in this process (default: mpi)",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, metavar="N", help="threads per rank (default: cores // ranks)")
    parser.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="seed of the order of the samples (default: the program's own, or 0)",
    )
    parser.add_argument(
        "--until", metavar="TARGET",
        help="end after the first epoch whose metric, as given to ranks.validate, reaches this: perplexity<=9",
    )  # fmt: skip
    parser.add_argument(
        "--runs",
        type=parse_path,
        metavar="DIR",
        help="folder in which runs are recorded (default: the program's own, or runs)",
    )
    parser.add_argument(
        "--name", metavar="NAME", help="name of this run's folder (default: time, strategy, ranks and seed)"
    )
    parser.add_argument(
        "--trace", action="store_true", default=None, help="also record every MPI call, for `paceline trace`"
    )
    parser.add_argument("--quiet", action="store_true", default=None, help="show no progress")
    parser.add_argument(
        "--stall-timeout", metavar="TIME",
        help="report a rank that makes no progress for this long, beyond the longest step so far (default: 60s)",
    )  # fmt: skip
    parser.add_argument(
        "--on-stall", choices=("warn", "abort"),
        help="what to do about such a rank: only report it, or end the run with status 75 (default: warn)",
    )  # fmt: skip
    parser.add_argument("--no-bind", action="store_true", help="do not reserve cores for the ranks")
    add_simulation(
        parser.add_argument_group("options for --on sim"), but=("compute", "compute_threads", "recalibrate")
    )
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="PROGRAM.py", help="the program and its own arguments"
    )


def main(args: argparse.Namespace) -> int:
    """Run the program on all ranks; return its exit status."""
    from paceline import launch
    from paceline.compare.metric import Goal
    from paceline.record import script_digest, withdraw
    from paceline.record.writing import check_name
    from paceline.simulate.training import check_program

    words = args.program[1:] if args.program[:1] == ["--"] else args.program
    if not words:
        raise UsageError("a program is needed; write: paceline run -n 4 PROGRAM.py")
    program, arguments = Path(words[0]), words[1:]
    options = options_of(args.on, pick_options(vars(args)))
    if launch.world() is not None:
        raise UsageError("the ranks are already started: run the program itself, without `paceline run`")
    hosts = read_hosts(args, simulated=options is not None)
    check_ranks(args)
    ranks = args.ranks or 1
    for name, least in (("threads", 1), ("seed", 0)):
        if (value := getattr(args, name)) is not None and value < least:
            raise UsageError(f"{name} must be at least {least}; got {value}")
    stalls = {
        name: value for name in ("stall_timeout", "on_stall") if (value := getattr(args, name)) is not None
    }
    if stalls and options is not None:
        raise UsageError(
            f"--{next(iter(stalls)).replace('_', '-')} is for real ranks: simulated ones do not stall"
        )
    safety = Safety.of_program(**stalls)
    goal = None if args.until is None else Goal.parse(args.until)
    if args.name is not None:
        check_name(args.name)
    sys.path.insert(0, str(program.absolute().parent))
    check_program(program, ranks, args.strategy, options)
    given: dict[str, Any] = {name: value for name in SETTINGS if (value := getattr(args, name)) is not None}
    given["program"] = {
        "file": str(program), "arguments": arguments, "strategy": args.strategy, "code": script_digest(program),
    }  # fmt: skip
    if args.runs is not None:
        given["runs"] = str(args.runs)
    if goal is not None:
        given["program"]["until"] = goal.text
        given["until"] = (goal.metric.name, goal.metric.higher, goal.value)
    if args.seed is not None:
        arguments = Program(file=str(program), arguments=tuple(arguments)).words(args.seed)[1:]
    if options is not None:
        return _simulate(program, arguments, ranks, options, given, quiet=args.quiet)
    outcomes: list[Any] = []
    status = launch.run(
        ranks,
        [sys.executable, str(program), *arguments],
        threads=args.threads,
        environment={SESSION: json.dumps(given)},
        bind=not args.no_bind,
        hosts=launch.check_hosts(hosts, ranks=ranks) if hosts else (),
        report=outcomes.append,
        stall_timeout=safety.patience,
        on_stall=safety.on_stall,
    )
    if outcomes[0].run is not None and outcomes[0].failed:
        withdraw(outcomes[0].run)
    if outcomes[0].run is not None and not args.quiet:
        print(f"run: {outcomes[0].run}", file=sys.stderr)
    if outcomes[0].run is None and not status:
        _explain_missing_record(program, quiet=args.quiet)
    return status


def _explain_missing_record(program: Path, *, quiet: bool) -> None:
    """Say why a program left no record, unless it decided that itself."""
    from paceline.study.file import check_session

    try:
        check_session(program)
    except UsageError:
        if not quiet:
            print(
                f"no run was recorded: {program} does not use paceline.session, so no strategy trained it",
                file=sys.stderr,
            )


def _simulate(
    program: Path, arguments: list[str], ranks: int, options: Options, given: dict[str, Any], *, quiet: bool
) -> int:
    """Run the program on simulated ranks, all in this process."""
    import traceback

    from paceline import launch
    from paceline.simulate.training import simulate_program
    from paceline.vmpi import Script
    from paceline.vmpi.errors import MPIError, RankFailed, SimulationError

    threads = given.get("threads") or 1
    launch.set_thread_variables(1, threads)
    os.environ[SESSION] = json.dumps(given)
    script = Script(program, None, arguments)
    try:
        with script.imitate_python():
            done = simulate_program(script, ranks, options, seed=given.get("seed", 0), threads=threads)
    except SimulationError as error:
        if isinstance(error, RankFailed):
            if isinstance(error.error, UsageError):
                raise error.error from None
            if isinstance(error.error, SystemExit):
                return error.error.code if isinstance(error.error.code, int) else 1
            if not isinstance(error.error, SimulationError | MPIError):
                traceback.print_exception(error.error)
        print(f"paceline run: {error}", file=sys.stderr)
        return 1
    finally:
        del os.environ[SESSION]
    if not quiet:
        where = "" if done.folder is None else f"run: {done.folder}; "
        print(f"{where}{done.outcome.seconds:.3g} virtual seconds on {ranks} ranks", file=sys.stderr)
    if done.folder is None:
        _explain_missing_record(program, quiet=quiet)
    return 0
