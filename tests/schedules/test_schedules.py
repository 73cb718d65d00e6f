"""Schedules: their shape, their ends, their options; and the learning rate's scaling with the ranks."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import names as registry
from paceline import names as spec
from paceline.errors import UsageError
from paceline.schedules import Constant, Cosine, Schedule, Step, Warmup, scaled_rate


def factors(schedule: Schedule, steps: int) -> list[float]:
    return [schedule.factor(step, steps) for step in range(steps)]


@given(
    schedule=st.sampled_from(
        [Constant(), Warmup(), Warmup(steps=1), Step(every=7), Cosine(), Cosine(warmup=9, final=0.1)]
    ),
    steps=st.integers(1, 300),
)
def test_every_factor_is_usable(schedule: Schedule, steps: int) -> None:
    assert isinstance(schedule, Schedule)
    assert all(type(value) is float and 0 < value <= 1 for value in factors(schedule, steps))


def test_constant() -> None:
    assert set(factors(Constant(), 50)) == {1.0}


def test_warmup_rises_in_equal_parts_then_stays() -> None:
    assert factors(Warmup(steps=5), 8) == [0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1]
    assert factors(Warmup(steps=10), 3) == [0.1, 0.2, 0.3]  # a run shorter than its warm-up


def test_step_falls_at_regular_intervals() -> None:
    assert factors(Step(every=3, times=0.5), 8) == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25]


@given(warmup=st.integers(0, 20), final=st.floats(0, 1), rest=st.integers(2, 200))
def test_cosine_rises_then_falls_to_its_end(warmup: int, final: float, rest: int) -> None:
    schedule, steps = Cosine(warmup=warmup, final=final), warmup + rest
    values = factors(schedule, steps)
    rising, falling = values[:warmup], values[warmup:]
    assert rising == [(t + 1) / warmup for t in range(warmup)]
    assert falling[0] == pytest.approx(1)
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(falling))
    assert schedule.factor(steps, steps) == pytest.approx(final)
    if rest % 2 == 0:
        assert falling[rest // 2] == pytest.approx((1 + final) / 2)


def test_cosine_in_a_run_that_is_all_warmup() -> None:
    assert factors(Cosine(warmup=4), 3) == [0.25, 0.5, 0.75]
    assert Cosine(warmup=4).factor(4, 4) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("warmup:steps=0", "steps of warmup must be at least 1; got 0"),
        ("step:every=0", "every of step must be at least 1; got 0"),
        ("step:every=5,times=0", "times of step must be above 0; got 0.0"),
        ("step:every=5,times=nan", "times of step must be above 0; got nan"),
        ("step", "step needs every; write step:every=…"),
        ("cosine:warmup=-1", "warmup of cosine must be at least 0; got -1"),
        ("cosine:final=1.5", "final of cosine must be from 0 to 1; got 1.5"),
    ],
)
def test_options_are_checked(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        spec.parse("schedules", text).make()
    assert str(caught.value) == message


def test_found_by_name() -> None:
    assert registry.names("schedules") == ["constant", "cosine", "step", "warmup"]
    made = spec.parse("schedules", "cosine:warmup=10,final=0.1").make()
    assert made == Cosine(warmup=10, final=0.1)


@given(rate=st.floats(1e-6, 10), ranks=st.integers(1, 4096))
def test_the_rate_with_the_ranks(rate: float, ranks: int) -> None:
    assert scaled_rate(rate, "none", ranks) == rate
    assert scaled_rate(rate, "linear", ranks) == pytest.approx(rate * ranks)
    assert scaled_rate(rate, "square-root", ranks) == pytest.approx(rate * math.sqrt(ranks))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, "none", 1), "the learning rate must be above 0; got 0.0"),
        ((math.nan, "none", 1), "the learning rate must be above 0; got nan"),
        ((0.1, "linear", 0), "ranks must be at least 1; got 0"),
        (
            (0.1, "cubic", 2),
            "unknown scaling rule of the learning rate 'cubic'; choose one of none, linear, square-root",
        ),
    ],
)
def test_a_rate_that_cannot_be(arguments: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        scaled_rate(*arguments)
    assert str(caught.value) == message
