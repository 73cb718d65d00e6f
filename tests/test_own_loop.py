"""A program's own loop: `paceline.session` on one process and on simulated ranks; `paceline run` on real ones."""

from __future__ import annotations

import copy
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler  # noqa: E402

from paceline.cli import main  # noqa: E402
from paceline.comm.shared import PAGEMAP, CommonFile  # noqa: E402
from paceline.config import SESSION  # noqa: E402
from paceline.errors import UsageError  # noqa: E402
from paceline.launch import machine_cores  # noqa: E402
from paceline.own_loop import Session, session  # noqa: E402
from paceline.record import Run, find_runs  # noqa: E402
from paceline.record.environment import processor  # noqa: E402
from paceline.simulate.options import Options  # noqa: E402
from paceline.simulate.training import simulate_program  # noqa: E402
from paceline.vmpi.errors import RankFailed  # noqa: E402
from tests.ranks import ROOT, on_ranks  # noqa: E402

generator = np.random.default_rng(0)
X = torch.from_numpy(generator.normal(size=(98, 6)).astype(np.float32))
Y = torch.from_numpy(generator.integers(0, 3, 98))
COLLECTIVES = [
    "naive",
    "ring",
    "recursive-doubling",
    "rabenseifner",
    "hierarchical",
    "native",
    "shared-memory",
]
STRATEGIES = [
    "serial", "sync", "main-worker", "weight-average", "local-sgd:every=3", "elastic:every=2", "gossip", "psgd", "hogwild",
    "parameter-server", "parameter-server:masters=2",
]  # fmt: skip


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def loss_of(model: nn.Module, inputs: Any, labels: Any) -> Any:
    return nn.functional.cross_entropy(model(inputs), labels)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Two groups, of which one decays."""
    weights = [p for p in model.parameters() if p.ndim > 1]
    biases = [p for p in model.parameters() if p.ndim == 1]
    return torch.optim.AdamW(
        [{"params": weights, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}], lr=0.01
    )


def parameters(model: nn.Module) -> Any:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy().copy()


def train(
    comm: Any,
    strategy: str = "sync",
    *,
    epochs: int = 2,
    data: Callable[[], Any] = lambda: (X, Y),
    clip: float | None = 0.5,
    batch: int | None = 16,
    before: Callable[[Session, Any, Any], None] | None = None,
    after: Callable[[Any], None] | None = None,
    build: Callable[[], nn.Module] | None = None,
    optimizer: Callable[[Any], torch.optim.Optimizer] = adamw,
    schedule: bool = False,
    to_none: bool = True,
    **options: Any,
) -> tuple[Any, Session]:
    """Train as a user's program would; return the parameters."""
    model = (build or net)()
    made = optimizer(model)
    loader = data()
    with session(strategy, runs=options.pop("runs", None), comm=comm) as ranks:
        model, made = ranks.attach(model, made)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(made, 0.9) if schedule else None
        for _ in ranks.epochs(epochs):
            for inputs, labels in ranks.share(loader, batch=batch, **options):
                made.zero_grad(set_to_none=to_none)
                loss_of(model, inputs, labels).backward()
                if clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                if before is not None:
                    before(ranks, model, made)
                made.step()
                if after is not None:
                    after(model)
                if scheduler is not None:
                    scheduler.step()
            with torch.no_grad():
                ranks.validate(loss=float(loss_of(model, X, Y)), margin=lambda: 1.0)
    return parameters(model), ranks


def simulate(program: Callable[..., Any], ranks: int = 3, **options: Any) -> list[Any]:
    return simulate_program(program, ranks, Options(**options)).outcome.values


def list_batches(epochs: int = 2) -> list[Any]:
    """Return the batches that one process gets."""
    seen: list[Any] = []
    with session("serial", runs=None) as ranks:
        other = nn.Linear(6, 3)
        _, made = ranks.attach(other, torch.optim.SGD(other.parameters(), lr=0.0))
        for _ in ranks.epochs(epochs):
            for inputs, labels in ranks.share((X, Y), batch=16):
                seen.append((inputs.clone(), labels.clone()))
                loss_of(other, inputs, labels).backward()
                made.step()
    return seen


def plain(epochs: int = 2, clip: float | None = 0.5) -> Any:
    """Train without paceline, on the batches that one process gets."""
    model = net()
    optimizer = adamw(model)
    for inputs, labels in list_batches(epochs):
        optimizer.zero_grad()
        loss_of(model, inputs, labels).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return parameters(model)


# ---- the same parameters


def test_one_process_is_the_program_itself() -> None:
    assert np.array_equal(train(None)[0], plain())


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_sync_equals_one_process_with_adamw_and_clipping(collective: str) -> None:
    want = plain()
    for mine, _ in simulate(partial(train, strategy=f"sync:allreduce={collective}")):
        assert np.allclose(mine, want, atol=2e-6)


@pytest.mark.parametrize("strategy", ["sync:allreduce=ring", "sync:allreduce=shared-memory"])
def test_a_loss_that_is_a_sum(strategy: str) -> None:
    def take_step(model: nn.Module, made: Any, inputs: Any, labels: Any) -> None:
        made.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels, reduction="sum").backward()
        made.step()

    def program(comm: Any) -> Any:
        model = net()
        with session(strategy, runs=None, comm=comm) as ranks:
            _, made = ranks.attach(model, torch.optim.SGD(model.parameters(), lr=0.005), reduction="sum")
            for _ in ranks.epochs(2):
                for inputs, labels in ranks.share((X, Y), batch=16):
                    take_step(model, made, inputs, labels)
        return parameters(model)

    model = net()
    made = torch.optim.SGD(model.parameters(), lr=0.005)
    for inputs, labels in list_batches():
        take_step(model, made, inputs, labels)
    found = simulate(program)
    assert len(found) == 3
    assert all(np.allclose(mine, parameters(model), atol=2e-6) for mine in found)


@pytest.mark.parametrize(
    "strategy", ["sync:allreduce=ring", "sync:allreduce=shared-memory", "sync:allreduce=ring,overlap=true"]
)
def test_gradients_that_are_set_to_zero(strategy: str) -> None:
    for mine, _ in simulate(partial(train, strategy=strategy, to_none=False)):
        assert np.allclose(mine, plain(), atol=2e-6)


@pytest.mark.parametrize("ranks", [2, 5, 9])
def test_sync_with_uneven_ends(ranks: int) -> None:
    """98 samples in batches of 16: the last batch has 2, fewer than some have ranks."""
    for mine, _ in simulate(train, ranks):
        assert np.allclose(mine, plain(), atol=2e-6)


@pytest.mark.parametrize("masters", [1, 2])
def test_one_worker_of_a_server_equals_one_process(masters: int) -> None:
    strategy = f"parameter-server:masters={masters}"
    for mine, _ in simulate(partial(train, strategy=strategy), masters + 1):
        assert np.allclose(mine, plain(), atol=2e-6)


@pytest.mark.parametrize("strategy", ["sync", "parameter-server"])
def test_a_scheduler_acts_wherever_the_step_is_taken(strategy: str) -> None:
    alone = train(None, schedule=True)[0]
    assert not np.allclose(alone, plain(), atol=1e-4)
    for mine, _ in simulate(partial(train, strategy=strategy, schedule=True), 2):
        assert np.allclose(mine, alone, atol=2e-6)


WARMS_UP = partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=lambda step: min(1.0, step / 4))


@pytest.mark.parametrize("strategy", ["sync:allreduce=ring", "sync", "parameter-server"])
def test_a_scheduler_that_warms_up_and_was_created_before(strategy: str) -> None:
    """It has set the learning rates to 0 when they are attached, and no warning says that the order is wrong."""

    def program(comm: Any) -> Any:
        model = net()
        made = adamw(model)
        scheduler = WARMS_UP(made)
        with session(strategy, runs=None, comm=comm, quiet=True) as ranks:
            ranks.attach(model, made)
            for _ in ranks.epochs(2):
                for inputs, labels in ranks.share((X, Y), batch=16):
                    made.zero_grad()
                    loss_of(model, inputs, labels).backward()
                    made.step()
                    scheduler.step()
                ranks.validate(loss=1.0)
        return parameters(model)

    alone = program(None)
    assert not np.allclose(alone, parameters(net()), atol=1e-2)
    for mine in simulate(program, 2):
        assert np.allclose(mine, alone, atol=2e-6)


def change_momentum(made: Any) -> None:
    made.param_groups[0]["betas"] = (0.85, 0.999)


def warm_up_one_group(made: Any) -> None:
    made.param_groups[1]["lr"] *= 0.5


@pytest.mark.parametrize(
    ("change", "said"),
    [(change_momentum, "betas of group 1 was"), (warm_up_one_group, "factors of 0.5 to 1")],
)
def test_a_server_refuses_changes_that_its_masters_would_not_see(
    change: Callable[[Any], None], said: str
) -> None:
    with pytest.raises(RankFailed, match=said):
        simulate(
            partial(train, strategy="parameter-server", before=lambda ranks, model, made: change(made)), 2
        )


# ---- the step that ranks divide


def optimizers() -> list[Any]:
    return [
        adamw,
        lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1),
        lambda model: torch.optim.NAdam(model.parameters(), lr=0.01),
        lambda model: torch.optim.SGD(model.parameters(), lr=0.05),
        lambda model: torch.optim.Adafactor(model.parameters(), lr=0.01),  # works on whole matrices
    ]


@pytest.mark.parametrize("optimizer", optimizers())
@pytest.mark.parametrize("collective", ["shared-memory", "ring"])
def test_optimizers_that_step_in_parts_or_not(optimizer: Any, collective: str) -> None:
    alone, _ = train(None, optimizer=optimizer, clip=None)
    strategy = f"sync:allreduce={collective}"
    for mine, _ in simulate(partial(train, strategy=strategy, optimizer=optimizer, clip=None)):
        assert np.allclose(mine, alone, atol=2e-6)


def act(ranks: Session, model: Any, made: Any, *, what: str, turn: list[int], kept: list[Any]) -> None:
    """Do between `backward()` and `optimizer.step()` of some steps what programs do."""
    turn[0] += 1
    now, own, last = turn[0], ranks.rank == ranks.size - 1, list(model.parameters())[-1]
    if what == "clip later" and now > 5:
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
    elif what == "one rank looks" and now % 3 == 0 and own:
        ranks.exchange()
    elif what == "save on one rank" and now % 4 == 0 and own:
        kept.append(copy.deepcopy(made.state_dict()))
    elif what == "reload" and now == 6:
        made.load_state_dict(made.state_dict())
    elif what == "reset" and now == 6:
        made.state.clear()
    elif what == "change the state" and now == 6:
        for p in model.parameters():
            made.state[p]["exp_avg"].mul_(0.5)
    elif what == "replace gradients":
        ranks.exchange()
        for p in model.parameters():
            p.grad = p.grad.sign()
    elif what == "change weights between clipping and the step":
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        with torch.no_grad():
            last.mul_(1.5)
    elif what == "replace weights":
        last.data = last.data * 1.5
    elif what == "other weights for a while":
        before = last.detach().clone()
        last.data.zero_()
        kept.append(float(model(X).detach().sum()))
        last.data.copy_(before)
    elif what == "no gradient now and then" and now % 3 == 0:
        last.grad = None
    elif what == "a new group" and now == 4:
        made.param_groups[0]["params"] = list(model.parameters())[:-1]
        made.add_param_group({"params": [last], "lr": 0.03, "weight_decay": 0.2})
    elif what == "freeze" and now == 4:
        last.requires_grad_(False)


ACTIONS = [
    "clip later", "one rank looks", "save on one rank", "reload", "reset", "change the state", "replace gradients",
    "change weights between clipping and the step", "replace weights", "other weights for a while",
    "no gradient now and then", "a new group", "freeze",
]  # fmt: skip


@pytest.mark.parametrize("what", ACTIONS)
def test_what_programs_do_before_the_step(what: str) -> None:
    def program(comm: Any) -> tuple[Any, Any, list[Any]]:
        kept: list[Any] = []
        made: list[Any] = []

        def all_in_one_group(model: Any) -> Any:
            made.append(torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1))
            return made[-1]

        before = partial(act, what=what, turn=[0], kept=kept)
        mine, _ = train(comm, clip=None, before=before, optimizer=all_in_one_group)
        return mine, made[0].state_dict(), kept

    plain_result, plain_state, plain_kept = program(None)
    assert not np.allclose(plain_result, parameters(net()))
    if what not in ("one rank looks", "save on one rank", "reload", "other weights for a while"):
        assert not np.allclose(plain_result, train(None, clip=None, optimizer=one_group)[0], atol=1e-4)
    found = simulate(program)
    assert max(len(kept) for *_, kept in found) == len(plain_kept)  # perhaps on one rank only
    for mine, state, kept in found:
        assert np.allclose(mine, plain_result, atol=5e-6)
        compare_states(state, plain_state)
        for one, other in zip(kept, plain_kept, strict=False):
            if isinstance(one, dict):
                compare_states(one, other)
            else:
                assert one == pytest.approx(other, abs=1e-3)


def one_group(model: Any) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def compare_states(mine: Any, wanted: Any) -> None:
    """The states of an optimizer are complete, and equal to rounding."""
    assert mine["param_groups"] == wanted["param_groups"]
    assert set(mine["state"]) == set(wanted["state"])
    for number, entries in wanted["state"].items():
        assert set(mine["state"][number]) == set(entries)
        for name, value in entries.items():
            assert mine["state"][number][name].shape == value.shape
            assert torch.allclose(mine["state"][number][name], value, rtol=1e-3, atol=1e-6), name


def test_hooks_of_the_optimizer_see_the_exchanged_gradient() -> None:
    def program(comm: Any) -> tuple[list[float], list[int], Any]:
        norms: list[float] = []
        after: list[int] = []

        def optimizer(model: Any) -> Any:
            made = one_group(model)
            made.register_step_pre_hook(lambda *_: norms.append(float(next(model.parameters()).grad.norm())))
            made.register_step_post_hook(lambda *_: after.append(1))
            return made

        mine, _ = train(comm, clip=None, optimizer=optimizer)
        return norms, after, mine

    norms, after, alone = program(None)
    for found in simulate(program):
        assert np.allclose(found[0], norms, rtol=1e-4)
        assert found[1] == after
        assert np.allclose(found[2], alone, atol=2e-6)


def wide() -> nn.Module:
    """A network whose parameters fill several pages of memory."""
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(6, 500), nn.Tanh(), nn.Linear(500, 3))


def shrink(model: Any) -> None:
    """Change all weights, by a factor that depends on all of them."""
    with torch.no_grad():
        norm = torch.stack([p.norm() for p in model.parameters()]).norm()
        for p in model.parameters():
            p.mul_(0.99 + 0.001 * norm / (1 + norm))


def clamp_some(model: Any) -> None:
    model[2].weight.data.clamp_(-0.02, 0.03)


def swap(model: Any) -> None:
    """Evaluate with other weights, and go on with the old ones."""
    before = copy.deepcopy(model.state_dict())
    model.load_state_dict({name: 0.5 * value for name, value in before.items()})
    assert not torch.equal(model[0].weight, before["0.weight"])
    model.load_state_dict(before)


def overwrite(model: Any) -> None:
    model[0].weight.detach().numpy()[100:300] = 0.25


@pytest.fixture(params=["one x", "an x on each rank"])
def memory_of_x(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ranks share x, or let them find that the system cannot do that."""
    if request.param != "one x":
        monkeypatch.setattr("paceline.comm.shared.PAGEMAP", "/proc/self/no-such-file")


@pytest.mark.usefixtures("memory_of_x")
@pytest.mark.parametrize("after", [shrink, clamp_some, swap, overwrite])
def test_weights_that_programs_change_themselves(after: Callable[[Any], None]) -> None:
    """On every rank alike: once, not once for each rank."""
    clip = 0.5 if after is shrink else None
    program = partial(train, after=after, build=wide, optimizer=one_group, clip=clip, epochs=1)
    alone, _ = program(None)
    if after is not swap:
        unchanged = train(None, build=wide, optimizer=one_group, clip=clip, epochs=1)[0]
        assert not np.allclose(alone, unchanged, atol=1e-3)
    for mine, _ in simulate(program):
        assert np.allclose(mine, alone, atol=1e-5)


def test_sums_of_others_are_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    program = partial(train, build=wide, optimizer=one_group, epochs=1)
    summed_here = simulate(program)
    monkeypatch.setattr("paceline.collectives._exchange.SUMMED_BY_ALL", 0)
    for (mine, _), (other, _) in zip(summed_here, simulate(program), strict=True):
        assert np.array_equal(mine, other)


def test_memory_is_copied_only_where_a_program_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[slice] = []
    find = CommonFile.find_changes

    def watch(file: CommonFile) -> list[slice]:
        found = find(file)
        copied.extend(one for one in found if one.start < file.nbytes)  # not the page for `check`
        return found

    monkeypatch.setattr(CommonFile, "find_changes", watch)
    program = partial(train, build=wide, optimizer=one_group, epochs=1)
    simulate(program, 2)
    assert copied == []
    simulate(partial(program, after=clamp_some), 2)
    assert bool(copied) == Path(PAGEMAP).exists()
    assert all(one.start >= 6 * 500 * 4 - mmap.PAGESIZE for one in copied)  # the weights of the last layer


@pytest.mark.usefixtures("memory_of_x")
def test_a_hook_after_the_step_changes_weights() -> None:
    def program(comm: Any) -> Any:
        def optimizer(model: Any) -> Any:
            made = one_group(model)
            made.register_step_post_hook(lambda *_: shrink(model))
            return made

        return train(comm, build=wide, optimizer=optimizer, clip=None, epochs=1)[0]

    alone = program(None)
    for mine in simulate(program):
        assert np.allclose(mine, alone, atol=1e-5)


def test_an_optimizer_that_has_taken_steps_before() -> None:
    def program(comm: Any) -> Any:
        model = net()
        made = one_group(model)
        loss_of(model, X, Y).backward()
        made.step()
        with session("sync", runs=None, quiet=True, comm=comm) as ranks:
            ranks.attach(model, made)
            for _ in ranks.epochs(1):
                for inputs, labels in ranks.share((X, Y), batch=49):
                    made.zero_grad()
                    loss_of(model, inputs, labels).backward()
                    made.step()
        made.zero_grad()
        loss_of(model, X, Y).backward()
        made.step()  # and takes them afterwards
        return parameters(model)

    alone = program(None)
    for mine in simulate(program):
        assert np.allclose(mine, alone, atol=2e-6)


# ---- exchange during the backward pass


OVERLAP = "sync:allreduce=ring,overlap=true,bucket=0.0001"


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("strategy", [OVERLAP, OVERLAP.replace("ring", "native")])
def test_overlap_equals_one_process(strategy: str, clip: float | None) -> None:
    for mine, _ in simulate(partial(train, strategy=strategy, clip=clip)):
        assert np.allclose(mine, plain(clip=clip), atol=2e-6)


def test_overlap_with_several_passes_and_accumulated_batches() -> None:
    def program(comm: Any) -> Any:
        model = net()
        with session(OVERLAP, runs=None, quiet=True, comm=comm) as ranks:
            _, made = ranks.attach(model, adamw(model))
            for _ in ranks.epochs(2):
                for place, (inputs, labels) in enumerate(
                    ranks.share((X[:96], Y[:96]), batch=12, accumulate=2)
                ):
                    (loss_of(model, inputs, labels) / 2).backward()
                    (model(inputs).square().mean() / 2).backward()
                    if place % 2:
                        made.step()
                        made.zero_grad()
        return parameters(model)

    alone = program(None)
    for mine in simulate(program, 3):
        assert np.allclose(mine, alone, atol=2e-6)


def one_more_pass(ranks: Session, model: Any, made: Any, turn: list[int]) -> None:
    turn[0] += 1
    if turn[0] == 4:
        model(X[:5]).sum().backward()


def change_gradients(ranks: Session, model: Any, made: Any, turn: list[int]) -> None:
    turn[0] += 1
    if turn[0] == 4:
        next(model.parameters()).grad.mul_(2)


@pytest.mark.parametrize(
    ("what", "said"),
    [(one_more_pass, "number of backward passes"), (change_gradients, "call ranks.exchange")],
)
def test_overlap_refuses_what_comes_too_late(what: Callable[..., None], said: str) -> None:
    def program(comm: Any) -> None:
        train(comm, OVERLAP, clip=None, before=partial(what, turn=[0]))

    program(None)
    with pytest.raises(RankFailed, match=said):
        simulate(program, 2)


def on_real_ranks(comm: Any) -> dict[str, Any]:
    """A step that is divided, one with overlap, and how many layers are reported before the backward pass has ended."""
    seen: list[int] = []
    before_step: list[int] = []

    def watching(me: Any) -> None:
        me.broadcast()
        with me.exchange("ring", overlap=True, bucket=0.0001) as exchange:

            def ready(layer: int) -> None:
                seen.append(layer)
                exchange.ready(layer)

            for epoch in me.epochs():
                for batch in me.batches(epoch):
                    seen.clear()
                    me.gradient(batch, ready)
                    me.step(exchange.reduce(), batch.total, exchange.part)
                    exchange.publish()
                me.validate(epoch)

    def look(*_: Any) -> None:
        before_step.append(len(seen))

    found = {
        "watching": train(comm, watching, clip=None, before=look),  # type: ignore[arg-type]
        "divided": train(comm, "sync", clip=None),
        "clipped": train(comm, "sync"),
        "changed": train(comm, "sync", after=shrink, build=wide),
    }
    return {"layers": before_step, **{name: mine.tolist() for name, (mine, _) in found.items()}}


@pytest.mark.once
@pytest.mark.timeout(600)
def test_overlap_and_division_on_real_ranks() -> None:
    for found in on_ranks("tests.test_own_loop:on_real_ranks", 2, time_limit=280):
        assert found["layers"] == [0, 0] + [2] * 12  # two steps to learn what the program's passes are like
        assert np.allclose(found["watching"], plain(clip=None), atol=2e-6)
        assert np.allclose(found["divided"], plain(clip=None), atol=2e-6)
        assert np.allclose(found["clipped"], plain(), atol=2e-6)
        assert np.allclose(found["changed"], train(None, after=shrink, build=wide)[0], atol=1e-5)


# ---- every strategy


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_trains_the_program(strategy: str) -> None:
    ranks = 1 if strategy == "serial" else 3
    found = simulate(partial(train, strategy=strategy, epochs=3, clip=None), ranks)
    start = parameters(net())
    for mine, loop in found:
        assert np.isfinite(mine).all()
        assert not np.allclose(mine, start)
        assert np.array_equal(mine, found[0][0])  # all ranks have the complete model
        assert [epoch.epoch for epoch in loop.fitted.history] == [0, 1, 2]
    history = found[0][1].fitted.history
    assert history[-1].validation_loss < 1.3
    assert [set(epoch.metrics) for epoch in history] == [{"loss", "margin"}] * 3


def test_a_strategy_of_the_users_own() -> None:
    def alone(me: Any) -> None:
        me.broadcast()
        for epoch in me.epochs():
            for batch in me.own_batches(epoch):
                me.gradient(batch)
                me.step(me.model.g, batch.count)
            me.model.x[:] = me.mean()(me.model.x)
            me.validate(epoch)

    found = simulate(partial(train, strategy=alone))
    assert np.array_equal(found[0][0], found[2][0])


def test_every_sample_once_per_epoch() -> None:
    """Also where the last batches are smaller, and some ranks have fewer."""

    def program(strategy: str, comm: Any) -> list[list[float]]:
        model, seen = net(), []
        with session(strategy, runs=None, comm=comm) as ranks:
            _, made = ranks.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
            for _ in ranks.epochs(2):
                seen.append([])
                for inputs, labels in ranks.share((X, Y), batch=16):
                    seen[-1] += inputs[:, 0].tolist()
                    loss_of(model, inputs, labels).backward()
                    made.step()
        return seen

    for strategy in ("sync", "local-sgd:every=3", "gossip", "parameter-server"):
        # With more ranks than samples in the last batch, some get that batch with weight 0.
        values = simulate(partial(program, strategy), 2 if strategy == "sync" else 4)
        for epoch in range(2):
            together = sorted(value for seen in values if len(seen) > epoch for value in seen[epoch])
            assert together == sorted(X[:, 0].tolist()), strategy


# ---- loaders


def collate(samples: list[Any]) -> Any:
    return torch.stack([inputs for inputs, _ in samples]) * 2, torch.stack([label for _, label in samples])


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True},
        {"shuffle": False},
        {"shuffle": True, "drop_last": True},
        {"shuffle": True, "collate_fn": collate},
        {"sampler": "weighted"},
        {"shuffle": True, "num_workers": 1},
    ],
)
def test_loaders_give_the_same_batches_on_any_number_of_ranks(options: dict[str, Any]) -> None:
    def loader() -> Any:
        given = dict(options)
        if given.get("sampler"):
            given["sampler"] = WeightedRandomSampler(torch.arange(98).float() + 1, 50)
        return DataLoader(TensorDataset(X, Y), batch_size=16, **given)

    alone, loop = train(None, data=loader, batch=None)
    steps = 4 if "sampler" in options else 6 if options.get("drop_last") else 7
    assert loop.fitted is not None
    assert loop.fitted.steps == 2 * steps
    ranks = 2 if options.get("num_workers") else 3
    for mine, _ in simulate(partial(train, data=loader, batch=None), ranks):
        assert np.allclose(mine, alone, atol=2e-6)
    if not options.get("num_workers"):
        for mine, _ in simulate(partial(train, strategy="local-sgd:every=2", data=loader, batch=None)):
            assert np.isfinite(mine).all()


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from zip(X, Y, strict=True)


def test_a_stream() -> None:
    def loader() -> Any:
        return DataLoader(Endless(), batch_size=16)

    alone, _ = train(None, data=loader, batch=None, steps=5)
    for mine, _ in simulate(partial(train, data=loader, batch=None, steps=5)):
        assert np.allclose(mine, alone, atol=2e-6)
    for strategy in ("weight-average", "parameter-server"):
        [*_, (mine, _)] = simulate(partial(train, strategy=strategy, data=loader, batch=None, steps=5))
        assert np.isfinite(mine).all()
    with pytest.raises(UsageError, match="give share"):
        train(None, data=loader, batch=None)


class Passes(Endless):
    """A stream that counts how often it is read from its beginning."""

    def __init__(self) -> None:
        self.count = 0

    def __iter__(self) -> Iterator[Any]:
        self.count += 1
        return super().__iter__()


def test_a_stream_begins_anew_in_every_epoch_also_where_a_rank_has_one_batch_of_it() -> None:
    def count_passes(comm: Any, strategy: str = "sync", steps: int = 1) -> int:
        stream = Passes()
        train(
            comm, strategy, epochs=3, data=lambda: DataLoader(stream, batch_size=16), batch=None, steps=steps
        )
        return stream.count

    assert count_passes(None) == 3
    assert simulate(partial(count_passes, strategy="weight-average", steps=3)) == [3, 3, 3]


class Counted(Endless):
    def __iter__(self) -> Iterator[Any]:
        yield from zip(X, Y, strict=True)

    def __len__(self) -> int:
        return len(X)


def test_a_stream_that_ends_with_a_smaller_batch() -> None:
    def loader() -> Any:
        return DataLoader(Counted(), batch_size=16)

    alone, _ = train(None, data=loader, batch=None)
    for mine, _ in simulate(partial(train, data=loader, batch=None)):
        assert np.allclose(mine, alone, atol=2e-6)
    with pytest.raises(UsageError, match="drop_last"):
        train(None, data=loader, batch=None, steps=7)


# ---- what programs do


def test_gradients_are_exchanged_before_the_program_reads_them() -> None:
    def note(norms: list[float], ranks: Session, model: nn.Module, _: Any) -> None:
        ranks.exchange()
        norms.append(float(torch.stack([p.grad.norm() for p in model.parameters()]).norm()))  # type: ignore[union-attr]

    def program(comm: Any) -> list[float]:
        norms: list[float] = []
        train(comm, clip=None, before=partial(note, norms))
        return norms

    alone = program(None)
    for norms in simulate(program):
        assert np.allclose(norms, alone, rtol=1e-4)


def test_clipping_by_value() -> None:
    def clip(_: Any, model: nn.Module, __: Any) -> None:
        nn.utils.clip_grad_value_(model.parameters(), 0.01)

    alone, _ = train(None, clip=None, before=clip)
    for mine, _ in simulate(partial(train, clip=None, before=clip)):
        assert np.allclose(mine, alone, atol=2e-6)


def test_several_losses_and_accumulated_batches() -> None:
    def program(comm: Any) -> Any:
        model = net()
        with session("sync", runs=None, comm=comm) as ranks:
            _, made = ranks.attach(model, adamw(model))
            for _ in ranks.epochs(2):
                for place, (inputs, labels) in enumerate(
                    ranks.share((X[:96], Y[:96]), batch=12, accumulate=2)
                ):
                    (loss_of(model, inputs, labels) / 2).backward()
                    (model(inputs).square().mean() / 2).backward()
                    if place % 2:
                        made.step()
                        made.zero_grad()
        return parameters(model), ranks.fitted.steps if ranks.fitted else 0

    alone, steps = program(None)
    assert steps == 2 * 96 // 24
    for ranks in (2, 3):
        for mine, _ in simulate(program, ranks):
            assert np.allclose(mine, alone, atol=2e-6)
    with pytest.raises(RankFailed, match="divide evenly"):
        simulate(program, 5)


def test_a_frozen_part_that_is_trained_later() -> None:
    def program(comm: Any) -> Any:
        model: Any = net()
        for p in model[0].parameters():
            p.requires_grad_(False)
        frozen = parameters(model[0])
        with session("sync", runs=None, comm=comm) as ranks:
            _, made = ranks.attach(model, torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5))
            for epoch in ranks.epochs(2):
                if epoch == 1:
                    assert np.array_equal(parameters(model[0]), frozen)  # no decay either
                    for p in model[0].parameters():
                        p.requires_grad_(True)
                for inputs, labels in ranks.share((X, Y), batch=16):
                    made.zero_grad()
                    loss_of(model, inputs, labels).backward()
                    made.step()
        assert not np.array_equal(parameters(model[0]), frozen)
        return parameters(model)

    alone = program(None)
    for mine in simulate(program):
        assert np.allclose(mine, alone, atol=2e-6)


def test_parameters_of_lower_precision() -> None:
    def program(strategy: str, comm: Any) -> Any:
        model: Any = net()
        model[0].bfloat16()
        with session(strategy, runs=None, quiet=True, comm=comm) as ranks:
            _, made = ranks.attach(model, torch.optim.SGD(model.parameters(), lr=0.05))
            for _ in ranks.epochs(1):
                for inputs, labels in ranks.share((X, Y), batch=16):
                    made.zero_grad()
                    hidden = model[1](model[0](inputs.bfloat16())).float()
                    nn.functional.cross_entropy(model[2](hidden), labels).backward()
                    made.step()
        return parameters(model)

    alone = program("sync", None)
    for strategy in ("sync", "parameter-server"):
        found = simulate(partial(program, strategy), 2)
        for mine in found:
            assert np.allclose(mine, alone, atol=2e-2)
            assert np.array_equal(mine, found[0])


def test_a_server_refuses_to_unfreeze() -> None:
    def program(comm: Any) -> None:
        model: Any = net()
        model[0].requires_grad_(False)
        with session("parameter-server", runs=None, quiet=True, comm=comm) as ranks:
            _, made = ranks.attach(model, adamw(model))
            for _ in ranks.epochs(1):
                for inputs, labels in ranks.share((X, Y), batch=16):
                    model[0].requires_grad_(True)
                    loss_of(model, inputs, labels).backward()
                    made.step()

    with pytest.raises(RankFailed, match="unfrozen"):
        simulate(program)


def test_autocast_compiled_modules_and_evaluation_in_the_middle() -> None:
    def program(comm: Any) -> Any:
        model: Any = net()
        compiled = torch.compile(model, backend="eager")
        with session("sync", runs=None, comm=comm) as ranks:
            _, made = ranks.attach(model, adamw(model))
            for _ in ranks.epochs(2):
                for inputs, labels in ranks.share((X, Y), batch=16):
                    with torch.autocast("cpu", torch.bfloat16):
                        loss = loss_of(compiled, inputs, labels)
                    made.zero_grad()
                    loss.backward()
                    made.step()
                    model.eval()
                    with torch.no_grad():
                        assert torch.isfinite(model(X)).all()
                    model.train()
        return parameters(model)

    alone = program(None)
    for mine in simulate(program, 2):
        assert np.allclose(mine, alone, atol=2e-2)  # bfloat16


def test_batch_norm_and_early_stopping() -> None:
    def program(strategy: str, comm: Any) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
        with session(strategy, runs=None, comm=comm) as ranks:
            _, made = ranks.attach(model, adamw(model))
            for epoch in ranks.epochs(9):
                for inputs, labels in ranks.share((X[:96], Y[:96]), batch=24):
                    made.zero_grad()
                    loss_of(model, inputs, labels).backward()
                    made.step()
                ranks.validate(loss=float(epoch))
                if epoch == 2:
                    break
        return parameters(model), [b.clone() for b in model.buffers()], len(ranks.fitted.history)  # type: ignore[union-attr]

    for strategy in ("sync", "local-sgd:every=5", "hogwild"):
        found = simulate(partial(program, strategy))
        for mine, buffers, epochs in found:
            assert epochs == 3
            assert np.array_equal(mine, found[0][0])
            for one, other in zip(buffers, found[0][1], strict=True):
                assert torch.equal(one, other)


@pytest.mark.parametrize("strategy", ["psgd", "parameter-server"])
def test_ranks_that_have_begun_the_next_epoch_do_not_end_early(strategy: str, tmp_path: Path) -> None:
    with pytest.raises(RankFailed, match=f"with {strategy}, the loop .* cannot be left early"):
        simulate(partial(leave_after_an_epoch, "break", tmp_path, strategy=strategy))


@pytest.mark.parametrize(
    "strategy", ["sync", "local-sgd:every=5", "parameter-server", "gossip", "main-worker"]
)
def test_training_ends_at_the_target_on_all_ranks(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluates_later = strategy == "parameter-server"  # master 0 evaluates an epoch while the workers train on
    count = 30 if evaluates_later else 6

    def program(until: tuple[str, bool, float], comm: Any) -> Any:
        monkeypatch.setenv(SESSION, json.dumps({"until": until}))
        with session(strategy, runs=None, comm=comm, quiet=True) as ranks:
            model = net()
            _, made = ranks.attach(model, adamw(model))
            for epoch in ranks.epochs(count):
                for inputs, labels in ranks.share((X[:48], Y[:48]), batch=12):
                    made.zero_grad()
                    loss_of(model, inputs, labels).backward()
                    made.step()
                ranks.validate(gain=epoch, perplexity=100 - epoch)
        return len(ranks.fitted.history)  # type: ignore[union-attr]

    def epochs(*until: Any) -> int:
        (ended,) = set(simulate(partial(program, until)))
        return ended

    def is_soon(ended: int, epochs: int) -> bool:
        return epochs <= ended < count if evaluates_later else ended == epochs

    assert is_soon(epochs("gain", True, 2), 3)
    assert is_soon(epochs("perplexity", False, 97.5), 4)
    assert epochs("perplexity", False, 1) == epochs("another", True, 0) == count


def leave_after_an_epoch(how: str, runs: Path, comm: Any = None, *, strategy: str = "sync") -> None:
    """Leave the loop over the epochs after the first one: by break, by an exception, or by sys.exit."""
    with session(strategy, runs=runs, comm=comm, quiet=True) as ranks:
        model = net()
        _, made = ranks.attach(model, adamw(model))
        for _ in ranks.epochs(3):
            for inputs, labels in ranks.share((X[:48], Y[:48]), batch=12):
                made.zero_grad()
                loss_of(model, inputs, labels).backward()
                made.step()
            if how == "break":
                break
            if how == "exit":
                sys.exit()
            if how == "fail" or (how == "fail on rank 1" and ranks.rank == 1):
                raise RuntimeError("as asked")


@pytest.mark.parametrize(
    ("how", "error", "complete"),
    [("break", None, True), ("exit", SystemExit, True), ("fail", RuntimeError, False)],
)
def test_a_program_that_fails_leaves_no_complete_record(
    how: str, error: type[BaseException] | None, complete: bool, tmp_path: Path
) -> None:
    with nullcontext() if error is None else pytest.raises(error):
        leave_after_an_epoch(how, tmp_path)
    [folder] = tmp_path.iterdir()
    assert Run(folder).complete == complete
    assert len(Run(folder).epochs) == 1
    assert bool(find_runs([tmp_path])) == complete


def test_a_run_of_a_program_is_not_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with suppress(RuntimeError):
        leave_after_an_epoch("fail", tmp_path)
    [folder] = tmp_path.iterdir()
    assert main(["resume", str(folder)]) == 2
    (said,) = capsys.readouterr().err.splitlines()[-1:]
    assert said.startswith(f"paceline resume: {folder} is a run of a program with its own loop (")
    assert said.endswith("run the program again")


@pytest.mark.once
@pytest.mark.mpi
def test_a_rank_that_fails_leaves_no_complete_record(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom tests.test_own_loop import leave_after_an_epoch\n"
        "leave_after_an_epoch(sys.argv[1], Path('runs'))\n"
    )
    (tmp_path / "fails.py").write_text(program)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        done = command(tmp_path, "-n", "2", "fails.py", "fail on rank 1")
    assert done.returncode == 1, done.stderr
    assert "RuntimeError: as asked" in done.stderr
    [folder] = (tmp_path / "runs").iterdir()
    assert not Run(folder).complete


# ---- mistakes


def leave_out_step(ranks: Session, model: Any, made: Any) -> None:
    for _ in ranks.epochs(1):
        for inputs, labels in ranks.share((X, Y), batch=16):
            loss_of(model, inputs, labels).backward()


def step_twice(ranks: Session, model: Any, made: Any) -> None:
    for _ in ranks.epochs(1):
        for inputs, labels in ranks.share((X, Y), batch=16):
            loss_of(model, inputs, labels).backward()
            made.step()
            made.step()


def leave_early(ranks: Session, model: Any, made: Any) -> None:
    for _ in ranks.epochs(1):
        for inputs, labels in ranks.share((X, Y), batch=16):
            loss_of(model, inputs, labels).backward()
            made.step()
            break


def take_no_batches(ranks: Session, model: Any, made: Any) -> None:
    for _ in ranks.epochs(1):
        pass


def share_twice(ranks: Session, model: Any, made: Any) -> None:
    for _ in ranks.epochs(2):
        for _ in range(2):
            for inputs, labels in ranks.share((X, Y), batch=16):
                loss_of(model, inputs, labels).backward()
                made.step()


def give_a_closure(ranks: Session, model: Any, made: Any) -> None:
    made.step(lambda: 0.0)


def attach_again(ranks: Session, model: Any, made: Any) -> None:
    ranks.attach(model, made)


def share_outside_of_epochs(ranks: Session, model: Any, made: Any) -> None:
    next(iter(ranks.share((X, Y), batch=16)))


def share_nothing(ranks: Session, model: Any, made: Any) -> None:
    ranks.share(3)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (leave_out_step, "optimizer.step() was not called"),
        (step_twice, "once for each batch"),
        (leave_early, "ended before its last batch"),
        (take_no_batches, "must iterate over"),
        (share_twice, "once in an epoch"),
        (give_a_closure, "closure"),
        (attach_again, "once"),
        (share_outside_of_epochs, "ranks.epochs"),
        (share_nothing, "share takes"),
    ],
)
def test_mistakes_are_explained(mistake: Callable[..., None], words: str) -> None:
    def program(comm: Any) -> None:
        model = net()
        with session("sync", runs=None, comm=comm) as ranks:
            mistake(ranks, *ranks.attach(model, adamw(model)))

    with pytest.raises(UsageError) as said:
        program(None)
    assert words in str(said.value)
    with pytest.raises(RankFailed) as failed:
        simulate(program, 2)
    assert words in str(failed.value)


def test_an_error_of_the_program_is_its_own() -> None:
    def program(comm: Any) -> None:
        def fail(*_: Any) -> None:
            raise ZeroDivisionError("mine")

        train(comm, before=fail)

    with pytest.raises(ZeroDivisionError):
        program(None)
    with pytest.raises(RankFailed, match="ZeroDivisionError: mine"):
        simulate(program)
    train(None)  # nothing is left behind


# ---- the command


PROGRAM = """
import sys
import torch
import paceline

x, y = torch.arange(60.0).reshape(60, 1) / 60, torch.arange(60) // 30
net = torch.nn.Linear(1, 2)
with paceline.session(strategy="gossip") as ranks:
    net, optimizer = ranks.attach(net, torch.optim.SGD(net.parameters(), lr=1.0))
    for epoch in ranks.epochs(2):
        for a, b in ranks.share((x, y), batch=12):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(a), b).backward()
            optimizer.step()
        ranks.validate(accuracy=(net(x).argmax(1) == y).float().mean())
print("rank", ranks.rank, "of", ranks.size, sys.argv[1:])
"""

FAILING = """
import time
import paceline

with paceline.session(strategy="gossip") as ranks:
    if ranks.rank == 1:
        raise RuntimeError("as asked")
    time.sleep(300)  # the job does not wait for it
"""


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(PROGRAM)
    (folder / "failing.py").write_text(FAILING)
    done = [sys.executable, "-m", "paceline", "run", *words]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}  # lines stay whole nevertheless
    return subprocess.run(
        done, cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False
    )


@pytest.mark.once
@pytest.mark.timeout(600)
@pytest.mark.mpi
def test_the_command_on_real_ranks(tmp_path: Path) -> None:
    done = command(tmp_path, "-n", "2", "--strategy", "sync", "--name", "one", "program.py", "its", "own")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")[:2]) == [f"rank {rank} of 2 ['its', 'own']" for rank in range(2)]
    assert done.stderr.rstrip().endswith("runs/one")
    run = Run(tmp_path / "runs/one")
    assert run.config["strategy"] == "sync"
    assert run.summary["ranks"] == 2
    assert run.epochs[-1]["validation_accuracy"] == run.epochs[-1]["metrics"]["accuracy"]
    failed = command(tmp_path, "-n", "2", "--runs", "others", "failing.py")
    assert failed.returncode == 1
    assert "rank 1 of 2" in failed.stderr
    assert "RuntimeError: as asked" in failed.stderr


MISUSED = """
import sys

import paceline
import torch

net = torch.nn.Linear(4, 3)
with paceline.session(sys.argv[1], runs=None) as ranks:
    rate = float(sys.argv[2]) if ranks.rank == 1 else 1.0
    net, optimizer = ranks.attach(net, torch.optim.SGD(net.parameters(), lr=rate))
    for epoch in ranks.epochs(1):
        for a, b in ranks.share((torch.rand(40, 4), torch.arange(40) % 3), batch=30):
            pass
"""


@pytest.mark.once
@pytest.mark.mpi
@pytest.mark.parametrize(
    ("strategy", "rate", "said"),
    [
        ("parameter-server:masters=2", 1.0, "2 masters need at least 3 ranks (2 + 1 worker); the job has 2"),
        (
            "local-sgd",
            1.0,
            "a batch of 30 is more than the 20 training samples that each of 2 ranks has for itself",
        ),
        (
            "parameter-server:rule=adaptive",
            1.0,
            "rule=adaptive makes the whole step itself: the optimizer SGD(lr=1) would have no effect; "
            "choose another rule",
        ),
        (
            "sync",
            2.0,
            "every rank must be given the same run; rank 0 has update=SGD(lr=1), rank 1 update=SGD(lr=2)",
        ),
    ],
)
def test_what_all_ranks_refuse_is_one_line(strategy: str, rate: float, said: str, tmp_path: Path) -> None:
    (tmp_path / "misused.py").write_text(MISUSED)
    done = command(tmp_path, "-n", "2", "misused.py", strategy, str(rate))
    assert (done.returncode, done.stderr) == (2, f"paceline: {said}\n")


HANGING = """
import os
import signal

import paceline
import torch

x, y = torch.rand(40, 4), torch.arange(40) % 3
net = torch.nn.Linear(4, 3)
with paceline.session() as ranks:
    net, optimizer = ranks.attach(net, torch.optim.SGD(net.parameters(), lr=1.0))
    for epoch in ranks.epochs(100):
        for a, b in ranks.share((x, y), batch=4):
            if ranks.rank == 1 and epoch == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(a), b).backward()
            optimizer.step()
"""


@pytest.mark.once
@pytest.mark.mpi
def test_a_rank_that_stops_ends_the_program(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    words = ["-n", "2", "--stall-timeout", "2s", "--on-stall", "abort", "--quiet", "hanging.py"]
    done = command(tmp_path, *words)
    assert done.returncode == 75, done.stderr
    assert "rank 1 (process " in done.stderr
    assert "its process is stopped (SIGSTOP" in done.stderr
    assert "the run ends with status 75 (--on-stall abort)" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--stall-timeout", "soon"], "stall-timeout must be a time above 0 (60s, 5m) or never; got 'soon'"),
        (["--on", "sim", "--on-stall", "abort"], "--on-stall is for real ranks: simulated ones do not stall"),
    ],
)
def test_stalls_that_cannot_be_watched_for(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    assert main(["run", *words, str(tmp_path / "program.py")]) == 2
    assert capsys.readouterr().err == f"paceline run: {said}\n"


def test_a_program_has_no_checkpoint_to_save_when_it_stalls() -> None:
    with pytest.raises(UsageError, match="has no checkpoints: on-stall must be warn or abort"):
        session(on_stall="checkpoint-abort", runs=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("where", [("--on", "sim", "-n", "2"), ("-n", "1")], ids=["simulated", "real"])
def test_a_program_without_a_session_is_told_that_nothing_was_recorded(
    tmp_path: Path, where: tuple[str, ...]
) -> None:
    (tmp_path / "plain.py").write_text("print('trained')\n")
    done = command(tmp_path, *where, "--strategy", "gossip", "plain.py")
    assert done.returncode == 0
    said = "no run was recorded: plain.py does not use paceline.session, so no strategy trained it"
    assert done.stderr.splitlines()[-1] == said
    assert command(tmp_path, *where, "--quiet", "plain.py").stderr == ""


def test_the_command_in_the_simulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = ["--on", "sim", "-n", "5", "--network", "10gbe", "--strategy", "local-sgd", "program.py"]
    with patch.dict(os.environ):
        assert main(["run", *words]) == 0
    found = capsys.readouterr()
    assert found.out.count("of 5") == 5
    [folder] = (tmp_path / "runs").iterdir()
    simulated, environment = Run(folder).simulated, Run(folder).environment
    assert simulated is not None
    assert (
        simulated["costs"]["cores"] == environment["cores"] == machine_cores()
    )  # its ranks do not share one core
    assert environment["simulated"]["machine"].startswith(
        "messages in a node as on a typical machine; computing as on "
    )
    assert environment["processor"] == processor()
    assert "virtual seconds on 5 ranks" in found.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "a program is needed"),
        (["-n", "2", "nothing.py"], "nothing.py"),
        (["-n", "0", "program.py"], "ranks must be at least 1"),
        (["--strategy", "nonsense", "program.py"], "unknown strategy"),
        (["-n", "1", "--strategy", "parameter-server", "program.py"], "at least 2 ranks"),
        (["--network", "10gbe", "program.py"], "network"),
        (["--until", "nonsense", "program.py"], "a target must be a metric and a value"),
    ],
)
def test_bad_input_of_the_command(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "program.py").write_text("raise AssertionError('the program was started')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["run", *words]) == 2
    found = capsys.readouterr()
    assert said in found.err
    assert found.err.count("\n") == 1
    assert found.out == ""
