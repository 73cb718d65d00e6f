"""The peer: PyTorch DistributedDataParallel over gloo, the same network and batch, one process a rank.

    python benchmarks/ddp.py --ranks 16 --batch 64 --steps 200      prints samples/s as one JSON object

Samples are in memory and random indices are drawn beforehand: only forward, backward, all-reduce and step are timed.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time


def rank_main(rank: int, ranks: int, port: int, batch: int, steps: int) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    layers = [
        nn.Linear(784, 128),
        nn.Sigmoid(),
        nn.Linear(128, 64),
        nn.Sigmoid(),
        nn.Linear(64, 10),
        nn.Sigmoid(),
    ]
    network = nn.Sequential(*layers)
    model = DistributedDataParallel(network) if ranks > 1 else network
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.rand(10_000, 784)
    targets = torch.nn.functional.one_hot(torch.randint(10, (10_000,)), 10).float()
    order = torch.randint(10_000, (steps + 20, batch))
    loss_of = nn.MSELoss(reduction="sum")
    for step in range(steps + 20):
        if step == 20:
            dist.barrier()
            start = time.perf_counter()
        optimizer.zero_grad()
        loss = 0.5 * loss_of(model(inputs[order[step]]), targets[order[step]]) / batch
        loss.backward()
        optimizer.step()
    dist.barrier()
    seconds = time.perf_counter() - start
    if rank == 0:
        result = {"ranks": ranks, "batch_per_rank": batch, "steps": steps, "seconds": seconds,
                  "samples_per_second": ranks * batch * steps / seconds}  # fmt: skip
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64, help="samples a rank")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        rank_main(args.rank, args.ranks, args.port, args.batch, args.steps)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    common = [
        sys.executable,
        __file__,
        "--ranks",
        str(args.ranks),
        "--batch",
        str(args.batch),
        "--steps",
        str(args.steps),
    ]
    ranks = [
        subprocess.Popen([*common, "--rank", str(rank), "--port", str(port)], env=environment)
        for rank in range(args.ranks)
    ]
    sys.exit(max(abs(process.wait()) for process in ranks))


if __name__ == "__main__":
    main()
