"""Whether what an advice says to type is accepted by `paceline train`."""

from __future__ import annotations

import argparse
import re
import shlex
from dataclasses import fields
from typing import Any

from paceline.commands import train
from paceline.config import Config
from paceline.machine import load_network
from paceline.record import Run
from paceline.simulate.options import options_of, pick_options
from paceline.training.job import Job


def check_advice(run: Run, advice: str) -> None:
    """Check that `paceline train` accepts every alternative of an advice, typed after the run's own settings."""
    for part in re.split(r", (?:or|and) (?=-)", re.sub(r" \([^()]*\)", "", advice)):
        if part.startswith("paceline trace ") or not part:
            continue
        check([*_as_run(run), *shlex.split(part)])


def check(words: list[str]) -> None:
    """What `paceline train` does with its words before it starts anything."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    train.add_arguments(parser)
    args = parser.parse_args(_last(words))
    config = Config(**{setting.name: getattr(args, setting.name) for setting in fields(Config)})
    options_of(args.on, pick_options(vars(args)))
    nodes = None if args.network is None else load_network(args.network).ranks_per_node
    assert nodes is None or nodes >= args.ranks or "shared-memory" not in config.strategy, words
    Job(config=config).check_early(args.ranks)


def _as_run(run: Run) -> list[str]:
    given: dict[str, Any] = {setting.name: run.config.get(setting.name) for setting in fields(Config)}
    words = [word for name, value in given.items() if value is not None
             for word in (f"--{name.replace('_', '-')}", str(value))]  # fmt: skip
    words += ["-n", str(run.config["ranks"])]
    return words if run.simulated is None else [*words, "--on", "sim", "--network", run.simulated["network"]]


def _last(words: list[str]) -> list[str]:
    """Each setting once, as it was said last; a batch for each rank is instead of one for all."""
    said = dict(zip(words[::2], words[1::2], strict=True))
    batches = [word for word in words[::2] if word in ("--batch", "--batch-per-rank")]
    for word in set(batches) - set(batches[-1:]):
        del said[word]
    return [word for pair in said.items() for word in pair]
