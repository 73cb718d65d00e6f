"""The command line that repeats a run, from its record."""

from __future__ import annotations

import shlex
from dataclasses import fields
from typing import Any

from paceline.config import Config
from paceline.errors import UsageError
from paceline.names import as_arguments
from paceline.record import Run
from paceline.simulate.options import NAMES, Options

# These are always given: a reader should see what is trained, and how.
SHOWN = ("data", "model", "strategy")


def command_of(run: Run, epochs: int | None = None) -> str:
    """Return a line for a shell that trains once more as the run did; empty if its network or data are Python objects.

    `epochs`: those of the command, if they are not those of the run. A name in it that begins with a minus sign, or has
    blanks or quotes, is quoted as a shell needs it.
    """
    c = run.config if epochs is None or run.config.get("program") else {**run.config, "epochs": epochs}
    asked: dict[str, Any] = c.get("asked") or {}
    try:
        simulation = (
            Options(**{name: asked[name] for name in NAMES if name in asked}) if run.simulated else None
        )
        words = _program(c) if c.get("program") else _train(c, asked)
    except (UsageError, TypeError, ValueError):  # of another version
        return ""
    if not words or (run.simulated and asked.get("on") != "sim"):
        return ""
    if simulation is not None:
        words += ["--on=sim", *as_arguments(simulation)]
    program = [str(c["program"]["file"]), *map(str, c["program"]["arguments"])] if c.get("program") else []
    return " ".join([*map(_word, ["paceline", *words]), *map(shlex.quote, program)])


def _train(c: dict[str, Any], asked: dict[str, Any]) -> list[str]:
    """Return the words for `paceline train`; none if something was given as an object."""
    if c.get("objects"):
        return []
    values = {setting.name: c[setting.name] for setting in fields(Config) if setting.name in c}
    config = Config(**{**values, "lr": asked.get("lr", values.get("lr"))})
    rest = [word for word in as_arguments(config) if word.partition("=")[0][2:] not in SHOWN]
    ranks = [] if c["ranks"] == 1 else [f"-n={c['ranks']}"]
    return ["train", *(f"--{name}={getattr(config, name)}" for name in SHOWN), *ranks, *rest]


def _program(c: dict[str, Any]) -> list[str]:
    """Return the words for `paceline run`, before the program itself."""
    given = {name: c[name] for name in ("threads", "seed") if c.get(name)}
    if any("{seed}" in str(word) for word in c["program"]["arguments"]):
        given["seed"] = c["seed"]
    if until := (c.get("asked") or {}).get("until"):
        given["until"] = until
    ranks = [f"-n={c['ranks']}"]
    return [
        "run",
        *ranks,
        f"--strategy={c['strategy']}",
        *(f"--{name}={value}" for name, value in given.items()),
    ]


def _word(word: str) -> str:
    """Quote a word for a shell; an option is apart from its value, unless that begins with a minus sign.

    >>> _word("--lr=0.5"), _word("--data=my file.csv"), _word("--lr=-1")
    ('--lr 0.5', "--data 'my file.csv'", '--lr=-1')
    """
    name, equals, value = word.partition("=")
    if not name.startswith("-") or not equals or value.startswith("-") or not value:
        return shlex.quote(word)
    return f"{name} {shlex.quote(value)}"
