"""`load`: a data set from a name, a path, or what Python holds."""

from __future__ import annotations

from typing import Any

from paceline.data._dataset import Dataset
from paceline.spec import parse


def load(what: Any) -> Dataset:
    """The data set that a name, a path or an object stands for."""
    if isinstance(what, Dataset):
        return what
    return parse("data", what).make()  # type: ignore[no-any-return]
