"""A run as a run of MLflow: parameters, metrics with steps and times, tags, and the record's small files."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from paceline.errors import UsageError, reason
from paceline.export import FILES, identity, points, settings, staleness, start_time
from paceline.record import Run

PORTS = {"http": 80, "https": 443}
SECONDS = 5.0


def check_answers(uri: str) -> None:
    """Refuse a web address where no server answers: MLflow itself would retry for minutes. Other places are not checked.

    >>> check_answers("http://localhost:1")
    Traceback (most recent call last):
    paceline.errors.UsageError: cannot write runs to http://localhost:1: no server answers there (connection refused)
    """
    scheme = uri.partition(":")[0].lower()
    if scheme not in PORTS:
        return
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname, parts.port or PORTS[scheme]
    except ValueError as error:
        raise UsageError(f"cannot write runs to {uri}: {str(error).lower()}") from None
    if not host:
        raise UsageError(f"cannot write runs to {uri}: it names no server")
    if scheme in getproxies() and not proxy_bypass(host):
        return  # the proxy may reach what this machine cannot
    try:
        socket.create_connection((host, port), timeout=SECONDS).close()
    except OSError as error:
        raise UsageError(f"cannot write runs to {uri}: no server answers there ({reason(error)})") from None


TAG = "paceline.record"
# The most metrics and parameters that MLflow accepts in one request.
METRICS, PARAMETERS = 1000, 100
# By default MLflow refuses to keep runs in plain files, reports its use to its makers, and retries a silent server for
# minutes.
VARIABLES = {
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}


class Store:
    """An experiment of MLflow, in a folder or on a server."""

    def __init__(self, uri: str, experiment: str) -> None:
        self._uri, self._name = uri, experiment
        self._client: Any = None
        self._experiment = ""

    def add(self, run: Run) -> tuple[str, bool]:
        """Add a run; return MLflow's id, and True if it is new: an earlier export is left as it is."""
        with _settings(), _errors(self._uri):
            if self._client is None:
                self._open()
            own = identity(run)
            for found in self._client.search_runs([self._experiment], f"tags.`{TAG}` = '{own}'"):
                if found.info.status in ("FINISHED", "KILLED"):
                    return str(found.info.run_id), False
                self._client.delete_run(found.info.run_id)  # it was interrupted
            return self._write(run, own), True

    def _open(self) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=self._uri)
        known = self._client.get_experiment_by_name(self._name)
        if known is not None and known.lifecycle_stage != "active":
            raise UsageError(
                f"the experiment {self._name} has been deleted in {self._uri}; give another name"
            )
        self._experiment = (
            self._client.create_experiment(self._name) if known is None else known.experiment_id
        )

    def _write(self, run: Run, own: str) -> str:
        from mlflow.entities import Metric, Param

        client, start = self._client, start_time(run)
        created = client.create_run(
            self._experiment,
            start_time=int(1000 * start),
            run_name=run.folder.resolve().name,
            tags={TAG: own, **_tags(run)},
        )
        number: str = created.info.run_id
        parameters = [Param(name, str(value)) for name, value in settings(run).items()]
        for some in _split(parameters, PARAMETERS):
            client.log_batch(number, params=some)
        metrics = [
            Metric(point.name, point.value, int(1000 * (start + point.seconds)), point.step)
            for point in points(run)
        ]
        end = int(1000 * (start + run.summary["train_seconds"]))
        metrics += [
            Metric("staleness/updates", float(count), end, tau)
            for tau, count in enumerate(staleness(run) or ())
        ]
        for some in _split(metrics, METRICS):
            client.log_batch(number, metrics=some)
        for name in FILES:
            if (run.folder / name).is_file():
                client.log_artifact(number, str(run.folder / name), "record")
        client.set_terminated(number, "FINISHED" if run.cut is None else "KILLED", end_time=end)  # last
        return number


def _tags(run: Run) -> dict[str, str]:
    summary = run.summary
    tags = {
        "mlflow.source.name": "paceline",
        "strategy": run.config["strategy"],
        "ranks": str(run.config["ranks"]),
        "simulated": str(run.simulated is not None).lower(),
        "diverged": summary.get("diverged") or "",
        "cut": run.cut or "",
        "mlflow.note.content": "\n".join(f"* {remark}" for remark in summary.get("remarks", [])),
    }
    return {name: value for name, value in tags.items() if value}


def _split(values: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]


def uri_of(folder: Path | None, uri: str | None) -> str:
    """Return the tracking URI of a folder or of a server.

    >>> uri_of(None, "http://localhost:5000")
    'http://localhost:5000'
    >>> uri_of(None, None)
    Traceback (most recent call last):
    paceline.errors.UsageError: export to mlflow needs a place: give --out DIR or --tracking-uri URI
    """
    if folder is not None and uri is not None:
        raise UsageError(f"--out and --tracking-uri exclude each other; got {folder} and {uri}")
    if folder is None and uri is None:
        raise UsageError("export to mlflow needs a place: give --out DIR or --tracking-uri URI")
    return folder.resolve().as_uri() if folder is not None else str(uri)


@contextmanager
def _settings() -> Iterator[None]:
    """Set MLflow's environment variables while it is used, unless the user has set them."""
    mine = {name: value for name, value in VARIABLES.items() if name not in os.environ}
    os.environ.update(mine)
    try:
        yield
    finally:
        for name in mine:
            os.environ.pop(name, None)


@contextmanager
def _errors(uri: str) -> Iterator[None]:
    """Turn errors of MLflow and of the disk into a message of one line."""
    check_answers(uri)  # before MLflow is imported, which takes seconds
    from mlflow.exceptions import MlflowException

    retries = logging.getLogger("urllib3.connectionpool")
    level = retries.level
    retries.setLevel(logging.ERROR)  # it warns of each failed try; the last one is reported below
    try:
        yield
    except (MlflowException, OSError) as error:
        why = (getattr(error, "strerror", None) or str(error)).splitlines()[0]
        raise UsageError(f"cannot write runs to {uri}: {why}") from error
    finally:
        retries.setLevel(level)
