"""Batch scripts for Slurm: a job that saves a checkpoint before its time is up, and goes on when it is started again.

How ranks are started depends on the MPI: srun speaks the protocol of MPICH's wheel; Open MPI's wheel is started by its own
mpiexec, which `paceline train -n` finds. SIGUSR1 is sent to the script (`B:`) and not to the job steps, because Open MPI's
daemons would be among those, and end; the script passes it on to what started the ranks.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import UsageError
from paceline.launch.library import Library

BEFORE = 120  # seconds between the signal and the time limit
STOPPED = 138  # the exit status of a run that SIGUSR1 has stopped
TIME = re.compile(r"\d+|\d+:\d\d|\d+:\d\d:\d\d|\d+-\d+|\d+-\d+:\d\d|\d+-\d+:\d\d:\d\d")
EXPLANATION = f"""\
# {BEFORE} seconds before the time limit Slurm sends SIGUSR1 to this script, which passes it on: the run saves a checkpoint
# and ends with status {STOPPED}. Then the job is put back into the queue, and goes on with the same run when it is started
# again. After the failure of a node Slurm does the same."""

TRAPS = (
    "started= signal=",
    'stop() { signal=$1; [ -z "$started" ] || kill -"$signal" "$started"; }',
    "trap 'stop USR1' USR1",
    "trap 'stop TERM' TERM",
)


@dataclass(frozen=True, kw_only=True)
class BatchResources:
    """The resources of a batch job.

    >>> BatchResources(nodes="2-4", ranks_per_node=16).most_ranks
    64
    """

    nodes: str = "1"
    """A number of nodes, or a range: a job that lost a node may go on with fewer."""
    ranks_per_node: int = 1
    threads: int = 1
    time: str | None = None
    name: str = "paceline"
    options: tuple[str, ...] = ()
    """More options of sbatch, such as --partition=short."""

    def __post_init__(self) -> None:
        found = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", self.nodes)
        if found is None or int(found[1]) < 1 or int(found[2] or found[1]) < int(found[1]):
            raise UsageError(f"nodes must be a number or a range such as 2-4; got {self.nodes!r}")
        if self.ranks_per_node < 1:
            raise UsageError(f"ranks-per-node must be at least 1; got {self.ranks_per_node}")
        if self.threads < 1:
            raise UsageError(f"threads must be at least 1; got {self.threads}")
        if self.time is not None and not TIME.fullmatch(self.time):
            raise UsageError(f"time must look like 90 (minutes), 1:30:00 or 2-12:00:00; got {self.time!r}")
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", self.name) or self.name.startswith("-"):
            raise UsageError(f"job-name must be letters, digits, dots and dashes; got {self.name!r}")
        for option in self.options:
            if not re.fullmatch(r"--[a-z][a-z-]*(=[^\n\r]+)?", option):
                raise UsageError(f"sbatch options must look like --option=value; got {option!r}")

    @property
    def most_ranks(self) -> int:
        """The ranks on the largest number of nodes."""
        return int(self.nodes.rpartition("-")[2]) * self.ranks_per_node

    def directives(self, *, requeue: bool) -> list[str]:
        """Return the lines for sbatch; the options that the user added come last, because the last one counts."""
        # With tasks per node, Slurm keeps the number of tasks of the first start, which fewer nodes could not take.
        ranks = "mincpus" if "-" in self.nodes else "ntasks-per-node"
        each = self.ranks_per_node * (self.threads if "-" in self.nodes else 1)
        again = ["--requeue", f"--signal=B:USR1@{BEFORE}"] if requeue else ["--no-requeue"]
        words = [
            f"--job-name={self.name}",
            f"--nodes={self.nodes}",
            f"--{ranks}={each}",
            f"--cpus-per-task={self.threads}",
            *([] if self.time is None else [f"--time={self.time}"]),
            *again,
            "--open-mode=append",
            f"--output={self.name}-%j.out",
            f"--chdir={_quote(str(Path.cwd()))}",
            *map(_quote_value, self.options),
        ]
        return [f"#SBATCH {word}" for word in words]


def batch_script(
    batch: BatchResources,
    words: Sequence[str],
    library: Library | None,
    *,
    resumes: bool,
    again: Sequence[str] | None = None,
    run_name: bool = False,
    made_by: str = "",
    environment: Mapping[str, str] | None = None,
) -> str:
    """Return a script that runs `paceline WORDS` in a batch job.

    `library` starts the ranks; None: the command runs once, and starts its ranks itself, if it has any. `resumes` is True
    if the command can go on where it was stopped; `again` are its words after the first start, if they differ. With
    `run_name`, the run is named after the job, so that it is found again.

    >>> script = batch_script(BatchResources(nodes="2"), ["study", "mine.toml"], None, resumes=True)
    >>> [line for line in script.splitlines() if "study" in line]
    ['"$python" -m paceline study mine.toml &']
    """
    given = os.environ if environment is None else environment
    modules = [word for word in given.get("LOADEDMODULES", "").split(":") if word]
    lines = ["#!/bin/bash -l" if modules else "#!/bin/bash", *batch.directives(requeue=resumes)]
    lines += ["", *([f"# Made by: {made_by}"] if made_by else [])]
    lines += [f"module load {shlex.join(modules)}"] if modules else []
    lines.append(f"python={shlex.quote(sys.executable)}")
    start, count = ['"$python"', "-m", "paceline"], []
    if library is not None:
        lines.append(f"ranks=$((SLURM_JOB_NUM_NODES * {batch.ranks_per_node}))")
    if library is not None and library.kind == "mpich" and library.wheel:
        options = [f"--ntasks-per-node={batch.ranks_per_node}", f"--cpus-per-task={batch.threads}"]
        start = ["srun", "--mpi=pmi2", '--ntasks="$ranks"', *options, "--kill-on-bad-exit", *start]
    elif library is not None:
        count = ["-n", '"$ranks"']
    named = [f'--name="{batch.name}-$SLURM_JOB_ID"'] if run_name else []

    def command(own: Sequence[str]) -> str:
        return " ".join([*start, shlex.quote(own[0]), *count, *named, *map(shlex.quote, own[1:])])

    if not resumes:
        return "\n".join([*lines, f"exec {command(words)}", ""])
    lines += ["", EXPLANATION, *TRAPS]
    if again is not None and list(again) != list(words):
        lines += ['if [ "${SLURM_RESTART_COUNT:-0}" -eq 0 ]; then', f"    {command(words)} &"]
        lines += ["else", f"    {command(again)} &", "fi"]
    else:
        lines.append(f"{command(words)} &")
    lines += [
        "started=$!",
        '[ -z "$signal" ] || kill -"$signal" "$started"  # it came before the start',
        'while kill -0 "$started" 2> /dev/null; do wait "$started"; done  # a signal interrupts wait',
        'wait "$started"',
        "status=$?",
        f'[ "$status" -ne {STOPPED} ] || scontrol requeue "$SLURM_JOB_ID"',
        'exit "$status"',
        "",
    ]
    return "\n".join(lines)


def _quote(text: str) -> str:
    return f'"{text}"' if re.search(r"\s", text) else text


def _quote_value(option: str) -> str:
    name, equals, value = option.partition("=")
    return f"{name}{equals}{_quote(value)}"
