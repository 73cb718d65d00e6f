"""The simulator against the real thing: predicted and measured time a step, and accuracy, of the same runs.

    python benchmarks/simulated.py measure --json measured.json [--ranks 2,4,8,16] [--minutes 7]
    python benchmarks/simulated.py measure --json measured.json --hosts 2 --rate 1gbit [--ranks 2,16] [--minutes 7]
    python benchmarks/simulated.py predict measured.json [--json FILE] [--plot FILE] [--accuracy asynchronous.json]

`measure` starts one MPI job for each number of ranks. In it, four things take turns until the time is spent, so that a
machine that changes its speed changes it for all of them: the measurements of `paceline simulate calibrate`; those of the
work of each job; real training of each job, sync with every collective and the parameter server; and, to explain what
a prediction misses, the exchange of each job alone and non-blocking Allreduces behind computing. Two settings: the
reference network with 16 samples a rank, and a larger one with 512 samples in all. Everything is kept as measured.

With `--hosts`, this machine becomes several hosts with a network of limited rate between them (tools/hosts/network.py;
needs root), with as many ranks on each. The hosts share the cores of this machine, so it should have one for each rank.
Calibrated is what `paceline simulate calibrate --hosts` measures: messages and memory inside one host, and small and long
messages between two. Judged is real training with every collective and the parameter server, and the exchange of arrays
of several sizes. The load of the machine is kept with each repeat.

`predict` simulates the same runs, on any machine, from what was calibrated, and puts both sides into one table. With
`--accuracy` it also simulates the runs of benchmarks/asynchronous.py, with the gradients computed, and compares their
accuracies and their staleness.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from where import where

from paceline import Fitted, figures
from paceline.figures.drawing import blank_page
from paceline.figures.palette import FAINT, GREY, style_of

SETTING = {
    "data": "mnist",
    "model": "mlp:128,64",
    "lr": 1.6,
    "threads": 1,
    "on_divergence": "ignore",
    "epochs": 1,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "reference": {**SETTING, "batch_per_rank": 16},
    "larger": {**SETTING, "model": "mlp:512,256", "batch": 512},
}
STEPS = {
    "reference": 300,
    "larger": 40,
}  # of a run; of a server's as many for each worker, but not more than MOST
MOST = {"reference": 1500, "larger": 400}
BETWEEN = {"reference": 24, "larger": 10}  # the same between hosts, whose network is slow
MOST_BETWEEN = {"reference": 72, "larger": 30}
SIZES = (1 << 12, 1 << 16, 437_544, 1 << 21)  # bytes of arrays that are exchanged between hosts
ROOT = Path(__file__).parent.parent
COLLECTIVES = (
    "naive", "ring", "recursive-doubling", "rabenseifner", "native", "shared-memory", "hierarchical",
)  # fmt: skip
SERVER = "parameter-server:masters=4,placement=even"
SERVERS = {
    1: (),
    2: ("masters=1",),
    4: ("masters=1", "masters=2"),
    8: ("masters=2", "masters=4,placement=even"),
    16: ("masters=2", "masters=4,placement=even"),
}
BEHIND = (1 << 12, 1 << 16, 437_544, 1 << 20, 1 << 22, 1 << 24)  # bytes of an Iallreduce
COMPUTING = ((0.0, 0), (0.001, 0), (0.005, 0), (0.005, 10))  # seconds, and calls of Test on the way


def collectives(hosts: int) -> list[str]:
    """The collectives that are possible: hosts share no memory."""
    return [name for name in COLLECTIVES if hosts == 1 or name != "shared-memory"]


def strategies(ranks: int, hosts: int = 1) -> list[str]:
    servers = [f"parameter-server:{words}" for words in SERVERS.get(ranks, ("masters=1",))]
    return [*(f"sync:allreduce={name}" for name in collectives(hosts)), *servers]


def settings(strategy: str, ranks: int, kind: str = "reference", hosts: int = 1) -> dict:
    draws, most = (STEPS[kind], MOST[kind]) if hosts == 1 else (BETWEEN[kind], MOST_BETWEEN[kind])
    if strategy.startswith("parameter-server"):
        masters = int(strategy.partition("masters=")[2].partition(",")[0])
        draws = min(most, draws * (ranks - masters))
    return {**SETTINGS[kind], "strategy": strategy, "draws": draws}


def work_of(strategy: str, hosts: int = 1) -> str:
    """The job whose costs a strategy has: those of the parameter server are measured with one of its settings.

    Ranks of different hosts find nothing in each other's caches, so that work costs the same with every collective.
    """
    if strategy.startswith("parameter-server"):
        return "parameter-server"
    return strategy if hosts == 1 else "local-sgd"


def measure(args: argparse.Namespace) -> None:
    from paceline.launch import call, check_hosts, parse_hosts

    hosts = 1 if args.hosts is None else args.hosts
    ranks = [int(word) for word in (args.ranks or ("2,4,8,16" if hosts == 1 else str(hosts))).split(",")]
    if hosts < 1 or any(p < 1 or p % hosts for p in ranks):
        raise SystemExit(f"{args.ranks} ranks cannot be divided among {hosts} hosts")
    if hosts > 1 and not args.inside:
        make_hosts(args)
        return
    data = few_to_evaluate()
    result: dict = {**where(), "settings": SETTINGS, "alone": {}, "ranks": {}}
    if hosts > 1:
        result |= {"hosts": hosts, "rate": args.rate, "inside": {}}
        result["command"] = [word for word in result["command"] if word != "--inside"]
    began = time.monotonic()
    for kind in SETTINGS:
        arguments = {"job": job_of("local-sgd", 1, kind), "seconds": 2 * args.seconds}
        result["alone"][kind] = call(measure_one, {**arguments, "data": data}, ranks=1, threads=1)
    if hosts > 1:
        for p in inside_ranks(max(ranks) // hosts):
            answer = call(measure_inside, {"seconds": 4 * args.seconds}, ranks=p, threads=1, one_node=True)
            result["inside"][p] = answer
    with tempfile.TemporaryDirectory() as folder:
        for place, p in enumerate(ranks):
            left = 60 * args.minutes - (time.monotonic() - began)
            arguments = {
                "limit": left / (len(ranks) - place),
                "seconds": args.seconds,
                "folder": folder,
                "hosts": hosts,
            }
            on = {"one_node": True} if hosts == 1 else {}
            if hosts > 1:
                listed = ",".join(f"h{number + 1}:{p // hosts}" for number in range(hosts))
                on = {"hosts": check_hosts(parse_hosts(listed), ranks=p)}
            result["ranks"][p] = call(rounds, arguments, shared={"data": data}, ranks=p, threads=1, **on)
            args.json.write_text(json.dumps(result) + "\n")
            done = len(result["ranks"][p]["repeats"])
            print(f"{p} ranks: {done} repeats, {time.monotonic() - began:.0f} s", flush=True)


def make_hosts(args: argparse.Namespace) -> None:
    """Run this command again on the first of several hosts, which have a network of limited rate."""
    sys.path.insert(0, str(ROOT))
    from tools.hosts.network import network

    with network(args.hosts) as made:
        for name in made.names:
            made.resemble_line(name, args.rate)
        again = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:], "--inside"]
        status = made.run(again, capture_output=False, time_limit=math.inf).returncode
    if status:
        raise SystemExit(status)


def inside_ranks(most: int) -> list[int]:
    """The numbers of ranks of one host that its messages are measured with.

    >>> inside_ranks(1), inside_ranks(8)
    ([2], [2, 4, 8])
    """
    return [1 << k for k in range(1, max(2, most).bit_length())]


def measure_inside(comm: Any, *, seconds: float) -> dict:
    from paceline.machine import measure_ranks

    return measure_ranks(comm, seconds=seconds)


def few_to_evaluate() -> Any:
    """The data, with a thousand samples to evaluate on: the time of a step does not depend on them."""
    from paceline.data import Subset, load

    data = load(SETTING["data"])
    few = {name: Subset(getattr(data, name), np.arange(1000)) for name in ("validation", "test")}
    return replace(data, **few)


def job_of(
    strategy: str, ranks: int, kind: str, data: Any = None, runs: Path | None = None, hosts: int = 1
) -> Any:
    from paceline.config import Config
    from paceline.training.job import Job

    return Job(config=Config(**settings(strategy, ranks, kind, hosts)), data=data, runs=runs)


def measure_one(comm: Any, *, job: Any, data: Any, seconds: float) -> dict:
    from paceline.machine import measure_work

    return measure_work(comm, job=replace(job, data=data), seconds=seconds, own=False)


def rounds(comm: Any, *, data: Any, limit: float, seconds: float, folder: str, hosts: int) -> dict:
    """Measure everything on these ranks, again and again until the time is spent; at least once. Collective."""
    from paceline.machine import measure_between, measure_ranks

    began = time.monotonic()
    found: dict = {"repeats": []}
    longest, go_on = 0.0, True
    while go_on:
        start = time.monotonic()
        one: dict = {"load": [os.getloadavg()[0]], "work": {}, "runs": [], "exchange": {}}
        if hosts == 1:
            one["messages"] = measure_ranks(comm, seconds=4 * seconds)
        else:
            one["between"] = measure_between(comm, seconds=4 * seconds)
            for nbytes in SIZES:
                one["exchange"][str(nbytes)] = measure_exchanges(comm, nbytes // 4, hosts, seconds / 2)
        for kind in SETTINGS:
            one["work"][kind] = measure_jobs(comm, data, kind, seconds, hosts)
            if hosts == 1:
                size = job_of("serial", 1, kind, data).build(data).x.size
                one["exchange"][kind] = measure_exchanges(comm, size, hosts, seconds / 6)
            for strategy in strategies(comm.Get_size(), hosts):
                run = train_once(comm, strategy, kind, data, folder, hosts)
                one["runs"].append({"setting": kind, **run})
        if hosts == 1:
            one["behind"] = measure_behind(comm, seconds / 10)
        one["load"].append(os.getloadavg()[0])
        found["repeats"].append(one)
        longest = max(longest, time.monotonic() - start)
        go_on = comm.bcast(time.monotonic() - began + 1.1 * longest < limit)
    return found


def measure_jobs(comm: Any, data: Any, kind: str, seconds: float, hosts: int) -> dict[str, dict]:
    """The costs of the work of every job of a setting."""
    from paceline.machine import measure_work

    ranks = comm.Get_size()
    found = {
        "local-sgd": measure_work(
            comm, job=job_of("local-sgd", ranks, kind, data), seconds=seconds / 2, own=False
        )
    }
    known = {name: points for name, points in found["local-sgd"]["alone"].items() if name != "spread"}
    synchronous = [f"sync:allreduce={name}" for name in COLLECTIVES] if hosts == 1 else []
    for strategy in (*synchronous, SERVER):
        each = seconds / 3 if strategy != SERVER else seconds / 2
        job = job_of(strategy, 16, kind, data)
        answer = measure_work(comm, job=job, seconds=each, known=known)
        found[work_of(strategy)] = {"more": answer["more"], "bound": answer["bound"]}
    return found


def train_once(comm: Any, strategy: str, kind: str, data: Any, folder: str, hosts: int) -> dict:
    """Train for real; where the time of a step went."""
    from paceline.record import Run
    from paceline.training.rank import train

    ranks = comm.Get_size()
    fitted = train(job_of(strategy, ranks, kind, data, Path(folder), hosts), comm)
    kept: dict = {}
    if comm.Get_rank() == 0:
        kept = {"strategy": strategy, "steps": fitted.steps, "train_seconds": fitted.train_seconds}
        kept["seconds"] = {name: taken / fitted.steps for name, taken in fitted.seconds.items()}
        kept["step_seconds"] = median_step(strategy, str(fitted.run))
        record = Run(fitted.run)
        kept["by_rank"] = [
            {name: taken / fitted.steps for name, taken in row.items()}
            for row in record.summary["seconds_by_rank"]
        ]
        steps = record.steps
        if strategy.startswith("sync"):
            count = int(steps["step"].max()) + 1
            rows = {name: np.empty((count, ranks)) for name in ("compute", "exchange", "update")}
            for name, table in rows.items():
                table[steps["step"].astype(int), steps["rank"].astype(int)] = steps[name]
            kept["medians"] = {name: float(np.median(table)) for name, table in rows.items()}
            kept["least_exchange"] = float(np.median(rows["exchange"].min(axis=1)))
            kept["last_compute"] = float(np.median(rows["compute"].max(axis=1)))
        shutil.rmtree(fitted.run)
    comm.Barrier()
    return kept


class Vectors:
    """The part of a model that an exchange needs."""

    def __init__(self, n: int) -> None:
        self.x, self.g = np.zeros(n, np.float32), np.ones(n, np.float32)

    def place(self, x: np.ndarray, g: np.ndarray) -> None:
        x[...] = self.x
        self.x, self.g = x, g


def measure_exchanges(comm: Any, size: int, hosts: int, seconds: float) -> dict[str, list[float]]:
    """Seconds of each collective's exchange of a gradient of this many elements."""
    from paceline.collectives import make_exchange

    found = {}
    for name in collectives(hosts):
        model = Vectors(size)
        with make_exchange(name, model, comm) as exchange:
            found[name] = slowest(comm, partial(exchange_once, comm, model, exchange), seconds)
    return found


def exchange_once(
    comm: Any, model: Vectors, exchange: Any, clock: Callable[[], float] = time.perf_counter
) -> float:
    model.g[...] = 1  # just computed: in this core's cache
    comm.Barrier()
    start = clock()
    exchange.reduce()
    exchange.publish()
    return clock() - start


def simulate_exchange(comm: Any, size: int, name: str) -> float:
    """The same on simulated ranks: mean seconds of a few exchanges of a rank."""
    from paceline.collectives import make_exchange

    model = Vectors(size)
    with make_exchange(name, model, comm) as exchange:
        laps = [exchange_once(comm, model, exchange, comm.Wtime) for _ in range(4)]
    return statistics.fmean(laps[1:])


def slowest(comm: Any, once: Callable[[], float], seconds: float) -> list[float]:
    """Call a collective function as often as time allows: percentiles 10, 50 and 90 of the slowest rank's seconds."""
    from paceline.comm import mpi_of

    MPI = mpi_of(comm)
    first = np.array([max(once() for _ in range(3))])
    comm.Allreduce(MPI.IN_PLACE, first, MPI.MAX)
    count = int(np.clip(seconds / (first[0] + 20e-6), 5, 500))
    laps = np.array([once() for _ in range(count)])
    comm.Allreduce(MPI.IN_PLACE, laps, MPI.MAX)
    return [float(value) for value in np.percentile(laps, [10, 50, 90])]


def measure_behind(comm: Any, seconds: float) -> list[dict]:
    """Non-blocking Allreduces behind computing: from their start to their end, and what of it was left after computing."""
    found = []
    for nbytes in BEHIND:
        for computing, tests in COMPUTING:
            rest: list[float] = []
            whole = slowest(comm, partial(reduce_behind, comm, nbytes // 4, computing, tests, rest), seconds)
            found.append({
                "bytes": nbytes, "computing": computing, "tests": tests, "whole": whole, "rest": statistics.median(rest),
            })  # fmt: skip
    return found


def reduce_behind(comm: Any, size: int, computing: float, tests: int, rest: list[float]) -> float:
    """Compute for some seconds behind an Iallreduce, with calls of Test at even intervals."""
    values, total = np.ones(size, np.float32), np.zeros(size, np.float32)
    a = np.full((32, 32), 1 / 32, np.float32)
    comm.Barrier()
    start = time.perf_counter()
    request = comm.Iallreduce(values, total)
    begun = time.perf_counter()
    for part in range(1, tests + 2):
        until, b = begun + computing * part / (tests + 1), a
        while time.perf_counter() < until:
            b = a @ b
        if part <= tests:
            request.Test()
    before = time.perf_counter()
    request.Wait()
    end = time.perf_counter()
    rest.append(end - before)
    return end - start


def median_of(found: list[Any]) -> Any:
    """The medians of the numbers in things of the same shape; of all else the first."""
    first = found[0]
    if isinstance(first, dict):
        return {key: median_of([one[key] for one in found if key in one]) for key in first}
    if isinstance(first, list):
        return [median_of(list(some)) for some in zip(*found, strict=False)]
    if not isinstance(first, float):
        return first
    known = [one for one in found if one == one]  # NaN: not measured
    return statistics.median(known) if known else first


def median_step(strategy: str, run: str) -> float:
    """The middle one of the steps that all ranks take together; of a server's gradients the mean."""
    from paceline.record import Run

    record = Run(run)
    if strategy.startswith("parameter-server"):
        return record.summary["train_seconds"] / record.summary["steps"]
    steps = record.steps
    took = steps["compute"] + steps["exchange"] + steps["update"]
    return float(np.median(np.bincount(steps["step"], took) / np.bincount(steps["step"])))


def mean_step(run: dict) -> float:
    """The mean time of a step: what a run takes, without evaluation, divided by its steps."""
    if run["strategy"].startswith("parameter-server"):
        return run["train_seconds"] / run["steps"]
    return sum(run["seconds"][kind] for kind in ("compute", "exchange", "wait", "update"))


def predict(args: argparse.Namespace) -> None:
    given = json.loads(args.measured.read_text())
    hosts = given.get("hosts", 1)
    result: dict = {**where(), "measured": args.measured.name, "rows": []}
    if hosts > 1:
        loads = [one["load"] for found in given["ranks"].values() for one in found["repeats"]]
        result |= {"hosts": hosts, "rate": given["rate"], "load": loads, "measured_on": given["machine"]}
    with write_calibration(given) as machine:
        for kind in SETTINGS:
            by_case: dict[tuple[str, int], list[dict]] = {}
            for p, found in given["ranks"].items():
                for run in (
                    run for repeat in found["repeats"] for run in repeat["runs"] if run["setting"] == kind
                ):
                    by_case.setdefault((run["strategy"], int(p)), []).append(run)
            for (strategy, ranks), runs in sorted(by_case.items()):
                costs = machine[kind, work_of(strategy, hosts)]
                one = simulate(
                    settings(strategy, ranks, kind, hosts),
                    ranks,
                    machine["network", ranks],
                    costs,
                    compute=False,
                )[1]
                seconds = [mean_step(run) for run in runs]
                measured, middle = (
                    statistics.median(seconds),
                    statistics.median(run["step_seconds"] for run in runs),
                )
                result["rows"].append({
                    "setting": kind, "strategy": strategy, "ranks": ranks, "measured": measured, "low": min(seconds),
                    "high": max(seconds), "predicted": mean_step(one), "error": mean_step(one) / measured - 1,
                    "median_error": one["step_seconds"] / middle - 1, "predicted_seconds": one["seconds"],
                })  # fmt: skip
        if hosts > 1:
            result["rows"] += exchanges(given, machine)
            result["networks"] = machine["networks"]
        print_rows(result)
        if args.accuracy:
            costs, network = machine["reference", "parameter-server"], machine["network", 16]
            result["accuracy"] = accuracies(json.loads(args.accuracy.read_text()), network, costs, args.seeds)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    if args.plot:
        plot(result["rows"], args.plot)


def exchanges(given: dict, machine: dict[Any, Any]) -> list[dict]:
    """Rows of the exchange of an array with each collective between hosts, measured and simulated."""
    from paceline import vmpi
    from paceline.machine import load_network, make_compute

    rows = []
    for p, found in given["ranks"].items():
        network = load_network(machine["network", int(p)])
        compute = make_compute(network.node, None, cores=None)
        for nbytes in SIZES:
            for name in collectives(given["hosts"]):
                several = [one["exchange"][str(nbytes)][name] for one in found["repeats"]]
                middles = [middle for _, middle, _ in several]
                outcome = vmpi.run(
                    simulate_exchange,
                    nbytes // 4,
                    name,
                    ranks=int(p),
                    network=network,
                    compute=compute,
                    strict=False,
                )
                predicted, measured = max(outcome.values), statistics.median(middles)
                rows.append({
                    "setting": f"{nbytes} B", "strategy": f"exchange:{name}", "ranks": int(p), "measured": measured,
                    "low": min(middles), "high": max(middles), "predicted": predicted,
                    "error": predicted / measured - 1, "median_error": predicted / measured - 1,
                })  # fmt: skip
    return rows


@contextmanager
def write_calibration(given: dict) -> Iterator[dict[Any, Any]]:
    """Write what was calibrated to the files that a simulation takes: a machine as its network, and the costs of each job.

    Between hosts, the costs of work are those of the ranks of one host, measured while all hosts were working.
    """
    from paceline.machine import make_costs, make_machine, network_of

    cores, processor = given["machine"]["cores"], given["machine"]["processor"]
    hosts = given.get("hosts", 1)
    by_ranks = {int(p): median_of(found["repeats"]) for p, found in given["ranks"].items()}
    inside = given["inside"].values() if hosts > 1 else [one["messages"] for one in by_ranks.values()]
    with tempfile.TemporaryDirectory() as folder:
        files: dict[Any, Any] = {"networks": {}}
        machine = replace(make_machine(list(inside)), cores=cores, processor=processor)
        for p, one in by_ranks.items():
            network = str(network_of(one["between"])) if hosts > 1 else ""
            files["networks"][p] = network
            files["network", p] = str(Path(folder) / f"machine-{p}.json")
            replace(machine, network=network).save(files["network", p])
        by_ranks = {p // hosts: one for p, one in by_ranks.items()}
        for kind in SETTINGS:
            answers = {p: one["work"][kind]["local-sgd"] for p, one in by_ranks.items()}
            alone = make_costs(job_of("local-sgd", 16, kind), answers, own=False, cores=cores)
            for name in next(iter(by_ranks.values()))["work"][kind]:
                strategy = SERVER if name == "parameter-server" else name
                answers = {1: given["alone"][kind]} if hosts == 1 else {}
                for p, one in by_ranks.items():
                    work = one["work"][kind]
                    answers[p] = {"alone": work["local-sgd"]["alone"], "more": {}, **work[name]}
                costs = make_costs(job_of(strategy, 16, kind), answers, cores=cores)
                files[kind, name] = str(Path(folder) / f"costs-{len(files)}.json")
                # Computing is as uneven with every strategy.
                replace(costs, spread=alone.spread, spreads=alone.spreads).save(files[kind, name])
        yield files


def simulate(settings: dict, ranks: int, network: str, costs: str, *, compute: bool) -> tuple[Fitted, dict]:
    """Simulate a run; return it, and where the time of a step went, as `train_once` does."""
    from paceline import fit

    strategy = settings["strategy"]
    with tempfile.TemporaryDirectory() as runs:
        fitted = fit(
            **settings, ranks=ranks, on="sim", network=network, machine=costs, compute=compute, runs=runs, quiet=True,
        )  # fmt: skip
        return fitted, {
            "strategy": strategy, "steps": fitted.steps, "train_seconds": fitted.train_seconds,
            "seconds": {name: taken / fitted.steps for name, taken in fitted.seconds.items()},
            "step_seconds": median_step(strategy, str(fitted.run)),
        }  # fmt: skip


def print_rows(result: dict) -> None:
    print(
        f"{'us a step':42}{'setting':>11}{'ranks':>6}{'measured':>10}{'low':>9}{'high':>9}{'predicted':>11}{'error':>8}"
    )
    for row in result["rows"]:
        micro = [1e6 * row[name] for name in ("measured", "low", "high", "predicted")]
        print(
            f"{row['strategy']:42}{row['setting']:>11}{row['ranks']:6}{micro[0]:10.0f}{micro[1]:9.0f}{micro[2]:9.0f}"
            f"{micro[3]:11.0f}{100 * row['error']:+7.0f}%"
        )
    for what, name in (("error", "error of the mean step"), ("median_error", "error of the median step")):
        kinds: dict[str, list[float]] = {}
        for row in result["rows"]:
            strategy = row["strategy"].partition(":")[0]
            for kind in (f"{row['setting']}, {strategy}", row["setting"], strategy, "all"):
                kinds.setdefault(kind, []).append(abs(row[what]))
        result[name] = {
            kind: {"median": statistics.median(e), "largest": max(e)} for kind, e in kinds.items()
        }
        for kind, errors in kinds.items():
            middle, most = 100 * statistics.median(errors), 100 * max(errors)
            print(
                f"{name}, {kind}: median {middle:.1f} %, largest {most:.0f} %, of {len(errors)} cases",
                flush=True,
            )


def accuracies(measured: dict, network: str, costs: str, seeds: int) -> dict:
    """The parameter server's runs of benchmarks/asynchronous.py, simulated with their gradients."""
    found = {}
    print(f"{'accuracy':30}{'measured':>10}{'simulated':>11}{'points':>8}{'staleness':>11}{'simulated':>11}")
    for name, words, ranks in (
        ("2 masters + 6 workers", "masters=2", 8),
        ("4 masters + 12 workers", "masters=4,placement=even", 16),
    ):
        runs = [
            simulate(
                {**SETTING, "strategy": f"parameter-server:{words}", "draws": 632, "batch": 16, "epochs": 5, "seed": seed},
                ranks, network, costs, compute=True,
            )[0]
            for seed in range(seeds)
        ]  # fmt: skip
        right = [100 * run.test_accuracy for run in runs]
        stale = [run.findings["staleness"]["mean"] for run in runs]
        real, old = measured["accuracy"][name][:seeds], measured["staleness"][name][:seeds]
        found[name] = {"measured": real, "simulated": right, "staleness": old, "simulated_staleness": stale}
        means = [statistics.fmean(values) for values in (real, right, old, stale)]
        print(
            f"{name:30}{means[0]:10.2f}{means[1]:11.2f}{means[1] - means[0]:+8.2f}{means[2]:11.1f}{means[3]:11.1f}"
        )
    return found


def plot(rows: list[dict], path: Path) -> None:
    with figures.settings("paceline"):
        page = blank_page(480, 440, layout="constrained")
        axes = page.subplots()
        every = [1e3 * row[name] for row in rows for name in ("measured", "predicted")]
        ends = [0.8 * min(every), 1.25 * max(every)]
        axes.plot(ends, ends, color=GREY, linewidth=0.8)
        axes.fill_between(
            ends, [0.85 * end for end in ends], [1.15 * end for end in ends], color=FAINT, label="within 15 %"
        )
        markers = {2: "o", 4: "s", 8: "^", 16: "D"}
        names = [row["strategy"].replace("sync:allreduce=", "").partition(":")[0] for row in rows]
        # The server has the colour of a collective that is not shown: its own is that of shared memory.
        shown = {name: "auto" if name == "parameter-server" else name for name in names}
        colours = {name: style_of(look).colour for name, look in shown.items()}
        for name, row in zip(names, rows, strict=True):
            axes.plot(
                1e3 * row["measured"], 1e3 * row["predicted"], markers[row["ranks"]], markersize=6, alpha=0.9,
                color=colours[name], markeredgecolor="white", markeredgewidth=0.5,
            )  # fmt: skip
        for name, colour in colours.items():
            label = f"sync, {name}" if name in COLLECTIVES else name
            axes.plot([], [], "o", color=colour, label=label)
        for ranks, marker in markers.items():
            axes.plot([], [], marker, color=GREY, label=f"{ranks} ranks")
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
        axes.set_xlabel("measured, ms per step")
        axes.set_ylabel("simulated, ms per step")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:.0e}"[0] in "25" else "")
        axes.set_title("Time per step, simulated and measured, on 16 cores", fontsize=11)
        axes.legend(fontsize=8, frameon=False, loc="upper left", ncols=2)
        axes.spines[["top", "right"]].set_visible(False)
        figures.save_page(page, path)


def read_rate(text: str) -> str:
    sys.path.insert(0, str(ROOT))
    from tools.hosts.network import bytes_per_second

    bytes_per_second(text)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    first = commands.add_parser("measure")
    first.add_argument("--json", type=Path, required=True)
    first.add_argument("--ranks", help="in all; default: 2,4,8,16, or one on each host")
    first.add_argument(
        "--hosts", type=int, help="divide the ranks among this many hosts made from this machine"
    )
    first.add_argument(
        "--rate",
        type=read_rate,
        default="1gbit",
        help="of each host's network, as tc spells it; default: 1gbit",
    )
    first.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    first.add_argument("--minutes", type=float, default=7.0, help="in all")
    first.add_argument("--seconds", type=float, default=1.0, help="a scale for each measurement of a repeat")
    first.set_defaults(main=measure)
    second = commands.add_parser("predict")
    second.add_argument("measured", type=Path)
    second.add_argument("--json", type=Path)
    second.add_argument("--plot", type=Path)
    second.add_argument("--accuracy", type=Path)
    second.add_argument("--seeds", type=int, default=5)
    second.set_defaults(main=predict)
    args = parser.parse_args()
    args.main(args)


if __name__ == "__main__":
    main()
