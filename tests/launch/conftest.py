"""Jobs for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launch.started import Started


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Starts jobs that do as they are told; ends what a test has left."""
    jobs: list[Started] = []

    def starter(what: str, ranks: int = 3) -> Started:
        folder = tmp_path / str(len(jobs))
        folder.mkdir()
        jobs.append(Started(what, folder, ranks))
        return jobs[-1]

    yield starter
    for job in jobs:
        with job.process as process:
            process.kill()
