"""`paceline bench`: measure the collectives on this machine."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline import names, text
from paceline.commands import add_hosts, parse_path, read_hosts
from paceline.errors import UsageError

if TYPE_CHECKING:
    from paceline.figures import Lines

EXAMPLES = """
examples:
  paceline bench allreduce -n 2,4,8
  paceline bench allreduce -n 4 --sizes 437544,16MiB --algorithms ring,native --plot ring.svg
"""
COLUMNS = """
columns: algbw = size / time, busbw = algbw * 2(p-1)/p, as nccl-tests defines them; messages and bytes are
those that the busiest rank sent, counted and by the formula (for native: calls of MPI, and bytes handed to
it); model is alpha * rounds + beta * bytes + gamma * bytes combined.
"""
HEADINGS = (
    *("size", "algorithm", "median us", "p10", "p90", "algbw GB/s", "busbw GB/s", "model us", "calls"),
    *("messages", "formula", "bytes", "formula", "result"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to measure, and where the result goes."""
    kinds = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    about = "time every collective at every size, and compare it with the theory and with MPI's own Allreduce"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser = kinds.add_parser("allreduce", help=about, description=f"{about[0].upper()}{about[1:]}.")
    parser.epilog = EXAMPLES + COLUMNS
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "-n",
        dest="ranks",
        metavar="LIST",
        help="numbers of ranks (default: 2,4,8, or with --hosts as many as they take)",
    )
    add_hosts(parser)
    parser.add_argument(
        "--sizes",
        default="1KiB..64MiB",
        metavar="LIST",
        help="a list (4KiB,1MiB) or a range (1KiB..64MiB) of bytes (default: 1KiB..64MiB)",
    )
    parser.add_argument(
        "--algorithms", metavar="LIST", help="collectives, separated by commas (default: all)"
    )
    parser.add_argument("--dtype", default="float32", help="type of the numbers (default: float32)")
    parser.add_argument(
        "--repeats", type=int, default=100, metavar="N", help="maximum number of calls of each (default: 100)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=0.3,
        metavar="S",
        help="maximum seconds for the calls of each (default: 0.3)",
    )
    parser.add_argument("--json", type=parse_path, metavar="FILE", help="write every measurement to FILE")
    parser.add_argument("--plot", type=parse_path, metavar="FILE", help="draw the result: .png, .svg or .pdf")


def main(args: argparse.Namespace) -> int:
    """Measure; print the table; return 1 if a sum was wrong or a count differs from the formula."""
    from paceline.bench import Question, read_ranks, read_sizes, run
    from paceline.figures.drawing import check_format
    from paceline.files import check_place, write_json
    from paceline.launch import allocated_nodes, check_hosts, world

    if (here := world()) is not None:  # each rank of that job would start a benchmark of its own
        if here.rank != 0:
            return 2
        raise UsageError(f"bench starts its ranks itself: -n {here.size}, not {here.launcher}")
    hosts = read_hosts(args, simulated=False)
    ranks = read_ranks("2,4,8" if args.ranks is None else str(args.ranks))
    several = len(hosts) > 1 or (not hosts and allocated_nodes() > 1)
    every = [name for name in names.names("collectives") if not several or name != "shared-memory"]
    algorithms = every if args.algorithms is None else args.algorithms.split(",")
    question = Question(
        ranks=ranks,
        sizes=read_sizes(args.sizes),
        algorithms=tuple(dict.fromkeys(name.strip() for name in algorithms)),
        dtype=args.dtype,
        repeats=args.repeats,
        seconds=args.seconds,
    )
    if args.plot is not None:
        check_format(args.plot)
    for path in filter(None, (args.json, args.plot)):
        check_place(path)
    result = run(question, check_hosts(hosts, ranks=max(ranks)) if hosts else ())
    print(table(result))
    if args.json is not None:
        write_json(args.json, result)
    if args.plot is not None:
        draw(result, args.plot)
    cells = [cell for job in result["jobs"] for cell in job["cells"]]
    return 0 if all(cell["right"] and cell["as_formula"] is not False for cell in cells) else 1


def table(result: dict[str, Any]) -> str:
    """Return the result as text, with a table for each rank count."""
    return "\n\n".join(_block(job, result["dtype"]) for job in result["jobs"])


def _block(job: dict[str, Any], dtype: str) -> str:
    machine, nodes = job["machine"], len(job["nodes"]["cores"])
    several = f" of {text.count(nodes, 'node')}" if nodes > 1 else ""
    crowded = "; more ranks than cores: the times say little" if job["oversubscribed"] else ""
    head = (
        f"{text.count(job['ranks'], 'rank')} on {text.count(job['cores'], 'core')}{several}, {dtype}, "
        f"{job['mpi']}{crowded}\n"
        f"call {1e6 * machine['call']:.1f} us, alpha {1e6 * machine['alpha']:.2f} us per message, "
        f"beta {1e9 * machine['beta']:.3f} ns per byte sent, gamma {1e9 * machine['gamma']:.3f} ns per byte combined"
    )
    rows: list[tuple[str, ...]] = []
    size = ""
    for cell in job["cells"]:
        first, *others = _row(cell)
        rows += [()] if size and first != size else []
        rows.append(("" if first == size else first, *others))
        size = first
    return f"{head}\n{text.table(rows, HEADINGS, justify='rl')}"


def _row(cell: dict[str, Any]) -> tuple[str, ...]:
    messages, sent = (max(pair[k] for pair in cell["sent"]) for k in (0, 1))
    formula = cell["formula"]
    verdict = "wrong" if not cell["right"] else "unlike formula" if cell["as_formula"] is False else "right"
    return (
        text.size(cell["size"]),
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


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw time and bus bandwidth against the size, side by side, with a row for each rank count."""
    from paceline.figures import save
    from paceline.report.allreduce import bandwidths, times

    jobs, dtype = result["jobs"], result["dtype"]
    left = _with_one_scale([_add_title(job, times(job, dtype, "")) for job in jobs])
    right = _with_one_scale([replace(bandwidths(job, dtype, ""), title="") for job in jobs])
    title = f"Allreduce of {dtype}: median time with the 10th to 90th percentile, and bus bandwidth"
    save([list(row) for row in zip(left, right, strict=True)], [path], title=title, width=780.0)


def _add_title(job: dict[str, Any], figure: Lines) -> Lines:
    crowded = " (more ranks than cores)" if job["oversubscribed"] else ""
    title = f"{text.count(job['ranks'], 'rank')} on {text.count(job['cores'], 'core')}{crowded}"
    return replace(figure, title=title)


def _with_one_scale(column: list[Lines]) -> list[Lines]:
    """Give all figures of a column the same range of y."""
    values = [
        y for figure in column for c in figure.curves for y in (*c.y, *(c.low or ()), *(c.high or ())) if y
    ]
    low, high = column[0].y.bounds[0], 1.05 * max(values)
    bounds = (min(values) / 1.2, 1.2 * max(values)) if low is None else (low, high)
    return [replace(figure, y=replace(figure.y, bounds=bounds)) for figure in column]
