"""`paceline simulate run`: run a program written for mpi4py on simulated ranks."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import UsageError

if TYPE_CHECKING:
    from paceline.vmpi import Outcome, Script
    from paceline.vmpi.errors import SimulationError

EPILOG = """
examples:
  paceline simulate run program.py -n 64 --network 10gbe
  paceline simulate run program.py -n 8 --seeds 200               # try 200 orders of simultaneous events
  paceline simulate run program.py -n 4 --rendezvous              # does it rely on messages being buffered?
  paceline simulate run ring.py --function ring -n 1024           # call ring(comm) instead of running the whole file
  paceline simulate run program.py -n 4 -- --epochs 3             # after -- come the program's own arguments

Every rank executes the file as __main__ with its own global names; imported modules are shared by all ranks. The program's
own computing takes no virtual time, except for what it declares with MPI.COMM_WORLD.Compute(seconds).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = EPILOG
    parser.usage = "paceline simulate run FILE.py -n P [options] [-- arguments of the program]"
    _add_options(parser)
    parser.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        metavar="FILE.py",
        help="the program, followed by its own arguments",
    )


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--ranks", type=int, metavar="P", help="number of ranks")
    parser.add_argument(
        "--function",
        metavar="NAME",
        help="call this function of the file with the communicator instead of running the file",
    )
    parser.add_argument(
        "--network",
        metavar="NETWORK",
        help="a network by name, or the file of a calibrated machine (default: loopback)",
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="selects one of the possible orders of events (default: 0)"
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="try N seeds and stop at the first that fails")
    parser.add_argument(
        "--faults", metavar="FILE", help="a script of faults, such as fail_at(rank=3, time=0.5)"
    )
    parser.add_argument(
        "--rendezvous",
        action="store_true",
        default=None,
        help="never buffer a message: a send waits for its receive",
    )
    parser.add_argument(
        "--no-strict", dest="lenient", action="store_true", default=None,
        help="tolerate what a real MPI may tolerate: buffers changed too early, messages never received",
    )  # fmt: skip


def main(args: argparse.Namespace) -> int:
    """Run the program; print what it cost to stderr."""
    file, arguments = _program(args)
    ranks, first = args.ranks, args.seed or 0
    count = 1 if args.seeds is None else args.seeds
    if ranks is None or ranks < 1:
        raise UsageError(
            "-n must give the number of ranks, at least 1; got " + ("none" if ranks is None else str(ranks))
        )
    if first < 0 or count < 1:
        raise UsageError(f"seed must be at least 0 and seeds at least 1; got {first} and {count}")
    from paceline.machine import load_network
    from paceline.vmpi import Script
    from paceline.vmpi.faults import load_faults

    options = {
        "ranks": ranks,
        "network": load_network(args.network or "loopback"),
        "faults": [] if args.faults is None else load_faults(args.faults),
        "rendezvous": bool(args.rendezvous),
        "strict": not args.lenient,
    }
    program = Script(file, args.function, arguments)
    with program.running():
        return _run(program, range(first, first + count), options)


def _program(args: argparse.Namespace) -> tuple[Path, list[str]]:
    """Return the file and its own arguments; options of this command may also follow the file."""
    words = [word for place, word in enumerate(args.program) if word != "--" or place > 0]
    if not words:
        raise UsageError("a program is needed; write: paceline simulate run FILE.py -n 4")
    file, rest = Path(words[0]), words[1:]
    cut = rest.index("--") if "--" in rest else len(rest)
    parser = argparse.ArgumentParser(
        prog="paceline simulate run", add_help=False, allow_abbrev=False, exit_on_error=False
    )
    _add_options(parser)
    try:
        known, own = parser.parse_known_args(rest[:cut])
    except argparse.ArgumentError as error:
        raise UsageError(str(error)) from None
    for name, value in vars(known).items():
        if value == []:  # argparse drops the value of --name=--
            raise UsageError(f"--{name} needs a value; got --")
        if value is not None:
            setattr(args, name, value)
    return file, [*own, *rest[cut + 1 :]]


def _run(program: Script, seeds: range, options: dict[str, Any]) -> int:
    from paceline import vmpi
    from paceline.vmpi.errors import RankFailed, SimulationError

    outcomes = []
    for seed in seeds:
        # What the ranks print is shown for the first seed only.
        quiet = contextlib.nullcontext() if seed == seeds.start else _nothing_printed()
        try:
            with quiet:
                outcomes.append(vmpi.run(program, seed=seed, **options))
        except SimulationError as error:
            if isinstance(error, RankFailed):
                if isinstance(error.error, UsageError):
                    raise error.error from None
                if isinstance(error.error, SystemExit):
                    return _exit_status(error)
            sys.stdout.flush()
            print(_describe_error(error, program, options["ranks"]), file=sys.stderr)
            if len(seeds) > 1:
                print(
                    f"seed {seed} of {seeds.start} to {seeds.stop - 1}; --seed {seed} repeats it",
                    file=sys.stderr,
                )
            return 1
    sys.stdout.flush()
    print(_cost(outcomes, options["ranks"]), file=sys.stderr)
    return 0


def _describe_error(error: SimulationError, program: Script, ranks: int) -> str:
    """Return what went wrong; for an exception of the program, with its traceback inside the program."""
    from paceline.vmpi.errors import RankFailed, SimulationError

    if not isinstance(error, RankFailed) or isinstance(error.error, SimulationError):
        return str(error)
    trace = error.error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != str(program.file):
        trace = trace.tb_next
    lines = traceback.format_exception(type(error.error), error.error, trace)
    return "".join(lines) + f"rank {error.rank} of {ranks} failed"


def _exit_status(error: Any) -> int:
    """Return the exit status of a rank that ended the program; the others end with it, since they would hang."""
    from paceline.vmpi.errors import Aborted

    code = error.error.code
    what = error.error if isinstance(error.error, Aborted) else f"sys.exit({code!r})"
    print(f"rank {error.rank} called {what}", file=sys.stderr)
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1


def _cost(outcomes: list[Outcome], ranks: int) -> str:
    from paceline.text import amount, count, duration

    seconds = sorted(outcome.seconds for outcome in outcomes)
    took = duration(seconds[0])
    if len(outcomes) > 1:
        most = duration(seconds[-1])
        took += "" if most == took else f" to {most}"
        took += f" in {len(outcomes):,} orders of events"
    last = outcomes[-1]
    killed = f", {len(last.killed)} killed" if last.killed else ""
    sent = [f"{count(last.messages, 'message')}, {amount(last.bytes)}"] if last.messages else []
    if last.collectives:
        sent.append(count(last.collectives, "collective"))
    if last.one_sided:
        sent.append(f"{last.one_sided:,} one-sided")
    return f"{count(ranks, 'rank')}{killed}: {took}, simulated; {'; '.join(sent) or 'no messages'}"


@contextlib.contextmanager
def _nothing_printed() -> Any:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # noqa: PTH123
        yield
