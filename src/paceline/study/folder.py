"""A study's folder, whose runs are the study's state.

    .lock                locked by the study that is running here, and by the run that it has started
    .running.json        the name of the run that was started last, written before it; gone when it has ended; and how many
                         cells are done, and which come next
    study.json           the study, for reports: the question, the target, published figures
    failed/NAME.json     a note of each cell that failed
    20250101-…-1a2b3c4d  runs

A cell is done when there is a readable, complete record of the same settings and the same code, whoever created it. An
incomplete run that `.running.json` names was interrupted: it is resumed from its last checkpoint or, if it has none,
removed by whoever holds the lock.

`context_of` reads everything in such folders that is not a run.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

from paceline.compare.metric import ACCURACY, Goal
from paceline.errors import UsageError, reason
from paceline.files import exists, open_lock_file, read_json, read_text, write_json
from paceline.record import Run, find_runs
from paceline.record.checkpoint import find_latest, read
from paceline.record.schema import (
    find_wrong,
    format_value,
    is_amount,
    is_object,
    is_share,
    is_some,
    is_text,
    is_whole,
)
from paceline.record.writing import folder_name, process_lives
from paceline.study.cells import Cell, read_request

Value = TypeVar("Value")
STUDY = "study.json"
FAILED = "failed"
LOCK = ".lock"
RUNNING = ".running.json"
# The report, by its format; a Markdown one has its figures beside it, and an HTML one its figures, data and pages.
REPORTS = ("report.html", "report.md", "report.pdf")
FIGURES, FILES = "report-figures", "report-files"
# The start of the name of a run that is being copied, and what only a complete run has.
COPY = ".copy-"
ENDED = ("summary.json", "model.npz")
# The name of a run that a study has started: it has the mark of its cell.
MARKED = re.compile(r"[^/]+-[0-9a-f]{8}[^/]*")
# Seconds within which the run of a killed study ends.
PATIENCE = 15.0


class Folder:
    """A study's folder, by its path."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def lock(self) -> Iterator[int]:
        """Hold the folder's lock, creating the folder if needed; yield the lock's file, for the run to hold as well."""

        def refuse(error: OSError) -> UsageError:
            return UsageError(f"cannot write runs to {self.path}: {reason(error)}")

        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = open_lock_file(self.path / LOCK)
        except OSError as error:
            raise refuse(error) from None
        try:
            self._lock(handle)
            os.ftruncate(handle, 0)
            try:
                os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            except OSError as error:
                raise refuse(error) from None
            try:
                yield handle
            finally:
                os.ftruncate(handle, 0)  # the number of this process may become that of another
        finally:
            os.close(handle)

    def _lock(self, handle: int) -> None:
        late = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                holder = os.pread(handle, 20, 0).decode(errors="replace").strip()
            if process_lives(holder):
                raise UsageError(f"another run of tune or study (process {holder}) is using {self.path}")
            if time.monotonic() > late:
                raise UsageError(
                    f"a run that an earlier run of tune or study started in {self.path} has not ended yet"
                )
            time.sleep(0.05)

    @property
    def busy(self) -> bool:
        """True if a study seems to be running here; the lock itself is not touched."""
        return self._holder != ""

    @property
    def busy_elsewhere(self) -> bool:
        """True if another process seems to be running a study here."""
        return self._holder not in ("", str(os.getpid()))

    @property
    def _holder(self) -> str:
        """The number of the process that holds the lock; empty if there is none."""
        try:
            holder = read_text(self.path / LOCK).strip()
        except UsageError:
            return ""
        return holder if process_lives(holder) else ""

    def check(self) -> None:
        """Raise a UsageError if the study cannot write to the folder; create nothing."""
        try:
            there = next(place for place in (self.path, *self.path.absolute().parents) if place.exists())
            if not there.is_dir():
                raise UsageError(f"cannot write runs to {self.path}: {there.name} is not a folder")
            for name in (RUNNING, STUDY):
                if (self.path / name).is_dir():
                    raise UsageError(f"cannot write {self.path / name}: it is a folder")
            if (self.path / FAILED).exists() and not (self.path / FAILED).is_dir():
                raise UsageError(f"cannot write into {self.path / FAILED}: it is not a folder")
        except OSError as error:
            raise UsageError(f"cannot write runs to {self.path}: {reason(error)}") from None

    def tidy(self) -> None:
        """Remove the remains of an interrupted study: files that it was writing, and a run that cannot be resumed."""
        self.settle(keep=True)
        names = "|".join(map(re.escape, (RUNNING, STUDY, *REPORTS)))
        for copy in self.path.glob(f"{COPY}*"):
            shutil.rmtree(copy, ignore_errors=True)
        for inside, ours in (
            (self.path, rf"\.({names})\..+"),
            (self.path / FAILED, r"\..+\.json\..+"),
            (self.path / FIGURES, r"\..+\.(svg|json)\..+"),
            (self.path / FILES, r"\..+\.(svg|csv|html|json)\..+"),
        ):
            for file in inside.iterdir() if inside.is_dir() else ():
                if re.fullmatch(ours, file.name):
                    file.unlink(missing_ok=True)

    def find_complete(self) -> dict[str, list[Run]]:
        """Return the complete records that can be read, by the key of their cell; warn about damaged ones."""
        found: dict[str, list[Run]] = {}
        for run in find_runs([self.path]) if self.path.is_dir() else ():
            if (asked := read_request(run.config)) is not None:
                found.setdefault(asked, []).append(run)
        return found

    def find_failures(self) -> dict[str, Path]:
        """Return the notes of failed cells, by the key of the cell."""
        notes = context_of([self.path]).failed
        return {asked: note.file for note in notes if (asked := read_request(note.settings)) is not None}

    def forget_failures(self, unless: Callable[[str], bool]) -> None:
        """Remove the notes of cells for which `unless` does not hold."""
        for asked, note in self.find_failures().items():
            if not unless(asked):
                note.unlink(missing_ok=True)

    def begin(self, cell: Cell, plan: Mapping[str, Any] = MappingProxyType({})) -> str:
        """Return the name of the folder for the cell's run, which this study may remove from now on.

        If it exists, it is that of an interrupted run, to be resumed from its last checkpoint. `plan`: what the study has
        done and will do, for those who watch.
        """
        # The mark distinguishes the name from those of runs started by hand.
        name = self._find_interrupted(cell)
        if name is not None:
            write_json(self.path / RUNNING, {"run": name, **plan})
            return name
        name = f"{folder_name(cell.config.strategy, cell.ranks, cell.config.seed)}-{cell.mark}"
        while (self.path / name).exists():
            name += "-again"
        write_json(self.path / RUNNING, {"run": name, **plan})
        return name

    def extend(self, run: Run, cell: Cell) -> None:
        """Copy a complete run, as an interrupted one of a cell with more epochs, which then is resumed.

        The run must end with a checkpoint.
        """
        name = f"{folder_name(cell.config.strategy, cell.ranks, cell.config.seed)}-{cell.mark}"
        copy = self.path / f"{COPY}{name}"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run.folder, copy, ignore=shutil.ignore_patterns(*ENDED))
        write_json(copy / "config.json", {**run.config, "epochs": cell.config.epochs})
        while (self.path / name).exists():
            name += "-again"
        copy.rename(self.path / name)

    def find_run(self, cell: Cell, name: str) -> Run | None:
        """Return the run that was started for the cell, if it is complete and matches the request."""
        runs = find_runs([self.path / name]) if (self.path / name / "config.json").is_file() else []
        code = cell.settings["code"]  # if code was edited during the run, the next study handles it
        return next((run for run in runs if read_request({**run.config, "code": code}) == cell.key), None)

    def _find_interrupted(self, cell: Cell) -> str | None:
        """Return the name of a run of the cell that was interrupted and has a checkpoint, if there is one."""
        for folder in sorted(self.path.glob(f"*-{cell.mark}*"), reverse=True):
            with suppress(OSError, UsageError, KeyError, TypeError):
                if (folder / "summary.json").exists() or read_request(Run(folder).config) != cell.key:
                    continue
                if find_latest(folder) is not None:
                    return folder.name
        return None

    def settle(self, *, keep: bool = False) -> None:
        """Remove the run that was started last, if it is not complete; `keep`: unless it can be resumed."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            name = read_json(self.path / RUNNING)["run"]
            started = self.path / name
            complete = (started / "summary.json").exists() or (keep and find_latest(started) is not None)
            # The file may be damaged, and ".." would be the folder of all studies.
            if MARKED.fullmatch(name) and started.is_dir() and not complete:
                shutil.rmtree(started)
        (self.path / RUNNING).unlink(missing_ok=True)

    def fail(self, cell: Cell, why: str, status: int | None, said: Sequence[str]) -> None:
        """Write a note of a cell that failed."""
        note: dict[str, Any] = {"settings": cell.settings, "why": why, "status": status, "stderr": list(said)}
        words = re.sub(r"[^A-Za-z0-9.]+", "-", cell.config.strategy).strip("-")
        (self.path / FAILED).mkdir(exist_ok=True)
        name = f"{words}-n{cell.ranks}-s{cell.config.seed}-{cell.mark}.json"
        write_json(self.path / FAILED / name, note)


def ends_with_checkpoint(run: Run) -> bool:
    """Return True if a complete run has saved its state at its end, so that it can be trained further."""
    try:
        numbers = find_latest(run.folder)
        if numbers is None or len(numbers) != run.config["ranks"]:
            return False
        last = read(run.folder, 0, numbers[0], arrays=False)
        return [int(last["position"]["epoch"]), run.config["epochs"]] == 2 * [len(run.epochs)]
    except (UsageError, OSError, KeyError, TypeError, ValueError):
        return False


class _Rule(NamedTuple):
    """A test of a value in a file, and a description of valid values."""

    holds: Callable[[Any], bool]
    words: str


TEXT = _Rule(is_text, "a string")
SHARE = _Rule(lambda value: is_share(value) and value > 0, "a fraction above 0 and at most 1")
# The rules for the values of an object in a file; a name in brackets may be null or missing.
FIGURE = {
    "strategy": TEXT,
    "(ranks)": _Rule(is_whole, "a whole number"),
    "(seconds)": _Rule(is_amount, "a number from 0"),
    "(accuracy)": _Rule(is_share, "a fraction from 0 to 1"),
    "(of)": _Rule(lambda value: value in ("test", "training"), "test or training"),
    "(what)": TEXT,
    "(source)": TEXT,
    "(setting)": TEXT,
    "(part)": TEXT,
    "(problem)": _Rule(is_object, "an object"),
}
NOTE = {
    "settings": _Rule(is_object, "an object"),
    "(why)": TEXT,
    "(status)": _Rule(lambda value: isinstance(value, int), "a whole number"),
}
CELL = {"(strategy)": TEXT, "(ranks)": _Rule(is_some, "a whole number of at least 1")}


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published figure to compare with: never fitted, never in a verdict."""

    strategy: str
    """As written in the study, so that it has the same colour."""
    ranks: int = 0
    """0: unknown; such a figure is shown in a table, but not on a curve."""
    seconds: float | None = None
    accuracy: float | None = None
    """A fraction."""
    of: Literal["test", "training"] = "test"
    """The samples that the accuracy was measured on."""
    what: str = ""
    """The meaning of the seconds: "an epoch on 14,000 images"."""
    source: str = ""
    """The publication."""
    setting: str = ""
    """A description of the settings and the machine."""
    part: str | None = None
    """The part of the study that it belongs to; None: all of them."""
    problem: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The settings of that part as config.json has them: data, model, epochs …; missing settings may have any value."""


@dataclass(frozen=True, kw_only=True)
class FailedCell:
    """A cell of a study that failed."""

    settings: Mapping[str, Any] = field(hash=False)
    """As in config.json with `ranks`, as far as they were given; with `simulated` if the ranks were."""
    why: str
    """One line."""
    status: int | None
    """Its exit status; negative: the signal that ended it; None: it exceeded the timeout."""
    file: Path


@dataclass(frozen=True, kw_only=True)
class StudyInfo:
    """The information that one study has about its runs."""

    folder: Path
    """The folder of its runs."""
    title: str | None
    question: str | None
    target: Goal | None
    search: SearchInfo | None = None
    """Set if its runs are those of a search."""
    going_on: bool = False
    """True if another process is running it, so that more runs are to come."""


@dataclass(frozen=True, kw_only=True)
class SearchInfo:
    """A search for the settings that reach a target first: its runs are candidates for one problem."""

    draws: int | None
    """The random batches of an epoch; None: an epoch has all samples. Other runs only measured speed."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """The information about folders of runs besides the runs; empty for folders without a study.

    >>> Context().published
    ()
    """

    title: str | None = None
    question: str | None = None
    target: Goal | None = None
    """What to reach on the validation samples; None if studies do not agree on it: see `studies`."""
    published: tuple[Published, ...] = ()
    failed: tuple[FailedCell, ...] = ()
    studies: tuple[StudyInfo, ...] = ()
    """Each of the studies, in the order of their folders."""
    left_out: tuple[str, ...] = ()
    """Damaged parts that were ignored: the file, and the problem."""


def context_of(places: Iterable[str | Path]) -> Context:
    """Read the studies of some folders, each a folder of runs or a run.

    If they do not agree on a title, question or target, the context has none: `studies` has those of each. Anything
    that cannot be read is ignored with a warning.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "study.json").write_text('{"title": "ring or tree", "target_accuracy": 0.9}')
    ...     context = context_of([folder])
    >>> context.title, str(context.target), context.failed
    ('ring or tree', 'accuracy >= 90.00 %', ())
    """
    each: list[StudyInfo] = []
    published: list[Published] = []
    failed: list[FailedCell] = []
    wrong: list[str] = []
    for place in dict.fromkeys(map(_home, map(Path, places))):
        if exists(place / STUDY) and (told := _read(place / STUDY, wrong)) is not None:
            each.append(_read_values(place, told, wrong))
            published += _figures(place / STUDY, told.get("published"), wrong)
        if (place / FAILED).is_dir():
            files = sorted((place / FAILED).glob("*.json"))
            failed += [cell for file in files if (cell := _read_failed(file, wrong)) is not None]
    for line in wrong:
        logging.getLogger(__name__).warning("left out: %s", line)
    return Context(
        title=_common_value([one.title for one in each]),
        question=_common_value([one.question for one in each]),
        target=_common_value([one.target for one in each]),
        published=tuple(dict.fromkeys(published)),
        failed=tuple(failed),
        studies=tuple(each),
        left_out=tuple(wrong),
    )


def _home(place: Path) -> Path:
    """Return the folder that may be a study's: for a run, the one that holds it."""
    return place.parent if (place / "config.json").is_file() else place


def _common_value(values: Sequence[Value]) -> Value | None:
    return values[0] if len(set(values)) == 1 else None


def _read_values(folder: Path, told: Mapping[str, Any], wrong: list[str]) -> StudyInfo:
    """Read the valid values of a study's file; add mistakes to `wrong`."""
    known = {}
    for name, rule in (("title", TEXT), ("question", TEXT), ("target_accuracy", SHARE)):
        known[name] = told.get(name)
        if known[name] is not None and not rule.holds(known[name]):
            wrong.append(f"{folder / STUDY}: {name} must be {rule.words}; got {format_value(known[name])}")
            known[name] = None
    fraction, goal = known.pop("target_accuracy"), None
    if (text := told.get("target")) is not None:
        try:
            goal = Goal.parse(text)
        except UsageError as error:
            wrong.append(f"{folder / STUDY}: {error}")
    elif fraction is not None:
        goal = Goal(ACCURACY, fraction)
    search = told.get("search")
    draws = search.get("draws") if isinstance(search, dict) else None
    valid = isinstance(search, dict) and (draws is None or is_whole(draws))
    if search is not None and not valid:
        wrong.append(f"{folder / STUDY}: search must be an object with draws; got {format_value(search)}")
    return StudyInfo(
        folder=folder,
        target=goal,
        search=SearchInfo(draws=draws) if valid else None,
        going_on=Folder(folder).busy_elsewhere,
        **known,
    )


def _figures(file: Path, told: Any, wrong: list[str]) -> Iterator[Published]:
    """Yield the valid published figures."""
    if told is not None and not isinstance(told, list):
        wrong.append(f"{file}: published must be a list of objects; got {format_value(told)}")
        return
    names = {setting.name for setting in fields(Published)}
    for number, figure in enumerate(told or (), 1):
        if (mistake := _mistake(figure, FIGURE)) is not None:
            wrong.append(f"{file}: published {number}: {mistake}")
        else:
            yield Published(**{name: v for name, v in figure.items() if name in names and v is not None})


def _read_failed(file: Path, wrong: list[str]) -> FailedCell | None:
    told = _read(file, wrong)
    if told is None:
        return None
    mistake = _mistake(told, NOTE) or _mistake(told["settings"], CELL)
    if mistake is not None:
        wrong.append(f"{file}: {mistake}")
        return None
    return FailedCell(
        settings=told["settings"], why=told.get("why") or "", status=told.get("status"), file=file
    )


def _mistake(values: Any, rules: Mapping[str, _Rule]) -> str | None:
    """Return a description of the mistake in an object; None if there is none."""
    if not isinstance(values, dict):
        return f"it must be an object; got {format_value(values)}"
    name = find_wrong(values, {key: rule.holds for key, rule in rules.items()})
    if name is None:
        return None
    if name not in values:
        return f"{name} is missing"
    rule = rules[name if name in rules else f"({name})"]
    return f"{name} must be {rule.words}; got {format_value(values[name])}"


def _read(path: Path, wrong: list[str]) -> dict[str, Any] | None:
    try:
        told = read_json(path)
        if not isinstance(told, dict):
            raise UsageError(f"{path} is damaged: it is not an object")
        return told
    except UsageError as error:
        wrong.append(str(error))
        return None
