"""paceline beside its peers: the same networks, samples, batches and optimizers, all sides in one run.

    python benchmarks/peers.py [--ranks 16] [--networks mlp cnn ...] [--seconds 2] [--repeats 2] [--json FILE]

The sides, interleaved, one round a repeat:

    paceline fit            `paceline.fit`, sync
    paceline own loop       the same network in a PyTorch loop inside `paceline.session`, sync
    PyTorch DDP             DistributedDataParallel over gloo, one process a rank
    PyTorch, all threads    one process with as many threads as there are ranks, and the batch of all ranks
    PyTorch HogWild         processes that train one network in shared memory (torch.multiprocessing), no waiting
    scikit-learn            MLPClassifier, one process, all threads, with its own loss and a learning rate of 0.5
                            (multilayer perceptrons only)
    independent             one process a rank, each with a network of its own: what the cores have to give

Everything is held to as many cores as there are ranks. Each cell is a job of its own: it warms up, then trains for
`--seconds`, at least 4 steps. Samples are in memory and drawn with replacement; drawing is not timed on the PyTorch
sides. Ranks have one thread; those of paceline and of `independent` are bound to cores. Memory is a rank's
proportional set size (pages that processes share are counted once) at the end, mean of the ranks. A side that is not
installed is left out, with a line that says so. Horovod is not among them: its latest release, 0.28.1, compiles its
part for PyTorch as C++14, and PyTorch needs C++17 since version 2.1.

`--quality` measures, instead of samples a second, the seconds of training until a validation set is predicted as well
as stated, evaluation not counted (except with HogWild, whose processes go on meanwhile).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import multiprocessing
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LEAST, MOST = 4, 5000  # timed steps
HOROVOD = "0.28.1, the latest release, does not build with PyTorch 2.1 or newer (it compiles as C++14)"
PATIENCE = 180.0  # seconds that a process waits for the others


@dataclass(frozen=True, kw_only=True)
class Quality:
    """What a network must reach, looked at after every so many steps."""

    metric: str
    target: float
    every: int
    most: int
    """Evaluations, after which a side has failed."""

    def reached(self, value: float) -> bool:
        return value >= self.target if self.metric == "accuracy" else value <= self.target


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network, its samples and how it is trained, for all sides alike."""

    title: str
    samples: Callable[[], tuple[Any, Any]]
    """Inputs and labels; the last `held_out` of them are for validation."""
    build: Callable[[], Any]
    """The module, the same weights in every process."""
    loss: Callable[[Any, Any], Any]
    lr: float
    batch: int | None = None
    """Samples a rank; None: 256 for all ranks together."""
    adam: bool = False
    named: str | None = None
    """The model's name in paceline, where it is one of paceline's own."""
    hidden: tuple[int, ...] = ()
    """The hidden layers of a multilayer perceptron."""
    activation: str = ""
    held_out: int = 500
    quality: Quality | None = None

    def batch_of(self, ranks: int) -> int:
        """Return the samples of one rank's batch."""
        return self.batch or max(1, 256 // ranks)


# ---- networks and samples


def mnist() -> tuple[Any, Any]:
    from paceline.data import chunks, load

    inputs, labels = next(chunks(load("mnist").train, size=10_500))
    return inputs.reshape(len(inputs), 28, 28), labels


def pictures() -> tuple[Any, Any]:
    """Random images of CIFAR's shape: a step takes as long with them as with real ones."""
    import numpy as np

    rng = np.random.default_rng(0)
    return rng.standard_normal((1524, 3, 32, 32), dtype=np.float32), rng.integers(10, size=1524)


def novel(size: str) -> tuple[Any, Any]:
    import numpy as np

    gpt = import_gpt()
    windows, _, _ = gpt.read(size, 3000)
    tokens, targets = zip(*(windows[row] for row in range(len(windows))), strict=True)
    return np.stack(tokens), np.stack(targets)


def import_gpt() -> Any:
    """Return the module of examples/lm."""
    folder = str(HERE.parent / "examples" / "lm")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    import gpt

    return gpt


def build_gpt(size: str) -> Any:
    gpt = import_gpt()
    return gpt.GPT(len(gpt.read(size, 1)[2]), size)


def loss_of_gpt(scores: Any, targets: Any) -> Any:
    return import_gpt().loss_of(scores, targets)


def perceptron(widths: tuple[int, ...], activation: str, *, last: bool) -> Any:
    """Linear layers, each followed by the activation; the last one if so asked."""
    from torch import nn

    layers: list[Any] = [nn.Flatten()]
    for number, (before, after) in enumerate(zip((784, *widths), (*widths, 10), strict=True)):
        layers.append(nn.Linear(before, after))
        if last or number < len(widths):
            layers.append(getattr(nn, activation)())
    return nn.Sequential(*layers)


def build_mlp() -> Any:
    """Build the reference network in PyTorch, with the weights that paceline's own begins with."""
    import torch

    from paceline import MLP

    module, reference = perceptron((128, 64), "Sigmoid", last=True), MLP([784, 128, 64, 10])
    with torch.no_grad():
        for layer, weights, biases in zip(module[1::2], reference.weights, reference.biases, strict=True):
            layer.weight.copy_(torch.from_numpy(weights.T))
            layer.bias.copy_(torch.from_numpy(biases))
    return module


def half_squared_error(outputs: Any, labels: Any) -> Any:
    from torch.nn import functional

    return 0.5 * ((outputs - functional.one_hot(labels, 10)) ** 2).sum() / len(labels)


def cross_entropy(outputs: Any, labels: Any) -> Any:
    from torch.nn import functional

    return functional.cross_entropy(outputs, labels)


def build_cnn() -> Any:
    from paceline.data import load
    from paceline.models.cnn import build

    return build(load("mnist")).module


def build_resnet() -> Any:
    """ResNet-18 for 32x32 images with half the usual channels: 2.8 million parameters."""
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self, before: int, after: int, stride: int) -> None:
            super().__init__()
            self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
            self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
            self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])
            self.shortcut = nn.Sequential()
            if before != after:
                convolution = nn.Conv2d(before, after, 1, stride, bias=False)
                self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(after))

        def forward(self, x: Any) -> Any:
            y = functional.relu(self.norms[0](self.first(x)))
            return functional.relu(self.norms[1](self.second(y)) + self.shortcut(x))

    blocks = [nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    before = 32
    for after in (32, 64, 128, 256):
        blocks += [Block(before, after, 1 if after == 32 else 2), Block(after, after, 1)]
        before = after
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


NETWORKS = {
    "mlp": Network(
        title="reference MLP, 0.11 M", samples=mnist, build=build_mlp, loss=half_squared_error, lr=3.2, batch=64,
        named="mlp:128,64", hidden=(128, 64), activation="logistic",
        quality=Quality(metric="accuracy", target=0.85, every=25, most=40),
    ),
    "cnn": Network(
        title="reference CNN, 0.01 M", samples=mnist, build=build_cnn, loss=cross_entropy, lr=0.2, batch=64,
        named="cnn", quality=Quality(metric="accuracy", target=0.9, every=20, most=30),
    ),
    "wide": Network(
        title="wide MLP, 7.4 M", samples=mnist, build=partial(perceptron, (4096, 1024), "ReLU", last=False),
        loss=cross_entropy, lr=0.1, hidden=(4096, 1024), activation="relu",
        quality=Quality(metric="accuracy", target=0.85, every=10, most=30),
    ),
    "resnet": Network(
        title="ResNet, 2.8 M", samples=pictures, build=build_resnet, loss=cross_entropy, lr=0.05, batch=8
    ),
    "gpt-10M": Network(
        title="character GPT, 10.8 M", samples=partial(novel, "10M"), build=partial(build_gpt, "10M"),
        loss=loss_of_gpt, lr=1e-3, batch=4, adam=True, held_out=128,
    ),
    "gpt-0.8M": Network(
        title="character GPT, 0.8 M", samples=partial(novel, "0.8M"), build=partial(build_gpt, "0.8M"),
        loss=loss_of_gpt, lr=2e-3, batch=4, adam=True, held_out=128,
        quality=Quality(metric="perplexity", target=14.0, every=20, most=15),
    ),
}  # fmt: skip


def build_seeded(network: Network) -> Any:
    """Build the module with the same weights in every process."""
    import torch

    torch.manual_seed(0)
    return network.build()


def optimizer_of(network: Network, module: Any) -> Any:
    import torch

    if network.adam:
        return torch.optim.AdamW(module.parameters(), lr=network.lr, weight_decay=0.1)
    return torch.optim.SGD(module.parameters(), lr=network.lr)


def memory() -> tuple[str, float]:
    """Return what is measured, and this process's memory in MB by it."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        kind, word = "PSS", next(line for line in lines if line.startswith("Pss:"))
    except OSError:  # in some containers
        lines = Path("/proc/self/status").read_text().splitlines()
        kind, word = "RSS", next(line for line in lines if line.startswith("VmRSS:"))
    return kind, int(word.split()[1]) * 1024 / 1e6


def steps_for(seconds: float, step: float) -> int:
    return max(LEAST, min(MOST, math.ceil(seconds / step)))


# ---- the sides of PyTorch and scikit-learn: processes that a plain multiprocessing starts


@dataclass(frozen=True, kw_only=True)
class Place:
    """What one process of a side is told."""

    side: str
    network: Network
    rank: int
    ranks: int
    """Processes of this side."""
    batch: int
    threads: int
    seconds: float
    quality: bool
    port: int
    meeting: Any
    """A barrier of all processes."""
    number: Any
    """A number that all processes see: steps to time; below 0: stop."""
    results: Any
    module: Any = None
    """HogWild's network, in shared memory."""


def on_processes(
    side: str, network: Network, *, ranks: int, seconds: float, quality: bool = False
) -> dict[str, Any]:
    """Measure one side in processes of its own; return its samples a second or the seconds that it took."""
    alone = side in ("threads", "scikit-learn")
    count = 1 if alone else ranks
    spawning = multiprocessing.get_context("spawn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    module = None
    if side == "hogwild":
        module = build_seeded(network).share_memory()
    meeting, number, results = spawning.Barrier(count), spawning.Value("q", 0), spawning.SimpleQueue()
    threads = ranks if alone else 1
    places = [
        Place(side=side, network=network, rank=rank, ranks=count, batch=network.batch_of(ranks) * (ranks if alone else 1),
              threads=threads, seconds=seconds, quality=quality, port=port, meeting=meeting, number=number,
              results=results, module=module)
        for rank in range(count)
    ]  # fmt: skip
    processes = [spawning.Process(target=work, args=(place,), daemon=True) for place in places]
    with thread_variable(threads):
        for process in processes:
            process.start()
    found = []
    try:
        while any(process.is_alive() for process in processes):
            while not results.empty():
                found.append(results.get())
            if any(process.exitcode not in (None, 0) for process in processes):
                raise ChildProcessError(f"{side}: a process failed; the reason is printed above")
            time.sleep(0.05)
        while not results.empty():
            found.append(results.get())
    finally:
        for process in processes:
            process.kill()
            process.join()
    if len(found) < count:
        raise ChildProcessError(f"{side}: a process failed; the reason is printed above")
    return combine(found)


@contextmanager
def thread_variable(threads: int) -> Iterator[None]:
    """Start processes inside with this many threads for OpenMP."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(threads)
    try:
        yield
    finally:
        os.environ.pop("OMP_NUM_THREADS")
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


def combine(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Put together what the processes of a side have found."""
    together = {
        "memory": statistics.fmean(one["memory"] for one in found),
        "memory_kind": found[0]["memory_kind"],
    }
    if "rate" in found[0]:
        return {**together, "samples_per_second": sum(one["rate"] for one in found)}
    return {**together, **next(one["quality"] for one in found if one["quality"])}


def work(place: Place) -> None:
    """Be one process of a side."""
    found = work_sklearn(place) if place.side == "scikit-learn" else work_torch(place)
    kind, size = memory()
    place.results.put({**found, "memory": size, "memory_kind": kind})
    place.meeting.wait(PATIENCE)  # until all have looked at their memory


def work_torch(place: Place) -> dict[str, Any]:
    import torch

    if place.side == "independent":
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[place.rank % len(cores)]})
    torch.set_num_threads(place.threads)
    network = place.network
    inputs, labels = map(torch.from_numpy, network.samples())
    held_out = inputs[-network.held_out :], labels[-network.held_out :]
    module = build_seeded(network) if place.module is None else place.module
    optimizer = optimizer_of(network, module)
    trained = module
    in_group = place.side == "ddp" and place.ranks > 1
    if in_group:
        from torch import distributed
        from torch.nn.parallel import DistributedDataParallel

        address = f"tcp://127.0.0.1:{place.port}"
        distributed.init_process_group("gloo", init_method=address, rank=place.rank, world_size=place.ranks)
        trained = DistributedDataParallel(module)
    torch.manual_seed(place.rank)
    order = torch.randint(len(inputs) - network.held_out, (256, place.batch))
    batches = ((inputs[rows], labels[rows]) for rows in cycle(order))

    def train(steps: int) -> None:
        for _ in range(steps):
            samples, wanted = next(batches)
            optimizer.zero_grad()
            network.loss(trained(samples), wanted).backward()
            optimizer.step()

    in_step = place.side not in ("hogwild", "independent")
    if place.quality:
        goal = lambda: measure_quality(network, module, *held_out)  # noqa: E731
        found = until(place, train, goal) if in_step else until_flag(place, train, goal)
    else:
        found = {"rate": rate_of(place, train, in_step=in_step) * place.batch}
    if in_group:
        distributed.destroy_process_group()
    return found


def cycle(order: Any) -> Iterator[Any]:
    while True:
        yield from order


def rate_of(place: Place, train: Callable[[int], None], *, in_step: bool) -> float:
    """Return this process's steps a second; processes that wait for each other take as many steps."""
    train(2)
    place.meeting.wait(PATIENCE)
    start = time.perf_counter()
    train(2)
    step = (time.perf_counter() - start) / 2
    if place.rank == 0:
        place.number.value = steps_for(place.seconds, step)
    place.meeting.wait(PATIENCE)
    start = time.perf_counter()
    if in_step:
        steps = place.number.value
        train(steps)
    else:
        steps, some = 0, max(1, int(0.1 / step))
        while steps < LEAST or time.perf_counter() - start < place.seconds:
            train(some)
            steps += some
    return steps / (time.perf_counter() - start)


def measure_quality(network: Network, module: Any, inputs: Any, labels: Any) -> float:
    import torch

    module.eval()
    with torch.no_grad():
        outputs = module(inputs)
        if network.quality and network.quality.metric == "accuracy":
            value = (outputs.argmax(1) == labels).float().mean().item()
        else:
            value = math.exp(network.loss(outputs, labels).item())
    module.train()
    return value


def until(place: Place, train: Callable[[int], None], value_of: Callable[[], float]) -> dict[str, Any]:
    """Train until rank 0 finds the quality good enough; the clock stops while it looks."""
    quality, seconds, value = place.network.quality, 0.0, math.nan
    for turn in range(1, quality.most + 1):
        place.meeting.wait(PATIENCE)
        start = time.perf_counter()
        train(quality.every)
        seconds += time.perf_counter() - start
        if place.rank == 0:
            value = value_of()
            place.number.value = -1 if quality.reached(value) else turn
        place.meeting.wait(PATIENCE)
        if place.number.value < 0:
            break
    done = {
        "seconds": seconds,
        "steps": turn * quality.every,
        "reached": place.number.value < 0,
        "value": value,
    }
    return {"quality": done if place.rank == 0 else None}


def until_flag(place: Place, train: Callable[[int], None], value_of: Callable[[], float]) -> dict[str, Any]:
    """Train without waiting until rank 0, which looks now and then, says stop; the clock goes on."""
    quality, turn, value = place.network.quality, 0, math.nan
    place.meeting.wait(PATIENCE)
    start = time.perf_counter()
    while place.number.value >= 0:
        train(quality.every if place.rank == 0 else 1)
        if place.rank == 0:
            turn, value = turn + 1, value_of()
            if quality.reached(value) or turn == quality.most:
                place.number.value = -1
    seconds = time.perf_counter() - start
    done = {
        "seconds": seconds,
        "steps": turn * quality.every,
        "reached": quality.reached(value),
        "value": value,
    }
    return {"quality": done if place.rank == 0 else None}


def work_sklearn(place: Place) -> dict[str, Any]:
    import numpy as np
    from sklearn.neural_network import MLPClassifier
    from threadpoolctl import threadpool_limits

    network = place.network
    inputs, labels = network.samples()
    inputs = inputs.reshape(len(inputs), -1)
    cut = len(inputs) - network.held_out
    model = MLPClassifier(network.hidden, activation=network.activation, solver="sgd", alpha=0.0, momentum=0.0,
                          batch_size=place.batch, learning_rate_init=0.5, random_state=0)  # fmt: skip
    classes = np.unique(labels)

    def train(steps: int) -> None:
        for start in range(0, steps, cut // place.batch):  # in calls of at most one pass
            count = min(steps - start, cut // place.batch) * place.batch
            model.partial_fit(inputs[:count], labels[:count], classes=classes)

    with threadpool_limits(place.threads):
        if not place.quality:
            return {"rate": rate_of(place, train, in_step=True) * place.batch}
        value = lambda: float(model.score(inputs[cut:], labels[cut:]))  # noqa: E731
        return until(place, train, value)


# ---- paceline's sides: ranks of an MPI job


def on_ranks(
    side: str, name: str, *, ranks: int, seconds: float, strategy: str, quality: bool = False
) -> dict[str, Any]:
    """Measure one of paceline's sides on new ranks."""
    import paceline.launch

    network = NETWORKS[name]
    inputs, labels = network.samples()
    cut = len(inputs) - network.held_out
    data = {"train": (inputs[:cut], labels[:cut]), "validation": (inputs[cut:], labels[cut:])}
    arguments = {"name": name, "ranks": ranks, "seconds": seconds, "strategy": strategy, "quality": quality}
    sys.path[:] = [str(HERE), *(path for path in sys.path if path != str(HERE))]
    import peers  # not __main__: the ranks import it by its name

    function = peers.rank_fit if side == "fit" else peers.rank_own_loop
    return paceline.launch.call(
        function, arguments, shared={"data": data}, ranks=ranks, threads=1, time_limit=PATIENCE
    )


def rank_fit(
    comm: Any, *, name: str, ranks: int, seconds: float, strategy: str, quality: bool, data: Any
) -> dict[str, Any]:
    """Train with `fit`, first a few steps, then as many as fill the time; the first epoch is not counted."""
    from paceline import fit

    network = NETWORKS[name]
    settings = {"strategy": strategy, "batch": network.batch_of(ranks) * ranks, "lr": network.lr, "comm": comm,
                "update": "adam:weight-decay=0.1" if network.adam else "sgd", "runs": None, "quiet": True,
                "on_divergence": "ignore"}  # fmt: skip
    few = tuple(part[:64] for part in data["validation"])

    def train(epochs: int, draws: int, held_out: Any) -> Any:
        model = network.named or (build_seeded(network), network.loss)
        return fit(model, {"train": data["train"], "validation": held_out, "test": few}, epochs=epochs, draws=draws,
                   **settings)  # fmt: skip

    if quality:
        goal = network.quality
        fitted = train(goal.most, goal.every, data["validation"])
        for epoch in fitted.history:
            value = epoch.validation_accuracy
            if goal.metric == "perplexity":
                value = math.exp(epoch.validation_loss)
            if goal.reached(value):
                break
        found = {
            "seconds": epoch.train_seconds,
            "steps": epoch.step,
            "reached": goal.reached(value),
            "value": value,
        }
    else:
        first = train(2, 2, few).history
        step = (first[1].train_seconds - first[0].train_seconds) / 2
        steps = steps_for(seconds, shared_by_rank_0(comm, step))
        parts = 5 if steps >= 100 else 2
        history = train(parts, math.ceil(steps / (parts - 1)), few).history
        taken = history[-1].step - history[0].step
        samples = taken * settings["batch"]
        found = {"samples_per_second": samples / (history[-1].train_seconds - history[0].train_seconds)}
    return {**found, **memory_of_ranks(comm)}


def rank_own_loop(
    comm: Any, *, name: str, ranks: int, seconds: float, strategy: str, quality: bool, data: Any
) -> dict[str, Any]:
    """Train the module in a loop of one's own, inside a session; the first epoch is not counted."""
    import torch

    import paceline

    network = NETWORKS[name]
    batch = network.batch_of(ranks) * ranks
    inputs, labels = map(torch.tensor, data["train"])  # a copy: the ranks' arrays are read-only

    def train(epochs: int, draws: int, value_of: Callable[[Any], float] | None) -> list[tuple[float, float]]:
        """Return the clock and the quality after each epoch of at most so many batches."""
        ends, clock = [], 0.0
        with paceline.session(strategy=strategy, comm=comm, runs=None) as session:
            module = build_seeded(network)
            module, optimizer = session.attach(module, optimizer_of(network, module))
            batches = session.share((inputs[: draws * batch], labels[: draws * batch]), batch=batch)
            for _ in session.epochs(epochs):
                comm.Barrier()
                start = time.perf_counter()
                for samples, wanted in batches:
                    optimizer.zero_grad()
                    network.loss(module(samples), wanted).backward()
                    optimizer.step()
                comm.Barrier()
                clock += time.perf_counter() - start
                value = math.nan if value_of is None else value_of(module)
                ends.append((clock, value))
                if value_of is not None and network.quality.reached(value):
                    break
        return ends

    all_of_them = len(inputs) // batch
    if quality:
        goal = network.quality
        held_out = tuple(map(torch.tensor, data["validation"]))
        most = math.ceil(goal.most * goal.every / all_of_them)
        ends = train(most, all_of_them, lambda module: measure_quality(network, module, *held_out))
        clock, value = ends[-1]
        found = {
            "seconds": clock,
            "steps": len(ends) * all_of_them,
            "reached": goal.reached(value),
            "value": value,
        }
    else:
        first = train(2, min(2, all_of_them), None)
        steps = steps_for(seconds, shared_by_rank_0(comm, (first[1][0] - first[0][0]) / 2))
        draws = min(steps, all_of_them)
        ends = train(1 + math.ceil(steps / draws), draws, None)
        found = {"samples_per_second": (len(ends) - 1) * draws * batch / (ends[-1][0] - ends[0][0])}
    return {**found, **memory_of_ranks(comm)}


def shared_by_rank_0(comm: Any, value: float) -> float:
    """Return rank 0's value on every rank: all must take as many steps."""
    import numpy as np

    shared = np.array([value])
    comm.Bcast(shared, root=0)
    return max(float(shared[0]), 1e-6)


def memory_of_ranks(comm: Any) -> dict[str, Any]:
    import numpy as np

    comm.Barrier()
    kind, size = memory()
    comm.Barrier()
    sizes = np.empty(comm.Get_size())
    comm.Allgather(np.array([size]), sizes)
    return {"memory": float(sizes.mean()), "memory_kind": kind}


# ---- the run


SIDES = {
    "fit": "paceline fit",
    "own-loop": "paceline own loop",
    "ddp": "PyTorch DDP (gloo)",
    "threads": "PyTorch, all threads",
    "hogwild": "PyTorch HogWild",
    "scikit-learn": "scikit-learn MLPClassifier",
    "independent": "independent processes",
}


def explain_missing(side: str) -> str | None:
    """Say why a side cannot be measured here, or return None."""
    import paceline

    if side == "own-loop" and "session" not in dir(paceline):
        return "this version of paceline has no session"
    if side == "scikit-learn" and importlib.util.find_spec("sklearn") is None:
        return "scikit-learn is not installed"
    return None


def applies(side: str, network: Network, *, quality: bool) -> bool:
    if quality and (network.quality is None or side == "independent"):
        return False
    return side != "scikit-learn" or bool(network.hidden)


def print_rates(measured: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    kinds = {one["memory_kind"] for sides in measured.values() for runs in sides.values() for one in runs}
    header = f"{'/'.join(sorted(kinds))} MB/rank"
    print(f"{'':48}{'samples/s':>11}{'low':>11}{'high':>11}{'x DDP':>8}{'x indep.':>10}{header:>14}")
    for name, sides in measured.items():
        rates = {side: [one["samples_per_second"] for one in runs] for side, runs in sides.items() if runs}
        median = {side: statistics.median(values) for side, values in rates.items()}
        for side, values in rates.items():
            against = [
                f"{median[side] / median[base]:.2f}" if base in median else ""
                for base in ("ddp", "independent")
            ]
            size = statistics.median(one["memory"] for one in sides[side])
            print(
                f"{NETWORKS[name].title + ': ' + SIDES[side]:48}{median[side]:11,.0f}{min(values):11,.0f}"
                f"{max(values):11,.0f}{against[0]:>8}{against[1]:>10}{size:14.0f}"
            )
        if "fit" in median and "own-loop" in median:
            more = 100 * (median["fit"] / median["own-loop"] - 1)
            print(f"{NETWORKS[name].title + ': own loop over fit, time a step':48}{more:+10.1f} %")


def print_quality(measured: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    print(f"{'':48}{'to':>18}{'seconds':>10}{'low':>9}{'high':>9}{'steps':>8}{'x DDP':>8}")
    for name, sides in measured.items():
        goal = NETWORKS[name].quality
        times = {side: [run["seconds"] for run in runs] for side, runs in sides.items() if runs}
        peer = statistics.median(times["ddp"]) if "ddp" in times else None
        for side, values in times.items():
            reached = all(run["reached"] for run in sides[side])
            seconds = statistics.median(values)
            steps = statistics.median(run["steps"] for run in sides[side])
            against = f"{peer / seconds:.2f}" if peer and reached else ""
            target = f"{goal.metric} {goal.target:g}" if reached else "not reached"
            print(
                f"{NETWORKS[name].title + ': ' + SIDES[side]:48}{target:>18}{seconds:10.2f}{min(values):9.2f}"
                f"{max(values):9.2f}{steps:8.0f}{against:>8}"
            )


def main() -> None:
    from where import where

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS), metavar="NETWORK")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), metavar="SIDE")
    parser.add_argument("--strategy", default="sync", help="of paceline's sides")
    parser.add_argument("--seconds", type=float, default=2.0, help="of training in each cell")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--quality", action="store_true", help="measure the time to a stated quality instead")
    parser.add_argument("--limit", type=float, default=math.inf, help="start no cell after so many seconds")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    begun = time.monotonic()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < args.ranks:
        print(f"{args.ranks} ranks on {len(cores)} cores: the figures mean little", file=sys.stderr)
    os.sched_setaffinity(0, set(cores[: args.ranks]))
    reasons = {side: why for side in args.sides if (why := explain_missing(side))}
    for side, why in reasons.items():
        print(f"{SIDES[side]}: left out: {why}", file=sys.stderr)
    print(f"Horovod: left out: {HOROVOD}", file=sys.stderr)
    cells = [
        (name, side)
        for name in args.networks
        for side in args.sides
        if side not in reasons and applies(side, NETWORKS[name], quality=args.quality)
    ]
    measured: dict[str, dict[str, list[dict[str, Any]]]] = {name: {} for name, _ in cells}
    failed: dict[str, str] = {}
    skipped = 0
    for turn in range(args.repeats):
        for name, side in cells:
            if time.monotonic() - begun > args.limit:
                skipped += 1
                continue
            start = time.monotonic()
            common = {"ranks": args.ranks, "seconds": args.seconds, "quality": args.quality}
            try:
                if side in ("fit", "own-loop"):
                    found = on_ranks(side, name, strategy=args.strategy, **common)
                else:
                    found = on_processes(side, NETWORKS[name], **common)
            except Exception as error:  # one cell must not take the others with it
                failed[f"{name}, {side}"] = str(error) or repr(error)
                print(f"{name}, {side}: failed: {error}", file=sys.stderr)
                continue
            measured[name].setdefault(side, []).append(found)
            print(f"round {turn + 1}: {name}, {side}: {time.monotonic() - start:.1f} s", file=sys.stderr)
            if args.json:  # after every cell: a long run may be cut off
                result = {
                    **where(),
                    "ranks": args.ranks,
                    "left_out": {**reasons, "horovod": HOROVOD},
                    "failed": failed,
                    "measured": measured,
                }
                args.json.write_text(json.dumps(result, indent=2) + "\n")
    if skipped:
        print(
            f"{skipped} cells were not measured: the limit of {args.limit:g} s was reached", file=sys.stderr
        )
    (print_quality if args.quality else print_rates)(measured)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
