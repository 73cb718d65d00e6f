"""The contents of a study's folder besides its runs: the question, published figures, the cells that failed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from paceline.compare.metric import ACCURACY, Goal
from paceline.errors import UsageError
from paceline.files import exists, read_json
from paceline.record.schema import (
    first_wrong,
    is_amount,
    is_object,
    is_share,
    is_some,
    is_text,
    is_whole,
    shown,
)

STUDY = "study.json"
FAILED = "failed"
Value = TypeVar("Value")


class Rule(NamedTuple):
    """A test of a value in a file, and a description of valid values."""

    holds: Callable[[Any], bool]
    words: str


TEXT = Rule(is_text, "a text")
SHARE = Rule(lambda value: is_share(value) and value > 0, "a fraction above 0 and at most 1")
# The rules for the values of an object in a file; a name in brackets may be null or missing.
FIGURE = {
    "strategy": TEXT,
    "(ranks)": Rule(is_whole, "a whole number"),
    "(seconds)": Rule(is_amount, "a number from 0"),
    "(accuracy)": Rule(is_share, "a fraction from 0 to 1"),
    "(of)": Rule(lambda value: value in ("test", "training"), "test or training"),
    "(what)": TEXT,
    "(source)": TEXT,
    "(setting)": TEXT,
    "(part)": TEXT,
    "(problem)": Rule(is_object, "an object"),
}
NOTE = {
    "settings": Rule(is_object, "an object"),
    "(why)": TEXT,
    "(status)": Rule(lambda value: isinstance(value, int), "a whole number"),
}
CELL = {"(strategy)": TEXT, "(ranks)": Rule(is_some, "a whole number of at least 1")}


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
class Failed:
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
    search: Search | None = None
    """Set if its runs are those of a search."""


@dataclass(frozen=True, kw_only=True)
class Search:
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
    failed: tuple[Failed, ...] = ()
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
    failed: list[Failed] = []
    wrong: list[str] = []
    for place in dict.fromkeys(map(_home, map(Path, places))):
        if exists(place / STUDY) and (told := _read(place / STUDY, wrong)) is not None:
            each.append(_read_values(place, told, wrong))
            published += _figures(place / STUDY, told.get("published"), wrong)
        if (place / FAILED).is_dir():
            files = sorted((place / FAILED).glob("*.json"))
            failed += [cell for file in files if (cell := _failed(file, wrong)) is not None]
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
            wrong.append(f"{folder / STUDY}: {name} must be {rule.words}; got {shown(known[name])}")
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
        wrong.append(f"{folder / STUDY}: search must be an object with draws; got {shown(search)}")
    return StudyInfo(folder=folder, target=goal, search=Search(draws=draws) if valid else None, **known)


def _figures(file: Path, told: Any, wrong: list[str]) -> Iterator[Published]:
    """Yield the valid published figures."""
    if told is not None and not isinstance(told, list):
        wrong.append(f"{file}: published must be a list of objects; got {shown(told)}")
        return
    names = {setting.name for setting in fields(Published)}
    for number, figure in enumerate(told or (), 1):
        if (mistake := _mistake(figure, FIGURE)) is not None:
            wrong.append(f"{file}: published {number}: {mistake}")
        else:
            yield Published(**{name: v for name, v in figure.items() if name in names and v is not None})


def _failed(file: Path, wrong: list[str]) -> Failed | None:
    told = _read(file, wrong)
    if told is None:
        return None
    mistake = _mistake(told, NOTE) or _mistake(told["settings"], CELL)
    if mistake is not None:
        wrong.append(f"{file}: {mistake}")
        return None
    return Failed(settings=told["settings"], why=told.get("why") or "", status=told.get("status"), file=file)


def _mistake(values: Any, rules: Mapping[str, Rule]) -> str | None:
    """Return a description of the mistake in an object; None if there is none."""
    if not isinstance(values, dict):
        return f"it must be an object; got {shown(values)}"
    name = first_wrong(values, {key: rule.holds for key, rule in rules.items()})
    if name is None:
        return None
    if name not in values:
        return f"{name} is missing"
    rule = rules[name if name in rules else f"({name})"]
    return f"{name} must be {rule.words}; got {shown(values[name])}"


def _read(path: Path, wrong: list[str]) -> dict[str, Any] | None:
    try:
        told = read_json(path)
        if not isinstance(told, dict):
            raise UsageError(f"{path} is damaged: it is not an object")
        return told
    except UsageError as error:
        wrong.append(str(error))
        return None
