"""Keeps what a study found: its report, tables and figures, and of every run the record but for its steps.

    paceline study studies/sync-async.toml
    python studies/keep.py studies/sync-async.toml runs/sync-async

writes them to studies/results/sync-async, in the place of what was there.
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

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path, metavar="FILE.toml")
    parser.add_argument(
        "runs", type=Path, metavar="RUNS", help="the study's folder of runs, all of them done"
    )
    asked = parser.parse_args()
    if not asked.study.is_file():
        parser.error(f"no such study: {asked.study}")
    said = paceline("study", asked.study, "--runs", asked.runs, "--dry-run")
    if " 0 failed, 0 missing" not in said:
        parser.error(f"{asked.runs} has not all of the study: {said.splitlines()[-1]}")
    runs, cells = find_runs([asked.runs]), read(asked.study).cells("mpi")
    if len(runs) != len(cells):
        parser.error(
            f"{asked.runs} has {len(runs)} records, the study {len(cells)} cells: keep others elsewhere"
        )
    out, new = RESULTS / asked.study.stem, RESULTS / f".{asked.study.stem}"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    paceline("study", asked.study, "--runs", asked.runs, "-o", new / "report.html")
    paceline("report", asked.runs, "-o", new / "report.md", "--tables", new / "tables")
    lines = [json.dumps(kept(run)) for run in sorted(runs, key=lambda run: run.folder.name)]
    (new / "runs.jsonl").write_text("\n".join(lines) + "\n")
    shutil.rmtree(out, ignore_errors=True)
    new.rename(out)


def kept(run: Run) -> dict[str, Any]:
    """A run's record in one object: all but its tables of steps and its model."""
    return {
        "run": run.folder.name,
        "config": run.config,
        "environment": run.environment,
        "epochs": run.epochs,
        "summary": run.summary,
    }


def paceline(*words: str | Path) -> str:
    """What one of paceline's commands says."""
    command = [sys.executable, "-m", "paceline", *map(str, words)]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


if __name__ == "__main__":
    main()
