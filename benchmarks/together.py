"""How much faster really trained simulated ranks are on several cores.

    python benchmarks/together.py [--threads 1,2,4,8,16] [--cases mlp-256,cnn] [--repeat 3] [--limit 600] [--json FILE]

Each run is a process of its own, on as many cores as it may have threads: 64 simulated ranks (and one master for
parameter-server), a network that is fast enough not to matter, costs that are made up. "before" reads samples and computes
a gradient when its rank asks for it, on one core, as the simulator did before gradients were computed together. Seconds
are those of the simulation itself, without imports and reading data; the best of `--repeat` runs, in turns. A row is
printed as soon as all its columns are measured once more, and no run begins after `--limit` seconds.

"share": the part of the simulation with one thread that is spent on what can be computed together. "at once": the mean
number of gradients and evaluations that were computed together with most threads. "cpu1" and "cpu": the processor time
with one thread and with most threads, compared with before. Final parameters must be the same for all numbers of threads.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from where import where

MLP, CNN = {"model": "mlp:128,64", "data": "mnist"}, {"model": "cnn", "data": "mnist"}
CASES: dict[str, dict[str, Any]] = {
    "mlp-small": {"model": "mlp:16", "data": "digits", "strategy": "local-sgd", "batch": 16, "draws": 19200},
    "mlp-16": {**MLP, "strategy": "local-sgd", "batch": 16, "draws": 6400},
    "mlp-256": {**MLP, "strategy": "local-sgd", "batch": 256, "draws": 1920},
    "mlp-256-sync": {**MLP, "strategy": "sync:allreduce=native", "batch": 64 * 256, "draws": 30},
    "mlp-256-gossip": {**MLP, "strategy": "gossip", "batch": 256, "draws": 1920},
    "cnn": {**CNN, "strategy": "local-sgd", "batch": 16, "draws": 1280},
    "cnn-sync": {**CNN, "strategy": "sync:allreduce=native", "batch": 64 * 16, "draws": 20},
    "cnn-server": {**CNN, "strategy": "parameter-server", "batch": 16, "draws": 1280, "ranks": 65},
    "cnn-hogwild": {**CNN, "strategy": "hogwild", "batch": 16, "draws": 1280, "network": "loopback"},
}
# Costs of an MLP, about, and of networks that are not; whether a gradient waits for others depends on them.
GRADIENT = {"mlp": [[1, 5e-5], [16, 2e-4], [256, 2e-3]], "cnn": [[1, 1e-3], [16, 6e-3], [256, 6e-2]]}
WORK = {
    "evaluate": [[1, 2e-5], [100, 2e-3]],
    "update": [[1, 5e-10]],
    "rule": [[1, 1e-9]],
}


def measure(name: str, threads: int) -> dict[str, Any]:
    """Run a case in this process; `threads` 0: as before."""
    import numpy as np

    import paceline
    from paceline.machine import Costs
    from paceline.simulate import together, training
    from paceline.vmpi import Curves

    spent, sizes, seconds = [0.0], [0], [0.0, 0.0]
    compute, run, costed = together.Threads.__call__, training.Simulation.run, training.costed

    def timed_compute(self: Any, works: Any) -> None:
        start = time.perf_counter()
        compute(self, works)
        spent[0] += time.perf_counter() - start
        sizes.append(len(works))

    def timed_run(self: Any, *given: Any) -> Any:
        start, cpu = time.perf_counter(), time.process_time()
        found = run(self, *given)
        seconds[:] = time.perf_counter() - start, time.process_time() - cpu
        return found

    def at_once(*given: Any, **named: Any) -> Any:
        return costed(*given, **{**named, "outstanding": None})

    together.Threads.__call__, training.Simulation.run = timed_compute, timed_run  # type: ignore[method-assign]
    if threads == 0:
        training.costed, training.read_apart = at_once, lambda split: None
    work = {**WORK, "gradient": GRADIENT[CASES[name]["model"].partition(":")[0]]}
    costs = Costs(work={kind: Curves.of({1: table}) for kind, table in work.items()}, about="made up")
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        costs.save(Path(file.name))
        settings = {"ranks": 64, "network": "infiniband", "lr": 0.1, "jitter": 0.1, **CASES[name]}
        fitted = paceline.fit(
            **settings, epochs=1, runs=None, quiet=True, on="sim", machine=file.name, threads=1,
            compute_threads=max(threads, 1),
        )  # fmt: skip
    return {
        "seconds": seconds[0],
        "cpu_seconds": seconds[1],
        "share": spent[0] / seconds[0],
        "at_once": sum(sizes) / max(len(sizes) - 1, 1),
        "parameters": hashlib.sha256(np.asarray(fitted.model.x).tobytes()).hexdigest()[:16],
    }


def start(name: str, threads: int) -> dict[str, Any]:
    """Run a case in a process of its own, on as many cores as it has threads."""
    cores = sorted(os.sched_getaffinity(0))[-max(threads, 1) :]
    done = subprocess.run(
        [sys.executable, __file__, "--measure", name, "--threads", str(threads)],
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
    parser.add_argument("--threads", default=usual, help=f"numbers of threads (default: {usual})")
    parser.add_argument("--cases", default=",".join(CASES), help="of " + ", ".join(CASES))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--limit", type=float, default=600, help="seconds after which no run begins (default: 600)"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure, int(args.threads))))
        return
    names = args.cases.split(",")
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"no such case: {unknown[0]}; there are {', '.join(CASES)}")
    threads = [0, *(int(word) for word in args.threads.split(","))]
    heads = ["before", *(f"{n} thr" for n in threads[1:])]
    print(
        f"{'seconds':16}"
        + "".join(f"{head:>16}" for head in heads)
        + f"{'share':>8}{'at once':>9}{'cpu1':>7}{'cpu':>7}  runs  load",
        flush=True,
    )
    end = time.monotonic() + args.limit
    result: dict[str, Any] = {**where(), "cases": {}}
    found: dict[str, dict[int, list[dict[str, Any]]]] = {name: {n: [] for n in threads} for name in names}
    for turn in range(args.repeat):
        for name in names:
            for n in threads:
                if time.monotonic() > end:
                    print(f"stopped after {args.limit:g} s", flush=True)
                    break
                found[name][n].append(start(name, n))
            else:
                result["cases"][name] = show(name, found[name], turn + 1)
                continue
            break
        else:
            continue
        break
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


def show(name: str, found: dict[int, list[dict[str, Any]]], runs: int) -> dict[str, Any]:
    """Print a row, and return its values; exit if parameters differ between numbers of threads."""
    if len({run["parameters"] for n, runs in found.items() if n for run in runs}) > 1:
        sys.exit(f"{name}: the parameters depend on the number of threads")
    load, (before, *others) = os.getloadavg()[0], found
    best = {n: min(runs, key=lambda run: run["seconds"]) for n, runs in found.items()}
    cpu = {n: min(run["cpu_seconds"] for run in runs) for n, runs in found.items()}
    same = "" if best[before]["parameters"] == best[others[0]]["parameters"] else "  parameters unlike before"
    told = [f"{best[n]['seconds']:9.2f} {best[before]['seconds'] / best[n]['seconds']:5.2f}x" for n in found]
    first, last = others[0], others[-1]
    print(
        f"{name:16}" + "".join(f"{text:>16}" for text in told)
        + f"{100 * best[first]['share']:6.1f} %{best[last]['at_once']:9.1f}"
        + f"{cpu[first] / cpu[before]:6.2f}x{cpu[last] / cpu[before]:6.2f}x  {runs:4}  {load:.1f}{same}",
        flush=True,
    )  # fmt: skip
    return {str(n) if n else "before": {**best[n], "cpu_seconds": cpu[n]} for n in found} | {"load": load}


if __name__ == "__main__":
    main()
