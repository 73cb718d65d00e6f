"""The settings of a simulated run, `--on sim` and `fit(on="sim")`: their defaults, help and checks, in one place."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.config import make_setting
from paceline.errors import UsageError, split_list, unknown

PLACES = ("mpi", "sim")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings of a simulated run that a real one does not have.

    >>> Options(network="10gbe", slow="3:4x,7:1.5x").slowness
    {3: 4.0, 7: 1.5}
    """

    network: str = make_setting(
        "loopback",
        "a network by name, with options (10gbe:ranks-per-node=4), or a machine file, with all ranks on that machine",
        "NETWORK",
    )
    machine: str | None = make_setting(
        None,
        "the machine of each node: a machine file, or the folder of an earlier simulated run, whose computing "
        "costs are used as well",
        "FILE",
    )
    slow: str = make_setting(
        "", "ranks that compute more slowly than the others, and by what factor", "RANK:FACTORx[,...]"
    )
    jitter: float | None = make_setting(
        None,
        "random variation of computing times (sigma of a log-normal distribution; default: as measured)",
        "FRACTION",
    )
    compute: bool = make_setting(True, "simulate only time, without computing losses and accuracies")
    compute_threads: int | None = make_setting(
        None,
        "processes or threads that compute gradients of simulated ranks at the same time, at most (default: all cores)",
        "N",
    )
    faults: str | None = make_setting(None, "a script of faults, such as fail_at(rank=3, step=100)", "FILE")
    rendezvous: bool = make_setting(False, "send no message before its receiver asks for it")
    recalibrate: bool = make_setting(False, "measure the computing costs on this machine again")

    def __post_init__(self) -> None:
        if not isinstance(self.network, str) or not self.network:
            raise UsageError(
                f"network must be a name, with options or without, or a file; got {self.network!r}"
            )
        for name in ("machine", "faults"):
            value = getattr(self, name)
            if value is not None and not str(value):
                raise UsageError(f"{name} must be a file; got {value!r}")
            object.__setattr__(self, name, None if value is None else str(value))
        rate: Any = self.jitter
        real = isinstance(rate, numbers.Real) and not isinstance(rate, bool)
        if rate is not None and not (real and 0 <= rate <= 2):
            raise UsageError(
                f"jitter must be a number from 0 to 2, such as 0.2 for a fifth; got {self.jitter!r}"
            )
        object.__setattr__(self, "jitter", None if rate is None else float(rate))
        threads: Any = self.compute_threads
        if threads is not None and (type(threads) is not int or threads < 1):
            raise UsageError(f"compute-threads must be a whole number, at least 1; got {threads!r}")
        for name in ("compute", "rendezvous", "recalibrate"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name} must be true or false; got {getattr(self, name)!r}")
        _ = self.slowness

    @property
    def slowness(self) -> dict[int, float]:
        """The slowdown factor of each slow rank."""
        found: dict[int, float] = {}
        for word in split_list(str(self.slow), f"slow: {self.slow}"):
            rank, _, factor = word.partition(":")
            try:
                number, times = int(rank), float(factor.removesuffix("x"))
            except ValueError:
                number, times = -1, math.nan
            if number < 0 or not 0 < times < math.inf:
                raise UsageError(f"slow must be RANK:FACTORx, as in 3:4x; got {word!r}")
            if number in found:
                raise UsageError(f"slow has rank {number} twice: {self.slow}")
            found[number] = times
        return found

    def check(self, ranks: int) -> None:
        """Raise UsageError if a slow rank does not exist.

        >>> Options(slow="8:2x").check(ranks=8)
        Traceback (most recent call last):
        paceline.errors.UsageError: slow: there is no rank 8; the ranks are 0 to 7
        """
        for rank in self.slowness:
            if rank >= ranks:
                raise UsageError(f"slow: there is no rank {rank}; the ranks are 0 to {ranks - 1}")


NAMES = tuple(setting.name for setting in dataclasses.fields(Options))


def pick_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a simulation among some values, without those that are None."""
    return {name: values[name] for name in NAMES if values.get(name) is not None}


def options_of(on: str, given: Mapping[str, Any]) -> Options | None:
    """Return the simulation's settings; None for real ranks, for which none may be given.

    >>> options_of("mpi", {"network": "10gbe"})
    Traceback (most recent call last):
    paceline.errors.UsageError: network is for simulated ranks: give --on sim (on="sim" of fit) with it
    """
    if on not in PLACES:
        raise unknown("place to run on", str(on), PLACES)
    if on == "sim":
        return Options(**given)
    if given:
        names = ["--no-compute" if name == "compute" else name for name in given]
        verb, them = ("is", "it") if len(names) == 1 else ("are", "them")
        raise UsageError(
            f'{", ".join(names)} {verb} for simulated ranks: give --on sim (on="sim" of fit) with {them}'
        )
    return None
