"""`--replay RUN`: the settings of an earlier run, and what keeps its order of messages from being repeated."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from paceline.config import Config
from paceline.errors import UsageError
from paceline.record import Run


def as_in(config: Config) -> Config:
    """The settings of the run that is to be replayed; those that were left at their defaults are taken from it.

    >>> as_in(Config(replay="no-such-folder"))
    Traceback (most recent call last):
    paceline.errors.UsageError: no such run: no-such-folder
    """
    if config.replay is None:
        return config
    run = Run(config.replay)
    taken: dict[str, Any] = {"replay": str(Path(config.replay).resolve())}
    for setting in fields(Config):
        name = setting.name
        if name == "replay" or name not in run.config:
            continue
        mine, theirs = getattr(config, name), run.config[name]
        if mine == theirs:
            continue
        if mine != setting.default:
            raise UsageError(
                f"a replay has the settings of its run; {name.replace('_', '-')} is {theirs} in {run.folder}, got {mine}"
            )
        taken[name] = theirs
    return replace(config, **taken)


def ranks_of(config: Config) -> int | None:
    """How many ranks the run had that is to be replayed, if one is."""
    return None if config.replay is None else int(Run(config.replay).config["ranks"])


def check(config: Config, ranks: int, samples: int, replayable: bool) -> None:
    """Refuse to replay what cannot be: another strategy, another number of ranks, other data."""
    if config.replay is None:
        return
    run = Run(config.replay)
    if not replayable:
        raise UsageError(
            f"{run.folder} cannot be replayed: only a parameter-server run records an order; "
            f"the strategy is {config.strategy}"
        )
    _ = run.updates
    if run.config["ranks"] != ranks:
        raise UsageError(f"{run.folder} was made on {run.config['ranks']} ranks; the job has {ranks}")
    if run.config.get("samples") != samples:
        raise UsageError(
            f"{run.folder} was trained on {run.config.get('samples')} samples; {config.data} has {samples}"
        )
