"""The settings that rules advise, as they are typed after `paceline train`.

A strategy declares its remedies for a problem (`Strategy.remedies`) and when to try it instead of others
(`Strategy.offers`). Nothing is advised that cannot be typed, cannot run here, or was measured and is no better.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from math import ceil
from typing import Any

from paceline import names
from paceline.diagnosis.case import Case, Scale
from paceline.errors import UsageError
from paceline.strategies import Strategy, Trouble
from paceline.training.job import find_built_in, strategy_name

# The fraction of a step that the exchange may take.
EXCHANGE = 0.2
# Common numbers of steps between averages.
EVERY = (2, 5, 10, 20, 50, 100, 200, 500, 1000)
# A run keeps at least this many averages: with fewer it is nearly one average at the end, which learns less.
AVERAGES = 10
# An epoch keeps at least this many steps of each rank: with fewer nothing is learned in it.
STEPS = 8
# The options of how messages are sent, which are the usual ones where ranks share memory and send none.
SENDING = ("overlap", "bucket", "compress")
MORE_NODES = "to see what more nodes would do"


# ---- strategies


def strategy(case: Case, **changes: Any) -> str:
    """Format the case's strategy with other options: --strategy sync:balance=true."""
    known = find_built_in(case.strategy)
    if known is not None:
        if changes.get("allreduce") == "shared-memory":
            changes |= {option.name: option.default for option in fields(known) if option.name in SENDING}  # type: ignore[arg-type]
        return f"--strategy {strategy_name(replace(known, **changes))}"  # type: ignore[type-var]
    name, options = split_options(case.strategy)
    options |= {option.replace("_", "-"): names.spell(value) for option, value in changes.items()}
    return f"--strategy {name}:{','.join(f'{option}={value}' for option, value in options.items())}"


def split_options(strategy: str) -> tuple[str, dict[str, str]]:
    """Split the text of a user's own strategy into its name and its options.

    >>> split_options("my_module:Mine:every=4,allreduce=ring")
    ('my_module:Mine', {'every': '4', 'allreduce': 'ring'})
    """
    module, _, rest = strategy.partition(":")
    attribute, _, given = rest.partition(":")
    pairs = (word.partition("=") for word in given.split(",") if word)
    return f"{module}:{attribute}", {option: value for option, _, value in pairs}


def own_changes(case: Case, trouble: Trouble) -> list[str]:
    """Format the remedies that the case's strategy declares for a problem."""
    found = []
    for change in case.facts.remedies.get(trouble, ()):
        words = [strategy(case, **change.options)] if change.options else []
        if "lr" in change.factors and case.config.get("lr"):
            words.append(f"--lr {case.config['lr'] * change.factors['lr']:g}")
        if "epochs" in change.factors:
            words.append(f"--epochs {ceil((case.config.get('epochs') or 1) * change.factors['epochs'])}")
        if words:
            found.append(" ".join(words) + (f" ({change.why})" if change.why else ""))
    return found


def other_strategies(case: Case, trouble: Trouble, amount: int = 1, why: str = "") -> list[str]:
    """Format the strategies that offer to solve a problem, those equivalent to serial SGD first."""
    own = case.strategy.partition(":")[0]
    known = {name: names.find("strategies", name) for name in names.names("strategies") if name != own}
    found: list[tuple[bool, str]] = []
    for name, one in known.items():
        if isinstance(one, type) and issubclass(one, Strategy):
            for change in one.offers(trouble, ranks=case.at.ranks, amount=amount):
                words = [
                    f"{key.replace('_', '-')}={names.spell(value)}" for key, value in change.options.items()
                ]
                reason = f" ({why or change.why})" if why or change.why else ""
                spelled = f"--strategy {':'.join(filter(None, (name, ','.join(words))))}{reason}"
                found.append((not one.equals_serial, spelled))
    return [spelled for _, spelled in sorted(found, key=lambda offer: offer[0])]


# ---- batches


def own_samples(case: Case, seconds: float) -> int | None:
    """Return the samples that a rank computes in this time; None if more samples did not take longer."""
    return case.computing.samples_for(seconds) if case.grows(case.computing) else None


def batch_of(case: Case, own: int) -> int:
    """Return the batch, as settings define it, that gives a rank this many samples in a step."""
    return own if case.whole_batches else own * case.at.timing.workers


def largest_batch(case: Case) -> int | None:
    """Return the largest batch that is advised, so that an epoch keeps STEPS steps per rank; None: unknown data."""
    samples = case.config.get("samples")
    if not samples:
        return None
    return int(samples) // STEPS // (case.at.timing.workers if case.whole_batches else 1)


def larger_batch(case: Case, seconds: float, why: str) -> str | None:
    """Format the batch with which a rank's step computes for this long, or as close to it as allowed."""
    own = own_samples(case, seconds)
    return None if own is None else batch_setting(case, batch_of(case, own), why)


def batch_setting(case: Case, batch: int, why: str) -> str | None:
    """Format this batch as a power of two, or the largest that is advised; None if it is no larger than now."""
    if not may_grow(case):
        return None
    whole, most, now = 1 << (batch - 1).bit_length(), largest_batch(case), present_batch(case)
    if most is not None and whole > most:
        whole = most if batch <= most else 1 << (most.bit_length() - 1) if most else 0
    # If the goal is far away, half of the way is worth advising.
    return None if whole <= now or (whole < batch and whole < 2 * now) else spell_batch(case, whole, why)


def may_grow(case: Case) -> bool:
    """Return True if a larger batch may be advised: not if less is learned already and it would mean fewer steps."""
    if case.worse is None:
        return True
    divided = not case.whole_batches and case.config.get("batch_per_rank") is not None
    return case.config.get("draws") is not None and not divided  # an epoch keeps its steps


def spell_batch(case: Case, batch: int, why: str) -> str:
    """Format a larger batch together with the settings to adjust."""
    setting = f"--batch {batch}"
    if case.config.get("batch_per_rank") is not None and not case.whole_batches:
        setting = f"--batch-per-rank {ceil(batch / case.at.ranks)}"
    if case.config.get("draws") is not None:  # an epoch is a fixed number of batches of any size
        return f"{setting} ({why}; larger steps: check --lr)"
    epochs = ceil(int(case.config.get("epochs") or 1) * batch / max(1, present_batch(case)))
    return f"{setting} ({why}; fewer updates: check --lr, or --epochs {epochs} for as many)"


def present_batch(case: Case) -> int:
    """Return the batch, as settings define it."""
    found = case.at.runs[0].summary.get("global_batch")
    return int(found) if found else round(batch_of(case, round(case.at.timing.samples)))


# ---- averages


def find_interval(case: Case, exchange: float) -> tuple[int, float] | None:
    """Return the interval that reduces exchanges to a fraction EXCHANGE of the time, and the fraction reached.

    The interval is limited by `find_longest_interval`; None if it is less than two steps.
    """
    timing, most = case.at.timing, find_longest_interval(case)
    alone = timing.update + case.computing.seconds(present_batch(case))
    needed = exchange * (1 / EXCHANGE - 1) / alone if alone > 0 else 1.0
    known = [number for number in EVERY if number <= most]
    every = next((number for number in known if number >= needed), known[-1] if known else None)
    return None if every is None else (every, exchange / every / (alone + exchange / every))


def find_longest_interval(case: Case) -> int:
    """Return the longest interval that leaves AVERAGES averages; 0 if averaging was found to learn less.

    A strategy that averages only once, at the end, says nothing about those that average on the way.
    """
    for other in case.beside or (case,):
        on_the_way = other.facts.averages and other.facts.interval is not None
        if on_the_way and any(other.loss(scale) is not None for scale in other.scales):
            return 0
    timing = case.at.timing
    batches = timing.steps * (timing.workers if case.whole_batches else 1)
    return int(batches / case.at.ranks // AVERAGES)


# ---- ranks


def ranks(case: Case, number: int) -> str:
    """Format a number of ranks, each with a core: here, or else simulated on more nodes."""
    return f"-n {number}" if case.at.fits(number) else on_more_nodes(case, number, MORE_NODES)


def on_more_nodes(case: Case, number: int, why: str, each: int | None = None) -> str:
    """Format a simulation of this many ranks on nodes of one rank, or of `each`."""
    real = "--on sim " if case.at.runs[0].simulated is None else ""
    nodes = "" if each is None else f":ranks-per-node={each}"
    shared = case.option("allreduce") == "shared-memory"
    other = f" {strategy(case, allreduce='hierarchical')}" if shared else ""
    return f"{real}-n {number} --network 10gbe{nodes}{other} ({why})"


def fewer_ranks(case: Case) -> int | None:
    """Return the next smaller number of ranks that was tried, or half; None if it is impossible or slower."""
    tried = {scale.ranks: scale.seconds for scale in case.scales if scale.ranks < case.at.ranks}
    if tried and max(tried) > 1:
        return max(tried) if tried[max(tried)] < case.at.seconds else None
    half = range(max(2, case.at.ranks // 2), case.at.ranks)
    return next((number for number in half if can_use(case, number)), None)


def fewer_good_ranks(case: Case, than: int) -> int | None:
    """Return the largest smaller number of ranks that learned as much as serial, or half; None if there is none."""
    good = [s.ranks for s in case.scales if 1 < s.ranks < than and not s.diverged and case.loss(s) is None]
    half = max(good, default=max(2, than // 2))
    return half if half < than and can_use(case, half) else None


def can_use(case: Case, number: int) -> bool:
    """Return True if the strategy can use this many ranks."""
    pieces = case.config.get("reproducible")
    if pieces and number > 0 and pieces % number:
        return False
    known = find_built_in(case.strategy)
    if known is None:
        return number > case.at.ranks - case.facts.workers
    try:
        known.check(number)
    except UsageError:
        return False
    return number > 0


# ---- filtering advice


def join_worthwhile(case: Case, tried: Iterable[str], *, of_accuracy: bool = False) -> str:
    """Join the advice that is worth trying; `of_accuracy`: its aim is accuracy, not speed."""
    return ", or ".join(
        dict.fromkeys(each for each in tried if is_worth_trying(case, each, of_accuracy=of_accuracy))
    )


def settings_in(advice: str) -> dict[str, str]:
    """Parse the settings of one piece of advice, without its reason.

    >>> settings_in("-n 8 --strategy sync:balance=true (slower ranks get smaller pieces)")
    {'n': '8', 'strategy': 'sync:balance=true'}
    """
    words = shlex.split(re.sub(r"\(.*\)", "", advice))
    return {name.lstrip("-"): value for name, value in zip(words[::2], words[1::2], strict=False)}


def is_worth_trying(case: Case, advice: str, *, of_accuracy: bool = False) -> bool:
    """Return True if it is valid, can run, and has not been measured to be no better."""
    given = settings_in(advice)
    number = int(given.get("n", case.at.ranks))
    if not _is_accepted(case, given, number):
        return False
    if given.keys() - {"n", "strategy"}:
        return True
    if number > case.at.ranks and not case.at.fits(number):
        return False
    known = _find_scale(case, given.get("strategy", case.strategy), number)
    return known is None or known is case.at or _better(case, known, case.at, of_accuracy=of_accuracy)


def stays_reproducible(config: Mapping[str, Any], given: Mapping[str, str]) -> bool:
    """Return False if `paceline train` would refuse settings because a run is reproducible.

    >>> stays_reproducible({"reproducible": 8, "strategy": "sync", "ranks": 4}, {"n": "6"})
    False
    """
    pieces = config.get("reproducible")
    if not pieces:
        return True
    strategy = find_built_in(given.get("strategy", str(config["strategy"])))
    if strategy is None or "batch-per-rank" in given:
        return False
    try:
        strategy.check_reproducible()
    except UsageError:
        return False
    return bool(pieces % int(given.get("n", config["ranks"])) == 0)


def _is_accepted(case: Case, given: dict[str, str], number: int) -> bool:
    if not stays_reproducible(case.config, given | {"n": str(number)}):
        return False
    if "strategy" not in given:
        return can_use(case, number)
    strategy = find_built_in(given["strategy"])
    if strategy is None:  # the user's own, with other options
        return can_use(case, number)
    batch, samples = given.get("batch", case.config.get("batch")), case.config.get("samples")
    try:
        strategy.check(number)
        strategy.check_update(str(case.config.get("update", "sgd")))
        if batch and samples:
            strategy.check_data(number, int(batch), int(samples))
    except UsageError:
        return False
    return not strategy.whole_batches or case.config.get("lr_scaling", "none") == "none"


def _find_scale(case: Case, strategy: str, number: int) -> Scale | None:
    """Return the runs of a strategy on this many ranks, simulated or real like those of the case."""
    wanted = _resolve_strategy(case, strategy)
    for other in case.beside:
        if other.simulated == case.simulated and (
            other.strategy == strategy
            or (wanted is not None and _resolve_strategy(case, other.strategy) == wanted)
        ):
            found = [scale for scale in other.scales if scale.ranks == number]
            if found:
                return next((scale for scale in found if scale.runs == case.at.runs), found[0])
    return None


def _resolve_strategy(case: Case, strategy: str) -> Strategy | None:
    """Return a strategy of paceline's with everything decided that depends on the update of the case."""
    known = find_built_in(strategy)
    return None if known is None else known.for_update(str(case.config.get("update", "sgd")))


def _better(case: Case, known: Scale, than: Scale, *, of_accuracy: bool) -> bool:
    if known.diverged:
        return False
    if not of_accuracy:
        return known.seconds < than.seconds
    if (found := case.measure(than)) is None:
        return True
    metric, where = found
    mine, its = than.means(metric, where), known.means(metric, where)
    return mine is None or its is None or metric.key(its[0]) < metric.key(mine[0])
