"""The candidates of a search: which strategies on how many ranks and threads, with which batches and learning rates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from paceline import names
from paceline.config import Config, Program
from paceline.errors import UsageError
from paceline.simulate.options import Options
from paceline.strategies import Strategy
from paceline.study.cells import SERIAL, Cell
from paceline.text import count
from paceline.training.job import Job, build_component, strategy_name, strategy_of

# Batches to try, relative to the usual one; a batch must leave at least this many steps in an epoch.
BATCHES, LEAST_STEPS = (1.0, 4.0, 16.0, 0.25), 4
FEWER = BATCHES[:2]  # simulated: the costs of each batch are measured
USUAL_BATCH, USUAL_RATE = 64, 0.1
FARTHEST = 8.5  # times the rates by the known rules: 8 times, rounded
ALONE = (False, False)  # the kind of one process with one thread


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way of training: a strategy on ranks of some threads, with a batch and a learning rate.

    >>> print(Candidate(strategy="sync", ranks=4, threads=2, batch=256, lr=0.4))
    sync on 4 ranks of 2 threads, batch 256, lr 0.4
    """

    strategy: str
    ranks: int = 1
    threads: int = 1
    batch: int | None = None
    """None: the program's own."""
    lr: float | None = None
    """None: the model's or the program's own."""
    optimizer: str = field(default="", compare=False)
    """The rule that makes its steps, if that is an optimizer other than the run's update."""

    @property
    def layout(self) -> tuple[str, int, int]:
        """The strategy, the ranks and the threads of each."""
        return self.strategy, self.ranks, self.threads

    @property
    def speed(self) -> tuple[str, int, int, int | None]:
        """What determines how long an epoch takes: everything but the learning rate."""
        return (*self.layout, self.batch)

    @property
    def steps(self) -> tuple[int | None, float | None, str]:
        """What determines the steps of a strategy that equals serial training."""
        return self.batch, self.lr, self.optimizer

    @property
    def pace(self) -> tuple[int | None, str]:
        """What an epoch consists of, for strategies that equal serial training."""
        return self.batch, self.optimizer

    @property
    def serial(self) -> bool:
        """True for one process without communication."""
        return self.strategy == SERIAL

    @property
    def equals_serial(self) -> bool:
        """True if its steps are those of one process with the same batch, rate and optimizer, up to rounding."""
        strategy = find_strategy(self.strategy)
        return strategy is not None and strategy.equals_serial

    @property
    def kind(self) -> tuple[bool, bool]:
        """Whether it has several ranks, and whether these have several threads."""
        return self.ranks > 1, self.threads > 1

    @property
    def family(self) -> str:
        """The strategy without its options."""
        return self.strategy.partition(":")[0]

    @property
    def workers(self) -> int:
        """The number of ranks that compute gradients."""
        strategy = find_strategy(self.strategy)
        return self.ranks if strategy is None else max(1, strategy.workers(self.ranks))

    @property
    def effort(self) -> tuple[int, int, bool]:
        """A key that is lower for what is simpler: fewer processes, fewer cores, the same steps as serial training."""
        return self.ranks, self.ranks * self.threads, not self.equals_serial or bool(self.optimizer)

    def __str__(self) -> str:
        threads = count(self.threads, "thread")
        where = f" with {threads}" if self.ranks == 1 else f" on {self.ranks} ranks of {threads}"
        words = [f"{self.strategy}{where}"]
        words += [] if self.batch is None else [f"batch {self.batch}"]
        words += [] if self.lr is None else [f"lr {self.lr:g}"]
        return ", ".join(words)


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What the user lets a search choose from; where it is empty, the search decides what to try."""

    strategies: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    threads: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()

    @property
    def serial(self) -> bool:
        """True if one process without communication is among them."""
        return (not self.strategies or SERIAL in self.strategies) and (not self.ranks or 1 in self.ranks)


@cache
def find_strategy(text: str) -> Strategy | None:
    """Return the strategy that a text names; None for a function."""
    found = strategy_of(text)
    return found if isinstance(found, Strategy) else None


@dataclass(frozen=True, kw_only=True)
class Space:
    """The candidates and the settings that they share."""

    base: Config
    candidates: tuple[Candidate, ...]
    """The serial ones first."""
    cores: int
    rate: float = USUAL_RATE
    """The learning rate that suits the usual batch."""
    fixed_rates: bool = False
    """True if no other learning rates than those of the candidates are tried."""
    options: Options | None = None
    """The simulated machine; None: this one."""
    program: Program | None = None
    """The program that trains in its own loop; in its arguments, {batch} and {lr} stand for those of a candidate."""
    refused: dict[str, str] = field(default_factory=dict)
    """Strategies that cannot be used here, and why."""

    @property
    def grows(self) -> bool:
        """True if a run's first epochs do not depend on how many follow, so that a longer run contains a shorter one."""
        return self.program is None and not depends_on_length(self.base.schedule)

    def cell(self, candidate: Candidate, *, epochs: int, seed: int, draws: int | None = None) -> Cell:
        """Return the run of a candidate."""
        if self.program is not None:
            epochs = self.base.epochs
        settings: dict[str, Any] = {
            "strategy": candidate.strategy, "threads": candidate.threads, "epochs": epochs, "seed": seed,
            "draws": self.base.draws if draws is None else draws,
        }  # fmt: skip
        if candidate.batch is not None:
            settings["batch"] = candidate.batch
        if candidate.lr is not None:
            settings["lr"] = candidate.lr
        program = self.program
        if program is not None:
            program = program.fill(batch=candidate.batch, lr=candidate.lr)
        return Cell(
            config=replace(self.base, **settings), ranks=candidate.ranks, options=self.options, program=program,
            part="tune",
        )  # fmt: skip

    def neighbours(self, candidate: Candidate) -> list[Candidate]:
        """Return the same candidate with twice and with half the learning rate, and with the next smaller batch.

        Rates that are too far from the usual ones are left out.
        """
        if self.fixed_rates or candidate.lr is None or candidate.batch is None:
            return []
        usual: dict[int, list[float]] = {}
        for one in self.candidates:
            if one.layout == candidate.layout and one.batch is not None and one.lr is not None:
                usual.setdefault(one.batch, []).append(one.lr)
        wanted = [(candidate.batch, rounded(candidate.lr * factor)) for factor in (2.0, 0.5)]
        if smaller := [batch for batch in usual if batch < candidate.batch]:
            wanted.append((max(smaller), candidate.lr))
        found = []
        for batch, rate in wanted:
            known = usual.get(batch, [rate])
            if min(known) / FARTHEST <= rate <= max(known) * FARTHEST:
                found.append(replace(candidate, batch=batch, lr=rate))
        return found


@cache
def depends_on_length(schedule: str) -> bool:
    """Return True if the learning rate at a step depends on the number of steps of the run.

    >>> depends_on_length("constant"), depends_on_length("cosine")
    (False, True)
    """
    made = build_component("schedules", schedule)
    return any(made.factor(step, 1000) != made.factor(step, 3000) for step in (0, 1, 10, 100, 500, 999))


def rounded(rate: float) -> float:
    """Return a learning rate with three significant figures.

    >>> rounded(0.1 * 2**0.5)
    0.141
    """
    return float(f"{rate:.3g}")


def make_space(
    base: Config, *, cores: int, samples: int, rate: float, choices: Choices = Choices(),  # noqa: B008 (frozen)
    options: Options | None = None, nodes: int = 1, data: Any = None, program: Program | None = None,
) -> Space:  # fmt: skip
    """Return the candidates for a problem on a machine.

    Where a strategy's steps are those of another optimizer than the run's update, one process with that optimizer is a
    candidate too.

    `choices`: what to choose from; `samples`: those of the training set; `rate`: the learning rate for the usual batch;
    `nodes`: those of the machine, if it is simulated. A `program` has its own batch and learning rate, unless `choices`
    has them.

    >>> space = make_space(Config(data="digits"), cores=4, samples=1400, rate=0.1)
    >>> [str(one) for one in space.candidates[:3]]
    ['serial with 1 thread, batch 64, lr 0.1', 'serial with 4 threads, batch 64, lr 0.1', \
'serial with 2 threads, batch 64, lr 0.1']
    >>> {one.ranks for one in space.candidates}
    {1, 2, 4}
    """
    refused: dict[str, str] = {}
    layouts = list(_layouts(choices, cores, nodes, threads=options is None))
    allowed = [layout for layout in layouts if _check(layout, base, options, refused, data, program)]
    if program is not None:
        found = [
            Candidate(strategy=name, ranks=number, threads=each, batch=batch, lr=one)
            for name, number, each in allowed
            for batch in choices.batches or (None,)
            for one in choices.rates or (None,)
        ]
    else:
        batches = BATCHES if options is None else FEWER
        found = [one for layout in allowed for one in _with_batches(layout, choices, samples, rate, batches)]
        found = [replace(one, optimizer=_optimizer(one.strategy, base.update)) for one in found]
        alone = dict.fromkeys(each for name, _, each in allowed if name == SERIAL)
        found += [
            replace(one, strategy=f"{SERIAL}:rule={one.optimizer}", ranks=1, threads=each)
            for one in found
            if one.optimizer and one.ranks > 1
            for each in alone
        ]
    found = list(dict.fromkeys(found))
    usual = found[0].batch if found else None
    first = [one for one in found if one.serial and one.batch == usual and one.lr == found[0].lr]
    return Space(
        base=base, candidates=(*first, *(one for one in found if one not in first)), cores=cores, rate=rate,
        fixed_rates=bool(choices.rates) or program is not None, options=options, program=program, refused=refused,
    )  # fmt: skip


@cache
def _optimizer(strategy: str, update: str) -> str:
    """Return the rule that makes the steps of a strategy, if that is an optimizer other than the update.

    >>> _optimizer("serial:rule=adaptive", "sgd"), _optimizer("sync", "sgd")
    ('adaptive', '')
    """
    made = find_strategy(strategy)
    return "" if made is None else made.for_update(update).optimizer()


def _layouts(choices: Choices, cores: int, nodes: int, *, threads: bool) -> Iterator[tuple[str, int, int]]:
    """Yield strategies with ranks and threads, the serial ones first: one thread, all of them, and some between."""
    if choices.serial:
        most = cores if threads else 1
        for number in choices.threads or dict.fromkeys((1, most, *_between(most))):
            yield SERIAL, 1, number
    most = max(choices.ranks or (cores,))
    for name in _strategies(choices):
        declared = find_strategy(name)
        every = declared is not None and declared.equals_serial
        for number in choices.ranks or _numbers(cores, every=every):
            share = max(1, cores // number) if threads else 1
            for each in choices.threads or dict.fromkeys((share, 1) if every else (share,)):
                if (number == 1 and choices.serial) or (threads and number * each > max(cores, number)):
                    continue  # one process is serial, and ranks do not share cores
                yield name, number, each
                if not choices.strategies and number == most:
                    yield from ((other, number, each) for other in _variants(name, number, nodes))


def _between(most: int) -> Iterator[int]:
    """Yield numbers of threads between one and all, a factor of four apart, or two if there are few."""
    number = most // (4 if most >= 16 else 2)
    while number > 1:
        yield number
        number //= 4


def _numbers(cores: int, *, every: bool) -> list[int]:
    """Return numbers of ranks: all cores, and fractions of them."""
    step = 2 if every else 4
    found, number = [], cores
    while number > 1:
        found.append(number)
        number //= step
    return found


def _strategies(choices: Choices) -> list[str]:
    """Return the given strategies, or all that are known: those first that equal serial training."""
    if choices.strategies:
        return [name for name in choices.strategies if name != SERIAL]
    known = [name for name in names.names("strategies") if name != SERIAL]
    made = {name: find_strategy(name) for name in known}
    return sorted(known, key=lambda name: (not getattr(made[name], "equals_serial", False), name))


def _variants(name: str, ranks: int, nodes: int) -> list[str]:
    """Return a strategy with the other options that it says are worth trying."""
    strategy = find_strategy(name)
    if strategy is None:
        return []
    made: Any = strategy
    return [strategy_name(replace(made, **options)) for options in strategy.variants(ranks, nodes)]


def _check(
    layout: tuple[str, int, int], base: Config, options: Options | None, refused: dict[str, str], data: Any,
    program: Program | None,
) -> bool:  # fmt: skip
    """Return True if the strategy can be used; otherwise note why not."""
    from paceline.simulate.training import check, check_program

    strategy, ranks, threads = layout
    job = Job(config=replace(base, strategy=strategy, threads=threads), data=data, runs=None)
    try:
        if program is not None:
            check_program(Path(program.file), ranks, strategy, options)
            return True
        if options is not None:
            check(job, ranks, options)
        job.check_early(ranks)
    except UsageError as error:
        refused[f"{strategy} on {count(ranks, 'rank')}"] = str(error)
        return False
    return True


def _with_batches(
    layout: tuple[str, int, int], choices: Choices, samples: int, rate: float, factors: Sequence[float]
) -> Iterator[Candidate]:  # fmt: skip
    """Yield a layout with every batch, and with the learning rates for it by the known rules."""
    strategy, ranks, threads = layout
    made = find_strategy(strategy)
    averaged = made.workers(ranks) if made is not None and made.averages else 1
    # The rate suits the usual batch, or the only one.
    usual = choices.batches[0] if len(choices.batches) == 1 else USUAL_BATCH
    tried = [max(1, int(USUAL_BATCH * factor)) for factor in factors]
    tried = [batch for batch in tried if batch == USUAL_BATCH or batch * LEAST_STEPS <= samples]
    for batch in choices.batches or tried:
        for one in choices.rates or _rates(rate, batch * averaged / usual):
            yield Candidate(
                strategy=strategy, ranks=ranks, threads=threads, batch=min(batch, samples), lr=one
            )


def _rates(rate: float, factor: float) -> Sequence[float]:
    """Return the learning rates for samples that are `factor` times as many in a step: linear and square-root scaling.

    >>> _rates(0.1, 4.0), _rates(0.1, 16.0), _rates(0.1, 0.25)
    ([0.4, 0.2], [0.4, 1.6], [0.025, 0.05])
    """
    found = list(dict.fromkeys(map(rounded, (rate * factor, rate * math.sqrt(factor)))))
    return found[::-1] if factor > 4 else found
