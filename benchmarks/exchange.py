"""One training step's gradient exchange: shared memory against MPI's Allreduce, our collectives and gloo, in one run.

    python benchmarks/exchange.py [-n 16] [--sizes 437544,16MiB] [--seconds 5] [--json FILE]

Each row is what a step pays to get from every rank's own gradient in `model.g` to the sum that the update uses, and
the new parameters on every rank: for the exchange in shared memory two barriers and the sum of each rank's part; for
the others an allreduce of all of it, in place. A time is that of the slowest rank. All take turns, call by call, in
changing order, so that a noisy moment falls on all; gloo (torch.distributed, if torch is installed) runs in the same
processes.
Also under one's own launcher: `mpiexec -n 16 python benchmarks/exchange.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from pathlib import Path

import numpy as np
from where import where

from paceline import launch
from paceline.bench import read_sizes
from paceline.collectives import make_exchange
from paceline.launch import mpi
from paceline.text import size as spell_size

NAMES = ("shared-memory", "native", "ring", "recursive-doubling", "rabenseifner", "hierarchical", "naive")
CORES = os.cpu_count() or 1
PEERS = ("raw MPI_Allreduce", "gloo all_reduce")


class Vectors:
    """The part of a model that an exchange needs."""

    def __init__(self, n: int) -> None:
        self.x, self.g = np.zeros(n, np.float32), np.ones(n, np.float32)

    def place(self, x: np.ndarray, g: np.ndarray) -> None:
        x[...] = self.x
        self.x, self.g = x, g


def gloo(comm):
    """torch.distributed's all_reduce over gloo among the same processes, or None."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        return None
    torch.set_num_threads(1)
    port = 0
    if comm.rank == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(comm.bcast(port))}
    bound = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(CORES))  # gloo's own threads need not share this rank's core
    dist.init_process_group("gloo", rank=comm.rank, world_size=comm.size)
    dist.all_reduce(torch.zeros(1))
    os.sched_setaffinity(0, bound)
    return lambda array: dist.all_reduce(torch.from_numpy(array))


def steps(comm, n: int, all_reduce) -> tuple[dict, list]:
    """Name -> a function that does one step's exchange of n numbers; and what must be closed at the end."""
    MPI = mpi()
    made, opened = {}, []
    for name in NAMES:
        model = Vectors(n)
        exchange = make_exchange(name, model, comm)
        opened.append(exchange)

        def step(model=model, exchange=exchange) -> None:
            exchange.reduce()
            exchange.publish()

        made[name] = (step, model)
    plain, other = Vectors(n), Vectors(n)
    made[PEERS[0]] = (lambda: comm.Allreduce(MPI.IN_PLACE, plain.g), plain)
    if all_reduce is not None:
        made[PEERS[1]] = (lambda: all_reduce(other.g), other)
    return made, opened


def measure(comm, nbytes: int, seconds: float, all_reduce) -> dict[str, list[float]]:
    """Seconds of each call of each, slowest rank."""
    MPI = mpi()
    made, opened = steps(comm, nbytes // 4, all_reduce)
    times: dict[str, list[float]] = {name: [] for name in made}
    until = time.perf_counter() + seconds
    block = 20 if nbytes <= 1 << 20 else 4
    turn, going, order = 0, True, np.random.default_rng(0)
    while going:
        for name in order.permutation(list(made)):
            step, model = made[name]
            for call in range(block):
                model.g[...] = 1  # the gradient has just been computed: it is in this core's cache
                comm.Barrier()
                start = time.perf_counter()
                step()
                if turn and call >= block // 4:  # the first calls find what the others left in the caches
                    times[name].append(time.perf_counter() - start)
        turn += 1
        going = comm.bcast(turn < 4 or time.perf_counter() < until)
    for exchange in opened:
        exchange.close()
    slowest = {}
    for name, own in times.items():
        most = np.array(own)
        comm.Allreduce(MPI.IN_PLACE, most, MPI.MAX)
        slowest[name] = most.tolist()
    return slowest


def rank_main(args: argparse.Namespace) -> None:
    comm = mpi().COMM_WORLD
    library = mpi().Get_library_version().strip("\0 \n").splitlines()[0].split(",")[0]
    all_reduce = None if args.no_gloo else gloo(comm)
    result = {**where(), "ranks": comm.size, "mpi": " ".join(library.split()), "sizes": {}}
    for nbytes in read_sizes(args.sizes):
        times = measure(comm, nbytes, args.seconds, all_reduce)
        if comm.rank == 0:
            result["sizes"][nbytes] = times
            print_table(comm.size, nbytes, times, result["mpi"])
    if comm.rank == 0 and args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    if all_reduce is not None:
        import torch.distributed as dist

        comm.Barrier()
        dist.destroy_process_group()


def print_table(ranks: int, nbytes: int, times: dict[str, list[float]], library: str) -> None:
    medians = {name: float(np.median(values)) for name, values in times.items()}
    crowded = "" if ranks <= CORES else " (more ranks than cores: the times say little)"
    print(f"\n{ranks} ranks on {CORES} cores, {spell_size(nbytes)}, {library}{crowded}")
    print(f"{'':22}{'median us':>12}{'p10':>10}{'p90':>10}{'calls':>8}{'/ Allreduce':>13}{'/ gloo':>9}")
    for name, values in sorted(times.items(), key=lambda item: medians[item[0]]):
        low, high = np.percentile(values, [10, 90])
        ratios = [medians[peer] / medians[name] if peer in medians else float("nan") for peer in PEERS]
        print(
            f"{name:22}{1e6 * medians[name]:12.1f}{1e6 * low:10.1f}{1e6 * high:10.1f}{len(values):8}"
            f"{ratios[0]:12.2f}x{ratios[1]:8.2f}x",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", dest="ranks", type=int, default=CORES, help="default: the cores")
    parser.add_argument(
        "--sizes", default="437544,16MiB", help="bytes; default: the reference network, and 16 MiB"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="for each size; default: 5")
    parser.add_argument("--json", type=Path, help="write every time measured")
    parser.add_argument("--no-gloo", action="store_true", help="leave gloo out")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.rank and launch.world() is None:
        return launch.run(
            args.ranks, [sys.executable, __file__, *sys.argv[1:], "--rank"], threads=1, bind=True
        )
    launch.take_cores()
    with launch.abort_on_error(mpi().COMM_WORLD):
        rank_main(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
