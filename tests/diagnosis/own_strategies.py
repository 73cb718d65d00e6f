"""Strategies as a user would write them, each with the structure of a built-in one."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.strategies.elastic import Elastic
from paceline.strategies.main_worker import MainWorker
from paceline.strategies.parameter_server import ParameterServer
from paceline.strategies.psgd import Psgd
from paceline.strategies.weight_average import WeightAverage


@dataclass(frozen=True, kw_only=True)
class Springs(Elastic):
    """Elastic averaging under another name."""


@dataclass(frozen=True, kw_only=True)
class Means(WeightAverage):
    """Weight averaging under another name."""


@dataclass(frozen=True, kw_only=True)
class Once(Psgd):
    """One average at the end, under another name."""


@dataclass(frozen=True, kw_only=True)
class Server(ParameterServer):
    """A parameter server under another name."""


@dataclass(frozen=True, kw_only=True)
class Middle(MainWorker):
    """Main and workers under another name."""
