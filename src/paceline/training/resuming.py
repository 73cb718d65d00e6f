"""Checkpoints of a run: save them at intervals, and go on from the last one (`paceline resume`)."""

from __future__ import annotations

import shlex
import shutil
import signal
from collections.abc import Collection
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.config import Config
from paceline.data import Dataset
from paceline.errors import AgreedError, StoppedError, UsageError
from paceline.launch import requeued_job, world
from paceline.models import BUFFER, Model
from paceline.record import Run
from paceline.record import checkpoint as files
from paceline.record.checkpoint import Saver, State
from paceline.strategies import Strategy
from paceline.training.job import Job, batch_of, strategy_of
from paceline.training.replaying import KINDS, check_trust
from paceline.worker import Resumption, Worker

if TYPE_CHECKING:
    from paceline.training.rank import RankEnvironment


# ---- during a run


def protect(me: Worker, job: Job, place: RankEnvironment, strategy: Any, folder: Path | None) -> Saver | None:
    """Prepare a rank to save its state and to stop when it is asked to; return what saves it, if anything does."""
    saves = getattr(strategy, "saves", None)
    asked = job.safety.checkpoint_every != "auto"
    if asked and saves is None and job.safety.interval.any:
        raise UsageError(
            f"{job.name()} cannot be saved: a strategy declares how with `saves` (see docs/checkpoints.md)"
        )
    if asked and place.time_only and job.safety.interval.any:
        raise UsageError(
            "--no-compute trains nothing: there is no checkpoint to save; leave out --checkpoint-every"
        )
    survives = job.safety.tolerate_failures and me.size > 1
    if survives and saves is None:
        raise UsageError(
            f"{job.name()} cannot go on without a rank: a strategy declares with `saves` how its ranks are saved"
        )
    if saves is None or place.time_only or (place.simulated and not asked and not survives):
        return None
    saver = None
    # A replay saves nothing: it can be replayed again.
    if folder is not None and job.config.replay is None and (asked or not place.simulated):
        first = 1 + max(
            (n for rank in files.saved_ranks(folder) for n in files.numbers(folder, rank)), default=0
        )
        saver = Saver(
            folder, me.rank, keep=job.safety.checkpoints, first=first, background=not place.simulated
        )
    me.keep_with(
        saves, job.safety.interval, saver,
        replicas=saves != "alone" and not getattr(strategy, "averages", False),
        whole_updates=getattr(strategy, "equals_serial", False),
    )  # fmt: skip
    if survives:
        me.survive(every_step=not isinstance(strategy, Strategy) or strategy.interval() == 1)
    return saver


def kind_of_batches(strategy: Any) -> str:
    """Return how a strategy divides batches among its ranks: "own", "dealt", "pieces" or, by messages, "itself"."""
    if getattr(strategy, "saves", None) == "itself":
        return "itself"
    if getattr(strategy, "own_data", False):
        return "own"
    return "dealt" if getattr(strategy, "whole_batches", False) else "pieces"


def describe_stop(me: Worker, stopped: StoppedError, folder: Path) -> dict[str, Any]:
    """Return the contents of stopped.json."""
    return {
        "signal": signal.Signals(stopped.signal).name,
        "saved": stopped.saved,
        "epoch": me.position[0],
        "turn": me.position[1],
        "train_seconds": me.train_seconds,
        "time": _now(),
        "resume": shlex.join(["paceline", "resume", str(folder)]),
    }


def finish(me: Worker, saver: Saver, job: Job) -> None:
    """Save the state of a run that has ended, if it saved others, so that it can be trained further."""
    saved = bool(saver.wait() and saver.written)
    if me.control.vote(saved or job.safety.checkpoint_every != "auto").ranks and job.safety.interval.any:
        me.position = (me.last_epoch + 1, 0)
        me.keeper.save()
    if saver.wait():
        saver.prune()


# ---- going on


def load_states(place: RankEnvironment, run: Path) -> Resumption:
    """Read the states that this rank needs to go on from the last checkpoint of a run. Collective.

    Reading them checks them. Only if one is damaged are all parts checked, to find a checkpoint that is not.
    """
    rank, ranks = (0, 1) if place.comm is None else (place.comm.Get_rank(), place.comm.Get_size())

    def read(numbers: list[int]) -> Resumption:
        before = len(numbers)
        if before == ranks:
            wanted = [0] if rank == 0 else [0, rank]
            states = [files.read(run, old, numbers[old]) for old in wanted]
            return Resumption(states, own=len(states) - 1, ranks=before)
        states = [files.read(run, old, number) for old, number in enumerate(numbers)]
        epochs = [state["position"]["epoch"] for state in states]
        turns = tuple(
            state["position"]["turn"] if epoch == min(epochs) else 10**9
            for state, epoch in zip(states, epochs, strict=True)
        )
        return Resumption(states, own=-1, ranks=before, turns=turns)

    def find(*, whole: bool) -> Resumption:
        numbers = place.checkpoint(run, whole=whole)
        if numbers is None:
            raise UsageError(f"{run} has no complete checkpoint: it cannot be resumed; train it again")
        resumption: Resumption = place.agreed(partial(read, numbers))
        return resumption

    try:
        return find(whole=False)
    except AgreedError:
        return find(whole=True)


def check_fits(run: Path, resumption: Resumption, model: Model, data: Dataset) -> None:
    """Raise a UsageError if a run cannot go on with this model or these data, before its record is changed."""
    x = resumption.first.get("x")
    if x is not None and np.shape(x) != np.shape(model.x):
        raise UsageError(
            f"{run} has {np.size(x):,} parameters, and the model {model.x.size:,}: resume it with the same model"
        )
    samples = Run(run).config.get("samples")
    if samples is not None and samples != len(data.train):
        raise UsageError(
            f"{run} was trained on {samples:,} samples, and the data now have {len(data.train):,}: resume it with the "
            "same data"
        )


def changes_for_record(job: Job, place: RankEnvironment, resumption: Resumption) -> dict[str, Any]:
    """Return what changes in the record's settings when a run is resumed."""
    assert job.resume is not None
    before = Run(job.resume).config
    ranks = 1 if place.comm is None else place.comm.Get_size()
    position = resumption.first["position"]
    entry = {
        "time": _now(), "ranks": ranks, "ranks_before": resumption.ranks, "epoch": position["epoch"],
        "turn": position["turn"],
    }  # fmt: skip
    if job.because:
        entry["because"] = job.because
    return {"ranks": ranks, "epochs": job.config.epochs, "resumed": [*before.get("resumed", []), entry]}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# ---- a Slurm job that was started again


def requeued(job: Job, *, ranks: int | None) -> Job:
    """Return the job with which to go on if Slurm has requeued this one; otherwise the same job.

    The run to go on with is the one that this Slurm job has recorded under the same name or, if it was given none, with the
    same settings. One that has no checkpoint is removed, to begin again.
    """
    number, here = requeued_job(), world()
    if number is None or job.runs is None or not job.runs.is_dir():
        return job
    named = job.run_name is not None
    folders = [job.runs / str(job.run_name)] if named else sorted(job.runs.iterdir(), reverse=True)
    for folder in folders:
        try:
            run = Run(folder)
            if run.environment.get("slurm_job") != number:
                continue
            complete = (folder / "summary.json").exists()
            if complete and named:
                return replace(job, resume=folder)
            if complete or (not named and _config_in(run) != job.config):
                continue
        except (UsageError, OSError, KeyError):
            continue
        if files.latest(folder) is None:
            if here is None or here.rank == 0:
                shutil.rmtree(folder, ignore_errors=True)
            return job
        config, _ = settings_of(folder, ranks=ranks, trust=True)
        why = f"Slurm requeued job {number}"
        return replace(job, config=config, run_name=folder.name, resume=folder, because=why)
    return job


# ---- `paceline resume` and fit(resume=...)


def settings_of(
    folder: Path,
    *,
    more_epochs: int = 0,
    ranks: int | None = None,
    trust: bool = False,
    objects: Collection[str] = (),
) -> tuple[Config, int]:
    """Return the settings with which to go on with a run, and the number of ranks: by default as many as before.

    Code that only the record names (`module:attribute`) is refused unless `trust`, or unless the user gives an object in
    its place (`objects`).
    """
    run = Run(folder)
    config = _config_in(run)
    missing = [name for name in run.config.get("objects") or () if name not in objects]
    if missing:
        raise UsageError(
            f"{folder} was trained with objects of a program ({', '.join(missing)}): resume it there, with fit(resume=...)"
        )
    for name in KINDS.keys() - objects:
        check_trust(name, getattr(config, name), run, trust)
    if config.replay is not None:
        raise UsageError(f"{folder} is a replay, which cannot be resumed; replay it again")
    before = int(run.config["ranks"])
    ranks = before if ranks is None else ranks
    if ranks != before and config.batch_per_rank is not None:
        strategy = strategy_of(config.strategy)
        if not getattr(strategy, "whole_batches", False):  # the batch stays what it was
            batch = batch_of(config, strategy, before)
            config = replace(config, batch=batch, batch_per_rank=None, lr_scaling="none")
    if (folder / "summary.json").exists():
        if more_epochs == 0:
            raise UsageError(f"{folder} is complete; --epochs N trains it for N more")
        _save_complete(run)
    return replace(config, epochs=config.epochs + more_epochs), ranks


def is_traced(folder: Path) -> bool:
    """Return True if a run was asked for a trace, which is written only at its end."""
    return bool((Run(folder).config.get("asked") or {}).get("trace")) or (folder / "trace.npz").exists()


def _config_in(run: Run) -> Config:
    """Return the settings that a run was given."""
    names = [setting.name for setting in fields(Config)]
    values = {name: run.config[name] for name in names if name in run.config}
    asked = run.config.get("asked") or {}
    return Config(**{**values, "lr": asked.get("lr", values.get("lr"))})


def _save_complete(run: Run) -> None:
    """Turn the trained model of a complete run into a checkpoint, if the run left none."""
    if files.latest(run.folder, whole=False) is not None:
        return
    arrays = run.model
    state: State = {
        "ranks": 1, "together": True, "x": arrays["x"],
        "buffers": {name.removeprefix(BUFFER): value for name, value in arrays.items() if name.startswith(BUFFER)},
        "position": {"epoch": int(run.config["epochs"]), "turn": 0, "count": 0},
        "updates": [], "rate": float(run.config["lr"]), "recovery": None, "epoch_sums": [0.0, 0],
        "epoch_losses": [0.0, 0.0, 0.0], "seconds": {}, "elapsed": 0.0, "counts": [0, 0, 0, 0], "rows": {},
        "weights": None, "kept": {}, "history": run.epochs, "findings": {}, "remarks": [], "tables": {},
    }  # fmt: skip
    files.write(run.folder, 0, 1, state)
