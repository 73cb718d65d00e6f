"""Finds strategies, collectives, models, data sets, updates, schedules and rules by name.

A name is a file: `strategies/local_sgd.py` is `local-sgd`. Files whose name starts with an underscore are not
algorithms. Other packages add names through entry points in the groups `paceline.strategies`, `paceline.data`
and so on. There is no list to edit.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from paceline.errors import UsageError, unknown

# What a module of each folder offers: a function of this name, or (None) the class named like the file.
OFFERS: dict[str, str | None] = {
    "strategies": None,
    "updates": None,
    "schedules": None,
    "rules": None,
    "collectives": "allreduce",
    "models": "build",
    "data": "load",
}
SINGULAR = {
    "strategies": "strategy",
    "updates": "update",
    "schedules": "schedule",
    "rules": "rule",
    "collectives": "collective",
    "models": "model",
    "data": "data set",
}


def names(kind: str) -> list[str]:
    """Every name of one kind, this package's and other packages'.

    >>> "sync" in names("strategies")
    True
    """
    return sorted(_own(kind) | set(_entry_points(kind)))


def has(kind: str, name: str) -> bool:
    """Whether this is a name of one kind; other packages are searched (milliseconds) if it is not ours."""
    return name in _own(kind) or name in _entry_points(kind)


def find(kind: str, name: str) -> Callable[..., Any]:
    """The class or function that a name stands for.

    >>> find("collectives", "ring").__module__
    'paceline.collectives.ring'
    """
    if name not in _own(kind):
        others = _entry_points(kind)
        if name not in others:
            raise unknown(SINGULAR[kind], name, names(kind))
        found = others[name].load()
        if not callable(found):
            raise UsageError(f"the {SINGULAR[kind]} {name!r} of {others[name].value} is not callable")
        return found  # type: ignore[no-any-return]
    stem = name.replace("-", "_")
    module = importlib.import_module(f"paceline.{kind}.{stem}")
    attribute = OFFERS[kind]
    if attribute is None:
        wanted = stem.replace("_", "")
        attribute = next(a for a in vars(module) if a.lower() == wanted)
    return getattr(module, attribute)  # type: ignore[no-any-return]


def import_target(kind: str, text: str) -> Callable[..., Any]:
    """The object that `module:attribute` names, imported from the user's path."""
    module_name, _, attribute = text.partition(":")
    try:
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise UsageError(
            f"unknown {SINGULAR[kind]} {text!r}: no name of paceline's and no module {module_name!r}; "
            f"choose one of {', '.join(names(kind))} or module:attribute"
        ) from None
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise UsageError(f"module {module_name!r} has no attribute {attribute!r}") from None
    if not callable(found):
        raise UsageError(f"{text!r} is not a class or a function")
    return found


@cache
def _own(kind: str) -> frozenset[str]:
    folder = importlib.import_module(f"paceline.{kind}").__path__
    stems = (module.name for module in pkgutil.iter_modules(folder))
    return frozenset(stem.replace("_", "-") for stem in stems if not stem.startswith("_"))


def _entry_points(kind: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"paceline.{kind}")}
