"""`paceline train`: train on ranks that it starts (`-n 4`), or on the ranks of the job that it was started in."""

from __future__ import annotations

import argparse
import itertools
import logging
import shlex
import shutil
import sys
import traceback
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.commands import (
    add_hosts,
    add_safety,
    add_settings,
    add_simulation,
    check_ranks,
    import_from_here,
    parse_path,
    read_hosts,
)
from paceline.config import Config, Safety
from paceline.names import as_arguments
from paceline.simulate.options import PLACES, Options, options_of, pick_options

if TYPE_CHECKING:
    from paceline.launch import Host, JobOutcome
    from paceline.training.job import Job
    from paceline.training.rank import Fitted

# The exit status of a run that was stopped because it had diverged; its record is complete.
DIVERGED = 3

EXAMPLES = """
examples:
  paceline train --data mnist --model mlp:128,64 --strategy sync:allreduce=shared-memory -n 4 --epochs 5
  paceline train --data pictures/ --model cnn --strategy serial
  paceline train --model my_module:build_net --data my_arrays.npz -n 8
  paceline train --data mnist --hosts a:8,b:8
  mpiexec -n 4 python -m paceline train --strategy sync
  paceline train --strategy sync --on sim -n 256 --network 10gbe --slow 3:4x

`paceline list` shows the data sets, models, strategies, updates and schedules with their options.
Ctrl-C, SIGTERM and SIGUSR1 save a checkpoint and stop the run; a second one ends it at once.
exit status: 0 success, 1 failure or nothing could be saved, 2 bad input, 3 training diverged (the record is complete),
             130, 143, 138 stopped by Ctrl-C, SIGTERM, SIGUSR1; 128 + N a rank was ended by signal N
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = EXAMPLES
    parser.usage = "paceline train [options]"
    where = add_settings(parser)["where to run"]
    where.add_argument(
        "-n", "--ranks", type=int, metavar="P",
        help="start P ranks on this machine or in this Slurm allocation (not inside mpiexec or srun)",
    )  # fmt: skip
    add_hosts(where)
    where.add_argument(
        "--on", choices=PLACES, default="mpi",
        help="train on real ranks, or on simulated ones in this process (default: mpi)",
    )  # fmt: skip
    where.add_argument("--no-bind", action="store_true", help="do not reserve cores for the ranks")
    add_safety(parser.add_argument_group("checkpoints and failures"))
    add_simulation(parser.add_argument_group("options for --on sim"))
    output = parser.add_argument_group("record and output")
    output.add_argument(
        "--runs", type=parse_path, default=Path("runs"), metavar="DIR",
        help="folder in which runs are recorded (default: runs)",
    )  # fmt: skip
    output.add_argument(
        "--name", metavar="NAME", help="name of this run's folder (default: time, strategy, ranks and seed)"
    )
    output.add_argument(
        "--trace", action="store_true", help="also record every MPI call, for `paceline trace`"
    )
    output.add_argument("--quiet", action="store_true", help="show no progress")
    output.add_argument(
        "--json", action="store_true", help="print the results as one JSON object and nothing else"
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="with --replay: run the code (module:attribute) that the run names",
    )
    parser.add_argument("--expect-ranks", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--terminal", type=int, help=argparse.SUPPRESS)


def main(args: argparse.Namespace) -> int:
    """Train; print the results on rank 0."""
    from paceline import launch
    from paceline.errors import UsageError
    from paceline.record.writing import check_name
    from paceline.training.job import Job
    from paceline.training.resuming import resume_requeued

    import_from_here()
    if args.name is not None:
        check_name(args.name)
    config = Config(**{setting.name: getattr(args, setting.name) for setting in fields(Config)})
    args.safety = Safety(**{setting.name: getattr(args, setting.name) for setting in fields(Safety)})
    options = options_of(args.on, pick_options(vars(args)))
    here = launch.world()
    if options is not None and here is not None:
        raise UsageError("simulated ranks are all in one process: run it without mpiexec or srun")
    if config.replay is not None:
        from paceline.training.job import adopt_replayed_settings, get_replayed_ranks

        config = adopt_replayed_settings(config, getattr(args, "given", ()), trust=args.trust)
        args.ranks = get_replayed_ranks(config) if args.ranks is None and here is None else args.ranks
    hosts = read_hosts(args, simulated=options is not None)
    check_ranks(args)
    job = Job(config=config, runs=args.runs, run_name=args.name, trace=args.trace, safety=args.safety)
    if options is None and config.replay is None:
        job = resume_requeued(job, ranks=here.size if here is not None else args.ranks)
        if job.resume is not None and (job.resume / "summary.json").exists():
            if here is None or here.rank == 0:
                print(f"run: {job.resume} (complete since before this job was requeued)")
            return 0
    if options is not None:
        return simulate_job(args, job, args.ranks or 1, options)
    if here is None and not hosts and launch.allocated_nodes() < 2:
        _warn_of_threads(job, args.ranks or 1)
    if here is None and ((args.ranks or 1) > 1 or hosts):
        return _start(args, job, hosts)
    launch.set_thread_variables(here.local_size if here is not None else 1, config.threads)
    launch.take_cores()
    return run_rank(args, job, here)


def _warn_of_threads(job: Job, ranks: int) -> None:
    """Warn of more threads than cores, unless bad settings end the run; ranks of one thread each yield their cores."""
    from paceline.launch import machine_cores
    from paceline.text import count

    cores, threads = machine_cores(), job.config.threads or 1
    if threads > 1 and ranks * threads > cores:
        job.check_early(ranks, 1)
        what = f"{threads} threads" if ranks == 1 else f"{ranks} ranks of {threads} threads"
        logging.getLogger(__name__).warning(
            "%s on %s: training will be very slow; leave out --threads", what, count(cores, "core")
        )


def _start(args: argparse.Namespace, job: Job, hosts: Sequence[Host]) -> int:
    """Check the settings, then start the ranks."""
    from paceline import launch
    from paceline.record.writing import folder_name

    job.check_early(args.ranks, len(hosts) or launch.allocated_nodes())
    if job.resume is not None:
        return start_ranks(args, job, args.ranks, _resume_command(args, job, job.resume, args.ranks), hosts)
    if hosts and args.name is None:  # on other hosts, ranks cannot say where they record the run
        args.name = _new_name(args.runs, folder_name(job.name(), args.ranks, job.config.seed))
        job = replace(job, run_name=args.name)
    command = [
        sys.executable,
        "-m",
        "paceline",
        "train",
        f"--runs={args.runs}",
        f"--expect-ranks={args.ranks}",
    ]
    command += [*as_arguments(job.config), *as_arguments(job.safety)]
    command += [] if args.name is None else [f"--name={args.name}"]
    command += [f"--{flag}" for flag in ("trace", "quiet", "json") if getattr(args, flag)]
    return start_ranks(args, job, args.ranks, command, hosts)


def _new_name(runs: Path, stem: str) -> str:
    """Return a name that no run has yet."""
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    return next(name for name in names if not (runs / name).exists())


def _resume_command(args: argparse.Namespace, job: Job, run: Path, ranks: int) -> list[str]:
    """Return the command for ranks that go on with a run of this very command, whose code needs no further trust."""
    command = [sys.executable, "-m", "paceline", "resume", str(run), "--trust", f"--expect-ranks={ranks}"]
    command += as_arguments(job.safety)
    return command + [f"--{flag}" for flag in ("quiet", "json") if getattr(args, flag)]


def start_ranks(
    args: argparse.Namespace, job: Job, ranks: int, command: list[str], hosts: Sequence[Host]
) -> int:
    """Run a command on ranks of this machine, allocation or `hosts`; return its exit status.

    With `--tolerate-failures`, a job that ends because ranks or hosts are lost is started again without them, and one that
    ends because of a stall (`--on-stall abort`), on as many ranks.
    """
    from paceline import launch
    from paceline.errors import UsageError
    from paceline.launch import STALLED

    given = hosts
    named = job.runs / job.run_name if hosts and job.runs is not None and job.run_name is not None else None
    ours = job.resume or (named if named is not None and not named.exists() else None)
    for restart in range(1, job.safety.restarts + 2):
        if hosts:
            if job.launcher() != "mpi":
                raise UsageError(f"{job.name()} starts its processes on this machine only; leave out --hosts")
            saved = job.safety.interval.any  # each rank saves its own part of a checkpoint
            hosts = launch.check_hosts(hosts, ranks=ranks, shared=job.runs if saved else None)
        if sys.stderr.isatty():
            command = [*command, f"--terminal={shutil.get_terminal_size().columns}"]
        outcomes: list[JobOutcome] = []
        launch.run(
            ranks,
            command,
            threads=job.config.threads,
            bind=not args.no_bind,
            hosts=hosts,
            launcher=job.launcher(),
            survive=job.safety.tolerate_failures,
            report=outcomes.append,
            stall_timeout=job.safety.patience,
            on_stall=job.safety.on_stall,
        )
        [ended] = outcomes
        if ended.run is None and ours is not None and ours.is_dir():
            ended = replace(ended, run=ours)
        if not _was_lost(ended) or restart > job.safety.restarts or not job.safety.tolerate_failures:
            break
        hosts = launch.answering_hosts(given) if given else ()
        room = sum(host.slots for host in hosts) if given else ranks
        left = _ranks_left(job, ranks if not given else min(ranks, room), len(ended.dead))
        if left is None or (given and not hosts):
            break
        command = _restart_command(args, job, command, ended, ranks=left)
        if command[3] == "resume":
            dead = f"rank {', '.join(map(str, ended.dead))}" if ended.dead else "a rank"
            gone = f"host {', '.join(ended.hosts)}" if ended.hosts else dead
            lost = "a rank made no progress" if ended.status == STALLED else f"{gone} of {ranks} was lost"
            command.append(f"--because={lost} (exit status {ended.status})")
        where = "its last checkpoint" if command[3] == "resume" else "the beginning"
        print(
            f"paceline: restart {restart} of {job.safety.restarts}: from {where}, on {left} "
            f"rank{'s' * (left > 1)} ({ranks} before)",
            file=sys.stderr, flush=True,
        )  # fmt: skip
        ranks = left
    _say_how_to_go_on(ended)
    return ended.status


def _was_lost(ended: JobOutcome) -> bool:
    """Return True if a job ended because ranks, their launcher or a host died or stalled, not because it was asked to."""
    from paceline.launch import REQUESTS, STALLED

    complete = ended.run is not None and (ended.run / "summary.json").exists()
    by_signal = ended.status > 128 and ended.status - 128 not in REQUESTS
    return not ended.asked and not complete and (by_signal or ended.status == STALLED or bool(ended.hosts))


def _ranks_left(job: Job, ranks: int, dead: int) -> int | None:
    """Return the number of ranks to continue with: without the dead ones, but as many as the strategy needs."""
    from paceline.errors import UsageError

    for left in range(max(1, ranks - dead), ranks + 1):
        try:
            job.check(left)
        except UsageError:
            continue
        return left
    return None


def _restart_command(
    args: argparse.Namespace, job: Job, command: list[str], ended: JobOutcome, *, ranks: int
) -> list[str]:
    """Return the command for ranks that go on from the last checkpoint or, if there is none, begin again."""
    from paceline.record.checkpoint import find_latest

    if ended.run is not None and find_latest(ended.run) is not None:
        return _resume_command(args, job, ended.run, ranks)
    if ended.run is not None:  # nothing was saved there, and the name is needed again
        shutil.rmtree(ended.run, ignore_errors=True)
    command = [word for word in command if not word.startswith(("--expect-ranks=", "--terminal="))]
    return [*command, f"--expect-ranks={ranks}"]


def _say_how_to_go_on(ended: JobOutcome) -> None:
    """Print the command that resumes a run which has died, or whose last words were lost, if it can be resumed."""
    from paceline.record.checkpoint import find_latest

    run = ended.run
    if run is None or not (_was_lost(ended) or ended.cut) or find_latest(run) is None:
        return
    print(
        f"paceline: continue from the last checkpoint with: paceline resume {shlex.quote(str(run))}",
        file=sys.stderr,
    )


def simulate_job(args: argparse.Namespace, job: Job, ranks: int, options: Options) -> int:
    """Train on simulated ranks, all in this process."""
    from paceline import launch

    launch.set_thread_variables(1, job.config.threads or 1)
    from paceline.simulate.training import simulate
    from paceline.training.progress import make_display
    from paceline.vmpi.errors import MPIError, RankFailed, SimulationError

    progress = None if args.quiet else make_display(sys.stderr, simulated=True)
    try:
        fitted = simulate(job, ranks, options, progress=progress)
    except SimulationError as error:
        if isinstance(error, RankFailed) and not isinstance(error.error, SimulationError | MPIError):
            traceback.print_exception(error.error)
        print(f"paceline train: {error}", file=sys.stderr)
        return 1
    return _end(args, fitted)


def run_rank(args: argparse.Namespace, job: Job, here: Any) -> int:
    """Train as one rank of a job, or as the only process."""
    from paceline import launch
    from paceline.errors import AgreedError, StoppedError
    from paceline.training.progress import make_display
    from paceline.training.rank import train

    comm = None
    with launch.StopRequests(own_process=True) as requests:
        if here is not None or job.config.strategy.partition(":")[0] != "serial":
            comm = launch.communicator(job.launcher() if here is None else "mpi")
            launch.verify(comm.Get_size(), promised=args.expect_ranks)
        first = comm is None or comm.Get_rank() == 0
        with launch.abort_on_error(comm):
            progress = None if args.quiet else make_display(sys.stderr, width=args.terminal)
            try:
                fitted = train(job, comm, progress=progress, requests=requests)
            except AgreedError:
                if not first:
                    return 2  # rank 0 prints it
                raise
            except StoppedError as stopped:
                if first:
                    print(f"paceline: {stopped}", file=sys.stderr, flush=True)
                return 128 + stopped.signal
        comm = launch.survivors(comm)
        status = _end(args, fitted, shown=comm is None or comm.Get_rank() == 0)
        launch.leave_survivors(status)
        return status


def _end(args: argparse.Namespace, fitted: Fitted, *, shown: bool = True) -> int:
    from paceline.files import json_text

    if shown:
        print(json_text(fitted.summary()) if args.json else _describe(fitted), flush=True)
        if not args.json and not args.quiet:
            _say_what_is_next(fitted)
    if fitted.unsaved is not None:
        return 1
    return 0 if fitted.diverged is None else DIVERGED


def _say_what_is_next(fitted: Fitted) -> None:
    """Print the command to try after a run, if it has a record; one that repeats another run has no next step."""
    from paceline.diagnosis import next_step
    from paceline.errors import UsageError
    from paceline.record import Run

    if fitted.run is None or fitted.unsaved is not None:
        return
    try:
        run = Run(fitted.run)
        words = None if run.config.get("replay") else f"next: {next_step(run)}"
    except (UsageError, OSError) as error:  # the folder was removed meanwhile
        logging.getLogger(__name__).warning("what to try next is unknown: %s", error)
        return
    if words is not None:
        print(words, flush=True)


def _describe(fitted: Fitted) -> str:
    result = ""
    if fitted.test_accuracy is not None:
        result = f"test accuracy {100 * fitted.test_accuracy:.2f} %"
        if fitted.validation_accuracy is not None:  # a target is about these samples
            result += f" (validation {100 * fitted.validation_accuracy:.2f} %)"
        result += ", "
    elif fitted.test_loss is not None:
        result = f"test loss {fitted.test_loss:.4g} (numbers), "
    rate = "" if fitted.samples_per_second is None else f" ({fitted.samples_per_second:,.0f} samples/s)"
    ranks = f"{fitted.ranks:,} {'simulated ' * fitted.simulated}rank{'s' if fitted.ranks > 1 else ''}"
    each = " each" if fitted.ranks > 1 else ""
    threads = f"{fitted.threads} thread{'s' if fitted.threads > 1 else ''}{each}"
    whole = sum(fitted.seconds.values()) - fitted.seconds["evaluation"]
    split = ", ".join(
        f"{kind} {100 * fitted.seconds[kind] / whole:.0f} %"
        for kind in ("compute", "exchange", "wait", "update")
        if whole
    )
    return (
        f"{fitted.strategy} on {ranks}, {threads}: {result}{fitted.train_seconds:.3g} s of "
        f"{'simulated ' * fitted.simulated}training{rate}\n"
        f"time: {split}; {fitted.bytes_sent:,} bytes sent\n"
        + "".join(f"{remark}\n" for remark in fitted.remarks)
        + (fitted.unsaved or f"run: {fitted.run}")
    )
