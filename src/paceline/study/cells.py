"""The cells of a study: one run each, identified by its settings and by the user's own code."""

from __future__ import annotations

import functools
import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from paceline.compare.rows import is_serial
from paceline.config import Config, Program
from paceline.models import find_default_rate, knows_default_rate
from paceline.names import parse
from paceline.record import script_digest
from paceline.simulate.options import Options
from paceline.training.job import Job, build_component, find_built_in
from paceline.updates import choose_rate

# Settings that do not make a different run.
FREE = ("recalibrate", "compute_threads")
SERIAL = "serial"
# The settings of a run that a program with its own loop takes; all others are its own.
PROGRAM_SETTINGS = ("strategy", "seed", "threads")
# The settings in a study's file that runs must share to be compared. (The learning rate may be the model's.)
PROBLEM = (
    "data", "labels", "model", "batch", "batch_per_rank", "epochs", "draws", "update", "schedule", "lr_scaling",
    "dtype",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a study.

    >>> cell = Cell(config=Config(strategy="sync", seed=1), ranks=4)
    >>> str(cell)
    'sync on 4 ranks, seed 1'
    """

    config: Config
    ranks: int
    options: Options | None = None
    """The options of the simulation; None: the ranks are real."""
    program: Program | None = None
    """The program that trains in its own loop; of `config`, only PROGRAM_SETTINGS then have a meaning."""
    part: str = field(default="", compare=False)
    """The part of the study that requests it."""

    @cached_property
    def key(self) -> str:
        """The settings and the code as one text: equal for a cell and a record of the same run."""
        asked = read_request(self.settings)
        assert asked is not None
        return asked

    @property
    def settings(self) -> dict[str, Any]:
        """The settings in the form of config.json, with the learning rate that the run will use, if it is known."""
        place: dict[str, Any] = (
            {"on": "mpi"} if self.options is None else {"on": "sim", **asdict(self.options)}
        )
        simulated = {} if self.options is None else {"simulated": asdict(self.options)}
        code = _code(self.config)
        if self.program is None:
            asked = {"lr": self.config.lr, **place}
            values = {**asdict(self.config), "lr": _find_rate(self.config)}
            return {**values, "ranks": self.ranks, "asked": asked, "code": code, **simulated}
        until = {"until": self.program.until} if self.program.until else {}
        return {
            **{name: getattr(self.config, name) for name in PROGRAM_SETTINGS},
            "ranks": self.ranks,
            "asked": {"strategy": self.config.strategy, **until, **place},
            "program": {"file": self.program.file, "arguments": list(self.program.arguments)},
            "code": {**_script_code(self.program), **code},
            **simulated,
        }

    @property
    def mark(self) -> str:
        """A short digest of the key, for file names."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:8]

    @property
    def on_ranks(self) -> bool:
        """True if its ranks are real ones, which have to be started."""
        return self.options is None and not self.serial

    @property
    def serial(self) -> bool:
        """True for one process without communication."""
        return is_serial(self.config.strategy)

    def oversubscribes(self, cores: int) -> bool:
        """Return True if it has more ranks than there are cores: its times say nothing about scaling."""
        return self.options is None and self.ranks > cores

    def __str__(self) -> str:
        simulated = "" if self.options is None else f" simulated on {self.options.network}"
        ranks = f" on {self.ranks} rank{'s' * (self.ranks > 1)}"
        if self.serial:
            ranks = f" on {self.config.threads} threads" if (self.config.threads or 1) > 1 else ""
        return f"{self.config.strategy}{ranks}{simulated}, seed {self.config.seed}"


def read_request(config: Mapping[str, Any]) -> str | None:
    """Return the request of a config.json in the form of `Cell.key`; None if no study could request it.

    A setting that was left out counts as its default, so that both are one cell. The default learning rate of a model of
    the user's own is known only to its runs: there, the request counts. Old records without `asked` have only the
    learning rate that was used.

    >>> old = {"data": "iris", "ranks": 1, "lr": 0.5}
    >>> read_request(old) == Cell(config=Config(data="iris", lr=0.5), ranks=1).key
    True
    """
    asked, program = config.get("asked"), config.get("program")
    if (config.get("objects") and not program) or (asked is None and config.get("simulated")):
        return None
    place = dict(asked or {"on": "mpi", "lr": config["lr"]})
    rate = place.pop("lr", None)
    strategy = place.pop("strategy", None)
    if place.get("on") == "sim":
        place = {**asdict(Options()), **{k: v for k, v in place.items() if k not in FREE}}
        place = {k: v for k, v in place.items() if k not in FREE}
    code = {"code": config["code"]} if config.get("code") else {}
    if program:
        values = {name: config[name] for name in PROGRAM_SETTINGS}
        values |= {"strategy": strategy, "program": [Path(program["file"]).name, *program["arguments"]]}
        return json.dumps({**values, "ranks": config["ranks"], "place": place, **code}, sort_keys=True)
    values = {
        s.name: config.get(s.name, s.default if s.default is not MISSING else None) for s in fields(Config)
    }
    if knows_default_rate(str(values["model"])) and values["lr"] is not None:
        rate = values["lr"]
    if values["batch_per_rank"] is None:
        values["batch"] = values["batch"] or 64
    if place.get("on") == "sim":
        values["threads"] = values["threads"] or 1
    return json.dumps(
        {**values, "lr": rate, "ranks": config["ranks"], "place": place, **code}, sort_keys=True
    )


def _find_rate(config: Config) -> float | None:
    """Return the learning rate that a run will use; None if it is unknown. Mistakes are reported by `mistakes`."""
    if config.lr is None and knows_default_rate(config.model):
        with suppress(Exception):
            rate = _load_rate(config.data, config.labels, config.model)
            return choose_rate(build_component("updates", config.update), rate)
    return config.lr


@functools.cache
def _load_rate(data: str, labels: Any, model: str) -> float:
    job = Job(config=Config(data=data, labels=labels, model=model), runs=None)
    return find_default_rate(parse("models", model), job.load().classes)


def _code(config: Config) -> dict[str, str]:
    """Return the digests of the user's own code as it is now; code that cannot be imported is reported by `check`."""
    try:
        return Job(config=config, runs=None).code()
    except Exception:
        return {}


def _script_code(program: Program) -> dict[str, str]:
    """Return the digest of a program as it is now; one that cannot be read is reported by `mistakes`."""
    with suppress(OSError):
        return {"program": script_digest(Path(program.file))}
    return {}


def drop_duplicates(cells: Iterable[Cell]) -> list[Cell]:
    """Keep each cell once, for the first part that requests it."""
    found: dict[str, Cell] = {}
    for cell in cells:
        found.setdefault(cell.key, cell)
    return list(found.values())


def add_baselines(cells: Sequence[Cell], cores: int = 1) -> list[Cell]:
    """Add, for each problem and seed without one, the serial runs to compare with.

    Each has one thread, unless given. There is one with the run's update and, for strategies whose steps are made by a
    rule, one with that rule. If there are more cores, and ranks are real, there is one that uses them all by threads.

    >>> cells = [Cell(config=Config(seed=s), ranks=2) for s in (0, 1)]
    >>> [str(cell) for cell in add_baselines(cells)]
    ['serial, seed 0', 'serial, seed 1', 'sync on 2 ranks, seed 0', 'sync on 2 ranks, seed 1']
    >>> server = Cell(config=Config(strategy="parameter-server:masters=2"), ranks=3)
    >>> [str(cell) for cell in add_baselines([server], cores=4)]
    ['serial, seed 0', 'serial:rule=adaptive, seed 0', 'serial on 4 threads, seed 0', \
'parameter-server:masters=2 on 3 ranks, seed 0']
    """
    own = {(_problem(cell), cell.config.strategy) for cell in cells if cell.serial}
    threaded = {_problem(cell) for cell in cells if cell.serial and cell.config.threads in (None, cores)}
    added: dict[tuple[str, str, int | None], Cell] = {}
    for cell in cells:
        problem = _problem(cell)
        for strategy in dict.fromkeys((SERIAL, _serial_with_rule(cell))):
            if (problem, strategy) not in own:
                base = _baseline(cell, strategy, cell.config.threads or 1)
                added.setdefault((problem, strategy, None), base)
                threaded |= {problem} if base.config.threads == cores else set()
    for cell in cells:
        problem = _problem(cell)
        if cores > 1 and cell.on_ranks and problem not in threaded:
            added.setdefault((problem, SERIAL, cores), _baseline(cell, SERIAL, cores))
    return [*added.values(), *cells]


def _serial_with_rule(cell: Cell) -> str:
    """Return the serial strategy with the optimizer of a cell; a program always has its own."""
    if cell.program is not None:
        return SERIAL
    strategy = find_built_in(cell.config.strategy)
    rule = "" if strategy is None else strategy.for_update(cell.config.update).optimizer()
    return f"{SERIAL}:rule={rule}" if rule else SERIAL


def _baseline(cell: Cell, strategy: str, threads: int) -> Cell:
    config = replace(cell.config, strategy=strategy, threads=threads)
    # One rank uses no network, and slow ranks do not concern the baseline.
    options = None if cell.options is None else replace(cell.options, slow="", faults=None, rendezvous=False)
    return replace(cell, config=config, ranks=1, options=options)


def _problem(cell: Cell) -> str:
    """Return what the report compares (there, runs of any seed), and where the cell runs."""
    config = replace(cell.config, strategy=SERIAL, threads=None)
    alike = Cell(config=config, ranks=1, program=cell.program)
    return f"{'mpi' if cell.options is None else 'sim'} {alike.key}"


def sort_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Order cells by seed and then by strategy in turn, so that a noisy minute affects several strategies.

    >>> cells = [Cell(config=Config(strategy=s), ranks=n) for s in ("sync", "my:Own") for n in (2, 4)]
    >>> [str(cell) for cell in sort_cells(cells)][:3]
    ['sync on 2 ranks, seed 0', 'my:Own on 2 ranks, seed 0', 'sync on 4 ranks, seed 0']
    """
    rounds: dict[int, dict[str, list[Cell]]] = {}
    for cell in cells:
        rounds.setdefault(cell.config.seed, {}).setdefault(cell.config.strategy, []).append(cell)
    ordered: list[Cell] = []
    for strategies in rounds.values():
        for turn in range(max(map(len, strategies.values()))):
            ordered += [those[turn] for those in strategies.values() if turn < len(those)]
    return ordered


def find_varying(cells: Sequence[Cell]) -> tuple[str, ...]:
    """Return the settings in which cells differ, besides those that are always shown.

    >>> find_varying([Cell(config=Config(data=data, lr=lr), ranks=2) for data, lr in (("iris", 1.0), ("mnist", 0.1))])
    ('data',)
    >>> find_varying([Cell(config=Config(), ranks=2, program=Program(file=name)) for name in ("small.py", "large.py")])
    ('file',)
    """
    # Baselines have threads of their own, which they name.
    compared = [cell for cell in cells if not cell.serial] or cells
    groups: list[list[Cell]] = [list(compared)]
    found = []
    names = (s.name for kind in (Config, Program) for s in fields(kind))
    for name in (name for name in names if name not in ("strategy", "seed")):
        cut = [_by(name, group) for group in groups]
        if any(len(parts) > 1 for parts in cut):  # among cells that the previous settings do not distinguish
            found.append(name)
            groups = [group for parts in cut for group in parts]
    return tuple(found)


def _by(name: str, cells: Sequence[Cell]) -> list[list[Cell]]:
    groups: dict[Any, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(_value(cell, name), []).append(cell)
    return list(groups.values())


def _value(cell: Cell, name: str) -> Any:
    """Return the value of a setting of a cell, or of its program; for the learning rate and the batch, also a default."""
    if name == "lr" and cell.program is None:
        return _find_rate(cell.config)
    if name == "batch" and cell.program is None:
        return cell.config.batch or (64 if cell.config.batch_per_rank is None else None)
    return getattr(cell.config, name) if hasattr(cell.config, name) else getattr(cell.program, name, None)


def spell_cell(cell: Cell, names: Sequence[str]) -> str:
    """Describe a cell by these settings.

    >>> spell_cell(Cell(config=Config(batch=16), ranks=2), ["batch", "model"])
    'sync on 2 ranks, seed 0; batch 16, mlp:128,64'
    """
    values = {name: _value(cell, name) for name in names}
    words = [spell_setting(name, value) for name, value in values.items() if value is not None]
    return f"{cell}; {', '.join(words)}" if words else str(cell)


def spell_setting(name: str, value: Any) -> str:
    """Format a setting and its value.

    >>> spell_setting("batch_per_rank", 4), spell_setting("data", "iris")
    ('batch per rank 4', 'iris')
    """
    if name == "arguments":
        return shlex.join(value) or "no arguments"
    return str(value) if name in ("data", "model", "file") else f"{name.replace('_', ' ')} {value}"
