"""Test accuracy of every stale-gradient rule over the number of workers: a parameter server modelled in one process.

    python benchmarks/staleness.py [--part rules,fresh,tuned,orders,ablation,rates,problems,dynamics] [--seeds 5]
                                   [--jobs 2] [--json FILE] [--missing]

W workers; each computes the gradient of a real batch at the parameters that it was last shown; the rule and the update
are the real ones, on the pieces that real masters would own. Only time is modelled: `round-robin` serves the workers in
turn (staleness W - 1); `random` draws how long each gradient takes, on workers of unequal speed. The reference setting
is 3,160 gradients of 16 samples of MNIST, network 784-128-64-10, learning rate 1.6. With `--json` an existing file
keeps the parts that are not run again; `--missing` runs only what it lacks.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import os
import statistics
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from where import where

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

WORKERS = (1, 2, 4, 6, 8, 12, 16, 24, 31, 63)
SOME = (1, 2, 6, 12, 31, 63)


@dataclass(frozen=True)
class Run:
    """One training run of the model."""

    rule: str
    workers: int
    seed: int = 0
    lr: float = 1.6
    update: str = "sgd"
    order: str = "round-robin"
    masters: int = 1
    placement: str = "even"
    data: str = "mnist"
    model: str = "mlp:128,64"
    batch: int = 16
    gradients: int = 3160


def order_workers(run: Run) -> Iterator[int]:
    """Iterate over the workers in the order in which the masters serve them."""
    import numpy as np

    if run.order == "round-robin":
        for t in range(run.gradients):
            yield t % run.workers
        return
    random = np.random.default_rng([run.seed, 1])
    pace = np.exp(random.normal(0, 0.3, run.workers))
    queue = [(pace[w] * random.gamma(4, 0.25), w) for w in range(run.workers)]
    heapq.heapify(queue)
    for _ in range(run.gradients):
        now, w = queue[0]
        yield w
        heapq.heapreplace(queue, (now + pace[w] * random.gamma(4, 0.25), w))


@lru_cache(maxsize=2)
def data_of(name: str) -> Any:
    from paceline.data import load

    return load(name)


def train(run: Run, watch: Any = None) -> float:
    """Test accuracy in percent of the masters' parameters at the end."""
    import numpy as np

    from paceline.data import Batches, chunks
    from paceline.models import make
    from paceline.names import parse
    from paceline.strategies.parameter_server import place
    from paceline.strategies.parameter_server.rules import Arrival
    from paceline.training.job import build_component

    data = data_of(run.data)
    model = make(parse("models", run.model), data, seed=run.seed, dtype="float32")
    rule, update = parse("rules", run.rule.replace("/", ",")).make(), build_component("updates", run.update)
    parts = [p.part for p in place(model.layers, run.masters, run.placement)]  # type: ignore[arg-type]
    x = model.x.copy()
    rule_states = [rule.start(x[part], run.workers) for part in parts]
    update_states = [update.start(x[part]) for part in parts]
    shown = np.tile(x, (run.workers, 1))
    version_shown = [0] * run.workers
    drift = np.zeros_like(x)
    batches = Batches(data.train, batch=run.batch, seed=run.seed, draws=run.gradients)
    arrival = Arrival(worker=0, tau=0, drift=drift, gap=0.0, scale=1.0, eta=run.lr)
    with np.errstate(all="ignore"):  # what diverges does so quietly
        for t, w in enumerate(order_workers(run)):
            model.x[:] = shown[w]
            batch = batches.at(0, t)
            model.gradient(batch)
            arrival.worker, arrival.tau, arrival.scale = w, t - version_shown[w], 1 / batch.count
            for part, rule_state, update_state in zip(parts, rule_states, update_states, strict=True):
                g = model.g[part]
                arrival.drift = np.subtract(x[part], shown[w, part], drift[part])
                arrival.gap = math.sqrt(float(arrival.drift @ arrival.drift) / g.size)
                if watch is not None:
                    watch(t, rule, g * arrival.scale, x[part], shown[w, part], rule_state)
                factor = rule.correct(g, x[part], arrival, rule_state)
                update.apply(x[part], g, arrival.eta * factor, update_state, arrival.scale)
                rule.show(x[part], shown[w, part], w, rule_state)
            version_shown[w] = t + 1
        model.x[:] = x
        right = sum(model.evaluate(*some)[1] for some in chunks(data.test, dtype=x.dtype))
    return 100 * right / len(data.test)


# ---- the parts


def rules() -> dict[str, list[Run]]:
    """Every rule over the workers. dana's momentum makes steps 10 times as long: it gets a tenth of the rate."""
    found = {"adaptive": [Run("adaptive", w) for w in WORKERS]}
    for rule in ("plain", "staleness", "gap-aware", "dc", "dana", "clip", "rms"):
        found[rule] = [Run(rule, w, lr=0.16 if rule == "dana" else 1.6) for w in SOME]
    return found


def fresh() -> dict[str, list[Run]]:
    """adaptive with seeds 5 to 9: its constants were chosen with seeds 0 to 4."""
    return {"adaptive": [Run("adaptive", w) for w in (1, 2, 4, 6, 12, 31, 63)]}


def tuned() -> dict[str, list[Run]]:
    """The other rules with smaller steps, for many workers."""
    found = {}
    for rule, given in {
        "plain": (0.4, 0.1, 0.025),
        "staleness": (0.4, 0.1),
        "gap-aware": (0.4, 0.1),
        "dc": (0.4, 0.1),
        "dana": (0.04, 0.01),
        "clip": (0.4, 0.1),
    }.items():
        for lr in given:
            found[f"{rule}, lr {lr}"] = [Run(rule, w, lr=lr) for w in (1, 12, 31)]
    for step in (0.004, 0.001, 0.0005):
        found[f"rms, step {step}"] = [Run(f"rms:step={step}", w) for w in (1, 12, 31)]
    return found


def orders() -> dict[str, list[Run]]:
    """adaptive with workers of unequal speed, and with pieces as masters have them."""
    return {
        f"{order}, {masters} masters, {placement}": [
            Run("adaptive", w, order=order, masters=masters, placement=placement) for w in (6, 12, 31)
        ]
        for order, masters, placement in (("random", 4, "even"), ("round-robin", 3, "layers"))
    }


def ablation() -> dict[str, list[Run]]:
    """adaptive without one of its parts. A recency without end makes the average the last point."""
    without = {
        "mix=0": "adaptive:mix=0",
        "no average": "adaptive:recency=1e12/mix=0",
        "no fall with staleness": "adaptive:patience=1e12",
        "neither": "adaptive:recency=1e12/mix=0/patience=1e12",
        "decay=0.999": "adaptive:decay=0.999",
    }
    return {words: [Run(rule, w) for w in (1, 12, 31, 63)] for words, rule in without.items()}


def rates() -> dict[str, list[Run]]:
    """What --lr does to adaptive, and to plain SGD with one worker."""
    given = (0.1, 0.4, 1.6, 6.4)
    found = {f"adaptive, lr {lr}": [Run("adaptive", w, lr=lr) for w in (1, 12, 31)] for lr in given}
    return {**found, **{f"plain, lr {lr}": [Run("plain", 1, lr=lr)] for lr in given}}


def problems() -> dict[str, list[Run]]:
    """Other problems, with the model's own default rate and adaptive as it is; and serial SGD at several rates."""
    relu = "mlp:256,128,activation=relu,loss=cross-entropy"
    given: dict[str, tuple[float, dict[str, Any]]] = {
        "reference, batch 64": (2.0, {"batch": 64, "gradients": 3128}),
        "reference, batch 64, one pass": (2.0, {"batch": 64, "gradients": 782}),
        "reference, batch 128": (2.0, {"batch": 128, "gradients": 1955}),
        "relu and cross-entropy": (0.1, {"model": relu, "gradients": 3125}),
        "relu and cross-entropy, batch 64": (0.1, {"model": relu, "batch": 64, "gradients": 1564}),
        "digits": (2.0, {"data": "digits", "model": "mlp:32", "gradients": 1500}),
        "cnn, batch 64": (0.1, {"model": "cnn", "batch": 64, "gradients": 782}),
    }
    found = {}
    for words, (lr, options) in given.items():
        found[words] = [Run("adaptive", w, lr=lr, **options) for w in (1, 6, 12, 31)]
        for times in (0.5, 1, 2, 4):
            found[f"{words}: serial, lr {lr * times:g}"] = [Run("plain", 1, lr=lr * times, **options)]
    return found


def dynamics() -> dict[str, Any]:
    """Inside runs with 12 workers, as medians over stretches of the run (first gradient, last gradient).

    gap: how far what a worker is shown moves (root mean square) until its gradient arrives. gradient: the size of the
    mean gradient (likewise). agreement: the cosine of that movement with the gradient's descent, which is what makes
    staleness act like momentum. apart: from the average to the fast copy.
    """
    import numpy as np

    stretches = ((12, 100), (100, 400), (400, 1600), (1600, 3160))
    found: dict[str, Any] = {"stretches": stretches}
    for text in ("plain", "rms:step=0.004", "adaptive:recency=1e12/mix=0", "adaptive"):
        rows: list[list[float]] = []

        def watch(t: int, rule: Any, g: Any, x: Any, then: Any, state: Any, rows: Any = rows) -> None:
            now = np.empty_like(x)
            rule.show(x, now, 0, state)
            now -= then
            long, far = float(np.linalg.norm(g)), float(np.linalg.norm(now))
            agreement = -float(g @ now) / (long * far) if long * far else 0.0
            apart = float(np.linalg.norm(x - state["y"])) / (1 - rule.mix) if "y" in state else 0.0
            root = math.sqrt(g.size)
            rows.append([t, far / root, long / root, agreement, apart / root])

        accuracy = train(Run(text, 12), watch)
        table = np.array(rows)
        within = [table[(table[:, 0] >= a) & (table[:, 0] < b), 1:] for a, b in stretches]
        medians = np.array([np.median(rows_of, axis=0) for rows_of in within]).T.tolist()
        names = ("gap", "gradient", "agreement", "apart")
        found[text] = {"accuracy": accuracy, **dict(zip(names, medians, strict=True))}
    return found


PARTS = (rules, fresh, tuned, orders, ablation, rates, problems)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [part.__name__ for part in PARTS] + ["dynamics"]
    parser.add_argument("--part", default=",".join(names), help="which tables to make")
    parser.add_argument(
        "--seeds", type=int, default=5, help="runs of each cell; 3 at most outside rules, fresh, orders"
    )
    parser.add_argument(
        "--workers", default=",".join(map(str, WORKERS)), help="columns of the table of rules"
    )
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--missing", action="store_true", help="run only what the file lacks")
    options = parser.parse_args()
    wanted = options.part.split(",")
    if unknown := set(wanted) - set(names):
        sys.exit(f"unknown part {', '.join(unknown)}; choose from {', '.join(names)}")
    result = {}
    if options.json and options.json.exists():
        result = json.loads(options.json.read_text())
    result.update(where())
    with ProcessPoolExecutor(options.jobs) as pool:
        for part in PARTS:
            if part.__name__ not in wanted:
                continue
            print(f"\n{part.__name__}: {(part.__doc__ or '').splitlines()[0]}", flush=True)
            rows = result.setdefault(part.__name__, {}) if options.missing else {}
            result[part.__name__] = rows
            for name, runs in part().items():
                if name in rows:
                    continue
                seeds = options.seeds if part in (rules, fresh, orders) else min(options.seeds, 3)
                first = 5 if part is fresh else 0
                each = [Run(**{**asdict(run), "seed": first + s}) for run in runs for s in range(seeds)]
                got = list(pool.map(train, each))
                row = {run.workers: got[i * seeds : (i + 1) * seeds] for i, run in enumerate(runs)}
                rows[name] = row
                cells = "  ".join(f"{w}: {spell(accuracies)}" for w, accuracies in row.items())
                print(f"{name:44} {cells}", flush=True)
                save(options.json, result)
        if "dynamics" in wanted and not (options.missing and "dynamics" in result):
            result["dynamics"] = pool.submit(dynamics).result()
            print("\ndynamics", json.dumps(result["dynamics"], indent=1))
            save(options.json, result)


def spell(accuracies: list[float]) -> str:
    return f"{statistics.fmean(accuracies):.1f} ({min(accuracies):.1f})"


def save(path: Path | None, result: dict[str, Any]) -> None:
    if path:
        path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
