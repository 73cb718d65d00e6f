"""Digests of a user's own code, by which runs from before and after an edit are recognised."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

# Code of these changes with its version, which a record has.
LIBRARIES = frozenset({"builtins", "numpy", "paceline", "torch"})
INSTALLED = frozenset({"site-packages", "dist-packages"})


def code_digest(thing: Any) -> str | None:
    """Return a SHA-256 digest of the source files that define a class, function or object; None for a library's.

    It covers the module that defines it, the modules of its base classes, and those that these import from the same
    folder. Code without a file (typed into an interpreter) is digested by its own source, if that is known.

    >>> from paceline.strategies.sync import Sync
    >>> code_digest(Sync) is None
    True
    """
    while isinstance(thing, functools.partial):
        thing = thing.func
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    if _is_library(kind.__module__):
        return None
    files = _files(kind)
    if files:
        folder = min(files, key=lambda file: len(file.parts)).parent
        content = hashlib.sha256()
        for file in sorted(files):
            content.update(
                f"{file.name if folder not in file.parents else file.relative_to(folder)}\0".encode()
            )
            content.update(file.read_bytes())
        return content.hexdigest()
    try:
        return text_digest(inspect.getsource(kind))
    except (OSError, TypeError):
        return None


def text_digest(text: str) -> str:
    """Return the SHA-256 digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in LIBRARIES


def _files(kind: Any) -> set[Path]:
    """Find the source files of a class or function, and of what they import from the same folder."""
    names = (
        [base.__module__ for base in inspect.getmro(kind)] if isinstance(kind, type) else [kind.__module__]
    )
    waiting = [sys.modules[name] for name in names if name in sys.modules]
    folders = {file.parent for module in waiting if (file := _file(module)) is not None}
    found: set[Path] = set()
    while waiting:
        module = waiting.pop()
        file = _file(module)
        if file is not None and file not in found and not folders.isdisjoint(file.parents):
            found.add(file)
            waiting += [sys.modules[name] for name in _imported(module, file) if name in sys.modules]
    return found


def _imported(module: ModuleType, file: Path) -> set[str]:
    """List the names of all modules that a module's source may import."""
    names: set[str] = set()
    try:
        tree = ast.parse(file.read_bytes())
    except SyntaxError:
        return names
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = (module.__package__ or "").split(".")
            above = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join(filter(None, (*above, node.module)))
            names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return names


def _file(module: ModuleType) -> Path | None:
    """Return the source file of a module; None for a library's."""
    name = getattr(module, "__file__", None)
    if name is None or _is_library(module.__name__):
        return None
    path = Path(name).resolve()
    readable = path.suffix == ".py" and path.is_file()
    return path if readable and INSTALLED.isdisjoint(path.parts) else None
