"""`paceline list`: every name there is, with its options."""

from __future__ import annotations

import argparse
import inspect
import json
import typing
from typing import Any, Literal

from paceline import registry, spec

KINDS = tuple(registry.OFFERS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which kind to list."""
    parser.add_argument("kind", nargs="?", choices=KINDS, help="one kind only")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def main(args: argparse.Namespace) -> int:
    """Print the names."""
    found = {kind: entries(kind) for kind in KINDS if args.kind in (None, kind)}
    if args.json:
        print(json.dumps(found, indent=2))
        return 0
    for kind, things in found.items():
        print(kind)
        for thing in things:
            print(f"  {thing['name']:20} {thing['about']}")
            for option in thing["options"]:
                default = "" if option["default"] is None else f" = {option['default']}"
                print(f"  {'':20}   {option['name']}: {option['type']}{default}")
        print()
    return 0


def entries(kind: str) -> list[dict[str, Any]]:
    """Name, first line of the documentation, and options of each thing of a kind.

    >>> [entry["name"] for entry in entries("strategies")][:2]
    ['serial', 'sync']
    """
    return [_entry(kind, name) for name in registry.names(kind)]


def _entry(kind: str, name: str) -> dict[str, Any]:
    target = registry.find(kind, name)
    about = inspect.getdoc(target) or inspect.getdoc(inspect.getmodule(target)) or ""
    if kind == "collectives":
        about = inspect.getdoc(inspect.getmodule(target)) or about
        options: dict[str, inspect.Parameter] = {}
    else:
        options = spec.options_of(target, kind)
    return {
        "name": name,
        "about": about.partition("\n")[0],
        "options": [
            {
                "name": option.name.replace("_", "-"),
                "type": _type(option.annotation) + (" …" if option.kind is option.VAR_POSITIONAL else ""),
                "default": None if option.default in (option.empty, None) else str(option.default),
            }
            for option in options.values()
        ],
    }


def _type(annotation: Any) -> str:
    if typing.get_origin(annotation) is Literal:
        return " | ".join(str(choice) for choice in typing.get_args(annotation))
    words = {int: "whole number", float: "number", bool: "true | false", str: "text"}
    inner = [a for a in typing.get_args(annotation) if a is not type(None)]
    return words.get(annotation) or (_type(inner[0]) if inner else str(annotation))
