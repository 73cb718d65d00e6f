"""Importing paceline starts nothing."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = ("torch", "matplotlib", "PIL", "mpi4py.MPI")


def list_loaded(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys, json, threading\n"
         "assert threading.active_count() == 1\nprint(json.dumps(sorted(sys.modules)))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(json.loads(done.stdout))


def test_importing_paceline_imports_nothing_heavy() -> None:
    assert not list_loaded("import paceline") & {*HEAVY, "numpy", "mpi4py"}


def test_importing_every_module_starts_no_mpi_and_no_torch() -> None:
    code = """
import importlib, pkgutil, paceline
for module in pkgutil.walk_packages(paceline.__path__, "paceline."):
    if "_torch" not in module.name and module.name not in ("paceline.__main__", "paceline.own_loop"):
        importlib.import_module(module.name)
"""
    assert not list_loaded(code) & set(HEAVY)


def test_public_names_are_there() -> None:
    code = "import paceline\nfor name in paceline.__all__:\n    getattr(paceline, name)"
    assert "mpi4py.MPI" not in list_loaded(code)
