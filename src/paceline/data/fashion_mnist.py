"""Fashion-MNIST: 70,000 grey images of clothes, 28 x 28, in the format of MNIST; from a folder of IDX files.

Debian and Ubuntu carry it: `apt install dataset-fashion-mnist`. H. Xiao, K. Rasul, R. Vollgraf, 2017,
https://arxiv.org/abs/1708.07747
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from paceline.data import idx
from paceline.data._dataset import Dataset
from paceline.errors import UsageError

DEBIAN = "/usr/share/datasets/fashion-mnist"
NAMES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def load(*, path: str = DEBIAN, validation: float = 10_000) -> Dataset:
    """Load 50,000, 10,000 and 10,000 images to train, validate and test.

    `path`: the folder of the IDX files.
    `validation`: the number of images of the original training set, from its end, to validate with; 0 trains on all 60,000.
    """
    if not Path(path).expanduser().is_dir():
        raise UsageError(
            f"fashion-mnist: no folder {path}; apt install dataset-fashion-mnist, "
            "or write fashion-mnist:path=FOLDER"
        )
    data = idx.load(path=path, validation=validation)
    if data.classes != len(NAMES) or data.shape != (28, 28):
        raise UsageError(
            f"fashion-mnist: {path} holds {data.classes} classes of {data.shape}, not 10 of (28, 28)"
        )
    return dataclasses.replace(data, name="fashion-mnist", class_names=NAMES)
