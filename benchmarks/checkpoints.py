"""What checkpoints and failures cost: throughput, the length of a stop, and the time that survivors of a dead rank need.

    python benchmarks/checkpoints.py --ranks 8 -o benchmarks/results/checkpoints-16-cores.json

Throughput: the reference CNN on `--ranks` ranks, with a checkpoint every 30 s and without, in turns. Stops: a network of
about 10^8 parameters, with plain SGD and with Adam (three vectors). Survivors: `kill -9` of a rank of sync, a few times.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from where import where

TRAIN = [sys.executable, "-m", "paceline", "train", "--quiet", "--data", "mnist"]


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())  # type: ignore[no-any-return]


def train(folder: Path, *words: str) -> tuple[float, dict[str, Any]]:
    """Return the seconds from the first to the last step, with the stops for checkpoints, and the summary."""
    subprocess.run([*TRAIN, "--runs", str(folder.parent), "--name", folder.name, *words], check=True)
    found = summary(folder)
    return found["train_seconds"] + (found.get("checkpoints") or {}).get("seconds", 0.0), found


def throughput(folder: Path, ranks: int, draws: int, repeats: int) -> dict[str, Any]:
    """Compare runs of the CNN with and without checkpoints, in turns."""
    seconds: dict[str, list[float]] = {"never": [], "30s": []}
    saved = []
    for turn in range(repeats):
        for every in seconds:
            words = [
                "--model",
                "cnn",
                "--strategy",
                "sync",
                "--epochs",
                "1",
                "--draws",
                str(draws),
                "-n",
                str(ranks),
            ]
            took, found = train(
                folder / f"cnn-{every}-{turn}", *words, "--batch", "256", "--checkpoint-every", every
            )
            seconds[every].append(took)
            if every == "30s":
                saved.append(found["checkpoints"]["saved"])
    lost = statistics.median(a / b - 1 for a, b in zip(seconds["30s"], seconds["never"], strict=True))
    print(
        f"reference CNN, {ranks} ranks, checkpoint every 30 s: {100 * lost:+.2f} % time; {seconds}, saved {saved}"
    )
    return {"seconds": seconds, "saved": saved, "lost": lost}


def stops(folder: Path) -> list[dict[str, Any]]:
    """Measure how long training stops for a checkpoint of 10^8 parameters."""
    rows = []
    for update in ("sgd", "adam"):
        words = ["--model", "mlp:10000,9000", "--strategy", "serial", "--update", update, "--batch", "16"]
        _, found = train(
            folder / f"stop-{update}",
            *words,
            "--epochs",
            "1",
            "--draws",
            "24",
            "--checkpoint-every",
            "4 steps",
        )
        each = found["checkpoints"]["seconds"] / max(1, found["checkpoints"]["saved"])
        rows.append(
            {"update": update, "parameters": found["parameters"], "seconds": each, **found["checkpoints"]}
        )
        print(f"{found['parameters']:,} parameters, {update}: {each:.3f} s a stop, {found['checkpoints']}")
    return rows


def survivors(folder: Path, ranks: int, repeats: int) -> list[dict[str, float]]:
    """Kill a rank and measure how long the others need to notice it and to train on."""
    rows = []
    for turn in range(repeats):
        run = folder / f"dead-{turn}"
        words = [
            *TRAIN,
            "--runs",
            str(folder),
            "--name",
            run.name,
            "--strategy",
            "sync:allreduce=ring",
            "-n",
            str(ranks),
        ]
        job = subprocess.Popen([*words, "--epochs", "40", "--tolerate-failures"], stdout=subprocess.DEVNULL)
        while not (run / "epochs.jsonl").exists() and job.poll() is None:
            time.sleep(0.05)
        victim = 1 + turn % (ranks - 1)
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words_of = (process / "cmdline").read_bytes()
                variables = (process / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if (
                f"--name={run.name}".encode() in words_of
                and f"OMPI_COMM_WORLD_RANK={victim}".encode() in variables
            ):
                killed = time.time()
                os.kill(int(process.name), signal.SIGKILL)
        if job.wait() != 0:
            raise SystemExit(f"the run did not survive: {run}")
        failure = summary(run)["findings"]["failures"][0]
        rows.append({"notice": failure["noticed"] - killed, "go_on": failure["seconds"]})
        noticed, went_on = rows[-1].values()
        print(
            f"rank {victim} of {ranks} killed: noticed after {noticed:.3f} s, training {went_on:.3f} s later"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--draws", type=int, default=4000, help="steps of the CNN in a run")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("-o", type=Path, help="write the results to this file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = {
            **where(),
            "survivors": survivors(folder, args.ranks, 3),
            "stops": stops(folder),
            "throughput": throughput(folder, args.ranks, args.draws, args.repeats),
        }
    if args.o is not None:
        args.o.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
