"""In how many steps a finding was seen, whether it recurs, and what to record to know: in words."""

import re
from typing import Final

from jitter.analysis.diagnosis.causes import CAUSES
from jitter.analysis.diagnosis.model import Culprit
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import capitalize, format_count

_WHOLE: Final = ("every step", "nearly every step")
"""Patterns that say no more than the count of steps."""
_COUNT: Final = re.compile(r"(one step|consecutive steps|[\d,]+ of [\d,]+ steps): ")
"""Beginnings of patterns that repeat the count of steps, before the steps themselves."""
_PLACES: Final = {"CPU": "host", "GPU": "GPU", "network": "link"}


def describe_seen(culprit: Culprit) -> str:
    """Return in how many steps the culprit was seen, and in which: `1 of 5 steps: epoch 1, step 2003`."""
    seen, pattern = culprit.seen, culprit.step_pattern
    if seen.of == 1:
        return "the only step"
    told = f"{seen.steps:,} of {format_count(seen.of, 'step')}"
    if pattern.startswith(_WHOLE):
        return told
    separator = ", " if pattern.startswith(("a drift", "every ")) else ": "
    return f"{told}{separator}{_COUNT.sub('', pattern, count=1)}"


def describe_recurrence(culprit: Culprit) -> str:
    """Return whether the culprit recurs, and if that is unknown what would tell, as a clause."""
    if culprit.recurs == "yes":
        return "it recurs"
    if culprit.recurs == "no":
        return "any rank could be next"
    if culprit.recurs == "together":
        return "several ranks are late in the same steps"
    if culprit.scope == "unrecorded":
        return "whether it recurs is unknown"
    if culprit.more_steps is None:
        return "whether it recurs is unknown: compare with a good run (jitter compare GOOD NEW)"
    if culprit.seen.of + culprit.more_steps <= THRESHOLDS.min_steps_to_recur:
        steps = f"at least {THRESHOLDS.min_steps_to_recur} consecutive steps"
    else:
        steps = format_count(culprit.more_steps, "more step")
    return f"whether it recurs is unknown: record {steps}"


def advise_recurrence(culprit: Culprit) -> str:
    """Return whether the culprit recurs, and what the steps to record would tell of a rank, as a sentence."""
    told, side = describe_recurrence(culprit), CAUSES[culprit.cause].side
    if culprit.more_steps is not None and culprit.scope == "rank" and side is not None:
        told += f"; rank {culprit.rank} again points to its {_PLACES[side]}, other ranks to random events"
    return capitalize(told)
