"""What a report says first, in words: who was fastest, who came to the target first, what each way costs."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.compare.rows import Row
from paceline.compare.target import Reached, Target, reached
from paceline.compare.verdict import as_good, divergence, quality, real, reference, simulated, verdict
from paceline.compare.words import label, megabytes, percent, seconds
from paceline.report._series import series_of
from paceline.report.failed import cell_of
from paceline.study.context import Failed

# So many are named one by one.
NAMED = 3


def summary(
    rows: Sequence[Row], target: Target | None, failed: Sequence[Failed], names: Sequence[str] = ()
) -> tuple[str, ...]:
    """Of one problem: a sentence or two for each thing that there is to say. `names`: what tells failed cells apart."""
    said = [*verdict(rows)] if rows else []
    if target is not None:
        words = f"the target of {target}"  # where it comes from is said once
        for some, begin in _apart(rows):
            if some and (sentence := first_there(some, target, begin, words)):
                said.append(sentence)
                words = f"the target of {percent(target.accuracy)}"
    if failed:
        named = [f"{cell_of(cell, names)}: {cell.why}" for cell in failed[:NAMED]]
        more = f"; and {len(failed) - NAMED} more" if len(failed) > NAMED else ""
        cells = "cell" if len(failed) == 1 else "cells"
        said.append(f"{len(failed)} {cells} failed: {'; '.join(named)}{more}.")
    return tuple(said)


def _apart(rows: Sequence[Row]) -> list[tuple[list[Row], str]]:
    """Real rows, and simulated ones of which the accuracy is known, with what their sentence begins with."""
    known = [row for row in simulated(rows) if not row.timed_only]
    return [(real(rows), ""), (known, "Simulated: ")]


def first_there(rows: Sequence[Row], target: Target, begin: str, words: str) -> str:
    """Who came to the target first, when the next strategy and serial did, and who never did.

    Nothing, where every row is alone: who is first is chance.
    """
    single = {row.strategy for row in rows if row.alone and reached(row, target).all}
    rows = [row for row in rows if not row.alone]
    if not rows:
        return ""
    when = sorted((found for row in rows if (found := reached(row, target)).all), key=_mean)
    if not when:
        nearest = max((reached(row, target) for row in rows), key=lambda found: found.best or 0.0)
        came = "" if nearest.best is None else f"; nearest came {label(nearest.row)}, {percent(nearest.best)}"
        what = "nothing on more than one rank" if single else "nothing"
        return f"{begin}{what if begin else what.capitalize()} reached {words}{came}."
    first, rest = when[0], when[1:]
    said = f"{begin}{'first' if begin else 'First'} to reach {words}: {label(first.row)}, in {seconds(_mean(first))} s"
    serial = next((found for found in rest if found.row.strategy == "serial"), None)
    if serial is not None:
        said += f"; serial took {seconds(_mean(serial))} s"
    arrived = {found.row.strategy for found in when}
    never = [
        f"{one} on more than one rank" if one in single else one
        for one in dict.fromkeys(row.strategy for row in rows)
        if one not in arrived
    ]
    if never:
        more = f" and {len(never) - NAMED} more" if len(never) > NAMED else ""
        said += f"; not reached by {', '.join(never[:NAMED])}{more}"
    return f"{said}."


def _mean(found: Reached) -> float:
    return found.mean or 0.0


def costs(rows: Sequence[Row], target: Target | None) -> tuple[str, ...]:
    """What each strategy costs beside serial: the time, bytes, accuracy lost and time to the target of its best row.

    The best row is the fastest that is as good as serial; without such a one the fastest that learned something. One with
    one rank is spoken of where there is no other.
    """
    said = []
    for some, _ in _apart(rows):
        serial = [row for row in some if row.strategy == "serial" and not row.diverged and not row.guessed]
        than = reference(some) if serial else None
        for one in series_of([row for row in some if row.strategy != "serial"]):
            several = [row for row in one.rows if not row.alone] or list(one.rows)
            measure = than or reference(several)
            good = [row for row in several if as_good(row, measure)]
            row = min(
                good or several,
                key=lambda row: (len(row.diverged) / row.runs, row.guessed, row.train_seconds),
            )
            said.append(_cost(row, than, target))
    return tuple(said)


def _cost(row: Row, than: Row | None, target: Target | None) -> str:
    words = [f"{seconds(row.train_seconds)} s"]
    if row.speedup is not None:
        words[0] += f" ({row.speedup:.2f} times as fast as serial)"
    words.append(f"{megabytes(row.bytes_sent)} MB sent" if row.bytes_sent else "nothing sent")
    if row.diverged:
        words.append(divergence(row))
    elif row.guessed:
        words.append("nothing learned")
    elif than is not None and row.accuracy is not None and than.accuracy is not None:
        lost = 100 * (than.accuracy - row.accuracy)
        words.append(
            "accuracy as serial's"
            if abs(lost) < 0.05
            else f"{abs(lost):.1f} points of accuracy {'lost' if lost > 0 else 'gained'}"
        )
    elif quality(row):
        words.append(f"accuracy {quality(row)}" if row.accuracy is not None else quality(row))
    if target is not None and not row.timed_only:
        found = reached(row, target)
        at = f"{percent(target.accuracy)} "
        words.append(at + (f"after {seconds(found.mean or 0.0)} s" if found.all else "not reached"))
    return f"{label(row)}: {', '.join(words)}"
