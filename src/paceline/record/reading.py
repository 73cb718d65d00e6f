"""Read runs: the one reader of records, which checks everything that it reads (`paceline.record.schema`)."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline import names
from paceline.errors import UsageError
from paceline.files import exists, read_arrays, read_json, read_json_lines, unreadable
from paceline.models import BUFFER, Model, put_state
from paceline.record import checkpoint, schema
from paceline.record.checkpoint import State
from paceline.record.rows import saved_logs
from paceline.record.writing import STEP_COLUMNS, steps_table

log = logging.getLogger(__name__)
# Of more runs that are left out, the others are only counted in the log.
NAMED = 5


def _tables(run: Run) -> list[str]:
    """Return the tables that the strategy wrote and readers use; in old records these follow from its findings."""
    known = [name for name in schema.TABLES if name not in ("steps", "trace")]
    listed = run.summary.get("tables")
    if listed is not None:
        return [name for name in known if name in listed]
    found = run.summary["findings"].get("staleness")
    if found is None:
        return []
    name = "updates" if "pieces" in found else "staleness"
    built_in = names.has("strategies", run.config["strategy"].partition(":")[0])
    return [name] if built_in or exists(run.folder / f"{name}.npz") else []


class Run:
    """A run's folder, read lazily.

    >>> import tempfile
    >>> from paceline import fit
    >>> with tempfile.TemporaryDirectory() as runs:
    ...     fitted = fit("mlp:8", "iris", strategy="serial", epochs=2, batch=10, runs=runs, quiet=True)
    ...     run = Run(fitted.run)
    ...     run.config["model"], run.summary["steps"], len(run.epochs), run.steps["loss"].shape
    ('mlp:8', 24, 2, (24,))
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            if not self.folder.is_dir():
                raise UsageError(f"no such run: {self.folder}")
            if not exists(self.folder / "config.json"):
                raise UsageError(f"{self.folder} is not a run: it has no config.json")
        except OSError as error:
            raise unreadable(self.folder, error) from None

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @property
    def complete(self) -> bool:
        """True if the run was completed."""
        return exists(self.folder / "summary.json")

    @cached_property
    def cut(self) -> str | None:
        """Where a run that is not complete was cut, by its last checkpoint; None if it is complete, or has no checkpoint.

        A run that is still going on looks the same.
        """
        if self.complete or self._saved is None:
            return None
        position, epochs = self._saved[0]["position"], self.config["epochs"]
        if position["turn"] == 0 and position["epoch"] > 0:
            return f"cut after epoch {position['epoch']} of {epochs}"
        return f"cut in epoch {position['epoch'] + 1} of {epochs}"

    @cached_property
    def _saved(self) -> list[State] | None:
        """The state of every rank at the last complete checkpoint, without arrays; None if there is none."""
        numbers = checkpoint.find_latest(self.folder)
        if numbers is None:
            return None
        return [checkpoint.read(self.folder, rank, n, arrays=False) for rank, n in enumerate(numbers)]

    @cached_property
    def config(self) -> dict[str, Any]:
        """The settings."""
        path = self._file("config.json")
        return schema.check_config(str(path), read_json(path))

    @property
    def simulated(self) -> dict[str, Any] | None:
        """The simulation's network, machine, costs …; None for real ranks. In a simulated run all seconds are virtual."""
        found: dict[str, Any] | None = self.config.get("simulated")
        return found

    @cached_property
    def environment(self) -> dict[str, Any]:
        """The machine and software that it ran on."""
        path = self._file("environment.json")
        return schema.check_environment(str(path), read_json(path), self.config)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The results; of a run that was cut, those at its last checkpoint, without a test."""
        if self.cut is not None:
            return self._summary_so_far()
        if not self.complete:
            raise UsageError(f"the run {self.folder} has not ended: it has no summary.json")
        path = self._file("summary.json")
        return schema.check_summary(str(path), read_json(path), self.config)

    @cached_property
    def epochs(self) -> list[dict[str, Any]]:
        """One dictionary per epoch."""
        path = self.folder / "epochs.jsonl"
        if self.cut is not None and self._saved is not None:
            return schema.check_epochs(str(self.folder), self._saved[0]["history"])
        return schema.check_epochs(str(path), read_json_lines(path)) if exists(path) else []

    @cached_property
    def steps(self) -> dict[str, NDArray[Any]]:
        """Every step of every rank, as columns; of a run that was cut, those until its last checkpoint."""
        if self.cut is not None and self._saved is not None:
            logs = saved_logs(
                self.folder, "steps", STEP_COLUMNS, [state["rows"].get("steps") for state in self._saved]
            )
            table = dict(steps_table(logs))
            return schema.check_table(str(self.folder / "steps"), "steps", table, len(logs))
        return self.read_table("steps")

    @cached_property
    def trace(self) -> dict[str, NDArray[Any]] | None:
        """Time spans and MPI calls of every rank, as columns; None if the run was not traced."""
        return self.read_table("trace") if exists(self.folder / "trace.npz") else None

    @cached_property
    def updates(self) -> dict[str, NDArray[Any]]:
        """Every update of every master of an asynchronous run, in order, as columns."""
        return self.read_table("updates")

    def read_table(self, name: str) -> dict[str, NDArray[Any]]:
        """Read one of the run's tables, such as "steps" or one that its strategy wrote, as columns."""
        path = self._file(f"{name}.npz")
        return schema.check_table(str(path), name, read_arrays(path), schema.most_ranks(self.config))

    @cached_property
    def model(self) -> dict[str, NDArray[Any]]:
        """The parameters, as `x`, and the buffers of the trained model, or of the last checkpoint of a run that was cut."""
        if self.cut is not None and self._saved is not None:
            return self._model_so_far(self._saved)
        path = self._file("model.npz")
        return schema.check_model(str(path), read_arrays(path))

    def restore(self, model: Model) -> None:
        """Copy the trained parameters and buffers into a model of the same shape."""
        if self.simulated is not None and not self.simulated.get("compute", True):
            raise UsageError(f"{self.folder} has no trained model: only time was simulated")
        arrays = self.model
        x = arrays["x"]
        if x.shape != model.x.shape:
            raise UsageError(
                f"the model of {self.folder} has {x.size:,} parameters and the one given {model.x.size:,}"
            )
        buffers = sorted(name.removeprefix(BUFFER) for name in arrays if name != "x")
        if buffers != sorted(model.buffers):
            raise UsageError(
                f"the model of {self.folder} has the buffers {buffers} and the one given {sorted(model.buffers)}"
            )
        for name, buffer in model.buffers.items():
            stored = arrays[BUFFER + name]
            if stored.shape != buffer.shape or (stored.dtype.kind == "c") != (buffer.dtype.kind == "c"):
                raise UsageError(
                    f"the model of {self.folder} has a buffer {name} of {stored.dtype} {stored.shape}; "
                    f"the one given {buffer.dtype} {buffer.shape}"
                )
        put_state(model, arrays)

    def _model_so_far(self, saved: list[State]) -> dict[str, NDArray[Any]]:
        """Return the model of the last checkpoint: rank 0's, or the mean of all for a strategy that averages them."""
        averages = (self.config.get("strategy_facts") or {}).get("averages") is True
        found: dict[str, list[NDArray[Any]]] = {}
        for rank, known in enumerate(saved if averages else saved[:1]):
            state = checkpoint.read(self.folder, rank, known["number"])
            arrays = {"x": state.get("x"), **{BUFFER + key: array for key, array in state["buffers"].items()}}
            for name, array in arrays.items():
                if array is not None:
                    found.setdefault(name, []).append(array)
        if any(len({array.shape for array in arrays}) > 1 for arrays in found.values()):
            raise UsageError(
                f"{self.folder / 'checkpoints'} is damaged: its ranks have models of different sizes"
            )
        return schema.check_model(
            str(self.folder / "checkpoints"),
            {
                name: np.mean(arrays, axis=0, dtype=np.float64).astype(arrays[0].dtype)
                if len(arrays) > 1 and arrays[0].dtype.kind == "f"
                else arrays[0]
                for name, arrays in found.items()
            },
        )

    def _summary_so_far(self) -> dict[str, Any]:
        """Return the results of a run that was cut, as far as its last checkpoint has them."""
        saved, config, count = self._saved or [], self.config, self.steps["count"]
        kinds = dict.fromkeys(("compute", "exchange", "wait", "update", "evaluation", *saved[0]["seconds"]))
        by_rank = [{kind: float(state["seconds"].get(kind, 0.0)) for kind in kinds} for state in saved]
        trained = max(sum(seconds.values()) - seconds["evaluation"] for seconds in by_rank)
        whole = (config.get("strategy_facts") or {}).get("whole_batches") is True
        each = config["batch_per_rank"]
        batch = config["batch"] or 64 if each is None else each if whole else each * len(saved)
        last = self.epochs[-1] if self.epochs else {}
        samples = float(count.sum())
        values = {
            "train_seconds": trained, "seconds": {kind: sum(of[kind] for of in by_rank) / len(by_rank) for kind in kinds},
            "seconds_by_rank": by_rank, "steps": 1 + max(self.steps["step"].tolist(), default=-1), "cut": self.cut,
            "messages_sent": sum(sum(state["counts"][::2]) for state in saved),
            "bytes_sent": sum(sum(state["counts"][1::2]) for state in saved),
            "threads": self.environment.get("threads_per_rank") or 1, "parameters": int(self.model["x"].size),
            "global_batch": batch, "data": config["data"], "test_accuracy": None, "test_loss": None,
            "samples_per_second": samples / trained if samples and trained else None, "loss": last.get("loss"),
            "findings": saved[0]["findings"], "remarks": [*saved[0]["remarks"], self.cut], "tables": {},
        }  # fmt: skip
        return schema.check_summary(str(self.folder / "checkpoints"), values, {**config, "ranks": len(saved)})

    def check(self) -> None:
        """Raise a UsageError if a file that reports read is missing, truncated, or contains impossible values."""
        _ = self.config, self.environment
        if not self.epochs and self.summary.get("loss") is not None:
            raise UsageError(f"the run {self.folder} has no epochs.jsonl")
        if self.cut is None:
            for name in ("steps", *_tables(self)):
                self.read_table(name)  # not kept: there may be many runs

    def _file(self, name: str) -> Path:
        if not exists(self.folder / name):
            raise UsageError(f"the run {self.folder} has no {name}")
        return self.folder / name


def find_runs(
    places: Iterable[str | Path], left_out: list[str] | None = None, cut: list[Run] | None = None
) -> list[Run]:
    """Find the complete runs among some folders, each a run or a folder of runs, sorted by name; each run once.

    A run that is damaged or cannot be read is skipped with a warning, which is also added to `left_out`; so is the copy of
    another one, which would count as a repetition. Runs that were cut and have a checkpoint are added to `cut`.
    """
    found: list[Path] = []
    for place in map(Path, places):
        try:
            if not place.is_dir():
                raise UsageError(f"no such run or folder of runs: {place}")
            try:
                (place / "config.json").lstat()
            except FileNotFoundError:
                found.extend(sorted(path for path in place.iterdir() if exists(path / "config.json")))
            else:
                found.append(place)
        except OSError as error:
            raise unreadable(place, error) from None
    once: dict[str, Path] = {}
    for folder in found:
        once.setdefault(os.path.realpath(folder), folder)  # a link to itself stays as it is
    runs: list[Run] = []
    wrong: list[str] = []
    known: dict[str, Path] = {}
    for folder in once.values():
        try:
            run = Run(folder)
            if run.complete:
                run.check()
                # No two runs take the same time, to the last digit, in folders of the same name.
                same = known.setdefault(
                    json.dumps([run.config, run.summary, run.environment], sort_keys=True), folder
                )
                if same is not folder:
                    raise UsageError(f"{folder} is a copy of {same}")
                runs.append(run)
            elif cut is not None and run.cut is not None:
                run.check()
                cut.append(run)
        except UsageError as error:
            wrong.append(str(error))
    for line in wrong[:NAMED]:
        log.warning("left out: %s", line)
    if len(wrong) > NAMED:
        log.warning("left out: %d more", len(wrong) - NAMED)
    if left_out is not None:
        left_out += wrong
    return runs
