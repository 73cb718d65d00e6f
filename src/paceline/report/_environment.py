"""Where the runs were made: one table, a column for each machine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from paceline.record import Run
from paceline.report.document import Column, Section, Table, Text, Value, foldable

Machine = tuple[str, int]


def environment(runs: Sequence[Run], damaged: Sequence[str] = ()) -> Section:
    """What their records say of the machines: processor and cores tell two apart; below, what was left out."""
    machines: dict[Machine, dict[str, dict[str, None]]] = {}
    for run in runs:
        found = run.environment
        machine = (found["processor"], found["cores"])
        said = machines.setdefault(machine, defaultdict(dict))
        for name, value in _facts(found):
            said[name].update({value: None} if value else {})
    names = [
        name
        for name in dict.fromkeys(name for said in machines.values() for name in said)
        if any(said[name] for said in machines.values())
    ]
    if len(machines) == 1 and len(next(iter(machines.values()))["host"]) == 1:
        names.remove("host")  # who is alone needs no name
    rows: list[tuple[Value, ...]] = [
        (name, *("; ".join(said[name]) or None for said in machines.values())) for name in names
    ]
    many = len(machines) > 1
    heads = [f"machine {number}" if many else "" for number in range(1, len(machines) + 1)]
    return Section(
        title="Environment",
        blocks=(
            Table(
                name="environment",
                title="",
                columns=(Column(name="what"), *(Column(name=head or "machine") for head in heads)),
                rows=tuple(rows),
            ),
            *((left_out(damaged),) if damaged else ()),
        ),
    )


def left_out(damaged: Sequence[str]) -> Text:
    """What the report is not about, and why.

    >>> left_out(["runs/a/summary.json is damaged: ranks is 0"]).title
    'Left out of this report, because damaged: 1'
    """
    title = f"Left out of this report, because damaged: {len(damaged)}"
    return replace(foldable(damaged, title), title=title)


def _facts(found: dict[str, Any]) -> list[tuple[str, str]]:
    """In the order of the table; serial runs have no MPI to name."""
    simulated = found.get("simulated")
    library = " ".join((found["mpi"] or "").partition(",")[0].split())
    return [
        ("processor", found["processor"]),
        ("cores", str(found["cores"])),
        ("nodes", _nodes(found)),
        ("host", str(found.get("host") or "")),
        ("system", found["system"]),
        ("MPI", library),
        ("Python", found["python"]),
        ("paceline", str(found.get("paceline") or "")),
        *((name, str(number)) for name, number in found["packages"].items()),
        ("BLAS", str(found.get("blas") or "")),
        ("simulated", str(simulated["machine"]) if simulated else ""),
    ]


def _nodes(found: dict[str, Any]) -> str:
    """Nothing where one node is all there is."""
    cores = (found.get("nodes") or {}).get("cores") or ()
    return f"{len(cores)}, of {' and '.join(map(str, sorted(set(cores))))} cores" if len(cores) > 1 else ""
