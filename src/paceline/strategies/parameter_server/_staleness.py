"""How stale the gradients were: what the masters noted down, gathered and summed up."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline import names as spec
from paceline.errors import UsageError
from paceline.strategies._ages import summed_up
from paceline.strategies.parameter_server._owned import APPLIED, DROPPED, EVENTS
from paceline.strategies.parameter_server.rules import Rule

if TYPE_CHECKING:
    from paceline.strategies.parameter_server._master import Master
    from paceline.strategies.parameter_server._placement import Piece
    from paceline.worker import Worker

Array = NDArray[Any]
KINDS = {"event": np.uint8, "piece": np.uint32, "worker": np.int32, "step": np.int64, "tau": np.uint32}


def rule_of(text: str) -> Rule:
    """A rule from its words, its options separated by slashes.

    >>> rule_of("clip:norm=2")
    Clip(norm=2.0)
    """
    rule = spec.parse("rules", text.replace("/", ",") if ":" in text else text).make()
    if isinstance(rule, type) or not isinstance(rule, Rule):
        raise UsageError(
            f"{text} is no rule: it makes a {type(rule).__name__} without start, correct and show"
        )
    return rule


def told(me: Worker, pieces: list[Piece], master: Master | None) -> None:
    """Gather what every master noted, record it, and sum it up in words. Collective."""
    rows = np.array(master.log if master is not None else []).reshape(-1, len(EVENTS))
    everything = me.control.gather(rows)
    if me.rank != 0:
        return
    table = np.concatenate(everything)
    columns = {name: table[:, i].astype(KINDS.get(name, np.float32)) for i, name in enumerate(EVENTS)}
    columns["master"] = np.repeat(
        np.arange(len(everything), dtype=np.uint32), [len(rows) for rows in everything]
    )
    me.tables["updates"] = columns
    applied, dropped = columns["event"] == APPLIED, columns["event"] == DROPPED
    tau = columns["tau"][applied]
    me.findings["gradients_applied"] = round(int(applied.sum()) / len(pieces))
    me.findings["gradients_dropped"] = round(int(dropped.sum()) / len(pieces))
    me.findings["order"] = digest(columns)
    me.findings["staleness"] = {
        **_summed(columns, applied),
        "pieces": [
            {
                "master": piece.master,
                "layers": list(piece.layers),
                "parameters": piece.part.stop - piece.part.start,
                **_summed(columns, applied & (columns["piece"] == piece.number)),
            }
            for piece in pieces
        ],
    }
    if tau.size:
        count = me.findings["gradients_dropped"]
        lost = f"; {count:,} gradient{'s' * (count != 1)} not applied" if dropped.any() else ""
        me.remarks.append(f"staleness: {tau.mean():.1f} updates on average, at most {tau.max()}{lost}")


def digest(columns: dict[str, Array]) -> str:
    """What identifies an order of events: a replay of a damaged one would wait for ever."""
    found = hashlib.sha256()
    for name in ("master", *EVENTS[:4]):
        found.update(np.ascontiguousarray(columns[name], np.int64).tobytes())
    return found.hexdigest()


def _summed(columns: dict[str, Array], which: Array) -> dict[str, Any]:
    gap = columns["gap"][which]
    gap = gap[np.isfinite(gap)]  # those of a run that blew up are none
    return {**summed_up(columns["tau"][which]), "mean_gap": float(gap.mean()) if gap.size else 0.0}
