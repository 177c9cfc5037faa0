"""The run's figures in words: what went in, what is missing, how ranks were aligned."""

from jitter.core.formatting import format_count, format_numbers, format_time
from jitter.core.step_key import StepKey
from jitter.report.views.run_overview import AlignmentSummary, RunOverview

_MOST = 8


def describe_alignment(alignment: AlignmentSummary) -> str:
    """Say how ranks were aligned, and with what uncertainty."""
    if not alignment.steps:
        return "Nothing to align: no two ranks run the same program in a step."
    told = [_method(method, count, alignment) for method, count in sorted(alignment.steps.items())]
    if alignment.unsynchronised:
        one = alignment.unsynchronised == 1
        told.append(
            f"{format_count(alignment.unsynchronised, 'collective')} without a recorded group "
            f"{'turned' if one else 'turn'} out not to be left by all together and {'was' if one else 'were'} not used."
        )
    return " ".join(told)


def _method(method: str, steps: int, alignment: AlignmentSummary) -> str:
    where = format_count(steps, "step") if len(alignment.steps) > 1 else "every step"
    if method == "collective":
        return f"In {where} ranks are aligned at the end of the last collective that all leave together. " + (
            "How well is unknown: no step has a second such collective to check against."
            if alignment.uncertainty_ns is None
            else "The ends of its other collectives agree to the nanosecond."
            if alignment.uncertainty_ns == 0
            else f"The ends of its other collectives disagree by up to {format_time(alignment.uncertainty_ns)}."
        )
    if method == "wall clock":
        if alignment.uncertainty_ns is not None:
            exact = "All ranks are in one recording and share its clock, so this is exact."
        else:
            exact = (
                "It is as good as the hosts' clocks agree, often no better than a millisecond; the trace cannot tell."
            )
        return f"In {where} no collective aligns the ranks: they are aligned by wall clock. {exact}"
    return (
        f"In {where} ranks cannot be aligned: no collective of all, no wall clock. First gaps and times to kernel "
        "end are unknown there."
    )


def alignment_method(alignment: AlignmentSummary) -> str:
    """Name the method in a word: the weakest that some step needs."""
    for method in ("none", "wall clock", "collective"):
        if method in alignment.steps:
            return method
    return "none"


def describe_coverage(facts: RunOverview) -> list[str]:
    """Say what is missing, one sentence each; one saying that nothing is, if so."""
    told = [
        f"{'Ranks' if len(hole.ranks) > 1 else 'Rank'} {format_numbers(hole.ranks)} "
        f"{'lack' if len(hole.ranks) > 1 else 'lacks'} {_steps(hole.steps)}."
        for hole in facts.holes[:_MOST]
    ]
    if len(facts.holes) > _MOST:
        told.append(f"{format_count(len(facts.holes) - _MOST, 'more set')} of ranks lack other steps.")
    if facts.cut:
        told.append(
            f"{format_count(facts.cut, 'recording')} of a rank's step {'is' if facts.cut == 1 else 'are'} cut: "
            "launches in it have no kernel, or its range has no end."
        )
    if facts.left_out:
        told.append(
            f"{facts.left_out} of a rank's steps {'is' if facts.left_out == 1 else 'are'} left out of all figures: "
            "cut before the step's last collective, or without an uncut step to compare it with."
        )
    return told or ["Every rank has every step, whole."]


def _steps(steps: tuple[StepKey, ...]) -> str:
    epochs = {step.epoch for step in steps}
    if len(epochs) == 1:
        (epoch,) = epochs
        numbers = format_numbers(step.step for step in steps)
        word = "step" if len(steps) == 1 else "steps"
        return f"{word} {numbers}" if epoch is None else f"{word} {numbers} of epoch {epoch}"
    return f"{format_count(len(steps), 'step')} in {len(epochs)} epochs"


def describe_excluded(facts: RunOverview) -> list[str]:
    """Say what is in no figure, one sentence each."""
    told = []
    if facts.unmatched_kernels:
        told.append(
            f"{format_count(facts.unmatched_kernels, 'kernel')} ({format_time(facts.unmatched_ns)}) without a partner "
            "on the other ranks: no index, in no figure; but that time counts in its rank's time "
            "to kernel end. Inputs of different size run different kernels."
        )
    if facts.outside_steps:
        told.append(f"Outside every step: {format_count(facts.outside_steps, 'kernel')}.")
    if facts.before_capture:
        told.append(f"Launched before the capture began: {format_count(facts.before_capture, 'kernel')}.")
    if facts.without_launches:
        told.append(
            f"{format_count(facts.without_launches, 'rank')} recorded no launches: kernels are placed by their own "
            "start, and launch latency is unknown."
        )
    if facts.negative_latencies:
        told.append(
            f"{format_count(facts.negative_latencies, 'kernel')} start before their own launch, which cannot be: the "
            "recordings' clocks disagree."
        )
    if facts.steps_left_out:
        told.append(f"{format_count(facts.steps_left_out, 'step')} left out by --steps.")
    return told


def format_kernels_per_step(facts: RunOverview) -> str:
    """Give one number, or the least and the most over steps and cohorts."""
    least, most = facts.kernels_per_step
    return f"{most:,}" if least == most else f"{least:,} to {most:,}"
