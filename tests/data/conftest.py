from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _cache_of_the_tests(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cache for all tests of this folder, so that MNIST is unpacked once; never the user's own."""
    monkeypatch.setenv("PACELINE_CACHE", str(shared_cache))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, empty at first."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "own-cache"))
    return tmp_path / "own-cache"
