"""Memory of a job on MNIST, by PSS (pages that ranks share are counted once), against bare interpreters.

python benchmarks/memory.py [--ranks 16] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def pss(process: int | str = "self") -> float:
    """A process's proportional set size, in MB."""
    text = Path(f"/proc/{process}/smaps_rollup").read_text()
    return int(re.search(r"^Pss: +(\d+) kB", text, re.MULTILINE).group(1)) * 1024 / 1e6


def train_and_report(me: Any) -> None:
    """Train synchronously; then every rank says what it holds, all at the same time."""
    import numpy as np

    from paceline.strategies.sync import Sync

    Sync().train(me)
    me.comm.Barrier()
    mine = np.array([[pss()]])
    me.comm.Barrier()
    every = me.control.gather(mine)
    if me.rank == 0:
        Path(os.environ["MEMORY_RESULT"]).write_text(json.dumps([float(one[0, 0]) for one in every]))


def bare(ranks: int) -> list[float]:
    """The same number of interpreters that do nothing."""
    started = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
               for _ in range(ranks)]  # fmt: skip
    while any(int(Path(f"/proc/{p.pid}/stat").read_text().split()[21]) == 0 for p in started):
        pass
    subprocess.run(["sleep", "1"], check=True)
    sizes = [pss(p.pid) for p in started]
    for process in started:
        process.kill()
        process.wait()
    return sizes


def main() -> None:
    from where import where

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "paceline", "train", "--strategy", "memory:watched", "-n", str(args.ranks),
                   "--batch", str(64 * args.ranks), "--epochs", "2", "--quiet", "--json", "--runs", folder]  # fmt: skip
        environment = {**os.environ, "MEMORY_RESULT": str(result)}
        subprocess.run(command, cwd=HERE, env=environment, check=True, stdout=subprocess.DEVNULL)
        job = json.loads(result.read_text())
    idle = bare(args.ranks)
    grown = statistics.fmean(job) - statistics.fmean(idle)
    print(f"{args.ranks} ranks: {sum(job):.0f} MB in all, {statistics.fmean(job):.1f} MB a rank")
    print(
        f"{args.ranks} bare interpreters: {statistics.fmean(idle):.1f} MB each; grown by {grown:.1f} MB a rank"
    )
    if args.json:
        result = {**where(), "ranks_mb": job, "interpreters_mb": idle}
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
