"""The rules of the source tree that no linter knows: private modules stay private, strategies stay one file each."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}
STRATEGIES = sorted(
    path.stem.replace("_", "-")
    for path in (SOURCE / "paceline" / "strategies").iterdir()
    if not path.stem.startswith("_") and (path.suffix == ".py" or path.is_dir())
)
# "serial" and "sync" are ordinary words too.
TELLING = [name for name in STRATEGIES if name not in ("serial", "sync")]


# No test runs all of them.
SCRIPTS = [
    path
    for folder in ("benchmarks", "examples", "tools")
    for path in sorted((SOURCE.parent / folder).rglob("*.py"))
]


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the dotted name of everything that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def test_the_tree_is_found() -> None:
    assert "paceline.strategies.sync" in MODULES
    assert {"sync", "local-sgd", "parameter-server"} <= set(STRATEGIES)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_scripts_import_what_exists(path: Path) -> None:
    for line, name in imports(path):
        if name.startswith("paceline."):
            module, _, attribute = name.rpartition(".")
            if name not in MODULES:
                assert hasattr(importlib.import_module(module), attribute), f"line {line}: {name}"


@pytest.mark.parametrize("module", MODULES)
def test_private_modules_and_names_stay_in_their_package(module: str) -> None:
    package = module.split(".")[:2]
    foreign = [
        f"line {line}: {name}"
        for line, name in imports(MODULES[module])
        if name.startswith("paceline.")
        and name.split(".")[:2] != package
        and any(part.startswith("_") and not part.startswith("__") for part in name.split(".")[2:])
    ]
    assert not foreign


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("paceline.strategies.")])
def test_strategies_hold_no_stopwatch_and_no_cost_accounting(module: str) -> None:
    text = MODULES[module].read_text()
    assert [word for word in ("watch.", "charge(", "time_only", "hollow") if word in text] == []


def test_a_strategy_is_mentioned_in_its_own_file_only() -> None:
    found = [
        f"{module}: {name}"
        for module, path in MODULES.items()
        if not module.startswith(("paceline.strategies", "paceline.commands"))
        for name in TELLING
        if f'"{name}"' in path.read_text()
    ]
    assert found == []
