"""More ranks, or threads of ranks, than cores: they take turns, and a waiting rank keeps its core busy."""

from __future__ import annotations

from paceline.diagnosis import advice
from paceline.diagnosis.advice import joined
from paceline.diagnosis.case import Case
from paceline.diagnosis.findings import Cause
from paceline.text import count

NAME = "oversubscribed cores"
SHORT = "there are more ranks than cores"


def find(case: Case) -> Cause | None:
    """The ranks of a node have more threads than it has cores."""
    at, cores = case.at, case.at.place.cores
    if not at.oversubscribed or cores is None:
        return None
    threads = at.threads if at.runs[0].simulated is None else 1
    wanted = at.place.on_node * threads
    each = "" if threads == 1 else f" with {threads} threads each"
    words = (
        f"{count(at.place.on_node, 'rank')}{each} share {count(cores, 'core')} ({wanted / cores:.1f} per core): their "
        "times say nothing about scaling"
    )
    nodes = -(-at.ranks // at.place.on_node)
    fewer = threads > 1 and at.ranks <= cores
    tried = [
        f"--threads {max(1, cores // at.place.on_node)}" if fewer else f"-n {cores * nodes}",
        advice.on_more_nodes(case, at.ranks, "to see it with a core for each rank"),
    ]
    return Cause(rule=NAME, share=1 - cores / wanted, words=words, advice=joined(case, tried))
