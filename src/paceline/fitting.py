"""`paceline.fit`: train from Python, in this process, on the ranks of this MPI job, or on ranks started for it."""

from __future__ import annotations

import inspect
import numbers
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.config import Config, Safety
from paceline.errors import UsageError
from paceline.simulate.options import NAMES, Options, options_of, pick_options

if TYPE_CHECKING:
    from paceline.launch import StopRequests
    from paceline.strategies import Strategy
    from paceline.training.job import Job
    from paceline.training.rank import Fitted
    from paceline.worker import Worker


def fit(
    model: Any = "mlp:128,64",
    data: Any = "mnist",
    *,
    strategy: str | Strategy | Callable[[Worker], None] = "sync",
    ranks: int | None = None,
    comm: Any = None,
    on: str = "mpi",
    runs: str | Path | None = "runs",
    name: str | None = None,
    trace: bool = False,
    quiet: bool = False,
    trust: bool = False,
    resume: str | Path | None = None,
    optimizer: Callable[[Any], Any] | None = None,
    metrics: Mapping[str, Callable[[Any, Any], Any]] | None = None,
    **settings: Any,
) -> Fitted:
    """Train `model` on `data` and return the results, including the trained model.

    `model` is a name with options (`"mlp:128,64"`), a paceline Model, a `torch.nn.Module` or a pair of module and
    loss. `data` is a name or path, a Dataset, a tuple of arrays (inputs, labels), or a torch Dataset; inputs may be a
    tuple or a dictionary of arrays, and labels may have any shape: a class for each word or pixel. `strategy` is a
    name with options, a Strategy, or your own function `train(me)`. `settings` are those of the command line with
    underscores: `lr`, `batch`, `epochs`, `update`, `seed` … (see `paceline.Config`). The record is a new folder below
    `runs`, called `name` if that is given; with `runs=None` there is none.

    `optimizer` is a function from the `torch.nn.Module` to a torch optimizer, with groups of parameters and all, instead
    of `update` and `lr`; `schedule` is then a factor on its learning rates. `clip=1.0` scales the gradient that the update
    uses down to this norm. `metrics` are functions, by name, that return a number from the outputs and the labels of all
    validation samples, after every epoch, and of the test samples: tensors if the model is a module, otherwise arrays.

    Where it runs: inside an MPI job (started by mpiexec or srun), on the ranks of `comm` or of the job. In a plain
    script or notebook: in this process, or, with `ranks=4`, on 4 ranks that are started for it and end with it; a
    model given as an object has its trained parameters afterwards, as it would after serial training.

    With `replay=RUN` the settings come from that run's record. If it names code (`module:attribute`), `trust=True` allows
    that code to be run.

    With `resume=RUN` training goes on from the last checkpoint of that run, with its settings; `epochs` is then the number
    of further epochs. Objects (model, data, strategy) are given again; names are taken from the record.

    Ctrl-C saves a checkpoint and then raises KeyboardInterrupt; a second Ctrl-C raises it at once. SIGTERM and SIGUSR1 do
    the same with SystemExit (143, 138). A signal for which the program has a handler of its own is left to it.

    With `trace=True` the record also holds every MPI call of every rank, which `paceline trace` draws.

    With `on="sim"` the ranks are simulated in this process, in virtual time: `ranks=256, network="10gbe"`. Further
    settings are `machine`, `slow`, `jitter`, `compute`, `faults` … (see `paceline.simulate.options.Options`).

    >>> fitted = fit("mlp:8", "iris", strategy="serial", epochs=2, batch=10, runs=None, quiet=True)
    >>> fitted.steps
    24
    """
    from paceline.launch import mpi, world

    data = os.fspath(data) if isinstance(data, os.PathLike) else data
    settings = {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value
        for name, value in settings.items()
    }
    options = options_of(on, {name: settings.pop(name) for name in NAMES if name in settings})

    def job() -> Job:
        if name is not None and (resume is not None or runs is None):
            raise UsageError("name is for a new record: it cannot be given with resume or with runs=None")
        if resume is not None:
            return _resume(given, settings, Path(resume), wanted, trust)
        return replace(_job(given, settings, runs, trace, trust), run_name=name)

    given = {"model": model, "data": data, "strategy": strategy, "update": optimizer, "metrics": metrics}

    wanted = ranks
    if resume is not None:
        from paceline.record import Run

        before = Run(resume).config
        asked = before.get("asked") or {}
        if asked.get("on") == "sim" and options is None:
            options = options_of("sim", pick_options(asked))
        ranks = int(before["ranks"]) if ranks is None else ranks
    if options is not None:
        return _simulate(job(), ranks, comm, options, quiet)
    if comm is None and (world() is not None or _mpi_is_running()):
        comm = mpi().COMM_WORLD
    shown = None if quiet else _progress()
    if comm is not None:
        return _on_these_ranks(job, comm, ranks, shown)
    from paceline.training.rank import train

    if _whole(ranks) > 1:
        return _on_new_ranks(job(), _whole(ranks), quiet)
    alone = job()
    if ranks is None and alone.config.replay is not None:
        from paceline.training.job import get_replayed_ranks

        return _on_new_ranks(alone, get_replayed_ranks(alone.config) or 1, quiet)
    with _stoppable() as requests:
        return train(alone, _alone(alone), progress=shown, requests=requests)


def _simulate(job: Job, ranks: int | None, comm: Any, options: Options, quiet: bool) -> Fitted:
    """Train on simulated ranks."""
    from paceline.launch import world
    from paceline.simulate.training import simulate
    from paceline.training.job import get_replayed_ranks

    if comm is not None or world() is not None or _mpi_is_running():
        raise UsageError(
            "simulated ranks are all in one process: call fit outside of an MPI job, without comm"
        )
    wanted = get_replayed_ranks(job.config) if ranks is None else ranks
    return simulate(job, _whole(wanted), options, progress=None if quiet else _progress(simulated=True))


def _on_these_ranks(job: Callable[[], Job], comm: Any, ranks: int | None, progress: Any) -> Fitted:
    """Train on the ranks of `comm`, all of which call this; an error on one rank ends all."""
    from paceline.launch import AgreedErrorHook, abort_on_error, verify
    from paceline.training.rank import train

    verify(comm.Get_size())
    try:
        with _stoppable() as requests, abort_on_error(comm, usage_errors=False):
            if ranks is not None and ranks != comm.Get_size():
                raise UsageError(
                    f"ranks={ranks} is not allowed inside a job of {comm.Get_size()} ranks: leave it out"
                )
            return train(job(), comm, progress=progress, requests=requests)
    except UsageError as error:  # on all ranks: they would print a traceback each
        if comm.Get_size() > 1 and getattr(comm, "kernel", None) is None:
            AgreedErrorHook.install(error, prints=comm.Get_rank() == 0)
        raise


@contextmanager
def _stoppable() -> Iterator[StopRequests]:
    """Let signals stop the training inside the block, after which this program ends as it would have without it."""
    from paceline.errors import StoppedError
    from paceline.launch import StopRequests, leave

    try:
        with StopRequests(own_process=False) as requests:
            yield requests
    except StoppedError as stopped:
        leave(stopped.signal)


def _on_new_ranks(job: Job, ranks: int, quiet: bool) -> Fitted:
    """Train on ranks that are started for it; a model given as an object is trained in place."""
    from paceline.launch import allocated_nodes, call
    from paceline.models import put_state

    data, strategy = job.check(ranks)
    job.check_memory(data, strategy, -(-ranks // allocated_nodes()))
    model = None
    if job.model is not None or job.optimizer is not None:  # refuses here what cannot be used
        model = job.build(data)
        job.build_update(model, strategy)
    width = shutil.get_terminal_size().columns if not quiet and sys.stderr.isatty() else None
    arguments = {
        "job": replace(job, data=None, model=None if job.model is None else model),
        "quiet": quiet,
        "width": width,
    }
    fitted: Fitted
    fitted, state = call(
        _train, arguments, shared={"data": data}, ranks=ranks, threads=job.config.threads,
        launcher=job.launcher(), stall_timeout=job.safety.patience, on_stall=job.safety.on_stall,
    )  # fmt: skip
    model = job.build(data) if model is None else model
    put_state(model, state)
    return replace(fitted, model=model, strategy=job.name())


def _train(comm: Any, *, job: Job, data: Any, quiet: bool, width: int | None) -> tuple[Fitted, Any]:
    """Train as one of such ranks; return the results and, on rank 0, the arrays of the trained model."""
    from paceline.launch import StopRequests
    from paceline.models import state_of
    from paceline.training.rank import train

    progress = None if quiet else _progress(width=width)
    with StopRequests(own_process=True) as requests:
        fitted = train(replace(job, data=data), comm, progress=progress, requests=requests)
    state = state_of(fitted.model) if comm.Get_rank() == 0 else None
    return replace(fitted, model=None), state  # type: ignore[arg-type]


def _whole(ranks: Any) -> int:
    """Return the number of ranks as an int: 1 if none was given."""
    if ranks is None:
        return 1
    if isinstance(ranks, bool) or not isinstance(ranks, numbers.Integral):
        raise UsageError(f"ranks must be a whole number of at least 1; got {ranks!r}")
    if ranks < 1:
        raise UsageError(f"ranks must be at least 1; got {ranks}")
    return int(ranks)


def _job(
    given: dict[str, Any], settings: dict[str, Any], runs: str | Path | None, trace: bool, trust: bool
) -> Job:
    from paceline.training.job import Job

    for name in ("model", "data", "strategy"):
        if given[name] is None:
            raise UsageError(f"{name} must be given as a name or as an object; got None")
    if given["update"] is not None:
        for name in ("update", "lr", "replay"):
            if name in settings:
                instead = {"lr": ": give the learning rate to the optimizer", "update": ": give one of them"}
                raise UsageError(f"{name} and optimizer exclude each other{instead.get(name, '')}")
        settings["update"] = _describe(given["update"])
    objects = _objects(given)
    safety = _safety(settings)
    config = _config(
        given["model"], given["data"], objects.get("strategy", given["strategy"]), settings, trust
    )
    where = None if runs is None else Path(runs)
    return Job(
        config=config, **_as_fields(objects), runs=where, trace=trace, safety=safety, objects=tuple(objects)
    )


def _objects(given: dict[str, Any]) -> dict[str, Any]:
    """Return what was given as objects rather than as names."""
    from paceline.training.job import strategy_of

    objects = {
        name: thing for name, thing in given.items() if thing is not None and not isinstance(thing, str)
    }
    if "strategy" in objects:
        objects["strategy"] = strategy_of(objects["strategy"])
    return objects


def _as_fields(objects: dict[str, Any]) -> dict[str, Any]:
    """Return objects by the fields of a Job."""
    return {"optimizer" if name == "update" else name: thing for name, thing in objects.items()}


def _safety(settings: dict[str, Any]) -> Safety:
    """Take the settings that protect a run out of those given."""
    return Safety(
        **{field.name: settings.pop(field.name) for field in fields(Safety) if field.name in settings}
    )


def _resume(
    given: dict[str, Any], settings: dict[str, Any], run: Path, ranks: int | None, trust: bool
) -> Job:
    """Return the job that goes on with a run."""
    from paceline.record import Run, check_idle
    from paceline.training.job import Job
    from paceline.training.resuming import is_traced, settings_of

    objects = _objects(given)
    safety = _safety(settings)
    more = settings.pop("epochs", 0)
    own = Run(run).config.get("objects") or ()
    if "update" in objects and "update" not in own:
        settings["optimizer"] = objects["update"]
    if settings:
        raise UsageError(f"a run is resumed with its own settings; {', '.join(settings)} cannot be given")
    folder = run.resolve()
    check_idle(folder)
    config, _ = settings_of(folder, more_epochs=more, ranks=ranks, trust=trust, objects=objects)
    return Job(
        config=config, **_as_fields(objects), runs=folder.parent, run_name=folder.name, safety=safety, resume=folder,
        trace=is_traced(folder), objects=tuple(objects),
    )  # fmt: skip


def _config(model: Any, data: Any, strategy: Any, settings: dict[str, Any], trust: bool) -> Config:
    own = [name for name in inspect.signature(fit).parameters if name != "settings"]
    known = [field.name for field in fields(Config) if field.name not in own]
    for name in settings:
        if name not in known:
            known = [*own, *known, *(field.name for field in fields(Safety))]
            simulated = f'; with on="sim" also {", ".join(NAMES)}'
            raise UsageError(f"unknown setting {name!r} of fit; choose one of {', '.join(known)}{simulated}")
    module = model[0] if isinstance(model, tuple) and model else model  # (module, loss)
    words = {"model": module, "data": data, "strategy": strategy}
    spelled: dict[str, Any] = {k: v if isinstance(v, str) else _describe(v) for k, v in words.items()}
    config = Config(**spelled, **settings)
    if config.replay is None:
        return config
    from paceline.training.job import adopt_replayed_settings

    return adopt_replayed_settings(config, trust=trust)


def _describe(thing: Any) -> str:
    """Return the record's description of an object that cannot be named on the command line."""
    kind = type(thing) if not callable(thing) or hasattr(thing, "parameters") else thing
    kind = kind if hasattr(kind, "__qualname__") else type(kind)
    return f"{kind.__module__}:{kind.__qualname__}"


def _mpi_is_running() -> bool:
    """Return True if this process has started MPI itself, on more than one rank."""
    loaded = sys.modules.get("mpi4py.MPI")
    return loaded is not None and loaded.Is_initialized() and loaded.COMM_WORLD.Get_size() > 1


def _alone(job: Any) -> Any:
    """Return a communicator of one process, or None for the serial baseline, which needs no MPI."""
    if job.name().partition(":")[0] == "serial":
        return None
    from paceline.launch import communicator

    return communicator(job.launcher())


def _progress(*, width: int | None = None, simulated: bool = False) -> Any:
    from paceline.training.progress import make_display

    return make_display(sys.stderr, width=width, simulated=simulated)
