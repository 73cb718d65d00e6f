"""All of a communicator that is no message between two ranks."""

from __future__ import annotations

from paceline.sim._collectives import Collectives
from paceline.sim._survival import Survival
from paceline.sim._windows import Windows


class Interface(Collectives, Windows, Survival):
    """What `Comm` has beside its messages."""

    __slots__ = ()
