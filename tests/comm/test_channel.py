from __future__ import annotations

from tests.ranks import on_ranks


def test_channels() -> None:
    on_ranks("tests.comm.cases:channels", 3)


def test_shared_memory() -> None:
    on_ranks("tests.comm.cases:shared", 3)
