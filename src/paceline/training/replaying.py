"""`--replay RUN`: the settings of an earlier run, and checks that its order of messages can be repeated."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from paceline import names as spec
from paceline.config import Config
from paceline.data import names_code
from paceline.errors import UsageError
from paceline.record import Run

# Settings whose value may name code, and the kind of name that each is.
KINDS = {
    "strategy": "strategies", "model": "models", "data": "data", "update": "updates", "schedule": "schedules",
}  # fmt: skip


def as_in(config: Config, given: Collection[str] | None = None, *, trust: bool = False) -> Config:
    """Return the settings of the run to replay: those `given` must match it, and the rest is taken from it.

    If it is unknown which were given, those that differ from the defaults are. Code that the run names (`module:attribute`)
    and the user did not is refused unless `trust`.

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
        if mine != theirs and name in KINDS:
            check_trust(name, str(theirs), run, trust)
        if _same(name, mine, theirs, str(run.config["update"])):
            continue
        if mine != setting.default if given is None else name in given:
            there = "not given" if theirs is None else theirs
            raise UsageError(
                f"a replay has the settings of its run; {name.replace('_', '-')} is {there} in {run.folder}, got {mine}"
            )
        taken[name] = theirs
    return replace(config, **taken)


def check_trust(name: str, text: str, run: Run, trust: bool) -> None:
    """Refuse code that only the run's record names, unless it is trusted; import nothing."""
    kind = KINDS[name]
    with spec.registered_only(str(run.folder), trust=trust):
        if trust:
            return
        if names_code(text) if kind == "data" else not spec.has(kind, text.partition(":")[0]):
            spec.import_target(kind, ":".join(text.split(":")[:2]))
        if kind == "strategies":  # whose rule may be code, too
            with suppress(TypeError):
                spec.parse(kind, text).make()


def _same(name: str, mine: Any, theirs: Any, update: str) -> bool:
    """Return True if two values are equivalent with this update; the options of a strategy may be in any order."""
    if name == "strategy" and mine != theirs and isinstance(theirs, str):
        try:
            one, other = (spec.parse("strategies", text).make() for text in (mine, theirs))
            return bool(one == other or one.for_update(update) == other.for_update(update))
        except (UsageError, TypeError, AttributeError):
            return False
    return bool(mine == theirs)


def ranks_of(config: Config) -> int | None:
    """Return the number of ranks of the run to replay, if there is one."""
    return None if config.replay is None else int(Run(config.replay).config["ranks"])


def check(config: Config, ranks: int, samples: int, replayable: bool) -> None:
    """Raise a UsageError if the run cannot be replayed: another strategy, number of ranks, or data."""
    if config.replay is None:
        return
    run = Run(config.replay)
    if not replayable:
        raise UsageError(
            f"{run.folder} cannot be replayed: only a parameter-server run records an order; "
            f"the strategy is {config.strategy}"
        )
    _check_order(run)
    if run.config["ranks"] != ranks:
        raise UsageError(f"{run.folder} was made on {run.config['ranks']} ranks; the job has {ranks}")
    if run.config.get("samples") != samples:
        raise UsageError(
            f"{run.folder} was trained on {run.config.get('samples')} samples; {config.data} has {samples}"
        )


def _check_order(run: Run) -> None:
    """Raise a UsageError if the order differs from the recorded one: its replay would never end."""
    from paceline.strategies.parameter_server import EVENTS, digest

    for name, what in (("resumed", "it was resumed"), ("failures", "ranks died")):
        if run.summary.get("findings", {}).get(name):
            raise UsageError(f"{run.folder} cannot be replayed: {what}, and its order is not that of one run")
    updates = run.updates
    missing = [name for name in ("master", *EVENTS) if name not in updates]
    if missing:
        raise UsageError(f"{run.folder / 'updates.npz'} is damaged: it has no {', '.join(missing)}")
    if digest(updates) != run.summary.get("findings", {}).get("order"):
        raise UsageError(f"{run.folder / 'updates.npz'} is damaged: its order does not match summary.json")
