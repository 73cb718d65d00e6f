"""A study's file: read it, find every mistake in it, and create its cells."""

from __future__ import annotations

import ast
import itertools
import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from paceline.compare.metric import ACCURACY, LOSS, Goal
from paceline.compare.rows import is_serial
from paceline.config import Config, Program
from paceline.data import names_code
from paceline.errors import UsageError
from paceline.files import read_toml
from paceline.launch import allocated_cores
from paceline.machine import load_network
from paceline.names import has, parse
from paceline.simulate.options import NAMES as SIMULATION
from paceline.simulate.options import PLACES, Options, options_of
from paceline.study.cells import (
    PROBLEM,
    PROGRAM_SETTINGS,
    SERIAL,
    Cell,
    add_baselines,
    drop_duplicates,
    sort_cells,
)

# ---- the values of settings, each checked separately, so that every mistake is reported

# A replay copies the settings of a run, so its record is not what the study asked for.
SETTINGS = (
    *(setting.name for setting in fields(Config) if setting.name != "replay"), "ranks", "on", "program", "arguments",
)  # fmt: skip
# The settings of a part that runs a program; what it trains, the program says itself.
OF_PROGRAM = ("program", "arguments", "ranks", "on", *PROGRAM_SETTINGS, *SIMULATION)
# Threads that divide the cores among the ranks.
DIVIDED = "cores / ranks"
CORES = re.compile(r"cores(?:,? at most ([1-9]\d{0,8}))?")
MOST_CELLS = 10_000  # of one part
# The requirements of a setting, checked for each cell.
WITH: dict[str, dict[str, Any]] = {"lr_scaling": {"batch_per_rank": 1}}


def ranks_of(given: Any) -> int:
    """Return a number of ranks, which may be given as the number of cores, but at least 2.

    >>> ranks_of(4), ranks_of("cores, at most 2")
    (4, 2)
    """
    if isinstance(given, str) and (found := CORES.fullmatch(given)):
        return max(2, min(allocated_cores(), int(found[1] or allocated_cores())))
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise UsageError(
            f'ranks must be a whole number of at least 1, "cores", or "cores, at most 4"; got {given!r}'
        )
    return given


def threads_of(given: Any, ranks: int) -> Any:
    """Return a number of threads per rank, which may be given as the cores that each rank has.

    >>> threads_of(4, ranks=2), threads_of("cores / ranks", ranks=10_000)
    (4, 1)
    """
    return max(1, allocated_cores() // ranks) if given == DIVIDED else given


def mistake(name: str, value: Any) -> str | None:
    """Return the mistake in one value of a setting of a run or of a simulation; None if there is none.

    >>> mistake("lr", "fast"), mistake("lr", 0.5)
    ("lr must be a number above 0; got 'fast'", None)
    """
    if name == "arguments":
        return None
    if not isinstance(value, str | int | float):
        return f"{name.replace('_', '-')} must be a string, a number or a list of them; got {value!r}"
    try:
        if name == "ranks":
            ranks_of(value)
        elif name == "on":
            options_of(str(value), {})
        elif name == "program":
            if not isinstance(value, str) or not value:
                raise UsageError(f"program must be a file; got {value!r}")
        elif name == "threads" and isinstance(value, str):
            if value != DIVIDED:
                raise UsageError(f"threads must be a whole number of at least 1, or {DIVIDED}; got {value!r}")
        elif name in SIMULATION:
            _check_simulation(name, value)
        else:
            Config(**{**WITH.get(name, {}), name: value})
    except UsageError as error:
        return str(error)
    return None


def _check_simulation(name: str, value: Any) -> None:
    options = Options(**{name: value})
    if name == "network":
        load_network(options.network)
    if name in ("machine", "faults") and not Path(getattr(options, name)).exists():
        raise UsageError(f"{name} must be an existing file; got {value!r}")


TOP = (
    "title", "question", "target", "target_accuracy", "timeout", "all_threads", "settings", "matrix", "simulation",
    "published",
)  # fmt: skip


class BadStudyError(UsageError):
    """All mistakes in a study, one line each.

    >>> print(BadStudyError(["part 1: no strategy", "part 2: no ranks"]))
    part 1: no strategy
    part 2: no ranks
    """

    def __init__(self, lines: list[str], rest: Study | None = None) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines
        self.rest = rest
        """The parts without mistakes so far."""


@dataclass(frozen=True, kw_only=True)
class StudyPart:
    """One `[[matrix]]`: its settings and those of all parts, each with a list of values."""

    label: str
    name: str | None
    axes: Mapping[str, list[Any]]
    home: Path = Path()
    """The folder of the study's file, where programs are looked for after the working directory."""

    def cells(self, simulation: Mapping[str, list[Any]] | None, wrong: list[str]) -> Iterator[Cell]:
        """Return the product of all axes, including those of a simulation; add mistakes to `wrong`."""
        axes = {name: values for name, values in self.axes.items() if name not in ("on", *SIMULATION)}
        if simulation is not None:
            own = {name: values for name, values in self.axes.items() if name in SIMULATION}
            axes |= {**simulation, **own}
        # A setting without any valid value is ignored.
        axes = {name: values for name, values in axes.items() if values}
        if (count := math.prod(map(len, axes.values()))) > MOST_CELLS:
            line = f"{self.label}: it has {count:,} cells, more than {MOST_CELLS:,}"
            wrong += [] if line in wrong else [line]
            return
        for values in itertools.product(*axes.values()):
            chosen = dict(zip(axes, values, strict=True))
            options = {name: chosen.pop(name) for name in SIMULATION if name in chosen}
            try:
                ranks = ranks_of(chosen.pop("ranks", 1))
                if "threads" in chosen:
                    chosen["threads"] = threads_of(chosen["threads"], ranks)
                made = None if simulation is None else Options(**options)
                program = self._program(chosen.pop("program", None), chosen.pop("arguments", ()))
                yield Cell(
                    config=Config(**chosen), ranks=ranks, options=made, program=program, part=self.label
                )
            except UsageError as error:
                if (line := f"{self.label}: {error}") not in wrong:
                    wrong.append(line)

    def _program(self, name: str | None, arguments: tuple[str, ...]) -> Program | None:
        if name is None:
            return None
        file = next((path for path in (Path(name), self.home / name) if path.is_file()), None)
        if file is None:
            raise UsageError(f"there is no program {name}, neither here nor in {self.home}")
        program = Program(file=str(file), arguments=arguments)
        program.check_placeholders()
        return program


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study, as described by its file."""

    file: Path
    title: str
    question: str
    target: Goal | None
    """What its runs should reach on the validation samples."""
    timeout: float | None
    all_threads: bool = True
    """True: of every problem there is also a serial run that uses all cores by threads."""
    parts: tuple[StudyPart, ...]
    simulation: Mapping[str, list[Any]]
    published: tuple[dict[str, Any], ...]

    def cells(self, on: str) -> list[Cell]:
        """Return every requested run in the order to run them.

        `on`: where parts run that do not say it themselves, on real ranks ("mpi") or simulated ones ("sim").
        """
        wrong: list[str] = []
        cells = [
            cell
            for part in self.parts
            for place in part.axes.get("on") or [on]
            for cell in part.cells(self.simulation if place == "sim" else None, wrong)
        ]
        if wrong:
            raise BadStudyError(wrong)
        return sort_cells(drop_duplicates(add_baselines(cells, allocated_cores() if self.all_threads else 1)))

    def list_all_cells(self) -> list[Cell]:
        """Return every requested run, real or simulated."""
        return drop_duplicates(cell for on in PLACES for cell in self.cells(on))

    def as_json(self) -> dict[str, Any]:
        """Return the study in the form of study.json."""
        return {
            "format": 1,
            "file": self.file.name,
            "title": self.title,
            "question": self.question,
            "target_accuracy": None
            if self.target is None or self.target.metric != ACCURACY
            else self.target.value,
            "target": None if self.target is None else self.target.text,
            "matrix": [{"name": part.name, **part.axes} for part in self.parts],
            **({} if self.all_threads else {"all_threads": False}),
            "simulation": self.simulation,
            "published": list(self.published),
        }


def read(path: Path) -> Study:
    """Read a study's file; raise a BadStudyError that lists all mistakes in its settings."""
    told = read_toml(path)
    wrong: list[str] = _unknown("the file", told, TOP)
    for name in ("title", "question"):
        if not isinstance(told.get(name, ""), str):
            wrong.append(f"{name} must be a string; got {told[name]!r}")
    target = _target(told, wrong)
    timeout = _number(told, "timeout", wrong, "a number of seconds above 0")
    if not isinstance(told.get("all_threads", True), bool):
        wrong.append(f"all_threads must be true or false; got {told['all_threads']!r}")
    before = len(wrong)
    everywhere = _table(told, "settings", (*SETTINGS, *SIMULATION), wrong)
    simulation = _table(told, "simulation", SIMULATION, wrong)
    shared = len(wrong) == before
    parts = _parts(told.get("matrix"), everywhere, path.parent, wrong)
    study = Study(
        file=path,
        title=str(told.get("title", path.stem)),
        question=str(told.get("question", "")),
        target=target,
        timeout=timeout,
        all_threads=told.get("all_threads", True) is not False,
        parts=tuple(parts),
        simulation=simulation,
        published=tuple(read_published(told.get("published", []), parts, wrong)),
    )
    for part in parts:
        for options in (None, simulation):
            list(part.cells(options, wrong))
    if wrong:
        unknown = _find_unknown_names(everywhere)
        wrong += [f"[settings]: {line}" for line in unknown]
        right = [part for part in parts if not any(line.startswith(f"{part.label}: ") for line in wrong)]
        right = right if shared and not unknown else []
        # The cells of other parts are not checked: they would have defaults where the mistakes are.
        for part in (part for part in parts if part not in right):
            own = {name: values for name, values in part.axes.items() if values is not everywhere.get(name)}
            wrong += [f"{part.label}: {line}" for line in _find_unknown_names(own)]
        raise BadStudyError(wrong, replace(study, parts=tuple(right)) if right else None)
    return study


def _find_unknown_names(axes: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the mistakes in the names of data, models, strategies, updates and schedules.

    The user's own code (`module:attribute`) is not imported here, but when cells are checked.
    """
    from paceline.training.job import KINDS, Job, build_component, strategy_of

    checks: dict[str, Callable[[str], object]] = {
        "data": lambda text: Job(config=Config(data=text), runs=None).load(),
        "model": lambda text: parse("models", text),
        "strategy": strategy_of,
        "update": lambda text: build_component("updates", text),
        "schedule": lambda text: build_component("schedules", text),
    }
    found = []
    for name, text in ((each, text) for each in checks for text in axes.get(each, ())):
        first, _, rest = text.partition(":")
        code = names_code(text) if name == "data" else not has(KINDS[name], first)
        if code and rest.partition(":")[0].replace(".", "").isidentifier():
            continue
        try:
            checks[name](text)
        except UsageError as error:
            found.append(str(error))
    return found


def _target(told: Mapping[str, Any], wrong: list[str]) -> Goal | None:
    what = "a fraction above 0 and at most 1, such as 0.9 for 90 %"
    fraction = _number(told, "target_accuracy", wrong, what, most=1)
    if "target" not in told:
        return None if fraction is None else Goal(ACCURACY, fraction)
    if "target_accuracy" in told:
        wrong.append("target and target_accuracy exclude each other: give target")
    try:
        goal = Goal.parse(told["target"])
    except UsageError as error:
        wrong.append(f"target: {error}")
        return None
    tables = [told.get("settings"), *(told["matrix"] if isinstance(told.get("matrix"), list) else ())]
    programs = any(isinstance(table, dict) and "program" in table for table in tables)
    if goal.metric == LOSS and goal.value <= 0 and not programs:  # a program's own loss may be below 0
        wrong.append(f"target: a target loss must be above 0: no run can reach {goal}")
    return goal


def _parts(matrix: Any, everywhere: dict[str, list[Any]], home: Path, wrong: list[str]) -> list[StudyPart]:
    if not isinstance(matrix, list) or not matrix or not all(isinstance(part, dict) for part in matrix):
        wrong.append("the file has no [[matrix]], which lists what to run: strategy = … and ranks = …")
        return []
    parts = []
    for number, given in enumerate(matrix, start=1):
        name = given.get("name")
        label = f"part {number}" + (f" ({name})" if isinstance(name, str) else "")
        if name is not None and not isinstance(name, str):
            wrong.append(f"{label}: name must be a string; got {name!r}")
        settings = {key: value for key, value in given.items() if key not in ("name", "simulation")}
        simulation = _table(given, "simulation", SIMULATION, wrong, within=f"{label}: ")
        own = _axes(label, settings, (*SETTINGS, *SIMULATION), wrong)
        wrong += [
            f"{label}: {name} is given twice, in simulation and beside it"
            for name in own
            if name in simulation
        ]
        axes = {**everywhere, **own, **simulation}
        if "strategy" not in axes:
            wrong.append(f"{label}: strategy is missing")
        if axes.get("strategy") and all(is_serial(str(one)) for one in axes["strategy"]):
            axes.setdefault("ranks", [1])
        if "ranks" not in axes:
            wrong.append(f"{label}: ranks is missing")
        if "program" in axes:
            extra = [name for name in axes if name not in OF_PROGRAM]
            wrong += [
                f"{label}: a program has its own {one.replace('_', '-')}: leave it out" for one in extra
            ]
        elif "arguments" in axes:
            wrong.append(f"{label}: arguments are for a program: give program = …")
        parts.append(
            StudyPart(label=label, name=name if isinstance(name, str) else None, axes=axes, home=home)
        )
    names = [part.name for part in parts if part.name is not None]
    wrong += [f"two parts are named {name}" for name in dict.fromkeys(names) if names.count(name) > 1]
    return parts


def _table(
    told: Mapping[str, Any], name: str, known: tuple[str, ...], wrong: list[str], within: str = ""
) -> dict[str, list[Any]]:
    """Return the settings in a table of the file or, if `within` names one, of a part."""
    table = told.get(name, {})
    if not isinstance(table, dict):
        example = f"{{ {known[0]} = … }}" if within else f"[{name}]"
        wrong.append(f"{within}{name} must be a table, {example}; got {table!r}")
        return {}
    return _axes(f"{within}{name}" if within else f"[{name}]", table, known, wrong)


def _axes(
    where: str, table: Mapping[str, Any], known: tuple[str, ...], wrong: list[str]
) -> dict[str, list[Any]]:
    """Return every setting, written with dashes or underscores, with the list of its valid values."""
    wrong += _unknown(where, table, known)
    axes: dict[str, list[Any]] = {}
    for given, value in table.items():
        name = given.replace("-", "_")
        if name not in known:
            continue
        values = value if isinstance(value, list) else [value]
        if name == "arguments":
            values = _argument_lists(where, value, wrong)
        if name in axes:
            wrong.append(f"{where}: {name} is given twice, with a dash and with an underscore")
        if not values and name != "arguments":
            wrong.append(f"{where}: {given} is an empty list")
        found = [(inner, mistake(name, inner)) for inner in values]
        wrong += dict.fromkeys(f"{where}: {why}" for _, why in found if why is not None)
        axes[name] = list(dict.fromkeys(inner for inner, why in found if why is None))
    return axes


def _argument_lists(where: str, value: Any, wrong: list[str]) -> list[tuple[str, ...]]:
    """Return the lists of arguments of a program: one, as a text or a list of words, or several in a list."""
    lists = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
    found = []
    for words in lists:
        try:
            split = shlex.split(words) if isinstance(words, str) else words
        except ValueError as error:
            wrong.append(f"{where}: arguments: {str(error).lower()}: {words}")
            continue
        kinds = (str, int, float)
        if isinstance(split, list) and all(
            isinstance(word, kinds) and not isinstance(word, bool) for word in split
        ):
            found.append(tuple(map(str, split)))
        else:
            wrong.append(
                f"{where}: arguments must be a string, a list of words, or a list of such lists; got {words!r}"
            )
    return found


def _unknown(where: str, table: Mapping[str, Any], known: tuple[str, ...]) -> list[str]:
    return [
        f"{where}: unknown key {name!r}; choose one of {', '.join(known)}"
        for name in table
        if name.replace("-", "_") not in known
    ]


def _number(
    told: Mapping[str, Any], name: str, wrong: list[str], what: str, most: float = math.inf
) -> float | None:
    value = told.get(name)
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value <= most:
        wrong.append(f"{name} must be {what}; got {value!r}")
        return None
    return float(value)


# ---- published figures

TEXTS = ("strategy", "of", "what", "source", "setting", "part")
NUMBERS = ("ranks", "seconds", "accuracy")


def read_published(given: Any, parts: Sequence[StudyPart], wrong: list[str]) -> Iterator[dict[str, Any]]:
    """Iterate over the figures in the form of study.json, with the settings that all runs of their part share as `problem`.

    A table may contain several figures: a list in it has a value for each of them.
    """
    if not isinstance(given, list) or not all(isinstance(figure, dict) for figure in given):
        wrong.append("published must be tables, [[published]]")
        return
    strategies = [SERIAL, *(name for part in parts for name in part.axes.get("strategy", ()))]
    for number, table in enumerate(given, start=1):
        figures = _figures(table)
        found = [mistake for figure in figures for mistake in _figure_mistakes(figure, strategies, parts)]
        if not figures:
            found = ["lists must all have the same length, one value per figure"]
        wrong += [f"published {number}: {mistake}" for mistake in dict.fromkeys(found)]
        for figure in () if found else figures:
            part = next((part for part in parts if part.name == figure.get("part")), None)
            yield figure if part is None or "part" not in figure else {**figure, "problem": _problem(part)}


def _problem(part: StudyPart) -> dict[str, Any]:
    """Return the settings that all runs of the part share, including defaults."""
    defaults = {setting.name: setting.default for setting in fields(Config)}
    values = {name: part.axes.get(name, [defaults[name]]) for name in PROBLEM}
    return {name: value[0] for name, value in values.items() if len(value) == 1}


def _figures(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the figures of a table; none if its lists have different lengths.

    >>> _figures({"strategy": "sync", "ranks": [1, 2], "seconds": [727.2, 553.2]})
    [{'strategy': 'sync', 'ranks': 1, 'seconds': 727.2}, {'strategy': 'sync', 'ranks': 2, 'seconds': 553.2}]
    """
    lengths = {len(value) for value in table.values() if isinstance(value, list)} or {1}
    if len(lengths) > 1:
        return []
    return [
        {name: value[k] if isinstance(value, list) else value for name, value in table.items()}
        for k in range(*lengths)
    ]


def _figure_mistakes(
    figure: Mapping[str, Any], strategies: list[str], parts: Sequence[StudyPart]
) -> Iterator[str]:
    """Yield the mistakes in a figure, one per key."""
    for name in figure:
        if name not in (*TEXTS, *NUMBERS):
            yield f"unknown key {name!r}; choose one of {', '.join((*TEXTS, *NUMBERS))}"
    if "strategy" not in figure:
        yield "strategy is missing"
    if "seconds" not in figure and "accuracy" not in figure:
        yield "it has neither seconds nor accuracy"
    for name in (name for name in (*TEXTS, *NUMBERS) if name in figure):
        value = figure[name]
        rule = _wrong_text(name, value, strategies, parts) if name in TEXTS else _wrong_number(name, value)
        if rule is not None:
            yield rule


def _wrong_text(name: str, value: Any, strategies: list[str], parts: Sequence[StudyPart]) -> str | None:
    if not isinstance(value, str):
        return f"{name} must be a string; got {value!r}"
    if name == "of" and value not in ("test", "training"):
        return f"of must be test or training; got {value!r}"
    if name == "strategy" and value not in strategies:
        return f"the study has no strategy {value!r}; choose one of {', '.join(dict.fromkeys(strategies))}"
    names = [part.name for part in parts if part.name is not None]
    if name == "part" and value not in names:
        choices = f"choose one of {', '.join(names)}" if names else "none of its parts has a name"
        return f"the study has no part named {value!r}; {choices}"
    return None


def _wrong_number(name: str, value: Any) -> str | None:
    real = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if name == "ranks":
        whole = real and isinstance(value, int) and value >= 1
        return None if whole else f"ranks must be a whole number of at least 1; got {value!r}"
    if not real or value < 0:
        return f"{name} must be a number from 0; got {value!r}"
    if name == "accuracy" and value > 1:
        return f"accuracy must be a fraction, such as 0.9 for 90 %; got {value!r}"
    return None


# ---- checking all cells before any is run


def mistakes(cells: Sequence[Cell], nodes: int = 1) -> list[str]:
    """Return the mistakes in these cells, one line for each mistake of each part.

    `nodes`: the nodes that real ranks will run on; this one must have enough memory for its share.

    >>> from paceline.config import Config
    >>> large = Config(strategy="sync", data="iris", batch=1000)
    >>> mistakes([Cell(config=large, ranks=4, part="part 1")])[0].partition(": ")[0]
    'part 1, sync on 4 ranks'
    """
    from paceline.simulate.training import check, check_program
    from paceline.training.job import Job

    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in drop_duplicates(map(_reset_seed, cells)):  # seeds do not matter here
        job = Job(config=cell.config, runs=None)
        try:
            if cell.program is not None:
                check_program(Path(cell.program.file), cell.ranks, cell.config.strategy, cell.options)
                check_session(Path(cell.program.file))
                continue
            if cell.options is not None:
                check(job, cell.ranks, cell.options)
            job.check_early(cell.ranks, nodes if cell.on_ranks else None)
        except UsageError as error:
            axes = {name: (value,) for name, value in asdict(cell.config).items() if isinstance(value, str)}
            others = [] if cell.program is not None else _find_unknown_names(axes)
            for line in dict.fromkeys((str(error), *others)):
                found.setdefault((cell.part, line), []).append(cell)
    return [_line(part, error, those) for (part, error), those in found.items()]


def check_session(file: Path) -> None:
    """Raise a UsageError for a program that mentions paceline nowhere, so that its runs would leave no record.

    Looked at are the program and the modules beside it that it imports. Nothing is run.
    """
    from paceline.vmpi.program import compile_script

    seen: set[Path] = set()
    waiting = [file]
    while waiting:
        here = waiting.pop()
        if here in seen:
            continue
        seen.add(here)
        compile_script(here)
        text = here.read_text(encoding="utf-8", errors="replace")
        if "paceline" in text:
            return
        for name in _find_imports(text):
            words = name.split(".")
            places = ["/".join(words[:length]) for length in range(1, len(words) + 1)]
            beside = [
                file.parent / end for place in places for end in (f"{place}.py", f"{place}/__init__.py")
            ]
            waiting += [path for path in beside if path.is_file()]
    raise UsageError(
        f"{file} does not use paceline.session, so its runs would leave no record: put its training loop into "
        "`with paceline.session() as ranks:` (see docs/own-loop.md)"
    )


def _find_imports(text: str) -> Iterator[str]:
    """Yield the names of the modules that a program imports, and of what it imports from them."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            inside = f"{node.module}." if node.module else ""
            yield from (f"{inside}{alias.name}" for alias in node.names)


def _line(part: str, error: str, cells: Sequence[Cell]) -> str:
    more = len(cells) - 1
    also = f" (and {more} more cell{'s' * (more > 1)})" if more else ""
    return f"{part}, {str(cells[0]).rpartition(', seed ')[0]}{also}: {error}"


def _reset_seed(cell: Cell) -> Cell:
    return replace(cell, config=replace(cell.config, seed=0))
