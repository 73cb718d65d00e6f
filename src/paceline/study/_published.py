"""Published figures in a study's file: checked, and told whose problem they belong to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from paceline.study._cells import SERIAL

TEXTS = ("strategy", "of", "what", "source", "setting", "part")
NUMBERS = ("ranks", "seconds", "accuracy")


class Part(Protocol):
    """What a figure may belong to."""

    @property
    def name(self) -> str | None: ...

    @property
    def axes(self) -> Mapping[str, list[Any]]: ...


def published_of(given: Any, parts: Sequence[Part], wrong: list[str]) -> Iterator[dict[str, Any]]:
    """The figures as study.json has them: with the data and the model of their part, where those are one each.

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
            alike = {} if part is None or "part" not in figure else part.axes
            problem = {name: alike[name][0] for name in ("data", "model") if len(alike.get(name, ())) == 1}
            yield {**figure, **problem}


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
    for name in figure:
        if name not in (*TEXTS, *NUMBERS):
            yield f"unknown key {name!r}; choose one of {', '.join((*TEXTS, *NUMBERS))}"
    for name in TEXTS:
        if not isinstance(figure.get(name, ""), str):
            yield f"{name} must be a text; got {figure[name]!r}"
    for name in NUMBERS:
        value = figure.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            yield f"{name} must be a number; got {value!r}"
    if "strategy" not in figure:
        yield "strategy is missing"
    if "seconds" not in figure and "accuracy" not in figure:
        yield "it has neither seconds nor accuracy"
    accuracy = figure.get("accuracy")
    if isinstance(accuracy, int | float) and accuracy > 1:
        yield f"accuracy must be a fraction, as 0.9 for 90 %; got {accuracy!r}"
    ranks = figure.get("ranks", 1)
    if isinstance(ranks, float) or (isinstance(ranks, int) and ranks < 1):
        yield f"ranks must be a whole number of at least 1; got {ranks!r}"
    if figure.get("of", "test") not in ("test", "training"):
        yield f"of must be test or training; got {figure['of']!r}"
    if isinstance(name := figure.get("strategy", SERIAL), str) and name not in strategies:
        yield f"the study has no strategy {name!r}; choose one of {', '.join(dict.fromkeys(strategies))}"
    names = [part.name for part in parts if part.name is not None]
    if "part" in figure and figure["part"] not in names:
        yield f"the study has no part named {figure['part']!r}; choose one of {', '.join(names) or 'none'}"
