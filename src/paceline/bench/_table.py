"""The benchmark's result as text."""

from __future__ import annotations

from typing import Any

from paceline.bench.question import spell

HEADINGS = (
    *("size", "algorithm", "median us", "p10", "p90", "algbw GB/s", "busbw GB/s", "model us", "calls"),
    *("messages", "formula", "bytes", "formula", "result"),
)


def table(result: dict[str, Any]) -> str:
    """One block of lines for each number of ranks."""
    return "\n\n".join(_block(job, result["dtype"]) for job in result["jobs"])


def _block(job: dict[str, Any], dtype: str) -> str:
    machine = job["machine"]
    crowded = "; more ranks than cores: the times say little" if job["oversubscribed"] else ""
    head = (
        f"{job['ranks']} ranks on {job['cores']} cores, {dtype}, {job['mpi']}{crowded}\n"
        f"a call {1e6 * machine['call']:.1f} us, alpha {1e6 * machine['alpha']:.2f} us a message, "
        f"beta {1e9 * machine['beta']:.3f} ns a byte sent, "
        f"gamma {1e9 * machine['gamma']:.3f} ns a byte combined"
    )
    rows = [HEADINGS, *(_row(cell) for cell in job["cells"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = [head]
    size = ""
    for row in rows:
        if row[0] != size and row is not rows[0]:
            lines.append("")
        shown = ("" if row[0] == size else row[0], *row[1:])
        size = row[0]
        cells = [
            text.ljust(width) if column == 1 else text.rjust(width)
            for column, (text, width) in enumerate(zip(shown, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _row(cell: dict[str, Any]) -> tuple[str, ...]:
    messages, sent = (max(pair[k] for pair in cell["sent"]) for k in (0, 1))
    formula = cell["formula"]
    verdict = "wrong" if not cell["right"] else "unlike formula" if cell["as_formula"] is False else "right"
    return (
        spell(cell["size"]),
        cell["algorithm"],
        *(f"{1e6 * cell[key]:.1f}" for key in ("median", "p10", "p90")),
        *(f"{1e-9 * cell[key]:.3f}" for key in ("algbw", "busbw")),
        "-" if cell["model"] is None else f"{1e6 * cell['model']:.1f}",
        str(len(cell["seconds"])),
        str(messages),
        "-" if formula is None else str(max(pair[0] for pair in formula)),
        str(sent),
        "-" if formula is None else str(max(pair[1] for pair in formula)),
        verdict,
    )
