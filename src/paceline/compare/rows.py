"""Runs side by side: the problem that they share, and a row for each group that differs only in seeds.

Runs of one problem may be compared: they differ only in strategy, ranks, threads and seed.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from paceline.compare.metric import ACCURACY, LOSS, Metric, metric_named, names_in, read_last, read_test
from paceline.compare.staleness import RowStaleness, staleness_of
from paceline.compare.theory import facts_of
from paceline.errors import UsageError
from paceline.record import Run
from paceline.record.environment import node_of
from paceline.strategies import Facts
from paceline.text import count


@dataclass(frozen=True, kw_only=True, order=True)
class Problem:
    """The settings that two runs must share for their times and accuracies to be comparable."""

    title: str
    """The data and the model."""
    details: str
    """All other settings, and the processor."""
    settings: tuple[str, ...] = ()
    """Each of them in words, always in the same order: these distinguish problems with the same title."""
    task: tuple[str, ...] = field(default=(), compare=False)
    """The same, but without those that a search chooses."""
    choices: tuple[str, ...] = field(default=(), compare=False)
    """Those that a search chooses: the batch, the learning rate, the arguments of a program; but not the epochs."""

    def __str__(self) -> str:
        return f"{self.title}, {self.details}"


def problem_of(run: Run) -> Problem:
    """Return the problem of a run: everything but strategy, ranks, threads and seed."""
    c, s = run.config, run.summary
    data = s["data"] if c["data"].startswith("builtins:") else c["data"]  # arrays have no name
    samples = "" if c.get("samples") is None else f"{count(c['samples'], 'training sample')}, "
    whole = c["batch"] or s["global_batch"]
    batch = f"batch {whole}" if c["batch_per_rank"] is None else f"batch {c['batch_per_rank']} per rank"
    length = count(c["epochs"], "epoch")
    length += "" if c["draws"] is None else f" of {count(c['draws'], 'random batch', 'es')}"
    until = (c.get("asked") or {}).get("until")
    length += f", until {until}" if until else ""
    extra = "" if c["lr_scaling"] == "none" else f" scaled by {c['lr_scaling']}"
    extra += "" if c["schedule"] == "constant" else f", {c['schedule']}"
    parameters, where = count(s["parameters"], "parameter"), run.environment["processor"]
    # The description of a torch optimizer has its learning rates.
    rate = "" if "update" in (c.get("objects") or ()) else f"lr {c['lr']:g}"
    clip = "" if c.get("clip") is None else f"clipped to {c['clip']:g}"
    update = ", ".join(filter(None, (f"{c['update']} {rate}".strip(), clip)))
    scaled = "lr not scaled" if c["lr_scaling"] == "none" else f"lr scaled by {c['lr_scaling']}"
    arguments = shlex.join((c.get("program") or {}).get("arguments") or ())
    # A program's has its learning rate, which its arguments give.
    optimizer = "" if c.get("program") else c["update"]
    code = ", ".join(f"{part} code {_code(run)[part][:8]}" for part in PARTS if part in _code(run))
    return Problem(
        title=f"{data}, {c['model']}",
        details=f"{samples}{parameters} ({c['dtype']}), {batch}, {length}, {update}{extra}, on {where}",
        settings=(
            samples.removesuffix(", "), parameters, c["dtype"], batch, length, c["update"], rate, clip, scaled,
            c["schedule"], arguments, f"on {where}", code,
        ),
        task=(
            samples.removesuffix(", "), parameters, c["dtype"], "", "", optimizer, "", clip, scaled, c["schedule"], "",
            f"on {where}", code,
        ),
        choices=(batch, rate, arguments),
    )  # fmt: skip


def titles_of(problems: Iterable[Problem]) -> dict[Problem, str]:
    """Return a title for each problem; those with the same title get the settings in which they differ.

    >>> slow, fast = (Problem(title="iris, mlp:8", details="", settings=("batch 8", rate)) for rate in ("lr 1", "lr 9"))
    >>> list(titles_of([slow, fast]).values()), list(titles_of([slow]).values())
    (['iris, mlp:8, lr 1', 'iris, mlp:8, lr 9'], ['iris, mlp:8'])
    """
    groups: dict[str, list[Problem]] = defaultdict(list)
    for problem in dict.fromkeys(problems):
        groups[problem.title].append(problem)
    found = {}
    for title, alike in groups.items():
        for problem in alike:
            others = zip(problem.settings, *(one.settings for one in alike), strict=True)
            found[problem] = ", ".join([title, *(own for own, *all_ in others if own and len(set(all_)) > 1)])
    return found


# An accuracy must exceed that of guessing by LUCK, or by PART of it if that is less: test samples are few, and classes not
# equally frequent.
LUCK, PART = 0.02, 0.25
KINDS = ("compute", "exchange", "wait", "update")
# Parts of a problem that may be the user's own code.
PARTS = ("data", "model", "update", "schedule", "program")
TIME_ONLY = "time only"


Key = tuple[Problem, str, str, int, int, str | None]
# The mean, the lowest and the highest of some values.
Span = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True, eq=False)
class Row:
    """The runs of one strategy on one number of ranks and threads, on one problem; figures are means over the runs."""

    problem: Problem
    strategy: str
    ranks: int
    threads: int
    simulated: str
    """A description of the simulation: the network, slow ranks; empty for real ranks."""
    cores: int | None
    """Cores per node; None: a simulated node, which has enough."""
    on_node: int
    """The number of ranks that share a node."""
    runs: int
    seeds: int
    accuracy: float | None
    loss: float | None
    """On the test samples; None if it is unknown, NaN or infinite."""
    values: dict[str, tuple[float, ...]]
    """The values of every metric at the end of each run, on the samples `where`: accuracy, loss and the user's own."""
    metric: Metric
    """The one by which rows of the problem are compared."""
    where: str
    """"test", or "validation" if nothing is known about the test samples."""
    train_seconds: float
    seconds_range: tuple[float, float]
    samples_per_second: float | None
    """The samples of all runs divided by their seconds."""
    speedup: float | None
    """Over the serial row with the fewest threads of the same problem and optimizer, or of the same problem if there is
    none with that optimizer, simulated if the row is; None if there is no such row, or if a run diverged."""
    speedup_range: tuple[float, float] | None
    """From its slowest run over the fastest serial one to its fastest over the slowest; None without a speedup."""
    against_threads: float | None
    """The same speedup over the serial row with the most threads; None if they make it no faster."""
    split: dict[str, float]
    """Seconds by kind, mean over ranks and runs."""
    bytes_sent: float
    diverged: tuple[str, ...]
    """The reason for each run that diverged and was stopped."""
    remarks: tuple[str, ...]
    """The remarks of its runs, without repetitions that differ only in figures."""
    staleness: RowStaleness | None
    members: tuple[Run, ...]
    """The runs themselves."""
    setting: str | None = None
    """For a candidate of a search: its batch and learning rate, as far as candidates differ in them; None: it is none."""
    grows: bool = False
    """True for a candidate that trains for as long as it takes: it is stopped when it has reached the target or cannot win
    any more, so where it ended says little."""
    one_simulation: bool = False
    """True if the same was simulated for all rows of the problem: then it is said once, not with every row."""

    @property
    def seconds(self) -> tuple[float, ...]:
        """The training time of each run."""
        return tuple(run.summary["train_seconds"] for run in self.members)

    @property
    def score(self) -> float | None:
        """The mean value of its metric; None if it is unknown."""
        return self.mean_of(self.metric.name)

    @property
    def score_range(self) -> tuple[float, float] | None:
        """The lowest and the highest value of its metric."""
        found = self.values.get(self.metric.name)
        return (min(found), max(found)) if found else None

    @property
    def scores(self) -> dict[int, list[float]]:
        """The values of its metric by seed; empty if they are not known for all runs."""
        found: dict[int, list[float]] = defaultdict(list)
        values = self.values.get(self.metric.name, ())
        if len(values) == len(self.members):
            for run, value in zip(self.members, values, strict=True):
                found[run.config["seed"]].append(value)
        return found

    def mean_of(self, name: str) -> float | None:
        """Return the mean value of a metric over the runs; None if it is unknown."""
        found = self.values.get(name)
        return fmean(found) if found else None

    @cached_property
    def facts(self) -> Facts:
        """The facts about its strategy."""
        return facts_of(self.members[0])

    @property
    def workers(self) -> int:
        """The number of its ranks that compute gradients."""
        return self.facts.workers

    @property
    def serial(self) -> bool:
        """True for one process without communication, the baseline of others."""
        return is_serial(self.strategy)

    @property
    def optimizer(self) -> str:
        """The rule that makes the steps, if that is an optimizer other than the run's update; otherwise empty."""
        return self.facts.optimizer

    @property
    def effort(self) -> tuple[int, int, bool]:
        """A key that is lower for what is simpler: fewer processes, fewer cores, the same steps as serial training."""
        same = self.serial or self.facts.equals_serial
        return self.ranks, self.ranks * self.threads, not same

    @property
    def alone(self) -> bool:
        """True for one rank of a strategy for several: it computes what serial does, so differences mean nothing."""
        return self.ranks == 1 and not self.serial

    @property
    def batch(self) -> int:
        """Samples of one gradient: those of all ranks that divide a batch, or of one rank that computes whole batches."""
        return int(self.members[0].summary["global_batch"])

    @property
    def whole(self) -> tuple[Run, ...]:
        """The runs that were not stopped, or all if there are none."""
        return tuple(run for run in self.members if not run.summary.get("diverged")) or self.members

    @property
    def oversubscribed(self) -> bool:
        """True if a node has more ranks than cores: then times say nothing about scaling."""
        return self.cores is not None and self.on_node > self.cores

    @property
    def chance(self) -> float | None:
        """The accuracy of guessing; None if there are no classes."""
        classes = self.members[0].config["classes"]
        return 1 / classes if classes else None

    @property
    def guessed(self) -> bool:
        """True if no run diverged or was stopped early, and yet the test accuracy is that of guessing."""
        if self.accuracy is None or self.diverged or self.metric != ACCURACY or self.grows:
            return False
        return is_guessing(self.accuracy, self.chance)

    @property
    def timed_only(self) -> bool:
        """True if only time was simulated: then accuracy is unknown."""
        return self.simulated.endswith(TIME_ONLY)


def is_serial(strategy: str) -> bool:
    """Return True for the serial strategy, with or without a rule.

    >>> is_serial("serial"), is_serial("serial:rule=adaptive"), is_serial("serial (replay)")
    (True, True, False)
    """
    return strategy.partition(":")[0] == "serial" and " (" not in strategy


def label(row: Row) -> str:
    """Describe a row in a few words: strategy, ranks, threads if there are several, and what was simulated.

    A candidate of a search has its batch and learning rate, too.
    """
    threads = "" if row.threads == 1 else f" of {row.threads} threads"
    oversubscribed = " *" if row.oversubscribed else ""
    setting = f", {row.setting}" if row.setting else ""
    return f"{row.strategy}, {count(row.ranks, 'rank')}{threads}{oversubscribed}{setting}{mark(row)}"


def mark(row: Row) -> str:
    """Describe the simulation in brackets; empty for real ranks, and if it is the same for all rows."""
    return f" (simulated: {row.simulated})" if row.simulated and not row.one_simulation else ""


def simulated_on(row: Row) -> str:
    """Begin a sentence about simulated rows: "Simulated", with what was simulated if rows do not say it."""
    return f"Simulated on {row.simulated}" if row.one_simulation else "Simulated"


def is_guessing(accuracy: float, chance: float | None) -> bool:
    """Return True if an accuracy is no better than guessing.

    >>> is_guessing(0.11, 0.1), is_guessing(0.13, 0.1), is_guessing(0.013, 0.01), is_guessing(0.5, None)
    (True, False, False, False)
    """
    return chance is not None and accuracy < chance + min(LUCK, PART * chance)


def ways_of(runs: Sequence[Run]) -> list[str]:
    """Describe each run: its strategy, and its code if runs of one strategy have different code."""
    codes: dict[str, set[str | None]] = defaultdict(set)
    for run in runs:
        codes[way_of(run)].add(_code(run).get("strategy"))
    return [
        way if len(codes[way]) == 1 else f"{way} (code {(_code(run).get('strategy') or 'unknown')[:8]})"
        for run in runs
        for way in (way_of(run),)
    ]


def _code(run: Run) -> dict[str, str]:
    """Return the digests of the user's own code; old records have none."""
    return run.config.get("code") or {}


def way_of(run: Run) -> str:
    """Describe the strategy and anything else that affects its figures: a replay is bound to the recorded order.

    Programs with their own loops are never stopped when they diverge, so that is not mentioned.
    """
    how = "replay" if run.config.get("replay") else ""
    diverging = "stop" if run.config.get("program") else run.config.get("on_divergence", "stop")
    pieces = run.config.get("reproducible")
    words = (
        how,
        "" if diverging == "stop" else f"on-divergence {diverging}",
        f"reproducible {pieces}" if pieces else "",
    )
    how = " ".join(filter(None, words))
    return str(run.config["strategy"]) + (f" ({how})" if how else "")


def describe_simulation(run: Run) -> str:
    """Describe the simulation; empty for a real run.

    Measured costs of computing are left out: like a real run's seconds they vary.
    """
    told = run.simulated
    if told is None:
        return ""
    words = [_spell_network(str(told["network"]))]
    words += [f"slow {told['slow']}"] if told.get("slow") else []
    measured = (told.get("costs") or {}).get("spread")
    words += [f"jitter {told['jitter']:g}"] if told.get("jitter") not in (None, 0, measured) else []
    words += ["faults"] if told.get("faults") else []
    words += ["rendezvous"] if told.get("rendezvous") else []
    words += [] if told.get("compute", True) else [TIME_ONLY]
    return ", ".join(words)


def _spell_network(written: str) -> str:
    """Return a network as it is spelled today; unchanged if it is the file of a machine."""
    from paceline.vmpi import parse_network

    try:
        return str(parse_network(written))
    except UsageError:
        return written


def rows_of(runs: Sequence[Run]) -> list[Row]:
    """Create a row for every problem, strategy and number of ranks and threads, serial first, simulated ones last.

    Problems come in the order in which they were first run.
    """
    groups: dict[Key, list[Run]] = defaultdict(list)
    for run, way in zip(runs, ways_of(runs), strict=True):
        key = (
            problem_of(run),
            describe_simulation(run),
            way,
            run.config["ranks"],
            run.summary["threads"],
            None,
        )
        groups[key].append(run)
    return _make_rows(groups, gains=True)


def candidates_of(runs: Sequence[Run]) -> list[Row]:
    """Create a row for every candidate of a search: its runs may differ in seeds and epochs.

    Of runs with the same seed, the longest counts, which contains the others. Whole runs are of different length, so
    there are no speedups: only the times to a target can be compared.
    """
    problems = [problem_of(run) for run in runs]
    several: dict[tuple[str, ...], list[bool]] = {}
    for task in {problem.task for problem in problems}:
        ways = zip(*(problem.choices for problem in problems if problem.task == task), strict=True)
        several[task] = [len(set(words)) > 1 for words in ways]
    longest: dict[tuple[Key, int], Run] = {}
    for run, way, problem in zip(runs, ways_of(runs), problems, strict=True):
        own = zip(problem.choices, several[problem.task], strict=True)
        setting = ", ".join(words for words, differ in own if differ and words)
        details = [words for words in problem.task[:-1] if words not in ("", "lr not scaled", "constant")]
        common = Problem(title=problem.title, details=", ".join(details), settings=problem.task)
        key: Key = (
            common,
            describe_simulation(run),
            way,
            run.config["ranks"],
            run.summary["threads"],
            setting,
        )
        found = longest.setdefault((key, run.config["seed"]), run)
        if len(run.epochs) > len(found.epochs):
            longest[key, run.config["seed"]] = run
    groups: dict[Key, list[Run]] = defaultdict(list)
    lengths: dict[Problem, set[int]] = defaultdict(set)
    for (key, _), run in longest.items():
        groups[key].append(run)
        lengths[key[0]].add(0 if run.config.get("program") else run.config["epochs"])
    # Runs of programs are whole, and so are all if the schedule of the learning rate depends on their length.
    return [replace(row, grows=len(lengths[row.problem]) > 1) for row in _make_rows(groups, gains=False)]


def _make_rows(groups: Mapping[Key, list[Run]], *, gains: bool) -> list[Row]:
    """Create the rows of some groups of runs; `gains`: with their speedups."""
    optimizers = {key: facts_of(members[0]).optimizer for key, members in groups.items()}
    serial: dict[tuple[Problem, str, bool], dict[int, Span]] = defaultdict(dict)
    for key, members in groups.items():
        problem, simulated, strategy, _, threads, _ = key
        if is_serial(strategy) and not any(run.summary.get("diverged") for run in members):
            seconds = [run.summary["train_seconds"] for run in members]
            own = serial[problem, optimizers[key], bool(simulated)]
            span = (fmean(seconds), min(seconds), max(seconds))
            own[threads] = min(span, own.get(threads, span))
    first = {problem: place for place, problem in enumerate(dict.fromkeys(key[0] for key in groups))}
    keys = sorted(
        groups, key=lambda key: (first[key[0]], key[1], not is_serial(key[2]), *key[2:5], key[5] or "")
    )
    tested = {key[0] for key, members in groups.items() if any(map(_is_tested, members))}
    rows = [
        _row(
            key,
            groups[key],
            _baseline(serial, key, optimizers[key]) if gains else {},
            "test" if key[0] in tested else "validation",
        )
        for key in keys
    ]
    metrics = {problem: choose_metric([row for row in rows if row.problem == problem]) for problem in first}
    kinds = {problem: len({key[1] for key in groups if key[0] == problem}) for problem in first}
    return [replace(row, metric=metrics[row.problem], one_simulation=kinds[row.problem] == 1) for row in rows]


def choose_metric(rows: Sequence[Row]) -> Metric:
    """Return the metric by which rows are compared: accuracy, the first well-known one of the user's, or the loss."""
    nothing = not any(row.values for row in rows)
    if any(ACCURACY.name in row.values or (nothing and row.chance is not None) for row in rows):
        return ACCURACY
    own = (name for row in rows for name in row.values)
    return next((found for name in own if name != LOSS.name and (found := metric_named(name))), LOSS)


def replace_metric(rows: Iterable[Row], metric: Metric) -> list[Row]:
    """Return the rows with another metric to compare them by."""
    return [replace(row, metric=metric) for row in rows]


def _is_tested(run: Run) -> bool:
    """Return True if something is known about its quality on the test samples."""
    return any(read_test(run, name) is not None for name in ("accuracy", "loss", *names_in([run])))


def _baseline(
    serial: Mapping[tuple[Problem, str, bool], dict[int, Span]], key: Key, optimizer: str
) -> dict[int, Span]:
    """Return the seconds of the serial rows to compare with, by threads: of the same optimizer, if there are any.

    Simulated rows are compared with simulated ones only, and real rows with real ones.
    """
    for own in dict.fromkeys((optimizer, "")):
        if found := serial.get((key[0], own, bool(key[1]))):
            return found
    return {}


def _row(key: Key, members: list[Run], serial: Mapping[int, Span], where: str) -> Row:
    problem, simulated, strategy, ranks, threads, setting = key
    summaries: list[dict[str, Any]] = [run.summary for run in members]
    seconds = [s["train_seconds"] for s in summaries]
    accuracies = [s["test_accuracy"] for s in summaries if s["test_accuracy"] is not None]
    names = ("accuracy", "loss", *names_in(members))
    find = read_test if where == "test" else read_last
    found = {name: [find(run, name) for run in members] for name in names}
    if where == "validation":
        accuracies = [value for value in found["accuracy"] if value is not None]
    # A loss that is not finite is unknown; accuracies are known even then.
    partly = {"accuracy": tuple(accuracies)}
    values = {
        name: partly.get(name) or tuple(value for value in some if value is not None)
        for name, some in found.items()
        if (some and None not in some) or partly.get(name)
    }
    nodes = [node_of(run) for run in members]
    cores = [own for _, own in nodes]
    diverged = tuple(s["diverged"] for s in summaries if s.get("diverged"))
    mean = fmean(seconds)
    gain = (
        {threads: own / mean for threads, (own, _, _) in serial.items()} if not diverged and mean > 0 else {}
    )
    fewest = min(gain, default=None)
    samples = sum((s["samples_per_second"] or 0) * s["train_seconds"] for s in summaries)
    return Row(
        problem=problem,
        strategy=strategy,
        ranks=ranks,
        threads=threads,
        simulated=simulated,
        cores=None if None in cores else max(own for own in cores if own is not None),
        on_node=max(on_node for on_node, _ in nodes),
        runs=len(members),
        seeds=len({run.config["seed"] for run in members}),
        accuracy=fmean(accuracies) if accuracies else None,
        loss=fmean(values["loss"]) if "loss" in values else None,
        values=values,
        metric=ACCURACY,
        where=where,
        train_seconds=mean,
        seconds_range=(min(seconds), max(seconds)),
        samples_per_second=samples / sum(seconds) if samples else None,
        speedup=None if fewest is None else gain[fewest],
        speedup_range=None if fewest is None else _divide(serial[fewest], seconds),
        against_threads=gain[max(gain)] if gain and gain[max(gain)] < gain[min(gain)] else None,
        split={kind: fmean(s["seconds"][kind] for s in summaries) for kind in KINDS},
        bytes_sent=fmean(s["bytes_sent"] for s in summaries),
        diverged=diverged,
        remarks=_kinds(remark for s in summaries for remark in s.get("remarks") or ()),
        staleness=staleness_of(summaries),
        members=tuple(members),
        setting=setting,
    )


def _divide(serial: Span, seconds: Sequence[float]) -> tuple[float, float] | None:
    """Return the smallest and the largest quotient of serial seconds and others."""
    _, low, high = serial
    return (low / max(seconds), high / min(seconds)) if min(seconds) > 0 else None


def _kinds(remarks: Iterable[str]) -> tuple[str, ...]:
    """Keep the first of all remarks that differ only in their figures.

    >>> _kinds(["3 of 4 converged", "all alike", "4 of 4 converged", "all alike"])
    ('3 of 4 converged', 'all alike')
    """
    first: dict[str, str] = {}
    for remark in remarks:
        first.setdefault(re.sub(r"\d[\d.,]*", "#", remark), remark)
    return tuple(first.values())
