"""What `make demo` runs: MNIST under the main strategies on this machine, and a report. About a minute on 2 cores.

Three networks: a small one, with which messages cost more than they bring; one with a larger batch; a convolutional one.
The small one also goes through six workers of a parameter server: with gradients applied as they come, which diverges, and
with the default rule, which holds. The report shows how stale the gradients were.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

RUNS = Path("runs/demo")
REPORT = Path("runs/demo/report.html")
DIVERGED = 3  # the exit status of a run that was stopped because it had diverged: one of the things to show

SMALL = "--data mnist --model mlp:128,64 --lr 1.6 --batch 16 --draws 632 --epochs 5"
LARGE = "--data mnist --model mlp:256,128,activation=relu,loss=cross-entropy --lr 0.2 --batch 512 --epochs 3"
CONVOLUTION = "--data mnist --model cnn --lr 0.1 --batch 64 --draws 300 --epochs 1"
SERVED = 7  # a master and six workers, also where there are fewer cores
STRATEGIES = {
    SMALL: (
        "sync:allreduce=native",
        "sync:allreduce=shared-memory",
        "weight-average",
        "local-sgd:every=16",
        "psgd",
        "hogwild",
        "parameter-server",
        "parameter-server:rule=plain",
    ),
    LARGE: ("sync:allreduce=ring", "sync:allreduce=shared-memory", "local-sgd:every=16"),
    CONVOLUTION: ("sync:allreduce=shared-memory", "hogwild"),
}


def train(*arguments: str) -> None:
    command = [
        sys.executable,
        "-m",
        "paceline",
        "train",
        *arguments,
        "--threads",
        "1",
        "--runs",
        str(RUNS),
        "--quiet",
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, DIVERGED):
        sys.exit(done.returncode)
    print(done.stdout.splitlines()[0], flush=True)


def main() -> None:
    if RUNS.exists():
        shutil.rmtree(RUNS)
    ranks = max(2, min(4, len(os.sched_getaffinity(0))))
    for problem, strategies in STRATEGIES.items():
        print("\npaceline train", problem, flush=True)
        train(*shlex.split(problem), "--strategy", "serial")
        for strategy in strategies:
            wanted = SERVED if strategy.startswith("parameter-server") else ranks
            train(*shlex.split(problem), "--strategy", strategy, "-n", str(wanted))
    made = subprocess.run([sys.executable, "-m", "paceline", "report", str(RUNS), "-o", str(REPORT)])
    if made.returncode == 0:
        print(f"open it in a browser: {REPORT.resolve().as_uri()}")
    sys.exit(made.returncode)


if __name__ == "__main__":
    main()
