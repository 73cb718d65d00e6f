"""`paceline simulate scaling`: predict what more ranks would bring."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.commands import add_settings, add_simulation, import_from_here
from paceline.config import Config
from paceline.errors import UsageError
from paceline.simulate.options import NAMES, Options
from paceline.text import Bar

if TYPE_CHECKING:
    from paceline.data import Dataset
    from paceline.models import Model
    from paceline.simulate.case import Workload
    from paceline.simulate.work import Work
    from paceline.training.job import Job

EPILOG = """
examples:
  paceline simulate scaling --strategy sync:allreduce=ring --ranks 1..1024 --network 10gbe
  paceline simulate scaling --strategy sync --strategy parameter-server:masters=4 --batch 256 --accuracy --epochs 2
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = EPILOG
    parser.add_argument(
        "--strategy", dest="strategies", action="append", metavar="STRATEGY",
        help="a strategy to predict; may be given several times (default: sync)",
    )  # fmt: skip
    parser.add_argument(
        "--ranks", default="1..64", metavar="LIST",
        help="numbers of ranks: a list (2,4,6) or a doubling range (1..64) (default: 1..64)",
    )  # fmt: skip
    parser.add_argument(
        "--work", type=Path, metavar="FILE.toml",
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
        "--measured", nargs="+", default=[], metavar="RUNS",
        help="folders of real runs to show beside the prediction",
    )  # fmt: skip
    parser.add_argument(
        "--messages", type=int, default=3_000_000, metavar="N",
        help="the most simulated messages for one number of ranks (default: 3000000)",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--out", type=Path, default=Path("scaling"), metavar="FOLDER",
        help="where to write scaling.svg, scaling.png and scaling.json (default: scaling)",
    )  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")


def main(args: argparse.Namespace) -> int:
    """Predict; print the table; write the figure and the JSON."""
    ranks = read_ranks(args.ranks)
    if args.messages < 1:
        raise UsageError(f"messages must be at least 1; got {args.messages}")
    if args.jobs is not None and args.jobs < 1:
        raise UsageError(f"jobs must be at least 1; got {args.jobs}")
    settings = {each.name: getattr(args, each.name) for each in fields(Config) if each.name not in NOT_HERE}
    if args.work is not None:
        _check_with_work(args)
    config = Config(**settings)
    options = Options(
        **{name: value for name in NAMES if (value := getattr(args, name, None)) is not None},
        compute=args.accuracy,
    )
    options.check(max(ranks))
    import_from_here()
    from paceline.commands.simulate.prediction import draw, table
    from paceline.data import load_labels
    from paceline.files import json_text
    from paceline.launch import limit_threads, usable_cores
    from paceline.machine import load_network
    from paceline.record import find_runs
    from paceline.simulate.case import Workload, check_job, normalize_name
    from paceline.simulate.scaling import Scaling, describe, find_measured, to_values
    from paceline.simulate.training import costs_for
    from paceline.simulate.work import Work, work_load
    from paceline.training.job import Job

    bar = Bar() if sys.stderr.isatty() and not args.quiet else None

    def tell(text: str) -> None:
        if bar is not None:
            bar.draw(before=text)

    work = None if args.work is None else Work.load(args.work)
    strategies = [
        normalize_name(text) for text in args.strategies or ["sync" if work is None else work.strategy]
    ]
    find_runs(args.measured)
    load_network(options.network)
    _folder(args.out)
    threaded: dict[int, Workload] = {}
    if work is not None:
        bench = work_load(work, options, **{**settings, "data": None, "model": None})
        config = bench.config
        for name in strategies:
            check_job(bench.job(name, config), ranks, accuracy=args.accuracy)
    else:
        data = load_labels(config.data, labels=config.labels)
        jobs = {
            name: Job(config=replace(config, strategy=name), data=data, runs=None)
            for name in ("serial", *strategies)
        }
        for name, job in jobs.items():
            check_job(job, [1] if name == "serial" else ranks, accuracy=args.accuracy)
        costs = {}
        try:
            with limit_threads(config.threads or 1):
                for name, job in jobs.items():
                    tell(f"measuring what {name} costs")
                    network, costs[name] = costs_for(job, options)
        except RuntimeError as failed:  # the ranks that measure it have printed why
            print(f"paceline simulate: {failed}", file=sys.stderr)
            return 1
        alone = costs["serial"]
        bench = Workload(
            config=config,
            data=data,
            costs=alone,
            own_costs={name: own for name, own in costs.items() if own != alone},
            network=network,
            options=options,
        )
        try:
            threaded = threaded_workloads(bench, jobs, ranks, tell) if config.threads is None else {}
        except RuntimeError as failed:
            print(f"paceline simulate: {failed}", file=sys.stderr)
            return 1
    processes = args.jobs
    if processes is None:
        each = (config.threads or 1) * (options.compute_threads or 1)
        processes = max(1, usable_cores() // each) if args.accuracy else 1
    scaling = Scaling(
        workload=bench,
        strategies=strategies,
        ranks=ranks,
        accuracy=args.accuracy,
        most=args.messages,
        tell=tell,
        threaded=threaded,
        jobs=processes,
        load=partial(load_parts, work, config),
    )
    try:
        prediction = scaling.predict()
    finally:
        if bar is not None:
            bar.close()
    if not any(curve.points for curve in prediction.curves):
        first = prediction.curves[0]
        count, why = next(iter(first.left_out.items()))
        raise UsageError(f"nothing could be simulated: {first.strategy} on {count} ranks: {why}")
    points = find_measured(args.measured, config, strategies, prediction.serial.samples_per_second)
    told = to_values(bench, prediction, points)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "scaling.json").write_text(json_text(told) + "\n")
    draw(describe(bench), prediction, points, [args.out / "scaling.svg", args.out / "scaling.png"])
    print(json_text(told) if args.json else table(describe(bench), prediction, points))
    if not args.json:
        print(f"\nfigure: {args.out / 'scaling.svg'}")
    return 0


def load_parts(work: Work | None, config: Config) -> tuple[Dataset, Model | None]:
    """Load what is simulated, in a process of its own."""
    from paceline.data import load_labels
    from paceline.simulate.work import make_model

    if work is not None:
        return work.data(), make_model(work)
    return load_labels(config.data, labels=config.labels), None


def _check_with_work(args: argparse.Namespace) -> None:
    """Refuse settings that a work file replaces, and those that need something to compute."""
    usual = {each.name: each.default for each in fields(Config)}
    for name in ("data", "model", "dtype", "lr", "clip", "schedule", "lr_scaling", "threads"):
        if getattr(args, name) != usual[name]:
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
    for on in sorted({1, *(min(count, bench.network.ranks_per_node or count) for count in ranks)}):
        if (threads := cores // on) < 2:
            break
        config, own = replace(bench.config, threads=threads), {}
        with limit_threads(threads):
            for name, job in jobs.items():
                if on == 1 and name != "serial" and bench.network.ranks_per_node != 1:
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
        raise UsageError(f"cannot write to {folder}: {(error.strerror or str(error)).lower()}") from None
    if not os.access(above, os.W_OK):
        raise UsageError(f"cannot write to {folder}: {above} is not writable")
    try:
        Path(tempfile.mkdtemp(dir=above)).rmdir()
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {(error.strerror or str(error)).lower()}") from None
