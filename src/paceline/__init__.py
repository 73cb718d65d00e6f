"""Train one neural network on many processes, with any parallel strategy, and find out which one to choose."""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, whose import takes longer than everything else here

__version__ = "0.1.0"

# Public names and where they live: each is imported when it is first used, so that `import paceline` is cheap and
# starts nothing.
_PLACES = {
    "Batch": "paceline.data",
    "Config": "paceline.config",
    "Dataset": "paceline.data",
    "Fitted": "paceline.training.rank",
    "GlobalDropout": "paceline.models",
    "MLP": "paceline.models.mlp",
    "Model": "paceline.models",
    "Run": "paceline.record",
    "Strategy": "paceline.strategies",
    "TorchModel": "paceline.models",
    "UsageError": "paceline.errors",
    "Worker": "paceline.worker",
    "allreduce": "paceline.collectives",
    "fit": "paceline.fitting",
    "load": "paceline.data",
    "load_model": "paceline.prediction",
    "predict": "paceline.prediction",
    "session": "paceline.own_loop",
}
__all__ = ["__version__", *sorted(_PLACES)]

if TYPE_CHECKING:
    from typing import Any

    from paceline.collectives import allreduce as allreduce
    from paceline.config import Config as Config
    from paceline.data import Batch as Batch
    from paceline.data import Dataset as Dataset
    from paceline.data import load as load
    from paceline.errors import UsageError as UsageError
    from paceline.fitting import fit as fit
    from paceline.models import GlobalDropout as GlobalDropout
    from paceline.models import Model as Model
    from paceline.models import TorchModel as TorchModel
    from paceline.models.mlp import MLP as MLP
    from paceline.own_loop import session as session
    from paceline.prediction import load_model as load_model
    from paceline.prediction import predict as predict
    from paceline.record import Run as Run
    from paceline.strategies import Strategy as Strategy
    from paceline.training.rank import Fitted as Fitted
    from paceline.worker import Worker as Worker


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
