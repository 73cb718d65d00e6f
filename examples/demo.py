"""What `make demo` runs: MNIST under the main strategies on this machine, and a report. About a minute on 2 cores."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

RUNS = Path("runs/demo")
REPORT = Path("runs/demo/report.html")

SMALL = shlex.split("--data mnist --model mlp:128,64 --lr 1.6 --batch 16 --draws 632 --epochs 5")
LARGE = shlex.split(
    "--data mnist --model mlp:256,128,activation=relu,loss=cross-entropy --lr 0.2 --batch 512 --epochs 5"
)
CONVOLUTION = shlex.split("--data mnist --model cnn --lr 0.1 --batch 64 --draws 300 --epochs 1")
COLLECTIVES = ("naive", "ring", "recursive-doubling", "rabenseifner", "native", "shared-memory")


def train(*arguments: str) -> None:
    command = [sys.executable, "-m", "paceline", "train", *arguments, "--runs", str(RUNS), "--quiet"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(done.returncode)
    print(done.stdout.splitlines()[0], flush=True)


def main() -> None:
    if RUNS.exists():
        shutil.rmtree(RUNS)
    ranks = str(max(2, min(4, len(os.sched_getaffinity(0)))))
    for problem, collectives in (
        (SMALL, COLLECTIVES),
        (LARGE, ("ring", "native", "shared-memory")),
        (CONVOLUTION, ("native", "shared-memory")),
    ):
        print("\npaceline train", *problem, flush=True)
        train(*problem, "--strategy", "serial", "--threads", "1")
        for name in collectives:
            train(*problem, "--strategy", f"sync:allreduce={name}", "-n", ranks, "--threads", "1")
    made = subprocess.run([sys.executable, "-m", "paceline", "report", str(RUNS), "-o", str(REPORT)])
    if made.returncode == 0:
        print(f"open it in a browser: {REPORT.resolve().as_uri()}")
    sys.exit(made.returncode)


if __name__ == "__main__":
    main()
