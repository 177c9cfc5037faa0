"""The table of irregular jobs: per effect and fault, calibration, what-if."""

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median

from tests.accuracy.irregular.scoring import IrregularScore

_HEALTHY = ("silent", "job", "lead", "wrong", "crash")
_FAULTY = ("right", "lead", "partly", "missed", "hedged", "silent", "cleared", "wrong", "small", "crash")


def table(scores: Sequence[IrregularScore]) -> list[str]:
    """Return the lines to print."""
    healthy = [one for one in scores if not one.fault]
    faulty = [one for one in scores if one.fault]
    lines = _rows("healthy jobs", healthy, lambda one: one.effect, _HEALTHY)
    lines += ["", *_rows("faulty jobs by fault", faulty, lambda one: one.fault, _FAULTY)]
    lines += ["", *_rows("faulty jobs by effect", faulty, lambda one: one.effect, _FAULTY)]
    lines += ["", "confidence   findings   right"]
    for level in ("high", "medium", "low"):
        found = [one for score in scores for one in score.findings if one.confidence == level]
        lines.append(f"{level:10} {len(found):10} {_percent([one.right for one in found]):>7}")
    lines += ["", "recurs       findings   right"]
    for answer in ("yes", "no", "together", "unknown"):
        found = [one for score in scores for one in score.findings if one.recurs == answer]
        lines.append(f"{answer:10} {len(found):10} {_percent([one.right for one in found]):>7}")
    counted = [one for one in faulty if one.outcome not in ("small",)]
    innocent = [one.outcome not in ("wrong", "crash") for one in healthy]
    flawless = [all(finding.right for finding in one.findings) for one in healthy]
    named = [one.outcome in ("right", "lead", "partly") for one in counted]
    lines += [
        "",
        f"healthy jobs without a wrong name above low   {_percent(innocent)}",
        f"healthy jobs without any wrong finding        {_percent(flawless)}",
        f"costly faults named right, or as a lead       {_percent(named)}",
        f"jobs cleared wrongly                          {sum(one.outcome == 'cleared' for one in faulty)}",
        f"what-if off: {_errors(faulty)}",
    ]
    return lines


def waits_table(scores: Sequence[IrregularScore]) -> list[str]:
    """Return the lines to print of jobs with waits that were not recorded."""
    faulty = [one for one in scores if one.fault and one.outcome != "small"]
    healthy = [one for one in scores if not one.fault]
    named = [one for one in faulty if one.outcome in ("right", "lead")]
    right = [[is_right(one) for one in part] for part in (faulty, healthy)]
    return [
        *table(scores),
        "",
        f"faults named                                  {_percent([one in named for one in faulty])} of {len(faulty)}",
        f"prices right, or in a range, of those         {_percent([one.is_priced for one in named])} of {len(named)}",
        f"prices stated as a range                      {_percent([one.told_range_ns is not None for one in named])}",
        f"jobs without waits that an invented one has   {sum(one.invented > 0 for one in scores)}",
        f"all right: faulty jobs                        {_percent(right[0])} of {len(faulty)}",
        f"all right: healthy jobs                       {_percent(right[1])} of {len(healthy)}",
    ]


def is_right(score: IrregularScore) -> bool:
    """Return whether culprit and price are right, no innocent is above `low`, and no wait is invented."""
    if score.invented or any(not one.right and one.confidence != "low" for one in score.findings):
        return False
    if not score.fault or score.outcome == "small":
        return score.outcome != "crash"
    return score.outcome in ("right", "lead") and score.is_priced


def wrong_prices(scores: Sequence[IrregularScore]) -> list[str]:
    """Return each job whose fault is named with a wrong price, or that has an invented wait, with its seed."""
    lines = []
    for one in scores:
        if one.invented or (one.fault and one.outcome in ("right", "lead") and not one.is_priced):
            told = f"{one.told_ns / 1e3:.0f} us {one.told_range_ns or ''} of {one.gain_ns / 1e3:.0f} us"
            lines.append(f"{one.seed} [price] {one.effect} / {one.fault or 'healthy'}: {one.about}")
            lines.append(f"    {told}; {one.invented} invented waits")
    return lines


def errors(scores: Sequence[IrregularScore]) -> list[float]:
    """Return by what part the saving is off, of jobs whose faults were found."""
    return [abs(one.told_ns - one.gain_ns) / one.gain_ns for one in scores if one.gain_ns > 0]


def _errors(scores: Sequence[IrregularScore]) -> str:
    off = sorted(errors(scores))
    if not off:
        return "-"
    return f"median {median(off):.1%}, worst tenth from {off[max(0, -(-len(off) * 9 // 10) - 1)]:.1%} ({len(off)} jobs)"


def _rows(
    title: str, scores: Sequence[IrregularScore], key: Callable[[IrregularScore], str], outcomes: Sequence[str]
) -> list[str]:
    lines = [f"{title:26} {'jobs':>5} " + " ".join(f"{one:>7}" for one in outcomes) + "  what-if off"]
    for value in sorted({key(one) for one in scores}):
        own = [one for one in scores if key(one) == value]
        counts = Counter(one.outcome for one in own)
        lines.append(
            f"{value:26} {len(own):5} " + " ".join(f"{counts[one]:7}" for one in outcomes) + f"  {_errors(own)}"
        )
    return lines


def _percent(outcomes: Sequence[bool]) -> str:
    return f"{sum(outcomes) / len(outcomes):.1%}" if outcomes else "-"


def misses(scores: Sequence[IrregularScore]) -> list[str]:
    """Return each job that went wrong, with its seed."""
    lines = []
    for one in scores:
        bad = one.outcome in ("wrong", "missed", "cleared", "partly", "crash") or (
            one.fault and one.outcome == "silent"
        )
        if bad or any(not finding.right for finding in one.findings):
            lines.append(f"{one.seed} [{one.outcome}] {one.effect} / {one.fault or 'healthy'}: {one.about}")
            lines += [f"    {'  ' if finding.right else '! '}{finding.words}" for finding in one.findings]
            lines += [f"    {one.verdict}"]
    return lines
