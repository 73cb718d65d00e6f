"""The computing of simulated ranks, done together: the same bits and times on any number of threads."""

from __future__ import annotations

import errno
import gc
import os
import signal
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import fit, vmpi
from paceline.data import ArraySplit, Subset, read_apart
from paceline.errors import UsageError
from paceline.files import read_arrays
from paceline.machine import Costs
from paceline.models.mlp import MLP
from paceline.record import find_runs
from paceline.simulate import together
from paceline.simulate.options import Options
from paceline.simulate.together import Forked, Outstanding, PendingWork, SharedVectors, Threads, scratch_pairs
from paceline.vmpi import Curves
from paceline.vmpi.errors import RankFailed
from tests.simulate.costs import WORK
from tests.simulate.training_cases import SMALL

NODES = "10gbe:ranks-per-node=2"
STRATEGIES = [
    "sync",
    "sync:allreduce=shared-memory",
    "sync:allreduce=ring,overlap=true",
    "main-worker",
    "weight-average",
    "local-sgd:every=2",
    "elastic:every=2",
    "psgd",
    "parameter-server:masters=2,rule=staleness",
    "gossip",
    "hogwild:every=2",
]


@pytest.fixture(scope="module")
def slow_machine(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Costs of a machine on which the same gradients take a hundred times as long."""
    path = tmp_path_factory.mktemp("machine") / "slow.json"
    work = {
        kind: Curves.of({1: [[amount, 100 * s] for amount, s in points]}) for kind, points in WORK.items()
    }
    Costs(work=work, processor="slow", cores=64).save(path)
    return str(path)


@pytest.fixture
def simulated(machine: str) -> Any:
    def simulated(strategy: Any, threads: int, ranks: int = 4, **settings: Any) -> Any:
        network = "loopback" if "shared-memory" in str(strategy) else NODES
        given = {**SMALL, "runs": None, "network": network, "machine": machine, "draws": 12, **settings}
        return fit(on="sim", strategy=strategy, ranks=ranks, compute_threads=threads, **given)

    return simulated


@pytest.fixture
def share_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share even the shortest work among threads."""
    for name in ("SHORT", "LEAST", "LOCKED"):
        monkeypatch.setattr(together, name, 1e-12)
    monkeypatch.setattr(together, "WORTH_FORKING", np.inf)


@pytest.fixture
def fork(monkeypatch: pytest.MonkeyPatch, share_all: None) -> Callable[[], list[Forked]]:
    """A function that makes the following simulations compute in processes; it returns the engines that begin work."""

    def fork() -> list[Forked]:
        monkeypatch.setattr(together, "WORTH_FORKING", 0.0)
        monkeypatch.setattr(together, "WORTH_SENDING", 0.0)
        engines: list[Forked] = []
        begin = Forked.begin

        def begin_noted(self: Forked, work: PendingWork) -> bool:
            begun = begin(self, work)
            if begun:
                engines.append(self)
            return begun

        monkeypatch.setattr(Forked, "begin", begin_noted)
        return engines

    return fork


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of pieces of work that were computed together."""
    found: list[int] = []
    compute = Threads.__call__

    def counted(self: Threads, works: Sequence[PendingWork]) -> None:
        found.append(len(works))
        compute(self, works)

    monkeypatch.setattr(Threads, "__call__", counted)
    return found


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_threads_and_processes_change_no_bit_and_no_time(
    simulated: Any, strategy: str, tmp_path: Path, fork: Callable[[], list[Forked]]
) -> None:
    folders = [tmp_path / "one", tmp_path / "four", tmp_path / "forked"]
    found = [
        simulated(strategy, threads, jitter=0.2, runs=folder)
        for threads, folder in zip((1, 4), folders, strict=False)
    ]
    engines = fork()
    found.append(simulated(strategy, 3, jitter=0.2, runs=folders[2]))
    apart = strategy != "sync:allreduce=shared-memory"  # which computes factors
    assert len(engines) >= (12 if apart else 4)  # evaluations, at least
    one = found[0]
    for other in found[1:]:
        assert np.array_equal(np.asarray(one.model.x), np.asarray(other.model.x))
        assert one.train_seconds == other.train_seconds
        assert one.test_accuracy == other.test_accuracy
    steps = [read_arrays(run.folder / "steps.npz") for run in find_runs(folders)]
    assert len(steps) == 3
    for name, column in steps[0].items():
        assert len(column)
        assert all(np.array_equal(column, other[name]) for other in steps[1:])


@pytest.mark.usefixtures("share_all")
@pytest.mark.parametrize("strategy", ["sync", "local-sgd:every=4", "gossip", "hogwild"])
def test_ranks_that_compute_at_the_same_time_are_computed_together(
    simulated: Any, sizes: list[int], strategy: str
) -> None:
    simulated(strategy, 2, ranks=4)
    gradients = 12 if strategy == "sync" else 3
    assert sizes.count(4) >= gradients


@pytest.mark.usefixtures("share_all")
def test_workers_of_a_parameter_server_are_computed_together(simulated: Any, sizes: list[int]) -> None:
    simulated("parameter-server", 2, ranks=6, draws=40)
    assert sizes[0] == 5  # at the start, all of them


def test_ranks_go_on_in_the_order_in_which_they_began() -> None:
    order: list[tuple[str, int]] = []

    def program(comm: Any) -> float:
        rank = comm.Get_rank()
        for _ in range(2):
            comm.Compute(4 - rank)
            comm.LetOthersBegin()
            order.append(("result", rank))
            comm.Compute(0.5)
        return float(comm.Wtime())

    assert vmpi.run(program, ranks=3).values == [9.0, 7.0, 5.0]
    assert order == [("result", rank) for rank in (0, 1, 2, 0, 1, 2)]


def test_a_rank_with_a_later_clock_waits_for_a_result() -> None:
    seen: list[str] = []

    def program(comm: Any) -> None:
        rank, room = comm.Get_rank(), np.zeros(1)
        if rank == 0:
            comm.Compute(1)
            comm.LetOthersBegin()
            seen.append("result")
            comm.Send(room, dest=1)
        elif rank == 1:
            comm.Recv(room, source=0)
            seen.append("received")
        else:
            comm.Compute(0.5)
            comm.LetOthersBegin()
            comm.Compute(5)
            comm.Pass()
            seen.append("late")

    vmpi.run(program, ranks=3)
    assert seen == ["result", "received", "late"]


def _work(seconds: float, size: int = 16) -> PendingWork:
    work = PendingWork(MLP([2, 1]), lambda: None, size=size)
    work.done, work.seconds = True, seconds
    return work


def test_threads_follow_from_how_long_such_work_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PendingWork, "compute", lambda work: None)
    threads = Threads(8)
    assert threads.pays(_work(1), 64)  # how long it takes is unknown
    threads([_work(2e-4), _work(1e-2), _work(5e-3, size=256)])
    assert not threads.pays(_work(1), 64)
    assert threads.pays(_work(1, size=256), 64)
    assert not threads.pays(_work(1, size=256), 1)
    assert not Threads(1).pays(_work(1), 64)
    assert [threads.count(seconds, 64) for seconds in (4e-4, 6.5e-4, 1e-3)] == [1, 6, 8]
    assert [threads.count(1e-3, works) for works in (1, 3, 5, 9)] == [1, 1, 2, 4]
    threads.close()


def test_gradients_of_little_cost_wait_for_no_others(simulated: Any, sizes: list[int]) -> None:
    simulated("gossip", 4)
    assert sizes == []


@pytest.mark.parametrize("strategy", ["sync", "gossip", "hogwild"])
def test_gradients_that_take_little_time_are_computed_one_by_one(
    simulated: Any, sizes: list[int], slow_machine: str, strategy: str
) -> None:
    simulated(strategy, 4, draws=40, machine=slow_machine)
    assert sizes.count(1) > len(sizes) / 2


def test_ranks_that_share_parameters_do_not_depend_on_threads(
    simulated: Any, slow_machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program() -> Any:
        memory: list[Any] = []

        def race(me: Any) -> None:
            if not memory:
                memory.append(np.array(me.model.x))
            me.model.place(memory[0], np.zeros_like(memory[0]))
            for epoch in me.epochs():
                for batch in me.own_batches(epoch):
                    me.gradient(batch)
                    np.asarray(me.model.x)[:] -= 0.5 / batch.count * np.asarray(me.model.g)
                me.validate(epoch)

        return race

    found = [simulated(program(), threads, machine=slow_machine) for threads in (1, 4)]
    for name in ("SHORT", "LEAST", "LOCKED"):
        monkeypatch.setattr(together, name, 1e-12)
    monkeypatch.setattr(together, "WORTH_FORKING", 0.0)
    found.append(simulated(program(), 4, machine=slow_machine))
    assert len({np.asarray(one.model.x).tobytes() for one in found}) == 1


class Failing(MLP):
    """A network that cannot compute the batch of one rank."""

    def gradient(self, batch: Any, ready: Any = None) -> float:
        if batch.step == 3 and batch.offset > 0:
            raise ArithmeticError(f"step {batch.step}")
        return super().gradient(batch, ready)


@pytest.mark.usefixtures("share_all")
@pytest.mark.parametrize("threads", [1, 4])
def test_an_error_is_that_of_the_rank_that_asked(simulated: Any, threads: int) -> None:
    with pytest.raises(RankFailed, match="step 3") as caught:
        simulated("sync", threads, ranks=2, model=Failing([64, 8, 10]))
    assert caught.value.rank == 1
    assert isinstance(caught.value.error, ArithmeticError)


@pytest.mark.usefixtures("share_all")
def test_a_network_that_diverges_warns_on_no_thread(simulated: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [
            simulated("local-sgd", threads, lr=1e30, model="mlp:8,activation=relu", on_divergence="ignore")
            for threads in (1, 4)
        ]
    assert not np.isfinite(np.asarray(found[0].model.x)).all()
    assert np.asarray(found[0].model.x).tobytes() == np.asarray(found[1].model.x).tobytes()


@pytest.mark.usefixtures("share_all")
def test_threads_compute_everything_and_keep_errors() -> None:
    def fail() -> None:
        raise ValueError("no")

    outstanding, model = Outstanding(Threads(3)), MLP([2, 1])
    works = [outstanding.add(PendingWork(model, fail if n == 2 else lambda n=n: n)) for n in range(7)]
    assert outstanding.result(works[6]) == 6
    assert all(work.done for work in works)
    with pytest.raises(ValueError, match="no"):
        outstanding.result(works[2])
    late = outstanding.add(PendingWork(model, lambda: 7))
    assert outstanding.result(late) == 7
    outstanding.close()


def test_models_of_unknown_kind_are_computed_one_by_one() -> None:
    import threading

    class Own(MLP):
        runs_at_once = False

    where: list[int] = []
    engine = Threads(3)
    works = [PendingWork(Own([2, 1]), lambda: where.append(threading.get_ident())) for _ in range(6)]
    engine(works)
    engine.close()
    assert where == [threading.get_ident()] * 6


@pytest.mark.usefixtures("share_all")
def test_a_strategy_of_the_users_own_sees_the_samples_of_its_batches(simulated: Any) -> None:
    seen: list[bool] = []

    def look(me: Any) -> None:
        for epoch in me.epochs():
            for batch in me.own_batches(epoch):
                before = batch.inputs.copy()
                me.gradient(batch)
                seen.append(bool(before.any()) and np.array_equal(before, batch.inputs))
                me.step(me.model.g, batch.count)
            me.validate(epoch)

    simulated(look, 2, ranks=2)
    assert len(seen) >= 12
    assert all(seen)


def test_samples_are_read_apart_only_where_that_is_safe() -> None:
    class Own(ArraySplit):
        """A user's own split, which may do anything."""

    inputs, labels = np.arange(6, dtype=np.uint8).reshape(3, 2), np.arange(3)
    split, own = ArraySplit(inputs, labels), Own(inputs, labels)
    subset = read_apart(Subset(split, np.array([2, 0])))
    assert read_apart(own) is None
    assert read_apart(Subset(own, np.array([0]))) is None
    assert subset is not None
    room, found = np.zeros((1, 2)), np.zeros(1, np.int64)
    subset.take(np.array([0]), room, found)
    assert found[0] == 2
    assert np.allclose(room, inputs[2] / 255)


# ---- modules of PyTorch


def _module(kind: str) -> Any:
    from torch import nn

    torch = pytest.importorskip("torch")

    class Late(nn.Module):
        """Draws random numbers, but not in its first passes."""

        def __init__(self) -> None:
            super().__init__()
            self.passes = 0

        def forward(self, inputs: Any) -> Any:
            self.passes += 1
            return inputs + torch.rand(()) if self.passes > 6 else inputs

    class Counting(nn.Module):
        """Keeps something of its own from one pass to the next."""

        def __init__(self) -> None:
            super().__init__()
            self.passes = 0

        def forward(self, inputs: Any) -> Any:
            self.passes += 1
            return inputs / self.passes

    class Failing(nn.Module):
        """Cannot compute a gradient."""

        def forward(self, inputs: Any) -> Any:
            if self.training and len(inputs) > 2:
                raise ArithmeticError("no")
            return inputs

    kinds = {"norm": lambda: nn.BatchNorm1d(12), "dropout": lambda: nn.Dropout(0.3), "late": Late}
    extra = (kinds | {"counting": Counting, "failing": Failing})[kind]()
    torch.manual_seed(5)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), extra, nn.ReLU(), nn.Linear(12, 10))


def _assert_same(one: Any, other: Any) -> None:
    assert np.asarray(one.model.x).tobytes() == np.asarray(other.model.x).tobytes()
    assert {name: value.tobytes() for name, value in one.model.buffers.items()} == {
        name: value.tobytes() for name, value in other.model.buffers.items()
    }
    assert one.train_seconds == other.train_seconds


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [("norm", "local-sgd:every=2"), ("dropout", "local-sgd:every=2"), ("norm", "parameter-server")],
)
def test_threads_and_processes_change_no_bit_of_a_module(
    simulated: Any,
    kind: str,
    strategy: str,
    fork: Callable[[], list[Forked]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    one, four = (simulated(strategy, threads, model=_module(kind)) for threads in (1, 4))
    _assert_same(one, four)
    engines = fork()
    _assert_same(one, simulated(strategy, 3, model=_module(kind)))
    assert len(engines) >= 12
    assert not caplog.messages


def test_processes_are_started_before_the_first_gradient_where_pytorch_sees_gpus(
    simulated: Any, fork: Callable[[], list[Forked]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gradient starts threads for GPUs, and PyTorch computes none in a process that is forked after that."""
    engines = fork()
    monkeypatch.setattr(together, "WORTH_FORKING", np.inf)
    monkeypatch.setattr(together, "sees_gpus", lambda: True)
    spent, start = [], Forked.start

    def noted(self: Forked) -> bool:
        spent.append(self._spent)
        return start(self)

    monkeypatch.setattr(Forked, "start", noted)
    one = simulated("local-sgd:every=2", 1, model=_module("norm"))
    _assert_same(one, simulated("local-sgd:every=2", 3, model=_module("norm")))
    assert spent == [0.0]
    assert engines


def test_a_module_that_keeps_something_of_its_own_is_computed_in_one_process(
    simulated: Any, fork: Callable[[], list[Forked]], caplog: pytest.LogCaptureFixture
) -> None:
    one = simulated("local-sgd:every=2", 1, model=_module("counting"))
    engines = fork()
    _assert_same(one, simulated("local-sgd:every=2", 3, model=_module("counting")))
    assert engines
    assert "keeps something of its own" in caplog.text


def test_an_error_in_another_process_is_that_of_the_rank(
    simulated: Any, fork: Callable[[], list[Forked]], caplog: pytest.LogCaptureFixture
) -> None:
    engines = fork()
    with pytest.raises(RankFailed, match="no") as caught:
        simulated("sync", 3, model=_module("failing"))
    assert isinstance(caught.value.error, ArithmeticError)
    assert engines
    assert not caplog.messages


# ---- the processes


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_ends_or_hangs_is_done_without(
    simulated: Any,
    fork: Callable[[], list[Forked]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
) -> None:
    one = simulated("gossip", 1, draws=24)
    engines = fork()
    begin, pids = Forked.begin, []
    monkeypatch.setattr(together, "PATIENCE", 1.0)

    def begin_and_stop(self: Forked, work: PendingWork) -> bool:
        begun = begin(self, work)
        if len(engines) == 9:
            pids.extend(self.processes)
            for pid in pids:
                os.kill(pid, number)
        return begun

    monkeypatch.setattr(Forked, "begin", begin_and_stop)
    _assert_same(one, simulated("gossip", 3, draws=24))
    assert len(pids) == 3
    assert not any(map(_alive, pids))
    assert ("has ended" if number == signal.SIGKILL else "have not answered") in caplog.text


def test_without_processes_one_computes_everything(
    simulated: Any,
    fork: Callable[[], list[Forked]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also no socket is left open, of which Python would warn."""

    def fail() -> int:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    one = simulated("gossip", 1)
    fork()
    monkeypatch.setattr(os, "fork", fail)
    _assert_same(one, simulated("gossip", 3))
    gc.collect()
    assert "processes cannot be started" in caplog.text


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_processes_end_with_the_one_that_started_them(how: str) -> None:
    models = [MLP([2, 1]), MLP([2, 1])]
    vectors = SharedVectors(models[0].x, 2 * scratch_pairs(2, models[0].x.nbytes))
    ours, theirs = os.pipe()
    parent = os.fork()
    if parent == 0:  # all of this in a process that can be killed
        engine = Forked(Threads(2), 2, models, None, vectors, 0)  # type: ignore[arg-type]
        assert engine.start()
        os.write(theirs, " ".join(map(str, engine.processes)).encode())
        if how == "closed":
            engine.close()
            os._exit(0)
        signal.pause()
    pids = [int(word) for word in os.read(ours, 1000).split()]
    assert len(pids) == 2
    if how == "killed":
        os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    end = time.monotonic() + 280
    while any(map(_alive, pids)) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(map(_alive, pids))


@pytest.mark.usefixtures("share_all")
def test_random_numbers_are_not_drawn_on_several_threads(simulated: Any) -> None:
    with pytest.raises(UsageError, match="compute-threads 1"):
        simulated("local-sgd:every=2", 4, model=_module("late"))
    simulated("local-sgd:every=2", 1, model=_module("late"))


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2"])
def test_a_number_of_threads_is_at_least_one(threads: Any) -> None:
    with pytest.raises(UsageError, match="compute-threads must be a whole number, at least 1"):
        Options(compute_threads=threads)
