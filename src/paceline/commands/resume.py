"""`paceline resume`: continue a run that was stopped or killed, from its last checkpoint."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import fields
from pathlib import Path

from paceline.commands import add_hosts, add_safety, check_ranks, import_from_here, parse_path, read_hosts
from paceline.commands.train import run_rank, simulate_job, start_ranks
from paceline.config import Safety
from paceline.names import as_arguments
from paceline.simulate.options import options_of, pick_options

EXAMPLES = """
examples:
  paceline resume runs/20260101-120000-sync-n4-s0
  paceline resume runs/mine -n 8               on another number of ranks
  paceline resume runs/mine --epochs 5         five epochs more than it was asked for

The settings are those of the run, except for "checkpoints and failures": give these again. On the same number of ranks,
strategies in step continue as if they had never been stopped, bit for bit.
exit status: as for `paceline train`
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = EXAMPLES
    parser.usage = "paceline resume RUN [options]"
    parser.add_argument("run", metavar="RUN", type=parse_path, help="the folder of the run")
    parser.add_argument("-n", "--ranks", type=int, metavar="Q", help="number of ranks (default: as before)")
    add_hosts(parser)
    parser.add_argument(
        "--epochs", type=int, default=0, metavar="N", help="train N epochs more than the run was asked for"
    )
    parser.add_argument(
        "--trust", action="store_true", help="run the code (module:attribute) that the run names"
    )
    parser.add_argument("--no-bind", action="store_true", help="do not reserve cores for the ranks")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.add_argument(
        "--json", action="store_true", help="print the results as one JSON object and nothing else"
    )
    add_safety(parser.add_argument_group("checkpoints and failures"))
    parser.add_argument("--expect-ranks", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--because", help=argparse.SUPPRESS)
    parser.add_argument("--terminal", type=int, help=argparse.SUPPRESS)


def main(args: argparse.Namespace) -> int:
    """Go on with the run; print the results on rank 0."""
    from paceline import launch
    from paceline.errors import UsageError
    from paceline.record import Run, check_idle
    from paceline.record.checkpoint import find_latest
    from paceline.training.job import Job
    from paceline.training.resuming import is_traced, settings_of

    import_from_here()
    if args.epochs < 0:
        raise UsageError(f"epochs must be at least 0; got {args.epochs}")
    hosts = read_hosts(args, simulated=False)
    check_ranks(args)
    here = launch.world()
    wanted = here.size if here is not None else args.ranks
    folder = Path(os.path.realpath(args.run))
    run = Run(folder)
    if not args.because and args.expect_ranks is None:
        check_idle(folder)
    config, ranks = settings_of(folder, more_epochs=args.epochs, ranks=wanted, trust=args.trust)
    safety = Safety(**{setting.name: getattr(args, setting.name) for setting in fields(Safety)})
    job = Job(
        config=config, runs=folder.parent, run_name=folder.name, safety=safety, resume=folder,
        trace=is_traced(folder), because=args.because or "",
    )  # fmt: skip
    if (
        args.expect_ranks is None
        and (here is None or here.rank == 0)
        and find_latest(folder, whole=False) is None
    ):
        raise UsageError(f"{args.run} has no complete checkpoint: it cannot be resumed; train it again")
    asked = run.config.get("asked") or {}
    if asked.get("on") == "sim":
        if here is not None:
            raise UsageError("simulated ranks are all in one process: run it without mpiexec or srun")
        read_hosts(args, simulated=True)
        options = options_of("sim", pick_options(asked))
        assert options is not None
        return simulate_job(args, job, ranks, options)
    if here is None and (ranks > 1 or hosts):
        job.check_early(ranks, len(hosts) or launch.allocated_nodes())
        command = [sys.executable, "-m", "paceline", "resume", str(folder), f"--expect-ranks={ranks}"]
        command += [f"--epochs={args.epochs}", *as_arguments(safety)]
        command += [f"--{flag}" for flag in ("quiet", "json", "trust") if getattr(args, flag)]
        return start_ranks(args, job, ranks, command, hosts)
    launch.set_thread_variables(here.local_size if here is not None else 1, config.threads)
    launch.take_cores()
    return run_rank(args, job, here)
