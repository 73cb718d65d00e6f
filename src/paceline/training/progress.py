"""How far a run is: a bar on a terminal, a line an epoch elsewhere, nothing when quiet."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from typing import Protocol, TextIO

from paceline.worker.evaluation import Epoch


class Progress(Protocol):
    """Told of every step and epoch, on rank 0."""

    def step(self, step: int, loss: float) -> None:
        """A step has ended, with this mean loss over this rank's samples."""

    def epoch(self, epoch: Epoch) -> None:
        """An epoch has ended."""

    def close(self) -> None:
        """The run has ended."""


class Lines:
    """One line an epoch, for logs; `steps` and `samples` are those of the whole run.

    >>> import sys
    >>> lines = Lines(sys.stdout, epochs=5, steps=3160, samples=50_560, clock=lambda: 10.0)
    >>> lines.epoch(Epoch(epoch=0, step=632, loss=0.25, validation_loss=0.2, validation_accuracy=0.91,
    ...                   train_seconds=1.0))
    epoch 1/5  loss 0.2500  validation 91.00 %  10,112 samples/s  0:04 left
    """

    def __init__(
        self, stream: TextIO, *, epochs: int, steps: int, samples: int,
        clock: Callable[[], float] = time.monotonic, simulated: bool = False,
    ) -> None:  # fmt: skip
        self.stream = stream
        self.epochs = epochs
        self.steps = steps
        self.samples = samples
        self.clock = clock
        self.simulated = simulated
        self._start = clock()

    def step(self, step: int, loss: float) -> None:
        """Nothing: a log has a line an epoch."""

    def epoch(self, epoch: Epoch) -> None:
        """Write the epoch's line."""
        words = [f"epoch {epoch.epoch + 1}/{self.epochs}"]
        if epoch.loss is not None:
            words.append(f"loss {epoch.loss:.4f}")
        if epoch.validation_accuracy is not None:
            words.append(f"validation {epoch.validation_accuracy:.2%}".replace("%", " %"))
        elif epoch.validation_loss is not None:
            words.append(f"validation loss {epoch.validation_loss:.4f}")
        if epoch.train_seconds > 0:
            # An epoch's last batch may be smaller than the others: its share of all samples is exact.
            words.append(f"{self.samples * epoch.step / self.steps / epoch.train_seconds:,.0f} samples/s")
            if self.simulated:
                words[-1:] = [f"{epoch.train_seconds:.3g} s simulated", words[-1]]
            taken = self.clock() - self._start if self.simulated else epoch.train_seconds
            words.append(f"{clock_time(taken * (self.steps - epoch.step) / epoch.step)} left")
        self.stream.write("  ".join(words) + "\n")
        self.stream.flush()

    def close(self) -> None:
        """Nothing is open."""


class Bar(Lines):
    """A bar on the terminal's last line, redrawn at most ten times a second, above it a line an epoch."""

    def __init__(
        self, stream: TextIO, *, epochs: int, steps: int, samples: int, width: int,
        clock: Callable[[], float] = time.monotonic, simulated: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            stream, epochs=epochs, steps=steps, samples=samples, clock=clock, simulated=simulated
        )
        self.width = width
        self._drawn = self._start

    def step(self, step: int, loss: float) -> None:
        """Redraw the bar, if it is time."""
        now = self.clock()
        if now - self._drawn < 0.1:
            return
        self._drawn = now
        done = step + 1
        left = (now - self._start) * (self.steps - done) / done
        rate = self.samples * done / self.steps / (now - self._start)
        epoch = min(done * self.epochs // max(self.steps, 1) + 1, self.epochs)
        before = f"epoch {epoch}/{self.epochs} "
        said = "" if math.isnan(loss) and self.simulated else f"  loss {loss:.4f}"
        said += "" if self.simulated else f"  {rate:,.0f} samples/s"
        after = f" {done}/{self.steps}{said}  {clock_time(left)} left"
        room = max(self.width - len(before) - len(after) - 3, 0)
        full = room * done // self.steps
        bar = f"[{'#' * full}{'.' * (room - full)}]" if room >= 5 else ""
        self.stream.write("\r" + (before + bar + after)[: self.width - 1].ljust(self.width - 1))
        self.stream.flush()

    def epoch(self, epoch: Epoch) -> None:
        """Put the epoch's line in the place of the bar."""
        self._wipe()
        super().epoch(epoch)

    def close(self) -> None:
        """Leave a clean line."""
        self._wipe()

    def _wipe(self) -> None:
        self.stream.write("\r" + " " * (self.width - 1) + "\r")
        self.stream.flush()


def clock_time(seconds: float) -> str:
    """Seconds as a clock shows them.

    >>> clock_time(65.2), clock_time(3600)
    ('1:05', '1:00:00')
    """
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole:02}" if hours else f"{minutes}:{whole:02}"


def on(
    stream: TextIO, *, width: int | None = None, simulated: bool = False
) -> Callable[[int, int, int], Progress]:
    """What shows progress on a stream: a bar where it is a terminal (or `width` says that one is behind it).

    `simulated`: the seconds of an epoch are virtual; what is left is told by the real clock.
    """

    def start(epochs: int, steps: int, samples: int) -> Progress:
        columns = shutil.get_terminal_size().columns if width is None and stream.isatty() else width
        if columns:
            return Bar(
                stream, epochs=epochs, steps=steps, samples=samples, width=columns, simulated=simulated
            )
        return Lines(stream, epochs=epochs, steps=steps, samples=samples, simulated=simulated)

    return start
