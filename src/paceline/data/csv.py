"""A table in a .csv file: one sample per row, numbers in every column, and the label in one of the columns.

The separator (comma, semicolon or tab) and a header are recognised. `labels=classes` and `labels=numbers` define the kind
of labels. Without it, text is classes and numbers with a fraction are numbers; whole numbers are classes when there
are few different ones, otherwise numbers, and the run prints the assumption. Classes are numbered in sorted order.
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
from paceline.data._samples import Checked, Labels, check_parts, choose_labels, read_stored
from paceline.errors import UsageError, unknown

Array = NDArray[Any]

# Part of the cache entry's name: entries made under an earlier rule for whole numbers are not used.
RULE = "few whole numbers are classes, others numbers"
SHOWN = 20  # columns that a message names


def load(
    *,
    path: str,
    label: str | None = None,
    labels: Literal["auto", "classes", "numbers"] = "auto",
    validation: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
    target: Literal["classes", "values"] | None = None,
) -> Dataset:
    """Load the rows of a file, divided at random, each class evenly.

    `path`: the file.
    `label`: the column of the labels, by name or by number from 1; by default the last one.
    `labels`: what the labels are; auto: chosen by their values.
    `validation`: the samples to validate with, cut from the training samples: a fraction, or their number from 1 on.
    `test`: the samples to test with, cut off in the same way.
    `seed`: which random division into parts to use.
    `target`: the former name of `labels`, with `values` for numbers.
    """
    file = Path(path).expanduser()
    kind = choose_labels(str(file), None if labels == "auto" else labels, target)
    if not file.is_file():
        raise UsageError(f"no such file: {file}")
    key = entry_name("csv", file, label, kind, RULE)
    checked = read_stored(key, state(file), lambda: _read(file, label, kind))
    return checked.dataset(file.stem, validation=validation, test=test, seed=seed)


def _read(file: Path, label: str | None, kind: Labels | None) -> Checked:
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
                f"{file}: line {line}, column {name!r}: {cells[bad]!r} is not a number{_hint(cells[bad])}"
            ) from None
    if not targets:
        raise UsageError(f"{file}: the file has a header and no rows")
    inputs = np.frombuffer(values).reshape(len(targets), -1)
    parts = {"train": (inputs, _labels(file, names[column], targets, kind))}
    return check_parts(file.name, parts, labels=kind, column=names[column])


def _hint(cell: str) -> str:
    """Return what to do about a cell that looks like a number, or like two, with a decimal comma.

    >>> _hint("1,5"), _hint("5;0"), _hint("wide")
    ('; write decimal points, not commas', '; write decimal points, not commas', '')
    """
    halves = cell.replace(";", ",").split(",")
    return "; write decimal points, not commas" if len(halves) == 2 and all(map(_is_number, halves)) else ""


def _rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield each row with its line number; skip blank lines."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as text:
            start = text.readline()
            text.seek(0)
            # As many semicolons as commas: the commas are decimal ones.
            separator = max(
                ",;\t", key=lambda sign: (start.count(sign), sign == ";" and start.count(sign) > 0)
            )
            reader = csv.reader(text, delimiter=separator)
            for row in reader:
                if any(row):
                    yield reader.line_num, [cell.strip() for cell in row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{file}: not a table in UTF-8 ({error})") from None


def _layout(file: Path, first: list[str], label: str | None) -> tuple[bool, int]:
    """Return whether the first row is a header, and which column holds the label."""
    if label is not None and label in first and not _is_number(label):
        return True, first.index(label)
    column = len(first) - 1
    by_number = label is not None and label.isdigit() and 1 <= int(label) <= len(first)
    if label is not None and by_number:
        column = int(label) - 1
    header = any(not _is_number(cell) for place, cell in enumerate(first) if place != column)
    if label is not None and not by_number:
        choices = first if header else []
        if len(choices) > SHOWN:
            choices = [*choices[:SHOWN], "…"]
        raise unknown(f"label column of {file}", label, [*choices, f"a number from 1 to {len(first)}"])
    return header, column


def _labels(file: Path, name: str, cells: list[str], kind: Labels | None) -> Array:
    """Return the labels as float64 where all of them are numbers, otherwise as text."""
    numeric = all(map(_is_number, cells))
    if kind == "numbers" and not numeric:
        bad = next(cell for cell in cells if not _is_number(cell))
        raise UsageError(f"{file}: labels=numbers needs numbers in column {name!r}; got {bad!r}")
    if "" in cells:
        raise UsageError(f"{file}: sample {cells.index('')} has no label in column {name!r}")
    return np.array(cells, np.float64 if numeric else None)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
