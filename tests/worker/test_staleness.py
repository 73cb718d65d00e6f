"""The ages of gradients, counted in pieces, agree with those computed from all of them."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.worker.shared import AgeCounts


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_counted_ages_have_the_figures_of_the_whole(size: int) -> None:
    tau = np.random.default_rng(size).poisson(3.0, size)
    ages, other = AgeCounts(), AgeCounts()
    for part in np.array_split(tau, 3):
        ages.add(part[::2])
        other.add(part[1::2])
    ages.add_counts(other.counts)
    assert ages.total == size
    assert ages.summary() == {
        "mean": pytest.approx(tau.mean()),
        "median": np.median(tau),
        "largest": tau.max(),
        "histogram": np.bincount(tau).tolist(),
    }


def test_no_gradient_has_no_age() -> None:
    assert AgeCounts().summary() == {"mean": 0.0, "median": 0.0, "largest": 0, "histogram": []}
