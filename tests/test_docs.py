"""What the documentation names is there."""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import shlex
from pathlib import Path

import pytest

import paceline
from paceline import names as registry
from paceline import names as spec
from paceline.cli import COMMANDS
from paceline.strategies import Strategy

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
KINDS = {
    "strategy": "strategies",
    "model": "models",
    "data": "data",
    "update": "updates",
    "schedule": "schedules",
}


@pytest.mark.parametrize("name", sorted(set(paceline.__all__) - {"__version__"}))
def test_every_public_name_has_an_example(name: str) -> None:
    assert ">>> " in (inspect.getdoc(getattr(paceline, name)) or "")  # which pytest runs, as all doctests


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_files(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
    folders = "benchmarks|docs|examples|src|studies|tests|tools"
    for path in re.findall(rf"(?<![\w/.])(?:{folders})/[\w./-]*\w", text):
        assert (ROOT / path).exists(), f"{page.name} names {path}"
    for path in re.findall(
        r"`(?:paceline/)?((?:collectives|updates|strategies|models)/[\w.]*|schedules\.py)`", text
    ):
        assert (ROOT / "src/paceline" / path).exists(), f"{page.name} names {path}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_imports_in_examples(page: Path) -> None:
    """Also in examples that cannot be run because parts are left out."""
    for module, imported in re.findall(r"^\s*from (paceline[\w.]*) import ([\w, ]+)", page.read_text(), re.M):
        for name in imported.split(","):
            found = importlib.import_module(module)
            assert hasattr(found, name.strip()) or importlib.import_module(f"{module}.{name.strip()}")


def _anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w -]", "", words).strip().replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_into_pages(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]*)\)", page.read_text()):
        text = re.sub(r"```.*?```", "", (page.parent / target if target else page).read_text(), flags=re.S)
        assert anchor in map(_anchor, re.findall(r"^#+ (.*)", text, re.M)), (
            f"{page.name} links to {target}#{anchor}"
        )


def commands() -> list[str]:
    """Every `paceline …` of the documentation, in a block or between backticks."""
    found = []
    for page in PAGES:
        text = page.read_text()
        blocks = re.findall(r"```(?:sh|console)\n(.*?)```", text, re.S)
        lines = [line.partition(" #")[0] for block in blocks for line in block.splitlines()]
        spans = re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.S))
        for line in [*lines, *spans]:
            if match := re.search(rf"\bpaceline ((?:{'|'.join(COMMANDS)})\b.*)", " ".join(line.split())):
                found.append(match[1])
    return sorted(set(found))


def test_commands_are_found() -> None:
    assert len(commands()) > 15


@pytest.mark.parametrize("words", commands())
def test_every_command_is_understood(words: str) -> None:
    name, *rest = shlex.split(words)
    if not rest or "…" in words:
        return
    if rest[-1] in ("-n", "--help"):  # named, not spelled out: `paceline train -n` reserves cores
        rest.pop()
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    importlib.import_module(COMMANDS[name][0]).add_arguments(parser)
    rest += ["runs/RUN"] if name in ("report", "predict") and not rest else []
    parsed = parser.parse_args(rest)
    for setting, kind in KINDS.items():
        given = getattr(parsed, setting, None) or ()
        for text in (given,) if isinstance(given, str) else given:
            if not text.startswith(("my_module:", "own_strategy:")) and "/" not in text:
                spec.parse(kind, text)


def test_the_guide_recommends_what_exists() -> None:
    guide = (
        (ROOT / "docs/strategies/sync.md").read_text().partition("## When to use it")[2].partition("\n## ")[0]
    )
    known = {*registry.names("strategies"), *registry.names("collectives"), "exchange", "wait", "compute"}
    assert set(re.findall(r"`([\w-]+)`", guide)) <= known
    assert "a strategy that" not in guide  # name it
    assert {page.stem for page in (ROOT / "docs/strategies").glob("*.md")} == set(
        registry.names("strategies")
    )


@pytest.mark.parametrize("page", sorted((ROOT / "docs/strategies").glob("*.md")), ids=lambda page: page.stem)
def test_every_strategy_s_page_has_the_same_parts(page: Path) -> None:
    text = page.read_text()
    parts = re.findall(r"^## (.*)", text, re.M)
    assert parts[:3] == ["When to use it", "Options", "Cost"] or parts[:4:3] == ["When to use it", "Cost"]
    assert "What was measured" in parts
    listed = re.findall(r"^\| `([\w-]+)` \|", text.partition("## Options")[2].partition("\n## ")[0], re.M)
    options = spec.options_of(registry.find("strategies", page.stem), "strategies")
    assert set(listed) == {name.replace("_", "-") for name in options}


def test_a_strategy_declares_its_methods_as_the_page_spells_them() -> None:
    page = (ROOT / "docs" / "adding.md").read_text()
    section = page.split("### What a strategy declares")[1].split("\n## ")[0]
    spelled = re.findall(r"`(\w+)\((?:self|cls)(?:, )?([^`]*)\)`", section)
    assert {"interval", "remedies", "offers"} <= {name for name, _ in spelled}
    for name, words in spelled:
        parameters = inspect.signature(getattr(Strategy, name)).parameters.values()
        wanted = {each.name: each.kind for each in parameters if each.name != "self"}
        function = eval(f"lambda {words}: None")
        assert {n: p.kind for n, p in inspect.signature(function).parameters.items()} == wanted, name


def test_contributing_names_every_package() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().split("| package |")[1].split("\n\n")[0]
    named = set(re.findall(r"`(\w+)`", table))
    source = ROOT / "src" / "paceline"
    packages = {
        path.stem for path in source.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert packages - {"__init__", "__main__"} <= named
