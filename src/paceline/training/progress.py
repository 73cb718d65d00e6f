"""The progress of a run: a bar on a terminal, one line per epoch elsewhere, nothing when quiet."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Protocol, TextIO

from paceline import text
from paceline.record import Epoch
from paceline.text import clock_time


class Progress(Protocol):
    """An observer of a run's steps and epochs, on rank 0."""

    def step(self, step: int, loss: float) -> None:
        """Handle the end of a step, with the mean loss over this rank's samples."""

    def epoch(self, epoch: Epoch) -> None:
        """Handle the end of an epoch."""

    def close(self) -> None:
        """Handle the end of the run."""


class EpochLines:
    """One line per epoch, for logs; `steps` and `samples` are those of the whole run.

    >>> import sys
    >>> lines = EpochLines(sys.stdout, epochs=5, steps=3160, samples=50_560, clock=lambda: 10.0)
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
        """Do nothing: a log has one line per epoch, not per step."""

    def epoch(self, epoch: Epoch) -> None:
        """Write the epoch's line."""
        words = [f"epoch {epoch.epoch + 1}/{self.epochs}"]
        if epoch.loss is not None:
            words.append(f"loss {epoch.loss:.4f}")
        if epoch.validation_accuracy is not None:
            words.append(f"validation {text.percent(epoch.validation_accuracy)}")
        elif epoch.validation_loss is not None:
            words.append(f"validation loss {epoch.validation_loss:.4f}")
        shown = {"accuracy"} if epoch.validation_accuracy is not None else {"loss"}
        words += [f"{name} {value:.4g}" for name, value in epoch.metrics.items() if name not in shown]
        if epoch.train_seconds > 0:
            # The last batch of an epoch may be smaller than the others, so count samples by their share of all.
            words.append(f"{self.samples * epoch.step / self.steps / epoch.train_seconds:,.0f} samples/s")
            if self.simulated:
                words[-1:] = [f"{epoch.train_seconds:.3g} s simulated", words[-1]]
            taken = self.clock() - self._start if self.simulated else epoch.train_seconds
            words.append(f"{clock_time(taken * (self.steps - epoch.step) / epoch.step)} left")
        self._write("  ".join(words))

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _write(self, line: str) -> None:
        try:
            self.stream.write(line + "\n")
            self.stream.flush()
        except BrokenPipeError:  # nobody reads it any more
            raise
        except OSError:  # the disk of a log is full: training continues
            pass


class EpochBar(EpochLines):
    """A bar on the terminal's last line, and one line per epoch above it."""

    def __init__(
        self, stream: TextIO, *, epochs: int, steps: int, samples: int, width: int | None = None,
        clock: Callable[[], float] = time.monotonic, simulated: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            stream, epochs=epochs, steps=steps, samples=samples, clock=clock, simulated=simulated
        )
        self._bar = text.ProgressBar(stream, width=width, clock=clock)
        self._bar.draw(0, steps, before=f"epoch 1/{epochs}")  # now, because the first time takes long

    def step(self, step: int, loss: float) -> None:
        """Redraw the bar if it is due."""
        if not self._bar.is_due():
            return
        done, taken = step + 1, max(self.clock() - self._start, 1e-9)
        epoch = min(done * self.epochs // max(self.steps, 1) + 1, self.epochs)
        words = [f"{done}/{self.steps}"]
        if not (math.isnan(loss) and self.simulated):
            words.append(f"loss {loss:.4f}")
        if not self.simulated:
            words.append(f"{self.samples * done / self.steps / taken:,.0f} samples/s")
        words.append(f"{clock_time(taken * (self.steps - done) / done)} left")
        self._bar.draw(done, self.steps, before=f"epoch {epoch}/{self.epochs}", after="  ".join(words))

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()

    def _write(self, line: str) -> None:
        self._bar.write(line)


def make_display(
    stream: TextIO, *, width: int | None = None, simulated: bool = False
) -> Callable[[int, int, int], Progress]:
    """Return a function that creates the progress display of a run on a stream: `show(epochs, steps, samples)`.

    It is a bar if the stream is a terminal, or if `width` is given, because it is forwarded to one. With `simulated`,
    the seconds of an epoch are virtual and the time left is estimated by the real clock.
    """

    def start(epochs: int, steps: int, samples: int) -> Progress:
        if width or stream.isatty():
            return EpochBar(
                stream, epochs=epochs, steps=steps, samples=samples, width=width, simulated=simulated
            )
        return EpochLines(stream, epochs=epochs, steps=steps, samples=samples, simulated=simulated)

    return start
