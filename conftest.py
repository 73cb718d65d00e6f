from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test whose module starts ranks is an `mpi` test: `make test-mpich` runs those with the other MPI."""
    for item in items:
        module = getattr(item, "module", None)
        if hasattr(module, "on_ranks") or hasattr(module, "STARTS_RANKS"):
            item.add_marker("mpi")


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests unpack data into a folder of their own."""
    before = os.environ.get("PACELINE_CACHE")
    os.environ["PACELINE_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["PACELINE_CACHE"]
    else:
        os.environ["PACELINE_CACHE"] = before
