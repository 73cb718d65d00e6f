"""What was measured of one machine, and what one job costs on it: JSON files that a simulation is made from.

A machine's file holds no path, no user and no host name, and can be published with the results.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self

from paceline.errors import UsageError
from paceline.vmpi.curves import Curves

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Link:
    """A message between two ranks of one node, in seconds by its bytes, for each number of ranks that do it at once.

    Up to the eager limit the sender copies it into shared memory (`send`), and the receiver out of it (`take`). A
    longer one is announced (`send`), and copied straight from the sender's memory by the receiver (`take`).
    """

    send: Curves
    """The sender's own time."""
    flight: Curves
    """From there until the receiver can see it; after a long one also until the sender can see that it was taken."""
    take: Curves
    """The receiver's own time."""

    def both_ways(self, nbytes: int, ranks: int, *, eager: bool, post: float = 0.0) -> float:
        """Seconds that two ranks take to exchange a message (Irecv, Isend, Wait, Wait)."""
        flights = 1 if eager else 2
        there = self.send.at(nbytes, ranks) + flights * self.flight.at(nbytes, ranks)
        return post + there + self.take.at(nbytes, ranks)


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """What machines and costs have in common: where and when they were measured, and their files."""

    processor: str = ""
    cores: int = 1
    date: str = ""
    command: str = ""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all."""
        from paceline.files import write_json

        path = Path(path)
        try:
            write_json(path, self.values())
        except OSError as error:
            raise UsageError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read such a file again."""
        path, what = Path(path), cls.__name__.lower()
        try:
            values = json.loads(path.read_text())
        except OSError as error:
            raise UsageError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
        except ValueError as error:
            raise UsageError(f"{path} is no file of a {what}: {error}") from None
        if not isinstance(values, dict) or values.get("kind") != what:
            raise UsageError(f"{path} is no file of a {what}, as `paceline simulate calibrate` writes it")
        if values.get("format") != FORMAT:
            raise UsageError(f"{path} has format {values.get('format')}; this paceline reads {FORMAT}")
        try:
            return cls.of(values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"{path} is damaged: {error}") from None

    def values(self) -> dict[str, Any]:
        """The file's values."""
        named = {"kind": type(self).__name__.lower(), "format": FORMAT}
        kept = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return {**named, **{name: _plain(value) for name, value in kept.items()}}

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """From the file's values."""
        raise NotImplementedError

    @staticmethod
    def _described(values: dict[str, Any]) -> dict[str, Any]:
        words = {name: str(values.get(name, "")) for name in ("processor", "date", "command")}
        return {**words, "cores": int(values["cores"])}


@dataclass(frozen=True, kw_only=True)
class Machine(_Stored):
    """What messages between the ranks of a node, MPI's own collectives and passes over memory cost on one machine.

    >>> machine = Machine.typical()
    >>> machine.eager_limit, machine.link.take.at(4096, ranks=2) < machine.link.take.at(4096, ranks=16)
    (4096, True)
    >>> Machine.of(machine.values()) == machine
    True
    """

    mpi: str = ""
    bound: bool = True
    """Whether every rank had a core to itself."""
    eager_limit: int = 4096
    """Bytes up to which a message inside the node is sent before the receiver asks for it."""
    post: float = 0.0
    """Seconds to post a receive."""
    poll: float = 0.0
    """Seconds to look for a message in vain."""
    link: Link
    collectives: dict[str, Curves] = field(default_factory=dict)
    """Barrier, Allreduce: MPI's own, by the bytes that each rank hands in."""
    memory: dict[str, Curves] = field(default_factory=dict)
    """combine, recombine, sum, copy; cold: what an exchange takes longer after a gradient was computed. By bytes."""

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        return cls(
            **cls._described(values),
            mpi=str(values.get("mpi", "")),
            bound=bool(values.get("bound", True)),
            eager_limit=int(values["eager_limit"]),
            post=float(values["post"]),
            poll=float(values["poll"]),
            link=Link(**{name: Curves.of(curves) for name, curves in values["link"].items()}),
            collectives=_curves(values["collectives"]),
            memory=_curves(values["memory"]),
        )

    @classmethod
    def typical(cls) -> Machine:
        """What is taken where nothing was measured: a server of some years ago with 16 cores, Open MPI, mpi4py."""
        return _typical()


@dataclass(frozen=True, kw_only=True)
class Costs(_Stored):
    """What the work of one job costs: seconds by kind and amount, for each number of processes on a node.

    >>> costs = Costs(work={"gradient": Curves.of({1: [[1, 2e-5], [64, 4e-4]]})}, about="mlp on mnist")
    >>> costs.work["gradient"].at(64, ranks=4)
    0.0004
    >>> Costs.of(costs.values()) == costs
    True
    """

    work: dict[str, Curves]
    about: str = ""
    """The job, in words."""
    spread: float = 0.0
    """How uneven a gradient's seconds were, from rank to rank and step to step: sigma of a log-normal."""

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        about = str(values.get("about", ""))
        spread = float(values.get("spread", 0.0))
        return cls(**cls._described(values), work=_curves(values["work"]), about=about, spread=spread)


def _curves(values: dict[str, Any]) -> dict[str, Curves]:
    return {name: Curves.of(curves) for name, curves in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Curves):
        return value.lists()
    if isinstance(value, Link):
        value = vars(value)
    return {name: _plain(inner) for name, inner in value.items()} if isinstance(value, dict) else value


@cache
def _typical() -> Machine:
    us, gb = 1e-6, 1e9
    limit = 4096  # Open MPI's btl_sm_eager_limit

    def line(start: float, rate: float, ends: tuple[int, int]) -> list[list[float]]:
        return [[n, start + n / rate] for n in ends]

    # A message of mpi4py's costs about 1 us of either end's time; one core copies at about 10 GB/s, and sixteen
    # together at a quarter of that each.
    send, flight, take = {}, {}, {}
    for ranks, rate in ((2, 10 * gb), (16, 5 * gb)):
        send[ranks] = line(0.8 * us, rate, (0, limit)) + line(0.8 * us, 1e18, (limit + 1, 1 << 22))
        flight[ranks] = [[0, 0.3 * us], [1 << 22, 0.3 * us]]
        take[ranks] = line(0.8 * us, rate, (0, limit)) + line(1.5 * us, rate, (limit + 1, 1 << 22))
    memory = {
        "combine": {1: (0.4 * us, 12 * gb), 16: (0.4 * us, 5 * gb)},
        "recombine": {1: (0.4 * us, 2 * gb), 16: (0.4 * us, 2 * gb)},
        "sum": {1: (1.0 * us, 12 * gb), 16: (1.0 * us, 8 * gb)},
        "copy": {1: (0.3 * us, 12 * gb), 16: (0.3 * us, 5 * gb)},
    }
    return Machine(
        processor="typical",
        cores=16,
        mpi="Open MPI",
        eager_limit=limit,
        post=0.5 * us,
        poll=0.3 * us,
        link=Link(send=Curves.of(send), flight=Curves.of(flight), take=Curves.of(take)),
        memory={
            kind: Curves.of({ranks: line(*figures, (0, 1 << 24)) for ranks, figures in by_ranks.items()})
            for kind, by_ranks in memory.items()
        },
    )
