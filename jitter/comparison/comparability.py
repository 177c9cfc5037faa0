"""Why two runs cannot be compared, and how they differ as recordings."""

from collections.abc import Sequence
from typing import Final

from jitter.comparison.alignment import TeamPair
from jitter.comparison.document import Document
from jitter.comparison.significance import MIN_STEPS
from jitter.core.formatting import format_count, format_percent

_HAS_USUAL_STEP: Final = 3
"""Version of the document."""
_SAME_PERIOD: Final = 1.25
"""Ratio of kernels per step up to which steps found without a common marker are taken for equal periods."""


def find_reasons(bases: Sequence[Document], new: Document, pairs: Sequence[TeamPair]) -> list[str]:
    """Return why step times cannot be compared; empty where they can. `pairs` are those of the first base."""
    reasons = []
    for side, document in (*(("the base", one) for one in bases), ("the new run", new)):
        if not any(team.places for team in document.teams):
            reasons.append(f"{side} ({document.label}) has no kernels")
        elif len(document.steps) < MIN_STEPS:
            had = format_count(len(document.steps), "step")
            reasons.append(f"{side} ({document.label}) has {had}, fewer than {MIN_STEPS}")
        elif sum(step.step_time_ns is not None for step in document.steps) < MIN_STEPS - 2:
            reasons.append(
                f"{side} ({document.label}) has too few steps that follow each other: step times are unknown"
            )
    if reasons:
        return reasons
    if not any(pair.base == 0 for pair in pairs):
        reasons.append("the runs' kernel sequences share less than half")
    elif bases[0].marker is None or new.marker is None or bases[0].marker != new.marker:
        of_base, of_new = len(bases[0].teams[0].places), len(new.teams[_partner(pairs)].places)
        if max(of_base, of_new) > _SAME_PERIOD * min(of_base, of_new):
            reasons.append(
                f"no common step marker, and the steps' periods differ: {of_base:,} kernels in the base, "
                f"{of_new:,} in the new run"
            )
    return reasons


def _partner(pairs: Sequence[TeamPair]) -> int:
    return next(pair.new for pair in pairs if pair.base == 0)


def describe_differences(bases: Sequence[Document], new: Document, pairs: Sequence[TeamPair]) -> list[str]:
    """Return sentences on how the recordings differ: ranks, hosts, steps, profilers, unmatched teams."""
    base = bases[0]
    found = []
    for what, one, other in (
        ("rank", base.ranks, new.ranks),
        ("host", len(base.hosts), len(new.hosts)),
        ("step", len(base.steps), len(new.steps)),
    ):
        if one != other:
            found.append(f"The base has {format_count(one, what)}, the new run {other:,}.")
    if base.formats != new.formats:
        found.append(f"Profilers differ: {', '.join(base.formats)} and {', '.join(new.formats)}.")
    if pairs and (len(pairs) < len(base.teams) or len(pairs) < len(new.teams)):
        found.append(
            f"Ranks that run a program of their own: {len(base.teams)} in the base, {len(new.teams)} in the new run, "
            f"{len(pairs)} of them matched."
        )
    share = min((pair.share for pair in pairs), default=1.0)
    if share < 1:
        found.append(f"The kernel sequences share {format_percent(share)}.")
    lacking = [one.label for one in (*bases, new) if one.usual is None and one.schema_version < _HAS_USUAL_STEP]
    if lacking:
        found.append(
            f"Of {', '.join(lacking)} the usual step is not known, so the difference is not split: an earlier jitter "
            "wrote the baseline. Write it again with: jitter export LAKE --baseline FILE."
        )
    return found
