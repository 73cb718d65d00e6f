"""What a study's folder says beside its runs: the question, published figures, the cells that failed."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from paceline.errors import UsageError

STUDY = "study.json"
FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Published:
    """A figure of somebody else's, to stand beside ours: never fitted, never in a verdict."""

    strategy: str
    """Spelled as in the study, so that it has the same colour."""
    ranks: int = 0
    """0: not said; such a figure has its place in a table, and none on a curve."""
    seconds: float | None = None
    accuracy: float | None = None
    """A fraction."""
    of: Literal["test", "training"] = "test"
    """Which samples the accuracy is that of."""
    what: str = ""
    """What the seconds are those of: "an epoch on 14,000 images"."""
    source: str = ""
    """Whose figure."""
    setting: str = ""
    """Under what settings and on what machine, in words."""
    part: str | None = None
    """The part of the study that it belongs to; None: to all of them."""
    problem: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The settings of that part, as its runs' config.json has them: data, model, epochs …; what it lacks is any."""


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A cell of a study that could not be run to its end."""

    settings: Mapping[str, Any] = field(hash=False)
    """As in config.json, `ranks` included, but as far as they were given; `simulated` is there where ranks were."""
    why: str
    """One line."""
    status: int | None
    """Its exit status; negative: the signal that ended it; None: it ran longer than it was allowed to."""
    file: Path


@dataclass(frozen=True, kw_only=True)
class Told:
    """What one study says of its runs."""

    folder: Path
    """Where its runs are."""
    title: str | None
    question: str | None
    target_accuracy: float | None


@dataclass(frozen=True, kw_only=True)
class Context:
    """What is known of some folders of runs beside the runs themselves; of folders without a study: nothing.

    >>> Context().published
    ()
    """

    title: str | None = None
    question: str | None = None
    target_accuracy: float | None = None
    """A fraction, looked for on the validation samples; None where studies do not agree on one: see `studies`."""
    published: tuple[Published, ...] = ()
    failed: tuple[Failed, ...] = ()
    studies: tuple[Told, ...] = ()
    """Each of the studies, in the order in which their folders were named."""


def context_of(places: Iterable[str | Path]) -> Context:
    """What the studies say to which some folders belong, each a folder of runs or a run.

    Where several do not agree on a title, question or target, there is none that holds for all: `studies` has each's.
    What cannot be read is left out, with a warning.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "study.json").write_text('{"title": "ring or tree", "target_accuracy": 0.9}')
    ...     context = context_of([folder])
    >>> context.title, context.target_accuracy, context.failed
    ('ring or tree', 0.9, ())
    """
    studies: list[dict[str, Any]] = []
    each: list[Told] = []
    failed: list[Failed] = []
    for place in dict.fromkeys(map(_home, map(Path, places))):
        if (place / STUDY).is_file() and (told := _read(place / STUDY)) is not None:
            studies.append(told)
            known = {name: told.get(name) for name in ("title", "question", "target_accuracy")}
            each.append(Told(folder=place, **known))
        if (place / FAILED).is_dir():
            files = sorted((place / FAILED).glob("*.json"))
            failed += [cell for file in files if (cell := _failed(file)) is not None]
    published = (figure for told in studies for figure in told.get("published") or ())
    return Context(
        title=_agreed(studies, "title"),
        question=_agreed(studies, "question"),
        target_accuracy=_agreed(studies, "target_accuracy"),
        published=tuple(dict.fromkeys(map(_published, published))),
        failed=tuple(failed),
        studies=tuple(each),
    )


def _home(place: Path) -> Path:
    """The folder that may be a study's: of a run, the one that holds it."""
    return place.parent if (place / "config.json").is_file() else place


def _agreed(studies: list[dict[str, Any]], name: str) -> Any:
    values = {told.get(name) for told in studies}
    return values.pop() if len(values) == 1 else None


def _published(figure: dict[str, Any]) -> Published:
    known = {setting.name for setting in fields(Published)}
    return Published(**{name: value for name, value in figure.items() if name in known})


def _failed(file: Path) -> Failed | None:
    told = _read(file)
    if told is None or not isinstance(told.get("settings"), dict):
        return None
    return Failed(
        settings=told["settings"], why=str(told.get("why", "")), status=told.get("status"), file=file
    )


def _read(path: Path) -> dict[str, Any] | None:
    try:
        told = json.loads(path.read_text())
        if not isinstance(told, dict):
            raise UsageError("it holds no object")
        return told
    except (OSError, ValueError) as error:
        logging.getLogger(__name__).warning("left out: %s cannot be read: %s", path, error)
        return None
