#!/usr/bin/env python
"""Kill, freeze and starve runs of every strategy at random moments: each must end well, or say why it cannot.

    python tools/chaos.py                                     everything: hours on a small machine
    python tools/chaos.py --strategies sync,gossip --simulated 20 --real 0 --freezes 0 --disk 0
    python tools/chaos.py --seconds 600                       as many cases as fit, the same number of every kind
    python tools/chaos.py --only sync/killed/7                one case again, with all that it printed

kinds of cases
  simulated   one or two simulated ranks die, at a random step or virtual time, with tolerate_failures
  killed      SIGKILL to a rank of `paceline train -n 3 --tolerate-failures`
  cut         SIGKILL to the launcher or to every process of a run that saves checkpoints, then `paceline resume`
  stopped     SIGTERM, SIGINT or SIGUSR1 to the launcher, then `paceline resume`
  frozen      SIGSTOP to a rank with --stall-timeout 3s: --on-stall abort, or checkpoint-abort and then `paceline resume`
  disk        the file system of the run is full from a random moment on, for ever or for a while (needs root)

what must hold
  ended       the expected exit status: 0 after deaths and full disks, 75 after a freeze, 128 + the signal after a request
              to stop; a message names the dead or frozen rank; `resume` ends with 0
  hung        the case ends within LIMIT seconds
  leaking     no process of the case is left, nothing in its /dev/shm (a private one, if root) or temporary folder, no
              temporary file in the folder of the run
  result      strategies that do the same as one process: the same test loss after a death (to LOSS, relatively: the sums
              are added up in another order), no sample of an epoch counted twice. Strategies in step, after
              `resume` with as many ranks: the parameters of an undisturbed run, bit for bit. Others: at least the lowest
              test accuracy of undisturbed runs with several seeds, less one percentage point. All epochs are in the
              history once. parameter-server: gradients applied = gradients acknowledged.

A case follows from its name STRATEGY/KIND/NUMBER and the seed; real cases depend on the machine's timing, too.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import logging
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

LIMIT = 300.0  # seconds, for a case on a busy machine
POINT = 0.01
LOSS = 1e-6  # in float64; in float32 the order of the sums alone changes the loss by a thousandth
SEEDS = 6  # of undisturbed simulated runs
RANKS = 4  # simulated
REAL = 3
EPOCHS, REAL_EPOCHS = 5, 15
DATA = "synthetic:samples=1200,classes=4,features=16,noise=1.0,test=0.6"
REAL_DATA = DATA.replace(
    "1200", "3000"
)  # real ranks are so fast that a moment of a shorter run is hard to hit
SETTINGS: dict[str, Any] = {"model": "mlp:16", "data": DATA, "batch": 8, "dtype": "float64"}
ADAM: dict[str, Any] = {"update": "adam", "lr": 0.05}
KINDS = ("simulated", "killed", "cut", "stopped", "frozen", "disk")
WORK = {
    "gradient": [[1, 50e-6], [64, 400e-6]],
    "factors": [[1, 40e-6], [64, 300e-6]],
    "part": [[1, 1e-6], [1_000_000, 80e-6]],
    "update": [[1, 1e-6], [100_000, 20e-6]],
    "rule": [[1, 2e-6], [100_000, 50e-6]],
    "serve": [[1, 20e-6]],
    "evaluate": [[1, 2e-6], [1000, 4e-4]],
}


@dataclass(frozen=True)
class Subject:
    """A strategy, and what may be expected of it."""

    strategy: str
    settings: dict[str, Any] = field(default_factory=lambda: ADAM)
    in_step: bool = True
    """Resumed on as many ranks, it ends with the same bits."""
    as_serial: bool = False
    """On any number of ranks it computes what one process computes."""
    masters: int = 0
    tells: bool = True
    """It writes the results of each epoch when that ends."""


SUBJECTS = {
    subject.strategy: subject
    for subject in (
        Subject("serial", as_serial=True),
        Subject("sync:allreduce=ring", as_serial=True),
        Subject("sync:allreduce=shared-memory", as_serial=True),
        Subject("sync:allreduce=native", as_serial=True),
        Subject("main-worker", {"lr": 1.0}, as_serial=True),
        Subject("weight-average"),
        Subject("local-sgd:every=4"),
        Subject("elastic:every=3"),
        Subject("psgd", in_step=False, tells=False),
        Subject("gossip", in_step=False),
        Subject("hogwild", in_step=False),
        Subject("parameter-server", {}, in_step=False, masters=1),
        Subject("parameter-server:masters=2", {}, in_step=False, masters=2),
    )
}


@dataclass
class Verdict:
    """What was wrong with a case, by column of the table; an empty one is good."""

    ended: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)
    leaking: list[str] = field(default_factory=list)
    result: list[str] = field(default_factory=list)
    struck: bool = False
    """True if something was disturbed before the end of the run."""
    note: str = ""
    """What happened, if it ended well."""
    output: str = ""

    @property
    def wrong(self) -> list[str]:
        columns = ("ended", "hung", "leaking", "result")
        return [f"{column}: {words}" for column in columns for words in getattr(self, column)]


COLUMNS = {"ended": "ended wrongly", "hung": "hung", "leaking": "leaking", "result": "wrong result"}


# ---- simulated deaths


@contextlib.contextmanager
def simulator() -> Iterator[Callable[..., Any]]:
    """Yield a function like `paceline.fit` for simulated runs of a strategy, with a cache of undisturbed ones."""
    from paceline import fit
    from paceline.machine import Costs
    from paceline.vmpi import Curves

    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        costs = Costs(
            work={kind: Curves.of({1: points}) for kind, points in WORK.items()}, processor="none", cores=64
        )
        costs.save(Path(name, "costs.json"))

        def run(subject: Subject, **more: Any) -> Any:
            given = {
                **SETTINGS, **subject.settings, "epochs": EPOCHS, "on": "sim", "ranks": RANKS, "quiet": True, "jitter": 0.2,
                "machine": str(Path(name, "costs.json")), "strategy": subject.strategy, "seed": 1, **more,
            }  # fmt: skip
            return fit(**given)

        run.undisturbed = cache(lambda subject, seed: run(SUBJECTS[subject], seed=seed, runs=None))  # type: ignore[attr-defined]
        yield run


def deaths(subject: Subject, whole: Any, r: random.Random) -> list[dict[str, Any]]:
    """Return one or two deaths: of any rank, at any step or virtual time."""
    seconds = sum(whole.seconds.values())
    steps = whole.steps if subject.as_serial else -(-whole.steps // (RANKS - subject.masters))

    def moment() -> dict[str, Any]:
        return r.choice(
            (
                lambda: {"step": r.randrange(steps)},
                lambda: {"step": r.choice((0, 1, steps - 2, steps - 1))},
                lambda: {"time": r.random() * seconds},
                lambda: {"time": r.random() * seconds},
                lambda: {"time": r.random() * 1e-4},
                lambda: {"time": seconds * (0.97 + 0.03 * r.random())},
            )
        )()

    first, second = r.sample(range(RANKS), 2)
    found = [{"rank": first, **moment()}]
    if r.random() < 0.4:
        then = moment()
        if r.random() < 0.5 and "time" in found[0]:  # while the others notice the first death, or recover
            then = {
                "time": found[0]["time"] + r.choice((0.0, 1e-3, 1e-3 + r.random() * 1e-3, r.random() * 4e-3))
            }
        found.append({"rank": second, **then})
    return found


def kill_simulated(subject: Subject, r: random.Random, run: Any) -> Verdict:
    """Let simulated ranks die."""
    from paceline.record import Run

    verdict = Verdict()
    whole = run.undisturbed(subject.strategy, 1)
    killed = deaths(subject, whole, r)
    with case_folder() as folder, captured() as said:
        script = folder / "faults.py"
        script.write_text(
            "".join(f"fail_at({', '.join(f'{k}={v!r}' for k, v in one.items())})\n" for one in killed)
        )
        verdict.note = "; ".join(script.read_text().split("\n")[:-1])
        try:
            left = run(subject, faults=str(script), runs=folder / "runs", tolerate_failures=True)
        except Exception as error:
            words = str(error).splitlines() or [""]
            verdict.ended.append(f"{type(error).__name__}: {words[0]}")
            verdict.output = traceback.format_exc()
            return verdict
        finally:
            verdict.output += said.getvalue()
        verdict.struck = bool(left.findings.get("failures"))
        verdict.leaking += leftovers(folder / "runs")
        check_deaths(verdict, left, [one["rank"] for one in killed])
        check_history(verdict, [epoch.epoch for epoch in left.history], EPOCHS)
        if subject.as_serial:
            check_same_loss(verdict, left.test_loss, whole.test_loss)
            counted = int(Run(left.run).steps["count"].sum())
            once = EPOCHS * len_train()
            if counted > once:  # what a dead rank had not yet written is missing
                verdict.result.append(f"{counted} samples were counted, not {once}")
        else:
            check_accuracy(
                verdict,
                left.test_accuracy,
                [run.undisturbed(subject.strategy, seed).test_accuracy for seed in range(SEEDS)],
            )
        if subject.masters:
            check_gradients(verdict, left.findings, left.steps)
    return verdict


@cache
def len_train() -> int:
    """Return the number of training samples."""
    from paceline.data import load

    return len(load(DATA).train)


def check_deaths(verdict: Verdict, left: Any, killed: Sequence[int]) -> None:
    """Check that the deaths are in the record; one may come after all work was done."""
    known = [rank for failure in left.findings.get("failures", ()) for rank in failure["ranks"]]
    if not set(known) <= set(killed) or len(known) != len(set(known)):
        verdict.ended.append(f"ranks {sorted(killed)} died, but {known} are recorded")
    if left.ranks != RANKS - len(known):
        verdict.ended.append(f"{left.ranks} ranks ended, but {known} are recorded as dead")


def check_history(verdict: Verdict, epochs: list[int], expected: int) -> None:
    if epochs != list(range(expected)):
        verdict.result.append(f"the history has the epochs {epochs}")


def check_same_loss(verdict: Verdict, loss: float, expected: float) -> None:
    if not abs(loss - expected) <= LOSS * expected:
        verdict.result.append(f"test loss {loss:.6g} instead of {expected:.6g}")


def check_accuracy(verdict: Verdict, accuracy: float, undisturbed: Sequence[float]) -> None:
    if not accuracy >= min(undisturbed) - POINT:
        spread = " to ".join(f"{100 * of(undisturbed):.1f}" for of in (min, max))
        verdict.result.append(f"accuracy {100 * accuracy:.1f} %; undisturbed runs have {spread} %")


def check_gradients(verdict: Verdict, findings: dict[str, Any], steps: int) -> None:
    """Check that every batch of a parameter server was applied once, and that its worker was told so."""
    applied, dropped, acknowledged = (
        findings.get(f"gradients_{what}") for what in ("applied", "dropped", "acknowledged")
    )
    if None in (applied, dropped) or acknowledged != applied + dropped or acknowledged != steps:
        words = f"of {steps} gradients, {applied} were applied and {dropped} dropped, and {acknowledged} acknowledged"
        verdict.result.append(words)


def leftovers(runs: Path) -> list[str]:
    """Return the temporary files in a folder of runs that have ended."""
    left = (path for path in runs.rglob("*") if re.search(r"\.(tmp|part|moved)$|^\.", path.name))
    return [f"{path.relative_to(runs)} is left" for path in left]


@contextlib.contextmanager
def captured() -> Iterator[io.StringIO]:
    """Collect what paceline logs."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    log = logging.getLogger("paceline")
    before = log.propagate
    log.addHandler(handler)
    log.propagate = False
    try:
        yield text
    finally:
        log.removeHandler(handler)
        log.propagate = before


@contextlib.contextmanager
def case_folder() -> Iterator[Path]:
    """Yield a folder for a case."""
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ---- real ranks


class Place:
    """Where a real case runs: its temporary folder, home, runs and, for root, a /dev/shm of its own."""

    def __init__(self, folder: Path, *, disk: int = 0) -> None:
        """`disk`: bytes of the file system of the runs; 0: that of `folder`."""
        self.folder, self.runs = folder, folder / "runs"
        for name in ("tmp", "home", "runs"):
            (folder / name).mkdir()
        self.private = os.geteuid() == 0
        self.shm = Path("/dev/shm", folder.name)
        self._holder: subprocess.Popen[bytes] | None = None
        self._own: set[int] = set()
        self._ranks: dict[int, int] = {}
        if self.private:
            self.shm.mkdir()
            mounts = f"mount --bind {self.shm} /dev/shm"
            if disk:
                mounts += f" && mount -t tmpfs -o size={disk} tmpfs {self.runs}"
            script = f"{mounts} && echo ready && exec sleep 100000"
            self._holder = subprocess.Popen(
                ["unshare", "-m", "sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True
            )
            assert self._holder.stdout is not None
            if self._holder.stdout.readline() != b"ready\n":
                raise RuntimeError("cannot make a mount namespace")
            self._own.add(self._holder.pid)

    def seen(self, path: Path) -> Path:
        """Return the path by which this process reaches a file of the case."""
        return path if self._holder is None else Path(f"/proc/{self._holder.pid}/root{path}")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a paceline command."""
        enter = []
        if self._holder is not None:
            enter = ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", f"--wdns={self.folder}"]
        variables = {
            **os.environ, "TMPDIR": str(self.folder / "tmp"), "HOME": str(self.folder / "home"),
            "PACELINE_CACHE": str(shared_cache()),
        }  # fmt: skip
        return subprocess.Popen(
            [*enter, sys.executable, "-m", "paceline", *arguments], env=variables, cwd=self.folder, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def processes(self) -> list[int]:
        """Return the living processes of the case: all in its mount namespace or, without one, in its folder."""
        found = []
        namespace = None if self._holder is None else Path(f"/proc/{self._holder.pid}/ns/mnt").readlink()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if namespace is None:
                        mine = entry.joinpath("cwd").readlink() == self.folder
                    else:
                        mine = (entry / "ns" / "mnt").readlink() == namespace
                    state = (entry / "stat").read_bytes().rpartition(b") ")[2][:1]
                    if mine and state != b"Z" and int(entry.name) not in self._own:
                        found.append(int(entry.name))
        return found

    def ranks(self) -> dict[int, int]:
        """Return the process of every rank that runs."""
        if len(self._ranks) == REAL and all(
            Path(f"/proc/{process}").exists() for process in self._ranks.values()
        ):
            return self._ranks
        found = {}
        for process in self.processes():
            with contextlib.suppress(OSError):
                pairs = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
                variables = {
                    name: value for name, _, value in (pair.decode().partition("=") for pair in pairs)
                }
                words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
                rank = variables.get("OMPI_COMM_WORLD_RANK", variables.get("PMI_RANK"))
                if (
                    rank is not None
                    and b"paceline" in words
                    and Path(words[0].decode()).name.startswith("python")
                ):
                    found[int(rank)] = process
        self._ranks = found
        return found

    def leaks(self, *, swept: bool = True, whole: bool = True) -> list[str]:
        """Return what is left although nothing should be.

        `swept` False: folders of jobs may be left; `whole` False: files may be half-written.
        """
        until = time.monotonic() + 20
        while (left := self.processes()) and time.monotonic() < until:
            time.sleep(0.2)
        found = []
        for process in left:
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                found.append(f"process {process} is left: {words[:80]}")
        folders = [self.folder / "tmp", *([self.shm] if self.private else [])]
        names = [path for folder in folders for path in folder.iterdir()]
        found += [f"{path} is left" for path in names if swept or not path.name.startswith("paceline-job-")]
        return found + (leftovers(self.seen(self.runs)) if whole else [])

    def close(self) -> None:
        for process in self.processes():
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        if self._holder is not None:
            self._holder.kill()
            self._holder.communicate()
            shutil.rmtree(self.shm, ignore_errors=True)


@cache
def shared_cache() -> Path:
    """Return the folder of the data that all cases read."""
    folder = Path(tempfile.gettempdir(), f"chaos-cache-{os.getpid()}")
    folder.mkdir(exist_ok=True)
    return folder


@contextlib.contextmanager
def place(**more: Any) -> Iterator[Place]:
    """Yield a place for a case; end and remove all of it afterwards."""
    with case_folder() as folder:
        made = Place(folder, **more)
        try:
            yield made
        finally:
            made.close()


class HungError(Exception):
    """A command did not end in time."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__()
        verdict.hung.append(f"no end after {LIMIT:g} s")
        self.verdict = verdict


def finish(job: subprocess.Popen[str], verdict: Verdict) -> tuple[int, str]:
    """Wait for a command; return its exit status and output."""
    try:
        said, _ = job.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired as error:
        job.kill()
        said = (error.stdout or b"").decode(errors="replace")
        verdict.output += said
        raise HungError(verdict) from None
    verdict.output += f"$ {' '.join(job.args[-12:])}\n{said}status {job.returncode}\n"  # type: ignore[index]
    return job.returncode, said


def train_arguments(subject: Subject, *more: str) -> list[str]:
    given = {
        **SETTINGS, **subject.settings, "data": REAL_DATA, "epochs": REAL_EPOCHS, "seed": 1, "strategy": subject.strategy,
    }  # fmt: skip
    ranks = "1" if subject.strategy == "serial" else str(REAL)
    arguments = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    return ["train", *arguments, "-n", ranks, "--runs", "runs", "--name", "case", "--json", "--quiet", *more]


@dataclass(frozen=True)
class Undisturbed:
    """The results of undisturbed runs on real ranks."""

    x: Any
    loss: float
    accuracies: tuple[float, ...]
    start: float
    """Seconds until training begins."""
    seconds: float
    """Seconds from there to the end."""


@cache
def train_undisturbed(strategy: str) -> Undisturbed:
    """Train without a disturbance: once, or with several seeds if the results vary."""
    subject = SUBJECTS[strategy]
    found: list[dict[str, Any]] = []
    start = seconds = 0.0
    x = None
    for seed in (1,) if subject.as_serial else (1, 2):
        verdict = Verdict()
        with place() as here:
            began = time.monotonic()
            job = here.start(*train_arguments(subject, "--seed", str(seed)))
            wait_for_epoch(here, job, 0)
            start, began = time.monotonic() - began, time.monotonic()
            status, said = finish(job, verdict)
            seconds = time.monotonic() - began
            if status != 0:
                raise RuntimeError(f"an undisturbed run of {strategy} failed:\n{verdict.output}")
            found.append(results(said))
            if seed == 1:
                x = np.load(here.seen(here.runs) / "case" / "model.npz")["x"]
    accuracies = tuple(one["test_accuracy"] for one in found)
    return Undisturbed(x, found[0]["test_loss"], accuracies, start, seconds)


def results(said: str) -> dict[str, Any]:
    """Return the results that a command printed."""
    found: dict[str, Any] = {}
    for line in said.splitlines():
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                found = json.loads(line)
    return found


def wait_for_epoch(here: Place, job: subprocess.Popen[str], epoch: int) -> None:
    """Wait until a run has begun an epoch, or has ended."""
    run, until = here.seen(here.runs) / "case", time.monotonic() + LIMIT
    while job.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError):
            if epoch == 0 and (run / "config.json").exists():
                return
            if epoch > 0 and (run / "epochs.jsonl").read_bytes().count(b"\n") >= epoch:
                return
        time.sleep(0.005)


def wait_moment(
    here: Place, job: subprocess.Popen[str], subject: Subject, r: random.Random, *, early: float
) -> str:
    """Wait until a random moment of a run, with probability `early` one before training begins; return which."""
    whole = train_undisturbed(subject.strategy)
    if r.random() < early:
        moment = r.random() * whole.start
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.wait(moment)
        return f"{moment:.2f} s after the start"
    wait_for_epoch(here, job, 0)
    here.ranks()  # finding them takes a while: not at the moment itself
    epoch = r.randrange(REAL_EPOCHS) if subject.tells else 0
    wait_for_epoch(here, job, epoch)
    moment = r.random() * whole.seconds / (REAL_EPOCHS if subject.tells else 1)
    with contextlib.suppress(subprocess.TimeoutExpired):
        job.wait(moment)
    return f"{moment:.2f} s into epoch {epoch + 1}"


def check_real(verdict: Verdict, here: Place, subject: Subject, said: str, *, same_ranks: bool) -> None:
    """Check the results of a run that has ended."""
    whole = train_undisturbed(subject.strategy)
    found = results(said)
    run = here.seen(here.runs) / "case"
    if not found:
        verdict.result.append("no results were printed")
        return
    try:
        lines = (run / "epochs.jsonl").read_text().splitlines()
        check_history(verdict, [json.loads(line)["epoch"] for line in lines], REAL_EPOCHS)
        x = np.load(run / "model.npz")["x"]
    except (OSError, ValueError, KeyError) as error:
        verdict.result.append(f"the record cannot be read: {error}")
        return
    if same_ranks and subject.in_step:
        if not np.array_equal(x, whole.x):
            far = float(np.abs(x - whole.x).max())
            verdict.result.append(f"the parameters differ from those of an undisturbed run by up to {far:g}")
    elif subject.as_serial:
        check_same_loss(verdict, found["test_loss"], whole.loss)
    else:
        check_accuracy(verdict, found["test_accuracy"], whole.accuracies)
    if subject.masters:
        check_gradients(verdict, found["findings"], found["steps"])


def strike(here: Any, r: random.Random, verdict: Verdict, number: int) -> int | None:
    """Send a signal to one of the ranks, chosen at random; return that rank, or None if none is left."""
    ranks = here.ranks()
    victim = r.choice(sorted(ranks)) if ranks else None
    verdict.note = f"rank {victim} {verdict.note}"
    if victim is not None:
        with contextlib.suppress(OSError):
            os.kill(ranks[victim], number)
            verdict.struck = True
    return victim


def kill_rank(subject: Subject, r: random.Random, run: Any) -> Verdict:
    """Kill one real rank."""
    verdict = Verdict()
    with place() as here:
        job = here.start(*train_arguments(subject, "--tolerate-failures"))
        verdict.note = wait_moment(here, job, subject, r, early=0.15)
        victim = strike(here, r, verdict, signal.SIGKILL)
        status, said = finish(job, verdict)
        if status != 0:
            verdict.ended.append(f"status {status} after rank {victim} was killed")
        else:
            check_real(verdict, here, subject, said, same_ranks=False)
            dead = victim is not None and f"rank {victim} died" in said
            verdict.note += "" if dead else " (not noticed: the work was done, or it was restarted)"
        verdict.leaking += here.leaks()
    return verdict


def resume_run(verdict: Verdict, here: Place, subject: Subject) -> None:
    """Resume a run that was cut, if it left anything to resume, and check where it ends."""
    from paceline.record import checkpoint

    run = here.seen(here.runs) / "case"
    if not (run / "config.json").exists():
        verdict.note += ", before there was a record"
        return
    complete = (run / "summary.json").exists()
    wanted = 1 if subject.strategy == "serial" else REAL
    parts = [set(checkpoint.numbers(run, rank)) for rank in range(wanted)]
    saved = all(parts) and (not subject.in_step or bool(set.intersection(*parts)))
    status, said = finish(here.start("resume", "runs/case", "--json", "--quiet"), verdict)
    if complete:
        verdict.note += ", when it was complete"
        if status != 2:
            verdict.ended.append(f"resume of a complete run ended with status {status}")
    elif not saved:
        verdict.note += ", before the first checkpoint"
        if status != 2 or "no complete checkpoint" not in said:
            verdict.ended.append(f"resume without a checkpoint ended with status {status}")
    elif status != 0:
        verdict.ended.append(f"resume ended with status {status}")
    else:
        verdict.note += ", resumed"
        check_real(verdict, here, subject, said, same_ranks=True)


def cut(subject: Subject, r: random.Random, run: Any) -> Verdict:
    """Kill the launcher, or everything, and resume."""
    verdict = Verdict()
    with place() as here:
        job = here.start(*train_arguments(subject, "--checkpoint-every", f"{r.choice((5, 20, 100))} steps"))
        verdict.note = wait_moment(here, job, subject, r, early=0.1)
        everything = r.random() < 0.5
        verdict.struck = job.poll() is None
        verdict.note += ", all processes" if everything else ", the launcher"
        if everything:
            while victims := here.processes():  # none may be left that starts others
                for process in victims:
                    with contextlib.suppress(OSError):
                        os.kill(process, signal.SIGKILL)
        else:
            with contextlib.suppress(OSError):
                os.kill(job.pid, signal.SIGKILL)
        finish(job, verdict)
        verdict.leaking += here.leaks(swept=not everything, whole=False)
        if everything:  # folders of killed jobs are removed by the next job, after a minute
            for folder in (*here.shm.glob("paceline-job-*"), *(here.folder / "tmp").glob("paceline-job-*")):
                os.utime(folder, (0, 0))
        resume_run(verdict, here, subject)
        verdict.leaking += here.leaks(swept="resumed" in verdict.note, whole="resumed" in verdict.note)
    return verdict


def stop_run(subject: Subject, r: random.Random, run: Any) -> Verdict:
    """Ask a run to stop, and resume it."""
    verdict = Verdict()
    number = r.choice((signal.SIGTERM, signal.SIGINT, signal.SIGUSR1))
    with place() as here:
        every = ["--checkpoint-every", "20 steps"] if r.random() < 0.5 else []
        job = here.start(*train_arguments(subject, *every))
        verdict.note = f"{number.name} {wait_moment(here, job, subject, r, early=0.1)}"
        verdict.struck = job.poll() is None
        job.send_signal(number)
        status, said = finish(job, verdict)
        if status != 128 + number and not (status == 0 and results(said)):
            early = not (here.seen(here.runs) / "case" / "config.json").exists()
            if not (early and status == -number):  # before paceline could handle it
                verdict.ended.append(f"status {status} after {number.name}")
        verdict.leaking += here.leaks()
        resume_run(verdict, here, subject)
        verdict.leaking += here.leaks()
    return verdict


def freeze_rank(subject: Subject, r: random.Random, run: Any) -> Verdict:
    """Stop one real rank."""
    verdict = Verdict()
    way = r.choice(("abort", "checkpoint-abort"))
    with place() as here:
        every = ["--checkpoint-every", "20 steps"] if way != "abort" else []
        job = here.start(*train_arguments(subject, "--stall-timeout", "3s", "--on-stall", way, *every))
        verdict.note = wait_moment(here, job, subject, r, early=0.0)
        victim = strike(here, r, verdict, signal.SIGSTOP)
        verdict.note += f", {way}"
        status, said = finish(job, verdict)
        if status == 0 and results(said):
            verdict.note += " (the work was done)"
        elif status != 75:
            verdict.ended.append(f"status {status} after rank {victim} was stopped")
        elif f"rank {victim} " not in said:
            verdict.ended.append(f"rank {victim} was stopped, but not named")
        verdict.leaking += here.leaks(
            whole=False
        )  # it may have been stopped while it wrote; a resume removes that
        if way != "abort":
            resume_run(verdict, here, subject)
            verdict.leaking += here.leaks(whole="resumed" in verdict.note)
    return verdict


def disk(subject: Subject, r: random.Random, run: Any) -> Verdict:
    """Fill the file system of the run."""
    verdict = Verdict()
    if os.geteuid() != 0:
        verdict.ended.append("a file system of its own needs root; leave these cases out with --disk 0")
        return verdict
    with place(disk=2 << 20) as here:
        every = ["--checkpoint-every", "20 steps"] if r.random() < 0.5 else []
        job = here.start(*train_arguments(subject, *every))
        verdict.note = wait_moment(here, job, subject, r, early=0.0)
        filler = here.seen(here.runs) / "filler"
        verdict.struck = job.poll() is None
        fill(filler)
        if r.random() < 0.4:
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(r.random() * train_undisturbed(subject.strategy).seconds)
            filler.unlink()
            verdict.note += ", for a while"
        status, said = finish(job, verdict)
        found = results(said)
        if status != 0:
            verdict.ended.append(f"status {status} with a full disk")
        elif not found:
            verdict.result.append("no accuracy was printed")
        else:
            check_accuracy(verdict, found["test_accuracy"], train_undisturbed(subject.strategy).accuracies)
            run = here.folder / found["run"]
            rescued = run.parent != here.runs  # into a folder of its own, which is meant to stay
            saved = run if rescued else here.seen(run)
            if not readable(saved / "model.npz") or not (saved / "summary.json").exists():
                verdict.result.append(f"the run was not saved in {run}")
            elif rescued:
                verdict.note += ", saved elsewhere"
                if run.parent not in (here.folder / "tmp", here.folder / "home"):
                    verdict.result.append(f"the run was saved in {run}")
                shutil.rmtree(run)
        verdict.leaking += here.leaks()
    return verdict


def fill(path: Path) -> None:
    """Write to a file until nothing more can be written."""
    piece = 1 << 16
    with path.open("wb", buffering=0) as file:
        while piece:
            try:
                file.write(bytes(piece))
            except OSError:
                piece //= 4


def readable(path: Path) -> bool:
    try:
        return bool(np.load(path)["x"].size)
    except Exception:
        return False


# ---- all cases

CASES: dict[str, Callable[[Subject, random.Random, Any], Verdict]] = {
    "simulated": kill_simulated, "killed": kill_rank, "cut": cut, "stopped": stop_run, "frozen": freeze_rank, "disk": disk,
}  # fmt: skip


def is_sensible(subject: Subject, kind: str) -> bool:
    """Return False for deaths of the only process, which nobody can survive."""
    return subject.strategy != "serial" or kind in ("cut", "stopped", "disk")


def try_case(name: str, seed: int, run: Any) -> Verdict:
    """Run the case STRATEGY/KIND/NUMBER."""
    strategy, kind, _ = name.rsplit("/", 2)
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    try:
        if kind != "simulated":
            train_undisturbed(strategy)  # before the case begins
        return CASES[kind](SUBJECTS[strategy], random.Random(digest), run)
    except HungError as hung:
        return hung.verdict
    except Exception:
        return Verdict(ended=["the case itself failed"], output=traceback.format_exc())


def choose_subjects(words: str | None) -> list[Subject]:
    """Return the strategies whose names begin with one of the given ones."""
    wanted = None if words is None else re.split(r",(?![\w-]+=)", words)
    return [
        subject
        for name, subject in SUBJECTS.items()
        if wanted is None or any(name.startswith(w) for w in wanted)
    ]


def table(counts: dict[tuple[str, str], Counter[str]]) -> str:
    """Return the figures by strategy and kind."""
    rows = [("strategy", "kind", "cases", "struck in time", *COLUMNS.values())]
    for (strategy, kind), of in counts.items():
        rows.append((strategy, kind, *(str(of[column]) for column in ("cases", "struck", *COLUMNS))))
    total: Counter[str] = sum(counts.values(), Counter())
    rows.append(("all", "", *(str(total[column]) for column in ("cases", "struck", *COLUMNS))))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i < 2 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def main() -> int:
    """Run the cases; print the table, and the names of the cases that failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--strategies", metavar="NAME,...", help="strategies whose names begin like this (default: all)"
    )
    parser.add_argument(
        "--simulated", type=int, default=50, metavar="N", help="of each strategy (default: 50)"
    )
    parser.add_argument(
        "--real", type=int, default=10, metavar="N", help="killed, cut and stopped: of each (default: 10)"
    )
    parser.add_argument("--freezes", type=int, default=10, metavar="N", help="(default: 10)")
    parser.add_argument("--disk", type=int, default=5, metavar="N", help="full disks (default: 5)")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other cases (default: 0)")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="start no case after this many seconds"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="real cases at the same time (default: 1)"
    )
    parser.add_argument("--only", metavar="CASE", help="run only this case, and print what it printed")
    args = parser.parse_args()
    subjects = choose_subjects(args.strategies)
    if not subjects:
        parser.error(f"no strategy is called {args.strategies}; they are {', '.join(SUBJECTS)}")
    counts: dict[tuple[str, str], Counter[str]] = {}
    failed: list[tuple[str, Verdict]] = []
    late = time.monotonic() + args.seconds

    def attempt(name: str, run: Any) -> None:
        if time.monotonic() > late:
            return
        verdict = try_case(name, args.seed, run)
        strategy, kind, _ = name.rsplit("/", 2)
        of = counts.setdefault((strategy, kind), Counter())
        of["cases"] += 1
        of["struck"] += verdict.struck
        for column in COLUMNS:
            of[column] += bool(getattr(verdict, column))
        if verdict.wrong:
            failed.append((name, verdict))
            print(f"{name} ({verdict.note}): {'; '.join(verdict.wrong)}", flush=True)
        if args.only:
            print(f"{name}: {verdict.note}\n{verdict.output}")

    numbers = {"simulated": args.simulated, "frozen": args.freezes, "disk": args.disk}
    with simulator() as run:
        if args.only:
            attempt(args.only, run)
            return int(bool(failed))
        for number in range(max(args.simulated, args.real, args.freezes, args.disk)):
            names = [
                f"{subject.strategy}/{kind}/{number}"
                for kind in KINDS
                for subject in subjects
                if number < numbers.get(kind, args.real) and is_sensible(subject, kind)
            ]
            for name in names:
                if "/simulated/" in name:
                    attempt(name, run)
            for name in names:
                if "/simulated/" not in name and time.monotonic() < late:
                    train_undisturbed(name.rsplit("/", 2)[0])
            with ThreadPoolExecutor(args.jobs) as pool:
                list(pool.map(lambda name: attempt(name, run), [n for n in names if "/simulated/" not in n]))
    shutil.rmtree(shared_cache(), ignore_errors=True)
    print(
        table(
            dict(
                sorted(
                    counts.items(),
                    key=lambda item: (list(SUBJECTS).index(item[0][0]), KINDS.index(item[0][1])),
                )
            )
        )
    )
    if failed:
        print("failed:", *(f"  --seed {args.seed} --only '{name}'" for name, _ in failed), sep="\n")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
