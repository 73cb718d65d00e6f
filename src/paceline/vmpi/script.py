"""A program that was written for mpi4py, unchanged, on simulated ranks: each with names of its own, as processes have.

The file is compiled once and executed by every rank as `__main__`, with its own arguments in `sys.argv`; or it is executed
as a module, and a function of it called with the communicator.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from greenlet import getcurrent

from paceline.errors import UsageError
from paceline.vmpi.errors import Aborted


class Program:
    """A file, ready to be run by simulated ranks.

    >>> import tempfile
    >>> from paceline.vmpi import run
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "hello.py"
    ...     text = "from mpi4py.MPI import COMM_WORLD as c\\nranks = c.gather(c.rank)\\nif ranks: print(__name__, ranks)"
    ...     _ = file.write_text(text)
    ...     program = Program(file)
    ...     with program.running():
    ...         _ = run(program, ranks=2)
    __main__ [0, 1]
    """

    def __init__(self, file: Path, function: str | None = None, arguments: Sequence[str] = ()) -> None:
        self.file = file
        self.function = function
        self.arguments = list(arguments)
        self.name = "__main__" if function is None else file.stem
        self._code = compiled(file)

    def __call__(self, comm: Any) -> Any:
        """One rank."""
        names: dict[str, Any] = {
            "__name__": self.name,
            "__file__": str(self.file),
            "__builtins__": __builtins__,
        }
        getcurrent().paceline_names = names
        try:
            exec(self._code, names)
            return None if self.function is None else self._called(names)(comm, *self.arguments)
        except SystemExit as end:
            if end.code not in (None, 0) or isinstance(end, Aborted):
                raise
            return None

    def _called(self, names: dict[str, Any]) -> Callable[..., Any]:
        assert self.function is not None
        found = names.get(self.function)
        if not callable(found):
            raise UsageError(f"{self.file} has no function {self.function}")
        return found  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Let Python look as it does for a program that was started by itself."""
        argv, path, before = sys.argv, sys.path[:], sys.modules.get(self.name)
        sys.argv = [str(self.file), *self.arguments]
        sys.path.insert(0, str(self.file.absolute().parent))
        sys.modules[self.name] = _Running(self.name)
        try:
            yield
        finally:
            sys.argv, sys.path[:] = argv, path
            if before is None:
                del sys.modules[self.name]
            else:
                sys.modules[self.name] = before


class _Running(ModuleType):
    """The module of the rank that is running: what looks for it (pickle, dataclasses) finds that rank's own names."""

    def __getattribute__(self, name: str) -> Any:
        names = getattr(getcurrent(), "paceline_names", None)
        if names is None:
            return super().__getattribute__(name)
        if name == "__dict__":
            return names
        try:
            return names[name]
        except KeyError:
            raise AttributeError(f"module {names['__name__']!r} has no attribute {name!r}") from None


def compiled(file: Path) -> CodeType:
    """The program, or a refusal of what is none."""
    try:
        text = file.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {(error.strerror or str(error)).lower()}") from None
    try:
        return compile(text, str(file), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UsageError(f"{file}{where}: {why}") from None
