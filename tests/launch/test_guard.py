"""A rank that fails ends the job at once and says why, once."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from paceline.launch import abort_on_error
from tests.launch.started import Started

STARTS_RANKS = True


def test_the_rank_and_its_traceback_are_named(start: Callable[..., Started]) -> None:
    job = start("one raises")
    status, out, err = job.end()
    assert status == 1
    lines = err.splitlines()
    assert lines[0].startswith("rank 1 of 3 on ")
    assert lines[0].endswith(" failed:")
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-1] == "RuntimeError: this rank has had enough"
    assert out == ""
    assert job.left() == []


@pytest.mark.parametrize("what", ["all raise", "all raise in turn"])
def test_of_many_that_fail_together_one_speaks(start: Callable[..., Started], what: str) -> None:
    job = start(what, 4)
    status, _, err = job.end()
    assert status == 1
    assert err.count("Traceback") == 1
    assert err.count(" failed:") == 1
    assert job.left() == []


def test_the_rank_that_was_interrupted_is_named(start: Callable[..., Started]) -> None:
    job = start("one interrupted")
    said = f"rank 1 of 3 on {os.uname().nodename} was interrupted (signal 2)\n"
    assert job.end() == (130, "", said)
    assert job.left() == []


@pytest.mark.parametrize(
    ("what", "status", "out", "err"),
    [
        ("one refuses", 2, "", "paceline: rank 1: no such file on this node\n"),
        ("all agree", 2, "", ""),
        ("all refuse in turn", 0, "caught: nobody can do that\n" * 3, ""),
    ],
)
def test_refusals(start: Callable[..., Started], what: str, status: int, out: str, err: str) -> None:
    job = start(what)
    assert job.end() == (status, out, err)
    assert job.left() == []


def test_a_refusal_that_only_some_make_cannot_be_caught(start: Callable[..., Started]) -> None:
    job = start("one refuses in turn")
    status, out, err = job.end()
    assert (status, out) == (2, "")
    assert err == "paceline: rank 1: no such file on this node\n"


def test_a_rank_that_leaves_while_others_wait_ends_the_job(start: Callable[..., Started]) -> None:
    job = start("one leaves")
    said = "rank 1 of 3 called sys.exit while others continued; they are ended\n"
    assert job.end() == (1, "", said)
    assert job.left() == []


def test_some_may_leave_and_others_come_to_the_end_later(start: Callable[..., Started]) -> None:
    job = start("all but one leave")
    assert job.end() == (0, "", "")
    assert job.left() == []


def test_a_process_alone_raises_as_usual() -> None:
    with pytest.raises(ZeroDivisionError), abort_on_error(None):
        _ = 1 / 0
