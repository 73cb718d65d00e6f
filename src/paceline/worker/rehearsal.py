"""What is done before training so that its first step takes no longer than others.

MPI connects two ranks when the first message goes between them, and sets up a collective of its own at the first call:
70 ms on some machines. That is the start of a run, as windows and communicators are, and not its first step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

from paceline.comm.clocks import Stopwatch
from paceline.comm.tracing import Events


@contextmanager
def unrecorded(comm: Any, watch: Stopwatch, events: Events | None) -> Iterator[None]:
    """What ranks do meanwhile is not to be found in a record: no message, no second, no event of a trace.

    Requests must be completed before it ends.

    >>> from paceline.comm.counting import Recorded
    >>> import numpy as np
    >>> class Loopback:
    ...     def Isend(self, buffer, dest, tag=0):
    ...         return "request"
    >>> comm, watch = Recorded(Loopback()), Stopwatch(lambda: 0.0)
    >>> with unrecorded(comm, watch, None):
    ...     _ = comm.Isend(np.zeros(10), dest=1)
    >>> comm.counts.bytes
    0
    """
    counts = getattr(comm, "counts", None)
    before = (copy(counts.point_to_point), copy(counts.collective)) if counts is not None else None
    seconds, mark = dict(watch.seconds), None if events is None else events.mark()
    yield
    if counts is not None and before is not None:
        counts.point_to_point, counts.collective = before
    if events is not None and mark is not None:
        events.forget(mark)
    watch.seconds.update(seconds)
    watch.restart()
