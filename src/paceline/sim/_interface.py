"""All of a communicator that is no message between two ranks."""

from __future__ import annotations

from paceline.sim._collectives import Collectives
from paceline.sim._communicators import Communicators
from paceline.sim._objects import Objects
from paceline.sim._persistent import Repeated
from paceline.sim._survival import Survival
from paceline.sim._windows import Windows


class Interface(Collectives, Objects, Repeated, Windows, Communicators, Survival):
    """What `Comm` has beside its messages."""

    __slots__ = ()
