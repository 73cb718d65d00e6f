"""Steps of a small global batch: one process, whole gradients in shared memory, factors in shared memory, in one run.

    python benchmarks/factored.py [--ranks 4] [--batch 16] [--hidden 128,64] [--seconds 3] [--json FILE]

MNIST, the reference network (784-128-64-10), float32, plain SGD, one thread a rank; batch 16 is the reference course's
setting. A step is everything: samples gathered, gradient, exchange, update. The sides take turns of 100 steps, so that
a noisy moment falls on all; while one process computes alone the other ranks sleep. The parts of a step are means over
the ranks of the median turn; what a rank waits for others is in `reduce` and `publish`.
Also under one's own launcher: `mpiexec -n 4 python benchmarks/factored.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from where import where

from paceline import launch
from paceline.collectives import Factored, factors_pay, make_exchange
from paceline.data import Batch, Batches, load
from paceline.launch import mpi
from paceline.models.mlp import MLP, build
from paceline.updates.sgd import Sgd

STEPS = 100
RATE = 0.1
PARTS = ("samples", "gradient", "reduce", "update", "publish")
ONE = "one process"


def forever(batches: Batches) -> Iterator[Batch]:
    epoch = 0
    while True:
        yield from batches.epoch(epoch)
        epoch += 1


def turn_of(model: MLP, batches: Batches, exchange: Any) -> Callable[[], list[float]]:
    """A function that takes some steps; microseconds of each part of a step. Without an exchange: alone."""
    update, pieces, now = Sgd(), forever(batches), time.perf_counter
    part = slice(None) if exchange is None else exchange.part
    state = update.start(model.x[part])

    def turn() -> list[float]:
        spent = [0.0] * len(PARTS)
        t0 = now()
        for _ in range(STEPS):
            batch = next(pieces)
            t1 = now()
            model.gradient(batch)
            t2 = now()
            g = model.g if exchange is None else exchange.reduce()
            t3 = now()
            update.apply(model.x[part], g, RATE, state, 1 / batch.total)
            t4 = now()
            if exchange is not None:
                exchange.publish()
            t5 = now()
            for i, seconds in enumerate((t1 - t0, t2 - t1, t3 - t2, t4 - t3, t5 - t4)):
                spent[i] += seconds
            t0 = t5
        return [1e6 * seconds / STEPS for seconds in spent]

    return turn


def sleep_until_all_are_here(comm: Any) -> None:
    """A barrier that leaves the core to others."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.0005)


def measure(comm: Any, batch: int, hidden: list[int], seconds: float) -> dict[str, list[list[float]]]:
    """The parts of a step, of every turn of each side, means over the ranks; on rank 0."""
    data = load("mnist")
    model = {name: build(data, *hidden) for name in (ONE, "whole gradients", "factors")}
    mine = dict(batch=batch, draws=1000, rank=comm.rank, ranks=comm.size)
    turns = {ONE: turn_of(model[ONE], Batches(data.train, batch=batch, draws=1000), None)}
    opened = {
        "whole gradients": make_exchange("shared-memory", model["whole gradients"], comm),
        "factors": Factored(model["factors"], comm, batch),  # also where `make_exchange` would not
    }
    for name, exchange in opened.items():
        turns[name] = turn_of(model[name], Batches(data.train, **mine), exchange)
    times: dict[str, list[list[float]]] = {name: [] for name in turns}
    until, going = time.perf_counter() + seconds, True
    while going:
        for name, turn in turns.items():
            sleep_until_all_are_here(comm)
            if name == ONE:
                parts = turn() if comm.rank == 0 else None
            else:
                comm.Barrier()
                parts = np.mean(comm.allgather(turn()), axis=0).tolist()
            if parts is not None:
                times[name].append(parts)
        going = comm.bcast(len(times["factors"]) < 5 or time.perf_counter() < until)
    for exchange in opened.values():
        exchange.close()
    if comm.rank == 0:
        check(model)
    return {name: turns[1:] for name, turns in times.items()}  # the first is a warm-up


def check(model: dict[str, MLP]) -> None:
    """All sides have taken the same steps."""
    for name in ("whole gradients", "factors"):
        worst = float(np.abs(model[name].x - model[ONE].x).max())
        if not worst < 1e-2:
            raise SystemExit(f"{name}: parameters differ by {worst} from those of one process")


def print_header(comm: Any) -> None:
    cores = launch.machine_cores()
    crowded = "" if comm.size <= cores else " (more ranks than cores: the times say little)"
    print(f"{comm.size} ranks on {cores} cores{crowded}; microseconds a step; * what make_exchange chooses\n")
    parts = "".join(f"{part:>10}" for part in PARTS)
    print(f"{'batch':>5} {'':18}{'median':>8}{'fastest':>9}{'x one process':>15}  |{parts}", flush=True)


def print_rows(batch: int, chosen: str, times: dict[str, list[list[float]]]) -> None:
    steps = {name: [sum(parts) for parts in turns] for name, turns in times.items()}
    one = float(np.median(steps[ONE]))
    for name, turns in times.items():
        typical = turns[int(np.argsort(steps[name])[len(turns) // 2])]
        median = float(np.median(steps[name]))
        row = f"{batch:5} {name + ' *' * (name == chosen):18}{median:8.1f}{min(steps[name]):9.1f}{one / median:15.2f}"
        print(f"{row}  |" + "".join(f"{part:10.1f}" for part in typical), flush=True)


def rank_main(args: argparse.Namespace) -> None:
    comm = mpi().COMM_WORLD
    result: dict[str, Any] = {**where(), "ranks": comm.size, "parts": PARTS, "batches": {}}
    hidden = [int(units) for units in args.hidden.split(",")]
    if comm.rank == 0:
        print_header(comm)
    for batch in map(int, args.batch.split(",")):
        times = measure(comm, batch, hidden, args.seconds)
        if comm.rank == 0:
            chosen = (
                "factors" if factors_pay(MLP([784, *hidden, 10]), batch, comm.size) else "whole gradients"
            )
            print_rows(batch, chosen, times)
            result["batches"][batch] = times
    if comm.rank == 0 and args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--batch", default="16", help="global batch sizes")
    parser.add_argument("--hidden", default="128,64", help="units of the hidden layers")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each batch size; default: 3")
    parser.add_argument("--json", type=Path, help="write every turn measured")
    args = parser.parse_args()
    if launch.world() is None:
        return launch.run(args.ranks, [sys.executable, __file__, *sys.argv[1:]], threads=1, bind=True)
    launch.take_cores()
    with launch.abort_on_error(mpi().COMM_WORLD):
        rank_main(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
