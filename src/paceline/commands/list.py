"""`paceline list`: list every name that paceline knows, with its options."""

from __future__ import annotations

import argparse
import ast
import inspect
import itertools
import json
import re
import textwrap
import typing
from typing import Any, Literal

from paceline import names

EXAMPLES = """
examples:
  paceline list
  paceline list strategies
  paceline list data --json
"""
KINDS = tuple(names.OFFERS)
# Where a name of each kind is used.
GIVEN = {
    "strategies": "--strategy",
    "updates": "--update",
    "schedules": "--schedule",
    "rules": "parameter-server:rule=",
    "collectives": "allreduce= of a strategy",
    "models": "--model",
    "data": "--data",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "kind", metavar="KIND", nargs="?", choices=KINDS, help=f"list only this kind: {', '.join(KINDS)}"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def main(args: argparse.Namespace) -> int:
    """Print the names."""
    found = {kind: entries(kind) for kind in KINDS if args.kind in (None, kind)}
    if args.json:
        print(json.dumps(found, indent=2))
        return 0
    for kind, things in found.items():
        print(f"{kind} ({GIVEN[kind]})")
        for thing in things:
            print(f"  {thing['name']:20} {thing['about']}")
            for option in thing["options"]:
                default = "" if option["default"] is None else f" = {option['default']}"
                words = f"{option['name']}: {option['type']}{default}"
                print(f"  {'':20}   {words:34} {option['about']}".rstrip())
        print()
    return 0


def entries(kind: str) -> list[dict[str, Any]]:
    """Return the name, the first line of the documentation and the options of everything of a kind.

    >>> [entry] = [entry for entry in entries("strategies") if entry["name"] == "serial"]
    >>> [option["name"] for option in entry["options"]]
    ['rule']
    """
    return [_entry(kind, name) for name in names.names(kind)]


def _entry(kind: str, name: str) -> dict[str, Any]:
    target = names.find(kind, name)
    about = inspect.getdoc(target) or inspect.getdoc(inspect.getmodule(target)) or ""
    ours = target.__module__.startswith("paceline.")
    # Of functions, the modules say what they make.
    if kind == "collectives" or (ours and kind in ("data", "models")):
        about = inspect.getdoc(inspect.getmodule(target)) or about
    options = {} if kind == "collectives" else names.options_of(target, kind)
    documented = _option_docs(target)
    return {
        "name": name,
        "about": about.partition("\n")[0],
        "options": [
            {
                "name": option.name.replace("_", "-"),
                "type": _type(option.annotation) + (" …" if option.kind is option.VAR_POSITIONAL else ""),
                "default": None if option.default in (option.empty, None, "") else _spell(option.default),
                "about": documented.get(option.name, ""),
            }
            for option in options.values()
        ],
    }


def _option_docs(target: Any) -> dict[str, str]:
    """Return what is said of each option: below the fields of a dataclass, or in the docstring of a function."""
    if isinstance(target, type):
        return {name: words for one in reversed(target.__mro__) for name, words in _field_docs(one).items()}
    return _parameter_docs(target)


def _parameter_docs(target: Any) -> dict[str, str]:
    """Return what the docstring of a function says of its parameters, in lines such as "`name`: text".

    >>> def load(path, seed=0):
    ...     "`path`: the file,\\n    or a folder.\\n`seed`: a number."
    >>> _parameter_docs(load)
    {'path': 'The file, or a folder', 'seed': 'A number'}
    """
    found = re.findall(r"^`(\w+)`: (.*(?:\n +\S.*)*)", inspect.getdoc(target) or "", re.MULTILINE)
    lines = {name: " ".join(words.split()).removesuffix(".") for name, words in found}
    return {name: words[0].upper() + words[1:] for name, words in lines.items()}


def _field_docs(target: type) -> dict[str, str]:
    """Return the docstrings of the fields that a dataclass itself defines, each in one line."""
    try:
        [definition] = ast.parse(textwrap.dedent(inspect.getsource(target))).body
    except (OSError, TypeError, SyntaxError, ValueError):  # no source to read
        return {}
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    return {
        field.target.id: " ".join(below.value.value.split()).removesuffix(".")
        for field, below in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(below.value.value, str)
    }


def _spell(value: Any) -> str:
    """Return a value as it is typed on the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _type(annotation: Any) -> str:
    if typing.get_origin(annotation) is Literal:
        return " | ".join(str(choice) for choice in typing.get_args(annotation))
    words = {int: "whole number", float: "number", bool: "true | false", str: "text"}
    inner = [a for a in typing.get_args(annotation) if a is not type(None)]
    return words.get(annotation) or (_type(inner[0]) if inner else str(annotation))
