"""A run as an event file of TensorBoard in a folder of its own, written whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.errors import UsageError, reason
from paceline.export import identity, points, settings, staleness, start_time
from paceline.files import read_json
from paceline.record import Run

MARK = "paceline.json"


def to_tensorboard(run: Run, folder: Path) -> tuple[Path, bool]:
    """Write a run below `folder`; return its place, and True if it is new: an earlier export is left as it is."""
    own = identity(run)
    for name in (run.folder.resolve().name, f"{run.folder.resolve().name}-{own[:8]}"):
        place = folder / name
        if not place.exists():
            break
        if _owner(place) == own:
            return place, False
    else:
        raise UsageError(f"{place} already exists and was not exported from {run.folder}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder, prefix=f".{name}."))
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {reason(error)}") from None
    try:
        _write(run, temporary)
        (temporary / MARK).write_text(json.dumps({"record": own}) + "\n")
        temporary.chmod(0o755)
        os.rename(temporary, place)  # noqa: PTH104 (replaces nothing but an empty folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return place, True


def _owner(place: Path) -> str | None:
    try:
        mark = read_json(place / MARK)
    except UsageError:
        return None
    return mark.get("record") if isinstance(mark, dict) else None


def _write(run: Run, folder: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    start = start_time(run)
    with (folder / f"events.out.tfevents.{int(start)}.paceline").open("wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=start, file_version="brain.Event:2").SerializeToString())
        for seconds, step, value in _values(run):
            event = Event(wall_time=start + seconds, step=step)
            event.summary.value.append(value)
            writer.write(event.SerializeToString())
        writer.flush()


def _values(run: Run) -> Iterator[tuple[float, int, Any]]:
    """Yield the seconds, step and summary value of everything that is exported."""
    import numpy as np
    from tensorboard.plugins.histogram import metadata as histograms
    from tensorboard.plugins.scalar import metadata as scalars

    yield from ((0.0, 0, value) for value in _hparams(run))
    for name, table in (("configuration", settings(run)), ("environment", run.environment)):
        yield 0.0, 0, _text(name, _as_table(table))
    for point in points(run):
        metadata = scalars.create_summary_metadata(display_name="", description="")
        yield point.seconds, point.step, _tensor(point.name, np.float32(point.value), metadata)
    end = run.summary["train_seconds"], run.summary["steps"]
    counts = staleness(run)
    if counts is not None:
        bars = np.array([[tau, tau + 1, count] for tau, count in enumerate(counts)], np.float64)
        metadata = histograms.create_summary_metadata(display_name="", description="updates by staleness")
        yield *end, _tensor("staleness", bars, metadata)
    remarks = run.summary.get("remarks", [])
    if remarks:
        yield *end, _text("remarks", "\n".join(f"* {remark}" for remark in remarks))


def _tensor(name: str, value: Any, metadata: Any) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.util.tensor_util import make_tensor_proto

    return Summary.Value(tag=name, tensor=make_tensor_proto(value), metadata=metadata)


def _text(name: str, words: str) -> Any:
    import numpy as np
    from tensorboard.plugins.text import metadata as texts

    metadata = texts.create_summary_metadata(display_name="", description="")
    return _tensor(name, np.array([words.encode()], dtype=object), metadata)


def _as_table(values: dict[str, Any]) -> str:
    rows = "".join(f"| {name} | {_plain(value)} |\n" for name, value in values.items() if value is not None)
    return f"| | |\n|---|---|\n{rows}"


def _plain(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text.replace("|", "\\|").replace("\n", " ")


def _hparams(run: Run) -> Iterator[Any]:
    """Yield what the HParams page lists of a run: its settings, and that it ended."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    started = plugin_data_pb2.SessionStartInfo(group_name="", start_time_secs=start_time(run))
    for name, value in settings(run).items():
        if isinstance(value, bool):
            started.hparams[name].bool_value = value
        elif isinstance(value, str):
            started.hparams[name].string_value = value
        else:
            started.hparams[name].number_value = value
    took = run.summary["train_seconds"]
    status = api_pb2.STATUS_SUCCESS if run.cut is None else api_pb2.STATUS_FAILURE
    ended = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=start_time(run) + took)
    for tag, data in (
        (metadata.SESSION_START_INFO_TAG, plugin_data_pb2.HParamsPluginData(session_start_info=started)),
        (metadata.SESSION_END_INFO_TAG, plugin_data_pb2.HParamsPluginData(session_end_info=ended)),
    ):
        about = metadata.create_summary_metadata(data)
        yield Summary.Value(tag=tag, metadata=about, tensor=metadata.NULL_TENSOR)
