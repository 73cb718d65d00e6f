"""Records into a report: its sections and their order, what a reader sees first, the diagnosis, and the environment.

The first screen of a problem (`opening_of`) has the answer, the command that repeats the run, and a figure of time to the
target against quality.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from itertools import groupby
from statistics import fmean
from typing import Any

from paceline.compare.answer import OF_STUDY, Reached, Target, answer, find_target_times, target_in, target_of
from paceline.compare.metric import Goal, Metric, names_in
from paceline.compare.rows import Row, candidates_of, label, mark, replace_metric, rows_of, titles_of
from paceline.compare.verdict import describe_failure, notes, remarks, select_real
from paceline.config import Config
from paceline.diagnosis import Cause, Diagnosis, diagnose
from paceline.diagnosis.rules import title_of
from paceline.errors import UsageError
from paceline.figures import Axis, Point, Points
from paceline.names import as_arguments
from paceline.record import Run
from paceline.record.environment import cores_were_shared
from paceline.report.document import Block, Column, Document, Opening, Section, Table, Text, Value, foldable
from paceline.report.exchange import staleness, traffic
from paceline.report.learning import end_quality, learning
from paceline.report.results import candidates, costs, describe_search, results, summary, time_split, time_to
from paceline.report.scaling import scaling
from paceline.report.series import CURVES
from paceline.report.study import (
    describe_cell,
    differing_settings,
    failed_section,
    published_section,
    select_failed,
    select_published,
)
from paceline.simulate.options import NAMES, Options
from paceline.study.folder import Context, FailedCell, Published
from paceline.text import count

TITLE = "paceline report"
CAUSES = "Shown for each strategy: its main cause. The table has all causes."
Machine = tuple[str, int]
# If the slowest row takes this many times as long as the fastest, the time axis is logarithmic.
FAR = 4.0
# Of rows that are no success, accuracies further below the best than this, and other values worse than this many times the
# best, are not drawn to scale: the others could not be distinguished.
NEAR, WORSE = 0.1, 1.0
# Values that are closer than this part of what counts as equally good do not differ: sums are rounded differently.
SAME = 0.01
CAPTION = "Each row is a point, at the mean of its runs; lines go from the lowest value to the highest. Upper left is best."
WAY = (
    "Labelled: candidates that reached the target, at the mean time of their runs; lines go from the fastest run to the "
    "slowest. Left is best. The others were stopped early, because they could no longer win, or time ran out: what they "
    "would have learned is unknown."
)
NONE_YET = (
    "Each point shows a candidate's best value. Runs were stopped after different times. Upper left is best."
)
# These are always given: a reader should see what is trained, and how.
SHOWN = ("data", "model", "strategy")
# More hosts than this are counted, not named.
NAMED_HOSTS = 8


def document_of(
    runs: Sequence[Run],
    *,
    context: Context | None = None,
    target: str | float | Goal | None = None,
    title: str | None = None,
    cut: Sequence[Run] = (),
) -> Document:
    """Return a report on some runs: a section for each problem, and the environment.

    `context`: what a study says besides its runs (`paceline.study.folder.context_of`): title, question, target, published
    figures, failed cells. `target`: what to reach on the validation samples, such as "perplexity<=12", or the fraction of
    an accuracy; by default the study's, or one point below the best serial accuracy (another metric: a tenth worse).
    `cut`: runs that were interrupted; they are listed, unless they were run again, and not compared.

    >>> import tempfile
    >>> from paceline import fit
    >>> from paceline.record import find_runs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = fit("mlp:8", "iris", strategy="serial", epochs=2, batch=10, runs=folder, quiet=True)
    ...     page = document_of(find_runs([folder]))
    >>> [section.title for section in page.sections]
    ['iris, mlp:8', 'Environment']
    """
    context = Context() if context is None else context
    cut = [run for run in cut if not any(_replaces(one, run) for one in runs)]
    goal = target if target is None or isinstance(target, Goal) else Goal.parse(target)
    if goal is not None and runs and not any(map(goal.metric.points, runs)):
        known = ["accuracy", "loss", *names_in(runs)]
        found = [name for name in known if any(Metric(name, higher=True).points(run) for run in runs)]
        raise UsageError(f"no run has the metric {goal.metric.name}; they have {', '.join(found) or 'none'}")
    if not runs and not context.failed and not cut:
        raise UsageError("there are no complete runs to report on")
    top: list[Text] = _questions(context)
    sections: list[Section] = []
    left = list(context.failed)
    searched, runs_of_studies = _divide(runs, context)
    problems = [list(group) for _, group in groupby(candidates_of(searched), key=lambda row: row.problem)]
    problems += [list(group) for _, group in groupby(rows_of(runs_of_studies), key=lambda row: row.problem)]
    titles = titles_of(rows[0].problem for rows in problems)
    for number, rows in enumerate(problems, 1):
        failed = select_failed(rows, left)
        left = [cell for cell in left if cell not in failed]
        name = titles[rows[0].problem]
        section, words = _problem(rows, number, context, goal, failed)
        sections.append(replace(section, title=name))
        top.append(Text(kind="verdict", title=name, lines=words))
    if left:
        names = differing_settings(context.failed, runs)
        sections.append(failed_section(left, names))
        top.append(Text(kind="verdict", lines=summary((), None, left, names)))
    if cut:
        sections.append(cut_section(cut))
        said = "1 run was interrupted and is not compared; continue it"
        if len(cut) > 1:
            said = f"{len(cut)} runs were interrupted and are not compared; continue them"
        top.append(Text(kind="verdict", lines=(f"{said} with paceline resume RUN.",)))
    if runs or cut:
        sections.append(environment([*runs, *cut], context.left_out))
    elif context.left_out:
        sections.append(Section(title="Left out", blocks=(list_left_out(context.left_out),)))
    named = context.title or " / ".join(dict.fromkeys(one.title for one in context.studies if one.title))
    return Document(title=title or named or TITLE, summary=tuple(top), sections=tuple(sections))


def _divide(runs: Sequence[Run], context: Context) -> tuple[list[Run], list[Run]]:
    """Return the runs of searches, without those that only measured speed, and all others."""
    folders = {one.folder.resolve(): one.search for one in context.studies if one.search is not None}
    searched, others = [], []
    for run in runs:
        search = folders.get(run.folder.resolve().parent)
        if search is None:
            others.append(run)
        elif run.config["draws"] == search.draws:
            searched.append(run)
    return searched, others


def _questions(context: Context) -> list[Text]:
    """Return the question of the study; of several studies, each question with its title."""
    if context.question or not any(one.question for one in context.studies):
        return [Text(kind="question", lines=(context.question,))] if context.question else []
    lines = (": ".join(filter(None, (one.title, one.question))) for one in context.studies if one.question)
    return [Text(kind="question", lines=tuple(dict.fromkeys(lines)))]


def _problem(
    rows: list[Row], number: int, context: Context, given: Goal | None, failed: Sequence[FailedCell]
) -> tuple[Section, tuple[str, ...]]:
    """Return the section of one problem, and the sentences about it at the top."""
    rows, target = _find_target(rows, context, given)
    theirs = select_published(rows, context.published)
    searched = rows[0].setting is not None
    if searched and target is not None:
        rows = sorted(rows, key=lambda row: time_to(row, target))
    blocks: list[Block] = [
        candidates(rows, number, target) if searched and target else results(rows, failed, number, target)
    ]
    names = differing_settings(failed, (run for row in rows for run in row.members))
    if failed:
        why = (f"Failed: {describe_cell(cell, names)}: {cell.why}" for cell in failed)
        blocks.append(Text(kind="note", lines=tuple(why)))
    if found := remarks(rows):
        blocks.append(foldable(found, f"Remarks in the records ({len(found)})"))
    sections = (
        [learning(rows[:CURVES], number, target)] if searched else _sections(rows, number, target, theirs)
    )
    problem = rows[0].problem
    homes = {run.folder.resolve().parent for row in rows for run in row.members}
    going_on = any(study.going_on and study.folder.resolve() in homes for study in context.studies)
    once = f", simulated on {rows[0].simulated}" if rows[0].one_simulation and rows[0].simulated else ""
    section = Section(
        title=problem.title,
        note=problem.details + once,
        blocks=tuple(blocks),
        sections=tuple(replace(one, folded=True) for one in sections if one is not None),
        opening=opening_of(rows, target, number, failed=len(failed), going_on=going_on),
    )
    if searched and target is not None:
        return section, (describe_search(rows, target, going_on=going_on),)
    return section, summary(rows, target, failed, names, going_on=going_on)


def _find_target(rows: list[Row], context: Context, given: Goal | None) -> tuple[list[Row], Target | None]:
    """Return the rows by the metric of the target, and the target: what is asked for, or else what suits these rows."""
    asked, words = (given, "as asked for") if given is not None else (context.target, OF_STUDY)
    if given is None and context.studies:
        asked, words = target_in(rows, {study.folder: study.target for study in context.studies})
    if asked is None and (until := (rows[0].members[0].config.get("asked") or {}).get("until")):
        with suppress(UsageError):
            asked, words = Goal.parse(until), "at which its runs end"
    if asked is not None and any(asked.metric.points(run) for row in rows for run in row.members):
        rows = replace_metric(rows, asked.metric)
    else:
        asked = None  # these runs do not have that metric
    if len(rows) == 1 and asked is None:
        return rows, None  # a single row has nothing to be compared with
    return rows, target_of(rows, asked, words)


def _sections(
    rows: list[Row], number: int, target: Target | None, theirs: Sequence[Published]
) -> list[Section | None]:
    """Return the sections about one problem, those without content as None."""
    lines = costs(rows, target)
    text = Text(kind="list", lines=lines)
    return [
        Section(title="What each strategy costs", blocks=(text,)) if lines else None,
        diagnosis(rows, number),
        scaling(rows, number, theirs),
        end_quality(rows, number, theirs),
        learning(rows, number, target),
        Section(title="Where the time went", blocks=(time_split(rows, number),)),
        staleness(rows, number),
        traffic(rows, number),
        published_section(rows, theirs, number),
    ]


# ---- the opening


def opening_of(
    rows: Sequence[Row], target: Target | None, number: int, *, failed: int = 0, going_on: bool = False
) -> Opening:
    """Return what a reader sees first of one problem.

    `failed`: the number of its cells that failed; `going_on`: more runs are to come.
    """
    found = answer(rows, target, going_on=going_on)
    command = ""
    if found.row is not None:
        first = min(found.row.members, key=lambda run: run.config["seed"])
        command = command_of(first, _epochs_needed(found.row, target))
    what = "search" if rows[0].setting is not None else "study"
    so_far = f"The {what} is still running; this is the answer so far." if going_on else ""
    searched = target is not None and rows[0].grows
    figure = race(rows, target, number) if searched and target is not None else front(rows, target, number)
    if figure is not None and found.row is not None:
        chosen = _name_point(found.row)
        points = (replace(point, chosen=point.label == chosen) for point in figure.points)
        figure = replace(figure, points=tuple(points))
    return Opening(
        sentence=found.sentence,
        sure=" ".join(
            filter(None, (so_far, found.sure, f"{count(failed, 'cell')} failed." if failed else ""))
        ),
        command=command,
        figure=figure,
        notices=notices(rows),
    )


def _epochs_needed(row: Row, target: Target | None) -> int | None:
    """Return the epochs after which all runs of a candidate of a search had reached the target; None: those that they had.

    If all candidates had as many epochs, the schedule of the learning rate may depend on their number.
    """
    if not row.grows or target is None:
        return None
    metric = target.metric
    counts = [
        next(
            (n for n, (_, value) in enumerate(metric.points(run), 1) if metric.reaches(value, target.value)),
            0,
        )
        for run in row.members
    ]
    return max(counts, default=0) or None


def notices(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return what makes times or comparisons doubtful: other programs, implausible speedups, more ranks than cores."""
    said = list(notes(rows))
    disturbed = [row for row in rows if cores_were_shared(row.remarks)]
    if disturbed:
        who = (
            "; ".join(map(label, disturbed))
            if len(disturbed) <= 3
            else f"{len(disturbed)} of {len(rows)} rows"
        )
        said.insert(0, f"Other programs were running during these runs, so their times are too long: {who}.")
    crowded = sum(row.oversubscribed for row in rows)
    if crowded:
        ranks = "1 row has" if crowded == 1 else f"{crowded} rows have"
        said.append(f"{ranks} more ranks than cores: their speedups say nothing about scaling.")
    return tuple(said)


# ---- the figure of an opening


def front(rows: Sequence[Row], target: Target | None, number: int) -> Points | None:
    """Return time to the target (or training time) against quality; None if fewer than two rows have a quality."""
    known = [row for row in rows if row.score is not None]
    if len(known) < 2:
        return None
    metric, where = known[0].metric, known[0].where
    if target is not None and not any(find_target_times(row, target).all for row in known):
        target = None  # then times to it would be a single column
    when = {row: _when(row, target) for row in known}
    points = tuple(_point(row, rows, *when[row]) for row in known)
    worst, room = _find_worst(metric, points, [point for point in points if not point.flag])
    close = [point for point in points if metric.reaches(point.y, worst)]
    beyond = len(close) < len(points)
    bounds: tuple[float | None, float | None] = (None, None)
    if beyond:
        # The spread of the points that are shown is shown too, unless it would flatten everything.
        most = worst - room if metric.higher else worst + room
        ends = [end for point in close for end in (point.y, *(point.y_range or ()))]
        near = [end if metric.reaches(end, most) else most for end in ends]
        margin = max(0.1 * (max(near) - min(near)), 0.05 * room)
        bounds = (min(near) - margin, None) if metric.higher else (None, max(near) + margin)
    else:
        bounds = _widen(metric, points)
    times = [point.x for point in points if point.x is not None]
    far = " An arrow: far worse, beyond the axis." if beyond else ""
    return Points(
        name=f"front-{number}",
        title=f"Time to {target.short} against quality"
        if target is not None
        else "Training time against quality",
        caption=CAPTION + far,
        x=Axis(
            label="training time" if target is None else f"time to {target.short}",
            seconds=True,
            log=bool(times) and min(times) > 0 and max(times) > FAR * min(times),
        ),
        y=_quality_axis(metric, where, bounds),
        points=points,
        front=_front(points, known),
        descending=not metric.higher,
        outside="not reached",
    )


def race(rows: Sequence[Row], target: Target, number: int) -> Points | None:
    """Return when the candidates of a search reached the target, and how far the others had come when they were stopped.

    A search stops runs after very different times, so only times to the target can be compared.
    """
    metric = target.metric
    known = [found for row in rows if (found := find_target_times(row, target)).best is not None]
    if len(known) < 2:
        return None
    some = any(one.all for one in known)
    lengths = [max(len(run.epochs) for run in one.row.members) for one in known]
    points = tuple(
        _on_the_way(one, rows, target, stopped=not one.all if some else length == min(lengths) < max(lengths))
        for one, length in zip(known, lengths, strict=True)
    )
    worst, _ = _find_worst(
        metric, points, [point for point, one in zip(points, known, strict=True) if one.all]
    )
    beyond = not all(metric.reaches(point.y, worst) for point in points)
    times = [point.x for point in points if point.x is not None]
    caption = WAY if some else NONE_YET
    return Points(
        name=f"front-{number}",
        title=f"Time to {target.short}" if some else f"How close each candidate came to {target.short}",
        caption=caption + (" An arrow: beyond the axis." if beyond else ""),
        x=Axis(label="training time", seconds=True, log=min(times) > 0 and max(times) > FAR * min(times)),
        y=_quality_axis(
            metric,
            "validation",
            (None, None) if not beyond else (worst, None) if metric.higher else (None, worst),
        ),
        points=points,
        descending=not metric.higher,
        level=(target.value, f"target: {target.short}"),
    )


def _on_the_way(found: Reached, rows: Sequence[Row], target: Target, *, stopped: bool) -> Point:
    """Return the point of a candidate: where it reached the target, or the best that it had reached when it was stopped."""
    row, metric = found.row, target.metric
    paths = [metric.points(run) for run in row.members]
    if found.all:
        ends = [next(value for _, value in path if metric.reaches(value, target.value)) for path in paths]
        x, y = found.mean, fmean(ends)
    else:
        x, y = min(
            ((at, value) for path in paths for at, value in path), key=lambda point: metric.key(point[1])
        )
    span = (min(found.seconds), max(found.seconds)) if found.all and row.runs > 1 else None
    return replace(_point(row, rows, x, span), y=y, y_range=None, short=None, stopped=stopped)


def _quality_axis(metric: Metric, where: str, bounds: tuple[float | None, float | None]) -> Axis:
    unit = " (%)" if metric.percent else "" if metric.higher else " (lower is better)"
    return Axis(label=metric.heading(where) + unit, percent=metric.percent, bounds=bounds)


def _find_worst(metric: Metric, points: Sequence[Point], good: Sequence[Point]) -> tuple[float, float]:
    """Return the worst value that is drawn to scale, and the room from the best to it; that of a `good` point always is."""
    best = metric.best(point.y for point in points) or 0.0
    room = NEAR if metric.percent else WORSE * abs(best)
    worst = best - room if metric.higher else best + room
    return max([worst, *(point.y for point in good)], key=metric.key), room


def _widen(metric: Metric, points: Sequence[Point]) -> tuple[float | None, float | None]:
    """Return bounds that are as far apart as values that count as equal, if all of a figure's values are closer."""
    ends = [end for point in points for end in (point.y, *(point.y_range or ()))]
    low, high = min(ends), max(ends)
    room = metric.slack(high) - (high - low)
    if low == high or room <= 0:
        return None, None
    top = high + room / 2
    return low - room / 2, min(top, 1 + room / 20) if metric.percent else top


def _when(row: Row, target: Target | None) -> tuple[float | None, tuple[float, float] | None]:
    """Return a row's mean time to the target and its spread; None if not every run reached it."""
    if target is None:
        return row.train_seconds, row.seconds_range if row.runs > 1 else None
    found = find_target_times(row, target)
    if not found.all:
        return None, None
    return found.mean, (min(found.seconds), max(found.seconds)) if row.runs > 1 else None


def _point(row: Row, rows: Sequence[Row], x: float | None, x_range: tuple[float, float] | None) -> Point:
    wrong = describe_failure(row, rows)
    return Point(
        label=_name_point(row),
        strategy=row.strategy,
        x=x,
        y=row.score or 0.0,
        x_range=x_range,
        y_range=row.score_range if row.runs > 1 else None,
        short=(
            row.strategy + mark(row),
            f"{row.ranks}" if row.threads == 1 else f"{row.ranks} x {row.threads}",
        ),
        flag=wrong if wrong != "oversubscribed" else "",
        simulated=bool(row.simulated),
        oversubscribed=row.oversubscribed,
    )


def _name_point(row: Row) -> str:
    """Return the label of a row in the figure, where hollow points have more ranks than cores."""
    return label(row).replace(" *", "", 1) if row.oversubscribed else label(row)


def _front(points: Sequence[Point], rows: Sequence[Row]) -> tuple[int, ...]:
    """Return the points that no other one beats in both time and quality; measured ones only, if there are any."""
    metric, measured = rows[0].metric, bool(select_real(rows))
    able = [
        (point.x, metric.key(point.y), k)
        for k, (point, row) in enumerate(zip(points, rows, strict=True))
        if point.x is not None and not row.diverged and not row.guessed and bool(row.simulated) != measured
    ]
    found: list[int] = []
    least = float("inf")
    for _, key, k in sorted(able):
        if key < least - SAME * metric.slack(points[k].y):
            found.append(k)
            least = key
    return tuple(found)


# ---- the command that repeats a run


def command_of(run: Run, epochs: int | None = None) -> str:
    """Return a line for a shell that trains once more as the run did; empty if its network or data are Python objects.

    `epochs`: those of the command, if they are not those of the run. A name in it that begins with a minus sign, or has
    blanks or quotes, is quoted as a shell needs it.
    """
    c = run.config if epochs is None or run.config.get("program") else {**run.config, "epochs": epochs}
    asked: dict[str, Any] = c.get("asked") or {}
    try:
        simulation = (
            Options(**{name: asked[name] for name in NAMES if name in asked}) if run.simulated else None
        )
        words = _program(c) if c.get("program") else _train(c, asked)
    except (UsageError, TypeError, ValueError):  # of another version
        return ""
    if not words or (run.simulated and asked.get("on") != "sim"):
        return ""
    if simulation is not None:
        words += ["--on=sim", *as_arguments(simulation)]
    program = [str(c["program"]["file"]), *map(str, c["program"]["arguments"])] if c.get("program") else []
    return " ".join([*map(_word, ["paceline", *words]), *map(shlex.quote, program)])


def _train(c: dict[str, Any], asked: dict[str, Any]) -> list[str]:
    """Return the words for `paceline train`; none if something was given as an object."""
    if c.get("objects"):
        return []
    values = {setting.name: c[setting.name] for setting in fields(Config) if setting.name in c}
    config = Config(**{**values, "lr": asked.get("lr", values.get("lr"))})
    rest = [word for word in as_arguments(config) if word.partition("=")[0][2:] not in SHOWN]
    ranks = [] if c["ranks"] == 1 else [f"-n={c['ranks']}"]
    return ["train", *(f"--{name}={getattr(config, name)}" for name in SHOWN), *ranks, *rest]


def _program(c: dict[str, Any]) -> list[str]:
    """Return the words for `paceline run`, before the program itself."""
    given = {name: c[name] for name in ("threads", "seed") if c.get(name)}
    if any("{seed}" in str(word) for word in c["program"]["arguments"]):
        given["seed"] = c["seed"]
    if until := (c.get("asked") or {}).get("until"):
        given["until"] = until
    ranks = [f"-n={c['ranks']}"]
    return [
        "run",
        *ranks,
        f"--strategy={c['strategy']}",
        *(f"--{name}={value}" for name, value in given.items()),
    ]


def _word(word: str) -> str:
    """Quote a word for a shell; an option is apart from its value, unless that begins with a minus sign.

    >>> _word("--lr=0.5"), _word("--data=my file.csv"), _word("--lr=-1")
    ('--lr 0.5', "--data 'my file.csv'", '--lr=-1')
    """
    name, equals, value = word.partition("=")
    if not name.startswith("-") or not equals or value.startswith("-") or not value:
        return shlex.quote(word)
    return f"{name} {shlex.quote(value)}"


# ---- the diagnosis


def diagnosis(rows: Sequence[Row], number: int) -> Section | None:
    """Return the section of one problem: each strategy's main cause, and a table of all.

    None with only serial runs, and if the steps of no run are known.
    """
    runs = [run for row in rows for run in row.members]
    found = diagnose(runs, rows[0].metric) if any(run.steps["rank"].size for run in runs) else []
    if not found:
        return None
    several = any(len(one.causes) > 1 for one in found)
    blocks: list[Block] = [Text(kind="note", lines=(CAUSES,))] if several else []
    for one in found:
        blocks.append(Text(lines=(f"{one.summary.rstrip('.')}.",)))
        blocks.append(Text(kind="list", lines=(_sentence(one.causes[0]),)))
    if several:
        blocks.append(_cause_table(found, number, once=rows[0].one_simulation))
    return Section(title="Why it stops scaling here", blocks=tuple(blocks))


def _sentence(cause: Cause) -> str:
    advice = f" Try {cause.advice}." if cause.advice else ""
    return f"{title_of(cause)}: {cause.words.rstrip('.')}.{advice}"


def _cause_table(found: Sequence[Diagnosis], number: int, *, once: bool) -> Table:
    """Return the table of all causes; `once`: the simulation is the same for all, and said elsewhere."""
    return Table(
        name=f"diagnosis-{number}",
        title="All causes",
        columns=(
            Column(name="strategy"),
            Column(name="ranks", kind="count"),
            Column(name="cause"),
            Column(name="share", kind="percent"),
            Column(name="of"),
            Column(name="explanation"),
            Column(name="advice"),
        ),
        rows=tuple(
            (
                one.strategy + (f" (simulated: {one.simulated})" if one.simulated and not once else ""),
                cause.ranks,
                title_of(cause),
                cause.share,
                None if cause.share is None else "accuracy" if cause.of_accuracy else "time",
                cause.words,
                cause.advice,
            )
            for one in found
            for cause in one.causes
        ),
        folded=True,
    )


# ---- interrupted runs


def _replaces(run: Run, cut: Run) -> bool:
    """Return True if a complete run in the same folder has the settings of an interrupted one, and as many epochs."""
    if run.folder.resolve().parent != cut.folder.resolve().parent:
        return False
    ours, theirs = (
        {
            name: value
            for name, value in one.config.items()
            if name not in ("epochs", "resumed", "strategy_facts")
        }
        for one in (run, cut)
    )
    return ours == theirs and run.config["epochs"] >= cut.config["epochs"]


def cut_section(runs: Sequence[Run]) -> Section:
    """Return a table of interrupted runs, as of their last checkpoint."""
    rows: list[tuple[Value, ...]] = []
    for run in runs:
        last = run.epochs[-1] if run.epochs else {}
        rows.append((
            run.folder.name, run.config["strategy"], run.config["ranks"], run.cut, run.summary["train_seconds"],
            last.get("loss"), last.get("validation_accuracy"),
        ))  # fmt: skip
    return Section(
        title="Interrupted runs",
        blocks=(
            Table(
                name="cut",
                title="",
                columns=(
                    Column(name="run"),
                    Column(name="strategy"),
                    Column(name="ranks", kind="count"),
                    Column(name="state"),
                    Column(name="training time", kind="seconds"),
                    Column(name="training loss", kind="number"),
                    Column(name="validation accuracy", kind="percent"),
                ),
                rows=tuple(rows),
                caption="As of the last checkpoint of each run. A run that is still in progress looks the same.",
            ),
        ),
    )


# ---- the environment


def environment(runs: Sequence[Run], damaged: Sequence[str] = ()) -> Section:
    """Return a table with a column for each machine (a processor and its cores), and what was left out."""
    machines: dict[Machine, dict[str, dict[str, None]]] = {}
    for run in runs:
        found = run.environment
        machine = (found["processor"], found["cores"])
        facts = machines.setdefault(machine, defaultdict(dict))
        for name, value in _facts(found):
            facts[name].update({value: None} if value else {})
    names = [
        name
        for name in dict.fromkeys(name for facts in machines.values() for name in facts)
        if any(facts[name] for facts in machines.values())
    ]
    if len(machines) == 1 and len(next(iter(machines.values()))["host"]) == 1:
        names.remove("host")  # a single machine needs no name
    rows: list[tuple[Value, ...]] = [
        (name, *("; ".join(facts[name]) or None for facts in machines.values())) for name in names
    ]
    many = len(machines) > 1
    heads = [f"machine {number}" if many else "" for number in range(1, len(machines) + 1)]
    return Section(
        title="Environment",
        folded=not damaged,
        blocks=(
            Table(
                name="environment",
                title="",
                columns=(Column(name="fact"), *(Column(name=head or "machine") for head in heads)),
                rows=tuple(rows),
            ),
            *((list_left_out(damaged),) if damaged else ()),
        ),
    )


def list_left_out(damaged: Sequence[str]) -> Text:
    """List what was left out of the report, and why.

    >>> list_left_out(["runs/a/summary.json is damaged: ranks is 0"]).title
    'Left out of this report: 1'
    """
    title = f"Left out of this report: {len(damaged)}"
    return replace(foldable(damaged, title), title=title)


def _facts(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the facts about one run's machine, in the order of the table."""
    simulated = found.get("simulated")
    library = " ".join((found["mpi"] or "").partition(",")[0].split())
    return [
        ("processor", found["processor"]),
        ("cores", str(found["cores"])),
        ("nodes", _nodes(found)),
        ("host", str(found.get("host") or "")),
        ("system", found["system"]),
        ("MPI", library),
        ("Python", found["python"]),
        ("paceline", str(found.get("paceline") or "")),
        *((name, str(number)) for name, number in found["packages"].items()),
        ("BLAS", str(found.get("blas") or "")),
        ("simulated", str(simulated["machine"]) if simulated else ""),
    ]


def _nodes(found: dict[str, Any]) -> str:
    """Describe the nodes; empty for a single one."""
    nodes = found.get("nodes") or {}
    cores, hosts = nodes.get("cores") or (), nodes.get("hosts") or ()
    if len(cores) < 2:
        return ""
    names = f" ({', '.join(map(str, hosts))})" if 0 < len(hosts) <= NAMED_HOSTS else ""
    return f"{len(cores)}{names}, of {' and '.join(map(str, sorted(set(cores))))} cores"
