"""The results of a problem's runs: their table, the parts of their time, and the sentences at the top of the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from paceline.compare.answer import Reached, Target, answer, find_target_times
from paceline.compare.rows import KINDS, Row, label, mark, simulated_on
from paceline.compare.verdict import (
    best,
    describe_failure,
    divergence,
    is_as_good,
    quality,
    reference,
    select_real,
    select_simulated,
    verdict,
)
from paceline.figures import Axis, Bar, Bars
from paceline.report.document import Column, Spread, Table, Value
from paceline.report.series import series_of
from paceline.report.study import describe_cell
from paceline.study.folder import FailedCell
from paceline.text import count, megabytes, ratio, seconds, times

# The most important columns come first: a narrow screen shows those.
FIRST = (
    Column(name="strategy"),
    Column(name="ranks", kind="count"),
    Column(name="time (s)", kind="seconds"),
    Column(name="speedup", kind="times"),
)
LAST = (
    Column(name="samples/s", kind="count"),
    Column(name="MB sent", kind="megabytes"),
    Column(name="threads", kind="count"),
    Column(name="runs", kind="count"),
    Column(name="seeds", kind="count"),
)
NOTE = (
    "Each row shows means over its runs. The tinted row is the answer: the first to reach the target. A row has learned "
    "less if its accuracy is more than one point (another metric: a tenth) worse than that of the best serial row, with "
    "its optimizer or with the update of the runs (or than the best row, if there is no serial one). "
    "A speedup that is struck out is no success: the words beside the strategy say why. In brackets, or in small figures: "
    "from the lowest value of the row's runs to the highest. "
    "time: training only, without evaluation. samples/s: all samples of a row's runs divided by all their seconds. "
    "speedup: relative to the serial row with the fewest threads and the same optimizer. MB sent: by all ranks together. "
    "threads: per rank."
)
AGAINST_THREADS = Column(name="against all threads", kind="times")
THREADS = "against all threads: speed relative to the serial row with the most threads."
ALONE = "On one rank every strategy computes the same as serial. Such a row is never tinted, and its speedup is noise."
OVER = "* more ranks than cores: not a measure of scaling."
SIMULATED = (
    "Simulated times are predictions: what the strategy's own code would take on that network, by a model of the cost of "
    "messages and computing. Accuracies come from gradients that were really computed. Speedups are relative to a "
    "simulated serial row; without one there is none."
)
SPLIT = (
    "Seconds of training, mean over ranks and runs. compute: preparing batches and computing gradients; exchange: messages "
    "and copies; wait: waiting for slower ranks; update: changing the parameters. At the end of a bar: the training time "
    "(of the slowest rank) and the speedup. The line is the spread over the runs."
)
SEARCHED = (
    "Each row shows means over its runs, from the lowest to the highest if there are several. A search stops runs when "
    "they have reached the target or can no longer win, so their epochs and times (of training only) differ: compare the "
    "times to the target."
)
# At most this many things are listed by name.
NAMED = 3
# A table of more rows is folded.
LONG = 40
T = TypeVar("T")


# ---- the table


def results(
    rows: Sequence[Row], failed: Sequence[FailedCell], number: int, target: Target | None = None
) -> Table:
    """Return the table of one problem: a line for each row, then a line for each failed cell."""
    groups = [some for some in (select_real(rows), select_simulated(rows)) if len(some) > 1]
    fastest = [answer(some, target).row if target is not None else best(some) for some in groups]
    threaded = any(row.against_threads is not None for row in rows)
    caption = [
        NOTE if number == 1 else "",
        THREADS if threaded else "",
        ALONE if any(row.alone for row in rows) else "",
        OVER if any(row.oversubscribed for row in rows) else "",
        SIMULATED if select_simulated(rows) else "",
    ]
    shown = metrics_of(rows)
    columns = columns_of(rows)
    whole = _with_threads(columns, AGAINST_THREADS) if threaded else columns
    at = [column.name for column in whole].index("threads")
    # Where rows differ in their threads only, these belong to the name of a row: a narrow screen shows the first columns.
    to = 2 if _threads_differ(rows) else at

    def arrange(values: tuple[T, ...]) -> tuple[T, ...]:
        return (*values[:to], values[at], *values[to:at], *values[at + 1 :])

    long = len(rows) + len(failed) > LONG
    return Table(
        name=f"results-{number}",
        title=f"All {len(rows) + len(failed)} rows" if long else "",
        folded=long,
        columns=arrange(whole),
        rows=tuple(
            arrange(_with_threads(values, against) if threaded else values)
            for values, against in (
                *((cells(row, shown), row.against_threads) for row in rows),
                *((_make_failed_row(cell, len(columns)), None) for cell in failed),
            )
        ),
        caption=" ".join(filter(None, caption)),
        marks=(*(_mark(row, rows, fastest) for row in rows), *("failed" for _ in failed)),
    )


def time_to(row: Row, target: Target) -> tuple[bool, float, float]:
    """Return a key that is lowest for the row that reached the target first with every run, or else came nearest to it."""
    found = find_target_times(row, target)
    near = float("inf") if found.best is None else target.metric.key(found.best)
    return not found.all, found.mean if found.mean is not None else float("inf"), near


def describe_search(rows: Sequence[Row], target: Target, *, going_on: bool = False) -> str:
    """Say how many candidates of a search reached the target, in how many runs."""
    found = [find_target_times(row, target) for row in rows]
    every, some = sum(one.all for one in found), sum(bool(one.seconds) and not one.all for one in found)
    who = f"{every} of {count(len(rows), 'candidate')}"
    if every == 0 and len(rows) > 1:
        who = f"None of the {len(rows)} candidates"
    more = f" in every run; {some}{' more' * bool(every)} did in some runs" if some else ""
    runs = count(sum(row.runs for row in rows), "run")
    return f"{who} reached {target.short}{more} ({runs} {'so far' if going_on else 'in total'})."


def candidates(rows: Sequence[Row], number: int, target: Target) -> Table:
    """Return the table of a search: a line for each candidate, the first to reach the target first."""
    metric = target.metric
    chosen = answer(rows, target).row
    lines: list[tuple[Value, ...]] = []
    marks = []
    for row in rows:
        found = find_target_times(row, target)
        missed = "stopped early" if row.grows and not found.seconds else "missed the target"
        wrong = describe_failure(row, rows) or ("" if found.all else missed)
        span = _spread(row, found.mean, _ends(found.seconds)) if found.all else None
        lines.append((
            label(row), span, found.best, row.train_seconds, max(len(run.epochs) for run in row.members),
            row.samples_per_second, row.runs,
        ))  # fmt: skip
        marks.append("best" if row is chosen else wrong or ("simulated" if row.simulated else ""))
    best_value = Column(name=f"best validation {metric.name}", kind="percent" if metric.percent else "number")
    reached = any(line[1] is not None for line in lines)
    return Table(
        name=f"candidates-{number}",
        title=f"Candidates, by their time to {target.short}"
        if reached
        else f"Candidates, by their best {metric.name}",
        columns=(
            Column(name="candidate"), Column(name=f"time to {target.short} (s)", kind="seconds", unseen=not reached),
            best_value, Column(name="time (s)", kind="seconds"), Column(name="epochs", kind="count"),
            Column(name="samples/s", kind="count"), Column(name="runs", kind="count"),
        ),
        rows=tuple(lines),
        caption=SEARCHED,
        marks=tuple(marks),
    )  # fmt: skip


def _threads_differ(rows: Sequence[Row]) -> bool:
    """Return True if rows of one strategy on one number of ranks differ in their threads only."""
    return len({(row.strategy, row.ranks, row.simulated) for row in rows}) < len(
        {(row.strategy, row.ranks, row.simulated, row.threads) for row in rows}
    )


def _with_threads(values: tuple[T, ...], against: T) -> tuple[T, ...]:
    """Insert the column `against all threads` after the speedup."""
    return (*values[:4], against, *values[4:])


def metrics_of(rows: Sequence[Row]) -> list[str]:
    """Return the names of the metrics to show: the one that rows are compared by, and the user's own."""
    own = [name for row in rows for name in row.values if name not in ("accuracy", "loss")]
    return list(dict.fromkeys([*(row.metric.name for row in rows), *own])) or ["accuracy"]


def columns_of(rows: Sequence[Row]) -> tuple[Column, ...]:
    """Return the columns of the table of some rows."""
    return (*FIRST, *(_column(rows, name) for name in metrics_of(rows)), *LAST)


def _column(rows: Sequence[Row], name: str) -> Column:
    where = " or ".join(dict.fromkeys(row.where for row in rows if name in row.values)) or "test"
    return Column(name=f"{where} {name}", kind="percent" if name == "accuracy" else "number")


def cells(row: Row, metrics: Sequence[str]) -> tuple[Value, ...]:
    """Return a row's values, in the order of the columns."""
    return (
        row.strategy + mark(row),
        f"{row.ranks} *" if row.oversubscribed else row.ranks,
        _spread(row, row.train_seconds, row.seconds_range),
        divergence(row) or _spread(row, row.speedup, row.speedup_range if not row.serial else None),
        *(_spread(row, row.mean_of(name), _ends(row.values.get(name))) for name in metrics),
        row.samples_per_second,
        row.bytes_sent,
        row.threads,
        row.runs,
        row.seeds,
    )


def _spread(row: Row, value: float | None, ends: tuple[float, float] | None) -> float | None:
    """Return a mean with its spread over the row's runs; of one run it has none."""
    return value if value is None or ends is None or row.runs == 1 else Spread(value, *ends)


def _ends(values: tuple[float, ...] | None) -> tuple[float, float] | None:
    return (min(values), max(values)) if values else None


def _make_failed_row(cell: FailedCell, width: int) -> tuple[Value, ...]:
    settings = cell.settings
    ranks = settings.get("ranks")
    words = " (simulated)" if settings.get("simulated") else ""
    name = f"{settings.get('strategy', '')}{words}"
    known = (name, ranks if isinstance(ranks, int) else None, None, "failed")
    return (*known, *(None for _ in range(width - len(known))))


def _mark(row: Row, rows: Sequence[Row], fastest: Sequence[Row | None]) -> str:
    wrong = describe_failure(row, rows)
    if row in fastest and wrong in ("", "oversubscribed"):
        return "best"
    return wrong or ("simulated" if row.simulated else "")


# ---- where the time went


def time_split(rows: Sequence[Row], number: int) -> Bars:
    """Return a bar for each row: the time its ranks spent on each kind of work."""
    return Bars(
        name=f"time-split-{number}",
        title="Compute, exchange, wait and update",
        caption=SPLIT,
        x=Axis(label="seconds per rank"),
        kinds=KINDS,
        bars=tuple(_bar(row, describe_failure(row, rows)) for row in rows),
    )


def _bar(row: Row, wrong: str) -> Bar:
    sums = [sum(run.summary["seconds"][kind] for kind in KINDS) for run in row.members]
    less = wrong in ("learned less", "learned nothing")
    gain = divergence(row) or (wrong if less else "" if row.speedup is None else times(row.speedup))
    return Bar(
        label=label(row),
        strategy=row.strategy,
        parts=tuple(row.split[kind] for kind in KINDS),
        low=min(sums) if len(sums) > 1 else None,
        high=max(sums) if len(sums) > 1 else None,
        words=f"{seconds(row.train_seconds)} s  {gain}".rstrip(),
        simulated=bool(row.simulated),
        oversubscribed=row.oversubscribed,
        less=less,
    )


# ---- sentences


def summary(
    rows: Sequence[Row],
    target: Target | None,
    failed: Sequence[FailedCell],
    names: Sequence[str] = (),
    *,
    going_on: bool = False,
) -> tuple[str, ...]:
    """Return the sentences about one problem. `names`: the settings that distinguish failed cells."""
    sentences = [*verdict(rows)] if rows else []
    if target is not None:
        words = target.phrase  # where it comes from is explained once
        for some, begin in _real_and_simulated(rows):
            if some and (sentence := first_to_reach(some, target, begin, words, going_on=going_on)):
                sentences.append(sentence)
                words = f"the target of {target.short}"
    if failed:
        named = [f"{describe_cell(cell, names)}: {cell.why}" for cell in failed[:NAMED]]
        more = f"; and {len(failed) - NAMED} more" if len(failed) > NAMED else ""
        said = f"{'; '.join(named)}{more}"
        if more and len({cell.why for cell in failed}) == 1:
            said = f"all for the same reason, {failed[0].why}"
        sentences.append(f"{count(len(failed), 'cell')} failed: {said}.")
    return tuple(sentences)


def _real_and_simulated(rows: Sequence[Row]) -> list[tuple[list[Row], str]]:
    """Return the real rows and the simulated ones with a known accuracy, each with the beginning of a sentence."""
    known = [row for row in select_simulated(rows) if not row.timed_only]
    return [(select_real(rows), ""), (known, f"{simulated_on(known[0])}: " if known else "")]


def first_to_reach(
    rows: Sequence[Row], target: Target, begin: str, words: str, *, going_on: bool = False
) -> str:
    """Say which row reached the target first, when serial did, and which strategies never did.

    Empty if every row ran alone: which one is first is then chance.
    """
    single = {row.strategy for row in rows if row.alone and find_target_times(row, target).all}
    rows = [row for row in rows if not row.alone]
    if not rows:
        return ""
    when = sorted((found for row in rows if (found := find_target_times(row, target)).all), key=_mean)
    if not when:
        metric = target.metric
        known = [found for row in rows if (found := find_target_times(row, target)).best is not None]
        nearest = min(known, key=lambda found: metric.key(found.best or 0.0), default=None)
        came = (
            ""
            if nearest is None
            else f"; closest was {label(nearest.row)}, {metric.spell(nearest.best or 0.0)}"
        )
        what = "nothing on more than one rank" if single else "nothing"
        verb = "has yet reached" if going_on else "reached"
        return f"{begin}{what if begin else what.capitalize()} {verb} {words}{came}."
    first, rest = when[0], when[1:]
    sentence = f"{begin}{'first' if begin else 'First'} to reach {words}: {label(first.row)}, in {seconds(_mean(first))} s"
    rest = [] if first.row.strategy == "serial" else rest
    serial = next((found for found in rest if found.row.strategy == "serial"), None)
    if serial is not None:
        sentence += f"; serial took {seconds(_mean(serial))} s"
    arrived = {found.row.strategy for found in when}
    missed: dict[str, bool] = {}
    """The other strategies; True for those of which some runs reached it."""
    for row in rows:
        if row.strategy not in arrived:
            some = bool(find_target_times(row, target).seconds)
            missed[row.strategy] = missed.get(row.strategy, False) or some
    for some, begin in ((False, "not reached by"), (True, "not in every run by")):
        others = [one for one in missed if missed[one] is some]
        never = [f"{one} on more than one rank" if one in single else one for one in others]
        more = f" and {len(never) - NAMED} more" if len(never) > NAMED else ""
        sentence += f"; {begin} {', '.join(never[:NAMED])}{more}" if never else ""
    return f"{sentence}."


def _mean(found: Reached) -> float:
    return found.mean or 0.0


def costs(rows: Sequence[Row], target: Target | None) -> tuple[str, ...]:
    """Say what each strategy costs compared with serial: time, bytes, accuracy and time to the target of its best row.

    The best row is the fastest that is as accurate as serial, or else the fastest that learned something. A row with one
    rank is used only if there is no other.
    """
    lines = []
    for some, _ in _real_and_simulated(rows):
        serial = [row for row in some if row.serial and not row.diverged and not row.guessed]
        for one in series_of([row for row in some if not row.serial]):
            several = [row for row in one.rows if not row.alone] or list(one.rows)
            than = reference(some, one.rows[0].optimizer) if serial else None
            measure = than or reference(several)
            good = [row for row in several if is_as_good(row, measure)]
            row = min(
                good or several,
                key=lambda row: (len(row.diverged) / row.runs, row.guessed, row.train_seconds),
            )
            lines.append(_cost(row, than, target))
    return tuple(lines)


def _cost(row: Row, than: Row | None, target: Target | None) -> str:
    words = [f"{seconds(row.train_seconds)} s"]
    if row.speedup is not None:
        with_threads = (
            "" if row.against_threads is None else f", {ratio(row.against_threads)} as with all threads"
        )
        name = than.strategy if than is not None and than.serial else "serial"
        words[0] += f" ({ratio(row.speedup)} times as fast as {name}{with_threads})"
    words.append(f"{megabytes(row.bytes_sent)} MB sent" if row.bytes_sent else "nothing sent")
    if row.diverged:
        words.append(divergence(row))
    elif row.guessed:
        words.append("nothing learned")
    elif than is not None and row.score is not None and than.score is not None:
        said = _difference(row, row.score, than.score, than.strategy if than.serial else "serial")
        other = than.optimizer != row.optimizer
        words.append(f"{said} compared with serial, whose optimizer is another" if other else said)
    elif quality(row):
        words.append(
            f"accuracy {quality(row)}" if row.metric.percent and row.score is not None else quality(row)
        )
    if target is not None and not row.timed_only:
        found = find_target_times(row, target)
        at = f"{target.short} "
        words.append(at + (f"after {seconds(found.mean or 0.0)} s" if found.all else "not reached"))
    return f"{label(row)}: {', '.join(words)}"


def _difference(row: Row, value: float, serial: float, whose: str) -> str:
    """Say how much better or worse a row is than serial."""
    name = row.metric.name
    if row.metric.percent:
        lost = 100 * (serial - value)
        same, words = (
            abs(lost) < 0.05,
            f"{abs(lost):.1f} points of accuracy {'lost' if lost > 0 else 'gained'}",
        )
    else:
        change = abs(value - serial) / max(abs(serial), 1e-12)
        same = change < 0.0005
        words = f"{name} {100 * change:.1f} % {'higher' if value > serial else 'lower'}"
    return f"same {name} as {whose}" if same else words
