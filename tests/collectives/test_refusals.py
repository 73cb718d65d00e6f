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


def test_an_unknown_algorithm_is_named_with_the_choices() -> None:
    with pytest.raises(UsageError, match="unknown collective 'rng'; choose one of auto, hierarchical, naive"):
        allreduce(np.ones(1), np.ones(1), None, algorithm="rng")
