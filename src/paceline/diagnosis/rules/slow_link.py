"""One host exchanges messages more slowly than the others, and everybody who exchanges with it waits.

In a step that all ranks take together, the slow link delays them all equally, so the times of the ranks do not show whose
link it is. Therefore the record has the speed of every host's link, measured before training.
"""

from __future__ import annotations

from collections import Counter
from statistics import fmean, median

from paceline.diagnosis.advice import join_worthwhile
from paceline.diagnosis.case import Case, Cause, DiagnosisRule
from paceline.text import amount, count, join, share

# A link is slow if the median of the other hosts' is this many times as fast.
SLOWER = 3.0
# A slow link that takes this part of a step is worth naming.
SHARE = 0.1
# With fewer hosts, it is unknown whose link is slow.
HOSTS = 3


def find(case: Case) -> Cause | None:
    """Return a cause if a link has a third of the speed of the other hosts', and that takes a tenth of the step."""
    links = link_speeds(case)
    if len(links) < HOSTS:
        return None
    slow = {name: speed for name, speed in links.items() if SLOWER * speed <= _others(links, name)}
    if not slow:
        return None
    normal = median(speed for name, speed in links.items() if name not in slow)
    lost = 1 - min(slow.values()) / normal
    part = case.at.timing.share("exchange", "wait", "answer")
    if part * lost < SHARE:
        return None
    speeds = [amount(speed) for speed in slow.values()]
    many = len(slow) > 1
    words = (
        f"at {count(case.at.ranks, 'rank')} the link{'s' * many} of host{'s' * many} {join(slow)} "
        f"carr{'y' if many else 'ies'} {join(speeds)} per second, those of the others {amount(normal)}; exchanges and "
        f"waiting take {share(part)} of the time"
    )
    return Cause(rule=RULE.name, share=part * lost, words=words, advice=_leave_out_hosts(case, slow))


def link_speeds(case: Case) -> dict[str, float]:
    """Return the bytes per second of each host's link, mean over the runs; empty if they were not measured."""
    known: dict[str, list[float]] = {}
    for run in case.at.runs:
        nodes = run.environment.get("nodes") or {} if run.simulated is None else {}
        for name, speed in zip(nodes.get("hosts") or (), nodes.get("links") or (), strict=False):
            if speed > 0:
                known.setdefault(name, []).append(speed)
    return {name: fmean(speeds) for name, speeds in known.items()}


def _others(links: dict[str, float], name: str) -> float:
    return median(speed for other, speed in links.items() if other != name)


def _leave_out_hosts(case: Case, slow: dict[str, float]) -> str:
    """Format the hosts and ranks without the slow ones."""
    nodes = case.at.runs[0].environment["nodes"]
    ranks = Counter(nodes["hosts"][node] for node in nodes["ranks"])
    kept = {name: here for name, here in ranks.items() if name not in slow}
    hosts = ",".join(f"{name}:{here}" for name, here in kept.items())
    return join_worthwhile(case, [f"-n {sum(kept.values())} --hosts {hosts} (without the slow link)"])


RULE = DiagnosisRule(name="slow link", short="the link of one host is slower than the others'", find=find)
