"""JSON files of measured costs: of a machine (messages, collectives, memory) and of the work of one job.

A machine's file holds no path, no user and no host name, and can be published with the results. `load_network` and
`make_compute` turn measurements into the network and the computing costs of a simulation (`paceline.vmpi`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from paceline.errors import UsageError
from paceline.files import cannot, parse_json, read_text, write_json
from paceline.record.schema import COSTS, MACHINE, check_values, format_value
from paceline.vmpi import Compute
from paceline.vmpi.compute import Curves
from paceline.vmpi.network import Link, Network, Node, parse_network

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """The common part of machines and costs: where and when they were measured, and their files."""

    processor: str = ""
    cores: int = 1
    date: str = ""
    command: str = ""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, completely or not at all."""
        path = Path(path)
        try:
            write_json(path, self.values())
        except OSError as error:
            raise cannot(path, error) from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file written by `save`."""
        path, what = Path(path), cls.__name__.lower()
        text = read_text(path)
        other = f"{path} is not the file of a {what}, as `paceline simulate calibrate` writes it"
        try:
            values = parse_json(text, "it")
        except UsageError as error:
            raise UsageError(f"{other}: {error}") from None
        if not isinstance(values, dict) or values.get("kind") != what:
            raise UsageError(other)
        if values.get("format") != FORMAT:
            raise UsageError(
                f"{path} has format {format_value(values.get('format'))}; this paceline reads {FORMAT}"
            )
        return cls.of(values, str(path))

    def values(self) -> dict[str, Any]:
        """Return the values of the file."""
        named = {"kind": type(self).__name__.lower(), "format": FORMAT}
        kept = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return {**named, **{name: _plain(value) for name, value in kept.items()}}

    @classmethod
    def of(cls, values: Any, what: str = "the file") -> Self:
        """Create an object from the values of a file; raise a UsageError that begins with `what` if they are wrong."""
        raise NotImplementedError

    @staticmethod
    def _describe(values: dict[str, Any]) -> dict[str, Any]:
        words = {name: values.get(name) or "" for name in ("processor", "date", "command")}
        return {**words, "cores": values["cores"]}


@dataclass(frozen=True, kw_only=True)
class Machine(Node, _Stored):
    """A measured node: the costs of messages inside it, MPI's own collectives and passes over memory.

    >>> machine = Machine.typical()
    >>> machine.processor, machine.eager_limit
    ('typical', 4096)
    >>> Machine.of(machine.values()) == machine
    True
    """

    mpi: str = ""
    bound: bool = True
    """True if every rank had a core to itself."""
    network: str = ""
    """The network between several of these machines, as on the command line, if it was measured."""

    @classmethod
    def of(cls, values: Any, what: str = "the machine") -> Self:
        check_values(what, values, MACHINE)
        link = values["link"]
        return cls(
            **cls._describe(values),
            mpi=values.get("mpi") or "",
            bound=values.get("bound") is not False,
            network=values.get("network") or "",
            eager_limit=values["eager_limit"],
            post=float(values["post"]),
            poll=float(values["poll"]),
            progress=_progress(values),
            link=Link(**{name: Curves.of(link[name]) for name in ("send", "flight", "take")}),
            collectives=_curves(values["collectives"]),
            memory=_curves(values["memory"]),
        )

    @classmethod
    def typical(cls) -> Machine:
        """Return the machine that is assumed if nothing was measured: see `Node.typical`."""
        return cls(processor="typical", cores=16, mpi="Open MPI", **vars(Node.typical()))

    @classmethod
    def of_network(cls, network: Network) -> Machine:
        """Return the machine of each node of a network; a typical one if none was given."""
        node = network.node or cls.typical()
        return node if isinstance(node, Machine) else replace(cls.typical(), **vars(node))


@dataclass(frozen=True, kw_only=True)
class Costs(_Stored):
    """The cost of the work of one job: seconds by kind and amount, for each number of processes on a node.

    >>> costs = Costs(work={"gradient": Curves.of({1: [[1, 2e-5], [64, 4e-4]]})}, about="mlp on mnist")
    >>> costs.work["gradient"].at(64, ranks=4)
    0.0004
    >>> Costs.of(costs.values()) == costs
    True
    """

    work: dict[str, Curves]
    about: str = ""
    """A description of the job."""
    spread: float = 0.0
    """The variation of gradient times between ranks and steps: sigma of a log-normal distribution."""
    spreads: Curves | None = None
    """The same by the seconds of a gradient, for each number of processes; None: always `spread`."""

    @classmethod
    def of(cls, values: Any, what: str = "the costs") -> Self:
        check_values(what, values, COSTS)
        about = values.get("about") or ""
        spread = float(values.get("spread") or 0.0)
        spreads = None if values.get("spreads") is None else Curves.of(values["spreads"])
        return cls(
            **cls._describe(values),
            work=_curves(values["work"]),
            about=about,
            spread=spread,
            spreads=spreads,
        )


def _curves(values: dict[str, Any]) -> dict[str, Curves]:
    return {name: Curves.of(curves) for name, curves in values.items()}


def _progress(values: dict[str, Any]) -> dict[str, Curves]:
    """Return the progress of non-blocking collectives; earlier versions wrote one share for all of them."""
    if values.get("hidden") is not None:
        return {"hidden": Curves.of({1: [[0, values["hidden"]]]})}
    return _curves(values.get("progress") or {})


def _plain(value: Any) -> Any:
    if isinstance(value, Curves):
        return value.lists()
    if isinstance(value, Link):
        value = vars(value)
    return {name: _plain(inner) for name, inner in value.items()} if isinstance(value, dict) else value


def load_network(text: str) -> Network:
    """Make a network from its name and options, or from the file of a machine.

    All ranks are then on that machine, unless the network between several of them was measured too.

    >>> load_network("10gbe:ranks-per-node=4").ranks_per_node
    4
    """
    return parse_network(text, _load_node)


def _load_node(path: str) -> Machine | Network:
    machine = Machine.load(path)
    if not machine.network:
        return machine
    try:
        return replace(parse_network(machine.network), node=machine)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def make_compute(machine: Node | None, costs: Costs | None, **stragglers: Any) -> Compute:
    """Make the computing costs of a simulation from those of a machine (None: a typical one) and of a job.

    Work varies as much as it did when it was measured, unless another `jitter` is given.
    """
    known = machine if isinstance(machine, Machine) else Machine.typical()
    memory = known.memory if machine is None else machine.memory
    work = {} if costs is None else costs.work
    if stragglers.get("jitter") is None:
        stragglers["jitter"] = 0.0 if costs is None else costs.spread
        stragglers["spread"] = None if costs is None else costs.spreads
    cores = known.cores if costs is None else costs.cores
    return Compute(**{"work": {**memory, **work}, "cores": cores, **stragglers})
