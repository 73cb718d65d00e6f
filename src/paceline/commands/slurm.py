"""`paceline slurm`: print or submit a batch script that runs a command of paceline in a Slurm job."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from paceline.errors import UsageError

EXAMPLES = """
examples:
  paceline slurm --nodes 4 --ranks-per-node 16 --time 1:30:00 -- train --data mnist --epochs 50
  paceline slurm --nodes 4 --ranks-per-node 16 --time 1:30:00 --submit -- train --data mnist --epochs 50
  paceline slurm --nodes 2-4 --ranks-per-node 8 -- resume runs/mine
  paceline slurm --ranks-per-node 16 --partition short -- study mine.toml

train and resume are started on all ranks; other commands once, on the first node. train, resume and study go on when the
job is started again: two minutes before the time limit they save a checkpoint, and the job is put back into the queue.
"""
# Commands that are started on every rank, and those that go on where they were stopped.
ON_RANKS = ("train", "resume")
RESUMED = (*ON_RANKS, "study")
EVERY = "3m"  # between checkpoints, unless the command says otherwise
# Options of sbatch that are passed on under their own names.
PASSED = {
    "partition": "partition to run in",
    "account": "account to charge",
    "qos": "quality of service",
    "constraint": "features that the nodes must have",
    "gres": "generic resources of each node, such as gpu:2",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = EXAMPLES
    parser.usage = "paceline slurm [options] -- COMMAND ..."
    parser.add_argument(
        "--nodes", default="1", metavar="N", help="number of nodes, or a range: 2-4 (default: 1)"
    )
    parser.add_argument(
        "--ranks-per-node", type=int, default=1, metavar="R", help="ranks on each node (default: 1)"
    )
    parser.add_argument(
        "--time", metavar="T", help="time limit: minutes, 1:30:00 or 2-12:00:00 (default: the partition's)"
    )
    parser.add_argument(
        "--job-name", default="paceline", metavar="NAME", help="name of the job (default: paceline)"
    )
    for name, text in PASSED.items():
        parser.add_argument(f"--{name}", metavar=name.upper(), help=text)
    parser.add_argument(
        "--sbatch", action="append", default=[], metavar="OPTION",
        help='another option of sbatch, such as --sbatch "--mail-type=END"; may be repeated',
    )  # fmt: skip
    parser.add_argument("--submit", action="store_true", help="submit the script instead of printing it")
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="COMMAND", help="a command of paceline with its options"
    )


def main(args: argparse.Namespace) -> int:
    """Print the script, or submit it and print sbatch's answer."""
    text = script_of(args)
    if not args.submit:
        print(text, end="")
        return 0
    try:
        done = subprocess.run(["sbatch"], input=text, capture_output=True, text=True)
    except FileNotFoundError:
        raise UsageError("there is no sbatch on the PATH; submit from a machine of the cluster") from None
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason given"]
        raise UsageError(f"sbatch refuses the job: {said[-1].removeprefix('sbatch: error: ')}")
    print(done.stdout, end="")
    return 0


def script_of(args: argparse.Namespace) -> str:
    """Check the command and the resources, and return the script."""
    from paceline.launch import find, world
    from paceline.launch.batch import BatchResources, batch_script
    from paceline.record.environment import command

    if world() is not None:
        raise UsageError("a batch script is made by one process: run it without mpiexec or srun")
    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    if not words:
        raise UsageError("the command is missing; write it after --, such as: -- train --data mnist")
    if words[0] == "slurm":
        raise UsageError("a batch job cannot make another one; give a command such as train or study")
    given = args.parse(words)
    passed = [f"--{name}={value}" for name in PASSED if (value := getattr(args, name)) is not None]
    batch = BatchResources(
        nodes=args.nodes, ranks_per_node=args.ranks_per_node, threads=getattr(given, "threads", None) or 1,
        time=args.time, name=args.job_name, options=(*passed, *args.sbatch),
    )  # fmt: skip
    on_ranks = words[0] in ON_RANKS
    if on_ranks:
        saved = _check_ranks(given, batch.most_ranks)
        words = (
            [*words, f"--checkpoint-every={EVERY}"] if saved and given.checkpoint_every == "auto" else words
        )
    return batch_script(
        batch,
        words,
        find() if on_ranks and batch.most_ranks > 1 else None,
        resumes=words[0] in RESUMED,
        again=_remove_option(words, "--epochs") if words[0] == "resume" else None,
        run_name=words[0] == "train" and given.name is None,
        made_by=shlex.join(command()).replace("\n", " "),
    )


def _check_ranks(given: argparse.Namespace, ranks: int) -> bool:
    """Refuse what the job would refuse after its time in the queue; return True if its state can be saved."""
    if given.ranks is not None:
        raise UsageError("the ranks are --nodes times --ranks-per-node; leave out -n")
    if given.hosts is not None:
        raise UsageError("the nodes are chosen by Slurm; leave out --hosts")
    if given.command == "resume":
        from paceline.training.resuming import settings_of

        settings_of(
            Path(os.path.realpath(given.run)), more_epochs=given.epochs, ranks=ranks, trust=given.trust
        )
        return True
    from paceline.commands import import_from_here
    from paceline.config import Config, Safety
    from paceline.strategies import Strategy
    from paceline.training.job import strategy_of

    import_from_here()
    config, _ = (_settings(of, given) for of in (Config, Safety))
    strategy = strategy_of(config.strategy)
    if given.on != "mpi":
        raise UsageError("simulated ranks are all in one process; leave out --on sim")
    if isinstance(strategy, Strategy):
        strategy.check(ranks)
    return getattr(strategy, "saves", None) is not None


def _settings(of: type[Any], given: argparse.Namespace) -> Any:
    return of(**{setting.name: getattr(given, setting.name) for setting in fields(of)})


def _remove_option(words: Sequence[str], option: str) -> list[str]:
    """Return a command without an option and its value.

    >>> _remove_option(["resume", "runs/a", "--epochs", "5", "--quiet"], "--epochs")
    ['resume', 'runs/a', '--quiet']
    """
    kept: list[str] = []
    skip = False
    for word in words:
        if not skip and word != option and not word.startswith(f"{option}="):
            kept.append(word)
        skip = not skip and word == option
    return kept
