#!/usr/bin/env python
"""Show that memory, descriptors and threads of every rank stay constant, however long a run takes.

    python tools/soak.py                              every strategy for 90 seconds, about 20 minutes in all
    python tools/soak.py serial sync --seconds 20
    python tools/soak.py --source /path/to/src        another version of paceline

Each strategy takes tiny steps on a tiny network, so that what a step leaves behind shows: steps per second matter here, not
accuracy. Checkpoints are saved meanwhile. After a warm-up of a third of the time, the memory of each rank is sampled from
/proc: its own (RssAnon) and shared memory (RssShmem). Growth is the difference between the means of the last and the first
quarter of the samples, divided by the steps that the rank took between them. A strategy fails if a rank grew by more than
LIMIT bytes a step and by more than NOISE bytes in all, or if it has more descriptors or threads throughout the last quarter
than it had in the first.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

STRATEGIES = {
    "serial": 1, "sync": 2, "sync:allreduce=ring": 2, "sync:balance=true": 2, "main-worker": 2, "weight-average": 2,
    "local-sgd": 2, "elastic": 2, "psgd": 2, "gossip": 2, "hogwild": 2, "hogwild:backend=torch": 2, "parameter-server": 2,
    "parameter-server:masters=2": 3,
}  # fmt: skip
"""The strategies, and the number of ranks of each."""
LIMIT, NOISE = 8.0, 512 << 10
DATA, MODEL = "synthetic:samples=4000,features=4,classes=3", "mlp:8"
EVERY = 0.25
ROW = 72  # bytes of a step in steps/rank-R.rows
END = 60


@dataclass
class Rank:
    """The samples of one process."""

    times: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    def sample(self, pid: int, now: float) -> None:
        """Read what the process uses now."""
        proc = Path("/proc") / str(pid)
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        kilobytes = sum(int(status[name].split()[0]) for name in ("RssAnon", "RssShmem"))
        descriptors = sum(1 for _ in (proc / "fd").iterdir())
        self.times.append(now)
        self.memory.append(kilobytes << 10)
        self.descriptors.append(descriptors)
        self.threads.append(int(status["Threads"]))

    def after(self, start: float) -> Rank:
        """Return the samples from a time on."""
        first = next((n for n, time in enumerate(self.times) if time >= start), len(self.times))
        return Rank(self.times[first:], self.memory[first:], self.descriptors[first:], self.threads[first:])

    @property
    def grown(self) -> float:
        """The bytes by which its memory grew between the middle of the first quarter and that of the last."""
        quarter = max(1, len(self.memory) // 4)
        return (sum(self.memory[-quarter:]) - sum(self.memory[:quarter])) / quarter

    def more(self, what: str) -> int:
        """Return how many more of `what` it always had in the last quarter than at least once in the first.

        Those that come and go, such as the thread that writes a checkpoint, do not count.
        """
        values = getattr(self, what)
        quarter = max(1, len(values) // 4)
        return max(0, min(values[-quarter:]) - min(values[:quarter]))


def descendants(pid: int) -> Iterator[int]:
    """Iterate over a process and all that it started."""
    yield pid
    with contextlib.suppress(OSError):
        for task in (Path("/proc") / str(pid) / "task").iterdir():
            for child in (task / "children").read_text().split():
                yield from descendants(int(child))


def is_rank(pid: int, ranks: int) -> bool:
    """Return True if a process trains; with one rank that is the command itself."""
    proc = Path("/proc") / str(pid)
    try:
        words = (proc / "cmdline").read_bytes().decode(errors="replace").split("\0")
        if "python" not in (proc / "exe").readlink().name:
            return False
    except OSError:
        return False
    if ranks == 1:
        return "paceline" in words
    ours = words[1:4] == ["-m", "paceline", "train"] and any("--expect-ranks" in word for word in words)
    return ours or "--multiprocessing-fork" in words


def steps_of(runs: Path) -> float:
    """Return the steps of rank 0 so far: by its file, or else by the lines of epochs."""
    for rows in runs.glob("*/steps/rank-*.rows"):
        return max(path.stat().st_size for path in rows.parent.iterdir()) / ROW
    for lines in runs.glob("*/epochs.jsonl"):
        text = lines.read_text().splitlines()
        return float(text[-1].split('"step": ')[1].split(",")[0]) if text else 0.0
    return 0.0


def soak(strategy: str, ranks: int, seconds: float, source: Path | None, extra: list[str]) -> list[str]:
    """Run one strategy, print its row of the table, and return what is wrong."""
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    command = [
        sys.executable, "-m", "paceline", "train", f"--data={DATA}", f"--model={MODEL}", f"--strategy={strategy}",
        "--batch=2", "--lr=0.0001", "--epochs=100000", "--on-divergence=ignore", "--quiet", f"--runs={folder}",
        *extra, *(["-n", str(ranks)] if ranks > 1 else []),
    ]  # fmt: skip
    environment = {**os.environ, **({} if source is None else {"PYTHONPATH": str(source)})}
    found: dict[int, Rank] = {}
    steps: list[tuple[float, float]] = []
    with tempfile.TemporaryFile() as output:
        job = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            start = None
            while job.poll() is None and (start is None or time.monotonic() < start + seconds):
                time.sleep(EVERY)
                now = time.monotonic()
                with contextlib.suppress(OSError, ValueError, IndexError):
                    steps.append((now, steps_of(folder)))
                if start is None:
                    start = now if steps and steps[-1][1] else None
                    continue
                for pid in descendants(job.pid):
                    if is_rank(pid, ranks):
                        with contextlib.suppress(OSError, KeyError):
                            found.setdefault(pid, Rank()).sample(pid, now)
            ended = job.poll()
            if ended is None:
                job.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.wait(END)
        finally:
            if job.poll() is None:
                for pid in reversed(list(descendants(job.pid))):
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                job.wait()
        output.seek(0)
        last = output.read().decode(errors="replace").strip().splitlines()[-3:]
    shutil.rmtree(folder, ignore_errors=True)
    if ended is not None or start is None:
        return [f"{strategy} ended by itself with status {ended}: {' / '.join(last)}"]
    return judge(strategy, found, steps, start + seconds / 3)


def judge(strategy: str, found: dict[int, Rank], steps: list[tuple[float, float]], warm: float) -> list[str]:
    """Print a row of the table; return what is wrong."""
    wrong = []
    usual = max((len(rank.times) for rank in found.values()), default=0)
    samples = [rank.after(warm) for rank in found.values() if len(rank.times) > usual / 2]
    samples = [rank for rank in samples if len(rank.times) >= 8]
    if not samples:
        return [f"{strategy}: no rank was seen for long enough; give more --seconds"]
    later = [count for when, count in steps if when >= warm]
    taken = max(0.0, (later[-1] - later[0]) * 3 / 4) if later else 0.0
    worst = max(samples, key=lambda rank: rank.grown)
    slope = worst.grown / taken if taken else float("inf")
    descriptors, threads = (max(rank.more(what) for rank in samples) for what in ("descriptors", "threads"))
    if taken < 1:
        wrong.append(f"{strategy}: the steps could not be counted")
    if worst.grown > NOISE and slope > LIMIT:
        wrong.append(f"{strategy}: memory grew by {slope:.1f} bytes a step ({worst.grown / 1e6:.2f} MB)")
    if descriptors:
        wrong.append(f"{strategy}: a rank opened {descriptors} more descriptors")
    if threads:
        wrong.append(f"{strategy}: a rank started {threads} more threads")
    largest = max(rank.memory[-1] for rank in samples)
    print(
        f"{strategy:28} {len(samples):5} {taken:11,.0f} {largest / 1e6:9.1f} {worst.grown / 1e6:+10.2f} {slope:+9.2f} "
        f"{max(rank.descriptors[-1] for rank in samples):6} (+{descriptors}) {max(rank.threads[-1] for rank in samples):5} "
        f"(+{threads})  {'GROWS' if wrong else 'constant'}",
        flush=True,
    )
    return wrong


def main() -> int:
    """Soak the strategies; return 1 if one of them grows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("strategies", nargs="*", metavar="STRATEGY", help="those to soak (default: all)")
    parser.add_argument("--seconds", type=float, default=90, help="for each strategy (default: 90)")
    parser.add_argument("--ranks", type=int, help="ranks of each strategy but serial (default: 2 or 3)")
    parser.add_argument("--source", type=Path, help="the source of another version of paceline")
    parser.add_argument(
        "--checkpoint-every", default="5s", help="as for paceline train; an empty text leaves it out"
    )
    args = parser.parse_args()
    extra = [f"--checkpoint-every={args.checkpoint_every}"] if args.checkpoint_every else []
    print(
        f"{'strategy':28} {'ranks':>5} {'steps':>11} {'memory MB':>9} {'growth MB':>10} {'B a step':>9} "
        f"{'descriptors':>11} {'threads':>10}"
    )
    wrong: list[str] = []
    for strategy in args.strategies or STRATEGIES:
        ranks = STRATEGIES.get(strategy, 2)
        ranks = args.ranks if args.ranks is not None and ranks > 1 else ranks
        wrong += soak(strategy, ranks, args.seconds, args.source, extra)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
