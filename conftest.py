from __future__ import annotations

import functools
import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from tests.components import missing


def pytest_configure() -> None:
    """Listen to Ctrl-C even as a background job, which a shell starts deaf to it; children would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test whose module starts ranks is an `mpi` test: `make test-mpich` runs those with the other MPI."""
    for item in items:
        module = getattr(item, "module", None)
        if hasattr(module, "on_ranks") or hasattr(module, "STARTS_RANKS"):
            item.add_marker("mpi")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `pytest -n`, run modules that start ranks one after the other in one process, others as they come.

    No two jobs share the cores then, and every module's fixtures are made once. The process that shares modules out
    does not import them, so their text has to tell. (Groups of `--dist loadgroup` do nothing with pytest 9.2.)
    """
    from xdist.scheduler import LoadScopeScheduling

    @functools.cache
    def scope(path: str) -> str:
        text = (config.rootpath / path).read_text()
        return "ranks" if re.search(r"\b(on_ranks|STARTS_RANKS|matrix: Path)\b", text) else path

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope(nodeid.partition("::")[0])

    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose component is missing; in CI, where nothing may be missing, fail it."""
    for marker in item.iter_markers("requires"):
        for component in marker.args:
            if reason := missing(component):
                if os.environ.get("CI") == "true":
                    pytest.fail(reason, pytrace=False)
                pytest.skip(reason)


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
