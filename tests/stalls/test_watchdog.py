"""The watchdog's verdicts, from reports that are made up; and what it sees of a thread."""

from __future__ import annotations

import gc
import hmac
import json
import socket
import threading
import time
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline import fit
from paceline.comm.clocks import Stopwatch
from paceline.config import Safety
from paceline.errors import UsageError
from paceline.training.watchdog import (
    Heard,
    Observer,
    Peers,
    RankReport,
    Stall,
    Watchdog,
    describe,
    judge,
    watch_ranks,
)

NOTHING = Stall({}, {}, 0.0)
WAITING = RankReport(
    rank=0, phase="exchange", waiting=True, idle=100.0, still=100.0, unbeaten=100.0, longest=2.0
)
COMPUTING = replace(WAITING, phase="compute", waiting=False)
TRAINING = replace(COMPUTING, idle=0.1, still=0.1, unbeaten=0.5)


def heard(*reports: RankReport, ages: dict[int, float] | None = None) -> dict[int, Heard]:
    """Reports of ranks 0, 1 …, which arrived a moment before second 1,000, or `ages` seconds before it."""
    return {
        rank: Heard(replace(report, rank=rank), 1000.0 - (ages or {}).get(rank, 0.5))
        for rank, report in enumerate(reports)
    }


def verdict(*reports: RankReport, ages: dict[int, float] | None = None, patience: float = 60.0) -> Stall:
    return judge(heard(*reports, ages=ages), len(reports), 1000.0, patience)


def test_a_rank_without_reports_is_to_blame_and_those_that_wait_for_it_are_not() -> None:
    assert verdict(WAITING, TRAINING, WAITING, ages={1: 70.0}) == Stall({1: 70.0}, {}, 0.0)


def test_a_rank_that_stands_still_and_waits_for_nobody_is_to_blame() -> None:
    assert verdict(WAITING, COMPUTING, WAITING) == Stall({}, {1: 100.0}, 0.0)


def test_a_rank_alone_can_only_hang() -> None:
    assert verdict(COMPUTING) == Stall({}, {0: 100.0}, 0.0)
    assert verdict(WAITING) == NOTHING


@pytest.mark.parametrize("idle", [61.0, 63.0])
def test_the_time_is_counted_beyond_the_longest_step_of_any_rank(idle: float) -> None:
    found = verdict(replace(COMPUTING, idle=idle, still=idle), WAITING)
    assert bool(found.stuck) == (idle > 60 + WAITING.longest)


def test_all_ranks_that_wait_wait_for_each_other() -> None:
    assert verdict(WAITING, replace(WAITING, idle=80.0)) == Stall({}, {}, 80.0)


@pytest.mark.parametrize(
    "other",
    [
        TRAINING,  # the slow worker of a master, or a rank of psgd with more to do
        replace(WAITING, idle=1.0),  # it has only begun to wait
        replace(COMPUTING, phase="evaluation", idle=0.0, still=0.5),  # a long evaluation
        replace(COMPUTING, phase="setup"),  # rank 0 writes the record
        replace(COMPUTING, still=0.5),  # code of the user's own that moves
    ],
    ids=["training", "begins to wait", "evaluation", "record", "busy"],
)
def test_waiting_for_one_that_works_is_no_stall(other: RankReport) -> None:
    assert verdict(WAITING, other, WAITING) == NOTHING


def test_code_that_moves_without_progress_is_a_stall_in_the_end() -> None:
    endless = replace(COMPUTING, idle=700.0, still=0.5)
    assert verdict(WAITING, endless).stuck == {1: 700.0}


def test_ranks_that_look_for_messages_for_ever_wait_for_each_other() -> None:
    polling = replace(COMPUTING, idle=0.1, still=0.1, unbeaten=700.0)
    assert verdict(polling, polling).deadlock == 700.0
    assert verdict(polling, TRAINING) == NOTHING


def test_a_rank_that_never_reported_is_no_part_of_a_deadlock() -> None:
    assert judge({0: Heard(WAITING, 999.5)}, 2, 1000.0, 60.0) == NOTHING
    silent = {0: Heard(WAITING, 999.5), 1: Heard(RankReport(rank=1), 900.0)}
    assert judge(silent, 2, 1000.0, 60.0) == Stall({1: 100.0}, {}, 0.0)


def test_the_message_says_who_where_and_who_waits_for_whom() -> None:
    waits = replace(WAITING, step=7, line="mine.py:12: me.comm.Recv(x, source=1)", call="Recv", peer=1)
    hangs = replace(
        COMPUTING,
        step=7,
        line="mine.py:9: me.gradient(batch)",
        inner="net.py:3: sleep(9)",
        process=42,
        host="n1",
    )
    reports = heard(waits, hangs, waits, waits)
    assert describe(judge(reports, 4, 1000.0, 60.0), reports, {}).splitlines() == [
        "rank 1 (process 42 on n1) has made no progress for 100 s",
        "  it is in step 8, mine.py:9: me.gradient(batch), in net.py:3: sleep(9)",
        "  waiting meanwhile:",
        "  ranks 0, 2-3: for 100 s in step 8, mine.py:12: me.comm.Recv(x, source=1), in Recv, which waits for rank 1",
    ]


def test_the_message_about_silence_says_what_is_known() -> None:
    reports = heard(
        WAITING, replace(TRAINING, step=3, line="mine.py:9: f()", process=42, host="n1"), ages={1: 90.0}
    )
    found = describe(judge(reports, 2, 1000.0, 60.0), reports, {1: "its process is stopped"}).splitlines()
    assert found[:2] == [
        "rank 1 (process 42 on n1) has given no sign of life for 90 s: its process is stopped",
        "  last seen in step 4, mine.py:9: f()",
    ]


# ---- what is seen of a thread


class Case:
    """A thread that trains, and an observer of it with a clock of its own."""

    def __init__(self, work: Any) -> None:
        self.released = threading.Event()
        self.me: Any = SimpleNamespace(
            watch=Stopwatch(time.perf_counter), beats=9, current_step=3, keeper=None
        )
        self.thread = threading.Thread(target=work, args=(self,), daemon=True)
        self.thread.start()
        assert self.thread.ident is not None
        self.observer = Observer(2, self.thread.ident, 0.0)
        self.observer.follow(self.me, work)
        while self.me.watch.kind == "update":
            time.sleep(0.001)
        time.sleep(0.05)

    def end(self) -> None:
        self.released.set()
        self.thread.join()


def compute(case: Case) -> None:
    case.me.watch.switch("compute")
    case.released.wait(280)


def test_a_thread_that_hangs_in_its_own_code() -> None:
    case = Case(compute)
    case.observer.look(1.0, 60.0)
    case.observer.look(5.0, 60.0)
    report = case.observer.look(9.0, 60.0)
    case.end()
    assert (report.waiting, report.phase, report.idle) == (False, "compute", 8.0)
    assert "test_watchdog.py:" in report.line
    assert "threading.py:" in report.inner


def test_progress_and_the_longest_step() -> None:
    case = Case(compute)
    case.observer.look(1.0, 60.0)
    case.me.beats, case.me.watch.last = 10, -1.0
    found = [case.observer.look(5.0, 60.0), case.observer.look(200.0, 60.0)]
    assert [(report.idle, report.unbeaten, report.longest) for report in found] == [
        (0, 0, 4.0),
        (195, 195, 4.0),
    ]
    case.me.beats += 1
    assert case.observer.look(201.0, 60.0).longest == 4.0  # what was a stall is not what a step takes
    case.end()


def test_a_process_that_was_stopped_itself_counts_anew() -> None:
    case = Case(compute)
    case.observer.look(1.0, 60.0)
    case.observer.forgive(500.0)
    assert case.observer.look(501.0, 60.0).idle == 1.0
    case.end()


# ---- its end


def test_nothing_is_left_after_a_run_and_the_next_run_has_its_own() -> None:
    before = set(threading.enumerate())
    for _ in range(2):
        fitted = fit("mlp:8", "iris", strategy="serial", epochs=1, batch=10, runs=None, quiet=True)
        assert fitted.remarks == ()
        assert set(threading.enumerate()) == before


def test_simulated_ranks_are_not_watched() -> None:
    comm: Any = SimpleNamespace(Work=print)
    with watch_ranks(comm, Safety()) as watchdog:
        assert watchdog is None


@pytest.mark.parametrize("value", ["0s", "soon", "-1"])
def test_a_timeout_must_be_a_time(value: str) -> None:
    with pytest.raises(UsageError, match="stall-timeout must be a time above 0"):
        Safety(stall_timeout=value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"on_stall": "abort", "stall_timeout": "never"},
            "on-stall=abort needs a stall-timeout; with never, no",
        ),
        ({"restarts": 1}, "restarts=1 needs tolerate-failures"),
    ],
)
def test_settings_that_would_do_nothing(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Safety(**given)
    Safety(restarts=1, tolerate_failures=True)


def test_no_garbage_is_collected_while_frames_of_a_thread_are_read() -> None:
    """The finalizers would let that thread go on while the object of its frame is made: the process would crash."""
    observer = Observer(0, threading.get_ident(), 0.0)
    places: list[list[str]] = []

    def note(phase: str, _: dict[str, int]) -> None:
        places.append([frame.name for frame in traceback.extract_stack()])

    threshold = gc.get_threshold()
    gc.callbacks.append(note)
    gc.set_threshold(1)  # nearly every new object starts a collection
    try:
        observer.look(1.0, 60.0)
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(note)
    assert any("look" in names for names in places)
    assert not [names for names in places if "_look" in names]
    assert gc.isenabled()


def test_a_leader_that_saves_a_checkpoint_answers_with_its_own_report() -> None:
    comm = SimpleNamespace(Get_rank=lambda: 1, Get_size=lambda: 3)
    watchdog, key = Watchdog(comm, Safety()), b"key"
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mine,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
    ):
        for one in (mine, other):
            one.bind(("127.0.0.1", 0))
            one.settimeout(5.0)
        mine.setblocking(False)
        addresses = [[], [mine.getsockname()], [other.getsockname()]]
        watchdog._peers = Peers(mine, addresses, [True] * 3, [("", 0)] * 3, key)
        watchdog._heard = heard(*[replace(TRAINING, standing=3)] * 3)
        watchdog._leader, watchdog._report = 1, replace(TRAINING, rank=1)
        watchdog._saved = {0: True}
        report = {"report": asdict(replace(TRAINING, rank=2)), "notes": {}}
        for message in (report, {"saved": [2, True]}):
            data = json.dumps({**message, "stop": 0, "leader": 1}).encode()
            other.sendto(hmac.digest(key, data, "sha256") + data, mine.getsockname())
        watchdog._save(NOTHING)
        replies = [json.loads(other.recv(65536)[32:]) for _ in range(2)]
    assert [one["report"]["rank"] for one in replies if "report" in one] == [1]


def test_a_run_that_stalls_after_training_is_not_to_be_resumed(tmp_path: Path) -> None:
    fitted = fit("mlp:4", "iris", strategy="serial", epochs=1, batch=50, quiet=True, runs=tmp_path)
    assert fitted.run is not None
    before = sorted(path.name for path in fitted.run.iterdir())
    watchdog = Watchdog(SimpleNamespace(Get_rank=lambda: 0, Get_size=lambda: 2), Safety())
    watchdog._me, watchdog._folder = SimpleNamespace(), fitted.run
    words = watchdog._close_record(NOTHING, saved=False)
    assert words == f"training was over, and its record is complete: {fitted.run}"
    assert sorted(path.name for path in fitted.run.iterdir()) == before
