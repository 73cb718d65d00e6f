"""Models: two flat vectors, parameters and gradient, of which every layer's arrays are views.

| module | contents |
|---|---|
| `_model` | `Model`, the interface that strategies use; `make` and `as_model` create one from a spec, a module or a pair |
| `mlp` | `mlp:128,64`: the fully connected network in NumPy, its passes, and the factors of its gradient |
| `cnn` | `cnn`: the reference convolutional network in PyTorch |
| `_torch` | `TorchModel`: any `torch.nn.Module` as a model; `GlobalDropout`, and the module of `cnn` |

`TorchModel` and `GlobalDropout` need PyTorch, which is imported when one of them is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline import import_when_used
from paceline.models._model import (
    BUFFER,
    Array,
    FactoredModel,
    Model,
    PartGradient,
    Ready,
    Tally,
    as_model,
    at_once,
    can_run_apart,
    can_run_at_once,
    check_data,
    count_parameters,
    find_default_rate,
    flat_buffers,
    knows_default_rate,
    layer_by_layer,
    leave_trace,
    make,
    put_flat_buffers,
    put_state,
    sample_weights,
    state_of,
    tally,
)

if TYPE_CHECKING:
    from paceline.models._torch import GlobalDropout, TorchModel

__all__ = [
    "BUFFER",
    "Array",
    "FactoredModel",
    "GlobalDropout",
    "Model",
    "PartGradient",
    "Ready",
    "Tally",
    "TorchModel",
    "as_model",
    "at_once",
    "can_run_apart",
    "can_run_at_once",
    "check_data",
    "count_parameters",
    "find_default_rate",
    "flat_buffers",
    "knows_default_rate",
    "layer_by_layer",
    "leave_trace",
    "make",
    "put_flat_buffers",
    "put_state",
    "sample_weights",
    "state_of",
    "tally",
]

__getattr__ = import_when_used(__name__, {"TorchModel": "_torch", "GlobalDropout": "_torch"})
