"""Arrays in an .npz file: `inputs` and `labels`, or one pair for each of train, validation and test.

Known names: inputs and labels, x and y, images and labels, data and target; the same with `_train`,
`_validation` (or `_val`) and `_test` behind them or `train_` … before, as in Keras's mnist.npz. Labels of text, or
integers from 0, are classes; floats are numbers; `labels=classes` and `labels=numbers` say otherwise. No pickle is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from paceline.data._cache import entry_name, state
from paceline.data._dataset import IGNORED, Dataset
from paceline.data._samples import Parts, check_parts, choose_labels, read_stored
from paceline.errors import UsageError, unknown
from paceline.files import read_array_names, read_arrays

PAIRS = (("inputs", "labels"), ("x", "y"), ("images", "labels"), ("data", "target"))
# Part of the cache entry's name: entries made under an earlier rule for integer inputs, which became floats, are not used.
RULE = "integers stay integers"
PARTS = {"train": ("train",), "validation": ("validation", "val", "valid"), "test": ("test",)}


def load(
    *,
    path: str,
    inputs: str | None = None,
    label: str | None = None,
    labels: str | None = None,
    validation: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
    scale: float | None = None,
    ignore_index: int = IGNORED,
    target: Literal["classes", "values"] | None = None,
) -> Dataset:
    """Load the arrays of a file; a part that it does not have is cut from train at random, each class evenly.

    `path`: the file.
    `inputs`: the name of the array of inputs, if it is not a usual one.
    `label`: the name of the array of labels, if it is not a usual one.
    `labels`: what the labels are: classes or numbers; by default chosen by their type. Any other text is the former
        spelling of `label`.
    `validation`: the samples to cut off for validation if there are none: a fraction, or their number from 1 on.
    `test`: the samples to cut off for testing if there are none, in the same way.
    `seed`: which random division into parts to use.
    `scale`: the factor of inputs that are bytes; by default 1/255.
    `ignore_index`: the label of what is ignored, such as padding.
    `target`: the former name of `labels`, with `values` for numbers.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise UsageError(f"no such file: {file}")
    if labels not in (None, "classes", "numbers"):
        if label is not None:
            raise unknown(f"labels of {file}", str(labels), ("classes", "numbers"))
        label, labels = labels, None
    kind = choose_labels(str(file), labels, target)
    key = entry_name("npz", file, inputs, label, kind, ignore_index, RULE)
    checked = read_stored(
        key,
        state(file),
        lambda: check_parts(file.name, _read(file, inputs, label), labels=kind, ignored=ignore_index),
    )
    return checked.dataset(file.stem, validation=validation, test=test, seed=seed, scale=scale)


def _read(file: Path, inputs: str | None, labels: str | None) -> Parts:
    found = _find(file, read_array_names(file), inputs, labels)
    arrays = read_arrays(file, {name for pair in found.values() for name in pair})
    return {part: (arrays[first], arrays[second]) for part, (first, second) in found.items()}


def _find(file: Path, there: list[str], inputs: str | None, labels: str | None) -> dict[str, tuple[str, str]]:
    """Find the names of the arrays that hold the inputs and labels of each part."""
    pairs = [(inputs or first, labels or second) for first, second in PAIRS]
    lower = {name.lower(): name for name in there}
    for first, second in pairs:
        for part in ({"train": ("",)}, PARTS):
            found = {
                name: (lower[a], lower[b])
                for name, words in part.items()
                for word in words
                for a, b in _spellings(first.lower(), second.lower(), word)
                if a in lower and b in lower
            }
            if "train" in found:
                return found
    wanted = f"{inputs or 'inputs'} and {labels or 'labels'}"
    raise UsageError(
        f"{file}: no arrays {wanted} (nor x and y, x_train and y_train …); it has {', '.join(there)}"
    )


def _spellings(first: str, second: str, part: str) -> list[tuple[str, str]]:
    if not part:
        return [(first, second)]
    return [(f"{first}_{part}", f"{second}_{part}"), (f"{part}_{first}", f"{part}_{second}")]
