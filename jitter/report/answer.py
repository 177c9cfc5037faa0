"""What one step answers, in words: how much, who, from where on, and of what it is made."""

from collections.abc import Mapping
from dataclasses import dataclass

from jitter.kernels import short_name
from jitter.words import brief, count_words, percent_words, rank_words, time_words
from jitter.run import RunSummary, StepOfRun
from jitter.summary import Split, StepSummary

Hosts = Mapping[int, str | None]


@dataclass(frozen=True)
class Part:
    """One part of the max rank's deviation; `share` of the sum of their sizes, 0 to 1."""

    name: str
    words: str
    share: float
    late: bool


@dataclass(frozen=True)
class Answer:
    """One cohort's step in words. `sentence` stands alone; the parts are empty where the step does not tell."""

    title: str
    sentence: str
    magnitude: str
    loss: str
    max_rank: str
    min_rank: str
    began: str
    began_full: str
    parts: tuple[Part, ...]


def answer(of_run: StepOfRun, summary: StepSummary, hosts: Hosts, cohorts: int) -> Answer:
    """Put one cohort's step into words; `cohorts` is how many the run has."""
    title = str(of_run.step) if cohorts == 1 else f"{of_run.step}, cohort {summary.cohort}"
    if summary.max_rank is None or summary.min_rank is None:
        return Answer(title, silence(summary), "unknown", "unknown", "unknown", "unknown", "unknown", "", ())
    began = summary.divergence
    return Answer(
        title=title,
        sentence=_sentence(of_run, summary, hosts),
        magnitude=time_words(summary.max_deviation_ns, signed=True),
        loss=_loss(of_run, summary),
        max_rank=f"{rank_words(summary.max_rank, hosts.get(summary.max_rank))}, "
        f"{time_words(summary.max_deviation_ns, signed=True)}",
        min_rank=f"{rank_words(summary.min_rank, hosts.get(summary.min_rank))}, "
        f"{time_words(summary.min_deviation_ns, signed=True)}",
        began="nothing leaves the noise"
        if began is None
        else f"kernel {began.kernel_index}, {brief(short_name(began.kernel_name))}",
        began_full="" if began is None else began.kernel_name,
        parts=parts(summary.split),
    )


def silence(summary: StepSummary) -> str:
    """Say why a step names no min and max rank."""
    if summary.ranks < 2:
        return (
            "Only one rank of this step was recorded: there is nobody to compare it with, so no deviation, "
            "no min rank and no max rank. The figures show its own times."
        )
    if summary.alignment.method == "none":
        return (
            "The ranks of this step cannot be aligned: the trace holds no collective in which all of them take "
            "part, and no wall clock. The gap before the first kernel is unknown, and so is every time to kernel "
            "end; durations, the other gaps and launch latencies hold."
        )
    return (
        "No time to kernel end is known for every rank of this step: some rank has no main-stream compute kernel "
        "before the moment that they share. Durations, gaps and launch latencies hold."
    )


def run_sentence(run: RunSummary) -> str:
    """Say what jitter costs the run."""
    if run.loss_ns is None:
        return "What jitter costs cannot be told from this run."
    fraction = run.loss_fraction
    share = "" if fraction is None else f", {percent_words(fraction)} of the steps' time"
    return (
        f"Jitter costs {time_words(run.loss_ns)} over {count_words(len(run.steps), 'step')}{share}: so much less "
        "they would take if the slowest rank kept the median rank's pace in every kernel."
    )


def parts(split: Split | None) -> tuple[Part, ...]:
    """Late start, CPU and GPU; sizes without sign for the bar."""
    if split is None:
        return ()
    named = (("late start", split.start_ns), ("CPU: gaps", split.cpu_ns), ("GPU: durations", split.gpu_ns))
    whole = sum(abs(ns) for _, ns in named) or 1.0
    return tuple(Part(name, time_words(ns, signed=True), abs(ns) / whole, ns > 0) for name, ns in named)


def _loss(of_run: StepOfRun, summary: StepSummary) -> str:
    loss = time_words(summary.loss_ns)
    if summary.loss_ns is None or not of_run.step_time_ns:
        return loss
    return f"{loss} ({percent_words(summary.loss_ns / of_run.step_time_ns)} of {time_words(of_run.step_time_ns)})"


def _sentence(of_run: StepOfRun, summary: StepSummary, hosts: Hosts) -> str:
    assert summary.max_rank is not None
    who = rank_words(summary.max_rank, hosts.get(summary.max_rank))
    late = time_words(summary.max_deviation_ns)
    text = f"In {of_run.step} {who} was {late} later than the mean of {count_words(summary.ranks, 'rank')}"
    began = summary.divergence
    if began is None:
        return f"{text}; nothing in it leaves the noise of the kernels' own times."
    text += f", from kernel {began.kernel_index} ({brief(short_name(began.kernel_name))}) on"
    if summary.split is not None:
        text += f": {_mainly(summary.split)}"
    return f"{text}. Loss: {_loss(of_run, summary)}."


def _mainly(split: Split) -> str:
    """Name the parts that make it up, the largest first; a part under a tenth of the largest is left to the table."""
    named = [
        (split.start_ns, "before its first kernel"),
        (split.cpu_ns, "in gaps between kernels (CPU)"),
        (split.gpu_ns, "in kernel durations (GPU)"),
    ]
    named.sort(key=lambda part: -part[0])
    told = [f"{time_words(ns, signed=True)} {where}" for ns, where in named if ns > 0 and ns >= named[0][0] / 10]
    return ", ".join(told) or "no single part of it is late"
