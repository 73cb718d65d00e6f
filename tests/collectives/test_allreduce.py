from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import vmpi
from paceline.collectives import find_allreduce
from paceline.vmpi.communicator import Comm
from tests.ranks import on_ranks


def test_any_shape_dtype_order_and_op_on_1_to_6_ranks() -> None:
    on_ranks("tests.collectives.cases:any_case", 6, count=104, seed=1)


def test_sizes_around_the_number_of_ranks_and_pieces_of_long_arrays() -> None:
    on_ranks("tests.collectives.cases:sizes", 6)


def test_results_are_the_same_bits_on_all_ranks() -> None:
    on_ranks("tests.collectives.cases:same_bits", 6)


def test_naive_adds_in_rank_order() -> None:
    on_ranks("tests.collectives.cases:rank_order", 6)


@pytest.mark.once
def test_messages_and_bytes_equal_the_formulas() -> None:
    on_ranks("tests.collectives.cases:counted", 6)


def test_the_callers_messages_are_never_confused_with_ours() -> None:
    on_ranks("tests.collectives.cases:beside_user_messages", 4)


def test_a_rank_may_be_a_whole_call_ahead() -> None:
    on_ranks("tests.collectives.cases:ahead", 4)


def test_communicators_of_the_callers_own() -> None:
    on_ranks("tests.collectives.cases:own_communicators", 4)


def test_prepared_calls() -> None:
    on_ranks("tests.collectives.cases:prepared", 3)


def test_freeing_a_communicator_frees_all_that_we_made_of_it() -> None:
    grown = on_ranks("tests.collectives.cases:freed", 2, times=600)
    assert all(rank["files"] == 0 and rank["mappings"] < 20 for rank in grown), grown


def test_thousands_of_calls_keep_nothing() -> None:
    grown = on_ranks("tests.collectives.cases:many_calls", 2, times=2400)
    assert max(grown) < 3000, grown


def test_nothing_is_left_behind_by_a_job_that_frees_nothing() -> None:
    mapped = on_ranks("tests.collectives.cases:left_open", 3, alone=True)
    assert all(mapped), mapped
    assert not [file for rank in mapped for file in rank if Path(file).exists()]


def test_a_failing_rank_ends_the_job_though_windows_are_open() -> None:
    with pytest.raises(AssertionError, match="rank 1 has had enough"):
        on_ranks("tests.collectives.cases:dies", 3, alone=True)


@pytest.mark.parametrize("name", ["ring", "recursive-doubling", "rabenseifner"])
def test_ranks_send_before_they_ask_for_their_partners_message(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: dict[int, list[str]] = {rank: [] for rank in range(4)}

    def note(method: str) -> None:
        original = getattr(Comm, method)

        def call(comm: Any, *arguments: Any, **options: Any) -> Any:
            calls[comm.Get_rank()].append(method)
            return original(comm, *arguments, **options)

        monkeypatch.setattr(Comm, method, call)

    def add(comm: Any) -> None:
        x = np.ones(64, np.float32)
        find_allreduce(name)(x, np.empty_like(x), comm)

    note("Isend")
    note("Irecv")
    vmpi.run(add, ranks=4)
    for made in calls.values():
        assert made
        assert made == ["Isend", "Irecv"] * (len(made) // 2)
