"""A torch optimizer as an update: the same steps as torch's own, whole or in parts, and after a checkpoint."""

from __future__ import annotations

import copy
from itertools import pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from paceline.errors import UsageError  # noqa: E402
from paceline.updates import TorchOptimizer, is_elementwise  # noqa: E402

SETTINGS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    "nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "plain": (torch.optim.SGD, {"lr": 0.1}),
    "adam": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "nadam": (torch.optim.NAdam, {"lr": 0.01}),
    "radam": (torch.optim.RAdam, {"lr": 0.01}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.5, "centered": True}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.1}),
    "adadelta": (torch.optim.Adadelta, {"lr": 1.0}),
    "adamax": (torch.optim.Adamax, {"lr": 0.01}),
    "asgd": (torch.optim.ASGD, {"lr": 0.1}),
    "rprop": (torch.optim.Rprop, {"lr": 0.01}),
    "adafactor": (torch.optim.Adafactor, {"lr": 0.01}),
    **({"muon": (torch.optim.Muon, {"lr": 0.01})} if hasattr(torch.optim, "Muon") else {}),
}
WHOLE = ("adafactor", "muon")


def module(name: str) -> nn.Module:
    """A module whose tensors are all matrices for Muon, which takes nothing else."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(5, 4, bias=name != "muon"), nn.Tanh(), nn.Linear(4, 3, bias=name != "muon")
    )


def make(name: str, net: nn.Module) -> torch.optim.Optimizer:
    """Two groups: matrices and the rest, with another learning rate; Muon has one."""
    kind, settings = SETTINGS[name]
    first, *rest = list(net.parameters())
    return kind([{"params": [first]}, {"params": rest, "lr": settings["lr"] / 2}], **settings)


def places(net: nn.Module) -> list[tuple[nn.Parameter, slice]]:
    """The tensors one after the other."""
    found, start = [], 0
    for p in net.parameters():
        found.append((p, slice(start, start + p.numel())))
        start += p.numel()
    return found


def gradients(size: int, steps: int) -> np.ndarray:
    return np.random.default_rng(5).normal(size=(steps, size)).astype(np.float32)


def flat(net: nn.Module) -> np.ndarray:
    return np.concatenate([p.detach().numpy().reshape(-1) for p in net.parameters()])


def by_torch(name: str, steps: int, *, freeze: bool = False) -> np.ndarray:
    """The parameters after some steps of torch's own optimizer, whose learning rates a scheduler changes."""
    net = module(name)
    optimizer = make(name, net)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for step, g in enumerate(gradients(flat(net).size, steps)):
        if freeze:
            next(net.parameters()).requires_grad_(step >= 2)
        for p, part in places(net):
            p.grad = torch.from_numpy(g[part].copy()).reshape(p.shape) if p.requires_grad else None
        optimizer.step()
        scheduler.step()
    return flat(net)


def by_parts(name: str, cuts: list[int], steps: int, *, save_at: int = -1, recut: list[int] | None = None,
             freeze: bool = False) -> np.ndarray:  # fmt: skip
    """The same by updates of parts; after `save_at` steps all states are put together and cut anew."""
    net = module(name)
    optimizer = make(name, net)
    update = TorchOptimizer(optimizer, places(net))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    x = flat(net)

    def start(edges):
        return [(slice(a, b), update.start_at(x[a:b], a)) for a, b in pairwise(edges)]

    states = start(cuts)
    for step, g in enumerate(gradients(x.size, steps)):
        if freeze:
            next(net.parameters()).requires_grad_(step >= 2)
        if step == save_at:
            saved = [(part, {k: v.copy() for k, v in state.items()}) for part, state in states]
            states = start(recut)
            for part, state in states:
                for key, values in state.items():
                    if values.shape == (part.stop - part.start,):
                        values[...] = np.concatenate([one[key] for _, one in saved])[part]
                    else:
                        values[...] = saved[0][1][key]
        mine = 4 * g
        for part, state in states:
            update.apply(x[part], mine[part], 1.0, state, scale=0.25)
        scheduler.step()
    return x


@pytest.mark.parametrize("name", SETTINGS)
def test_the_whole_vector_moves_as_torch_moves_it(name):
    size = flat(module(name)).size
    np.testing.assert_allclose(by_parts(name, [0, size], 5), by_torch(name, 5), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", [name for name in SETTINGS if name not in WHOLE])
def test_parts_move_as_the_whole_does_and_may_be_cut_anew(name):
    size = flat(module(name)).size
    whole = by_parts(name, [0, size], 6)
    np.testing.assert_array_equal(by_parts(name, [0, 7, 22, 30, size], 6), whole)
    again = by_parts(name, [0, 7, 22, 30, size], 6, save_at=3, recut=[0, 3, size])
    np.testing.assert_array_equal(again, whole)


@pytest.mark.parametrize("name", WHOLE)
def test_a_saved_state_of_the_whole_vector_goes_on_bit_for_bit(name):
    if name not in SETTINGS:
        name = "adafactor"
    size = flat(module(name)).size
    again = by_parts(name, [0, size], 5, save_at=2, recut=[0, size])
    np.testing.assert_array_equal(again, by_parts(name, [0, size], 5))


@pytest.mark.parametrize("name", ["adamw", "sgd", "adafactor"])
def test_a_tensor_that_is_unfrozen_later_begins_then(name):
    size = flat(module(name)).size
    wanted = by_torch(name, 6, freeze=True)
    np.testing.assert_allclose(by_parts(name, [0, size], 6, freeze=True), wanted, rtol=1e-6, atol=1e-7)
    if name not in WHOLE:
        cut = by_parts(name, [0, 21, size], 6, freeze=True, save_at=4, recut=[0, 10, size])
        np.testing.assert_allclose(cut, wanted, rtol=1e-6, atol=1e-7)


def test_eta_is_a_factor_on_the_learning_rates():
    net = module("plain")
    update = TorchOptimizer(make("plain", net), places(net))
    x = flat(net)
    before = x.copy()
    update.apply(x, np.ones_like(x), 0.5, update.start(x))
    np.testing.assert_allclose(before - x, np.r_[np.full(20, 0.05), np.full(x.size - 20, 0.025)], rtol=1e-5)


def test_steps_that_the_users_optimizer_took_before_are_not_forgotten():
    def after(own_steps: int) -> np.ndarray:
        net = module("adamw")
        optimizer = make("adamw", net)
        all_g = gradients(flat(net).size, 4)
        for g in all_g[:own_steps]:
            for p, part in places(net):
                p.grad = torch.from_numpy(g[part].copy()).reshape(p.shape)
            optimizer.step()
        update = TorchOptimizer(optimizer, places(net))
        x = flat(net)
        states = [(part, update.start_at(x[part], part.start)) for part in (slice(0, 9), slice(9, x.size))]
        for g in all_g[own_steps:]:
            for part, state in states:
                update.apply(x[part], g[part].copy(), 1.0, state)
        return x

    np.testing.assert_allclose(after(2), after(0), rtol=1e-6, atol=1e-7)


def test_float64_keeps_its_precision():
    weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    update = TorchOptimizer(torch.optim.Adam([weight], lr=0.1), [(weight, slice(0, 3))])
    state = update.start(np.zeros(3))
    assert state["exp_avg"].dtype == np.float64


class Counting(torch.optim.Optimizer):
    """An optimizer that keeps a count in its groups and a Python number in its state."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr, "k": 0})

    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] += 1
            for p in group["params"]:
                self.state[p]["n"] = self.state[p].get("n", 0) + 1
                p.data -= group["lr"] * p.grad / (group["k"] + self.state[p]["n"])


class Hiding(Counting):
    """One that keeps it where nobody finds it."""

    total = 0

    def __init__(self, params):
        super().__init__(params)
        self.total = 0

    def step(self, closure=None):
        self.total += 1


def test_numbers_in_groups_and_in_the_state_are_saved():
    weight = nn.Parameter(torch.zeros(4))
    update = TorchOptimizer(Counting([weight]), [(weight, slice(0, 4))])
    assert not is_elementwise(update)
    x = np.zeros(4, np.float32)
    state = update.start(x)
    for _ in range(2):
        update.apply(x, np.ones(4, np.float32), 1.0, state)
    assert state["group.k"].item() == 2
    assert state["n"].item() == 2
    other = update.start(x)
    for key, values in state.items():
        other[key][...] = values
    y = x.copy()
    update.apply(x, np.ones(4, np.float32), 1.0, state)
    update.apply(y, np.ones(4, np.float32), 1.0, other)
    np.testing.assert_array_equal(x, y)
    np.testing.assert_allclose(x, -0.1 * (1 / 2 + 1 / 4 + 1 / 6), rtol=1e-6)


def test_what_cannot_be_used_is_refused_in_one_line():
    weight, other = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))
    at = [(weight, slice(0, 2))]
    for optimizer, words in [
        (torch.optim.LBFGS([weight]), "LBFGS computes several gradients"),
        (torch.optim.SparseAdam([weight]), "SparseAdam cannot be used"),
        (
            torch.optim.SGD([weight, other], lr=0.1),
            r"a tensor of shape \(3,\) that the module does not train",
        ),
        (Hiding([weight]), "Hiding cannot be used: it keeps total neither"),
        ("adam", "must be a torch.optim.Optimizer; got str"),
    ]:
        with pytest.raises(UsageError, match=words) as caught:
            TorchOptimizer(optimizer, at)
        assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="needs all 2 parameters at once; got 1"):
        TorchOptimizer(Counting([weight]), at).start_at(np.zeros(1), 1)


def test_the_users_optimizer_takes_no_step_itself():
    net = module("adamw")
    optimizer = make("adamw", net)
    before = copy.deepcopy(optimizer.state_dict())
    update = TorchOptimizer(optimizer, places(net))
    x = flat(net)
    update.apply(x, np.ones_like(x), 1.0, update.start(x))
    assert optimizer.state_dict() == before
    np.testing.assert_array_equal(flat(module("adamw")), flat(net))
