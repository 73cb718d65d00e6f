"""A run over time: what every rank did when.

`timeline` reads it from a record and writes it for Perfetto and chrome://tracing; `picture` draws a few steps.
"""

from paceline.trace.picture import draw
from paceline.trace.timeline import Timeline, timeline_of, write_trace

__all__ = ["Timeline", "draw", "timeline_of", "write_trace"]
