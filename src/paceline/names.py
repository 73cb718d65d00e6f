"""The names that users type: strategies, collectives, models, data sets, updates, schedules and rules, with options.

A name is a file: `strategies/local_sgd.py` is `local-sgd`. Files whose name starts with an underscore are not
algorithms. Schedules are so short that one file holds them all: there a name is a dataclass. Other packages add names
through entry points in the groups `paceline.strategies`, `paceline.data` and so on. There is no list to edit.

`name:option=value,option=value` is the one spelling for the command line, the record and the legend. The options of a
thing are the parameters of its function, or the fields of its dataclass, with their types:

    sync:allreduce=ring        mlp:128,64,activation=relu        my_module:build_net:width=32

Settings (dataclasses such as `Config`) become command-line arguments with `as_arguments`.
"""

from __future__ import annotations

import builtins
import dataclasses
import importlib
import inspect
import os
import pkgutil
import sys
import sysconfig
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal, Union

from paceline.errors import UntrustedError, UsageError, split_list, unknown

# What a name stands for: the function of this name in the file, or (None) the class named like it.
OFFERS: dict[str, str | None] = {
    "strategies": None,
    "updates": None,
    "schedules": None,
    "rules": None,
    "collectives": "allreduce",
    "models": "build",
    "data": "load",
}
# Kinds whose modules are in another folder than that of their name.
FOLDERS = {"rules": "strategies.parameter_server.rules"}
SINGULAR = {
    "strategies": "strategy",
    "updates": "update",
    "schedules": "schedule",
    "rules": "rule",
    "collectives": "collective",
    "models": "model",
    "data": "data set",
}


def names(kind: str) -> list[str]:
    """Return every name of one kind, from this package and from others.

    >>> "sync" in names("strategies")
    True
    """
    return sorted(_own(kind) | set(_entry_points(kind)))


def has(kind: str, name: str) -> bool:
    """Return True if this is a name of one kind; other packages are searched only if it is not one of ours."""
    return name in _own(kind) or name in _entry_points(kind)


def find(kind: str, name: str) -> Callable[..., Any]:
    """Return the class or function that a name stands for.

    >>> find("collectives", "ring").__module__
    'paceline.collectives.ring'
    """
    if name not in _own(kind):
        others = _entry_points(kind)
        if name not in others:
            raise unknown(SINGULAR[kind], name, names(kind))
        found = others[name].load()
        if not callable(found):
            raise UsageError(f"the {SINGULAR[kind]} {name!r} of {others[name].value} is not callable")
        return found  # type: ignore[no-any-return]
    stem = name.replace("-", "_")
    module = importlib.import_module(_package(kind))
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"{module.__name__}.{stem}")
    attribute = OFFERS[kind]
    if attribute is None:
        wanted = stem.replace("_", "")
        attribute = next(a for a in vars(module) if a.lower() == wanted)
    return getattr(module, attribute)  # type: ignore[no-any-return]


# The file whose names are being used, where that file is not trusted.
_untrusted: ContextVar[str] = ContextVar("untrusted", default="")


@contextmanager
def refuse_user_code(file: str, *, trust: bool = False) -> Iterator[None]:
    """Refuse `module:attribute` within the block, unless `trust`: importing what a file names would run its code.

    >>> with refuse_user_code("runs/mine"):
    ...     parse("models", "os:system:command=ls")
    Traceback (most recent call last):
    paceline.errors.UntrustedError: runs/mine names os:system as its model, which would be run; allow that with --trust
    """
    token = _untrusted.set("" if trust else file)
    try:
        yield
    finally:
        _untrusted.reset(token)


def import_target(kind: str, text: str) -> Callable[..., Any]:
    """Return the object that `module:attribute` names, imported from the user's path."""
    if file := _untrusted.get():
        raise UntrustedError(
            f"{file} names {text} as its {SINGULAR[kind]}, which would be run; allow that with --trust"
        )
    module_name, _, attribute = text.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *attribute.split("."))):
        raise UsageError(
            f"unknown {SINGULAR[kind]} {text!r}; choose one of {', '.join(names(kind))} or module:attribute"
        )
    try:
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise UsageError(
            f"unknown {SINGULAR[kind]} {text!r}: neither a name that paceline knows nor a module {module_name!r}; "
            f"choose one of {', '.join(names(kind))} or module:attribute"
        ) from None
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise UsageError(f"module {module_name!r} has no attribute {attribute!r}") from None
    if not callable(found):
        raise UsageError(f"{text!r} is not a class or a function")
    return found


def find_users_own(kind: str, text: str) -> Callable[..., Any] | None:
    """Return what `module:attribute` or `module:attribute:options` stands for; None for anything else.

    >>> find_users_own("strategies", "sync:balance=true") is None, find_users_own("data", "photos/:size=64") is None
    (True, True)
    """
    module, _, rest = text.partition(":")
    attribute = rest.partition(":")[0]
    if not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))) or has(
        kind, module
    ):
        return None
    try:
        return import_target(kind, f"{module}:{attribute}")
    except UntrustedError:
        raise
    except UsageError:
        return None


def _package(kind: str) -> str:
    """Return the package whose modules, or the module whose dataclasses, are the names of one kind."""
    return f"paceline.{FOLDERS.get(kind, kind)}"


@cache
def _own(kind: str) -> frozenset[str]:
    module = importlib.import_module(_package(kind))
    if not hasattr(module, "__path__"):
        return frozenset(
            name.lower() for name, found in vars(module).items() if dataclasses.is_dataclass(found)
        )
    stems = (inner.name for inner in pkgutil.iter_modules(module.__path__))
    return frozenset(stem.replace("_", "-") for stem in stems if not stem.startswith("_"))


def _entry_points(kind: str) -> dict[str, EntryPoint]:
    places = []
    for place in sys.path:
        with suppress(OSError):
            found = Path(place).stat()
            places.append((place, found.st_dev, found.st_ino, found.st_mtime_ns))
    return _all_entry_points(tuple(places))[kind]


@cache
def _all_entry_points(places: tuple[tuple[str, int, int, int], ...]) -> dict[str, dict[str, EntryPoint]]:
    """Return the entry points of every kind that the packages in these folders have, as the folders are now.

    To read the metadata of all installed packages takes about as long as to train on a small data set.
    """
    found = entry_points()
    return {kind: {point.name: point for point in found.select(group=f"paceline.{kind}")} for kind in OFFERS}


# Parameters that paceline itself supplies; users do not set them.
SUPPLIED = frozenset({"self", "data", "seed", "dtype"})
# Nothing is supplied to a data set: its seed is an option, so runs with different seeds see the same data.
SUPPLIED_TO_DATA: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Spec:
    """A name with its checked options, ready to be called.

    >>> parse("strategies", "elastic:every=4").make().every
    4
    """

    kind: str
    name: str
    target: Callable[..., Any] = field(repr=False, compare=False)
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def make(self, **supplied: Any) -> Any:
        """Call the target with its options and with those of `supplied` that it takes.

        If an installed package's code fails with these options, or they do not fit, that is a UsageError. What the user's
        own code raises passes unchanged.
        """
        takes = list(signature(self.name, self.target))
        given = {name: value for name, value in supplied.items() if name in takes}
        first = [given.pop(takes[0])] if takes and takes[0] in given else []
        try:
            return self.target(*first, *self.arguments, **given, **self.options)
        except (UsageError, OSError):
            raise
        except Exception as error:
            called = error.__traceback__ is not None and error.__traceback__.tb_next is not None
            if has(self.kind, self.name) or (called and not _is_installed(self.target)):
                raise
            why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise UsageError(f"{self} cannot be created: {why}") from error

    def __str__(self) -> str:
        words = [spell(a) for a in self.arguments] + [f"{k}={spell(v)}" for k, v in self.options.items()]
        return f"{self.name}:{','.join(words)}" if words else self.name


def _is_installed(target: Callable[..., Any]) -> bool:
    """Return True for code of Python or of an installed package, False for the user's own."""
    file = getattr(sys.modules.get(getattr(target, "__module__", None) or ""), "__file__", None)
    places = [sysconfig.get_path(name) for name in ("stdlib", "platlib", "purelib")]
    return file is None or any(file.startswith(f"{place}{os.sep}") for place in places)


def parse(kind: str, text: str) -> Spec:
    """Parse a name with options and check every option.

    >>> str(parse("strategies", "sync:allreduce=naive"))
    'sync:allreduce=naive'
    """
    name, _, rest = text.partition(":")
    if has(kind, name):
        target = find(kind, name)
    elif rest:
        attribute, _, rest = rest.partition(":")
        name = f"{name}:{attribute}"
        target = import_target(kind, name)
    else:
        raise unknown(SINGULAR[kind], name, [*names(kind), "module:attribute"])
    function = kind == "strategies" and inspect.isfunction(target)
    if function and not _takes_worker(list(signature(name, target).values())):
        raise UsageError(f"{name} is not a strategy: a function must take a worker")
    arguments, options = _convert(kind, name, target, split_list(rest, text))
    return Spec(kind, name, target, arguments, options)


def describe(thing: Any, name: str) -> str:
    """Return the spelling of a dataclass instance on the command line: only what differs from the defaults."""
    changed = [
        f"{f.name.replace('_', '-')}={spell(getattr(thing, f.name))}"
        for f in dataclasses.fields(thing)
        if getattr(thing, f.name) != f.default
    ]
    return f"{name}:{','.join(changed)}" if changed else name


def as_arguments(settings: Any, *, always: Collection[str] = ()) -> list[str]:
    """Return the command-line arguments of a dataclass of settings: what differs from the defaults, and `always` these.

    >>> @dataclass
    ... class Settings:
    ...     batch_per_rank: int = 64
    ...     compute: bool = True
    >>> as_arguments(Settings(batch_per_rank=32, compute=False))
    ['--batch-per-rank=32', '--no-compute']
    >>> as_arguments(Settings(), always=["batch_per_rank"])
    ['--batch-per-rank=64']
    """
    words = []
    for setting in dataclasses.fields(settings):
        value, flag = getattr(settings, setting.name), setting.name.replace("_", "-")
        if value != setting.default or setting.name in always:
            switch = f"--{flag}" if value is True else f"--no-{flag}"
            words.append(switch if isinstance(value, bool) else f"--{flag}={value}")
    return words


def options_of(target: Callable[..., Any], kind: str = "", name: str = "") -> dict[str, inspect.Parameter]:
    """Return the parameters that a user may set, with their types resolved; `name`: of the target, for errors."""
    supplied = SUPPLIED_TO_DATA if kind == "data" else SUPPLIED
    known = vars(sys.modules.get(getattr(target, "__module__", None) or "", builtins))
    parameters = list(signature(name or getattr(target, "__name__", repr(target)), target).values())
    if kind == "strategies" and inspect.isfunction(target):
        # The first parameter is the worker, whatever its name, and nothing else is supplied.
        parameters, supplied = parameters[_takes_worker(parameters) :], frozenset()
    return {
        p.name: p.replace(annotation=_resolve(p.annotation, known))
        for p in parameters
        if p.name not in supplied and p.kind is not p.VAR_KEYWORD
    }


def signature(name: str, target: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a class or function, whose options they are; raise a UsageError if it declares none.

    >>> signature("builtins:dict", dict)
    Traceback (most recent call last):
    paceline.errors.UsageError: builtins:dict cannot be created: Python cannot tell which options it takes
    """
    try:
        return inspect.signature(target).parameters
    except (TypeError, ValueError):  # not written in Python
        raise UsageError(f"{name} cannot be created: Python cannot tell which options it takes") from None


def _takes_worker(parameters: Sequence[inspect.Parameter]) -> bool:
    """Return True if a strategy's function can be called with a worker."""
    no = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    return bool(parameters) and parameters[0].kind not in no


def _resolve(annotation: Any, known: dict[str, Any]) -> Any:
    """Return the type that an annotation names, or str if there is none or it cannot be found."""
    if annotation is inspect.Parameter.empty:
        return str
    if isinstance(annotation, str):
        try:
            return eval(annotation, known)
        except Exception:  # imported only for type checkers, or no type at all
            return str
    return annotation


def _convert(
    kind: str, name: str, target: Callable[..., Any], words: list[str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    parameters = options_of(target, kind, name)
    rest = next((p for p in parameters.values() if p.kind is p.VAR_POSITIONAL), None)
    named = {k: p for k, p in parameters.items() if p.kind is not p.VAR_POSITIONAL}
    arguments: list[Any] = []
    options: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            if rest is None:
                raise UsageError(f"{name} takes option=value; got {word!r}")
            if options:
                raise UsageError(f"{name}: {word!r} must come before the options")
            arguments.append(_convert_value(name, rest.name, rest.annotation, word))
            continue
        key = key.replace("-", "_")
        if key not in named:
            choices = [k.replace("_", "-") for k in named] or ["none: it has no options"]
            raise unknown(f"option of {name}", key.replace("_", "-"), choices)
        if key in options:
            raise UsageError(f"{name}: {key.replace('_', '-')} is given twice")
        options[key] = _convert_value(name, key, named[key].annotation, value)
    missing = [k for k, p in named.items() if p.default is p.empty and k not in options]
    if missing:
        raise UsageError(f"{name} needs {', '.join(missing)}; write {name}:{missing[0]}=…")
    return tuple(arguments), options


def _convert_value(name: str, key: str, kind: Any, text: str) -> Any:
    """Convert `text` to the type of the parameter's annotation."""
    origin = typing.get_origin(kind)
    if origin in (Union, types.UnionType):
        choices = typing.get_args(kind)
        if type(None) in choices and text == "none":
            return None
        return _convert_value(name, key, next(c for c in choices if c is not type(None)), text)
    if origin is Literal:
        allowed = typing.get_args(kind)
        for choice in allowed:
            if text == str(choice):
                return choice
        raise unknown(f"{key} of {name}", text, [str(choice) for choice in allowed])
    if kind is bool:
        if text.lower() not in ("true", "false", "yes", "no", "1", "0"):
            raise UsageError(f"{key} of {name} must be true or false; got {text!r}")
        return text.lower() in ("true", "yes", "1")
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            article = "a whole number" if kind is int else "a number"
            raise UsageError(f"{key} of {name} must be {article}; got {text!r}") from None
    return text


def spell(value: Any) -> str:
    """Format the value of an option as the command line takes it.

    >>> spell(True), spell(None), spell(0.5)
    ('true', 'none', '0.5')
    """
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)
