"""More ranks, or threads of ranks, than cores: they take turns, and who waits for a message burns somebody's turn."""

from __future__ import annotations

from paceline.diagnosis import _advice as advice
from paceline.diagnosis._advice import joined
from paceline.diagnosis._case import Case
from paceline.diagnosis._finding import Cause
from paceline.diagnosis._words import count

NAME = "oversubscribed cores"
SHORT = "there are more ranks than cores"


def find(case: Case) -> Cause | None:
    """The ranks of a node have more threads than it has cores."""
    at, cores = case.at, case.at.place.cores
    if not at.oversubscribed or cores is None:
        return None
    simulated = at.runs[0].simulated is not None
    threads = 1 if simulated else at.threads
    wanted = at.place.on_node * threads
    each = "" if threads == 1 else f" of {threads} threads"
    words = (
        f"{count(at.place.on_node, 'rank')}{each} share {count(cores, 'core')}: {wanted / cores:.1f} take turns on each, "
        "and their times say nothing about more cores"
    )
    nodes = -(-at.ranks // at.place.on_node)
    tried = []
    if threads > 1 and at.ranks <= cores:
        tried.append(f"--threads {max(1, cores // at.place.on_node)}")
    else:
        tried.append(f"-n {cores * nodes}")
    tried.append(advice.elsewhere(case, at.ranks, "what it would be with a core for each"))
    return Cause(rule=NAME, share=1 - cores / wanted, words=words, advice=joined(case, tried))
