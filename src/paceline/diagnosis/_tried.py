"""Advice in words, without what cannot be typed, cannot run here, or was measured and is no better."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from paceline.diagnosis._advice import possible
from paceline.diagnosis._case import Case
from paceline.diagnosis._scale import Scale
from paceline.errors import UsageError
from paceline.job import strategy_in


def joined(case: Case, tried: Iterable[str], *, of_accuracy: bool = False) -> str:
    """What is worth a try, one after the other; `of_accuracy`: it is to learn more, and not to be faster."""
    return ", or ".join(dict.fromkeys(each for each in tried if worth(case, each, of_accuracy=of_accuracy)))


def settings_in(advice: str) -> dict[str, str]:
    """The settings of one thing to try, without its reason.

    >>> settings_in("-n 8 --strategy parameter-server:masters=4 (each holds half as much)")
    {'n': '8', 'strategy': 'parameter-server:masters=4'}
    """
    words = shlex.split(re.sub(r"\(.*\)", "", advice))
    return {name.lstrip("-"): value for name, value in zip(words[::2], words[1::2], strict=False)}


def worth(case: Case, advice: str, *, of_accuracy: bool = False) -> bool:
    """Whether the runs that there are leave anything to be hoped for from it."""
    given = settings_in(advice)
    number = int(given.get("n", case.at.ranks))
    if not _accepted(case, given, number):
        return False
    if given.keys() - {"n", "strategy"}:
        return True
    if number > case.at.ranks and not case.at.fits(number):
        return False
    known = _measured(case, given.get("strategy", case.strategy), number)
    return known is None or known is case.at or _better(known, case.at, of_accuracy=of_accuracy)


def _accepted(case: Case, given: dict[str, str], number: int) -> bool:
    if "strategy" not in given:
        return possible(case, number)
    strategy = strategy_in(given["strategy"])
    if strategy is None:
        return False
    batch, samples = given.get("batch", case.config.get("batch")), case.config.get("samples")
    try:
        strategy.check(number)
        strategy.check_update(str(case.config.get("update", "sgd")))
        if batch and samples:
            strategy.check_data(number, int(batch), int(samples))
    except UsageError:
        return False
    return not strategy.whole_batches or case.config.get("lr_scaling", "none") == "none"


def _measured(case: Case, strategy: str, number: int) -> Scale | None:
    """The runs that there are of a strategy on so many ranks, of the same kind as the case's."""
    wanted = strategy_in(strategy)
    for other in case.beside:
        if other.simulated == case.simulated and (
            other.strategy == strategy or (wanted is not None and other.options == wanted)
        ):
            found = [scale for scale in other.scales if scale.ranks == number]
            if found:
                return next((scale for scale in found if scale.runs == case.at.runs), found[0])
    return None


def _better(known: Scale, than: Scale, *, of_accuracy: bool) -> bool:
    if known.diverged:
        return False
    if not of_accuracy:
        return known.seconds < than.seconds
    mine, its = than.means("test_accuracy"), known.means("test_accuracy")
    return mine is None or its is None or its[0] > mine[0]
