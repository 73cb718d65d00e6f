"""Verdicts: a sentence on the gains of the strategies tried on one problem, and notes on single rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

from paceline.compare.metric import LOSS
from paceline.compare.noise import WITHIN, Timing, is_within_noise, with_noise
from paceline.compare.rows import Row, label, simulated_on
from paceline.text import count, ratio, seconds

# The number of rows that a sentence lists individually.
NAMED = 2
# As many times as fast as there are cores is perfect; a little more may be due to caches, but not this much.
SUPERLINEAR = 1.1
# The beginning of the verdict where one process with many threads is the fastest.
THREADS_WIN = "threads win"


def reference(rows: Sequence[Row], optimizer: str = "") -> Row | None:
    """Return the row that others must match: the best serial one, or the best of all, without divergence or guessing.

    `optimizer`: that of the row to be compared. If there is no serial row with it, take one with the run's update.
    """
    whole = [row for row in rows if not row.diverged and not row.guessed]
    whole = [row for row in whole if not row.timed_only] or whole
    own, plain = ([row for row in whole if row.serial and row.optimizer == kind] for kind in (optimizer, ""))
    return min(own or plain or whole, key=_error, default=None)


def is_as_good(row: Row, than: Row | None) -> bool:
    """Return True if a row has learned something and is within a point of the other's accuracy, or a tenth of its score.

    If some seeds are missing on one side, the others count: seeds may differ by more than that. A row with only time
    simulated counts as good.
    """
    if row.diverged or row.guessed:
        return False
    if than is None or row.timed_only:
        return True
    if than.score is None or row.score is None:
        return than.score is None
    ours, theirs = row.scores, than.scores
    if both := ours.keys() & theirs.keys():
        value, goal = (fmean(value for seed in both for value in one[seed]) for one in (ours, theirs))
        return than.metric.reaches(value, than.metric.relax(goal))
    return than.metric.reaches(row.score, than.metric.relax(than.score))


def best(rows: Sequence[Row]) -> Row | None:
    """Return the fastest row that is as good as serial, both with its optimizer and with the run's update.

    Single ranks of other strategies do not count.
    """
    good = [
        row
        for row in rows
        if not row.alone and all(is_as_good(row, reference(rows, kind)) for kind in {row.optimizer, ""})
    ]
    return min(good, key=_seconds, default=None)


def describe_failure(row: Row, rows: Sequence[Row]) -> str:
    """Return in a word or two why a row is no success, whatever its time; empty if nothing is wrong with it.

    `rows`: all rows of the problem. Candidates of a search are trained for as long as it takes to reach a target, so where
    they end says nothing.
    """
    if row.diverged:
        return "diverged"
    if row.guessed:
        return "learned nothing"
    if row.setting is not None:
        return "oversubscribed" if row.oversubscribed else ""
    alike = [one for one in rows if bool(one.simulated) == bool(row.simulated)]
    if not any(one.serial for one in alike):
        alike += [one for one in rows if one.serial]
    if not all(is_as_good(row, reference(alike, kind)) for kind in {row.optimizer, ""}):
        return "learned less"
    return "oversubscribed" if row.oversubscribed else ""


def is_superlinear(speedup: float, cores: int) -> bool:
    """Return True if a speedup is implausible: more than so many cores can give.

    >>> is_superlinear(2.5, cores=2), is_superlinear(2.1, cores=2)
    (True, False)
    """
    return speedup > SUPERLINEAR * cores


def is_implausible(row: Row, rows: Sequence[Row]) -> bool:
    """Return True if even the slowest of a row's runs is faster than its cores can make it.

    Then its times or serial's are wrong: something else was running. Larger batches than serial's explain it as well.
    Serial's own threads may have gained it nothing, so they do not count.
    """
    if row.speedup_range is None or row.simulated or row.serial or row.alone:
        return False
    serial = fastest_serial(select_real(rows))
    if serial is not None and row.batch > serial.batch:
        return False
    return is_superlinear(row.speedup_range[0], row.ranks * row.threads)


def _implausible(row: Row) -> str:
    times = f"{ratio(row.speedup or 0.0)} times as fast as serial"
    runs = "on one run" if row.runs == 1 else f"on {row.runs} runs"
    return (
        f"{label(row)}: {times} {runs} is implausible, more than {count(row.ranks, 'rank')} can give; serial's runs were "
        "probably slowed down by something else: measure both again"
    )


def select_real(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of real ranks."""
    return [row for row in rows if not row.simulated]


def select_simulated(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of simulated ranks."""
    return [row for row in rows if row.simulated]


def verdict(rows: Sequence[Row]) -> tuple[str, ...]:
    """Summarize the gains of the strategies tried on one problem in a sentence, and those of simulated ones in another.

    Strategies are compared with serial under the same optimizer. If optimizers differ, the first sentence says so, and
    there is a sentence for each of them.
    """
    tried, foretold = select_real(rows), select_simulated(rows)
    said = [_capital(sentence, tried) for sentence in _by_optimizer(tried)]
    return (*said, *(f"{simulated_on(foretold[0])}: {sentence}" for sentence in _by_optimizer(foretold)))


def optimizers(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows to be compared with each other, by optimizer, those with the run's own update first.

    Where no serial row has an optimizer, those with the run's update are among its rows.
    """
    kinds = sorted({row.optimizer for row in rows})
    plain = [row for row in rows if row.serial and not row.optimizer]
    groups = {}
    for kind in kinds:
        own = [row for row in rows if row.optimizer == kind]
        groups[kind] = own if any(row.serial for row in own) else [*plain, *own]
    return groups


def _by_optimizer(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each optimizer; before them, if there are several, one that says what they are."""
    groups = optimizers(rows)
    if len(groups) <= 1 or all(row.timed_only for row in rows):
        return [_verdict(rows)] if rows else []
    said = [_difference(rows, groups)]
    for kind, own in groups.items():
        if any(not row.serial for row in own) or len(own) > 1:
            begin = f"with {kind or rows[0].members[0].config['update']}, "
            said.append(f"{begin}{_verdict(own)}")
    return said


def _difference(rows: Sequence[Row], groups: Mapping[str, Sequence[Row]]) -> str:
    """Say which strategies have another optimizer, and what that does on one process."""
    update = rows[0].members[0].config["update"]
    parts, missing = [], []
    for kind, own in groups.items():
        if not kind:
            continue
        who = list(dict.fromkeys(row.strategy for row in own if row.optimizer == kind and not row.serial))
        named = "; ".join(who[:NAMED]) + _more(who[NAMED:])
        serial = [row for row in own if row.serial and row.optimizer == kind]
        if named:
            parts.append(f"{named} {'makes its' if len(who) == 1 else 'make their'} steps by the rule {kind}")
        if serial:
            than = reference(own, kind) or serial[0]
            how = "applies that rule without staleness" if named else f"makes its steps by the rule {kind}"
            parts.append(
                f"{label(than)}, {how} and ends {_describe_end(than)}{_slower_than_plain(than, groups)}"
            )
        elif who:
            missing.append(kind)
    plain = reference(groups.get("", ()))
    other = f", with which serial ends {_describe_end(plain)}" if plain is not None and plain.serial else ""
    if any(row.serial and row.guessed for row in groups.get("", ())):
        other = ", with which serial learned nothing"
    said = f"the optimizer differs: {'; '.join(parts)}; the update of the others is {update}{other}"
    if missing:
        names = " and ".join(f"serial:rule={kind}" for kind in missing)
        return f"{said}. There is no run of {names}: differences in accuracy may be due to the rule, not to the strategy."
    return f"{said}. Each is compared with serial under its own optimizer."


def _slower_than_plain(row: Row, groups: Mapping[str, Sequence[Row]]) -> str:
    """Compare the time of one process with a rule with that of one with the run's update and as many threads."""
    alike = [one for one in groups.get("", ()) if one.serial and one.threads == row.threads]
    if not alike or not min(row.train_seconds, alike[0].train_seconds) > 0:
        return ""
    return f", in {row.train_seconds / alike[0].train_seconds:.2f} times the time of serial"


def _capital(sentence: str, rows: Sequence[Row]) -> str:
    """Capitalise a sentence, unless it begins with a name."""
    named = any(sentence.startswith(row.strategy) for row in rows)
    return sentence if named else sentence[:1].upper() + sentence[1:]


def describe_guessing(row: Row) -> str:
    """Describe a row that learned nothing."""
    return f"nothing learned: accuracy is that of guessing ({100 * (row.chance or 0.0):.3g} %)"


def _verdict(rows: Sequence[Row]) -> str:
    than = reference(rows, next((row.optimizer for row in rows if not row.serial), rows[0].optimizer))
    others = [row for row in rows if not row.serial and not row.alone]
    if than is None and any(row.guessed for row in rows):
        return f"{describe_guessing(next(row for row in rows if row.guessed))}{_list_diverged(rows)}."
    if than is None:
        return f"every {'run' if len(rows) == 1 else 'strategy tried'} diverged."
    if not others:
        nothing = "there is nothing to compare it with"
        if _alone(rows) or len([row for row in rows if row.serial]) > 1:
            nothing = "nothing was tried on more than one rank"
        return f"{_label_with_time(best(rows) or than)}{_threads(rows)}; {nothing}{_list_diverged(rows)}."
    good = [row for row in others if is_as_good(row, than)]
    if not good:
        nearest = min(others, key=_error)
        closest = f"{label(nearest)}, {_describe_end(nearest)}"
        return f"nothing was as good as {_name(than)}, {quality(than)}; closest was {closest}."
    nearest = min(good, key=_seconds)
    worse = [row for row in others if not row.diverged and row not in good]
    fastest = min(
        [
            nearest,
            *(row for row in rows if row.serial and not row.diverged and not row.guessed),
        ],
        key=_seconds,
    )
    faster = sorted((row for row in worse if _seconds(row) < _seconds(fastest)), key=_seconds)
    said = f"{_bought(nearest, than, rows, faster)}{_list_faster(faster)}{_list_slower(good, nearest, than)}"
    threads = "" if said.startswith(THREADS_WIN) or nearest.against_threads is not None else _threads(rows)
    return f"{said}{threads}{_list_diverged(rows)}."


def _bought(nearest: Row, than: Row, rows: Sequence[Row], faster: Sequence[Row]) -> str:
    said = _label_with_time(nearest)
    if not any(row.serial for row in rows):
        return f"{said} is the fastest; there is no serial run to compare it with"
    if not than.serial and any(row.guessed for row in rows if row.serial):
        return f"{said} is the fastest that learned anything, which serial did not"
    serial, name = fastest_serial(rows), _name(than)
    if serial is None or nearest.speedup is None or nearest.train_seconds <= 0:
        return f"{said} is the fastest"
    gain = serial.train_seconds / nearest.train_seconds
    if gain <= 1:
        what = "nothing as good" if faster else "nothing"
        speed = f"at {gain:.2f} times its speed{_explain_doubts(nearest, rows)}"
        if serial.threads > nearest.threads:
            alone = (
                f"one process with {count(serial.threads, 'thread')} takes {seconds(serial.train_seconds)} s"
            )
            return f"{THREADS_WIN}: {alone}, and {what} was faster; closest was {said}, {speed}"
        return f"{what} was faster than {name}; closest was {said}, {speed}"
    at = ""
    if nearest.score is not None and than.score is not None:
        spell = than.metric.spell
        at = f"; {than.metric.heading(than.where)} {spell(nearest.score)}, {name} {spell(than.score)}"
    of = f"{ratio(nearest.speedup)} times as fast as {name}"
    if nearest.against_threads is not None:
        fewest, most = (pick(row.threads for row in rows if row.serial) for pick in (min, max))
        of += f" with {count(fewest, 'thread')} and {ratio(nearest.against_threads)} times as fast as with {most}"
    return f"{said}, is {of}{_explain_doubts(nearest, rows)}{at}"


def _threads(rows: Sequence[Row]) -> str:
    """Compare one process with several threads and with as few as were tried; empty if there is nothing to compare."""
    serial = [row for row in rows if row.serial and not row.diverged]
    fewest = min(serial, key=lambda row: (row.threads, row.train_seconds), default=None)
    more = [row for row in serial if fewest is not None and row.threads > fewest.threads]
    if fewest is None or not more or not fewest.train_seconds > 0:
        return ""
    row = min(more, key=_seconds)
    gain = fewest.train_seconds / row.train_seconds
    took = f"{seconds(row.train_seconds)} s instead of {seconds(fewest.train_seconds)} s"
    speed = f"one process with {row.threads} threads runs at {gain:.2f} times its speed with {fewest.threads}"
    return f"; {speed} ({took}{'; ' + WITHIN if _is_noise(row, fewest, rows) else ''})"


def _name(than: Row) -> str:
    """Return the name of the serial row that others are compared with."""
    return than.strategy if than.serial else "serial"


def _alone(rows: Sequence[Row]) -> bool:
    return any(row.alone for row in rows)


def _explain_doubts(row: Row, rows: Sequence[Row]) -> str:
    """Explain in brackets why its time is hard to compare with serial's: batches, a wide spread, an implausible gain."""
    serial = fastest_serial(rows)
    if serial is None:
        return ""
    said = [] if row.batch == serial.batch else [f"with batches of {row.batch}, serial's are {serial.batch}"]
    if _is_noise(row, serial, rows):
        said.append(WITHIN)
    if is_implausible(row, rows):
        said.append(f"implausible: more than {count(row.ranks, 'rank')} can give")
    return f" ({'; '.join(said)})" if said else ""


def _is_noise(one: Row, other: Row, rows: Sequence[Row]) -> bool:
    """Return True if the difference between the training times of two rows is within the noise of all rows."""
    whole = [row for row in rows if not row.diverged]
    times = with_noise({row: Timing(seconds=row.seconds) for row in {*whole, one, other}})
    return is_within_noise(times[one], times[other])


def fastest_serial(rows: Sequence[Row]) -> Row | None:
    """Return the fastest serial row, whatever its threads."""
    return min((row for row in rows if row.serial and not row.diverged), key=_seconds, default=None)


def batches(rows: Sequence[Row]) -> list[str]:
    """Warn about speedups of ranks that compute larger batches than serial does; each size once."""
    serial = fastest_serial(rows)
    larger = [row for row in rows if serial is not None and row.batch > serial.batch]
    most: dict[tuple[int, int], list[str]] = defaultdict(list)
    for strategy in dict.fromkeys(row.strategy for row in larger):
        widest = max((row for row in larger if row.strategy == strategy), key=lambda row: row.batch)
        most[widest.batch, widest.ranks].append(strategy)
    return [
        f"{'; '.join(who)}: {'its' if len(who) == 1 else 'their'} batch grows with the ranks, to {batch:,} samples at "
        f"{ranks}; larger batches take less time per sample on one process too, so the speedup is not due to "
        "the ranks alone"
        for (batch, ranks), who in most.items()
    ]


def _list_faster(faster: Sequence[Row]) -> str:
    """List what is faster than the fastest good row."""
    named = [f"{label(row)}, {_describe_end(row)}" for row in faster]
    return f"; faster, but worse: {'; '.join(named[:NAMED])}{_more(named[NAMED:])}" if named else ""


def _list_slower(good: Sequence[Row], nearest: Row, than: Row) -> str:
    """List what is clearly better than serial, but slower."""
    most, metric = min(good, key=_error), than.metric
    if most is nearest or most.score is None or than.score is None:
        return ""
    if metric.reaches(than.score, metric.relax(most.score)):
        return ""
    words = "most accurate" if metric.percent else f"best by {metric.name}"
    return f"; {words} was {label(most)}, at {quality(most)}"


def _list_diverged(rows: Sequence[Row]) -> str:
    named = [label(row) for row in rows if row.diverged]
    return f"; diverged: {'; '.join(named[:NAMED])}{_more(named[NAMED:])}" if named else ""


def notes(rows: Sequence[Row]) -> list[str]:
    """Return notes on single rows: why some diverged, which learned nothing or are too fast, whose batches are larger."""
    said = [f"{label(row)}, {divergence(row)}: {row.diverged[0]}" for row in rows if row.diverged]
    lost = [row for row in rows if row.guessed]
    said += [f"{'; '.join(map(label, lost))}: {describe_guessing(lost[0])}"] if lost else []
    said += [_implausible(row) for row in rows if is_implausible(row, rows)]
    return said + batches(rows)


def remarks(rows: Sequence[Row]) -> list[str]:
    """Return the remarks of the rows' strategies, each once."""
    said = []
    who: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        for remark in row.remarks:
            if row.staleness is None or not remark.startswith("staleness:"):  # which has its own figure
                who[remark].append(row)
    for remark, those in who.items():
        of = f" (one of {those[0].runs} runs)" if len(those) == 1 and those[0].runs > 1 else ""
        said.append(f"{'; '.join(map(label, those))}{of}: {remark}")
    return said


def divergence(row: Row) -> str:
    """State how many of the row's runs diverged; empty if none did."""
    some = f"{len(row.diverged)} of {row.runs} " if 0 < len(row.diverged) < row.runs else ""
    return f"{some}diverged" if row.diverged else ""


def quality(row: Row) -> str:
    """Format a row's accuracy, or the metric that it is compared by, or else its loss; empty if nothing is known."""
    if row.score is not None:
        return row.metric.describe(row.score, row.where)
    return "" if row.loss is None else LOSS.describe(row.loss, row.where)


def _describe_end(row: Row) -> str:
    """Format a row's accuracy for the end of a sentence."""
    if row.diverged:
        return divergence(row)
    return f"at {quality(row) or 'unknown quality'}" + (", which is guessing" if row.guessed else "")


def _more(rest: Sequence[str]) -> str:
    return f"; and {len(rest)} more" if rest else ""


def _label_with_time(row: Row) -> str:
    return f"{label(row)}, in {seconds(row.train_seconds)} s"


def _seconds(row: Row) -> float:
    return row.train_seconds


def _error(row: Row) -> tuple[bool, float]:
    """Return a key that is lowest for the best row."""
    if row.score is None:
        return True, 0.0
    return bool(row.diverged), row.metric.key(row.score)
