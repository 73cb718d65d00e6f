"""Published figures in a study's file: checked, and told whose problem they belong to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Protocol

from paceline.config import Config
from paceline.study.cells import PROBLEM, SERIAL

TEXTS = ("strategy", "of", "what", "source", "setting", "part")
NUMBERS = ("ranks", "seconds", "accuracy")


class Part(Protocol):
    """What a figure may belong to."""

    @property
    def name(self) -> str | None: ...

    @property
    def axes(self) -> Mapping[str, list[Any]]: ...


def published_of(given: Any, parts: Sequence[Part], wrong: list[str]) -> Iterator[dict[str, Any]]:
    """The figures as study.json has them: with their part's `problem`, the settings of which it has one each.

    A table may stand for several figures: what is a list in it has a value for each of them.
    """
    if not isinstance(given, list) or not all(isinstance(figure, dict) for figure in given):
        wrong.append("published must be tables, [[published]]")
        return
    strategies = [SERIAL, *(name for part in parts for name in part.axes.get("strategy", ()))]
    for number, table in enumerate(given, start=1):
        figures = _figures(table)
        found = [mistake for figure in figures for mistake in _mistakes(figure, strategies, parts)]
        if not figures:
            found = ["lists must have a value for each figure, all as many"]
        wrong += [f"published {number}: {mistake}" for mistake in dict.fromkeys(found)]
        for figure in () if found else figures:
            part = next((part for part in parts if part.name == figure.get("part")), None)
            yield figure if part is None or "part" not in figure else {**figure, "problem": _problem(part)}


def _problem(part: Part) -> dict[str, Any]:
    """Settings that all runs of the part have in common; those that are not given are the defaults."""
    defaults = {setting.name: setting.default for setting in fields(Config)}
    values = {name: part.axes.get(name, [defaults[name]]) for name in PROBLEM}
    return {name: value[0] for name, value in values.items() if len(value) == 1}


def _figures(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The figures that a table stands for; none where its lists are not of one length.

    >>> _figures({"strategy": "psgd", "ranks": [1, 2], "seconds": [727.2, 553.2]})
    [{'strategy': 'psgd', 'ranks': 1, 'seconds': 727.2}, {'strategy': 'psgd', 'ranks': 2, 'seconds': 553.2}]
    """
    lengths = {len(value) for value in table.values() if isinstance(value, list)} or {1}
    if len(lengths) > 1:
        return []
    return [
        {name: value[k] if isinstance(value, list) else value for name, value in table.items()}
        for k in range(*lengths)
    ]


def _mistakes(figure: Mapping[str, Any], strategies: list[str], parts: Sequence[Part]) -> Iterator[str]:
    """What is wrong with a figure, one thing of each key."""
    for name in figure:
        if name not in (*TEXTS, *NUMBERS):
            yield f"unknown key {name!r}; choose one of {', '.join((*TEXTS, *NUMBERS))}"
    if "strategy" not in figure:
        yield "strategy is missing"
    if "seconds" not in figure and "accuracy" not in figure:
        yield "it has neither seconds nor accuracy"
    for name in (name for name in (*TEXTS, *NUMBERS) if name in figure):
        value = figure[name]
        rule = _text(name, value, strategies, parts) if name in TEXTS else _number(name, value)
        if rule is not None:
            yield rule


def _text(name: str, value: Any, strategies: list[str], parts: Sequence[Part]) -> str | None:
    if not isinstance(value, str):
        return f"{name} must be a text; got {value!r}"
    if name == "of" and value not in ("test", "training"):
        return f"of must be test or training; got {value!r}"
    if name == "strategy" and value not in strategies:
        return f"the study has no strategy {value!r}; choose one of {', '.join(dict.fromkeys(strategies))}"
    names = [part.name for part in parts if part.name is not None]
    if name == "part" and value not in names:
        choices = f"choose one of {', '.join(names)}" if names else "none of its parts has a name"
        return f"the study has no part named {value!r}; {choices}"
    return None


def _number(name: str, value: Any) -> str | None:
    real = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if name == "ranks":
        whole = real and isinstance(value, int) and value >= 1
        return None if whole else f"ranks must be a whole number of at least 1; got {value!r}"
    if not real or value < 0:
        return f"{name} must be a number from 0; got {value!r}"
    if name == "accuracy" and value > 1:
        return f"accuracy must be a fraction, as 0.9 for 90 %; got {value!r}"
    return None
