"""Sentences about the run as a whole: what was ingested, what is missing, how the ranks were aligned."""

from jitter.core.formatting import Ranks, capitalize, format_count, format_numbered, format_time
from jitter.core.step_key import StepKey
from jitter.report.views.run_overview import AlignmentSummary, RunOverview

_MAX_GAPS = 8
"""Sets of ranks with the same missing steps that are named one by one."""


def describe_run(facts: RunOverview) -> str:
    """Return one line with the size of the run and the formats of its traces."""
    if not facts.ranks:
        return "logs, no traces"
    hosts = f" on {format_count(len(facts.hosts), 'host')}" if facts.hosts else ""
    timed = "" if facts.timed_steps == facts.steps else f" ({facts.timed_steps} timed)"
    kernels = " to ".join(dict.fromkeys(f"{count:,}" for count in facts.kernels_per_step))
    return (
        f"{format_count(facts.ranks, 'rank')}{hosts}, {format_count(facts.steps, 'step')}{timed}, "
        f"{kernels} kernels per step; {', '.join(facts.formats)}"
    )


def describe_alignment(overview: RunOverview) -> str:
    """Describe how the clocks of the ranks were aligned, and the uncertainty; empty without two ranks."""
    alignment = overview.alignment
    if overview.ranks < 2:
        return ""
    if not alignment.steps:
        return "Clock alignment: not needed, no two ranks run the same program in a step."
    groups = round(sum(alignment.steps.values()) / max(overview.steps, 1))
    sentences = [_describe_method(method, count, alignment) for method, count in sorted(alignment.steps.items())]
    if len(alignment.steps) > 1 and groups > 1:
        sentences.append(f"Steps of the {groups} groups of ranks that run one program each are counted apart.")
    if alignment.unsynchronised:
        sentences.append(
            f"{format_count(alignment.unsynchronised, 'collective')} without a recorded group did not end at the same "
            f"time on all ranks and {'was' if alignment.unsynchronised == 1 else 'were'} not used for alignment."
        )
    return " ".join(sentences)


def _describe_method(method: str, steps: int, alignment: AlignmentSummary) -> str:
    counted = sum(alignment.steps.values())
    where = "every step" if steps == counted else f"{steps:,} of {format_count(counted, 'step')}"
    if method == "collective":
        return f"In {where}, clocks are aligned at the end of the last collective that all ranks leave together. " + (
            "The accuracy is unknown: no step has a second such collective."
            if alignment.uncertainty_ns is None
            else "The ends of the other collectives agree to the nanosecond."
            if alignment.uncertainty_ns == 0
            else f"The ends of the other collectives differ by up to {format_time(alignment.uncertainty_ns)}."
        )
    if method == "wall clock":
        if alignment.uncertainty_ns is not None:
            accuracy = "All ranks share the clock of one recording, so this is exact."
        else:
            accuracy = "The accuracy is that of the hosts' clocks, often 1 ms or worse; the traces do not state it."
        return f"In {where}, no collective aligns the ranks; the wall clock does. {accuracy}"
    return (
        f"In {where}, clocks cannot be aligned: no collective spans all ranks, and no wall clock is recorded. First "
        "gaps and times to kernel end are unknown there."
    )


def alignment_method(alignment: AlignmentSummary) -> str:
    """Return the least accurate alignment method that a step needs: none, wall clock or collective."""
    return next((method for method in ("none", "wall clock", "collective") if method in alignment.steps), "none")


def describe_coverage(overview: RunOverview) -> list[str]:
    """Describe what the ranks of the lake did not record, one sentence each; a single sentence if they recorded all.

    Nothing of a lake without traces.

    Ranks of the job that are not in the lake are a limit of the diagnosis, which states them.
    """
    sentences = [
        capitalize(f"{Ranks(hole.ranks)} {Ranks(hole.ranks):has|have} no recording of {_format_steps(hole.steps)}")
        for hole in overview.holes[:_MAX_GAPS]
    ]
    if len(overview.holes) > _MAX_GAPS:
        sentences.append(f"{format_count(len(overview.holes) - _MAX_GAPS, 'more set')} of ranks lack other steps.")
    for count, problem in (
        (overview.cut, "incomplete: a launch has no kernel, or the step marker has no end"),
        (
            overview.left_out,
            "excluded from all results: it ends before the step's last collective, or no other rank recorded the step "
            "completely",
        ),
    ):
        if count:
            counted = format_count(count, "recording of a step by a rank is", "recordings of a step by a rank are")
            sentences.append(f"{counted} {problem}.")
    sentences = [*(f"{sentence}." for sentence in overview.damaged), *sentences]
    if sentences:
        return sentences
    if not overview.ranks:
        return []
    steps = "the step" if overview.steps == 1 else f"all {overview.steps:,} steps"
    if overview.ranks == 1:
        return [f"The only rank in the lake recorded {steps} completely."]
    ranks = "Both" if overview.ranks == 2 else f"All {overview.ranks:,}"
    return [f"{ranks} ranks in the lake recorded {steps} completely."]


def _format_steps(steps: tuple[StepKey, ...]) -> str:
    epochs = {step.epoch for step in steps}
    if len(epochs) == 1:
        (epoch,) = epochs
        named = format_numbered("step", [step.step for step in steps])
        return named if epoch is None else f"{named} of epoch {epoch}"
    return f"{format_count(len(steps), 'step')} in {len(epochs)} epochs"


def describe_excluded(overview: RunOverview) -> list[str]:
    """Describe what is in no figure, one sentence each."""
    unmatched = format_count(overview.unmatched_kernels, "kernel")
    outside = format_count(overview.outside_steps, "kernel lies", "kernels lie")
    early = format_count(overview.before_capture, "kernel was", "kernels were")
    sentences = (
        f"{unmatched} ({format_time(overview.unmatched_ns)}) without a counterpart on the other ranks: no kernel "
        "index; the time counts only in the time to kernel end. Inputs of different size can run different kernels.",
        f"{outside} outside step markers (ignored).",
        f"{early} launched before the capture began (ignored).",
        f"{format_count(overview.without_launches, 'rank')} recorded no launches: kernels are ordered by start "
        "time and belong to the step in which they start; launch latency is unknown.",
        f"{format_count(overview.negative_latencies, 'kernel')} start before their own launch: the clocks of CPU "
        "and GPU disagree in the recordings.",
        f"{format_count(overview.steps_left_out, 'step')} left out by --steps.",
    )
    return [sentence for sentence in sentences if not sentence.startswith("0 ")]  # nothing to say of none
