"""How much faster really trained simulated ranks are on several cores.

    python benchmarks/together.py [--cores 1,2,4,8,16] [--cases mlp-256,cnn] [--repeat 3] [--limit 600] [--json FILE]
    python benchmarks/together.py --curve [--jobs 16,1] [--draws 3160] [--ranks 1..256] [--limit 600] [--json FILE]

Each run is a process of its own, on so many cores: 64 simulated ranks (and one master for parameter-server), a network
that is fast enough not to matter, costs that are made up. "before" reads samples and computes a gradient when its rank
asks for it, on one core, as the simulator did before gradients were computed together. Seconds are those of the
simulation itself, without imports and reading data; the best of `--repeat` runs, in turns. A row is printed as soon as
all its columns are measured once more, and no run begins after `--limit` seconds.

"main": the processor time of the main process with most cores, in percent of the seconds with one: what no number of
cores can shorten. "cpu": the processor time of all processes with most cores, compared with one. "passes": the part of the
gradients and evaluations that other processes computed. Final parameters must be the same for all numbers of cores.

`--curve`: accuracy against workers, five strategies, the reference network, by `paceline simulate scaling --accuracy`, with
each number of jobs in turn. The predictions must be the same for all numbers of jobs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from where import where

MLP, CNN = {"model": "mlp:128,64", "data": "mnist"}, {"model": "cnn", "data": "mnist"}
CASES: dict[str, dict[str, Any]] = {
    "mlp-small": {"model": "mlp:16", "data": "digits", "strategy": "local-sgd", "batch": 16, "draws": 19200},
    "mlp-16": {**MLP, "strategy": "local-sgd", "batch": 16, "draws": 6400},
    "mlp-256": {**MLP, "strategy": "local-sgd", "batch": 256, "draws": 6400},
    "mlp-256-sync": {**MLP, "strategy": "sync:allreduce=native", "batch": 64 * 256, "draws": 100},
    "mlp-256-gossip": {**MLP, "strategy": "gossip", "batch": 256, "draws": 6400},
    "cnn": {**CNN, "strategy": "local-sgd", "batch": 16, "draws": 3200},
    "cnn-sync": {**CNN, "strategy": "sync:allreduce=native", "batch": 64 * 16, "draws": 50},
    "cnn-server": {**CNN, "strategy": "parameter-server", "batch": 16, "draws": 3200, "ranks": 65},
    "cnn-hogwild": {**CNN, "strategy": "hogwild", "batch": 16, "draws": 3200, "network": "loopback"},
}
# Costs of an MLP, about, and of networks that are not; whether a gradient waits for others depends on them.
GRADIENT = {"mlp": [[1, 5e-5], [16, 2e-4], [256, 2e-3]], "cnn": [[1, 1e-3], [16, 6e-3], [256, 6e-2]]}
WORK = {
    "evaluate": [[1, 2e-5], [100, 2e-3]],
    "update": [[1, 5e-10]],
    "rule": [[1, 1e-9]],
}


STRATEGIES = ("sync", "local-sgd", "gossip", "elastic", "parameter-server")


def made_up(model: str) -> Any:
    """Return costs that were not measured."""
    from paceline.machine import Costs
    from paceline.vmpi import Curves

    work = {**WORK, "gradient": GRADIENT[model]}
    return Costs(work={kind: Curves.of({1: table}) for kind, table in work.items()}, about="made up")


def curve(jobs: Sequence[int], draws: int, ranks: str, limit: float) -> dict[str, Any]:
    """Print how long accuracy against workers takes, and return it; exit if the predictions differ."""
    found: dict[str, Any] = {}
    end = time.monotonic() + limit
    predicted = None
    print(f"{'jobs':>5}{'seconds':>10}{'cpu':>10}  load", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        made_up("mlp").save(Path(folder) / "costs.json")
        for count in jobs:
            words = [word for name in STRATEGIES for word in ("--strategy", name)]
            words += [
                "--ranks",
                ranks,
                "--draws",
                str(draws),
                "--jobs",
                str(count),
                "--machine",
                f"{folder}/costs.json",
            ]
            words += [
                "--model",
                MLP["model"],
                "--data",
                MLP["data"],
                "--batch",
                "16",
                "--epochs",
                "1",
                "--threads",
                "1",
            ]
            words += ["--network", "10gbe", "--accuracy", "--quiet", "-o", f"{folder}/out"]
            before, start_at = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            try:
                done = subprocess.run(
                    [sys.executable, "-m", "paceline", "simulate", "scaling", *words],
                    stdout=subprocess.PIPE, text=True, check=True, timeout=max(1.0, end - time.monotonic()),
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                print(f"{count:>5}  stopped after {limit:g} s", flush=True)
                break
            seconds, after = time.perf_counter() - start_at, resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            print(f"{count:>5}{seconds:10.1f}{cpu:10.1f}  {os.getloadavg()[0]:.1f}", flush=True)
            found[str(count)] = {"seconds": seconds, "cpu_seconds": cpu, "load": os.getloadavg()[0]}
            if predicted not in (None, done.stdout):
                sys.exit("the prediction depends on the number of jobs")
            predicted = done.stdout
    print(predicted)
    return found


def measure(name: str, cores: int) -> dict[str, Any]:
    """Run a case in this process; `cores` 0: as before."""
    import numpy as np

    import paceline
    from paceline.simulate import together, training

    seconds, passes = [0.0, 0.0], [0, 0]
    run, costed, queue, compute = (
        training.Simulation.run,
        training.add_costs,
        together.Forked._queue,
        together.Threads.__call__,
    )

    def timed_run(self: Any, *given: Any) -> Any:
        start, cpu = time.perf_counter(), time.process_time()
        found = run(self, *given)
        seconds[:] = time.perf_counter() - start, time.process_time() - cpu
        return found

    def counted_queue(self: Any, work: Any) -> None:
        queue(self, work)
        passes[1] += 1

    def counted_compute(self: Any, works: Any) -> None:
        passes[0] += len(works)
        compute(self, works)

    def at_once(*given: Any, **named: Any) -> Any:
        return costed(*given, **{**named, "outstanding": None})

    training.Simulation.run = timed_run  # type: ignore[method-assign]
    together.Forked._queue = counted_queue  # type: ignore[method-assign]
    together.Threads.__call__ = counted_compute  # type: ignore[method-assign]
    if cores == 0:
        training.add_costs, training.read_apart = at_once, lambda split: None
    costs = made_up(CASES[name]["model"].partition(":")[0])
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        costs.save(Path(file.name))
        settings = {"ranks": 64, "network": "infiniband", "lr": 0.1, "jitter": 0.1, **CASES[name]}
        fitted = paceline.fit(
            **settings, epochs=1, runs=None, quiet=True, on="sim", machine=file.name, threads=1,
            compute_threads=max(cores, 1),
        )  # fmt: skip
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": seconds[0],
        "main_cpu_seconds": seconds[1],
        "cpu_seconds": seconds[1] + others.ru_utime + others.ru_stime,
        "passes": passes[1] / max(sum(passes), 1),
        "parameters": hashlib.sha256(np.asarray(fitted.model.x).tobytes()).hexdigest()[:16],
    }


def start(name: str, count: int) -> dict[str, Any]:
    """Run a case in a process of its own, on so many cores."""
    cores = sorted(os.sched_getaffinity(0))[-max(count, 1) :]
    done = subprocess.run(
        [sys.executable, __file__, "--measure", name, "--cores", str(count)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cores = len(os.sched_getaffinity(0))
    usual = ",".join(str(n) for n in (1, 2, 4, 8, 16) if n <= cores)
    parser.add_argument("--cores", default=usual, help=f"numbers of cores (default: {usual})")
    parser.add_argument("--cases", default=",".join(CASES), help="of " + ", ".join(CASES))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--limit", type=float, default=600, help="seconds after which no run begins (default: 600)"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--curve", action="store_true", help="time accuracy against workers instead")
    parser.add_argument(
        "--jobs", default=f"{cores},1", help=f"numbers of jobs of --curve (default: {cores},1)"
    )
    parser.add_argument(
        "--draws", type=int, default=3160, help="gradients of each run of --curve (default: 3160)"
    )
    parser.add_argument("--ranks", default="1..256", help="numbers of ranks of --curve (default: 1..256)")
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure, int(args.cores))))
        return
    if args.curve:
        jobs = [int(word) for word in args.jobs.split(",")]
        found = curve(jobs, args.draws, args.ranks, args.limit)
        if args.json:
            args.json.write_text(json.dumps({**where(), "curve": found}, indent=1) + "\n")
        return
    names = args.cases.split(",")
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"no such case: {unknown[0]}; there are {', '.join(CASES)}")
    counts = [0, *(int(word) for word in args.cores.split(","))]
    heads = ["before", *(f"{n} cores" if n > 1 else "1 core" for n in counts[1:])]
    print(
        f"{'seconds':16}"
        + "".join(f"{head:>16}" for head in heads)
        + f"{'main':>8}{'cpu':>7}{'passes':>9}  runs  load",
        flush=True,
    )
    end = time.monotonic() + args.limit
    result: dict[str, Any] = {**where(), "cases": {}}
    runs: dict[str, dict[int, list[dict[str, Any]]]] = {name: {n: [] for n in counts} for name in names}
    for turn in range(args.repeat):
        for name in names:
            for n in counts:
                if time.monotonic() > end:
                    print(f"stopped after {args.limit:g} s", flush=True)
                    break
                runs[name][n].append(start(name, n))
            else:
                result["cases"][name] = show(name, runs[name], turn + 1)
                continue
            break
        else:
            continue
        break
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


def show(name: str, found: dict[int, list[dict[str, Any]]], runs: int) -> dict[str, Any]:
    """Print a row, and return its values; exit if parameters differ between numbers of cores."""
    if len({run["parameters"] for n, runs in found.items() if n for run in runs}) > 1:
        sys.exit(f"{name}: the parameters depend on the number of cores")
    load, (before, *others) = os.getloadavg()[0], found
    best = {n: min(runs, key=lambda run: run["seconds"]) for n, runs in found.items()}
    cpu = {n: min(run["cpu_seconds"] for run in runs) for n, runs in found.items()}
    same = "" if best[before]["parameters"] == best[others[0]]["parameters"] else "  parameters unlike before"
    told = [f"{best[n]['seconds']:9.2f} {best[before]['seconds'] / best[n]['seconds']:5.2f}x" for n in found]
    first, last = others[0], others[-1]
    print(
        f"{name:16}" + "".join(f"{text:>16}" for text in told)
        + f"{100 * best[last]['main_cpu_seconds'] / best[first]['seconds']:6.1f} %{cpu[last] / cpu[first]:6.2f}x"
        + f"{100 * best[last]['passes']:7.1f} %  {runs:4}  {load:.1f}{same}",
        flush=True,
    )  # fmt: skip
    return {str(n) if n else "before": {**best[n], "cpu_seconds": cpu[n]} for n in found} | {"load": load}


if __name__ == "__main__":
    main()
