from __future__ import annotations

from tests.ranks import on_ranks


def test_channels() -> None:
    on_ranks("tests.comm.cases:channels", 3)


def test_shared_memory() -> None:
    on_ranks("tests.comm.cases:shared", 3)


def test_small_messages_between_the_ranks() -> None:
    first, *others = on_ranks("tests.comm.cases:control", 3)
    assert first["shapes"] == [[0, 2], [1, 2], [2, 2]]
    assert first["values"] == [[], [[1, 1]], [[2, 2], [2, 2]]]
    assert all(other["shapes"] == [] for other in others)
    for rank, found in enumerate([first, *others]):
        assert found["everyones"] == [[0], [1], [2]]
        assert (found["nobody"], found["some"], found["all"]) == ([0, -1], [2, 1], [3, 0])
        assert found["refused"] == "rank 1 would not"
        assert found["different"] == (
            "every rank must be given the same run; rank 0 has batch=16, rank 2 batch=32"
        )
        assert found["equal"] == "every rank must be given the same run; rank 0 has lr=1, rank 2 lr=1.0"
        assert found["agreed"] == 10 * rank
