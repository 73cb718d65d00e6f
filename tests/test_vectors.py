"""Vectors compute what arrays compute, charge for it, and without computing have the same shapes and types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paceline.vectors import FREE, Meter, Vector, charge_whole, is_unknown, vector

N = 2000
X, Y = np.linspace(1, 2, N, dtype=np.float32), np.linspace(3, 4, N)


def make_vector(values: Any, *, time_only: bool = False) -> tuple[Any, list[tuple[str, float]]]:
    charged: list[tuple[str, float]] = []
    return vector(values.copy(), Meter(lambda *work: charged.append(work), time_only)), charged


OPERATIONS: dict[str, tuple[Callable[[Any], Any], list[tuple[str, float]]]] = {
    "scaled": (lambda x: 3 * x, [("copy", 4 * N)]),
    "added": (lambda x: x + x, [("combine", 4 * N)]),
    "promoted": (lambda x: x + Y, [("combine", 4 * N)]),
    "sign": (np.sign, [("copy", 4 * N)]),
    "compared": (lambda x: x > 1.5, [("copy", 4 * N)]),
    "two results": (lambda x: np.divmod(x, 2)[1], [("copy", 4 * N)]),
    "copied": (lambda x: x.copy(), [("copy", 4 * N)]),
    "cast": (lambda x: x.astype(np.float64), [("copy", 8 * N)]),
    "like": (np.empty_like, []),
    "longer": (lambda x: np.empty_like(x, shape=(N + 1,)), []),
    "rows": (lambda x: np.empty_like(x, shape=(3, N)), []),
    "view": (lambda x: x[5:].view(np.uint8), []),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_results_and_charges(name: str) -> None:
    operation, expected = OPERATIONS[name]
    plain = operation(X.copy())
    for time_only in (False, True):
        x, charged = make_vector(X, time_only=time_only)
        found = operation(x)
        assert type(found) is Vector
        assert (found.shape, found.dtype) == (plain.shape, plain.dtype)
        assert charged == expected
        assert is_unknown(found) == time_only
        if name not in ("like", "longer", "rows"):
            assert time_only or np.array_equal(np.asarray(found), plain)


@pytest.mark.parametrize(
    "reduced", [np.sum, np.max, lambda x: x.sum(), lambda x: np.dot(x, x), np.linalg.norm, lambda x: x[7]]
)
def test_numbers_are_unknown_where_nothing_is_computed(reduced: Callable[[Any], Any]) -> None:
    x, _ = make_vector(X)
    assert reduced(x) == reduced(X)
    x, _ = make_vector(X, time_only=True)
    assert np.isnan(reduced(x))


@pytest.mark.parametrize("time_only", [False, True])
def test_in_place(time_only: bool) -> None:
    x, charged = make_vector(X, time_only=time_only)
    other, _ = make_vector(X, time_only=time_only)
    x += other
    x[: N // 2] *= 2
    x[N // 2 :] = other[: N // 2]
    x[0] = 5
    x[: FREE // 4] = 1
    np.copyto(x, other)
    np.multiply(x, 2, out=x)
    expected = [("combine", 4), ("copy", 2), ("copy", 2), ("copy", 4), ("copy", 4)]
    assert charged == [(kind, width * N) for kind, width in expected]
    assert np.array_equal(np.asarray(x), X if time_only else 2 * X)


def test_plain_views_cost_nothing() -> None:
    x, charged = make_vector(X)
    plain = np.asarray(x)
    plain += 1
    assert type(plain) is np.ndarray
    assert charged == []
    assert x.meter is not None
    assert np.array_equal(np.asarray(x), X + 1)


def test_work_that_is_charged_as_a_whole() -> None:
    def work(x: Any, y: Any, factor: float) -> None:
        assert type(x) is type(y) is np.ndarray
        x += factor * y

    for time_only in (False, True):
        x, charged = make_vector(X, time_only=time_only)
        charge_whole("rule", N, work, x, x, 2.0)
        charge_whole("shown", 0, work, x, x, 0.0)
        assert charged == [("rule", N)]
        assert np.array_equal(np.asarray(x), X if time_only else 3 * X)
    plain = X.copy()
    charge_whole("rule", N, work, plain, plain, 2.0)
    assert np.array_equal(plain, 3 * X)
