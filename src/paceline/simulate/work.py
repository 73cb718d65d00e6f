"""Work that is known by its figures alone: a TOML file with the size of a network and the speed of a device.

    name = "ResNet-50 on a V100"
    batch = 128                      # samples a rank computes in a step
    samples_per_second = 362.4       # of one device, forward, backward and update
    parameters = 25_557_032

Nothing is computed, so that neither the network, nor its data, nor the device is needed. docs/published.md describes every
key, and `benchmarks/published/` has examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from paceline.config import Config
from paceline.data import Batch, Dataset
from paceline.errors import UsageError
from paceline.files import read_toml
from paceline.machine import Costs, Machine, load_network
from paceline.models import Model, Ready
from paceline.simulate.case import Workload
from paceline.simulate.options import Options
from paceline.vectors import unwritten
from paceline.vmpi import Curves, Network

Array = NDArray[Any]
# A network that is given by its number of parameters alone has this many equal layers.
LAYERS = 32
# The forward pass takes about a third of a step: the backward pass computes two products for each one of it.
FORWARD = 1 / 3
# The variation of steps between devices and from step to step: docs/published.md.
JITTER = 0.02
SAMPLES = 1 << 20
DTYPES = {2: np.float16, 4: np.float32, 8: np.float64}
MOST_PARAMETERS = 10**12
MOST_LAYERS = 10_000
LARGEST = 1e300
KEYS = (
    "name", "source", "batch", "samples_per_second", "seconds", "forward_seconds", "backward_seconds", "parameters",
    "layers", "element_bytes", "overlap", "bucket", "accumulation", "jitter", "samples", "update_seconds",
)  # fmt: skip
MOST_BATCH = 10**9
# Seconds of a step, at least and at most.
SHORTEST, LONGEST = 1e-9, 1e9
LAYER_KEYS = ("name", "parameters", "share", "times")


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer: its parameters, and its part of the backward pass relative to the other layers'."""

    parameters: int
    share: float = 1.0
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Work:
    """The figures of a work file, checked.

    >>> work = Work(name="net", batch=32, seconds=0.5, layers=[Layer(parameters=10), Layer(parameters=30, share=3.0)])
    >>> work.parameters, work.samples_per_second, work.strategy
    (40, 64.0, 'sync:allreduce=native')
    """

    name: str
    batch: int
    """Samples that a rank computes in a step."""
    seconds: float
    """Seconds of a step on one device."""
    layers: Sequence[Layer]
    source: str = ""
    other_batches: Mapping[int, float] = field(default_factory=dict)
    """Seconds of a step with other batches than `batch`, if they are known; else they take time in proportion."""
    forward: float = FORWARD
    """The forward pass's part of a pass."""
    accumulation: int = 1
    """Passes over parts of `batch` before gradients are sent."""
    element_bytes: int = 4
    overlap: bool = False
    """True if gradients are sent while the backward pass goes on."""
    bucket: float = 0.0
    """Megabytes that are sent together if the exchange overlaps; 0: as many as the strategy chooses."""
    jitter: float = JITTER
    samples: int = SAMPLES
    update_seconds: float = 0.0
    """Seconds of the update of all parameters, if they are not part of `seconds`."""

    @classmethod
    def load(cls, path: str | Path, *, ranks: int = 1) -> Work:
        """Read a work file; raise a UsageError with its first mistake.

        `ranks`: the most that will compute it. Unless the file says how many samples there are, there is a batch for each.
        """
        return _read(str(path), read_toml(path), Path(path).stem, ranks)

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def samples_per_second(self) -> float:
        """Samples per second of one device."""
        return self.batch / self.seconds

    @property
    def strategy(self) -> str:
        """The strategy to use if none is given: gradients are summed by the network's own collective."""
        if not self.overlap:
            return "sync:allreduce=native"
        return f"sync:allreduce=native,overlap=true{f',bucket={self.bucket:g}' if self.bucket else ''}"

    def unsent(self, samples: int) -> float:
        """Return the part of a step of so many samples that has gone before the first gradient can be sent.

        A step with fewer samples than `batch` has fewer passes, each over as many samples.

        >>> work = Work(name="net", batch=64, seconds=1.0, layers=[Layer(parameters=10)], accumulation=4)
        >>> [round(work.unsent(samples), 3) for samples in (64, 32, 16)]       # 3/4 + 1/12, 1/2 + 1/6, 1/3
        [0.833, 0.667, 0.333]
        """
        passes = max(1, -(-samples * self.accumulation // self.batch))
        return self.forward + (1 - self.forward) * (passes - 1) / passes

    def config(self, **changes: Any) -> Config:
        """Return the settings of a run of this work: every rank computes its own batch, however many there are."""
        if changes.get("batch") is None and changes.get("batch_per_rank") is None:
            changes["batch_per_rank"] = self.batch
        words = {"data": self.name, "model": f"{self.parameters:,} parameters"}
        return Config(**{**changes, **words})

    def data(self) -> Dataset:
        """Return samples without contents."""
        none = NoSamples(self.samples)
        return Dataset(
            name=self.name, shape=(1,), classes=0, train=none, validation=NoSamples(0), test=NoSamples(0)
        )

    def costs(self) -> Costs:
        """Return the costs of a step: a gradient takes time in proportion to its samples, or by the known batches.

        >>> work = Work(name="net", batch=64, seconds=0.7, other_batches={32: 0.4}, layers=[Layer(parameters=10)])
        >>> [round(work.costs().work["gradient"].at(batch, ranks=1), 3) for batch in (16, 32, 48, 128)]
        [0.25, 0.4, 0.55, 1.3]
        """
        known = sorted({**self.other_batches, self.batch: self.seconds}.items())
        if len(known) > 1:
            # Smaller batches than the smallest known: what a step takes without samples, by the first two.
            (a, low), (b, high) = known[:2]
            known = [(0, max(0.0, low - a * (high - low) / (b - a))), *known]
        work = {"gradient": Curves.of({1: known})}
        if self.update_seconds:
            work["update"] = Curves.of({1: [[self.parameters, self.update_seconds]]})
        return Costs(
            processor=self.name, cores=1, about=self.source or self.name, work=work, spread=self.jitter
        )


def work_load(work: Work, options: Options, network: Network | None = None, **settings: Any) -> Workload:
    """Return the workload of a prediction for this work, on the network of the options unless another is given.

    >>> work = Work(name="net", batch=100, seconds=1.0, layers=[Layer(parameters=10**7)], jitter=0.0)
    >>> bench = work_load(work, Options(network="10gbe"))
    >>> point = bench.candidate("sync:allreduce=native", 8)
    >>> round(point.measure(point.scenario, point.length()).samples_per_second)     # 800 less 2 7/8 40 MB / 1.18 GB/s
    753
    """
    if network is None:
        network = load_network(options.network)
        if options.machine is not None:
            network = replace(network, node=Machine.load(options.machine))
    return Workload(
        config=work.config(**settings), data=work.data(), costs=work.costs(), network=network, options=options,
        given=make_model(work),
    )  # fmt: skip


def make_model(work: Work) -> Model:
    """Return a model that has the sizes of a work and computes nothing."""
    return cast(Model, SizeOnly(work))


class NoSamples:
    """A number of samples of one value each, which is never written."""

    shape: tuple[int, ...] = (1,)
    label_shape: tuple[int, ...] = ()
    label_dtype = np.dtype(np.float64)

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def take(self, indices: Array, inputs: Array, labels: Array) -> None:
        """Leave the arrays as they are."""


class SizeOnly:
    """A model that has layers and sizes but computes nothing: the simulator charges its steps to the clock.

    >>> model = SizeOnly(Work(name="net", batch=1, seconds=1.0, layers=[Layer(parameters=3), Layer(parameters=5)]))
    >>> model.x.size, model.layers
    (8, [slice(0, 3, None), slice(3, 8, None)])
    """

    def __init__(self, work: Work) -> None:
        dtype = np.dtype(DTYPES[work.element_bytes])
        self.x: Array = unwritten(work.parameters * dtype.itemsize).view(dtype)
        self.g: Array = unwritten(work.parameters * dtype.itemsize).view(dtype)
        stops = np.cumsum([layer.parameters for layer in work.layers]).tolist()
        self.layers: Sequence[slice] = [slice(a, b) for a, b in zip([0, *stops], stops, strict=False)]
        self.buffers: dict[str, Array] = {}
        self.forward_share = work.unsent
        whole = sum(layer.share for layer in work.layers)
        self.backward_shares = [layer.share / whole for layer in work.layers]

    def place(self, x: Array, g: Array) -> None:
        """Use other memory."""
        self.x, self.g = x, g

    def gradient(self, batch: Batch, ready: Ready | None = None) -> float:
        """Refuse: there is nothing to compute with."""
        raise UsageError("work that is known by its figures alone can be timed, not computed")

    def predict(self, inputs: Array) -> Array:
        """Refuse: there is nothing to compute with."""
        raise UsageError("work that is known by its figures alone can be timed, not computed")

    def evaluate(self, inputs: Array, labels: Array) -> tuple[float, int]:
        """Return the evaluation of no samples."""
        return 0.0, 0


@dataclass
class _Reader:
    """The values of one table, with the words of their mistakes."""

    where: str
    values: dict[str, Any]
    known: Sequence[str]
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in self.values:
            if name not in self.known:
                raise UsageError(f"{self.where}: unknown key {name!r}; choose one of {', '.join(self.known)}")

    def number(
        self, name: str, usual: float | None = None, *, least: float = 0.0, above: bool = True
    ) -> float | None:
        value = self.values.get(name)
        if value is None:
            return usual
        right = isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST
        if not right or value < least or (above and value == least):
            most = f" and below {LARGEST:g}" if isinstance(value, int | float) and value >= LARGEST else ""
            raise UsageError(
                f"{self.where}: {name} must be a number {'above' if above else 'of at least'} {least:g}{most}; "
                f"got {value!r:.40}"
            )
        return float(value)

    def whole(self, name: str, usual: int | None = None, *, most: int = MOST_PARAMETERS) -> int | None:
        value = self.values.get(name)
        if value is None:
            return usual
        if isinstance(value, float) and value.is_integer():  # 25.6e6
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise UsageError(f"{self.where}: {name} must be a whole number from 1 to {most:,}; got {value!r}")
        return value

    def by_batch(self, name: str) -> dict[int, float]:
        """Return the values of a table that has batches as keys."""
        one = _Reader(f"{self.where}: {name}", self.values[name], list(self.values[name]))
        for key in one.values:
            if not (key.isdecimal() and len(key) <= 10 and 1 <= int(key) <= MOST_BATCH):
                raise UsageError(
                    f"{one.where} must be a number, or a table of numbers by batch; got the key {key!r}"
                )
        found = {int(key): one.number(key) or 0.0 for key in one.values}
        if len(found) != len(one.values) or not found:
            raise UsageError(f"{one.where} needs every batch once")
        return found

    def word(self, name: str, usual: str) -> str:
        value = self.values.get(name, usual)
        if not isinstance(value, str) or not value.isprintable() or (not value and usual):
            raise UsageError(f"{self.where}: {name} must be a string of one line; got {value!r}")
        return value

    def flag(self, name: str, usual: bool) -> bool:
        value = self.values.get(name, usual)
        if not isinstance(value, bool):
            raise UsageError(f"{self.where}: {name} must be true or false; got {value!r}")
        return value


def _read(where: str, values: dict[str, Any], stem: str, ranks: int) -> Work:
    told = _Reader(where, values, KEYS)
    batch = told.whole("batch", most=MOST_BATCH)
    if batch is None:
        raise UsageError(f"{where}: batch is missing: the samples that a device computes in a step")
    seconds, forward, others = _seconds(told, batch)
    for size, each in {**others, batch: seconds}.items():
        if not SHORTEST <= each <= LONGEST:
            raise UsageError(
                f"{where}: a step must take from {SHORTEST:g} to {LONGEST:g} seconds; a batch of {size} takes {each:.3g}"
            )
    passes = told.whole("accumulation", 1, most=batch)
    assert passes is not None
    element_bytes = told.whole("element_bytes", 4)
    if element_bytes not in DTYPES:
        raise UsageError(
            f"{where}: element_bytes must be one of {', '.join(map(str, DTYPES))}; got {element_bytes}"
        )
    overlap, bucket = told.flag("overlap", False), told.number("bucket", 0.0)
    if bucket and not overlap:
        raise UsageError(f"{where}: bucket needs overlap = true")
    samples = told.whole("samples", max(SAMPLES, max(256, ranks) * batch), most=1 << 27)
    assert samples is not None
    if samples < batch:
        raise UsageError(f"{where}: samples must be at least a batch of {batch}; got {samples}")
    layers = _layers(told)
    update = told.number("update_seconds", 0.0, above=False)
    jitter = told.number("jitter", JITTER, above=False)
    assert bucket is not None
    assert jitter is not None
    assert update is not None
    if jitter > 1:
        raise UsageError(f"{where}: jitter must be at most 1; got {jitter:g}")
    return Work(
        name=told.word("name", stem), source=told.word("source", ""), batch=batch, seconds=seconds, other_batches=others,
        forward=forward, accumulation=passes, layers=layers, element_bytes=element_bytes, overlap=overlap, bucket=bucket,
        jitter=jitter, samples=samples, update_seconds=update,
    )  # fmt: skip


def _seconds(told: _Reader, batch: int) -> tuple[float, float, dict[int, float]]:
    """Return the seconds of a step, the part of the forward pass, and the seconds of other batches."""
    for name in ("samples_per_second", "seconds"):
        if isinstance(told.values.get(name), dict):
            return _seconds_by_batch(told, name, batch)
    rate, whole = told.number("samples_per_second"), told.number("seconds")
    forward, backward = told.number("forward_seconds"), told.number("backward_seconds")
    _check_once(told)
    if rate is not None:
        return batch / rate, FORWARD, {}
    if whole is not None:
        return whole, FORWARD, {}
    assert forward is not None
    assert backward is not None
    return forward + backward, forward / (forward + backward), {}


def _check_once(told: _Reader) -> None:
    """Refuse a file that gives the speed of a device twice or not at all."""
    forward, backward = "forward_seconds" in told.values, "backward_seconds" in told.values
    if forward != backward:
        raise UsageError(f"{told.where}: give both forward_seconds and backward_seconds, or neither")
    if ("samples_per_second" in told.values) + ("seconds" in told.values) + forward != 1:
        raise UsageError(
            f"{told.where}: give the speed of one device once: samples_per_second, seconds, or forward_seconds and "
            "backward_seconds"
        )


def _seconds_by_batch(told: _Reader, name: str, batch: int) -> tuple[float, float, dict[int, float]]:
    _check_once(told)
    known = told.by_batch(name)
    if name == "samples_per_second":
        known = {size: size / rate for size, rate in known.items()}
    if batch not in known:
        raise UsageError(
            f"{told.where}: {name} must have the batch of {batch}; got {', '.join(map(str, sorted(known)))}"
        )
    sizes = sorted(known)
    for smaller, larger in pairwise(sizes):
        if known[larger] < known[smaller]:
            raise UsageError(
                f"{told.where}: {name}: a batch of {larger} takes less time than one of {smaller}: "
                f"{known[larger]:.3g} s and {known[smaller]:.3g} s"
            )
    seconds = known.pop(batch)
    return seconds, FORWARD, known


def _layers(told: _Reader) -> list[Layer]:
    total, listed = told.whole("parameters"), told.values.get("layers")
    if listed is None:
        if total is None:
            raise UsageError(
                f"{told.where}: parameters is missing: give their number, or [[layers]] with the parameters of each"
            )
        count = min(LAYERS, total)
        return [Layer(parameters=total * (i + 1) // count - total * i // count) for i in range(count)]
    if not isinstance(listed, list) or not listed or not all(isinstance(layer, dict) for layer in listed):
        raise UsageError(f"{told.where}: layers must be tables, [[layers]], with their parameters")
    found = []
    for number, values in enumerate(listed, 1):
        one = _Reader(f"{told.where}: layer {number}", values, LAYER_KEYS)
        own, share = one.whole("parameters"), one.number("share", 1.0)
        times = one.whole("times", 1, most=MOST_LAYERS)
        if own is None:
            raise UsageError(f"{one.where}: parameters is missing")
        assert share is not None
        assert times is not None
        found += times * [Layer(parameters=own, share=share, name=one.word("name", ""))]
    if total is not None and total != (together := sum(layer.parameters for layer in found)):
        raise UsageError(f"{told.where}: the layers have {together} parameters; got parameters = {total}")
    return found
