"""The interface of models, their state as named arrays, and models from specs, modules and (module, loss) pairs."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from paceline.data import (
    IGNORED,
    Batch,
    Dataset,
    Inputs,
    Several,
    empty_inputs,
    fields_of,
    has_several,
    labels_at,
)
from paceline.errors import UsageError

if TYPE_CHECKING:
    from paceline.models._torch import TorchModel
    from paceline.names import Spec

Array = NDArray[Any]
Ready = Callable[[int], None]
"""Called with the number of a layer, an index into `layers`, when its gradient is final."""


@runtime_checkable
class Model(Protocol):
    """The interface of a network that strategies use.

    `g` is the gradient of the last batch as a SUM over its samples, so that pieces of a batch add up to the whole, however
    unevenly it is divided. The mean is `g / count`. A model may have a `default_rate`: the learning rate to use when the
    user gives none.

    >>> from paceline.data import Batches, load
    >>> from paceline.models.mlp import build
    >>> iris = load("iris")
    >>> model = build(iris, 8)
    >>> isinstance(model, Model), model.x.size, model.layers
    (True, 67, [slice(0, 40, None), slice(40, 67, None)])
    >>> batch = Batches(iris.train, batch=10).at(epoch=0, step=0)
    >>> before = model.gradient(batch)                    # the loss, summed; model.g is its gradient
    >>> model.x -= 0.1 * model.g / batch.count
    >>> model.gradient(batch) < before
    True
    """

    x: Array
    """The parameters, flat."""
    g: Array
    """The gradient of the last batch's summed loss, flat."""
    layers: Sequence[slice]
    """Each layer's part of `x` and `g`."""
    buffers: dict[str, Array]
    """State without a gradient, such as BatchNorm's statistics. Views: writing to them changes the model."""

    def place(self, x: Array, g: Array) -> None:
        """Move parameters and gradient into memory given from outside (a shared window, say), keeping x's values."""
        ...

    def gradient(self, batch: Batch, ready: Ready | None = None) -> float:
        """Fill `g` for this batch; return the loss summed over its samples.

        `ready(i)` is called when `g[layers[i]]` is final: it is complete and does not change before the next call of
        `gradient`, so that it can be sent during the backward pass. It is called once for every layer before `gradient`
        returns, in any order, on the caller's thread. `x` must not change until then. A model that knows no layer's
        gradient before the end may leave out `ready`: see `layer_by_layer`.
        """
        ...

    def predict(self, inputs: Array) -> Array:
        """Return the scores of each sample, one row each; the largest is the predicted class."""
        ...

    def evaluate(self, inputs: Array, labels: Array) -> tuple[float, int]:
        """Return the loss summed over the samples, and how many were classified correctly (0 for regression)."""
        ...


def check_vectors(like: Array, x: Array, g: Array) -> None:
    """Raise a ValueError if `x` and `g`, given to `Model.place`, are not vectors like the parameters `like`."""
    for name, given in (("x", x), ("g", g)):
        if given.shape != like.shape or given.dtype != like.dtype or not given.flags.c_contiguous:
            raise ValueError(
                f"{name} must be a contiguous vector of {like.size} {like.dtype}; "
                f"got {given.dtype} of shape {given.shape}, strides {given.strides}"
            )
        if not given.flags.writeable:
            raise ValueError(f"{name} must be writeable")


class Tally(NamedTuple):
    """The result of an evaluation of some samples: sums, which may be added."""

    loss: float
    weight: float
    """The sum of the samples' weights, by which the loss is divided for its mean."""
    right: int
    answers: int
    """The number of answers, of which `right` were right: classes of samples, words or pixels. 0 for regression."""


def tally(model: Model, inputs: Inputs, labels: Array) -> Tally:
    """Evaluate a model; one without a method `tally` of its own counts every sample once.

    >>> from paceline.models.mlp import MLP
    >>> tally(MLP([2, 3, 4]), np.ones((5, 2)), np.zeros(5, int)).answers
    5
    """
    own = getattr(model, "tally", None)
    if own is not None:
        return own(inputs, labels)  # type: ignore[no-any-return]
    loss, right = model.evaluate(inputs, labels)
    return Tally(loss, len(labels), right, 0 if labels.dtype.kind == "f" else len(labels))


def can_run_at_once(model: Model) -> bool:
    """Return True if copies of a model may compute at the same time, each on a thread of its own.

    A model says so with an attribute `runs_at_once`: its copies share nothing that a pass changes, and draw no numbers
    from a generator that they have in common.

    >>> from paceline.models.mlp import MLP
    >>> can_run_at_once(MLP([2, 3, 1]))
    True
    """
    return bool(getattr(model, "runs_at_once", False))


def at_once(models: Sequence[Model]) -> AbstractContextManager[None]:
    """Return a context in which these copies of one model may compute at the same time."""
    own = getattr(type(models[0]), "at_once", None)
    return nullcontext() if own is None else own(models)


def can_run_apart(model: Model) -> bool:
    """Return True if a copy of a model in another process may compute its passes: `leave_trace` says what they change.

    A class that inherits from one of which this is known may do more.

    >>> from paceline.models.mlp import MLP
    >>> can_run_apart(MLP([2, 3, 1])), can_run_apart(type("Own", (MLP,), {})([2, 3, 1]))
    (True, False)
    """
    return "trace" in vars(type(model))


def leave_trace(model: Model, *, seeded: bool = True) -> tuple[Any, Any]:
    """Return everything that passes could change besides parameters, gradient and buffers, to be compared with `==`.

    The first part can be compared between copies of a model. `seeded`: for a gradient, which seeds PyTorch's generator,
    so that it may draw numbers from it; an evaluation may not.
    """
    found: tuple[Any, Any] = model.trace(seeded=seeded)  # type: ignore[attr-defined]
    return found


# Labels that are weighed at once.
AT_ONCE = 1000


def sample_weights(model: Model, data: Dataset) -> Array | None:
    """Return the weight of each training sample in means over batches; None if all of them count alike.

    A model that weighs samples has a method `weigh(labels)` and multiplies losses and gradients by `batch.weight`.
    """
    weigh, split = getattr(model, "weigh", None), data.train
    if weigh is None or np.issubdtype(split.label_dtype, np.floating):
        return None
    if not split.label_shape and data.ignored is None and not getattr(model, "weighs_samples", True):
        return None  # reading the labels of pictures may be slow
    weights = np.ones(len(split))
    for start in range(0, len(split), AT_ONCE):
        stop = min(start + AT_ONCE, len(split))
        weights[start:stop] = weigh(labels_at(split, np.arange(start, stop)))
    return None if (weights == 1).all() else weights


def layer_by_layer(model: Model) -> Callable[[Batch, Ready], float]:
    """Return `gradient(batch, ready)` for any model, even if its own `gradient` does not take `ready`.

    Layers that the model has not reported are ready when its gradient is. The gradient of an empty batch is 0.

    >>> import numpy as np
    >>> from paceline.models.mlp import MLP
    >>> net, done = MLP([2, 3, 1], regression=True, dtype=np.float64), []
    >>> loss = layer_by_layer(net)(Batch(np.ones((4, 2)), np.zeros(4), 4, 4, 0, 0, 0), done.append)
    >>> done
    [1, 0]
    """
    takes_ready = _takes_ready(model.gradient)

    def gradient(batch: Batch, ready: Ready) -> float:
        waiting = set(range(len(model.layers)))

        def once(layer: int) -> None:
            if layer not in waiting:
                raise ValueError(
                    f"each of the {len(model.layers)} layers must be ready once per pass; "
                    f"{type(model).__name__} reported {layer}, still expected are {sorted(waiting)}"
                )
            waiting.remove(layer)
            ready(layer)

        loss = 0.0
        if not batch.count and not (batch.total and getattr(model, "takes_empty", False)):
            model.g.fill(0)
        elif takes_ready:
            loss = model.gradient(batch, ready=once)
        else:
            loss = model.gradient(batch)
        for layer in sorted(waiting):
            ready(layer)
        return loss

    return gradient


def _takes_ready(gradient: Callable[..., Any] | None) -> bool:
    """Return True if a function takes `ready`, or passes all arguments on to one that does."""
    while gradient is not None:
        try:
            takes = inspect.signature(gradient, follow_wrapped=False).parameters
        except (TypeError, ValueError):  # not written in Python
            return False
        if "ready" in takes:
            return takes["ready"].kind is not inspect.Parameter.POSITIONAL_ONLY
        if all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in takes.values()):
            return False
        gradient = getattr(gradient, "__wrapped__", None)
    return False


class PartGradient(Protocol):
    """The gradient of one part of the parameters, summed over all samples of a batch, from their factors."""

    @property
    def part(self) -> slice:
        """The part of x; it may be empty."""
        ...

    def __call__(self) -> Array:
        """Return the sum, in private memory that the caller may overwrite."""
        ...


@runtime_checkable
class FactoredModel(Model, Protocol):
    """A model whose gradient is a sum of products of short factors, which ranks can exchange instead of the gradient.

    Every rank calls `share_factors` with the same memory. Then `gradient(batch)` writes the factors of the rank's piece of
    a batch there, and leaves `g` alone. When all ranks have done so, each can compute the summed gradient of a part.
    """

    def factor_bytes(self, batch: int) -> int:
        """Return the bytes that the factors of `batch` samples take."""
        ...

    def share_factors(self, memory: Array, batch: int, rank: int, ranks: int) -> PartGradient:
        """Write factors to `memory` until the next `place`; return the gradient of the rank-th of `ranks` parts of x.

        `memory`: `factor_bytes(batch)` bytes (uint8). The parts are slices of x, in order, of about the same length.
        No batch may have more than `batch` samples.
        """
        ...


# The state of a model as named arrays, as files hold it.

BUFFER = "buffer."
FLOATING: dict[str, type[np.float64 | np.complex128]] = {"f": np.float64, "c": np.complex128}


def state_of(model: Model) -> dict[str, Array]:
    """Return copies of the parameters, as `x`, and of every buffer.

    >>> from paceline.models.mlp import MLP
    >>> list(state_of(MLP([2, 3, 1], standardise=True)))
    ['x', 'buffer.mean', 'buffer.std']
    """
    return {"x": np.array(model.x)} | {
        BUFFER + name: np.array(value) for name, value in model.buffers.items()
    }


def put_state(model: Model, state: Mapping[str, Array]) -> None:
    """Copy a state returned by `state_of` into a model of the same shape."""
    model.x[...] = state["x"]
    for name, buffer in model.buffers.items():
        buffer[...] = state[BUFFER + name]
    model.place(model.x, model.g)  # parameters that are not views of x are updated


def flat_buffers(model: Model) -> Array:
    """Return a copy of all buffers (BatchNorm's statistics) as one float64 vector.

    The real and complex numbers come first, then the bytes of all others, such as counters.

    >>> from paceline.models.mlp import MLP
    >>> net = MLP([2, 3, 1], standardise=True)
    >>> flat_buffers(net)
    array([0., 0., 1., 1.])
    >>> put_flat_buffers(net, np.array([0.5, 1.5, 2.0, 4.0]))
    >>> net.buffers["std"]
    array([2., 4.], dtype=float32)
    """
    floating, others = _kinds_of_buffers(model)
    parts = [
        np.empty(0),
        *(each.astype(FLOATING[each.dtype.kind]).ravel().view(np.float64) for each in floating),
    ]
    content = b"".join(each.tobytes() for each in others)
    return np.concatenate([*parts, np.frombuffer(content + bytes(-len(content) % 8))])


def put_flat_buffers(model: Model, values: Array) -> None:
    """Copy a vector returned by `flat_buffers`, or the mean of several, into the buffers of a model of the same shape.

    Integers are those of the first vector: a mean of counters has no meaning.
    """
    floating, others = _kinds_of_buffers(model)
    rows = np.atleast_2d(values)
    count = sum(each.size * (2 if each.dtype.kind == "c" else 1) for each in floating)
    room = -(-sum(each.nbytes for each in others) // 8)
    if values.ndim not in (1, 2) or not len(rows) or rows.shape[1] != count + room:
        raise ValueError(f"the model's buffers hold {count + room} numbers; got the shape {values.shape}")
    content = np.array(rows[0, count:], np.float64).tobytes()
    means = rows[:, :count].mean(axis=0, dtype=np.float64)
    start = 0
    for buffer in floating:
        kind = FLOATING[buffer.dtype.kind]
        part = means[start : start + buffer.size * np.dtype(kind).itemsize // 8]
        buffer[...] = part.view(kind).reshape(buffer.shape)
        start += part.size
    start = 0
    for buffer in others:
        buffer[...] = np.frombuffer(content, buffer.dtype, buffer.size, start).reshape(buffer.shape)
        start += buffer.nbytes


def _kinds_of_buffers(model: Model) -> tuple[list[Array], list[Array]]:
    """Return the buffers of real and complex numbers, and all others."""
    every = model.buffers.values()
    return (
        [each for each in every if each.dtype.kind in FLOATING],
        [each for each in every if each.dtype.kind not in FLOATING],
    )


# ---- models from specs, modules, and pairs of module and loss


def make(spec: Spec, data: Dataset, *, seed: int = 0, dtype: Any = "float32") -> Model:
    """Create the model of a spec. A user's own function draws its initial weights from the seed too.

    >>> from paceline.data import load
    >>> from paceline.names import parse
    >>> make(parse("models", "mlp:8"), load("iris"), seed=1).x.size
    67
    """
    dtype = np.dtype(dtype)

    def make_once() -> Model:
        supplied = {"data": data, "seed": seed, "dtype": dtype}
        if _is_module(spec.target):  # its own `dtype` is torch's; `as_model` converts the module
            del supplied["dtype"]
        return as_model(spec.make(**supplied), data, seed=seed, dtype=dtype)

    if spec.target.__module__.startswith("paceline.models."):
        return make_once()
    if "torch" not in sys.modules:
        model = make_once()
        if "torch" not in sys.modules:
            return model
        # The function itself imported torch and drew weights before torch could be seeded, so call it again.
    torch = sys.modules["torch"]
    with torch.random.fork_rng(devices=[]):  # leaves the user's generator unchanged
        torch.default_generator.manual_seed(seed)
        return make_once()


def count_parameters(spec: Spec, data: Dataset) -> int | None:
    """Return the number of parameters of the model of a spec without building it; None if only building it tells.

    >>> from paceline.data import load
    >>> from paceline.names import parse
    >>> count_parameters(parse("models", "mlp:100000,100000"), load("iris"))
    10000900003
    """
    count = getattr(sys.modules.get(spec.target.__module__), "count_parameters", None)
    return None if count is None else int(count(data, *spec.arguments, **spec.options))


# Built-in models whose default learning rate is known before they are built.
RATE_KNOWN = ("mlp", "cnn")


def find_default_rate(spec: Spec, classes: int) -> float:
    """Return the default learning rate of the built-in model of a spec, without building it; 0 classes: values.

    >>> from paceline.names import parse
    >>> find_default_rate(parse("models", "mlp:8"), classes=3)
    2.0
    """
    rate = getattr(sys.modules.get(spec.target.__module__), "default_rate", None)
    return 0.1 if rate is None else float(rate(classes, *spec.arguments, **spec.options))


def knows_default_rate(model: str) -> bool:
    """Return True for a model whose default learning rate is known before it is built.

    >>> knows_default_rate("mlp:8"), knows_default_rate("my_module:build")
    (True, False)
    """
    return model.partition(":")[0] in RATE_KNOWN


def check_data(spec: Spec, data: Dataset) -> None:
    """Raise a UsageError if the model of a spec says, without being built, that it does not suit the data.

    >>> from paceline.data import load
    >>> from paceline.names import parse
    >>> check_data(parse("models", "cnn"), load("digits"))
    Traceback (most recent call last):
    paceline.errors.UsageError: cnn needs images of at least 20x20; digits has 8x8
    """
    check = getattr(sys.modules.get(spec.target.__module__), "check_data", None)
    if check is not None:
        check(data)


def _is_module(target: Any) -> bool:
    """Return True for a class of torch.nn.Module, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(target, type) and issubclass(target, torch.nn.Module)


def as_model(thing: Any, data: Dataset, *, seed: int = 0, dtype: Any = None) -> Model:
    """Return `thing` as a model for `data`; a module or a pair (module, loss) is wrapped.

    A module keeps the dtype of its parameters, but `dtype=float64` makes it float64. PyTorch is not imported unless
    `thing` needs it.
    """
    torch = sys.modules.get("torch")  # imported already by whoever created a module
    module, loss = thing if isinstance(thing, tuple) and len(thing) == 2 else (thing, None)
    if torch is not None and isinstance(module, torch.nn.Module):
        if dtype is not None and np.dtype(dtype) == np.float64:
            for part in (module, loss):
                if isinstance(part, torch.nn.Module):
                    part.double()
        return _wrap(module, loss, data, seed)
    if isinstance(thing, Model) and not isinstance(thing, type):
        return thing
    raise UsageError(
        f"a model must be a paceline model, a torch.nn.Module or a pair (module, loss); got {_describe(thing)}"
    )


def _wrap(module: Any, loss: Any, data: Dataset, seed: int) -> TorchModel:
    """Wrap a module; one that cannot take images of height x width is given 1 x height x width.

    Whole numbers are given as such to a module that has an embedding or cannot take floats.
    """
    import torch
    from torch import nn

    from paceline.models._torch import TorchModel

    several = has_several(data.train)
    sample = zero_inputs(data, 2, keeps=(lambda stored: False) if several else None)
    image = (1, *data.shape) if len(data.shape) == 2 else None
    lazy = image is not None and any(isinstance(part, nn.LazyConv2d) for part in module.modules())
    ignored = IGNORED if data.ignored is None else data.ignored
    model = TorchModel(
        module, loss=loss, seed=seed, sample=sample, input_shape=image if lazy else None, ignore_index=ignored
    )
    dtypes = [model.input_dtype]
    if not several and fields_of(data.train)[0].dtype.kind in "iu" and dtypes != [torch.int64]:
        embeds = any(isinstance(part, (nn.Embedding, nn.EmbeddingBag)) for part in module.modules())
        dtypes = [torch.int64, *dtypes] if embeds else [*dtypes, torch.int64]
    shapes = [model.input_shape] if lazy or image is None else [None, image]
    problems = []
    for dtype, shape in product(dtypes, shapes):
        model.input_dtype, model.input_shape = dtype, shape
        problem = _problem(model, sample, data)
        if not problem:
            break
        problems.append(problem)
    else:
        raise UsageError(problems[0])
    if data.ignored is not None and (problem := model.find_ignored_problem(data.ignored)):
        raise UsageError(f"{data.name}: {problem}")
    return model


def zero_inputs(data: Dataset, count: int, keeps: Any = None) -> Inputs:
    """Return the inputs of `count` samples, all zero."""
    inputs = empty_inputs(data.train, count, np.float32, keeps)
    for array in inputs.arrays if isinstance(inputs, Several) else [inputs]:
        array[...] = 0
    return inputs


def _problem(model: TorchModel, sample: Any, data: Dataset) -> str:
    """Describe the problem of the module with such samples and labels; "" if there is none."""
    fields = fields_of(data.train)
    names = [f"{field.name} " if field.name else "" for field in fields]
    sizes = ["x".join(map(str, field.shape)) or "one number" for field in fields]
    shape = ", ".join(name + size for name, size in zip(names, sizes, strict=True))
    try:
        return model.find_problem(sample, data.label_shape, data.classes, data.name, shape)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        return f"the module cannot take {data.name}'s samples of {shape}: {str(error).splitlines()[0]}"


def _describe(thing: Any) -> str:
    if isinstance(thing, type):
        return f"the class {thing.__name__} (call it)"
    if isinstance(thing, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in thing)}"
    return type(thing).__name__
