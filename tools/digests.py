"""Record digests of what training ends with, to check that a refactoring changes nothing.

    python tools/digests.py --paceline .venv/bin/paceline -o before.json --twice
    python tools/digests.py --paceline ../other/.venv/bin/paceline -o after.json
    python tools/digests.py --compare before.json after.json

Every case is a `paceline` command, one at a time, and what is recorded is read from its run's folder: a SHA-256 of the
final parameters, accuracy, losses, bytes and messages, and the virtual times of a simulated run. The costs of computing
are fixed here and given with --machine, so that simulations do not depend on the speed of this machine.

Where the course of a run depends on what arrives first (parameter-server, gossip, hogwild, sync:balance=true), passes over
vectors cost nothing (`FREE`) and the ranks differ much in speed, so that the order, and with it the parameters, does not
depend on how such passes are charged. In all other cases they have their usual costs.

--twice runs cases on real ranks a second time; what differs is marked as unstable, and not compared.
The comparison ends with status 1 if parameters, bytes or messages differ, or cases are missing or failed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

SECONDS = 180  # that a case may take
STRICT = ("status", "parameters", "bytes", "messages")
VALUES = ("test_accuracy", "losses", "order", "diverged", "words")
BY_CHANCE = ("parameters", "test_accuracy", "losses", "order", "diverged")
SEED = 3

# Seconds by amount: samples (gradient, factors, evaluate), multiply-adds (part), elements (update, rule), messages (serve).
WORK = {
    "gradient": [[1, 1e-4], [64, 2e-3]],
    "factors": [[1, 8e-5], [64, 1.5e-3]],
    "evaluate": [[1, 2e-5], [100, 4e-4]],
    "part": [[1, 5e-10]],
    "update": [[1, 1e-9]],
    "rule": [[1, 2e-9]],
    "serve": [[1, 5e-6]],
}
FREE = ("update", "rule", "combine", "recombine", "sum", "copy", "cold")

NETS = """
from torch import nn


def norm():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 10)
    )
"""


@dataclass(frozen=True)
class Case:
    """One command; `costs:…`, `run:…` in its arguments stand for files of the recording."""

    name: str
    kind: str
    """sim: simulated; time: simulated, with nothing computed; mpi: on real ranks; scaling: a prediction."""
    arguments: tuple[str, ...]
    timed: bool = False
    """The order of events, and so the result, depends on virtual times."""
    unstable: tuple[str, ...] = ()
    """What two runs need not have in common."""


def cases() -> list[Case]:
    """All of them, each run that is replayed before its replay."""
    found = [
        *serial(),
        *synchronous(),
        *averaging(),
        *lock_free(),
        *parameter_server(),
        *networks(),
        *time_alone(),
        *real(),
        *scaling(),
    ]
    names = [case.name for case in found]
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, twice
    return found


LEARNS = "mlp:16,12,activation=relu,loss=cross-entropy,standardise=true"
SMALL = {"--data": "digits", "--model": LEARNS, "--batch": "32", "--epochs": "2", "--lr": "0.1"}
# So few samples beside so many parameters that ranks with shared memory exchange the factors of their gradients.
FACTORED = SMALL | {"--model": LEARNS.replace("16,12", "64,32"), "--batch": "8", "--epochs": "1"}
# Too large a learning rate, reached after the first epochs, so that there is something good to go back to.
RUNS_AWAY = {
    "--data": "digits", "--model": "mlp:16,12,activation=relu", "--batch": "32", "--epochs": "7", "--lr": "6",
    "--on-divergence": "halve",
}  # fmt: skip
IMAGES = {"--data": "synthetic:samples=300,features=20x20", "--model": "cnn", "--batch": "8", "--draws": "12"}
NORM = {"--data": "digits", "--model": "nets:norm", "--batch": "32", "--draws": "24", "--lr": "0.1"}
LONG = {"--data": "synthetic:samples=8000,features=64", "--model": "mlp:128,64", "--batch": "64"}


def case(
    kind: str, strategy: str, ranks: int, more: str = "", *, settings: dict[str, str] = SMALL, net: str = "10gbe",
    named: str = "", **about: Any,
) -> Case:  # fmt: skip
    """A case of `paceline train`. `more` goes before the settings' own."""
    words = more.split()
    given = {**settings, "--epochs": settings.get("--epochs", "1")}
    rest = [word for name, value in given.items() if name not in words for word in (name, value)]
    arguments = ["train", "--strategy", strategy, "-n", str(ranks), *words, *rest, "--seed", str(SEED)]
    if kind == "mpi":
        arguments += ["--threads", "1", "--no-bind"]
    else:
        costs = "free" if about.get("timed") else "full"
        arguments += ["--on", "sim", "--network", net, "--machine", f"costs:{costs}"]
        if about.get("timed") and ranks > 1:
            arguments += ["--slow", slow_ranks(ranks)]
    name = f"{kind} {strategy} n={ranks}" + f" {net}" * (kind != "mpi" and net != "10gbe")
    name = " ".join(filter(None, (name, named, more)))
    return Case(name, kind, tuple(arguments), **about)


def slow_ranks(ranks: int) -> str:
    """Make every rank slower than the one before, so that no two come at the same time."""
    return ",".join(f"{rank}:{1 + 0.113 * rank + 0.0137 * rank**2:.4f}x" for rank in range(1, ranks))


TWO, THREE, FOUR, ONE_NODE = (
    "10gbe:ranks-per-node=2", "10gbe:ranks-per-node=3", "10gbe:ranks-per-node=4", "loopback",
)  # fmt: skip
UPDATES = ("momentum --lr 0.03", "nesterov --lr 0.03", "rms --lr 0.01", "adam --lr 0.01")


def sim(*words: Any, **about: Any) -> Case:
    """A case on simulated ranks."""
    return case("sim", *words, **about)


def order(*words: Any, **about: Any) -> Case:
    """A case on simulated ranks whose parameters depend on the order of messages."""
    return case("sim", *words, timed=True, **about)


def away(strategy: str, ranks: int, **about: Any) -> Case:
    """A case that diverges."""
    alone = strategy.startswith(("serial", "sync", "main-worker"))  # or a rank's own batches
    epoch = 12 if alone else 12 * ranks
    more = f"--draws {epoch} --schedule warmup:steps={5 * epoch}"
    return case("sim", strategy, ranks, more, settings=RUNS_AWAY, named="diverging", **about)


def serial() -> Iterator[Case]:
    """Training on one process: models, updates, schedules, divergence."""
    yield sim("serial", 1)
    yield sim("serial", 1, "--model mlp:16,12 --lr 1")
    for update in (
        *UPDATES,
        "sgd:weight-decay=0.01",
        "nesterov:weight-decay=0.01",
        "adam:weight-decay=0.1 --lr 0.01",
    ):
        yield sim("serial", 1, f"--update {update}")
    for schedule in ("warmup:steps=20", "step:every=30", "cosine:warmup=10,final=0.1"):
        yield sim("serial", 1, f"--schedule {schedule}")
    for model in ("relu,loss=cross-entropy", "tanh,normalise=true"):
        yield sim("serial", 1, f"--model mlp:16,12,activation={model} --lr 0.1")
    yield sim("serial", 1, "--dtype float64 --draws 50")
    yield away("serial", 1)
    yield sim("serial", 1, "--model mlp:16,12 --lr 1000 --on-divergence stop")


def synchronous() -> Iterator[Case]:
    """Synchronous training with every collective, on one node and on several, and `main-worker`."""
    for collective in ("auto", "native", "naive", "ring", "recursive-doubling", "rabenseifner"):
        for ranks in (3, 7) if collective in ("auto", "native") else (2, 3, 4, 7):
            yield sim(f"sync:allreduce={collective}", ranks)
    yield sim("sync", 1)
    yield sim("sync:allreduce=ring", 1)
    for collective in ("shared-memory", "hierarchical"):
        for ranks in (2, 3, 7):
            yield sim(f"sync:allreduce={collective}", ranks, net=ONE_NODE)
    for ranks in (2, 3):
        yield sim("sync", ranks, net=ONE_NODE)
        yield sim("sync:allreduce=shared-memory", ranks, net=ONE_NODE, settings=FACTORED, named="factored")
    yield sim("sync", 7, "--update adam --lr 0.01", net=ONE_NODE, settings=FACTORED, named="factored")
    for net, ranks in ((TWO, 4), (FOUR, 7)):
        yield sim("sync:allreduce=hierarchical", ranks, net=net)
        yield sim("sync", ranks, net=net)
    for update in UPDATES:
        yield sim("sync:allreduce=shared-memory", 3, f"--update {update}", net=ONE_NODE)
    yield sim("sync:allreduce=hierarchical", 7, "--update adam --lr 0.01", net=THREE)
    yield sim("sync:allreduce=ring", 3, "--update momentum --schedule cosine:warmup=10")
    yield sim(
        "sync:allreduce=rabenseifner", 3, "--dtype float64 --model mlp:16,12,activation=tanh,normalise=true"
    )
    yield sim("sync", 3, "--batch-per-rank 8 --lr-scaling linear --draws 30", settings=without("--batch"))
    yield sim("sync:allreduce=ring", 4, "--rendezvous")
    yield away("sync:allreduce=ring", 3)
    yield order("sync:allreduce=ring,balance=true", 4)
    yield order("sync:allreduce=shared-memory,balance=true", 3, net=ONE_NODE)
    yield order("sync:balance=true", 7, net=FOUR)

    for ranks in (2, 3, 4, 7):
        yield sim("main-worker", ranks)
    yield sim("main-worker", 4, "--update adam --lr 0.01", net=TWO)
    yield sim("main-worker", 3, "--update nesterov --schedule warmup:steps=20")
    yield away("main-worker", 3)


def averaging() -> Iterator[Case]:
    """Strategies that average parameters."""
    for ranks in (1, 2, 3, 7):
        yield sim("weight-average", ranks)
    yield sim("weight-average:allreduce=ring", 4)
    yield sim("weight-average", 7, "--update adam --lr 0.01", net=FOUR)
    yield sim("weight-average:allreduce=shared-memory", 4, net=ONE_NODE)

    for ranks in (1, 2, 3, 7):
        yield sim("local-sgd:every=4", ranks)
    yield sim("local-sgd:every=none", 3)
    yield sim("local-sgd:every=3,warmup=5", 4)
    yield sim("local-sgd:every=3,outer-momentum=0.9,outer-lr=0.7", 2)
    yield sim("local-sgd:every=3,warmup=4,outer-momentum=0.9,outer-lr=0.7,allreduce=ring", 4)
    yield sim("local-sgd:outer-lr=0.5,allreduce=naive", 3, "--schedule cosine")
    for update in UPDATES:
        yield sim("local-sgd:every=5", 3, f"--update {update}")
    yield sim("local-sgd:every=3,outer-momentum=0.9", 7, net=FOUR)
    yield away("local-sgd:every=3,warmup=2,outer-momentum=0.9", 3)

    for ranks in (1, 2, 3, 7):
        yield sim("elastic:every=3", ranks)
    yield sim("elastic:every=2,moving-rate=0.2,allreduce=ring", 4, "--update momentum")
    yield sim("elastic", 7, "--update adam --lr 0.01", net=FOUR)
    yield away("elastic:every=3", 3)

    for ranks in (1, 2, 3, 7):
        yield sim("psgd", ranks)
    yield sim("psgd:tolerance=0.05,allreduce=ring", 4, "--epochs 5")
    yield sim("psgd", 4, "--update adam --lr 0.01", net=TWO)
    yield away("psgd", 3)


def lock_free() -> Iterator[Case]:
    """`gossip` and `hogwild`."""
    for ranks in (1, 2, 3, 4, 7):
        yield order("gossip", ranks)
    yield order("gossip:every=3", 4, "--update adam --lr 0.01", net=TWO)
    yield order("gossip:every=2", 4, "--rendezvous", net=ONE_NODE)
    yield away("gossip", 3, timed=True)
    yield order("gossip", 4, "--jitter 0.2")

    for ranks in (1, 2, 3, 4, 7):
        yield order("hogwild", ranks, net=ONE_NODE)
    yield order("hogwild:every=4", 4, net=TWO)
    yield order("hogwild:every=2", 7, "--update momentum --lr 0.03", net=THREE)
    yield order("hogwild:every=4", 3)
    yield order("hogwild", 3, "--update adam --lr 0.01", net=ONE_NODE)
    yield away("hogwild", 3, net=ONE_NODE, timed=True)
    yield order("hogwild:every=4", 4, "--jitter 0.2", net=TWO)


def parameter_server() -> Iterator[Case]:
    """Masters, placements, rules and updates of `parameter-server`."""
    server = "parameter-server"
    for masters, ranks in ((1, 2), (1, 3), (1, 4), (1, 7), (2, 4), (2, 7), (3, 4), (3, 7)):
        yield order(f"{server}:masters={masters}", ranks)
    for masters, ranks in ((1, 3), (2, 4), (3, 7), (4, 7)):
        yield order(f"{server}:masters={masters},placement=even", ranks)
    for masters, more, ranks in (
        (1, "share=dynamic", 4),
        (2, "share=dynamic,placement=even", 7),
        (1, "bound=0", 4),
        (2, "bound=1", 7),
        (1, "bound=3,share=dynamic", 4),
        (1, "backup=1", 4),
        (2, "backup=2,placement=even", 7),
        (2, "backup=1,share=dynamic,rule=plain", 7),
    ):
        yield order(f"{server}:masters={masters},{more}", ranks)
    for rule in (
        "adaptive:step=0.004/patience=4/mix=0", "clip", "clip:norm=0.5", "dc", "dc:variant=constant", "gap-aware",
        "plain", "rms", "staleness",
    ):  # fmt: skip
        yield order(f"{server}:masters=2,rule={rule}", 4)
    yield order(f"{server}:rule=dana", 4, "--lr 0.01")
    for update in UPDATES:
        yield order(f"{server}:masters=2,placement=even,rule=plain", 4, f"--update {update}")
    yield order(f"{server}:rule=gap-aware", 4, "--schedule step:every=30 --dtype float64")
    yield order(f"{server}:rule=staleness", 3, "--update momentum --schedule cosine:warmup=10 --lr 0.03")
    yield away(f"{server}:masters=2,rule=plain", 4, timed=True)
    yield order(f"{server}:rule=plain", 4, "--model mlp:16,12 --lr 1000 --on-divergence stop")
    yield order(f"{server}:masters=2", 7, net=THREE)
    yield order(f"{server}:masters=2", 4, net=ONE_NODE)
    yield order(f"{server}:masters=2", 4, "--rendezvous")
    yield order(f"{server}:masters=2", 7, "--jitter 0.2")


def without(name: str) -> dict[str, str]:
    """The small settings, less one."""
    return {key: value for key, value in SMALL.items() if key != name}


FAMILIES = (
    ("serial", 1), ("sync:allreduce=ring", 3), ("main-worker", 3), ("weight-average", 3), ("local-sgd:every=2", 3),
    ("elastic:every=2", 3), ("psgd", 3), ("gossip", 3), ("hogwild", 3), ("parameter-server:masters=2", 4),
)  # fmt: skip
ASYNCHRONOUS = ("gossip", "hogwild", "parameter-server")


def networks() -> Iterator[Case]:
    """PyTorch networks, each family of strategies once: `cnn`, and one whose buffers change in training."""
    for settings, named in ((IMAGES, "cnn"), (NORM, "BatchNorm")):
        for strategy, ranks in FAMILIES[named == "BatchNorm" :]:
            timed = strategy.partition(":")[0] in ASYNCHRONOUS
            net = "loopback" if strategy == "hogwild" else "10gbe"
            yield case("sim", strategy, ranks, settings=settings, net=net, named=named, timed=timed)


def time_alone() -> Iterator[Case]:
    """Virtual times, bytes and messages on few ranks and on many, with all costs, and nothing computed."""
    ways = (
        ("sync", 8), ("sync:allreduce=ring", 2), ("sync:allreduce=rabenseifner", 4), ("main-worker", 8),
        ("weight-average", 192), ("local-sgd:every=2,warmup=1,outer-momentum=0.9", 256), ("elastic:every=2", 256),
        ("psgd", 256), ("gossip", 192), ("hogwild:every=2", 192), ("parameter-server", 192),
        ("parameter-server:masters=3,placement=even,rule=plain", 192),
    )  # fmt: skip
    yield case("time", "serial", 1, "--no-compute --draws 32", settings=LONG)
    for strategy, draws in ways:
        for ranks in (4, 64):
            few = draws if draws < 64 else draws * ranks // 64 * (1 + (ranks == 4))
            yield case("time", strategy, ranks, f"--no-compute --draws {few}", settings=LONG)
    for collective, batch in (("shared-memory", 64), ("shared-memory", 8), ("hierarchical", 64), ("auto", 8)):
        more = f"--no-compute --draws 8 --batch {batch}"
        yield case("time", f"sync:allreduce={collective}", 4, more, settings=LONG, net="loopback")
    for strategy, draws in (("sync", 4), ("hogwild:every=2", 192), ("local-sgd:every=2", 192)):
        net = "10gbe:ranks-per-node=16"
        yield case("time", strategy, 64, f"--no-compute --draws {draws}", settings=LONG, net=net)


def real() -> Iterator[Case]:
    """On MPI: what has a fixed order, replays of simulated orders, and a few whose bytes and messages alone are fixed."""

    def mpi(*words: Any, **about: Any) -> Case:
        return case("mpi", *words, **about)

    yield mpi("serial", 1, "--update adam --lr 0.01")
    for collective in (
        "auto", "native", "naive", "ring", "recursive-doubling", "rabenseifner", "shared-memory", "hierarchical",
    ):  # fmt: skip
        for ranks in (2, 3, 4):
            yield mpi(f"sync:allreduce={collective}", ranks)
    for ranks in (2, 3):
        yield mpi("sync:allreduce=shared-memory", ranks, settings=FACTORED, named="factored")
    yield mpi("sync:allreduce=shared-memory", 3, "--update adam --lr 0.01")
    yield mpi("main-worker", 3, "--update momentum")
    yield mpi("weight-average", 3, "--update momentum")
    yield mpi("local-sgd:every=3,warmup=4,outer-momentum=0.9,outer-lr=0.7", 3)
    yield mpi("local-sgd:every=4,allreduce=ring", 4)
    yield mpi("elastic:every=3", 3)
    yield mpi("psgd", 3)
    yield mpi("gossip", 1)
    yield mpi("hogwild", 1)
    yield mpi("gossip", 2, unstable=(*BY_CHANCE, "bytes", "messages"))
    yield mpi("hogwild", 2, unstable=BY_CHANCE)
    yield mpi("sync:allreduce=ring,balance=true", 2, unstable=BY_CHANCE)
    yield mpi("parameter-server:masters=2", 4, unstable=BY_CHANCE)
    server = "parameter-server"
    for strategy, ranks, more in (
        (f"{server}:rule=plain", 3, "--update momentum"),
        (f"{server}:masters=2,placement=even,share=dynamic", 4, ""),
        (f"{server}:masters=2,backup=1,rule=dc", 4, ""),
        (f"{server}:bound=1,rule=plain", 3, "--model mlp:16,12,activation=relu --lr 6 --on-divergence halve"),
    ):
        recorded = case("sim", strategy, ranks, f"{more} --threads 1".strip(), timed=True)
        yield recorded
        words = ("train", "--replay", f"run:{recorded.name}", "-n", str(ranks))
        yield Case(f"mpi replay of {recorded.name}", "mpi", (*words, "--no-bind"))


def scaling() -> Iterator[Case]:
    """Predictions."""
    work = f"--data digits --model {LEARNS} --batch 32 --lr 0.1 --machine costs:full".split()
    for name, more in (
        ("time", "--ranks 1,4,16 --network 10gbe --strategy sync:allreduce=ring --strategy local-sgd:every=4 "
                 "--strategy parameter-server:masters=2,placement=even --strategy elastic"),
        ("accuracy", "--ranks 2,4 --network 10gbe:ranks-per-node=2 --accuracy --epochs 1 --slow 1:1.5x --strategy sync "
                     "--strategy main-worker --strategy gossip --strategy hogwild"),
    ):  # fmt: skip
        arguments = ("simulate", "scaling", *work, *more.split(), "--seed", str(SEED))
        yield Case(f"scaling {name}", "scaling", arguments)


class Recorder:
    """Runs cases in a folder, and reads what they left there."""

    def __init__(self, paceline: Path, folder: Path, free: tuple[str, ...]) -> None:
        self.paceline, self.folder = paceline, folder
        self._places: dict[str, str] = {}
        self._runs = 0
        (folder / "nets.py").write_text(NETS)
        for name, work in (("full", WORK), ("free", WORK | {kind: [[1, 0.0]] for kind in (*FREE, *free)})):
            costs = {"kind": "costs", "format": 1, "processor": "made up", "cores": 4}
            path = folder / f"costs-{name}.json"
            path.write_text(
                json.dumps({**costs, "work": {kind: {"1": table} for kind, table in work.items()}})
            )
            self._places[f"costs:{name}"] = str(path)

    def record(self, case: Case, again: bool = False) -> dict[str, Any]:
        """Run a case, and return what is kept of it."""
        found = self._run(case)
        unstable = set(case.unstable)
        if again and found["status"] in (0, 3):
            second = self._run(case)
            unstable |= {name for name in (*STRICT, *VALUES) if found.get(name) != second.get(name)}
        if unstable:
            found["unstable"] = sorted(unstable)
        return found

    def _run(self, case: Case) -> dict[str, Any]:
        self._runs += 1
        out = self.folder / "runs" / str(self._runs)
        self._places[f"run:{case.name}"] = str(out)
        words = [self._places.get(word, word) for word in case.arguments]
        where = (
            ["-o", str(out), "--json"]
            if case.kind == "scaling"
            else ["--runs", str(out.parent), "--name", out.name]
        )
        status, told = self._call([str(self.paceline), *words, *where, "--quiet"])
        found = {
            "kind": case.kind,
            "command": " ".join(case.arguments),
            "timed": case.timed,
            "status": status,
        }
        if status not in (0, 3):
            return {**found, "error": told[-2000:]}
        return {**found, **(prediction(out) if case.kind == "scaling" else results(out, case.kind))}

    def _call(self, command: list[str]) -> tuple[int, str]:
        with (self.folder / "told").open("w+") as told:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=told,
                start_new_session=True,
            )
            try:
                status = process.wait(SECONDS)
            except BaseException as stopped:
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                if not isinstance(stopped, subprocess.TimeoutExpired):
                    raise
                status = -1
            told.seek(0)
            return status, told.read()


def results(folder: Path, kind: str) -> dict[str, Any]:
    """What is kept of a run's folder."""
    summary = json.loads((folder / "summary.json").read_text())
    lines = folder / "epochs.jsonl"  # not there where no epoch came to its end
    epochs = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    found = {"bytes": summary["bytes_sent"], "messages": summary["messages_sent"]}
    if kind != "time":
        names = ("loss", "validation_loss", "validation_accuracy")
        found |= {
            "parameters": digest(folder / "model.npz"),
            "test_accuracy": repr(summary["test_accuracy"]),
            "losses": [[repr(epoch.get(name)) for name in names] for epoch in epochs],
            "order": summary["findings"].get("order"),
            "diverged": summary["diverged"],
        }
    if kind != "mpi":
        found["times"] = {
            "train_seconds": summary["train_seconds"],
            **{f"seconds.{name}": value for name, value in summary["seconds"].items()},
            **{f"epoch {epoch['epoch']}": epoch["train_seconds"] for epoch in epochs},
            **{
                f"rank {rank} {name}": value
                for rank, seconds in enumerate(summary["seconds_by_rank"])
                for name, value in seconds.items()
            },
        }
    return found


def digest(path: Path) -> str:
    """Of the names, types, shapes and bytes of all arrays of a file."""
    made = hashlib.sha256()
    with np.load(path, allow_pickle=False) as arrays:
        for name in sorted(arrays.files):
            array = arrays[name]
            made.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
            made.update(array.tobytes())
    return made.hexdigest()


def prediction(folder: Path) -> dict[str, Any]:
    """What is kept of a scaling.json: its numbers by their names."""
    told = json.loads((folder / "scaling.json").read_text())
    found: dict[str, dict[str, Any]] = {
        name: {} for name in ("bytes", "messages", "test_accuracy", "words", "times")
    }

    def walk(value: Any, name: str, last: str) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                if key != "told":  # in sentences, the same figures
                    walk(inner, f"{name} {key}".strip(), key)
        elif isinstance(value, list):
            for number, inner in enumerate(value):
                label = str(number)
                if isinstance(inner, dict):
                    label = str(inner.get("strategy", inner.get("ranks", number)))
                walk(inner, f"{name} {label}", last)
        elif last in ("bytes", "messages"):
            found[last][name] = value
        elif last in ("accuracy", "staleness"):
            found["test_accuracy"][name] = repr(value)
        else:
            found["times" if isinstance(value, float) else "words"][name] = value

    walk({"serial": told["serial"], "strategies": told["strategies"]}, "", "")
    return found


def record(args: argparse.Namespace) -> int:
    """Run all cases and write the file."""
    chosen = cases()
    if args.only:
        wanted = {case.name for case in chosen if any(fnmatch(case.name, pattern) for pattern in args.only)}
        needed = {
            word[4:]
            for case in chosen
            if case.name in wanted
            for word in case.arguments
            if word[:4] == "run:"
        }
        chosen = [case for case in chosen if case.name in wanted | needed]
    if args.list:
        say("\n".join(f"{case.name}: paceline {' '.join(case.arguments)}" for case in chosen))
        return 0
    paceline = args.paceline.absolute()
    if not paceline.is_file():
        raise SystemExit(f"no such command: {paceline}")
    began, found, failed = time.monotonic(), {}, 0
    with tempfile.TemporaryDirectory(prefix="digests-") as made:
        folder = Path(made)
        if args.keep:
            folder = args.keep.absolute()
            if folder.exists() and any(folder.iterdir()):
                raise SystemExit(f"{folder} must be new, or empty")
            folder.mkdir(parents=True, exist_ok=True)
        recorder = Recorder(paceline, folder, tuple(args.free))
        for number, case in enumerate(chosen, 1):
            start = time.monotonic()
            found[case.name] = got = recorder.record(case, again=args.twice and case.kind == "mpi")
            bad = got["status"] not in (0, 3)
            failed += bad
            remark = f"  FAILED with {got['status']}: {got['error'].strip()}" if bad else ""
            remark += f"  unstable: {', '.join(got['unstable'])}" if "unstable" in got else ""
            say(
                f"{number}/{len(chosen)}  {time.monotonic() - start:4.1f} s  {case.name}{remark}",
                to=sys.stderr,
            )
    about = {"only": args.only, "twice": args.twice, "processor": processor(), "numpy": np.__version__}
    args.out.write_text(json.dumps({"format": 1, **about, "cases": found}, indent=1) + "\n")
    say(f"{len(found)} cases, {failed} failed, {time.monotonic() - began:.0f} s: {args.out}")
    return 1 if failed else 0


def processor() -> str:
    """The processor's name and vector instructions: products of matrices depend on both."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    vectors = [flag for flag in told.get("flags", "").split() if flag.startswith(("avx", "fma", "amx"))]
    return f"{told.get('model name', '')} {' '.join(vectors)}".strip()


def compare(args: argparse.Namespace) -> int:
    """Print what differs between two recordings."""
    one, two = (json.loads(path.read_text()) for path in args.compare)
    a, b = one["cases"], two["cases"]
    for name in ("processor", "numpy"):
        if one[name] != two[name]:
            say(f"note: {name} differs, parameters may differ for that alone: {one[name]} | {two[name]}")
    part = bool(one["only"] or two["only"] or args.only)

    def wanted(name: str) -> bool:
        return not args.only or any(fnmatch(name, pattern) for pattern in args.only)

    names = [name for name in a if name in b and wanted(name)]
    missing = [] if part else [*(n for n in a if n not in b), *(n for n in b if n not in a)]
    rows, unstable, bad = [], [], len(missing)
    for name in names:
        x, y = a[name], b[name]
        ignored = {*x.get("unstable", ()), *y.get("unstable", ())}
        if ignored:
            unstable.append(f"{name}: {', '.join(sorted(ignored))}")
        differ = [
            field for field in (*STRICT, *VALUES) if field not in ignored and x.get(field) != y.get(field)
        ]
        strict = [field for field in differ if field in STRICT]
        if y["status"] not in (0, 3) or x["status"] not in (0, 3):
            strict = strict or ["status"]
            differ = differ or ["status"]
        bad += bool(strict)
        notes = [
            describe_change(field, x, y)
            for field in differ
            if field not in ("parameters", "losses", "order", "words")
        ]
        if "parameters" in differ and x["timed"] and x.get("times") != y.get("times"):
            notes.append("its order depends on virtual times, which differ too")
        if x["command"] != y["command"]:
            notes.append("its command differs")
        if differ or x["command"] != y["command"]:
            rows.append(("*" if strict else "", name, ", ".join(differ), "; ".join(filter(None, notes))))
    if rows:
        say("What differs (* parameters, bytes, messages or status):\n" + table(rows) + "\n")
    if missing:
        say("In one recording only:\n  " + "\n  ".join(missing) + "\n")
    times = sorted(
        (found for name in names if (found := compare_times(name, a[name], b[name]))), reverse=True
    )
    timed = sum("times" in a[name] and "times" in b[name] for name in names)
    if times:
        head = ("train seconds", "before", "after", "largest change of a part, as a part of them", "case")
        say("Virtual times:\n" + table([head, *(row for _, row in times)]) + "\n")
    if unstable:
        say("Not compared, as two runs differ in it:\n  " + "\n  ".join(unstable) + "\n")
    say(
        f"{len(names)} cases compared: {bad} with other parameters, bytes or messages or missing, "
        f"{sum(not row[0] for row in rows)} with other differences; {len(times)} of {timed} with other virtual times"
    )
    return 1 if bad else 0


def describe_change(field: str, x: dict[str, Any], y: dict[str, Any]) -> str:
    """Return both values of a field, if they are short."""
    if field == "status" and "error" in y:
        return f"{x['status']} -> {y['status']}: {y['error'].strip().splitlines()[-1] if y['error'].strip() else ''}"
    if isinstance(x.get(field), dict):
        return ""
    return f"{field} {x.get(field)} -> {y.get(field)}"


def compare_times(name: str, x: dict[str, Any], y: dict[str, Any]) -> tuple[float, tuple[str, ...]] | None:
    """Return by how much the virtual times of a case differ, and a row of the table; None if they do not."""
    p, q = x.get("times"), y.get("times")
    if p is None or q is None or p == q:
        return None
    whole = p.get("train_seconds")

    def change(key: str) -> float:
        if key not in p or key not in q:
            return float("inf")
        most = whole or max(abs(p[key]), abs(q[key])) or 1.0
        return abs(q[key] - p[key]) / most

    worst = max({*p, *q}, key=lambda key: (change(key), key))
    largest = f"{change(worst):.2%} {worst}"
    if whole is None:
        return change(worst), ("", "", "", largest, name)
    relative = q["train_seconds"] / whole - 1
    return abs(relative), (f"{relative:+.4%}", f"{whole:.6g}", f"{q['train_seconds']:.6g}", largest, name)


def table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def say(text: str, to: Any = None) -> None:
    to = sys.stdout if to is None else to
    to.write(text + "\n")
    to.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--paceline", type=Path, metavar="COMMAND", help="the paceline to run")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="where the recording goes")
    parser.add_argument(
        "--twice", action="store_true", help="real ranks twice, to mark what is not reproducible"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="PATTERN", help="cases by name, as 'sim sync*'"
    )
    parser.add_argument("--list", action="store_true", help="print the cases")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the runs there")
    parser.add_argument(
        "--free", action="append", default=[], metavar="KIND",
        help="another kind of work that costs nothing where the order of events counts",
    )  # fmt: skip
    parser.add_argument("--compare", nargs=2, type=Path, metavar="FILE", help="compare two recordings")
    args = parser.parse_args()
    work: Callable[[argparse.Namespace], int] = compare if args.compare else record
    if work is record and not args.list and not (args.paceline and args.out):
        parser.error("give --paceline and -o, or --compare")
    return work(args)


if __name__ == "__main__":
    sys.exit(main())
