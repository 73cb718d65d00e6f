"""One training step of the reference network in one process: paceline's MLP beside PyTorch.

    python benchmarks/step.py [--batch 1,4,16,64,256,1024] [--threads 1] [--seconds 1] [--json FILE]

784-128-64-10, sigmoid everywhere, squared error, float32, plain SGD. The sides take turns in one run, so that
a noisy moment falls on both; each figure is the median over the turns, with the fastest beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from where import where


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batch", default="1,4,16,64,256,1024", help="batch sizes")
    parser.add_argument("--threads", type=int, default=1, help="threads of BLAS and of PyTorch")
    parser.add_argument("--seconds", type=float, default=1, help="to spend on each side of each line")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # before NumPy is imported
        os.environ[name] = str(options.threads)
    lines = [measure(int(batch), options.threads, options.seconds) for batch in options.batch.split(",")]
    print(f"{where()['machine']['processor']}, {options.threads} thread(s), microseconds: median (fastest)\n")
    print(f"{'batch':>5} {'gradient':>17} {'sgd':>15} {'step':>17} {'PyTorch step':>19} {'ratio':>6}")
    for line in lines:
        cells = [spell(line[side]) for side in ("gradient", "sgd", "step", "pytorch")]
        print("{:>5} {:>17} {:>15} {:>17} {:>19}".format(line["batch"], *cells), f"{line['ratio']:>6.1f}")
    if options.json:
        result = {**where(), "threads": options.threads, "lines": lines}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def measure(batch: int, threads: int, seconds: float) -> dict[str, Any]:
    import numpy as np

    from paceline.data import Batch
    from paceline.models.mlp import MLP
    from paceline.updates.sgd import Sgd

    random = np.random.default_rng(0)
    inputs = random.random((batch, 784), dtype=np.float32)
    labels = random.integers(0, 10, batch)
    piece = Batch(inputs=inputs, labels=labels, count=batch, total=batch, offset=0, step=0, epoch=0)
    net, update = MLP([784, 128, 64, 10]), Sgd()
    state = update.start(net.x)

    def gradient() -> None:
        net.gradient(piece)

    def sgd() -> None:
        update.apply(net.x, net.g, 1e-3, state, 1 / batch)

    def step() -> None:
        net.gradient(piece)
        update.apply(net.x, net.g, 1e-3, state, 1 / batch)

    sides = {"gradient": gradient, "sgd": sgd, "step": step, "pytorch": pytorch(inputs, labels, threads)}
    times = take_turns(sides, seconds)
    ratio = statistics.median(times["pytorch"]) / statistics.median(times["step"])
    medians = {name: {"median": statistics.median(t), "fastest": min(t)} for name, t in times.items()}
    return {"batch": batch, "ratio": ratio, **medians}


def pytorch(inputs: Any, labels: Any, threads: int) -> Callable[[], None]:
    """The same step with torch.nn, torch.optim and autograd."""
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    layers: list[nn.Module] = []
    for n, m in ((784, 128), (128, 64), (64, 10)):
        layers += [nn.Linear(n, m), nn.Sigmoid()]
    net = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    x, t = torch.from_numpy(inputs), nn.functional.one_hot(torch.from_numpy(labels), 10).float()

    def step() -> None:
        optimizer.zero_grad()
        loss = 0.5 * ((net(x) - t) ** 2).sum() / len(x)
        loss.backward()
        optimizer.step()

    return step


def take_turns(sides: dict[str, Callable[[], None]], seconds: float) -> dict[str, list[float]]:
    """Microseconds a call of each side, by turns of about 10 ms."""
    repeats = {}
    for name, call in sides.items():
        call()
        start = time.perf_counter()
        for _ in range(5):
            call()
        repeats[name] = max(1, round(0.01 / ((time.perf_counter() - start) / 5)))
    times: dict[str, list[float]] = {name: [] for name in sides}
    end = time.perf_counter() + seconds * len(sides)
    while time.perf_counter() < end or not times["step"]:
        for name, call in sides.items():
            start = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            times[name].append((time.perf_counter() - start) / repeats[name] * 1e6)
    return times


def spell(times: dict[str, float]) -> str:
    return f"{times['median']:,.0f} ({times['fastest']:,.0f})"


if __name__ == "__main__":
    main()
