"""The state of the Python process, of which every rank has its own: under MPI, every rank is a process.

Simulated ranks share one Python process. Without this module, `random.seed(0)`, `os.chdir(folder)` or
`logging.basicConfig(...)` on one rank would affect all others. Within `separate_ranks`, every rank has its own

    sys         argv, stdin, stdout, stderr, excepthook
    os          environ, the working directory
    logging     level, handlers, filters and flags of every logger; logging.disable
    random      the generators behind the functions of random, numpy.random and torch
    atexit      the functions that the program's own code registers

Most of these are looked up for the running rank when they are used, so that switching between ranks costs nothing more.
The working directory and PyTorch's generator belong to the operating system and to C++ code. They are exchanged at
every switch, from the first call of `os.chdir` or the import of torch on.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import logging
import os
import random
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from greenlet import getcurrent, settrace

from paceline.vmpi.errors import SimulationError


class SwitchState:
    """The state that is exchanged at switches, as a rank, or the simulator, left it when it last ran."""

    folder: str | None = None
    """The working directory; None: the simulator's."""
    torch: Any = None
    """The state of PyTorch's generator; None: to be seeded."""


class Process(SwitchState):
    """The state of the process of one rank, as far as the rank has used it."""

    def __init__(self, rank: Any) -> None:
        """Begin with the state of the simulator's process. `rank` is a `paceline.vmpi.kernel.Rank`."""
        self.rank = rank
        self.values: dict[tuple[str, int], tuple[Any, Any]] = {}
        """Objects and the rank's values of their attributes, by name and id of the object."""
        self.generators: dict[str, Any] = {}
        self.at_exit: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        """Functions that the program has registered, and their arguments."""

    @functools.cached_property
    def entropy(self) -> random.Random:
        """What takes the place of the operating system's random numbers, so that a run can be repeated."""
        return random.Random(f"{self.rank.kernel.seed} {self.rank.number}")

    def call_at_exit(self) -> None:
        """Call the functions that the program has registered, the latest first, as Python does when it ends."""
        while self.at_exit:
            function, arguments, options = self.at_exit.pop()
            try:
                function(*arguments, **options)
            except SimulationError:
                raise
            except Exception:
                sys.stderr.write(
                    f"Exception ignored in atexit callback: {function!r}\n{traceback.format_exc()}"
                )

    def end(self) -> None:
        """Flush and close the rank's log handlers, as Python does at the end of a process."""
        for (name, _), (logger, handlers) in self.values.items():
            if name != "handlers":
                continue
            for handler in handlers:
                if handler not in vars(logger)["handlers"]:
                    with contextlib.suppress(OSError, ValueError):  # its stream may be closed
                        handler.flush()
                        handler.close()


def _running() -> Process | None:
    """Return the process of the running rank; None if no rank is running."""
    return getattr(getcurrent(), "paceline_process", None)


def call_at_exit() -> None:
    """Call what the running rank's program has registered with `atexit`, if it has a process of its own."""
    process = _running()
    if process is not None:
        process.call_at_exit()


def _list_exits() -> Iterator[tuple[Any, str, Any]]:
    """Yield modules, names and functions that keep what a rank's own code registers until that rank ends.

    Libraries are shared, and so is what they register.
    """
    register, unregister = atexit.register, atexit.unregister

    def register_for_rank(function: Any, /, *arguments: Any, **options: Any) -> Any:
        process, own = _running(), getattr(getcurrent(), "paceline_modules", {}).get("builtins")
        if process is None or sys._getframe(1).f_globals.get("__builtins__") is not own:
            return register(function, *arguments, **options)
        process.at_exit.append((function, arguments, options))
        return function

    def unregister_for_rank(function: Any, /) -> None:
        process = _running()
        if process is not None:
            process.at_exit = [each for each in process.at_exit if each[0] != function]
        unregister(function)

    yield atexit, "register", register_for_rank
    yield atexit, "unregister", unregister_for_rank


class RankAttribute:
    """An attribute of which every rank has its own value; code outside the ranks sees the common value.

    This is a descriptor, put into the class of the object, where it takes precedence over the object's own attribute.

    `name`: the name of the attribute. `begin`: returns the first value for a rank, given the object and the common
    value; without it, a rank has the common value until it sets another. `place`: the name under which the object's
    namespace holds the common value, if it is not that of the attribute.
    """

    def __init__(
        self, name: str, begin: Callable[[Any, Any], Any] | None = None, place: str | None = None
    ) -> None:
        self.name, self.begin, self.place = name, begin, place or name

    def __get__(self, thing: Any, owner: Any = None) -> Any:
        """Return the value of the running rank."""
        if thing is None:
            return self
        process = _running()
        if process is not None:
            found = process.values.get((self.name, id(thing)))
            if found is not None:
                return found[1]
        try:
            common = vars(thing)[self.place]
        except KeyError:
            raise AttributeError(f"{type(thing).__name__!r} object has no attribute {self.name!r}") from None
        if process is None or self.begin is None:
            return common
        value = self.begin(thing, common)
        process.values[self.name, id(thing)] = thing, value  # with the object, so that its id stays in use
        return value

    def __set__(self, thing: Any, value: Any) -> None:
        """Set the value of the running rank; the first value of a new object is the common one."""
        process = _running()
        if process is None or self.place not in vars(thing):
            vars(thing)[self.place] = value
        else:
            process.values[self.name, id(thing)] = thing, value


class RankStream(RankAttribute):
    """A standard stream of `sys`. In the module's namespace, where `print` looks for it, a stand-in takes its place."""

    def __init__(self, name: str) -> None:
        super().__init__(name, place=f"{name} of the simulator")
        self.stand_in = _Stream(self)

    def __get__(self, thing: Any, owner: Any = None) -> Any:
        """Return the stream of the running rank, or one that prints nothing if the rank is being ended from outside."""
        process = _running()
        if process is not None and not process.rank.alive and self.name != "stdin":
            return io.StringIO()
        return super().__get__(thing, owner)

    def __set__(self, thing: Any, value: Any) -> None:
        """Set the stream of the running rank; the stand-in, found in `vars(sys)`, stands for the common stream."""
        process = _running()
        if value is not self.stand_in:
            super().__set__(thing, value)
        elif process is not None:
            process.values.pop((self.name, id(thing)), None)


class _Stream:
    """A stand-in for the standard stream of the running rank."""

    def __init__(self, stream: RankStream) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        stream, namespace = self._stream, vars(sys)
        if stream.place not in namespace:  # a thread of the program that is still running after it
            return getattr(namespace[stream.name], name)
        return getattr(stream.__get__(sys), name)


STREAMS = [RankStream(name) for name in ("stdin", "stdout", "stderr")]


class _Sys(ModuleType):
    """The class of the module `sys` while ranks are separate."""

    argv = RankAttribute("argv", lambda _, common: list(common))
    excepthook = RankAttribute("excepthook")
    stdin, stdout, stderr = STREAMS


def _copy(logger: logging.Logger, common: list[Any]) -> list[Any]:
    """Return the handlers or filters with which a rank begins: those of the root logger are paceline's own."""
    return [] if logger is logging.root else list(common)


def _level(logger: logging.Logger, common: int) -> int:
    return logging.WARNING if logger is logging.root else common


# Attributes of which every rank has its own value, and the classes of the objects that have them.
RANK_ATTRIBUTES = [
    (os._Environ, RankAttribute("_data", lambda _, common: dict(common))),
    (logging.Manager, RankAttribute("_disable")),
    (logging.Logger, RankAttribute("level", _level)),
    (logging.Logger, RankAttribute("handlers", _copy)),
    (logging.Logger, RankAttribute("filters", _copy)),
    (logging.Logger, RankAttribute("_cache", lambda _, common: {})),
    (logging.Logger, RankAttribute("propagate")),
    (logging.Logger, RankAttribute("disabled")),
]


def _replace_shutdown() -> Callable[..., None]:
    """Return `logging.shutdown` for ranks, whose handlers are closed when they end: it would close those of all ranks.

    `logging.config` calls it too.
    """
    really_shut_down = logging.shutdown

    @functools.wraps(really_shut_down)
    def shutdown(*arguments: Any, **options: Any) -> None:
        if _running() is None:
            really_shut_down(*arguments, **options)

    return shutdown


class RankGenerator:
    """The generator behind the functions of `random` or `numpy.random`: that of the running rank.

    >>> RankGenerator("random", random._inst, random.Random).current() is random._inst
    True
    """

    def __init__(self, library: str, shared: Any, make: Callable[[int], Any]) -> None:
        self._library, self._shared, self._make = library, shared, make

    def current(self) -> Any:
        """Return the generator of the running rank, or the shared one if no rank is running."""
        process = _running()
        if process is None:
            return self._shared
        found = process.generators.get(self._library)
        if found is None:
            found = process.generators[self._library] = self._make(process.entropy.getrandbits(32))
        return found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.current(), name)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # libraries such as SciPy ask whether it is a RandomState
        return type(self._shared)

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function that calls a method of the running rank's generator."""

        def call(*arguments: Any, **options: Any) -> Any:
            return getattr(self.current(), name)(*arguments, **options)

        call.__name__ = call.__qualname__ = name
        return call

    def seed(self, *arguments: Any, **options: Any) -> None:
        """Seed the generator; without a seed, from the rank's entropy."""
        process = _running()
        if process is not None and arguments in ((), (None,)) and not options:
            arguments = (process.entropy.getrandbits(32),)
        self.current().seed(*arguments, **options)


def _list_functions() -> Iterator[tuple[Any, str, Any]]:
    """Yield modules, names and functions that use a rank's generator, for those of `random` and `numpy.random`."""
    of_python = RankGenerator("random", random._inst, random.Random)
    of_numpy = RankGenerator("numpy", np.random.mtrand._rand, np.random.RandomState)
    for module, generator in ((random, of_python), (np.random, of_numpy)):
        for name, value in vars(module).items():
            if getattr(value, "__self__", None) is generator._shared:
                yield module, name, generator.function(name)
        yield module, "seed", generator.seed
    for name in ("ranf", "sample"):
        yield np.random, name, of_numpy.function("random_sample")
    yield np.random.mtrand, "_rand", of_numpy

    make: Any = np.random.default_rng

    @functools.wraps(make)
    def default_rng(seed: Any = None) -> Any:
        process = _running()
        return make(process.entropy.getrandbits(128) if seed is None and process is not None else seed)

    yield np.random, "default_rng", default_rng


class Separation:
    """Begins the processes of ranks, and exchanges their working directories and torch generators at switches."""

    def __init__(self) -> None:
        self._really_change = os.chdir
        self._home = str(Path.cwd())
        self._simulator = self._current = SwitchState()
        """Whose working directory and generator are in place."""
        self._generator: Any = None
        """PyTorch's generator, if torch has been imported."""
        self._tracing = False
        self._traced_before: Any = None
        self._variables: set[Any] = set()
        """Variables of the environment that a rank has changed."""

    @contextlib.contextmanager
    def begin(self, rank: Any) -> Iterator[None]:
        """Give the running greenlet, a rank that begins, a process of its own until it ends."""
        running: Any = getcurrent()
        running.paceline_process = process = Process(rank)
        if self._tracing:
            self._become(process)
        self.notice_torch()
        try:
            yield
        finally:
            process.end()
            _, own = process.values.get(("_data", id(os.environ)), (None, {}))
            if own:
                common = vars(os.environ)["_data"]
                self._variables |= {name for name, _ in own.items() ^ common.items()}

    def notice_torch(self) -> None:
        """Exchange the state of PyTorch's generator from now on if torch has been imported."""
        if self._generator is None and "torch" in sys.modules:
            self._generator = getattr(sys.modules["torch"], "default_generator", None)
            if self._generator is not None:
                self._simulator.torch = self._generator.get_state()
                self._start()
                self._restore_torch(self._current)

    def change_folder(self, path: Any) -> None:
        """Do what `os.chdir` does, for the running rank."""
        self._really_change(path)
        process = _running()
        if process is not None:
            process.folder = str(Path.cwd())
            self._start()

    def _start(self) -> None:
        """Begin to exchange at switches."""
        if not self._tracing:
            self._tracing = True
            self._traced_before = settrace(self._follow)
            self._current = _running() or self._simulator

    def stop(self) -> None:
        """Restore the simulator's state, and exchange nothing any more."""
        if self._tracing:
            self._become(self._simulator)
            settrace(self._traced_before)
            self._tracing = False
        for name in self._variables:  # for C code, and for programs that are started
            value = vars(os.environ)["_data"].get(name)
            if value is None:
                os.unsetenv(name)
            else:
                os.putenv(name, value)

    def _follow(self, event: str, greenlets: tuple[Any, Any]) -> None:
        """Exchange after a switch to another greenlet (the arguments are those of `greenlet.settrace`)."""
        following = getattr(greenlets[1], "paceline_process", self._simulator)
        if following is not self._current:
            self._become(following)

    def _become(self, following: SwitchState) -> None:
        if self._generator is not None:
            self._current.torch = self._generator.get_state()
            self._restore_torch(following)
        if following.folder != self._current.folder:
            with contextlib.suppress(OSError):  # removed meanwhile
                self._really_change(following.folder or self._home)
        self._current = following

    def _restore_torch(self, following: SwitchState) -> None:
        if following.torch is not None:
            self._generator.set_state(following.torch)
        elif isinstance(following, Process):  # as in a process that has just imported torch
            self._generator.manual_seed(following.entropy.getrandbits(63))


_MISSING: Any = object()


@contextlib.contextmanager
def separate_ranks() -> Iterator[Separation]:
    """Give every rank that calls `begin` its own state; restore everything afterwards."""
    separation = Separation()
    replaced = [
        (os, "chdir", separation.change_folder),
        (logging, "shutdown", _replace_shutdown()),
        *((kind, own.name, own) for kind, own in RANK_ATTRIBUTES),
        *_list_functions(),
        *_list_exits(),
    ]
    before = [(thing, name, vars(thing).get(name, _MISSING)) for thing, name, _ in replaced]
    namespace = vars(sys)
    for stream in STREAMS:
        namespace[stream.place] = namespace[stream.name]
        namespace[stream.name] = stream.stand_in
    sys.__class__ = _Sys
    for thing, name, value in replaced:
        setattr(thing, name, value)
    try:
        yield separation
    finally:
        separation.stop()
        for thing, name, value in before:
            if value is _MISSING:
                delattr(thing, name)
            else:
                setattr(thing, name, value)
        sys.__class__ = ModuleType
        for stream in STREAMS:
            namespace[stream.name] = namespace.pop(stream.place)
