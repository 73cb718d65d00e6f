"""Files that reports put into a folder, and those of earlier reports that are to go."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from paceline.errors import UsageError
from paceline.files import cannot, replacing

# What a report has put into a folder: names, and of each what was in it.
LIST = ".paceline-report.json"


class Written:
    """The files of one report in a folder. At its end, those of some kinds that an earlier one wrote there are removed.

    Only what is in the folder's own list, and is still as it was written, is removed: nobody else's file ever is.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     for names in (("a.csv", "b.csv", "c.csv"), ("a.csv",)):
    ...         with Written(Path(name), ("csv",)) as files:
    ...             made = [files.put(one, b"1") for one in names]
    ...         _ = (Path(name) / "c.csv").write_text("mine") if len(names) > 1 else None
    ...     sorted(path.name for path in Path(name).glob("*.csv"))
    ['a.csv', 'c.csv']
    """

    def __init__(self, folder: Path, kinds: Sequence[str]) -> None:
        self.folder, self._kinds = folder, {f".{kind}" for kind in kinds}
        self._before = _listed(folder / LIST)
        self._made: dict[str, str] = {}

    def __enter__(self) -> Written:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        others = {name: sum_ for name, sum_ in self._before.items() if Path(name).suffix not in self._kinds}
        if failed is not None:
            others = self._before  # nothing of theirs has been replaced for good
        else:
            for name in self._before.keys() - others.keys() - self._made.keys():
                self._remove(self.folder / name, self._before[name])
        text = json.dumps({**others, **self._made}, indent=0, sort_keys=True)
        put(self.folder / LIST, f"{text}\n".encode())

    def put(self, name: str, content: bytes) -> Path:
        """Write a file, whole or not at all."""
        path = put(self.folder / name, content)
        self._made[name] = _sum(content)
        return path

    def _remove(self, path: Path, expected: str) -> None:
        try:
            if path.is_file() and not path.is_symlink() and _sum(path.read_bytes()) == expected:
                path.unlink()
        except OSError as error:
            raise UsageError(f"cannot remove {path}: {(error.strerror or str(error)).lower()}") from None


def put(path: Path, content: bytes) -> Path:
    """Write a file, whole or not at all."""
    try:
        with replacing(path) as file:
            file.write(content)
    except OSError as error:
        raise cannot(path, error) from None
    return path


def _listed(path: Path) -> dict[str, str]:
    """Names in a folder's list; none that leads out of the folder."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: str(sum_) for name, sum_ in found.items() if Path(name).name == name and name != LIST}


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
