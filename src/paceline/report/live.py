"""Runs that are going on: their state, read from their folders, and a local page that follows them.

Nothing is asked of the ranks: they append each epoch to epochs.jsonl, and their steps to steps/rank-R.rows, about once a
second at the end of an epoch. What is half written, damaged or just being removed counts as not there yet.

    /              the state of the runs, which refreshes itself, above the report
    /live          the state alone, as it is now
    /report.html   the report on the complete runs; made again when another one is complete
"""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.compare.metric import Goal, metric_named
from paceline.errors import UsageError, reason
from paceline.files import open_file, read_json, read_text
from paceline.record import STEP_COLUMNS, Run, find_runs, is_held, rows_path
from paceline.report.contents import document_of
from paceline.report.html import html_page
from paceline.study.folder import RUNNING, STUDY, Folder, context_of
from paceline.text import clock_time, count, share
from paceline.training.rank import sum_excess

HOST = "127.0.0.1"
# At most so many runs are listed: first those that go on, then the latest.
LISTED = 40
# Of a run with more ranks, only those that wait the least and the most are shown.
RANKS = 4
# The page shows all runs that go on, and at least so many; the others are folded.
FIRST = 5
# The latest steps of a rank from which waiting and speed are read.
STEPS = 4096
# What a step consists of.
WORK = ("compute", "exchange", "update", "wait")
COLUMNS = [STEP_COLUMNS.index(name) for name in WORK]
Rows = NDArray[np.float64]
MOST_PORT = 65535
# Times as long as it takes to make a report, before the next one is made while runs go on: they need the cores.
REST = 5.0
POLITE = 10
NONE_YET = "no runs yet"
HEADINGS = ("run", "settings", "state", "epoch", "loss", "quality", "samples/s", "waiting, by rank", "left")


@dataclass(frozen=True, kw_only=True)
class LiveRun:
    """The state of one run."""

    name: str
    state: str
    """"running", "complete", "diverged" or "stopped"."""
    epoch: int
    """The number of epochs that have ended."""
    epochs: int
    model: str = ""
    settings: str = ""
    """The batch, the learning rate and the threads, as far as they are known; first the model, if runs differ in it."""
    loss: float | None = None
    quality: str = ""
    """The metrics of the last epoch, on the validation samples."""
    speed: float | None = None
    """Samples a second."""
    waiting: Mapping[int, float] = field(default_factory=dict)
    """The fraction of time that a rank waits, by rank, as far as it is known."""
    left: float | None = None
    """Estimated seconds until the end; None if it is unknown, or if they are simulated."""

    def cells(self) -> dict[str, str]:
        """Return a line of the table, by its headings."""
        shown = ", ".join(f"{rank}: {share(part)}" for rank, part in self.waiting.items())
        values = (
            self.short_name,
            self.settings,
            self.state,
            f"{self.epoch} of {self.epochs}",
            "" if self.loss is None else f"{self.loss:.4g}",
            self.quality,
            "" if self.speed is None else f"{self.speed:,.0f}",
            self.waiting_range(with_ranks=True) if len(self.waiting) > RANKS else shown,
            "" if self.left is None else clock_time(self.left),
        )
        return dict(zip(HEADINGS, values, strict=True))

    @property
    def short_name(self) -> str:
        """The name of its folder without the time and the digest that paceline gave it.

        >>> LiveRun(name="20260101-120000-sync-n4-s1-0123abcd", state="running", epoch=0, epochs=1).short_name
        'sync-n4-s1'
        """
        return re.sub(r"^\d{8}-\d{6}-|-[0-9a-f]{8}$", "", self.name)

    def waiting_range(self, *, with_ranks: bool = False) -> str:
        """Return the least and the largest fraction of time that a rank waits; empty if they are unknown.

        >>> run = LiveRun(name="a", state="running", epoch=0, epochs=1, waiting={0: 0.2, 1: 0.0, 2: 0.1})
        >>> run.waiting_range(), run.waiting_range(with_ranks=True)
        ('0 % to 20 %', '0 % (rank 1) to 20 % (rank 0)')
        """
        if not self.waiting:
            return ""
        ends = [end(self.waiting, key=self.waiting.__getitem__) for end in (min, max)]
        if len({share(self.waiting[rank]) for rank in ends}) == 1:
            return share(self.waiting[ends[0]])
        return " to ".join(
            share(self.waiting[rank]) + (f" (rank {rank})" if with_ranks else "") for rank in ends
        )


@dataclass(frozen=True, kw_only=True)
class LiveState:
    """The state of some folders of runs."""

    runs: tuple[LiveRun, ...]
    plan: str = ""
    """What a study has done and will do next."""

    @property
    def headings(self) -> tuple[str, ...]:
        """The headings of the table: with settings only if they differ, as in a search."""
        same = len({run.settings for run in self.runs}) < 2
        return tuple(name for name in HEADINGS if name != "settings" or not same)

    @property
    def busy(self) -> bool:
        """True if something is going on."""
        return bool(self.plan) or any(run.state == "running" for run in self.runs)


def state_of(places: Sequence[Path]) -> LiveState:
    """Read the state of the runs in some folders, each a run or a folder of runs; raise a UsageError if one is missing.

    >>> import tempfile
    >>> from paceline import fit
    >>> with tempfile.TemporaryDirectory() as runs:
    ...     _ = fit("mlp:8", "iris", strategy="serial", epochs=2, batch=10, runs=runs, quiet=True)
    ...     [run] = state_of([Path(runs)]).runs
    >>> run.state, run.epoch, run.epochs
    ('complete', 2, 2)
    """
    folders: list[Path] = []
    followed = find_followed(places)
    for place in followed:
        inside = [place] if (place / "config.json").exists() else sorted(_folders_in(place), reverse=True)
        folders += inside
    found = [run for folder in folders[: 10 * LISTED] if (run := _read(folder)) is not None]
    found.sort(key=lambda run: run.state != "running")
    plans = [plan for place in followed if (plan := _plan(place))]
    shown = found[:LISTED]
    if len({run.model for run in shown}) > 1:
        shown = [replace(run, settings=", ".join(filter(None, (run.model, run.settings)))) for run in shown]
    return LiveState(runs=tuple(shown), plan="; ".join(plans))


def find_followed(places: Sequence[Path]) -> list[Path]:
    """Return the runs and folders of runs that are followed; raise a UsageError if a place is missing.

    In a folder of studies and searches, such as runs/, these are the ones that are going on, besides its own runs; if there
    are neither, the latest.
    """
    found: list[Path] = []
    for place in places:
        if not place.is_dir():
            raise UsageError(f"no such run or folder of runs: {place}")
        inside = [] if (place / "config.json").exists() else _folders_in(place, STUDY)
        busy = [folder for folder in inside if Folder(folder).busy]
        if not busy and inside and not _folders_in(place):
            found.append(max(inside, key=_read_change_time))
        else:
            found += [*busy, place]
    return found


def _read_change_time(folder: Path) -> float:
    """Return when a folder was changed."""
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def _folders_in(place: Path, holding: str = "config.json") -> list[Path]:
    """Return the folders in a place that hold a file."""
    try:
        return [path for path in place.iterdir() if (path / holding).is_file()]
    except OSError:
        return []


def _read(folder: Path) -> LiveRun | None:
    """Return the state of a run; None if its folder is not readable, or not yet."""
    try:
        run = Run(folder)
        epochs, config = _epochs(folder), run.config
        last = epochs[-1] if epochs else {}
        complete = run.complete
        summary = run.summary if complete else {}
    except (UsageError, OSError):
        return None
    ended = int(last.get("epoch", -1)) + 1
    state = "running" if is_held(folder) else "stopped"
    if complete:
        state = "diverged" if summary.get("diverged") else "complete"
    seconds = last.get("train_seconds") or 0.0
    own = config["draws"] and config["draws"] * (config["batch"] or 64)
    samples = (own or config.get("samples") or 0) * ended
    speed = summary.get("samples_per_second") or (samples / seconds if seconds and samples else None)
    left = seconds / ended * (config["epochs"] - ended) if ended and state == "running" else None
    return LiveRun(
        name=folder.name,
        state=state,
        epoch=ended,
        epochs=int(config["epochs"]),
        model=str(config.get("model") or ""),
        settings=_settings(config),
        loss=last.get("loss"),
        quality=_quality(last),
        speed=speed,
        waiting=_waiting(
            folder,
            config["ranks"],
            summary,
            in_step=(config.get("strategy_facts") or {}).get("in_step") is True,
        ),
        left=left if run.simulated is None else None,
    )


def _settings(config: Mapping[str, Any]) -> str:
    """Return the settings in which the runs of a search differ."""
    named = {"batch": config.get("batch"), "lr": config.get("lr")}
    words = [f"{name} {value:g}" for name, value in named.items() if isinstance(value, int | float)]
    threads = config.get("threads")
    return ", ".join([*words, *([count(threads, "thread")] if isinstance(threads, int) else [])])


def _epochs(folder: Path) -> list[dict[str, Any]]:
    """Return the whole lines of epochs.jsonl; the last one may be half written."""
    try:
        lines = read_text(folder / "epochs.jsonl").splitlines(keepends=True)
    except (UsageError, OSError):
        return []
    found = []
    for line in lines[-1:] if lines and lines[-1].endswith("\n") else lines[-2:-1]:
        try:
            values = json.loads(line)
        except ValueError:
            continue
        numbers = isinstance(values, dict) and all(
            values.get(name) is None or (isinstance(values[name], int | float))
            for name in ("epoch", "loss", "train_seconds", "validation_loss", "validation_accuracy")
        )
        found += [values] if numbers else []
    return found


def _quality(epoch: dict[str, Any]) -> str:
    """Format the metrics of an epoch."""
    metrics = epoch.get("metrics")
    own = dict(metrics) if isinstance(metrics, dict) else {}
    known = {
        "accuracy": epoch.get("validation_accuracy"),
        "validation loss": epoch.get("validation_loss"),
        **own,
    }
    numbers = {name: value for name, value in known.items() if isinstance(value, int | float)}
    return ", ".join(
        f"{name} {metric.spell(value) if (metric := metric_named(name)) else format(value, '.4g')}"
        for name, value in numbers.items()
    )


def _waiting(folder: Path, ranks: int, summary: Mapping[str, Any], *, in_step: bool) -> dict[int, float]:
    """Return the fraction of time that each rank waits: of the whole run, or in its latest steps.

    `in_step`: all ranks take part in the same exchanges. No rank leaves one before the last has arrived, so the
    excess over the rank that spent the least time in it is waiting.
    """
    if summary:
        found = dict(enumerate(summary.get("seconds_by_rank") or ()))
        totals = {rank: sum(own.get(name, 0.0) for name in WORK) for rank, own in found.items()}
        waited = {rank: own.get("wait", 0.0) for rank, own in found.items()}
    else:
        rows = {rank: _latest(rows_path(folder, "steps", rank)) for rank in range(ranks)}
        known = {rank: own for rank, own in rows.items() if own is not None}
        if in_step and len(known) == ranks:  # until a run is complete, the exchange includes waiting in it
            known = _common_steps(known)
        totals = {rank: float(own[:, COLUMNS].sum()) for rank, own in known.items()}
        waited = {rank: float(own[:, STEP_COLUMNS.index("wait")].sum()) for rank, own in known.items()}
        if in_step and len(known) == ranks:
            exchange = np.stack([known[rank][:, STEP_COLUMNS.index("exchange")] for rank in range(ranks)])
            for rank, more in enumerate(sum_excess(exchange).tolist()):
                waited[rank] += more
    return {rank: waited[rank] / total for rank, total in totals.items() if total > 0}


def _common_steps(rows: Mapping[int, Rows]) -> dict[int, Rows]:
    """Return the rows of those steps that are known of every rank, in order."""
    steps = {rank: own[:, STEP_COLUMNS.index("step")] for rank, own in rows.items()}
    common = functools.reduce(np.intersect1d, steps.values())
    firsts = {rank: np.unique(own, return_index=True) for rank, own in steps.items()}
    return {rank: rows[rank][first[np.isin(own, common)]] for rank, (own, first) in firsts.items()}


def _latest(path: Path | None) -> Rows | None:
    """Return the latest whole rows of a rank's steps; None if there are none."""
    width = len(STEP_COLUMNS)
    try:
        assert path is not None
        with open_file(path) as file:
            rows = os.fstat(file.fileno()).st_size // (8 * width)
            file.seek(8 * width * max(0, rows - STEPS))
            data = file.read(8 * width * min(rows, STEPS))
    except (UsageError, OSError):
        return None
    found = np.frombuffer(data[: len(data) // (8 * width) * (8 * width)], "<f8").reshape(-1, width)
    return found if len(found) and np.isfinite(found[:, COLUMNS]).all() else None


def _plan(place: Path) -> str:
    """Return what the study that is running in a folder has done and will do next, or what a search looks for."""
    if not Folder(place).busy:
        return ""
    with suppress(UsageError, OSError, KeyError, TypeError, AttributeError):
        about = read_json(place / STUDY)
        if about.get("search") is not None:
            return f"a search for {Goal.parse(about['target'])} is going on"
    try:
        values = read_json(place / RUNNING)
        done, total, then = values["done"], values["total"], values["then"]
    except (UsageError, OSError, KeyError, TypeError):
        return ""
    if not (isinstance(done, int) and isinstance(total, int) and isinstance(then, list)):
        return ""
    coming = re.sub(r" \*$", " (more ranks than cores)", str(then[0])) if then else ""
    following = f"; next: {coming}" if then else "; this is the last one"
    return f"{done} of {count(total, 'cell')} done{following}"


# ---- the page


class Follower:
    """The pages about some folders; the report is made again when other runs are complete."""

    def __init__(self, places: Sequence[Path]) -> None:
        self.places = list(places)
        self._lock = threading.Lock()
        self._known: frozenset[tuple[str, float]] | None = None
        self._report = ""
        self._due = 0.0
        """When the report may be made again, by the clock."""

    @property
    def writing(self) -> bool:
        """True while a report is being made."""
        return self._lock.locked()

    def live(self) -> str:
        """Return the state of the runs as a piece of HTML."""
        state = state_of(self.places)
        plan = f"<p>{escape(state.plan)}</p>" if state.plan else ""
        if not state.runs:
            return f"{plan}<p>{NONE_YET}</p>"
        head = "".join(f"<th>{escape(name)}</th>" for name in state.headings)
        lines = [
            f'<tr class="{run.state}">'
            + "".join(
                f'<td class="{name.split()[0]}"{title if name == "run" else ""}>{escape(cell)}</td>'
                for name, cell in run.cells().items()
                if name in state.headings
            )
            + "</tr>"
            for run in state.runs
            for title in (f' title="{escape(run.name)}"',)
        ]
        start = max(FIRST, sum(run.state == "running" for run in state.runs))

        def table(some: Sequence[str]) -> str:
            body = "".join(some)
            return (
                f'<div class="box"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
            )

        rest = lines[start:]
        more = f"<details><summary>{count(len(rest), 'earlier run')}</summary>{table(rest)}</details>"
        return plan + table(lines[:start]) + (more if rest else "")

    def page(self) -> str:
        """Return the page that refreshes itself."""
        page = PAGE.replace("{version}", self.version())
        title, live = (
            escape(", ".join(str(place if place.name else place.resolve()) for place in self.places)),
            self.live(),
        )
        return title.join(live.join(part.split("{live}")) for part in page.split("{title}"))

    def report(self) -> str:
        """Return the report on the complete runs."""
        with self._lock:
            known = self._select_shown()
            if known != self._known:
                began = time.monotonic()
                self._report, self._known = self._write(), known
                self._due = time.monotonic() + REST * (time.monotonic() - began)
            return self._report

    def version(self) -> str:
        """Return a text that differs if other runs are complete, so that a page knows when to show the report again."""
        return hashlib.sha256(repr(sorted(self._select_shown())).encode(errors="replace")).hexdigest()[:16]

    def _select_shown(self) -> frozenset[tuple[str, float]]:
        """Return the complete runs that the report should have: while runs go on, the last ones until it is due."""
        if self._known is not None and time.monotonic() < self._due and state_of(self.places).busy:
            return self._known
        return self._find_complete()

    def _find_complete(self) -> frozenset[tuple[str, float]]:
        found = set()
        for place in find_followed(self.places):
            for summary in (place / "summary.json", *place.glob("*/summary.json")):
                try:
                    found.add((str(summary), summary.stat().st_mtime))
                except OSError:
                    continue
        return frozenset(found)

    def _write(self) -> str:
        damaged: list[str] = []
        try:
            followed = find_followed(self.places)
            runs = find_runs(followed, damaged)
            if not runs:
                return NOTICE.replace("{words}", "No run is complete yet.")
            context = context_of(followed)
            context = replace(context, left_out=(*damaged, *context.left_out))
            return html_page(document_of(runs, context=context))
        except UsageError as error:
            return NOTICE.replace("{words}", escape(str(error)))


# The pages ask nobody but this server for anything.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; font-src data:; "
    "connect-src 'self'; frame-src 'self'"
)
NOTICE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
    "<title>paceline</title><style>body { font: 15px/1.5 system-ui, sans-serif; margin: 0 }</style><p>{words}</p></html>"
)
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">
<style>
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 78rem; padding: 1rem }
.box { overflow-x: auto } table { border-collapse: collapse } td, th { padding: .2rem .8rem .2rem 0; text-align: left }
td, th { white-space: nowrap; vertical-align: top }
td.run, td.quality, td.settings, td[class^="waiting"] { white-space: normal; min-width: 9rem; overflow-wrap: anywhere }
summary { cursor: pointer; margin: .5rem 0 } h1 { font-size: 1.2rem; margin: 0 }
tr.running td { font-weight: 600 } tr.diverged td, tr.stopped td, .ended #live { opacity: .6 }
#ended { display: none } .ended #ended { display: block; font-weight: 600 }
iframe { border: 0; width: 100%; height: 85vh; margin-top: 1rem }
</style></head>
<body><h1>{title}</h1>
<p id="ended">paceline watch has ended, or cannot be reached. This is what it showed last.</p>
<div id="live">{live}</div>
<iframe id="report" src="/report.html" title="the report"></iframe>
<script>
const frame = document.getElementById("report");
let shown = "{version}", loading = false;
function details() { return [...frame.contentDocument.querySelectorAll("details")]; }
function words(one) { return one.querySelector("summary").textContent; }
async function show(version) {  // the report again, as far down as before, and with the same parts unfolded
  const answer = await fetch("/report.html");  // if the server ends meanwhile, the frame keeps the last one
  if (!answer.ok) throw new Error(answer.status);
  await answer.text();
  shown = version;
  const inside = frame.contentWindow, at = inside.scrollY, open = new Set(details().filter(one => one.open).map(words));
  frame.onload = () => {
    details().forEach(one => { if (open.has(words(one))) one.open = true; });
    frame.contentWindow.scrollTo(0, at);
  };
  inside.location.replace("/report.html");
}
async function refresh() {
  try {
    const answer = await fetch("/live");
    const live = document.getElementById("live"), open = live.querySelector("details")?.open;
    live.innerHTML = await answer.text();
    if (open) live.querySelector("details")?.setAttribute("open", "");
    document.body.className = "";
    const version = answer.headers.get("X-Report");
    if (version !== shown && !loading) {
      loading = true;
      show(version).catch(() => {}).finally(() => { loading = false; });
    }
  } catch (error) { document.body.className = "ended"; }
  setTimeout(refresh, 2000);
}
setTimeout(refresh, 2000);
</script></body></html>
"""


class Server(http.server.ThreadingHTTPServer):
    """Serves the pages of a follower."""

    daemon_threads = True
    follower: Follower


def serve(places: Sequence[Path], port: int = 0) -> tuple[Server, str]:
    """Serve the page about some folders to this machine alone; return the server, whose thread is running, and its address.

    `port`: 0 is any free one. Call `shutdown` and `server_close` of the server at the end.
    """
    follower = Follower(places)
    pages: dict[str, Callable[[], str]] = {
        "/": follower.page, "/live": follower.live, "/report.html": follower.report,
    }  # fmt: skip

    class Handler(http.server.BaseHTTPRequestHandler):
        """Answers requests for the three pages."""

        def do_GET(self) -> None:
            address, chosen = server.server_address, pages.get(self.path.partition("?")[0])
            hosts = {f"{name}:{address[1]}" for name in (HOST, "localhost")}
            if self.headers.get("Host") not in hosts:  # another site that resolves to this machine
                self.send_error(403)
                return
            if chosen is None:
                self.send_error(404)
                return
            with suppress(OSError):  # of this thread alone: the runs come first where cores are scarce
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), POLITE)
            try:
                version = follower.version()
                body = chosen().encode(errors="surrogateescape")
            except UsageError as error:  # the folder was removed
                body, version = escape(str(error)).encode(), ""
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Report", version)
            self.send_header("Content-Security-Policy", POLICY)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    if not 0 <= port <= MOST_PORT:
        raise UsageError(f"port must be from 0 to {MOST_PORT}; got {port}")
    try:
        server = Server((HOST, port), Handler)
    except OSError as error:
        raise UsageError(
            f"cannot serve on port {port}: {reason(error)}; choose another --port, or none for a free one"
        ) from None
    server.follower = follower
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://{HOST}:{server.server_address[1]}/"
