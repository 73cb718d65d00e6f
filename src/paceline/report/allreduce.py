"""The results of `paceline bench allreduce --json FILE`, beside the model and MPI's own Allreduce."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.figures import Axis, Curve, Lines
from paceline.files import read_json
from paceline.report.document import Block, Column, Section, Table, Value
from paceline.text import size

CAPTION = (
    "Median of the calls; a call lasts until its last rank is done. The band goes from the 10th to the 90th percentile. "
    "Without markers: the model's time, with alpha per message, beta per byte sent and gamma per byte combined. native "
    "is MPI's own Allreduce."
)
# On one node these have the model of another collective: it is in the table only.
UNMODELLED = ("auto", "hierarchical", "native")
KEYS = ("ranks", "cores", "oversubscribed", "mpi", "cells")


def bench_section(path: str | Path, number: int = 1) -> Section:
    """Return the section of one benchmark's file, with a figure for each rank count: for `paceline report --bench FILE`.

    `number` distinguishes the names of the figures of several files. Other files are refused:

    >>> bench_section("nowhere.json")
    Traceback (most recent call last):
    paceline.errors.UsageError: cannot read nowhere.json: no such file or directory
    """
    result = _read(Path(path))
    blocks: list[Block] = []
    for place, job in enumerate(result["jobs"], 1):
        name = f"allreduce-{number}-{place}"
        blocks += [times(job, result["dtype"], name), _table(job, f"{name}-values")]
    where = result.get("environment", {}).get("processor", "an unknown processor")
    return Section(title="Allreduce benchmark", blocks=tuple(blocks), note=f"{result['dtype']}, on {where}")


def _read(path: Path) -> dict[str, Any]:
    found = read_json(path)
    good = isinstance(found, dict) and found.get("benchmark") == "allreduce" and "dtype" in found
    if not good or not all(key in job for job in found.get("jobs", [{}]) for key in KEYS):
        raise UsageError(f"{path} is not a result of `paceline bench allreduce --json`")
    result: dict[str, Any] = found
    return result


def times(job: dict[str, Any], dtype: str, name: str) -> Lines:
    """Return the time of each collective against the size, with the model's time."""
    curves = []
    for algorithm in dict.fromkeys(cell["algorithm"] for cell in job["cells"]):
        cells = sorted(
            (cell for cell in job["cells"] if cell["algorithm"] == algorithm), key=lambda cell: cell["size"]
        )
        x = tuple(float(cell["size"]) for cell in cells)
        curves.append(
            Curve(
                label="native (MPI's own)" if algorithm == "native" else algorithm,
                strategy=algorithm,
                x=x,
                y=tuple(1e6 * cell["median"] for cell in cells),
                low=tuple(1e6 * cell["p10"] for cell in cells),
                high=tuple(1e6 * cell["p90"] for cell in cells),
                oversubscribed=tuple(bool(job["oversubscribed"]) for _ in cells),
                notes=tuple("" if cell["right"] else "wrong sum" for cell in cells),
            )
        )
        if algorithm not in UNMODELLED and all(cell["model"] is not None for cell in cells):
            y = tuple(1e6 * cell["model"] for cell in cells)
            curves.append(Curve(label=f"{algorithm}: model", strategy=algorithm, x=x, y=y, origin="theory"))
    crowded = " More ranks than cores: the times say little." if job["oversubscribed"] else ""
    return Lines(
        name=name,
        title=f"Allreduce of {dtype} on {job['ranks']} ranks",
        caption=f"{job['cores']} cores, {job['mpi']}. {CAPTION}{crowded}",
        x=Axis(
            label="array size",
            log=True,
            sizes=True,
            ticks=tuple(sorted({x for c in curves for x in c.x})),
        ),
        y=Axis(label="time (us)", log=True),
        curves=tuple(curves),
    )


def bandwidths(job: dict[str, Any], dtype: str, name: str) -> Lines:
    """Return the bus bandwidth of each collective against the size."""
    figure = times(job, dtype, name)
    rates = {(cell["algorithm"], float(cell["size"])): 1e-9 * cell["busbw"] for cell in job["cells"]}
    curves = (
        replace(curve, y=tuple(rates[curve.strategy, x] for x in curve.x), low=None, high=None)
        for curve in figure.curves
        if curve.origin == "measured"
    )
    return replace(figure, y=Axis(label="bus bandwidth (GB/s)", bounds=(0.0, None)), curves=tuple(curves))


def _table(job: dict[str, Any], name: str) -> Table:
    return Table(
        name=name,
        title=f"Allreduce on {job['ranks']} ranks",
        columns=(
            Column(name="size"),
            Column(name="algorithm"),
            Column(name="median (us)", kind="number"),
            Column(name="p10 (us)", kind="number"),
            Column(name="p90 (us)", kind="number"),
            Column(name="model (us)", kind="number"),
            Column(name="bus bandwidth (GB/s)", kind="number"),
            Column(name="bytes of the busiest rank", kind="count"),
            Column(name="formula (bytes)", kind="count"),
            Column(name="messages", kind="count"),
            Column(name="formula (messages)", kind="count"),
        ),
        rows=tuple(_line(cell) for cell in job["cells"]),
        caption="Bus bandwidth: size / time * 2 (p - 1) / p. Bytes and messages: counted, and by the formula.",
        folded=True,
    )


def _line(cell: dict[str, Any]) -> tuple[Value, ...]:
    formula = cell["formula"]
    sent, expected = _most(cell["sent"]), (None, None) if formula is None else _most(formula)
    return (
        size(cell["size"]),
        cell["algorithm"],
        *(1e6 * cell[key] for key in ("median", "p10", "p90")),
        None if cell["model"] is None else 1e6 * cell["model"],
        1e-9 * cell["busbw"],
        sent[1],
        expected[1],
        sent[0],
        expected[0],
    )


def _most(pairs: list[list[int]]) -> tuple[int, int]:
    """Return the messages and bytes of the rank with the most of each."""
    return max(pair[0] for pair in pairs), max(pair[1] for pair in pairs)
