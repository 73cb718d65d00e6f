"""The two allreduces: what they give and what they send."""

from __future__ import annotations

from tests.ranks import on_ranks


def test_small_and_odd_arrays() -> None:
    """Also fewer elements than ranks, and the placeholders' one integer."""
    assert on_ranks("tests.course.cases:small_and_odd", 4) == [[]] * 4
    assert on_ranks("tests.course.cases:small_and_odd", 3) == [[]] * 3


def test_a_rank_may_be_a_whole_call_ahead() -> None:
    assert on_ranks("tests.course.cases:late", 3) == [0] * 3
