"""Keep the results of a study: its report, tables and figures, and the record of every run without its steps.

    paceline study studies/sync-async.toml
    python studies/keep.py studies/sync-async.toml runs/sync-async

writes them to results/sync-async beside the study file and replaces what was there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from paceline.record import Run, find_runs
from paceline.study.file import read


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path, metavar="FILE.toml")
    parser.add_argument("runs", type=Path, metavar="RUNS", help="the study's folder of runs, all complete")
    args = parser.parse_args()
    if not args.study.is_file():
        parser.error(f"no such study: {args.study}")
    plan = paceline("study", args.study, "--runs", args.runs, "--dry-run")
    if " 0 failed, 0 missing" not in plan:
        parser.error(f"{args.runs} lacks runs of the study: {plan.splitlines()[-1]}")
    runs, cells = find_runs([args.runs]), read(args.study).cells("mpi")
    if len(runs) != len(cells):
        parser.error(
            f"{args.runs} has {len(runs)} records, but the study has {len(cells)} cells: move other runs away"
        )
    results = args.study.parent / "results"
    out, new = results / args.study.stem, results / f".{args.study.stem}"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    paceline("study", args.study, "--runs", args.runs, "-o", new / "report.html")
    paceline("report", args.runs, "-o", new / "report.md", "--tables", new / "tables")
    lines = [json.dumps(record_of(run)) for run in sorted(runs, key=lambda run: run.folder.name)]
    (new / "runs.jsonl").write_text("\n".join(lines) + "\n")
    shutil.rmtree(out, ignore_errors=True)
    new.rename(out)


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
