"""Errors in what the user asked for, and the end of a run that was asked to stop."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from signal import Signals


class UsageError(ValueError):
    """Bad input, found before anything is started; the command line prints it as one line and exits with 2.

    >>> raise UsageError("epochs must be at least 0; got -1")
    Traceback (most recent call last):
    paceline.errors.UsageError: epochs must be at least 0; got -1
    """


class UntrustedError(UsageError):
    """Code that a file names, and that the user has not allowed to run."""


class AgreedError(UsageError):
    """Bad input that every rank of a job knows about and raises, so that each can end by itself."""


class StoppedError(Exception):
    """The end of a run before its time, because a signal asked for it; raised on every rank, between two steps.

    >>> StoppedError(15).signal
    15
    """

    def __init__(self, signal: int, *, saved: bool = False) -> None:
        super().__init__(f"stopped by {Signals(signal).name}")
        self.signal = signal
        self.saved = saved
        """True if a checkpoint was saved at this moment."""
        self.run: Path | None = None
        """The run's folder, if it has one."""

    def __str__(self) -> str:
        how = (
            f"; continue with: paceline resume {shlex.quote(str(self.run))}"
            if self.saved
            else "; nothing was saved"
        )
        return f"stopped by {Signals(self.signal).name}{how}"


def unknown(what: str, name: str, choices: Iterable[str]) -> UsageError:
    """Return the error for a name that is not one of `choices`.

    >>> unknown("collective", "rng", ["naive", "ring"])
    UsageError("unknown collective 'rng'; choose one of naive, ring")
    """
    return UsageError(f"unknown {what} {name!r}; choose one of {', '.join(choices)}")


def reason(error: OSError) -> str:
    """Return an error of the operating system in words.

    >>> reason(OSError(28, "No space left on device"))
    'no space left on device'
    """
    return (error.strerror or str(error)).lower()


def split_list(text: str, what: str) -> list[str]:
    """Split a list at its commas; an empty text is an empty list, an empty element an error.

    >>> split_list("128,64", "mlp:128,64")
    ['128', '64']
    >>> split_list("128,,64", "mlp:128,,64")
    Traceback (most recent call last):
    paceline.errors.UsageError: mlp:128,,64 has a comma with nothing before or after it
    """
    words = text.split(",") if text else []
    if not all(word.strip() for word in words):
        raise UsageError(f"{what} has a comma with nothing before or after it")
    return words
