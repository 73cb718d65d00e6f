"""A run in time: what every rank did when, for Perfetto or chrome://tracing, and as a picture."""

from paceline.trace.chrome import write_trace
from paceline.trace.picture import draw
from paceline.trace.timeline import Timeline, timeline_of

__all__ = ["Timeline", "draw", "timeline_of", "write_trace"]
