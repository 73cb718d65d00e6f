"""A study's file: read, every mistake in it found, and made into cells."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from paceline.config import Config
from paceline.errors import UsageError
from paceline.launch import allocated_cores
from paceline.machine import load_network
from paceline.simulate.options import NAMES as SIMULATION
from paceline.simulate.options import PLACES, Options
from paceline.study.cells import Cell, in_order, unique, with_baselines
from paceline.study.published import published_of

# ---- The values of a study's settings, each by itself: what is wrong with one is said whatever is wrong with others.

# A replay is a copy of one run's settings: what its record says is not what the study asked for.
SETTINGS = (*(setting.name for setting in fields(Config) if setting.name != "replay"), "ranks")
CORES = re.compile(r"cores(?:,? at most (\d+))?")
# What a setting cannot do without; whether it is there is a matter of the cell.
WITH: dict[str, dict[str, Any]] = {"lr_scaling": {"batch_per_rank": 1}}


def ranks_of(given: Any) -> int:
    """A number of ranks: a number, or as many as there are cores, 2 at the least.

    >>> ranks_of(4), ranks_of("cores, at most 2")
    (4, 2)
    """
    if isinstance(given, str) and (found := CORES.fullmatch(given)):
        return max(2, min(allocated_cores(), int(found[1] or allocated_cores())))
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise UsageError(
            f"ranks must be a whole number of at least 1, or cores, or cores, at most 4; got {given!r}"
        )
    return given


def mistake(name: str, value: Any) -> str | None:
    """What is wrong with one value of a setting, of those of a run or of a simulation.

    >>> mistake("lr", "fast"), mistake("lr", 0.5)
    ("lr must be a number above 0; got 'fast'", None)
    """
    if not isinstance(value, str | int | float):
        return f"{name.replace('_', '-')} must be a text, a number or a list of them; got {value!r}"
    try:
        if name == "ranks":
            ranks_of(value)
        elif name in SIMULATION:
            _simulated(name, value)
        else:
            Config(**{**WITH.get(name, {}), name: value})
    except UsageError as error:
        return str(error)
    return None


def _simulated(name: str, value: Any) -> None:
    options = Options(**{name: value})
    if name == "network":
        load_network(options.network)
    if name in ("machine", "faults") and not Path(getattr(options, name)).exists():
        raise UsageError(f"{name} must be a file that is there; got {value!r}")


TOP = ("title", "question", "target_accuracy", "timeout", "settings", "matrix", "simulation", "published")


class BadStudyError(UsageError):
    """All that is wrong with a study, a line each.

    >>> print(BadStudyError(["part 1: no strategy", "part 2: no ranks"]))
    part 1: no strategy
    part 2: no ranks
    """

    def __init__(self, lines: list[str], rest: Study | None = None) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines
        self.rest = rest
        """The parts of it with which nothing is wrong so far."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One `[[matrix]]`: its settings, with those of all parts, each a list of one value or more."""

    label: str
    name: str | None
    axes: Mapping[str, list[Any]]

    def cells(self, simulation: Mapping[str, list[Any]] | None, wrong: list[str]) -> Iterator[Cell]:
        """The product of all axes, with those of the simulation if there is to be one; mistakes go to `wrong`."""
        axes = {name: values for name, values in self.axes.items() if name not in SIMULATION}
        if simulation is not None:
            own = {name: values for name, values in self.axes.items() if name in SIMULATION}
            axes |= {**simulation, **own}
        axes = {name: values for name, values in axes.items() if values}  # where none is right: without it
        for values in itertools.product(*axes.values()):
            chosen = dict(zip(axes, values, strict=True))
            options = {name: chosen.pop(name) for name in SIMULATION if name in chosen}
            try:
                ranks = ranks_of(chosen.pop("ranks", 1))
                config = Config(**chosen)
                made = None if simulation is None else Options(**options)
                yield Cell(config=config, ranks=ranks, options=made, part=self.label)
            except UsageError as error:
                if (line := f"{self.label}: {error}") not in wrong:
                    wrong.append(line)


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study as its file says it."""

    file: Path
    title: str
    question: str
    target_accuracy: float | None
    timeout: float | None
    parts: tuple[Part, ...]
    simulation: Mapping[str, list[Any]]
    published: tuple[dict[str, Any], ...]

    def cells(self, on: str) -> list[Cell]:
        """Every run that it asks for, on real ranks ("mpi") or simulated ones ("sim"), in the order to run them in."""
        wrong: list[str] = []
        simulation = self.simulation if on == "sim" else None
        cells = [cell for part in self.parts for cell in part.cells(simulation, wrong)]
        if wrong:
            raise BadStudyError(wrong)
        return in_order(unique(with_baselines(cells)))

    def named(self) -> list[Cell]:
        """Every run that it asks for, wherever."""
        return [cell for on in PLACES for cell in self.cells(on)]

    def told(self) -> dict[str, Any]:
        """As study.json has it."""
        return {
            "format": 1,
            "file": self.file.name,
            "title": self.title,
            "question": self.question,
            "target_accuracy": self.target_accuracy,
            "matrix": [{"name": part.name, **part.axes} for part in self.parts],
            "simulation": self.simulation,
            "published": list(self.published),
        }


def read(path: Path) -> Study:
    """The study of a file; all that is wrong with its settings is said at once, in a BadStudyError."""
    try:
        told = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:
        raise UsageError(f"{path} is no TOML: {str(error)[:1].lower()}{str(error)[1:]}") from None
    wrong: list[str] = _unknown("the file", told, TOP)
    for name in ("title", "question"):
        if not isinstance(told.get(name, ""), str):
            wrong.append(f"{name} must be a text; got {told[name]!r}")
    target = _number(told, "target_accuracy", wrong, most=1, hint=": a fraction, as 0.9 for 90 %")
    timeout = _number(told, "timeout", wrong, hint=" of seconds that a run may take")
    before = len(wrong)
    everywhere = _table(told, "settings", (*SETTINGS, *SIMULATION), wrong)
    simulation = _table(told, "simulation", SIMULATION, wrong)
    shared = len(wrong) == before
    parts = _parts(told.get("matrix"), everywhere, wrong)
    study = Study(
        file=path,
        title=str(told.get("title", path.stem)),
        question=str(told.get("question", "")),
        target_accuracy=target,
        timeout=timeout,
        parts=tuple(parts),
        simulation=simulation,
        published=tuple(published_of(told.get("published", []), parts, wrong)),
    )
    for part in parts:
        for options in (None, simulation):
            list(part.cells(options, wrong))
    if wrong:
        right = [part for part in parts if not any(line.startswith(f"{part.label}: ") for line in wrong)]
        raise BadStudyError(wrong, replace(study, parts=tuple(right)) if shared else None)
    return study


def _parts(matrix: Any, everywhere: dict[str, list[Any]], wrong: list[str]) -> list[Part]:
    if not isinstance(matrix, list) or not matrix or not all(isinstance(part, dict) for part in matrix):
        wrong.append("the file has no [[matrix]]: what to run is said there, as strategy = … and ranks = …")
        return []
    parts = []
    for number, given in enumerate(matrix, start=1):
        name = given.get("name")
        label = f"part {number}" + (f" ({name})" if isinstance(name, str) else "")
        if name is not None and not isinstance(name, str):
            wrong.append(f"{label}: name must be a text; got {name!r}")
        settings = {key: value for key, value in given.items() if key != "name"}
        axes = {**everywhere, **_axes(label, settings, (*SETTINGS, *SIMULATION), wrong)}
        if "strategy" not in axes:
            wrong.append(f"{label}: strategy is missing")
        if axes.get("strategy") == ["serial"]:
            axes.setdefault("ranks", [1])
        if "ranks" not in axes:
            wrong.append(f"{label}: ranks is missing")
        parts.append(Part(label=label, name=name if isinstance(name, str) else None, axes=axes))
    names = [part.name for part in parts if part.name is not None]
    wrong += [f"two parts are named {name}" for name in dict.fromkeys(names) if names.count(name) > 1]
    return parts


def _table(
    told: Mapping[str, Any], name: str, known: tuple[str, ...], wrong: list[str]
) -> dict[str, list[Any]]:
    table = told.get(name, {})
    if not isinstance(table, dict):
        wrong.append(f"{name} must be a table, [{name}]; got {table!r}")
        return {}
    return _axes(f"[{name}]", table, known, wrong)


def _axes(
    where: str, table: Mapping[str, Any], known: tuple[str, ...], wrong: list[str]
) -> dict[str, list[Any]]:
    """Every setting as the list of its values that are right, whatever dashes it is spelled with."""
    wrong += _unknown(where, table, known)
    axes: dict[str, list[Any]] = {}
    for given, value in table.items():
        name = given.replace("-", "_")
        if name not in known:
            continue
        values = value if isinstance(value, list) else [value]
        if name in axes:
            wrong.append(f"{where}: {name} is given twice, with a dash and with an underscore")
        if not values:
            wrong.append(f"{where}: {given} is an empty list")
        found = [(inner, mistake(name, inner)) for inner in values]
        wrong += dict.fromkeys(f"{where}: {why}" for _, why in found if why is not None)
        axes[name] = list(dict.fromkeys(inner for inner, why in found if why is None))
    return axes


def _unknown(where: str, table: Mapping[str, Any], known: tuple[str, ...]) -> list[str]:
    return [
        f"{where}: unknown key {name!r}; choose one of {', '.join(known)}"
        for name in table
        if name.replace("-", "_") not in known
    ]


def _number(
    told: Mapping[str, Any], name: str, wrong: list[str], *, most: float | None = None, hint: str = ""
) -> float | None:
    value = told.get(name)
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not value > 0 or (most is not None and value > most):
        wrong.append(
            f"{name} must be a number above 0{f' and up to {most}' if most else ''}{hint}; got {value!r}"
        )
        return None
    return float(value)
