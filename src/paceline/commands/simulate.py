"""`paceline simulate`: ranks that do not exist, in virtual time.

scaling      predict what more ranks would bring
calibrate    measure what messages and memory accesses cost, for simulations of this machine
run          run a program written for mpi4py on simulated ranks
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline import text
from paceline.commands import add_settings, add_simulation, import_from_here, parse_path
from paceline.config import Config
from paceline.errors import UsageError, reason
from paceline.simulate.options import Options, pick_options
from paceline.text import ProgressBar

if TYPE_CHECKING:
    from paceline.data import Dataset
    from paceline.launch import Host
    from paceline.machine import Machine
    from paceline.models import Model
    from paceline.simulate.case import Workload
    from paceline.simulate.scaling import MeasuredRuns, Prediction
    from paceline.simulate.work import Work
    from paceline.training.job import Job
    from paceline.vmpi import Outcome, Script
    from paceline.vmpi.errors import SimulationError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands."""
    parser.epilog = """
examples:
  paceline simulate scaling --strategy sync:allreduce=ring --strategy local-sgd --ranks 1..256 --network 10gbe
  paceline simulate calibrate -o machine.json
  paceline simulate run program.py -n 64 --network infiniband
"""
    kinds = parser.add_subparsers(dest="simulation", metavar="WHAT", required=True)
    for name, (add, _, about) in KINDS.items():
        add(
            kinds.add_parser(
                name,
                help=about,
                description=about[0].upper() + about[1:] + ".",
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
        )


def main(args: argparse.Namespace) -> int:
    """Run a sub-command."""
    from paceline.launch import world

    if (here := world()) is not None:  # each rank would simulate everything
        if here.rank != 0:
            return 2
        raise UsageError(f"simulated ranks are all in one process: run it without {here.launcher}")
    _, run, _ = KINDS[args.simulation]
    try:
        return run(args)
    except KeyboardInterrupt:
        print("paceline simulate: interrupted", file=sys.stderr)
        raise


# ---- scaling

SCALING_EPILOG = """
examples:
  paceline simulate scaling --strategy sync:allreduce=ring --ranks 1..1024 --network 10gbe
  paceline simulate scaling --strategy sync --strategy parameter-server:masters=2 --batch 256 --accuracy --epochs 2
  paceline simulate scaling --strategy sync --ranks 2,4,8,16 --network machine.json --measured runs -o predicted
  paceline simulate scaling --work resnet50-v100.toml --network 25gbe:ranks-per-node=4,inside=nvlink --ranks 1..256

"ms per step" is for a batch that all ranks compute together (serial, sync, main-worker), or for one rank's own batch.
With threads: what the cores of this machine bring as threads of one process, and divided among ranks, is measured and
predicted too, unless --threads is given or the costs come from a file.
"lost most to" names the cost whose removal would help most, and its share of the step. Virtual time has no noise, so a few
steps are simulated for each number of ranks; nothing is computed unless --accuracy is given.
"""
# Settings that a prediction does not have: the single strategy, and those of single runs.
NOT_HERE = ("strategy", "on_divergence", "replay")
NOT_SIMULATED = ("compute", "faults")


def add_scaling_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = SCALING_EPILOG
    parser.add_argument(
        "--strategy", dest="strategies", action="append", metavar="STRATEGY",
        help="a strategy to predict; may be given several times (default: sync)",
    )  # fmt: skip
    parser.add_argument(
        "--ranks", default="1..64", metavar="LIST",
        help="numbers of ranks: a list (2,4,6) or a doubling range (1..64) (default: 1..64)",
    )  # fmt: skip
    parser.add_argument(
        "--work", type=parse_path, metavar="FILE.toml",
        help="the work by its figures alone (parameters, samples a second of one device), instead of --data and --model",
    )  # fmt: skip
    add_settings(parser, but=NOT_HERE)
    add_simulation(parser.add_argument_group("the simulated machine"), but=NOT_SIMULATED)
    parser.add_argument(
        "--accuracy",
        action="store_true",
        help="compute whole runs of --epochs, to predict accuracy and staleness too",
    )
    parser.add_argument(
        "--jobs", type=int, metavar="N",
        help="processes that simulate at the same time (default: with --accuracy as many as there are cores for, else 1)",
    )  # fmt: skip
    parser.add_argument(
        "--measured", nargs="+", type=parse_path, default=[], metavar="RUNS",
        help="folders of real runs to show beside the prediction",
    )  # fmt: skip
    parser.add_argument(
        "--messages", type=int, default=3_000_000, metavar="N",
        help="maximum number of simulated messages for one number of ranks (default: 3000000)",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--out", type=parse_path, default=Path("scaling"), metavar="FOLDER",
        help="where to write scaling.svg, scaling.png and scaling.json (default: scaling)",
    )  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")


def predict_scaling(args: argparse.Namespace) -> int:
    """Predict; print the table; write the figure and the JSON."""
    ranks = read_ranks(args.ranks)
    for name in ("messages", "jobs", "epochs"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise UsageError(f"{name} must be at least 1; got {value}")
    settings = {each.name: getattr(args, each.name) for each in fields(Config) if each.name not in NOT_HERE}
    if args.work is not None:
        _check_with_work(args)
    config = Config(**settings)
    options = Options(**pick_options(vars(args)), compute=args.accuracy)
    options.check(max(ranks))
    import_from_here()
    from paceline.launch import usable_cores
    from paceline.machine import load_network
    from paceline.record import find_runs
    from paceline.simulate.case import check_job, normalize_name
    from paceline.simulate.scaling import Scaling, find_measured
    from paceline.simulate.work import Work, work_load

    work = None if args.work is None else Work.load(args.work, ranks=max(ranks))
    strategies = [
        normalize_name(text) for text in args.strategies or ["sync" if work is None else work.strategy]
    ]
    find_runs(args.measured)
    load_network(options.network)
    _folder(args.out)
    bar = ProgressBar() if sys.stderr.isatty() and not args.quiet else None

    def tell(text: str) -> None:
        if bar is not None:
            bar.draw(before=text)

    threaded: dict[int, Workload] = {}
    try:
        if work is not None:
            bench = work_load(work, options, **{**settings, "data": None, "model": None})
            config = bench.config
            for name in strategies:
                check_job(bench.job(name, config), ranks, accuracy=args.accuracy)
        else:
            data, jobs = _make_jobs(config, strategies, ranks, accuracy=args.accuracy)
            try:
                bench = _measure(config, data, jobs, options, tell)
                threaded = threaded_workloads(bench, jobs, ranks, tell) if config.threads is None else {}
            except RuntimeError as failed:  # the ranks that measure it have printed why
                print(f"paceline simulate: {failed}", file=sys.stderr)
                return 1
        each = (config.threads or 1) * (options.compute_threads or 1)
        together = max(1, usable_cores() // each) if args.accuracy else 1
        prediction = Scaling(
            workload=bench,
            strategies=strategies,
            ranks=ranks,
            accuracy=args.accuracy,
            most=args.messages,
            tell=tell,
            threaded=threaded,
            jobs=args.jobs or together,
            load=partial(load_parts, work, config),
        ).predict()
    finally:
        if bar is not None:
            bar.close()
    _check_prediction(prediction)
    points = find_measured(args.measured, config, strategies, prediction.serial.samples_per_second)
    _show_prediction(args, bench, prediction, points)
    return 0


def _check_prediction(prediction: Prediction) -> None:
    """Raise a UsageError if no number of ranks could be simulated."""
    if not any(curve.points for curve in prediction.curves):
        first = prediction.curves[0]
        count, why = next(iter(first.left_out.items()))
        raise UsageError(f"nothing could be simulated: {first.strategy} on {count} ranks: {why}")


def _show_prediction(
    args: argparse.Namespace, bench: Workload, prediction: Prediction, points: Sequence[MeasuredRuns]
) -> None:
    """Write the figure and the JSON of a prediction, and print its table."""
    from paceline.commands._prediction import draw, table
    from paceline.files import json_text, write_json
    from paceline.simulate.scaling import describe, to_values

    values = to_values(bench, prediction, points)
    args.out.mkdir(parents=True, exist_ok=True)
    write_json(args.out / "scaling.json", values)
    draw(describe(bench), prediction, points, [args.out / "scaling.svg", args.out / "scaling.png"])
    print(json_text(values) if args.json else table(describe(bench), prediction, points))
    if not args.json:
        print(f"\nfigure: {args.out / 'scaling.svg'}")


def _make_jobs(
    config: Config, strategies: Sequence[str], ranks: Sequence[int], *, accuracy: bool
) -> tuple[Dataset, dict[str, Job]]:
    """Load the data, and return them with a checked job for serial training and for each strategy."""
    from paceline.data import load_labels
    from paceline.simulate.case import check_job
    from paceline.training.job import Job

    data = load_labels(config.data, labels=config.labels)
    jobs = {
        name: Job(config=replace(config, strategy=name), data=data, runs=None)
        for name in ("serial", *strategies)
    }
    for name, job in jobs.items():
        check_job(job, [1] if name == "serial" else ranks, accuracy=accuracy)
    return data, jobs


def _measure(
    config: Config, data: Dataset, jobs: Mapping[str, Job], options: Options, tell: Callable[[str], None]
) -> Workload:
    """Measure what the work of each job costs with one thread, or as many as are given."""
    from paceline.launch import limit_threads
    from paceline.simulate.case import Workload
    from paceline.simulate.training import costs_for

    costs = {}
    with limit_threads(config.threads or 1):
        for name, job in jobs.items():
            tell(f"measuring what {name} costs")
            network, costs[name] = costs_for(job, options)
    alone = costs["serial"]
    return Workload(
        config=config,
        data=data,
        costs=alone,
        own_costs={name: own for name, own in costs.items() if own != alone},
        network=network,
        options=options,
    )


def load_parts(work: Work | None, config: Config) -> tuple[Dataset, Model | None]:
    """Load what is simulated, in a process of its own."""
    from paceline.data import load_labels
    from paceline.simulate.work import make_model

    if work is not None:
        return work.data(), make_model(work)
    return load_labels(config.data, labels=config.labels), None


def _check_with_work(args: argparse.Namespace) -> None:
    """Refuse settings that a work file replaces, and those that need something to compute."""
    for name in ("data", "model", "labels", "dtype", "lr", "clip", "schedule", "lr_scaling", "threads"):
        if name in getattr(args, "given", ()):
            raise UsageError(f"--work has the figures of the work: leave out --{name.replace('_', '-')}")
    for name, given in (
        ("accuracy", args.accuracy),
        ("measured", args.measured),
        ("recalibrate", args.recalibrate),
    ):
        if given:
            raise UsageError(
                f"--work has only figures: leave out --{name}, which needs a network that can be computed"
            )


def threaded_workloads(
    bench: Workload, jobs: Mapping[str, Job], ranks: Sequence[int], tell: Callable[[str], None]
) -> dict[int, Workload]:
    """Measure the same work with the cores of this machine divided among the ranks of a node by threads.

    Return the workload by the number of ranks on a node. Those that leave a rank no second core are left out.
    """
    from paceline.launch import limit_threads, machine_cores
    from paceline.simulate.training import threaded_costs_for

    cores = bench.network.node_cores(machine_cores()) or machine_cores()
    cores = min(cores, machine_cores())
    found = {}
    predicted = {bench.network.ranks_on_node(count) for count in ranks if count > 1}
    for on in sorted({1, *predicted}):
        if (threads := cores // on) < 2:
            break
        config, own = replace(bench.config, threads=threads), {}
        with limit_threads(threads):
            for name, job in jobs.items():
                if name != "serial" and on not in predicted:
                    continue  # one rank of a strategy for several is not predicted
                tell(f"measuring what {name} costs with {threads} threads")
                costs = threaded_costs_for(
                    replace(job, config=replace(job.config, threads=threads)), bench.options, on
                )
                if costs is None:
                    return {}
                # Kinds of work that take more processes than are on this node are as with one thread.
                own[name] = replace(costs, work={**bench.costs_of(name).work, **costs.work})
        alone = own.pop("serial")
        found[on] = replace(bench, config=config, costs=alone, own_costs=own)
    return found


def read_ranks(text: str) -> list[int]:
    """Parse numbers of ranks and return them in rising order.

    >>> read_ranks("1..16"), read_ranks("3,6..24,5")
    ([1, 2, 4, 8, 16], [3, 5, 6, 12, 24])
    """
    found: set[int] = set()
    for word in text.split(","):
        first, dots, last = (part.strip() for part in word.partition(".."))
        if not first.isdecimal() or (dots and not last.isdecimal()):
            raise UsageError(f"--ranks must be numbers such as 1..1024 or 2,4,6; got {text!r}")
        if max(len(first), len(last)) > 10:
            raise UsageError(f"--ranks has a number of {max(len(first), len(last))} digits")
        low, high = int(first), int(last or first)
        if low < 1 or high < low:
            raise UsageError(f"numbers of ranks must rise from at least 1; got {word!r}")
        while low <= high:
            found.add(low)
            low *= 2
        if dots:
            found.add(high)
    return sorted(found)


def _folder(folder: Path) -> None:
    """Refuse a folder that could not be written to at the end."""
    try:
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"--out must be a folder; got {folder}")
        above = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {reason(error)}") from None
    if not os.access(above, os.W_OK):
        raise UsageError(f"cannot write to {folder}: {above} is not writable")
    try:
        Path(tempfile.mkdtemp(dir=above)).rmdir()
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {reason(error)}") from None


# ---- calibrate

CALIBRATE_EPILOG = """
examples:
  paceline simulate calibrate
  paceline simulate calibrate -o machine.json --seconds 5
  paceline simulate scaling --ranks 1..16 --network machine.json       # all ranks on this machine
  paceline train --on sim -n 64 --network 10gbe:ranks-per-node=16,machine=machine.json
  paceline simulate calibrate --hosts a:8,b:8 -o cluster.json          # the network between hosts too
  paceline simulate scaling --ranks 1..64 --network cluster.json       # on hosts like these

It starts 2, 4, 8 ... ranks, up to the number of cores. Nothing else should be running meanwhile.
"""
SMALL, LARGE = 8, 1 << 20


def add_calibrate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = CALIBRATE_EPILOG
    parser.add_argument(
        "-o",
        "--out",
        type=parse_path,
        default=Path("machine.json"),
        metavar="FILE",
        help="where to write the result (default: machine.json)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="how long to measure with each number of ranks (default: 12)",
    )
    parser.add_argument(
        "-n",
        dest="ranks",
        metavar="LIST",
        help="numbers of ranks, powers of two, such as 2,4,8 (default: up to the number of cores)",
    )
    parser.add_argument(
        "--hosts",
        metavar="LIST",
        help="measure the network between these hosts too: a:8,b:8, each with the number of its ranks; this machine is "
        "the first",
    )


def calibrate_machine(args: argparse.Namespace) -> int:
    """Measure and print the result."""
    from paceline import bench
    from paceline.files import check_place
    from paceline.launch import check_hosts
    from paceline.machine.between import calibrate_hosts
    from paceline.machine.calibration import SECONDS, calibrate, check_ranks

    seconds = SECONDS if args.seconds is None else args.seconds
    if not 0 < seconds < math.inf:
        raise UsageError(f"seconds must be a finite number above 0; got {seconds:g}")
    check_place(args.out)
    ranks = check_ranks(None if args.ranks is None else bench.read_ranks(args.ranks))
    hosts = _read_hosts(args.hosts)
    if hosts:
        hosts = check_hosts(hosts, ranks=sum(host.slots for host in hosts))
    try:
        machine = (
            calibrate_hosts(hosts, ranks, seconds=seconds) if hosts else calibrate(ranks, seconds=seconds)
        )
    except RuntimeError as failed:  # the ranks have printed why
        print(f"paceline simulate: {failed}", file=sys.stderr)
        return 1
    machine.save(args.out)
    print(describe_machine(machine))
    if machine.network:
        print(f"\nnetwork: {machine.network}")
    print(f"\nmachine: {args.out}")
    return 0


def _read_hosts(text: str | None) -> tuple[Host, ...]:
    """Read the hosts to measure between: this machine and at least one more."""
    from paceline.launch import parse_hosts

    if text is None:
        return ()
    hosts = parse_hosts(text)
    if len(hosts) < 2:
        raise UsageError(f"a network needs at least two hosts, such as a:8,b:8; got {text}")
    if not hosts[0].here:
        raise UsageError(f"this machine must be the first of the hosts; got {hosts[0].name}")
    return hosts


def describe_machine(machine: Machine) -> str:
    """Return a table of a machine's costs by the number of ranks that are active at once."""
    link = machine.link
    counts = sorted(set(link.send.tables) & set(link.take.tables) - {1})
    rows: dict[str, list[str]] = {
        "ranks at once": [str(count) for count in counts],
        "8-byte message, us": [_us(_message(machine, SMALL, count)) for count in counts],
        "1-MiB message, GB/s": [f"{1e-9 * LARGE / _message(machine, LARGE, count):.2f}" for count in counts],
    }
    for name, nbytes in (("Barrier", 0), ("Allreduce", SMALL), ("Allreduce", LARGE)):
        curves = machine.collectives.get(name)
        if curves is not None:
            words = "MPI's Barrier, us" if name == "Barrier" else f"MPI's {name} of {text.size(nbytes)}, us"
            rows[words] = [_us(curves.at(nbytes, count)) for count in counts]
    for name, words in (("combine", "a + b"), ("sum", "summing rows"), ("copy", "copying")):
        curves = machine.memory.get(name)
        if curves is not None:
            rows[f"{words}, GB/s per rank"] = [
                f"{1e-9 * LARGE / curves.at(LARGE, count):.2f}" for count in counts
            ]
    eager = text.size(machine.eager_limit)
    head = (
        f"{machine.processor}, {machine.cores} cores, {machine.mpi}; messages up to {eager} are sent eagerly"
    )
    return f"{head}\n{text.table([(name, *cells) for name, cells in rows.items()])}"


def _message(machine: Machine, nbytes: int, ranks: int) -> float:
    eager = nbytes <= machine.eager_limit
    return machine.link.both_ways(nbytes, ranks, eager=eager, post=machine.post)


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.1f}"


# ---- run

RUN_EPILOG = """
examples:
  paceline simulate run program.py -n 64 --network 10gbe
  paceline simulate run program.py -n 8 --seeds 200               # try 200 orders of simultaneous events
  paceline simulate run program.py -n 4 --rendezvous              # does it rely on messages being buffered?
  paceline simulate run ring.py --function ring -n 1024           # call ring(comm) instead of running the whole file
  paceline simulate run program.py -n 4 -- --epochs 3             # after -- come the program's own arguments

Every rank executes the file as __main__, with its own copy of the modules beside it, its own random numbers, environment,
working directory, output and logging. All other imported modules are shared by the ranks. The program's own computing takes
no virtual time, except for what it declares with MPI.COMM_WORLD.Compute(seconds).
"""


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = RUN_EPILOG
    parser.usage = "paceline simulate run FILE.py -n P [options] [-- arguments of the program]"
    _add_options(parser)
    parser.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        metavar="FILE.py",
        help="the program, followed by its own arguments; those after -- are never taken for options of this command",
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
        "--faults",
        type=parse_path,
        metavar="FILE",
        help="a script of faults, such as fail_at(rank=3, time=0.5)",
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


def run_program(args: argparse.Namespace) -> int:
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
    with program.imitate_python():
        return _run_seeds(program, range(first, first + count), options)


def _program(args: argparse.Namespace) -> tuple[Path, list[str]]:
    """Return the file and its own arguments; options of this command may also follow the file."""
    words = [word for place, word in enumerate(args.program) if word != "--" or place > 0]
    if not words:
        raise UsageError("a program is needed; write: paceline simulate run FILE.py -n 4")
    if not words[0]:
        raise UsageError("the program must be a file; got an empty name")
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
    for word in own:
        _check_foreign(word, [option for action in parser._actions for option in action.option_strings])
    for name, value in vars(known).items():
        if value == []:  # argparse drops the value of --name=--
            raise UsageError(f"--{name} needs a value; got --")
        if value is not None:
            setattr(args, name, value)
    return file, [*own, *rest[cut + 1 :]]


def _check_foreign(word: str, options: Sequence[str]) -> None:
    """Refuse an option for the program that looks like a misspelt or abbreviated option of this command.

    >>> _check_foreign("--epochs", ["--ranks", "--rendezvous"])
    >>> _check_foreign("--rendevous", ["--ranks", "--rendezvous"])
    Traceback (most recent call last):
    paceline.errors.UsageError: unknown option --rendevous; did you mean --rendezvous? the program's own may follow --
    """
    given = word.partition("=")[0]
    name = given.lower().replace("_", "-")
    if not name.startswith("-"):
        return
    near = [option for option in options if option == name or (len(name) > 4 and option.startswith(name))]
    names = [option.lstrip("-") for option in options if option.startswith("--")]
    near += [f"--{found}" for found in get_close_matches(name.lstrip("-"), names, n=1, cutoff=0.75)]
    if near:
        raise UsageError(f"unknown option {given}; did you mean {near[0]}? the program's own may follow --")


def _run_seeds(program: Script, seeds: range, options: dict[str, Any]) -> int:
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
    from paceline.vmpi.errors import Deadlock, RankFailed, SimulationError

    # A polling rank notices a deadlock, which is that of all ranks.
    if isinstance(error, RankFailed) and isinstance(error.error, Deadlock):
        return str(error.error)
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


KINDS: dict[
    str, tuple[Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int], str]
] = {
    "scaling": (
        add_scaling_arguments,
        predict_scaling,
        "predict the speedup for each number of ranks, where scaling stops, and why",
    ),
    "calibrate": (
        add_calibrate_arguments,
        calibrate_machine,
        "measure what messages and memory accesses cost on this machine",
    ),
    "run": (add_run_arguments, run_program, "run your own mpi4py program, unchanged, on simulated ranks"),
}
