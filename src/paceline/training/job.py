"""The specification of a run, checked before anything is started; with `--replay`, that of an earlier run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline import names as registry
from paceline import names as spec
from paceline.config import Config, Safety
from paceline.data import Dataset, load_labels, names_code
from paceline.errors import UsageError
from paceline.launch import check_memory, check_ranks
from paceline.models import Model, as_model, check_data, count_parameters, make, sample_weights
from paceline.record import Run, code_digest, new_folder, text_digest
from paceline.schedules import Schedule
from paceline.strategies import Strategy
from paceline.updates import Clipped, Update, is_elementwise
from paceline.worker import Metrics, Worker, check_metrics

Train = Callable[[Worker], None]


class Components(NamedTuple):
    """The objects that a rank trains with; only the model is specific to the rank."""

    data: Dataset
    strategy: Strategy | Train
    model: Model
    update: Update
    schedule: Schedule
    weights: NDArray[Any] | None = None
    """The weights of the training samples in means over batches; None if all of them count alike."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The complete specification of a run; whatever is not given as an object is built from the configuration."""

    config: Config
    data: Any = None
    model: Any = None
    strategy: Strategy | Train | None = None
    update: Update | None = None
    optimizer: Callable[[Any], Any] | None = None
    """A function from a torch module to a torch optimizer, which is the update."""
    metrics: Metrics | None = None
    """Functions of the outputs and labels of all validation or test samples, by name."""
    runs: Path | None = Path("runs")
    run_name: str | None = None
    """The run's folder below `runs`; None: one named by the time, the strategy, the ranks and the seed."""
    trace: bool = False
    """True if the record should contain every span of time and every MPI call of every rank."""
    safety: Safety = field(default_factory=Safety)
    resume: Path | None = None
    """The folder of the run to go on with, whose settings `config` has."""
    because: str = ""
    """Why the run was resumed, if not because the user wished it."""
    survivors: bool = False
    """True if these ranks are left of more, because others have died."""
    objects: tuple[str, ...] = ()
    """What of data, model, strategy, update and metrics the user gave as objects: the record cannot rebuild it."""
    program: Mapping[str, Any] | None = None
    """What `paceline run` says about the program whose loop this is: its file, arguments, strategy and digest, and
    the target at which it ends, if there is one."""

    def name(self) -> str:
        """Return the strategy's name as it appears in records and legends."""
        return self.config.strategy if self.strategy is None else strategy_name(self.strategy)

    def new_folder(self, ranks: int) -> Path | None:
        """Create the run's folder, if a record is wanted; a run that is resumed has one."""
        if self.resume is not None:
            return self.resume
        if self.runs is None:
            return None
        return new_folder(self.runs, self.name(), ranks, self.config.seed, name=self.run_name)

    def build_strategy(self) -> Strategy | Train:
        """Return the given strategy, or build it from the configuration."""
        return strategy_of(self.config.strategy if self.strategy is None else self.strategy)

    def code(self) -> dict[str, str]:
        """Return digests of the user's own code, by setting."""
        given = {"data": self.data, "model": self.model, "strategy": self.strategy, "update": self.optimizer}
        kinds = {
            "data": "data",
            "model": "models",
            "strategy": "strategies",
            "update": "updates",
            "schedule": "schedules",
        }
        found = {"program": str(self.program["code"])} if self.program and self.program["code"] else {}
        for setting, kind in kinds.items():
            own = given.get(setting)
            things = [registry.find_users_own(kind, getattr(self.config, setting)) if own is None else own]
            if setting == "strategy" and isinstance(strategy := self.build_strategy(), Strategy):
                things += strategy.uses()
            digests = [digest for thing in things if thing is not None and (digest := code_digest(thing))]
            if digests:
                found[setting] = digests[0] if len(digests) == 1 else text_digest("".join(digests))
        return found

    def launcher(self) -> Literal["mpi", "torch"]:
        """Return what starts and connects the ranks of this run."""
        strategy = self.build_strategy()
        return strategy.launcher() if isinstance(strategy, Strategy) else "mpi"

    def check(self, ranks: int) -> tuple[Dataset, Strategy | Train]:
        """Check the settings before anything is started; return the objects built for that."""
        if self.trace and self.runs is None:
            raise UsageError("a trace is stored in the run's folder: give runs, or leave out trace")
        strategy = self.build_strategy()
        if isinstance(strategy, Strategy):
            (strategy.check_survivors if self.survivors else strategy.check)(ranks)
        if getattr(strategy, "saves", None) is None:
            self._check_unsaved(ranks)
        if self.config.reproducible is not None:
            self._check_reproducible(self.config.reproducible, strategy, ranks)
        update = None if self.optimizer else self._update()
        build_component("schedules", self.config.schedule)
        if self.metrics is not None:
            check_metrics(self.metrics)
        model = None if self.model is not None else spec.parse("models", self.config.model)
        data = self.load()
        if model is not None:
            check_data(model, data)
        batch = batch_of(self.config, strategy, ranks)
        if batch > len(data.train):
            raise UsageError(
                f"a batch of {batch} is more than the {len(data.train)} training samples of {data.name}"
            )
        if isinstance(strategy, Strategy):
            strategy.check_data(ranks, batch, len(data.train))
            self._check_update(strategy, elementwise=is_elementwise(update))
            if strategy.whole_batches and self.config.lr_scaling != "none":
                raise UsageError(
                    f"lr-scaling={self.config.lr_scaling} is for a global batch that grows with the ranks; "
                    f"with {self.name()} every rank computes whole batches: give --lr"
                )
        check_replay(self.config, ranks, len(data.train), getattr(strategy, "replayable", False))
        return data, strategy

    def load(self) -> Dataset:
        """Return the given data, or load those of the configuration."""
        # A pair of module and loss, or a model; the loss of a model that is yet to be built is not known.
        loss = self.model[1] if isinstance(self.model, tuple) and len(self.model) == 2 else self.model
        options = loss.keywords if isinstance(loss, functools.partial) else {}
        ignored = getattr(loss, "ignore_index", options.get("ignore_index"))
        return load_labels(
            self.config.data if self.data is None else self.data,
            labels=self.config.labels,
            ignore_index=ignored if isinstance(ignored, int) else None,
        )

    def _check_update(self, strategy: Strategy, *, elementwise: bool) -> None:
        update = self.config.update
        option = f"--update {update}"
        try:
            strategy.check_update(update, elementwise=elementwise)
        except UsageError as error:
            if self.update is None and self.optimizer is None:
                raise
            raise UsageError(str(error).replace(option, f"the optimizer {update}")) from None
        if self.config.clip is not None:
            try:
                strategy.check_update(update, elementwise=False)
            except UsageError as error:
                raise UsageError(str(error).replace(option, "--clip")) from None

    def _check_unsaved(self, ranks: int) -> None:
        """Refuse settings that need the states of ranks, for a strategy that does not say how they are saved."""
        if self.safety.checkpoint_every != "auto" and self.safety.interval.any:
            raise UsageError(
                f"{self.name()} cannot be saved: a strategy declares how with `saves` (see docs/checkpoints.md)"
            )
        if self.safety.tolerate_failures and ranks > 1:
            raise UsageError(
                f"{self.name()} cannot continue without a rank: a strategy declares with `saves` how its ranks are saved"
            )

    def _check_reproducible(self, pieces: int, strategy: Strategy | Train, ranks: int) -> None:
        if pieces % ranks:
            raise UsageError(
                f"reproducible={pieces} needs a number of ranks that divides {pieces}; got {ranks}"
            )
        if not isinstance(strategy, Strategy):
            raise UsageError(f"{self.name()} cannot be reproducible: choose sync or serial")
        if self.safety.tolerate_failures:
            raise UsageError(
                "reproducible and tolerate-failures exclude each other: survivors are no power of two"
            )
        strategy.check_reproducible()

    def check_memory(self, data: Dataset, strategy: Strategy | Train, ranks: int) -> None:
        """Raise a UsageError if a network that has not been built does not fit into the memory of this machine.

        Counted are its parameters, its gradient and the state of the update, on `ranks` ranks of this machine.
        """
        wanted = spec.parse("models", self.config.model) if self.model is None else None
        count = None if wanted is None else count_parameters(wanted, data)
        if count is None:
            return
        one = np.ones(1)
        # What a torch optimizer remembers is known, and checked, when the network has been built.
        state = {} if self.optimizer else build_component("updates", self.config.update).start(one)
        states = sum(array.size for name, array in state.items() if array.dtype == one.dtype)
        # Each rank may keep only its part of the state.
        copies = 1 if getattr(strategy, "in_place", False) else ranks
        need = count * np.dtype(self.config.dtype).itemsize * (2 * ranks + states * copies)
        parts = "parameters, gradient" + " and state of the update" * bool(states)
        on = f" on {ranks} ranks" if ranks > 1 else ""
        check_memory(
            need, f"{self.config.model} has {count:,} parameters and needs {{}} of memory{on} ({parts})"
        )

    def check_early(self, ranks: int, nodes: int | None = None) -> None:
        """Run `check` and, if the network is quick to build (in NumPy), check that it suits the strategy.

        `nodes`: the number of nodes that real ranks will run on; this one must have enough memory for its share.
        """
        here = 1 if nodes is None else -(-ranks // nodes)
        check_ranks(here)
        data, strategy = self.check(ranks)
        self.check_memory(data, strategy, here)
        named = self.config.model.partition(":")[0] == "mlp"
        if isinstance(strategy, Strategy) and self.model is None and named:
            strategy.check_model(ranks, self.build(data))

    def prepare(self, ranks: int) -> Components:
        """Build the objects of the run, and check that they fit together."""
        data, strategy = self.check(ranks)
        self.check_memory(data, strategy, 1)
        model = self.build(data)
        update = self.build_update(model, strategy)
        if self.optimizer is not None:
            self._check_state(update, model, ranks if getattr(strategy, "in_place", False) else 1)
        if isinstance(strategy, Strategy):
            strategy.check_model(ranks, model)
        schedule = build_component("schedules", self.config.schedule)
        return Components(data, strategy, model, update, schedule, sample_weights(model, data))

    def _check_state(self, update: Any, model: Model, parts: int) -> None:
        """Raise a UsageError if what a torch optimizer remembers does not fit into memory, beside the network.

        `parts`: the ranks that may divide it.
        """
        inner = update.update if isinstance(update, Clipped) else update
        sizes = [dtype.itemsize * model.x.size for dtype in inner.vectors(model.x.dtype).values()]
        parameters = f"the {model.x.size:,} parameters"
        check_memory(
            sum(sizes) // parts,
            f"{inner.kind} keeps {len(sizes)} numbers for each of {parameters} and needs {{}} of memory",
        )

    def build_update(self, model: Model, strategy: Strategy | Train | None = None) -> Update:
        """Return the update: of the configuration, or the user's torch optimizer of this model.

        `strategy`: refuse an optimizer that it cannot use.
        """
        if self.optimizer is None:
            update = self._update()
        else:
            update = optimizer_of(self.optimizer, model)
            if isinstance(strategy, Strategy):
                self._check_update(strategy, elementwise=is_elementwise(update))
        return update if self.config.clip is None else Clipped(update, self.config.clip)

    def _update(self) -> Update:
        """Return the given update, or build it from the configuration."""
        found: Update = build_component("updates", self.config.update) if self.update is None else self.update
        return found

    def build(self, data: Dataset) -> Model:
        """Return the given model, or build it from the configuration."""
        seeded: dict[str, Any] = {"seed": self.config.seed, "dtype": self.config.dtype}
        if self.model is not None:
            return as_model(self.model, data, **seeded)
        return make(spec.parse("models", self.config.model), data, **seeded)


def optimizer_of(function: Any, model: Any) -> Update:
    """Return the optimizer that a function makes for the module of a model, as an update."""
    wanted = "optimizer must be a function from the module to a torch optimizer"
    if not callable(function):
        raise UsageError(f"{wanted}; got {type(function).__name__}")
    if getattr(model, "places", None) is None:
        raise UsageError("optimizer needs a torch module: a network in NumPy has --update")
    try:
        made = function(model.module)
    except (TypeError, ValueError, AttributeError) as error:
        words = " ".join(str(error).split())
        raise UsageError(f"{wanted}; calling it failed: {type(error).__name__}: {words}") from error
    from paceline.updates import TorchOptimizer

    return TorchOptimizer(made, model.places)


def batch_of(config: Config, strategy: Strategy | Train, ranks: int) -> int:
    """Return the samples in one batch: of all ranks together, or of each if they compute whole batches."""
    return config.own_batch() if getattr(strategy, "whole_batches", False) else config.global_batch(ranks)


def strategy_name(strategy: Strategy | Train) -> str:
    """Return a strategy object as it would be written on the command line."""
    kind: Any = strategy if hasattr(strategy, "__qualname__") else type(strategy)
    if kind.__module__.startswith("paceline.strategies."):
        return spec.describe(strategy, kind.__module__.rpartition(".")[2].replace("_", "-"))
    name = f"{kind.__module__}:{kind.__qualname__}"
    return spec.describe(strategy, name) if isinstance(strategy, Strategy) else name


def strategy_of(given: str | Strategy | Train) -> Strategy | Train:
    """Build a strategy from a text, an object, a class without required options, or a function."""
    if isinstance(given, Strategy):
        return given
    if isinstance(given, str):
        wanted = spec.parse("strategies", given)
        if inspect.isfunction(wanted.target):
            return functools.partial(wanted.target, **wanted.options)
        found = _call(given, wanted.make)
    else:
        if not callable(given):
            raise UsageError(
                f"a strategy must be a name, a paceline Strategy or a function of a worker; got {type(given).__name__}"
            )
        if not isinstance(given, type):
            return given
        found = _call(given.__qualname__, given)
    if not isinstance(found, Strategy):
        name = given if isinstance(given, str) else given.__qualname__
        raise UsageError(f"{name} is neither a paceline Strategy nor a function of a worker")
    return found


@functools.cache
def find_built_in(text: str) -> Strategy | None:
    """Return the strategy that a record names; None for user code, which is never imported to read a record.

    >>> find_built_in("sync:allreduce=ring").allreduce, find_built_in("my_module:Mine")
    ('ring', None)
    """
    if not registry.has("strategies", text.partition(":")[0]):
        return None
    try:
        found = spec.parse("strategies", text).make()
    except UsageError:  # recorded by another version
        return None
    return found if isinstance(found, Strategy) else None


def build_component(kind: str, text: str) -> Any:
    """Build the update or schedule that a text names, or raise a UsageError."""
    wanted, methods = {"updates": (Update, "start and apply"), "schedules": (Schedule, "factor")}[kind]
    found = _call(text, lambda: spec.parse(kind, text).make())
    if isinstance(found, type) or not isinstance(found, wanted):
        raise UsageError(
            f"{text} is no {registry.SINGULAR[kind]}: it makes a {type(found).__name__} without {methods}"
        )
    return found


def _call(name: str, make: Callable[[], Any]) -> Any:
    """Call `make`; raise a UsageError if it cannot be called with these arguments."""
    try:
        return make()
    except (UsageError, OSError):
        raise
    except (TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{name} cannot be created: {error}") from error


# ---- `--replay RUN`: the settings of an earlier run, and checks that its order of messages can be repeated

# Settings whose value may name code, and the kind of name that each is.
KINDS = {
    "strategy": "strategies", "model": "models", "data": "data", "update": "updates", "schedule": "schedules",
}  # fmt: skip


def adopt_replayed_settings(
    config: Config, given: Collection[str] | None = None, *, trust: bool = False
) -> Config:
    """Return the settings of the run to replay: those `given` must match it, and the rest is taken from it.

    If it is unknown which were given, those that differ from the defaults are. Code that the run names (`module:attribute`)
    and the user did not is refused unless `trust`.

    >>> adopt_replayed_settings(Config(replay="no-such-folder"))
    Traceback (most recent call last):
    paceline.errors.UsageError: no such run: no-such-folder
    """
    if config.replay is None:
        return config
    run = Run(config.replay)
    taken: dict[str, Any] = {"replay": str(Path(config.replay).resolve())}
    for setting in fields(Config):
        name = setting.name
        if name == "replay" or name not in run.config:
            continue
        mine, theirs = getattr(config, name), run.config[name]
        if mine != theirs and name in KINDS:
            check_trust(name, str(theirs), run, trust)
        if _are_same(name, mine, theirs, str(run.config["update"])):
            continue
        if mine != setting.default if given is None else name in given:
            there = "not given" if theirs is None else theirs
            raise UsageError(
                f"a replay has the settings of its run; {name.replace('_', '-')} is {there} in {run.folder}, got {mine}"
            )
        taken[name] = theirs
    return replace(config, **taken)


def check_trust(name: str, text: str, run: Run, trust: bool) -> None:
    """Refuse code that only the run's record names, unless it is trusted; import nothing."""
    kind = KINDS[name]
    with spec.refuse_user_code(str(run.folder), trust=trust):
        if trust:
            return
        if names_code(text) if kind == "data" else not spec.has(kind, text.partition(":")[0]):
            spec.import_target(kind, ":".join(text.split(":")[:2]))
        if kind == "strategies":  # whose rule may be code, too
            with suppress(TypeError):
                spec.parse(kind, text).make()


def _are_same(name: str, mine: Any, theirs: Any, update: str) -> bool:
    """Return True if two values are equivalent with this update; the options of a strategy may be in any order."""
    if name == "strategy" and mine != theirs and isinstance(theirs, str):
        try:
            one, other = (spec.parse("strategies", text).make() for text in (mine, theirs))
            return bool(one == other or one.for_update(update) == other.for_update(update))
        except (UsageError, TypeError, AttributeError):
            return False
    return bool(mine == theirs)


def get_replayed_ranks(config: Config) -> int | None:
    """Return the number of ranks of the run to replay, if there is one."""
    return None if config.replay is None else int(Run(config.replay).config["ranks"])


def check_replay(config: Config, ranks: int, samples: int, replayable: bool) -> None:
    """Raise a UsageError if the run cannot be replayed: another strategy, number of ranks, or data."""
    if config.replay is None:
        return
    run = Run(config.replay)
    if not replayable:
        raise UsageError(
            f"{run.folder} cannot be replayed: only a parameter-server run records an order; "
            f"the strategy is {config.strategy}"
        )
    _check_order(run)
    if run.config["ranks"] != ranks:
        raise UsageError(f"{run.folder} was made on {run.config['ranks']} ranks; the job has {ranks}")
    if run.config.get("samples") != samples:
        raise UsageError(
            f"{run.folder} was trained on {run.config.get('samples')} samples; {config.data} has {samples}"
        )


def _check_order(run: Run) -> None:
    """Raise a UsageError if the order differs from the recorded one: its replay would never end."""
    from paceline.strategies.parameter_server import EVENTS, digest

    for name, what in (("resumed", "it was resumed"), ("failures", "ranks died")):
        if run.summary.get("findings", {}).get(name):
            raise UsageError(f"{run.folder} cannot be replayed: {what}, and its order is not that of one run")
    updates = run.updates
    missing = [name for name in ("master", *EVENTS) if name not in updates]
    if missing:
        raise UsageError(f"{run.folder / 'updates.npz'} is damaged: it has no {', '.join(missing)}")
    if digest(updates) != run.summary.get("findings", {}).get("order"):
        raise UsageError(f"{run.folder / 'updates.npz'} is damaged: its order does not match summary.json")
