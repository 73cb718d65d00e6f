"""For the length of a run, programs that were written for mpi4py find the simulator's MPI in the place of mpi4py's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

NAME = "mpi4py.MPI"
_MISSING: Any = object()


def stand_in() -> ModuleType:
    """A module that looks like mpi4py.MPI; its numbers are those of the real one, if that was imported.

    >>> stand_in().Get_library_version()
    'paceline.vmpi: simulated ranks in virtual time'
    """
    from paceline.vmpi import MPI

    module = ModuleType(NAME, MPI.__doc__)
    found = {name: value for name, value in vars(MPI).items() if not name.startswith("__")}
    vars(module).update(found, **MPI.numbers(), real=sys.modules.get(NAME))
    return module


@contextmanager
def standing_in(*functions: Callable[..., Any]) -> Iterator[ModuleType]:
    """`from mpi4py import MPI` gives the stand-in; so do the names that the functions' modules have for mpi4py's.

    >>> with standing_in() as MPI:
    ...     from mpi4py import MPI as found
    ...     found is MPI
    True
    """
    import mpi4py

    real = sys.modules.get(NAME)
    module = stand_in()
    swapped = [] if real is None else _names(functions, real, module)
    attribute = vars(mpi4py).get("MPI", _MISSING)
    sys.modules[NAME] = module
    mpi4py.MPI = module
    for names, name, _, new in swapped:
        names[name] = new
    try:
        yield module
    finally:
        for names, name, old, _ in swapped:
            names[name] = old
        if real is None:
            del sys.modules[NAME]
        else:
            sys.modules[NAME] = real
        if attribute is _MISSING:
            del mpi4py.MPI
        else:
            mpi4py.MPI = attribute


def _names(
    functions: tuple[Callable[..., Any], ...], real: ModuleType, module: ModuleType
) -> list[tuple[dict[str, Any], str, Any, Any]]:
    """Where something of the real module is bound to a name: the names, which, what it is, what is to be there.

    The functions' own modules are looked at, and all others, other than mpi4py's, in which it is called MPI: everything
    in them that is the real one's, as `comm = MPI.COMM_WORLD` is.
    """
    instead = {id(real): module}
    for name, thing in vars(real).items():
        if not isinstance(thing, (int, str)) and not name.startswith("_") and hasattr(module, name):
            instead[id(thing)] = getattr(module, name)
    others = (getattr(other, "__dict__", None) for other in list(sys.modules.values()))
    programs = [
        names
        for names in others
        if isinstance(names, dict) and names.get("MPI") is real and names.get("__package__") != "mpi4py"
    ]
    programs += [names for names in map(_globals, functions) if names is not None]
    return [
        (names, name, thing, instead[id(thing)])
        for names in {id(names): names for names in programs}.values()
        for name, thing in names.items()
        if id(thing) in instead
    ]


def _globals(function: Any) -> dict[str, Any] | None:
    """The names that a function, a method, a partial or a callable object sees as global."""
    while hasattr(function, "func") and hasattr(function, "args"):
        function = function.func
    function = getattr(function, "__wrapped__", function)
    function = getattr(function, "__func__", function)
    if not hasattr(function, "__globals__"):
        function = vars(type(function)).get("__call__")
    return getattr(function, "__globals__", None)
