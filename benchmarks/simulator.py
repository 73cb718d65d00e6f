"""How fast the simulator is, and how much memory its ranks take.

    python benchmarks/simulator.py [--json FILE] [--only messages,ring,epoch,memory,largest]
    python benchmarks/simulator.py --only messages --against ../other/src    # two versions in turns, and their ratio

Each figure is of a process of its own, on one core. `seconds` are those of the processor, so that other programs disturb
them less; what else shares the core's caches still does: `programs_waiting`, the load of the machine when the case began,
says how many ran (0: none). `wall_seconds` and `peak_megabytes` are of the whole case, with the import of its modules.
"messages": every rank sends 1 KiB to its neighbour. "ring": one ring allreduce of 1 MiB on 1,024 ranks. "epoch": an epoch
of sync with recursive doubling on 4,096 ranks of a 10 Gbit network, time alone. "memory": the reference network really
trained on 1,024 ranks. "largest": ten steps of sync with recursive doubling on 65,536 ranks, time alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from where import where

REFERENCE: dict[str, Any] = {
    "model": "mlp:128,64",
    "data": "mnist",
    "lr": 1.6,
    "runs": None,
    "quiet": True,
    "on": "sim",
}


def messages() -> dict[str, float]:
    import numpy as np

    from paceline import vmpi

    def neighbours(comm: Any, rounds: int) -> None:
        rank, size = comm.Get_rank(), comm.Get_size()
        here, there = np.zeros(256, np.float32), np.zeros(256, np.float32)
        for _ in range(rounds):
            receiving = comm.Irecv(there, (rank - 1) % size)
            sending = comm.Isend(here, (rank + 1) % size)
            receiving.Wait()
            sending.Wait()

    found = {}
    for name, strict in (("messages_per_second", False), ("messages_per_second_strict", True)):
        rates = []
        for _ in range(5):
            start = time.process_time()
            outcome = vmpi.run(neighbours, 200, ranks=256, strict=strict)
            rates.append(outcome.messages / (time.process_time() - start))
        found[name] = sorted(rates)[2]
    return found


def ring() -> dict[str, float]:
    import numpy as np

    from paceline import vmpi
    from paceline.collectives import allreduce

    def sums(comm: Any) -> bool:
        mine, total = np.full(1 << 18, comm.Get_rank(), np.float32), np.empty(1 << 18, np.float32)
        allreduce(mine, total, comm, algorithm="ring")
        return bool((total == comm.Get_size() * (comm.Get_size() - 1) // 2).all())

    start = time.process_time()
    outcome = vmpi.run(sums, ranks=1024, strict=False)
    seconds = time.process_time() - start
    assert all(outcome.values)
    return {
        "seconds": seconds,
        "messages": outcome.messages,
        "messages_per_second": outcome.messages / seconds,
    }


def epoch() -> dict[str, float]:
    return _time_training(
        ranks=4096,
        batch=4096,
        epochs=1,
        strategy="sync:allreduce=recursive-doubling",
        network="10gbe",
        compute=False,
    )


def memory() -> dict[str, float]:
    return _time_training(
        ranks=1024,
        batch=16_384,
        epochs=1,
        strategy="sync:allreduce=recursive-doubling",
        network="10gbe",
        draws=3,
    )


def largest() -> dict[str, float]:
    return _time_training(
        ranks=65_536, batch=50_000, epochs=1, draws=10, strategy="sync:allreduce=recursive-doubling", network="infiniband",
        compute=False,
    )  # fmt: skip


def _time_training(**settings: Any) -> dict[str, float]:
    import paceline

    start = time.process_time()
    fitted = paceline.fit(**REFERENCE, **settings)
    seconds = time.process_time() - start
    return {
        "seconds": seconds,
        "steps": fitted.steps,
        "messages": fitted.messages_sent,
        "virtual_seconds": fitted.train_seconds,
    }


CASES = {case.__name__: case for case in (messages, ring, epoch, memory, largest)}


def run_case(name: str, source: Path | None = None) -> dict[str, float]:
    """Run a case in a process of its own, with this version or with one from another folder."""
    environment = dict(os.environ) if source is None else os.environ | {"PYTHONPATH": str(source.resolve())}
    done = subprocess.run(
        [sys.executable, __file__, "--case", name],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=environment,
    )
    return json.loads(done.stdout.splitlines()[-1])


def compare(names: list[str], other: Path, turns: int) -> None:
    """Run two versions in turns; print the best and the median of each figure, and the ratios."""
    for name in names:
        runs = [(run_case(name, other), run_case(name)) for _ in range(turns)]
        for key in runs[0][0]:
            before, after = ([run[side][key] for run in runs] for side in (0, 1))
            best = min if "seconds" in key else max
            print(
                f"{name:10}{key:28} best {best(before):,.6g} -> {best(after):,.6g} ({best(after) / best(before):.3f}), "
                f"median {median(before):,.6g} -> {median(after):,.6g} ({median(after) / median(before):.3f})",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument(
        "--against", type=Path, help="the folder src of another version, to be run in turns with this one"
    )
    parser.add_argument("--turns", type=int, default=5, help="turns of each version (default 5)")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        busy, start = os.getloadavg()[0], time.perf_counter()
        found = CASES[args.case]()
        found["wall_seconds"] = time.perf_counter() - start
        found["programs_waiting"] = busy
        found["peak_megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(found))
        return
    if args.against:
        compare(args.only.split(","), args.against, args.turns)
        return
    result: dict = {**where(), "cases": {}}
    for name in args.only.split(","):
        result["cases"][name] = found = run_case(name)
        print(f"{name:10}" + ", ".join(f"{key} {value:,.6g}" for key, value in found.items()), flush=True)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
