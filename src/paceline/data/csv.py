"""A table in a .csv file: one sample a row, numbers in every column, the label in one of them.

The separator (comma, semicolon, tab) and a header are recognised. Labels that are names or whole numbers are
classes, numbered in sorted order; other numbers are real targets.
"""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from paceline.data._cache import entry_name, state
from paceline.data._dataset import Dataset
from paceline.data._samples import Parts, read_stored
from paceline.errors import UsageError, unknown

Array = NDArray[Any]


def load(
    *,
    path: str,
    label: str | None = None,
    labels: Literal["auto", "classes", "numbers"] = "auto",
    validation: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
) -> Dataset:
    """The rows of a file, divided at random, each class evenly; `label` is a column's name or number.

    The last column is the label unless another is given. `labels=numbers` makes whole numbers real targets,
    `labels=classes` makes all numbers classes. `validation` and `test` are fractions, or from 1 on numbers of
    samples.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise UsageError(f"no such file: {file}")
    key = entry_name("csv", file, label, labels)
    stored = read_stored(key, state(file), lambda: (file.name, _read(file, label, labels)))
    return stored.dataset(file.stem, validation=validation, test=test, seed=seed)


def _read(file: Path, label: str | None, labels: str) -> Parts:
    rows = _rows(file)
    start, first = next(rows, (0, []))
    if not first:
        raise UsageError(f"{file}: the file is empty")
    if len(first) < 2:
        raise UsageError(f"{file}: a label and at least one feature are needed; the file has one column")
    header, column = _layout(file, first, label)
    names = first if header else [str(number) for number in range(1, len(first) + 1)]
    values = array("d")
    targets: list[str] = []
    for line, row in rows if header else chain([(start, first)], rows):
        if len(row) != len(names):
            raise UsageError(f"{file}: every row needs {len(names)} cells; line {line} has {len(row)}")
        targets.append(row[column])
        cells = row[:column] + row[column + 1 :]
        try:
            values.extend(map(float, cells))
        except ValueError:
            bad = next(place for place, cell in enumerate(cells) if not _is_number(cell))
            name = names[bad + (bad >= column)]
            raise UsageError(
                f"{file}: line {line}, column {name!r}: {cells[bad]!r} is not a number"
            ) from None
    if not targets:
        raise UsageError(f"{file}: the file has a header and no rows")
    inputs = np.frombuffer(values).reshape(len(targets), -1)
    return {"train": (inputs, _targets(file, names[column], targets, labels))}


def _rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Each row with its line number; blank lines are left out."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as text:
            start = text.readline()
            text.seek(0)
            separator = max(",;\t", key=start.count)
            reader = csv.reader(text, delimiter=separator)
            for row in reader:
                if any(row):
                    yield reader.line_num, [cell.strip() for cell in row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{file}: no table in UTF-8 ({error})") from None


def _layout(file: Path, first: list[str], label: str | None) -> tuple[bool, int]:
    """Whether the first row is a header, and which column holds the label."""
    if label is not None and label in first and not _is_number(label):
        return True, first.index(label)
    column = len(first) - 1
    by_number = label is not None and label.isdigit() and 1 <= int(label) <= len(first)
    if label is not None and by_number:
        column = int(label) - 1
    header = any(not _is_number(cell) for place, cell in enumerate(first) if place != column)
    if label is not None and not by_number:
        choices = [*first, "…"] if header else []
        raise unknown(f"label column of {file}", label, [*choices[:20], f"a number from 1 to {len(first)}"])
    return header, column


def _targets(file: Path, name: str, targets: list[str], labels: str) -> Array:
    """The labels as names (which become classes), or as real numbers."""
    numeric = all(map(_is_number, targets))
    if labels == "numbers" and not numeric:
        bad = next(target for target in targets if not _is_number(target))
        raise UsageError(f"{file}: labels=numbers needs numbers in column {name!r}; got {bad!r}")
    if "" in targets:
        raise UsageError(f"{file}: sample {targets.index('')} has no label in column {name!r}")
    if not numeric:
        return np.array(targets)
    numbers = np.array(targets, np.float64)
    if labels == "numbers" or (labels == "auto" and (numbers != np.round(numbers)).any()):
        return numbers
    # Sorted as numbers and not as text (10 after 9), and numbered from 0.
    return np.unique(numbers, return_inverse=True)[1]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
