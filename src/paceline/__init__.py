"""Train one neural network on many processes, with any parallel strategy, and find out which one to choose."""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, whose import takes longer than everything else here

__version__ = "0.1.0"

# Public names and their modules: each is imported when it is first used, so that `import paceline` is cheap and starts
# nothing.
_MODULES = {
    "Batch": "data",
    "Config": "config",
    "Dataset": "data",
    "Fitted": "training.rank",
    "GlobalDropout": "models",
    "MLP": "models.mlp",
    "Model": "models",
    "Run": "record",
    "Strategy": "strategies",
    "TorchModel": "models",
    "UsageError": "errors",
    "Worker": "worker",
    "allreduce": "collectives",
    "fit": "fitting",
    "load": "data",
    "load_model": "prediction",
    "predict": "prediction",
    "session": "own_loop",
}
__all__ = ["__version__", *sorted(_MODULES)]

if TYPE_CHECKING:
    from collections.abc import Callable
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


def import_when_used(package: str, modules: dict[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that imports each name from its module when the name is first used."""

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        import importlib
        import sys

        value = getattr(importlib.import_module(f"{package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return find


__getattr__ = import_when_used(__name__, _MODULES)


def __dir__() -> list[str]:
    return __all__
