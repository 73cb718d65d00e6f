"""The values of a study's settings, each by itself: what is wrong with one is said whatever is wrong with others."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from paceline.config import Config
from paceline.errors import UsageError
from paceline.launch import allocated_cores
from paceline.sim.network import parse_network
from paceline.sim.options import NAMES as SIMULATION
from paceline.sim.options import Options

# A replay is a copy of one run's settings: what its record says is not what the study asked for.
SETTINGS = (*(setting.name for setting in fields(Config) if setting.name != "replay"), "ranks")
CORES = re.compile(r"cores(?:,? at most (\d+))?")
# What a setting cannot do without; whether it is there is a matter of the cell.
WITH: dict[str, dict[str, Any]] = {"lr_scaling": {"batch_per_rank": 1}}


def ranks_of(given: Any) -> int:
    """A number of ranks: a number, or as many as there are cores, 2 at the least.

    >>> ranks_of(4), ranks_of("cores, at most 2")
    (4, 2)
    """
    if isinstance(given, str) and (found := CORES.fullmatch(given)):
        return max(2, min(allocated_cores(), int(found[1] or allocated_cores())))
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise UsageError(
            f"ranks must be a whole number of at least 1, or cores, or cores, at most 4; got {given!r}"
        )
    return given


def mistake(name: str, value: Any) -> str | None:
    """What is wrong with one value of a setting, of those of a run or of a simulation.

    >>> mistake("lr", "fast"), mistake("lr", 0.5)
    ("lr must be a number above 0; got 'fast'", None)
    """
    if not isinstance(value, str | int | float):
        return f"{name.replace('_', '-')} must be a text, a number or a list of them; got {value!r}"
    try:
        if name == "ranks":
            ranks_of(value)
        elif name in SIMULATION:
            _simulated(name, value)
        else:
            Config(**{**WITH.get(name, {}), name: value})
    except UsageError as error:
        return str(error)
    return None


def _simulated(name: str, value: Any) -> None:
    options = Options(**{name: value})
    if name == "network":
        parse_network(options.network)
    if name in ("machine", "faults") and not Path(getattr(options, name)).exists():
        raise UsageError(f"{name} must be a file that is there; got {value!r}")
