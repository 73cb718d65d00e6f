"""Keep the results of a study: its report, tables and figures, and the record of every run without its steps.

    paceline study studies/sync-async.toml
    python studies/keep.py studies/sync-async.toml runs/sync-async

writes them to results/sync-async beside the study file and replaces what was there. Without runs,

    python studies/keep.py studies/sync-async.toml

writes report, tables and figures again from the records that were kept: all but what needs the steps.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from paceline.files import write_json
from paceline.record import Run, find_runs
from paceline.record.schema import TABLES
from paceline.study.file import read
from paceline.study.folder import STUDY

RECORDS = "runs.jsonl"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path, metavar="FILE.toml")
    parser.add_argument(
        "runs", type=Path, nargs="?", metavar="RUNS", help="the study's folder of runs, all complete"
    )
    args = parser.parse_args()
    if not args.study.is_file():
        parser.error(f"no such study: {args.study}")
    results = args.study.parent / "results"
    out, new = results / args.study.stem, results / f".{args.study.stem}"
    if args.runs is None and not (out / RECORDS).is_file():
        parser.error(f"{out} has no {RECORDS}: give the study's folder of runs")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    if args.runs is None:
        shutil.copy(out / RECORDS, new)
        with tempfile.TemporaryDirectory() as runs:
            restore((out / RECORDS).read_text().splitlines(), Path(runs))
            write_json(Path(runs) / STUDY, read(args.study).as_json())
            write_report(Path(runs), new)
    else:
        check(parser, args.study, args.runs)
        paceline("study", args.study, "--runs", args.runs, "-o", new / "report.html")
        runs = sorted(find_runs([args.runs]), key=lambda run: run.folder.name)
        (new / RECORDS).write_text("".join(f"{json.dumps(record_of(run))}\n" for run in runs))
        write_report(args.runs, new)
    shutil.rmtree(out, ignore_errors=True)
    new.rename(out)


def check(parser: argparse.ArgumentParser, study: Path, folder: Path) -> None:
    """End the program with one line if the folder does not have exactly the runs of the study."""
    plan = paceline("study", study, "--runs", folder, "--dry-run")
    if " 0 failed, 0 missing" not in plan:
        parser.error(f"{folder} lacks runs of the study: {plan.splitlines()[-1]}")
    runs, cells = find_runs([folder]), read(study).cells("mpi")
    if len(runs) != len(cells):
        parser.error(
            f"{folder} has {len(runs)} records, but the study has {len(cells)} cells: move other runs away"
        )


def write_report(runs: Path, out: Path) -> None:
    """Write the report in both formats, with its tables."""
    paceline("report", runs, "-o", out / "report.html", "-o", out / "report.md", "--tables", out / "tables")


def restore(lines: list[str], folder: Path) -> None:
    """Make folders of runs from kept records; their steps, and other tables of a row per step, are empty."""
    for line in lines:
        record = json.loads(line)
        run = folder / record["run"]
        run.mkdir()
        for part in ("config", "environment", "summary"):
            write_json(run / f"{part}.json", record[part])
        (run / "epochs.jsonl").write_text("".join(f"{json.dumps(epoch)}\n" for epoch in record["epochs"]))
        for name, columns in TABLES.items():
            np.savez(run / f"{name}.npz", **{column.strip("()"): np.zeros(0, int) for column in columns})


def record_of(run: Run) -> dict[str, Any]:
    """Return a run's record as one object, without its steps and its model."""
    return {
        "run": run.folder.name,
        "config": run.config,
        "environment": run.environment,
        "epochs": run.epochs,
        "summary": run.summary,
    }


def paceline(*words: str | Path) -> str:
    """Run one of paceline's commands; return its output."""
    command = [sys.executable, "-m", "paceline", *map(str, words)]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


if __name__ == "__main__":
    main()
