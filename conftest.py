from __future__ import annotations

import gc
import inspect
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from tests.components import explain_missing

# The same examples every time, however slow the machine; `pytest --hypothesis-profile=default` looks for new ones.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.load_profile("same")

# Folders and modules whose tests run in one process, the longest first: those with Slurm, which mostly wait for its jobs,
# those of starting jobs, which look at idle cores and at processes that are left over, those whose ranks stay from case to
# case and import torch once, and those of reports and of the diagnosis, which share runs that take long to make.
TOGETHER = (
    ("tests/slurm/",),
    ("tests/launch/",),
    ("tests/strategies/", "tests/models/test_cnn.py", "tests/test_own_loop.py", "tests/test_optimizer.py"),
    ("tests/report/",),
    ("tests/diagnosis/",),
    ("tests/collectives/",),
)


def pytest_configure() -> None:
    """Listen to Ctrl-C even as a background job, which a shell starts deaf to it; children would inherit that.

    Children also keep the code that they compile, and threads of torch that wait do not keep cores busy: others need them.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Tests start hundreds of processes: with this variable each of them would compile the whole package again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # With this one, ranks write a line in parts, and MPICH's launcher mixes them. Tests of that set it themselves.
    os.environ.pop("PYTHONUNBUFFERED", None)
    # Before anything imports NumPy. Where other tests keep the cores busy, threads of BLAS wait for each other in a
    # loop: 600 steps of a small network took 40 s with two threads, and 1 s with one.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Before anything imports torch. With more threads than idle cores, as here, a small network takes ten times as long
    # if threads wait for each other in a loop.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that starts ranks is an `mpi` test: `make test-mpich` runs those with the other MPI.

    It starts them with `on_ranks`, or is in a module that says STARTS_RANKS.

    With `pytest -n` these tests come first: they take longest, and the short ones let all processes end together.
    """
    for item in items:
        module = getattr(item, "module", None)
        if hasattr(module, "STARTS_RANKS") or (hasattr(module, "on_ranks") and _uses_mpi(item)):
            item.add_marker("mpi")
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: (_group(item.nodeid), not item.get_closest_marker("mpi")))


def _group(nodeid: str) -> int:
    """Return the place in TOGETHER of the tests that a test runs with, or the number after the last."""
    return next((place for place, paths in enumerate(TOGETHER) if nodeid.startswith(paths)), len(TOGETHER))


def _uses_mpi(item: pytest.Item) -> bool:
    """Return True if a test, or a fixture or function of its module that it uses, names `on_ranks` or MPI itself."""
    waiting = [item.name.partition("[")[0], *getattr(item, "fixturenames", ())]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in ("on_ranks", "MPI"):
            return True
        found = inspect.unwrap(getattr(item.module, name, None))  # type: ignore[attr-defined]
        found = getattr(found, "_get_wrapped_function", lambda f=found: f)()  # of a fixture
        if name not in seen and inspect.isfunction(found) and found.__module__ == item.module.__name__:  # type: ignore[attr-defined]
            codes = [found.__code__]
            for code in codes:
                waiting += code.co_names
                codes += [constant for constant in code.co_consts if inspect.iscode(constant)]
        seen.add(name)
    return False


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Collect no garbage until all tests are collected: what is made for that is kept."""
    if isinstance(collector, pytest.Session):
        gc.disable()


def pytest_collection_finish() -> None:
    """Leave what is there by now, all modules and tests, out of every later garbage collection."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `pytest -n`, hand out whole modules, so that each makes its fixtures once.

    Modules are handed out in the order of the collection, not by their number of tests. (Groups of `--dist loadgroup` do
    nothing with pytest 9.2.)
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            group = _group(nodeid)
            return TOGETHER[group][0] if group < len(TOGETHER) else nodeid.partition("::")[0]

    config.option.loadscopereorder = False
    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose component is missing; in CI, where nothing may be missing, fail it."""
    for marker in item.iter_markers("requires"):
        for component in marker.args:
            if reason := explain_missing(component):
                if os.environ.get("CI") == "true":
                    pytest.fail(reason, pytrace=False)
                pytest.skip(reason)


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests unpack data into a folder of their own, which the processes of `pytest -n` share."""
    before = os.environ.get("PACELINE_CACHE")
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "cache"
    folder.mkdir(exist_ok=True)
    os.environ["PACELINE_CACHE"] = str(folder)
    yield
    if before is None:
        del os.environ["PACELINE_CACHE"]
    else:
        os.environ["PACELINE_CACHE"] = before


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a machine with given costs: ranks are simulated on it without measuring this one first."""
    from tests.simulate.costs import COSTS

    path = tmp_path_factory.mktemp("machine") / "costs.json"
    COSTS.save(path)
    return str(path)


@pytest.fixture(scope="session", autouse=True)
def _unsynced() -> Iterator[None]:
    """Files are written without waiting for the disk: no test can cut the power, and processes see them all the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True)
def _path() -> Iterator[None]:
    """No test imports modules from the folder of another: commands put the folder of a program on the path."""
    before = sys.path[:]
    yield
    sys.path[:] = before


@pytest.fixture(scope="session", autouse=True)
def _ranks() -> Iterator[None]:
    """Ranks that tests have started end with the last test."""
    yield
    if (ranks := sys.modules.get("tests.ranks")) is not None:
        ranks.end_job()
