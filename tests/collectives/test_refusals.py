from __future__ import annotations

import numpy as np
import pytest

from paceline.collectives import allreduce
from paceline.errors import UsageError
from tests.ranks import on_ranks


def test_bad_arguments_are_refused_before_any_message() -> None:
    on_ranks("tests.collectives.refusals:refusals", 2)


def test_functions_whose_result_does_not_fit() -> None:
    on_ranks("tests.collectives.refusals:bad_functions", 2)


def test_views_that_only_look_as_if_they_overlapped() -> None:
    on_ranks("tests.collectives.refusals:not_overlapping", 3)


def test_operations_of_the_callers_own() -> None:
    on_ranks("tests.collectives.refusals:own_operation", 3)


def test_arrays_that_differ_between_ranks_are_refused_on_every_rank() -> None:
    found = on_ranks("tests.collectives.refusals:mismatches", 4)
    assert found == [found[0]] * 4
    lengths, dtypes, *_ = found[0]
    assert lengths.endswith("rank 0 passed 10 of float64, rank 1 passed 20 of float64")
    assert dtypes.endswith("rank 0 passed 10 of float64, rank 1 passed 10 of float32")
    assert found[0][-2].endswith("rank 0 passed 300000 of float64, rank 1 passed 300001 of float64")


def test_an_unknown_algorithm_is_named_with_the_choices() -> None:
    with pytest.raises(UsageError, match="unknown collective 'rng'; choose one of auto, hierarchical, naive"):
        allreduce(np.ones(1), np.ones(1), None, algorithm="rng")
