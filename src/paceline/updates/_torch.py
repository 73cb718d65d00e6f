"""Any `torch.optim.Optimizer`, with its groups of parameters, as an update of flat vectors.

The user's optimizer keeps its groups and hyper-parameters and takes no step itself. A copy of it does, whose tensors are
views of `x` and `g`, after its hyper-parameters have been copied from the user's: schedulers and later changes have
their effect. The memory of the copy consists of views of the arrays in `state`:

    NAME          one number for each parameter of a part of x (`exp_avg`, `momentum_buffer` …)
    NAME          one number for each tensor (`step` …), in an array of shape (tensors, 1)
    group.NAME    a number that an optimizer keeps in its groups, in an array of shape (groups, 1)
    steps         the steps that each tensor has taken, in an array of shape (tensors, 1)

Torch's element-wise optimizers may be applied to any part of the vector; tensors that are neighbours in x and have the
same group and history are one tensor for them. Optimizers of other classes get the whole vector, as tensors of their own
shapes, and what they remember is stored one tensor after the other.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.updates import Array, State

# Optimizers of exactly these classes work element by element.
ELEMENTWISE = (
    torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam, torch.optim.RMSprop,
    torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.Adamax, torch.optim.ASGD, torch.optim.Rprop,
)  # fmt: skip
# The size of the tensors with which an element-wise optimizer is tried, to learn what it remembers.
TRIED = 2


class TensorPlace(NamedTuple):
    """A tensor of the user's module and its part of the flat vector."""

    tensor: Tensor
    part: slice


class Entry(NamedTuple):
    """An entry of what an optimizer remembers of a tensor."""

    name: str
    shape: tuple[int, ...] | None
    """None: one number for each parameter."""
    dtype: np.dtype[Any]
    kind: type
    """Tensor, or the type of a Python number."""
    start: int
    """Where it begins in the array of its name, if that holds one tensor after the other."""

    @property
    def size(self) -> int:
        """The number of its elements."""
        return int(np.prod(self.shape or (), dtype=np.int64))


class StateLayout(NamedTuple):
    """All that an optimizer remembers."""

    entries: list[tuple[Entry, ...]]
    """Of every place."""
    group_names: list[str]
    """The numbers that it keeps in its groups."""


class TorchState(dict[str, Array]):
    """The state of a part of the vector: the arrays to save, and the copy of the optimizer that uses them."""

    def __init__(self, first: int, size: int) -> None:
        self.first, self.size = first, size
        self.copy_of_optimizer: PartOptimizer | None = None


class TorchOptimizer:
    """A torch optimizer as an update; `places` are its tensors and their parts of the flat vector.

    The learning rate of a step is that of each group times `eta`. A tensor that does not require a gradient is left
    alone.

    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> update = TorchOptimizer(torch.optim.Adam([weight], lr=0.5), [(weight, slice(0, 2))])
    >>> x = np.zeros(2, np.float32)
    >>> state = update.start(x)
    >>> update.apply(x, np.array([100, 0.01], np.float32), 1.0, state)
    >>> x.round(3), sorted(state), update.elementwise
    (array([-0.5, -0.5], dtype=float32), ['exp_avg', 'exp_avg_sq', 'step', 'steps'], True)
    """

    def __init__(self, optimizer: torch.optim.Optimizer, places: Iterable[tuple[Tensor, slice]]) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise UsageError(f"an optimizer must be a torch.optim.Optimizer; got {type(optimizer).__name__}")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise UsageError(
                "LBFGS computes several gradients a step, which strategies do not; choose another optimizer"
            )
        self.optimizer = optimizer
        self.kind = type(optimizer).__name__
        self.elementwise = type(optimizer) in ELEMENTWISE
        """True if it may be applied to parts of the vector."""
        self.places = sorted((TensorPlace(*place) for place in places), key=lambda place: place.part.start)
        self.size = max((place.part.stop for place in self.places), default=0)
        self.absent: frozenset[int] | None = None
        """The numbers of places that have no gradient in the next step; None: those of tensors that require none."""
        self._layouts: dict[Any, StateLayout] = {}
        self.layout(np.dtype(np.float32))  # refuses what cannot be used

    def __repr__(self) -> str:
        return f"TorchOptimizer({describe_optimizer(self.optimizer)})"

    # ---- the update

    def start(self, x: Array) -> TorchState:
        """Return the state of the whole vector, or of a part of it that begins with element 0."""
        return self.start_at(x, 0)

    def start_at(self, x: Array, first: int, into: Mapping[str, Array] | None = None) -> TorchState:
        """Return the state of the part of the vector that begins with element `first`.

        `into`: arrays of zeros, by the names of `vectors`, for what it remembers of each parameter of the part.
        """
        if not self.elementwise and (first or x.size != self.size):
            raise UsageError(f"{self.kind} needs all {self.size:,} parameters at once; got {x.size:,}")
        state, layout, count = TorchState(first, x.size), self.layout(x.dtype), len(self.places)
        for entries in layout.entries:
            for entry in entries:
                if entry.shape is None:
                    state[entry.name] = np.zeros(x.size, entry.dtype) if into is None else into[entry.name]
                elif self.elementwise:
                    state[entry.name] = np.zeros((count, 1), entry.dtype)
                else:  # the last is the longest
                    state[entry.name] = np.zeros(entry.start + entry.size, entry.dtype)
        for name in layout.group_names:
            values = [group[name] for group in self.optimizer.param_groups]
            state[f"group.{name}"] = np.array(values, np.float64).reshape(-1, 1)
        state["steps"] = np.zeros((count, 1), np.int64)
        self._take_over(state, layout)
        return state

    def apply(self, x: Array, g: Array, eta: float, state: State, scale: float = 1.0) -> None:
        """Take a step with the learning rates of the groups times `eta`, against the mean gradient `scale * g`."""
        if not isinstance(state, TorchState):
            raise TypeError("the state of a torch optimizer must be the one that start returned")
        if scale != 1:
            np.multiply(g, float(scale), g)
        own = state.copy_of_optimizer
        if own is None or not own.fits(state):
            own = state.copy_of_optimizer = PartOptimizer(self, state, x.dtype)
        own.step(x, g, float(eta), state)

    # ---- groups, and what the optimizer remembers

    def groups(self) -> list[int]:
        """Return the number of the group of every place; -1: none."""
        found = {id(p): n for n, group in enumerate(self.optimizer.param_groups) for p in group["params"]}
        return [found.get(id(place.tensor), -1) for place in self.places]

    def signature(self) -> tuple[Any, ...]:
        """Return what changes when a group is added, or other tensors are left alone."""
        sizes = [len(group["params"]) for group in self.optimizer.param_groups]
        return (*sizes, self.find_left_alone())

    def find_left_alone(self) -> frozenset[int]:
        """Return the numbers of the places that the next step does not change, because they have no gradient."""
        if self.absent is not None:
            return self.absent
        return frozenset(n for n, place in enumerate(self.places) if not place.tensor.requires_grad)

    def vectors(self, dtype: np.dtype[Any]) -> dict[str, np.dtype[Any]]:
        """Return the names and types of what it remembers of every parameter."""
        entries = [entry for of_place in self.layout(dtype).entries for entry in of_place]
        return {entry.name: entry.dtype for entry in entries if entry.shape is None}

    def layout(self, dtype: np.dtype[Any]) -> StateLayout:
        """Return what the optimizer remembers of parameters of this type."""
        key = (dtype, *(len(group["params"]) for group in self.optimizer.param_groups))
        if key not in self._layouts:
            self._layouts[key] = self._try_out(torch.from_numpy(np.empty(0, dtype)).dtype)
        return self._layouts[key]

    def _try_out(self, dtype: torch.dtype) -> StateLayout:
        """Take a step with tensors of zeros, to see what the optimizer remembers."""
        known = {id(place.tensor) for place in self.places}
        for p in (p for group in self.optimizer.param_groups for p in group["params"]):
            if id(p) not in known and p.requires_grad:
                raise UsageError(
                    f"the optimizer has a tensor of shape {tuple(p.shape)} that the module does not train"
                )
        members: list[dict[int, Tensor]] = [{} for _ in self.optimizer.param_groups]
        of_places: list[Tensor | None] = []
        for number, group in enumerate(self.groups()):
            if group < 0:
                of_places.append(None)
                continue
            which = 0 if self.elementwise else number  # one tensor of a group stands for all
            shape = (TRIED,) if self.elementwise else self.places[number].tensor.shape
            tensor = members[group].setdefault(which, torch.zeros(shape, dtype=dtype))
            tensor.grad = torch.zeros_like(tensor)
            of_places.append(tensor)
        tried = copy_optimizer(self.optimizer, [list(of_group.values()) for of_group in members])
        numbers = {name: value for name, value in vars(tried).items() if isinstance(value, (int, float))}
        with torch.random.fork_rng(devices=[]):
            try:
                type(tried).step(tried)
            except (TypeError, ValueError, RuntimeError, AssertionError) as error:
                raise UsageError(f"{self.kind} cannot be used: {' '.join(str(error).split())}") from error
        for name, value in numbers.items():
            if vars(tried).get(name) != value:
                raise UsageError(
                    f"{self.kind} cannot be used: it keeps {name} neither in its state nor in its groups"
                )
        group_names = {
            name
            for given, own in zip(self.optimizer.param_groups, tried.param_groups, strict=True)
            for name, value in own.items()
            if name not in ("params", "lr") and value is not given.get(name) and value != given.get(name)
        }
        for name in group_names:
            if not all(isinstance(group.get(name), (int, float)) for group in self.optimizer.param_groups):
                raise UsageError(
                    f"{self.kind} cannot be used: {name} in its groups is not a number, but changes"
                )
        ends: dict[str, int] = {}
        entries = [
            () if tensor is None else tuple(self._describe(dict(tried.state.get(tensor, {})), ends))
            for tensor in of_places
        ]
        return StateLayout(entries, sorted(group_names))

    def _describe(self, memory: dict[str, Any], ends: dict[str, int]) -> Iterator[Entry]:
        for name, value in memory.items():
            if value is None:
                continue
            if not isinstance(value, (Tensor, bool, int, float)):
                raise UsageError(
                    f"{self.kind} cannot be used: {name} in its state is of type {type(value).__name__}"
                )
            array = value.detach().numpy() if isinstance(value, Tensor) else np.asarray(value)
            each = self.elementwise and array.shape == (TRIED,)
            kind = Tensor if isinstance(value, Tensor) else type(value)
            start = ends.get(name, 0)
            ends[name] = start + array.size
            yield Entry(name, None if each else array.shape, array.dtype, kind, start)

    def _take_over(self, state: TorchState, layout: StateLayout) -> None:
        """Fill a state with what the user's optimizer remembers of steps that it took itself."""
        for number, (place, entries) in enumerate(zip(self.places, layout.entries, strict=True)):
            memory = self.optimizer.state.get(place.tensor)
            if not memory:
                continue
            start, stop = overlap(place.part, state)
            for entry in entries:
                if memory.get(entry.name) is None:
                    continue
                value = torch.as_tensor(memory[entry.name]).detach().cpu().numpy()
                if entry.shape is None:
                    mine = value.reshape(-1)[start - place.part.start : stop - place.part.start]
                    state[entry.name][start - state.first : stop - state.first] = mine
                else:
                    self.view_entry(state, number, entry)[...] = value
            state["steps"][number] = 1

    def take_over(self, x: Array, state: TorchState) -> None:
        """Replace the state of the part `x` by what the user's optimizer remembers now."""
        for name, value in self.start_at(x, state.first).items():
            if name not in state or state[name].shape != value.shape:
                raise UsageError(
                    f"{self.kind} has begun to keep {name} after its first step: give all options at the start"
                )
            state[name][...] = value
        state.copy_of_optimizer = None

    def recall(self, state: TorchState, vectors: Mapping[str, Array]) -> dict[Tensor, dict[str, Any]]:
        """Return copies of what it remembers, as torch's optimizers store it; `vectors` are those of all parts."""
        found: dict[Tensor, dict[str, Any]] = {}
        entries_of = self.layout(next((v.dtype for v in vectors.values()), np.dtype(np.float32))).entries
        for number, (place, entries) in enumerate(zip(self.places, entries_of, strict=True)):
            memory: dict[str, Any] = {}
            for entry in entries if state["steps"][number, 0] else ():
                if entry.shape is None:
                    values = torch.from_numpy(vectors[entry.name][place.part].copy())
                    memory[entry.name] = values.view(place.tensor.shape)
                else:
                    value = self.view_entry(state, number, entry)
                    memory[entry.name] = (
                        torch.from_numpy(value.copy()) if entry.kind is Tensor else entry.kind(value)
                    )
            if memory:
                found[place.tensor] = memory
        return found

    def view_entry(self, state: State, place: int, entry: Entry) -> Array:
        """Return the view of an entry of one place that is not one number for each parameter."""
        if self.elementwise:
            of_place: Array = state[entry.name][place]
            return of_place.reshape(())
        return state[entry.name][entry.start : entry.start + entry.size].reshape(entry.shape or ())


class Unit(NamedTuple):
    """One tensor of a copied optimizer: neighbouring places of one group, as far as they are in the part."""

    tensor: Tensor
    group: int
    part: slice
    """Its elements, counted from the beginning of the part of the vector."""
    place: int
    """The number of its first place, where its numbers are stored."""
    alike: Array
    """The numbers of all places with the same history, also of those outside of the part."""
    memory: dict[str, Any]
    """What it remembers, as views of the state."""


class PartOptimizer:
    """A copy of the user's optimizer that changes a part of the vector."""

    def __init__(self, update: TorchOptimizer, state: TorchState, dtype: np.dtype[Any]) -> None:
        self._update, self._signature = update, update.signature()
        self._layout = update.layout(dtype)
        self._units = list(self._make_units(state, dtype))
        members: list[list[Tensor]] = [[] for _ in update.optimizer.param_groups]
        for unit in self._units:
            members[unit.group].append(unit.tensor)
        self._optimizer = copy_optimizer(update.optimizer, members)
        for unit in self._units:
            if state["steps"][unit.place, 0]:  # otherwise the first step makes its memory
                self._optimizer.state[unit.tensor] = dict(unit.memory)
        self._active = np.concatenate([unit.alike for unit in self._units] or [np.zeros(0, np.int64)])
        self._active = np.unique(self._active)
        self._steps = state["steps"].copy()
        self._addresses = (0, 0)

    def fits(self, state: TorchState) -> bool:
        """Return False if the user has changed the groups, or if the state was restored from a checkpoint."""
        return self._signature == self._update.signature() and np.array_equal(self._steps, state["steps"])

    def step(self, x: Array, g: Array, eta: float, state: TorchState) -> None:
        """Take a step."""
        self._point(np.asarray(x), np.asarray(g))
        own, names = self._optimizer, self._layout.group_names
        given = self._update.optimizer.param_groups
        for number, (group, users) in enumerate(zip(own.param_groups, given, strict=True)):
            for name, value in users.items():
                if name == "lr":
                    group[name] = value * eta
                elif name in names:
                    group[name] = type(value)(state[f"group.{name}"][number, 0])
                elif name != "params":
                    group[name] = value
        type(own).step(own)
        # Schedulers warn if they believe that no step was taken.
        vars(self._update.optimizer)["_opt_called"] = True
        for unit in self._units:
            self._collect(unit, state)
        for number, group in enumerate(own.param_groups):
            for name in names:
                state[f"group.{name}"][number] = group[name]
        state["steps"][self._active] += 1
        self._steps[...] = state["steps"]

    def _point(self, x: Array, g: Array) -> None:
        """Make the tensors views of x, and their gradients views of g."""
        addresses = (x.__array_interface__["data"][0], g.__array_interface__["data"][0])
        if addresses == self._addresses:
            return
        self._addresses = addresses
        all_x, all_g = torch.from_numpy(x), torch.from_numpy(g)
        for unit in self._units:
            shape = unit.tensor.shape
            unit.tensor.data = all_x[unit.part].view(shape)
            unit.tensor.grad = all_g[unit.part].view(shape)

    def _collect(self, unit: Unit, state: TorchState) -> None:
        """Store what the optimizer keeps in tensors of its own, or in Python numbers."""
        memory, entries = self._optimizer.state[unit.tensor], self._layout.entries[unit.place]
        if len(memory) > len(entries):
            names = {entry.name for entry in entries}
            for name, value in memory.items():
                if name not in names and value is not None:
                    raise UsageError(
                        f"{self._update.kind} has begun to keep {name} after its first step: give all options at the start"
                    )
        for entry in entries:
            value, view = memory.get(entry.name), unit.memory[entry.name]
            if value is not None and value is not view:
                if entry.kind is Tensor:
                    view.copy_(value)
                    memory[entry.name] = view
                else:
                    self._update.view_entry(state, unit.place, entry)[...] = value
            if entry.shape is not None and self._update.elementwise and unit.alike.size > 1:
                state[entry.name][unit.alike] = state[entry.name][unit.place]

    # ---- its tensors

    def _make_units(self, state: TorchState, dtype: np.dtype[Any]) -> Iterator[Unit]:
        """Yield the tensors of this part, and an empty one for each history that no tensor of this part has.

        With those, the numbers of all tensors are right in the states of all parts, so that parts may be cut anew.
        """
        update = self._update
        histories = self._histories(state)
        places: dict[Any, list[int]] = {}
        for number, history in enumerate(histories):
            if history is not None:
                places.setdefault(history, []).append(number)
        run: list[int] = []
        for number, history in enumerate(histories):
            start, stop = overlap(update.places[number].part, state)
            if history is None or start == stop:
                continue
            if run and (
                history != histories[run[-1]]
                or update.places[number].part.start != update.places[run[-1]].part.stop
            ):
                yield self._make_unit(state, run, places[histories[run[0]]], dtype)
                run = []
            run.append(number)
        if run:
            yield self._make_unit(state, run, places[histories[run[0]]], dtype)
        for alike in places.values():
            if not any(
                overlap(update.places[n].part, state)[0] < overlap(update.places[n].part, state)[1]
                for n in alike
            ):
                yield self._make_unit(state, alike[:1], alike, dtype)

    def _histories(self, state: TorchState) -> list[Any]:
        """Return, for every place, what it has in common with those of the same history; None if it is left alone."""
        update = self._update
        found: list[Any] = []
        alone = update.find_left_alone()
        for number, group in enumerate(update.groups()):
            if group < 0 or number in alone:
                found.append(None)
            elif not update.elementwise:
                found.append(number)
            else:
                numbers = [
                    update.view_entry(state, number, entry).tobytes()
                    for entry in self._layout.entries[number]
                    if entry.shape is not None
                ]
                found.append((group, int(state["steps"][number, 0]), *numbers))
        return found

    def _make_unit(self, state: TorchState, run: list[int], alike: list[int], dtype: np.dtype[Any]) -> Unit:
        update, first = self._update, run[0]
        start = overlap(update.places[first].part, state)[0] - state.first
        stop = overlap(update.places[run[-1]].part, state)[1] - state.first
        shape = (stop - start,) if update.elementwise else update.places[first].tensor.shape
        tensor = torch.zeros(shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype)
        memory: dict[str, Any] = {}
        for entry in self._layout.entries[first]:
            if entry.shape is None:
                memory[entry.name] = torch.from_numpy(state[entry.name][start:stop])
            else:
                value = update.view_entry(state, first, entry)
                memory[entry.name] = torch.from_numpy(value) if entry.kind is Tensor else entry.kind(value)
        group = update.groups()[first]
        return Unit(tensor, group, slice(start, stop), first, np.array(alike), memory)


def overlap(part: slice, state: TorchState) -> tuple[int, int]:
    """Return the first element of a tensor that is in the state's part of the vector, and the one after its last."""
    start = min(max(part.start, state.first), state.first + state.size)
    return start, min(max(part.stop, start), state.first + state.size)


def copy_optimizer(optimizer: torch.optim.Optimizer, members: list[list[Tensor]]) -> torch.optim.Optimizer:
    """Return an optimizer of the same class and settings with other tensors in its groups, and without memory."""
    made: Any = object.__new__(type(optimizer))
    # A scheduler, or paceline, may have replaced the methods of the user's optimizer; hooks are called by them.
    vars(made).update({k: v for k, v in vars(optimizer).items() if k not in ("step", "zero_grad")})
    made._optimizer_step_pre_hooks, made._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
    made.state = defaultdict(dict)
    made.param_groups = [
        {**group, "params": tensors} for group, tensors in zip(optimizer.param_groups, members, strict=True)
    ]
    return made  # type: ignore[no-any-return]


def describe_optimizer(optimizer: torch.optim.Optimizer) -> str:
    """Return the class of an optimizer and the settings of its groups that are not the class's own, for records.

    The learning rates are those from which a scheduler starts, if there is one.

    >>> w = torch.nn.Parameter(torch.zeros(2))
    >>> describe_optimizer(torch.optim.AdamW([w], lr=3e-4, weight_decay=0.1))
    'AdamW(lr=0.0003, weight_decay=0.1)'
    >>> describe_optimizer(torch.optim.SGD([{"params": [w]}, {"params": [], "lr": 0.5}], lr=0.1, momentum=0.9))
    'SGD(lr=0.1, momentum=0.9; group 2: lr=0.5)'
    >>> halved = torch.optim.SGD([w], lr=0.1)
    >>> scheduler = torch.optim.lr_scheduler.LambdaLR(halved, lambda step: 0.5)
    >>> describe_optimizer(halved)
    'SGD(lr=0.1)'
    """
    defaults = {name: one.default for name, one in inspect.signature(type(optimizer)).parameters.items()}
    shown = ["lr", *(name for name in defaults if name not in ("lr", "params"))]
    texts, before = [], defaults
    groups = [{**group, "lr": group.get("initial_lr", group["lr"])} for group in optimizer.param_groups]
    for number, group in enumerate(groups, 1):
        own = [
            f"{name}={_show(group[name])}"
            for name in shown
            if name in group and ((name, number) == ("lr", 1) or not _equal(group[name], before.get(name)))
        ]
        if own:
            texts.append(f"{'' if number == 1 else f'group {number}: '}{', '.join(own)}")
        before = groups[0]
    return f"{type(optimizer).__name__}({'; '.join(texts)})"


def _equal(one: Any, other: Any) -> bool:
    return one is other or bool(one == other)


def _show(value: Any) -> str:
    return f"{float(value):g}" if isinstance(value, (float, Tensor)) else str(value)
