"""Synchronous training on hosts with a slow network: gradients after the backward pass, during it, and in fewer bytes.

    python benchmarks/overlap.py [--hosts 2] [--rate 1gbit] [--rounds 6] [--json FILE]

Makes hosts on this machine as Linux namespaces (tools/hosts/network.py; needs root), limits what each can send and
receive, and trains a character-level GPT of 10.7 million parameters (6 blocks, width 384) with one rank of one thread
on each: Adam, a few sequences a rank, the text of this project's documentation. All ways take turns in one job, a few
steps at a time, each with a model of its own; the time of a step is that of the slowest rank, and the loss is that of
the same steps for all, so accuracy stands beside bytes. The ratio is to a step that sends everything at its end. The
load of the machine is recorded: above the number of cores, computing and the exchange wait for a core, and the
ratios say little.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path

import numpy as np
from where import where

ROOT = Path(__file__).parent.parent
WAYS = {
    "after": {},
    "overlap": {"overlap": True},
    "bfloat16": {"compress": "bfloat16"},
    "overlap, bfloat16": {"overlap": True, "compress": "bfloat16"},
    "overlap, float16": {"overlap": True, "compress": "float16"},
    "overlap, topk 1 %": {"overlap": True, "compress": "topk:share=0.01"},
    "overlap, powersgd 4": {"overlap": True, "compress": "powersgd:rank=4"},
}
MAIN = ("after", "overlap", "bfloat16", "overlap, bfloat16")


def make_gpt(vocabulary: int, tokens: int, width: int = 384, blocks: int = 6, heads: int = 6):
    """A character-level GPT in plain torch, with the shape of nanoGPT's example."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, h):
            b, t, _ = h.shape
            parts = self.qkv(self.norm1(h)).view(b, t, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
            h = h + self.out(mixed.transpose(1, 2).reshape(b, t, width))
            return h + self.down(functional.gelu(self.up(self.norm2(h))))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(blocks)))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

        def forward(self, characters):
            h = self.token(characters) + self.place.weight[: characters.shape[1]]
            return self.head(self.norm(self.blocks(h)))

    torch.manual_seed(0)
    return Gpt()


def read_text() -> tuple[np.ndarray, int]:
    """The text of the documentation, as numbers of characters."""
    text = "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
    known, numbers = np.unique(list(text), return_inverse=True)
    return numbers.astype(np.int64), len(known)


class Trainer:
    """One way of sending, with its own model and optimizer."""

    def __init__(self, comm, way: dict, args: argparse.Namespace) -> None:
        from torch.nn import functional

        from paceline.collectives import Sending, make_exchange
        from paceline.comm import Recorded
        from paceline.models import TorchModel
        from paceline.updates.adam import Adam

        self.text, vocabulary = read_text()
        self.comm, self.args = Recorded(comm), args

        def loss(scores, targets):
            return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())

        self.model = TorchModel(make_gpt(vocabulary, args.tokens), loss=loss)
        bucket = 1 << 60 if args.bucket == "all" else round(float(args.bucket) * 1e6)
        overlap = way.get("overlap", False)
        batch = args.batch * comm.size
        sending = Sending(**way, bucket=bucket if overlap else 0, samples=batch, clock=time.perf_counter)
        self.exchange = make_exchange("auto", self.model, self.comm, sending=sending)
        self.before = self.comm.counts.bytes  # sent to choose the size of buckets
        self.update, self.losses, self.step_number = Adam(), [], 0
        self.state = self.update.start(self.model.x[self.exchange.part])

    def step(self) -> None:
        from paceline.data import Batch

        args, comm, t = self.args, self.comm, self.args.tokens
        total = args.batch * comm.Get_size()
        starts = np.random.default_rng(self.step_number).integers(0, len(self.text) - t - 1, total)
        mine = starts[comm.Get_rank() * args.batch :][: args.batch, None] + np.arange(t)
        batch = Batch(
            self.text[mine], self.text[mine + 1], count=args.batch, total=total,
            offset=comm.Get_rank() * args.batch, step=self.step_number, epoch=0,
        )  # fmt: skip
        loss = (
            self.model.gradient(batch, self.exchange.ready)
            if self.exchange.ready
            else self.model.gradient(batch)
        )
        g = self.exchange.reduce()
        self.update.apply(self.model.x[self.exchange.part], g, 1e-3, self.state, 1 / total)
        self.exchange.publish()
        self.losses.append(loss / args.batch)
        self.step_number += 1


def rank_main(args: argparse.Namespace) -> None:
    import torch

    from paceline.launch import mpi

    torch.set_num_threads(1)
    comm = mpi().COMM_WORLD
    names = list(WAYS) if args.all else list(MAIN)
    trainers = {name: Trainer(comm, WAYS[name], args) for name in names}
    seconds = {name: [] for name in names}
    computing = []
    for turn in range(args.rounds + 1):  # the first is not counted: torch and MPI set themselves up
        for name, trainer in trainers.items():
            for number in range(args.steps):
                comm.Barrier()
                start = time.perf_counter()
                trainer.step()
                taken = comm.allreduce(time.perf_counter() - start, op=mpi().MAX)
                if turn and number:
                    seconds[name].append(taken)
        comm.Barrier()
        start = time.perf_counter()
        plain = trainers["after"]
        text = plain.text[: args.batch * args.tokens].reshape(args.batch, -1)
        from paceline.data import Batch

        plain.model.gradient(Batch(text, text, args.batch, args.batch, 0, 0, 0))
        if turn:
            computing.append(comm.allreduce(time.perf_counter() - start, op=mpi().MAX))
    result = {}
    for name, trainer in trainers.items():
        loss = comm.allreduce(float(np.mean(trainer.losses[-2:]))) / comm.size
        sent = comm.allreduce(trainer.comm.counts.bytes - trainer.before) / trainer.step_number / comm.size
        result[name] = {"seconds": seconds[name], "loss": loss, "bytes": sent}
        trainer.exchange.close()
    if comm.rank == 0:
        report(args, trainers["after"].model.x.size, result, computing, comm.size)


def report(args, parameters: int, result: dict, computing: list[float], ranks: int) -> None:
    medians = {name: float(np.median(one["seconds"])) for name, one in result.items()}
    print(
        f"{ranks} hosts, {args.rate} each, GPT of {parameters:,} parameters, {args.batch} x {args.tokens} characters "
        f"a rank; computing a gradient {1e3 * np.median(computing):.0f} ms; {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    print(f"{'':22}{'ms a step':>10}{'p25':>7}{'p75':>7}{'times faster':>14}{'MB a rank':>11}{'loss':>8}")
    for name, one in result.items():
        low, high = np.percentile(one["seconds"], [25, 75])
        print(
            f"{name:22}{1e3 * medians[name]:10.0f}{1e3 * low:7.0f}{1e3 * high:7.0f}"
            f"{medians['after'] / medians[name]:13.2f}x{one['bytes'] / 1e6:11.2f}{one['loss']:8.3f}",
            flush=True,
        )
    if args.json:
        settings = {key: value for key, value in vars(args).items() if key not in ("json", "inside", "rank")}
        found = {
            **where(),
            "load": os.getloadavg(),
            "settings": settings,
            "parameters": parameters,
            "ranks": ranks,
        }
        Path(args.json).write_text(
            json.dumps({**found, "computing": computing, "ways": result}, indent=1) + "\n"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=2, help="default: 2")
    parser.add_argument(
        "--rate", default="1gbit", help="of each host's link, as tc spells it; default: 1gbit"
    )
    parser.add_argument("--rounds", type=int, default=6, help="turns of each way; default: 6")
    parser.add_argument(
        "--steps", type=int, default=4, help="steps of a turn; the first is not timed; default: 4"
    )
    parser.add_argument("--batch", type=int, default=4, help="sequences a rank; default: 4")
    parser.add_argument("--tokens", type=int, default=64, help="characters of a sequence; default: 64")
    parser.add_argument(
        "--bucket", default="0", help="megabytes of a bucket; default: 0, as training chooses it"
    )
    parser.add_argument("--all", action="store_true", help="float16, top-k and PowerSGD too")
    parser.add_argument("--json", help="write every time measured")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        from paceline import launch

        with launch.abort_on_error(launch.mpi().COMM_WORLD):
            rank_main(args)
        return 0
    again = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:]]
    if args.inside:
        from paceline import launch

        hosts = launch.parse_hosts(",".join(f"h{number + 1}:1" for number in range(args.hosts)))
        return launch.run(args.hosts, [*again, "--rank"], threads=1, hosts=hosts)
    sys.path.insert(0, str(ROOT))
    from tools.hosts.network import network

    with network(args.hosts) as made:
        for name in made.names:
            made.limit(name, args.rate)
        return made.run([*again, "--inside"], capture_output=False, time_limit=math.inf).returncode


if __name__ == "__main__":
    sys.exit(main())
