"""How long `paceline train -n P --epochs 0` takes from start to end: everything that is not training.

python benchmarks/start.py [--ranks 4] [--repeats 9] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from where import where


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    seconds = []
    with tempfile.TemporaryDirectory() as runs:
        command = [
            sys.executable,
            "-m",
            "paceline",
            "train",
            "-n",
            str(args.ranks),
            "--epochs",
            "0",
            "--quiet",
            "--runs",
            runs,
        ]
        for turn in range(args.repeats + 1):
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            if turn:  # the first one unpacks the data and compiles the modules
                seconds.append(time.perf_counter() - start)
    print(f"paceline train -n {args.ranks} --epochs 0: median {statistics.median(seconds):.2f} s, "
          f"{min(seconds):.2f} to {max(seconds):.2f} s in {args.repeats} runs")  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps({**where(), "seconds": seconds}, indent=2) + "\n")


if __name__ == "__main__":
    main()
