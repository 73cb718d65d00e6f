"""A step computes too little for what it exchanges: more than EXCHANGE of it goes to messages and sums.

The batch that would help: exchange and update stay as they are, and computing follows the line of a gradient's seconds
against its samples. If only one size was timed, computing grows at most in proportion, so at least that batch is needed; if
all sizes that were timed took equally long, the batch is unknown. Another collective or rarer exchanges may help too.
"""

from __future__ import annotations

from paceline.diagnosis import advice
from paceline.diagnosis.advice import EXCHANGE, join_worthwhile, own_changes
from paceline.diagnosis.case import WIDTH, Case, Cause, DiagnosisRule
from paceline.diagnosis.rules import masters, slow_link
from paceline.text import count, duration, join, share

# The part of a gradient's time in which the layers become final, one after the other.
BACKWARD = 2 / 3
# The least part of a step that must be saved for an advice about messages between nodes.
WORTHWHILE = 0.1
# The least number of buckets that a gradient must be worth cutting into.
BUCKETS = 2
# The least number of layers with which messages move often enough during a backward pass.
LAYERS = 8
# What is taken for the latency between real hosts, which records do not have.
UNKNOWN_LATENCY = 1e-4


def find(case: Case) -> Cause | None:
    """Return a cause if more than a fifth of a step is exchange, and no queue at a master explains it."""
    timing = case.at.timing
    part = timing.share("exchange", "answer")
    few = case.at.ranks < 2 or case.at.oversubscribed  # without a core a rank is late for any exchange
    if few or part < EXCHANGE or masters.find_master_queue(case) is not None:
        return None
    exchange = timing.exchange + timing.answer
    does = "exchanges and waits for answers" if timing.answer else "exchanges"
    words = (
        f"at {count(case.at.ranks, 'rank')} a step computes for {duration(timing.compute)} and {does} for "
        f"{duration(exchange)} ({share(part)} of the step)"
    )
    more, tried = _advise_larger_batch(case)
    words += more
    used = str(case.option("allreduce", "auto"))
    parameters = int(case.at.runs[0].summary.get("parameters") or 0)
    in_place = case.facts.in_place
    cheaper = case.at.place.cheapest(used, parameters, str(case.config.get("dtype")), in_place=in_place)
    if cheaper is not None:
        words += f"; in theory allreduce={cheaper[0]} takes {share(cheaper[1])} of the time of {used}"
        tried.append(advice.strategy(case, allreduce=cheaper[0]))
    more, hide = _between_nodes(case, exchange, parameters)
    words += more
    tried += hide
    tried += _advise_rarer_exchange(case, exchange)
    return Cause(rule=RULE.name, share=part, words=words, advice=join_worthwhile(case, tried))


def _advise_larger_batch(case: Case) -> tuple[str, list[str]]:
    """Describe the batch that would help, and format the settings for it, or for one on the way to it."""
    batch, most, line = batch_without(case), advice.largest_batch(case), case.computing
    under = f"would bring this below {share(EXCHANGE)}"
    if batch is None:
        grow = "by the given costs computing does not grow with the samples"
        if line.basis == "timed":
            grow = f"gradients of {_sizes(case)} samples took about equally long, so the batch that {under} is unknown"
        endless = 1 << 62 if most else 1
        setting = advice.batch_setting(case, endless, "more samples per exchange")
        return f"; {grow}", [setting] if setting else []
    basis = {
        "timed": f" (by gradients of {_sizes(case)} samples)",
        "given": " (by the costs given to the simulated runs)",
        "proportion": " at best (only one size was timed, and computing grows at most in proportion)",
    }[line.basis]
    about = "" if case.simulated else "about "
    words = f"; a batch of {about}{batch:,} {under}{basis if line.basis == 'proportion' or about else ''}"
    if most is not None and batch > most:
        words += f", but it would leave fewer than {advice.STEPS} steps in an epoch"
    setting = advice.batch_setting(case, batch, "more computing per exchange")
    return words, [setting] if setting else []


def _sizes(case: Case) -> str:
    """List the numbers of samples whose gradients were timed often."""
    scales = [s for s in (*case.serials, *case.scales) if s.threads == case.at.threads]
    return join(
        sorted({size for s in scales if not s.oversubscribed or s is case.at for size in s.timing.by_count})
    )


def batch_without(case: Case) -> int | None:
    """Return the batch from which the exchange is less than EXCHANGE of a step; None if computing does not grow."""
    timing = case.at.timing
    exchange = timing.exchange + timing.answer
    own = advice.own_samples(case, exchange * (1 / EXCHANGE - 1) - timing.update)
    return None if own is None else advice.batch_of(case, own)


def _between_nodes(case: Case, exchange: float, parameters: int) -> tuple[str, list[str]]:
    """Describe how much of the messages between nodes could be hidden or saved, and format the settings for it."""
    place, timing = case.at.place, case.at.timing
    if place.on_node >= case.at.ranks or case.config.get("reproducible"):
        return "", []
    nbytes = parameters * WIDTH.get(str(case.config.get("dtype")), 4)
    speeds = slow_link.link_speeds(case)
    if place.links is not None:
        latency, each = place.links.alpha, place.links.beta
    elif speeds:
        latency, each = UNKNOWN_LATENCY, 1 / min(speeds.values())
    else:
        return "", []
    if nbytes * each < BUCKETS**2 * latency:  # too short to be cut into buckets, or to gain from fewer bytes
        return "", []
    step, words, found = timing.total, "", []
    summary = case.at.runs[0].summary
    last = int(summary.get("first_layer") or parameters)  # sent when the backward pass is over
    hidden = min(exchange * (1 - last / parameters), BACKWARD * timing.compute)
    if int(summary.get("layers") or 0) < LAYERS:  # messages move when a layer is ready, and hardly in between
        hidden = 0.0
    if hidden >= WORTHWHILE * step and (changes := own_changes(case, "exposed exchange")):
        words = f"; the backward pass could hide up to {duration(hidden)} of the exchange between nodes"
        found += changes
    if nbytes * each / 2 >= WORTHWHILE * step:
        found += own_changes(case, "long messages")
    return words, found


def _advise_rarer_exchange(case: Case, exchange: float) -> list[str]:
    """Format less frequent exchanges, if they may be advised."""
    facts = case.facts
    averaging = facts.averages and bool(facts.interval_option) and facts.interval is not None
    now = (facts.interval or 1) if averaging else 1
    found = advice.find_interval(case, exchange * now)
    if found is None or found[0] <= now:
        return []
    every, part = found
    why = f"one exchange in {count(every, 'step')}: {share(part)} of the time"
    if averaging:
        return [f"{advice.strategy(case, **{facts.interval_option: every})} ({why})"]
    return advice.other_strategies(case, "costly exchange", every, why)


RULE = DiagnosisRule(
    name="small computing",
    title="too little computation per step",
    short="a step computes too little for what it exchanges",
    find=find,
)
