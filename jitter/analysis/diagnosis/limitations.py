"""Limits of a diagnosis, and its conclusion: what keeps ranks, hosts and links from being cleared.

Groups, partners, ranks or steps that were not recorded or cannot be compared.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Final

import numpy as np

from jitter.analysis.detection.findings import of_one_rank
from jitter.analysis.detection.pipeline_stages import find_exchanging_teams
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.detection.run_transfers import meeting_at_one, number_places
from jitter.analysis.diagnosis.causes import CAUSES, find_cause
from jitter.analysis.diagnosis.evidence.facts import Evidence
from jitter.analysis.diagnosis.model import Cleared, Conclusion, Culprit, Loss, Status, StepAnswer, UnrecordedRanks
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.replay.what_if import Scenario
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import (
    Ranks,
    capitalize,
    format_count,
    format_numbered,
    format_numbers,
    format_percent,
    format_ranks,
    format_time,
)
from jitter.lake.records import TRAIN


def bound_unrecorded(evidence: Evidence) -> UnrecordedRanks | None:
    """Return the unrecorded ranks with the bound of their cost; None if all ranks of the job were recorded."""
    if not evidence.coverage.has_unrecorded_ranks:
        return None
    analysis, ranks = evidence.analysis, evidence.coverage.missing_ranks
    without_steps = evidence.coverage.incomplete_ranks, evidence.coverage.unread_ranks
    incomplete, unread = (tuple(sorted(of_kind)) for of_kind in without_steps)
    whole = float(np.nansum(analysis.measured.step_ns))
    at_most_ns = evidence.coverage.bound_ns() if evidence.coverage.incomplete_groups.any() and whole > 0 else 0.0
    if at_most_ns <= 0:  # collectives take time: the replay does not tell what waits for them
        return UnrecordedRanks(ranks, None, None, incomplete, unread, evidence.coverage.unplaced)
    fraction = at_most_ns / whole
    return UnrecordedRanks(ranks, round(at_most_ns), fraction, incomplete, unread, evidence.coverage.unplaced)


_WHY_MISSING: Final = (
    "{0:was|were} not recorded",
    "recorded no step completely",
    "{0:has a recording|have recordings} that could not be read",
)


def explain_unrecorded(unrecorded: UnrecordedRanks) -> str:
    """Say which ranks of the job have no recording, and what they may cost."""
    ranks, subject, them = Ranks(unrecorded.ranks), "process groups name ranks that were not recorded", "such a rank"
    if ranks:
        unknown = set(ranks).difference(unrecorded.incomplete, unrecorded.unread)
        of_each = zip(_WHY_MISSING, (unknown, unrecorded.incomplete, unrecorded.unread), strict=True)
        why = ", or ".join(words.format(ranks) for words, some in of_each if some)
        subject, them = f"{ranks} of the job {why}", "it" if len(ranks) == 1 else "them"
    if count := unrecorded.unplaced:
        recordings = f"{format_count(count, 'recording')} of unknown rank {'was' if count == 1 else 'were'} left out"
        subject, them = (f"{subject}, and {recordings}", "them") if ranks else (recordings, them)
    if unrecorded.at_most_ns is None or unrecorded.fraction is None:
        return capitalize(f"{subject}: {'they' if them == 'them' else them} may be slow too")
    return capitalize(
        f"{subject}: waiting for {them} may cost up to {format_time(unrecorded.at_most_ns)} "
        f"({format_percent(unrecorded.fraction)}), the time in collectives after the last recorded rank arrives."
    )


_LIMITS: Final = THRESHOLDS.evidence


def first_start_spread(analysis: RunAnalysis) -> tuple[float, int | None]:
    """Return the widest spread of the ranks' starts in the first step, over teams, ns, and the rank that starts last.

    0 and None where it is unknown. Starts are compared by the time to the step's last aligning collective, which all
    ranks leave together. A rank starts with its first kernel; where the host time before that is charged to the rank,
    with its step marker.
    """
    run, markers = analysis.run, analysis.run.beginnings(analysis.run.keys[0])
    widest: tuple[float, int | None] = 0.0, None
    for team, size in run.sizes.items():
        step = run.team_times(run.keys[0], team)
        if size < 2 or len(step.ranks) < 2:
            continue
        shared = analysis.steps.ends.shared(team, step.end)
        # empty for a program without a main-stream kernel
        begun = step.start[run.programs[team].first_kernel :][:1].ravel()
        if not run.has_consecutive_steps:
            marked = markers[[run.number_of[rank] for rank in step.ranks.tolist()]]
            begun = begun if np.isnan(marked).any() else marked
        if len(shared) and len(begun) and not np.isnan(begun).any():
            ahead = shared[-1] - begun
            widest = max(widest, (float(np.ptp(ahead)), int(step.ranks[ahead.argmin()])), key=itemgetter(0))
    return widest


def _describe_first_starts(analysis: RunAnalysis) -> tuple[str | None, str | None]:
    """Return what the spread of the first starts leaves open, as a doubt where no later step shows it, else a note."""
    (spread_ns, last), usual_ns = first_start_spread(analysis), analysis.measured.usual_step_ns
    is_lasting = not analysis.run.has_consecutive_steps and last is not None
    if is_lasting and spread_ns >= THRESHOLDS.min_clear_share * usual_ns:
        doubt = (
            f"Rank {last} begins the recorded step last, {format_time(spread_ns)} after the first rank "
            f"({format_percent(spread_ns / usual_ns)} of it): the reason lies before the recording, so no rank is "
            "charged for it or cleared of it."
        )
        return doubt, None
    note = (
        f"In the first recorded step, ranks start up to {format_time(spread_ns)} apart: the reason lies before the "
        "recording, so no rank is charged for it."
    )
    return None, note if spread_ns >= max(THRESHOLDS.minor_share * usual_ns, _LIMITS.min_first_start_ns) else None


def _describe_uncounted(evidence: Evidence) -> Iterator[str]:
    """Say what ranks lose in steps that have no known time, and stand out with in no other one."""
    analysis, uncounted = evidence.analysis, evidence.analysis.account.uncounted
    measured, lost_ns = analysis.measured, dict[tuple[tuple[int, ...], str], dict[int, float]]()
    for late in analysis.outliers.above_noise.of_ranks:
        steps = list(late.steps)
        loss_ns = float(uncounted.own_ns[late.part, steps, uncounted.column(late.rank)].sum())
        is_much = loss_ns >= THRESHOLDS.min_clear_share * measured.assumed_step_ns[steps].sum()
        if is_much and np.isnan(measured.step_ns[steps]).all():
            words = CAUSES[find_cause(evidence, of_one_rank(late)).cause].words
            lost_ns.setdefault((late.steps, words), {})[late.rank] = loss_ns
    for (numbers, words), of_ranks in lost_ns.items():
        began = format_numbered("step", [analysis.keys[number].step for number in numbers])
        ranks = Ranks(sorted(of_ranks))
        yield (
            f"Nothing tells when {began} began, so no loss there counts: {ranks} {ranks:loses|lose} "
            f"{format_time(sum(of_ranks.values()))} ({words})."
        )


def doubt_step_numbers(analysis: RunAnalysis) -> str | None:
    """Return which ranks number their steps otherwise than the others; None if all do it alike."""
    shifted = analysis.measured.shifted_numbers
    if not shifted:
        return None
    rank, shift = min(shifted.items())
    keys = [key.step for key in analysis.keys]
    step = keys[len(keys) // 2]
    return (
        f"{format_ranks(sorted(shifted)).capitalize()} {'numbers its' if len(shifted) == 1 else 'number their'} steps "
        f"otherwise than the other ranks: step {step + shift} of rank {rank} is their step {step}, as the times from "
        "one step's last collective to the next show. Steps of one number do not belong together, so what is late "
        "there cannot be told: mark the steps of all ranks alike, or ingest the others alone."
    )


def describe_warm_up(analysis: RunAnalysis) -> str | None:
    """Return a sentence on first steps that are slow for all ranks; None if they are not."""
    warm_up = analysis.slow_steps.warm_up
    if warm_up is None:
        return None
    last, after, end = (analysis.keys[at] for at in (warm_up.steps[-1], warm_up.steps[-1] + 1, -1))
    first = f"Step {last.step}, the first of known time, takes"
    if (count := len(warm_up.steps)) > 1:
        first = f"The first {format_count(count, 'step')} of known time, up to step {last.step}, take"
    return (
        f"{first} {format_time(warm_up.excess_ns / count)} longer on all ranks: a warm-up (compilation, autotuning, "
        f"allocation), unless all GPUs or hosts were slow then. To leave it out: --steps {after.step}-{end.step}."
    )


def describe_programs(analysis: RunAnalysis) -> Iterator[str]:
    """Say which steps run another program than most steps of their kind."""
    steps = analysis.steps
    of_steps = zip(steps.alike.kinds, steps.alike.programs.tolist(), strict=True)
    for kind, program in sorted({(kind, program) for kind, program in of_steps if program > 0}):
        is_kind = np.array(steps.alike.kinds) == kind
        numbers = np.flatnonzero(is_kind & (steps.alike.programs == program))
        kernels, usual_kernels = (
            np.nanmedian(steps.alike.kernel_counts[some]) for some in (numbers, is_kind & (steps.alike.programs == 0))
        )
        most, example = (
            ("most steps", "the last micro-batch of an optimizer step or an evaluation does")
            if kind == TRAIN
            else (f"most steps of kind {kind}", "a batch of another size does, or one without a graph")
        )
        in_most = f"{usual_kernels:.0f} in {most}" if kernels != usual_kernels else f"other ones in {most}"
        yield (
            f"Another program runs in {format_numbered('step', [analysis.keys[at].step for at in numbers])} "
            f"({kernels:.0f} kernels on the median rank, {in_most}), as {example}: a step is compared with those of "
            "its own program."
        )


def describe_lone_sizes(analysis: RunAnalysis) -> str | None:
    """Return a sentence on steps that cannot be compared with others, as their batches have other sizes."""
    if len(analysis.steps.alike.by_size) > len(analysis.steps.alike.by_known_size):
        return (
            "The GPU time of all ranks varies from step to step, as with batches of many sizes: it is compared with "
            "that of steps of about its size, and whether the GPUs of all ranks are slow in some cannot be told."
        )
    alike = analysis.steps.alike
    lone = [int(numbers[0]) for numbers in alike.by_size if len(numbers) == 1]
    known = sorted(analysis.keys[number].step for number in lone if not np.isnan(alike.sizes[number]))
    if len(analysis.keys) == 1 or not known:
        return None
    return (
        f"No other step of the kind has a batch as large as that of {format_numbered('step', known)}: whether all "
        "ranks, or the network, are slow there cannot be told."
    )


def _describe_idle_moments(analysis: RunAnalysis) -> str | None:
    if not (numbers := analysis.slow_steps.after_idle):
        return None
    steps = format_numbered("step", [analysis.keys[number].step for number in numbers])
    return f"All recorded ranks start {steps} late: the engine may have had no requests, so this is no finding."


CONTRADICTION: Final = (
    "With every rank at the median speed the steps would take longer than recorded: events are missing that tell what "
    "waited for what, or the network is slow in most of its messages, so the loss is unknown, and no rank can be "
    "cleared."
)
NO_LAUNCHES: Final = (
    "Launches were not recorded: the time in which a GPU is idle before a kernel counts as its host's time."
)
NO_COMMON_STEP: Final = (
    "The ranks recorded no step in common, so they cannot be compared, and no rank can be cleared: "
    "record the same steps on all ranks."
)
ONE_STEP: Final = (
    "Only one step was recorded, which cannot tell whether anything recurs: record at least "
    f"{THRESHOLDS.min_steps} consecutive steps."
)
_ASSUMED_RANK: Final = "Nothing states the rank of the only recording: it is taken as rank 0."
_ASSUMED_GROUPS: Final = "The groups of some collectives were not recorded: they are assumed to span all ranks."
_INFERRED_GROUPS: Final = (
    "The groups of some collectives were not recorded: they were inferred from which ranks leave them together."
)
_NO_PARTNERS: Final = (
    "Some exchanges name no partners, and their ends show that not all ranks take part: waiting in them cannot be "
    "attributed to a rank, and counts as own time."
)
_INTERFERENCE: Final = (
    "Compute kernels take {} longer while a collective runs on their GPU: savings include what shorter waiting gives "
    "back."
)
_UNCOUPLED: Final = (
    "The recorded groups of some collectives contradict their order: each rank's is taken by itself, so that waiting "
    "in them cannot be attributed to a rank."
)
_GUESSED_STEPS: Final = (
    "The traces have no step markers: where steps begin is inferred, and in which steps a finding lies."
)
_LOST_EVENTS: Final = (
    f"{{}}: more than {1 - THRESHOLDS.whole_share:.0%} of the kernels or launches of some steps were not recorded. "
    "Findings about these ranks are in doubt, and so are savings: record again with larger profiler buffers, or fewer "
    "steps."
)
_UNKNOWN_PARTNERS: Final = (
    "The rank's collectives name no groups: the ranks that it waits for in them are unknown, and were not recorded."
)


def list_limits(
    evidence: Evidence, loss: Loss, culprits: Sequence[Culprit], unrecorded: UnrecordedRanks | None
) -> tuple[list[str], list[str]]:
    """Return the limits of the diagnosis: those because of which no rank, host or link can be cleared, and others."""
    analysis, run = evidence.analysis, evidence.analysis.run
    (start_doubt, start_note), peerless = _describe_first_starts(analysis), find_lone_ranks(run)
    is_compared = not run.misses_partners and len(find_exchanging_teams(run)) > 1
    has_waits, misnumbered = culprits or run.is_unexplained, doubt_step_numbers(analysis)
    doubts = [
        NO_COMMON_STEP if lacks_common_step(evidence) else None,
        None if unrecorded is None else explain_unrecorded(unrecorded),
        misnumbered,
        start_doubt,
        *_describe_uncounted(evidence),
        CONTRADICTION if misnumbered is None and analysis.account.contradicts_recording else None,
        *_describe_model_error(evidence, loss),
        *(() if has_waits else _describe_possible_waits(evidence, loss)),
        _NO_PARTNERS if run.matching.unpaired else None,
        _LOST_EVENTS.format(format_ranks(lossy).capitalize())
        if (lossy := sorted(analysis.measured.lossy_ranks))
        else None,
        _UNCOUPLED if run.schedule.uncoupled else None,
        explain_no_peers(peerless, are_stages=is_compared) if peerless else None,
        _describe_following_hosts(run),
        *_describe_fast_ranks(evidence, culprits),
        *(_describe_host_waits(evidence) if run.is_unexplained else ()),
    ]
    unverified = unverified_transfers(evidence)
    interference = max((rules.interference for rules in run.dependencies.values()), default=0.0)
    others = [
        *(() if run.is_unexplained else _describe_host_waits(evidence)),
        start_note,
        describe_warm_up(analysis),
        *describe_programs(analysis),
        describe_lone_sizes(analysis),
        _describe_idle_moments(analysis),
        None if all(evidence.has_launches(team) for team in run.programs) else NO_LAUNCHES,
        _GUESSED_STEPS if evidence.coverage.has_guessed_steps else None,
        _INFERRED_GROUPS if run.matching.inferred else None,
        (_UNKNOWN_PARTNERS if evidence.is_single_rank else _ASSUMED_GROUPS) if run.matching.unrecorded else None,
        _INTERFERENCE.format(format_percent(interference)) if interference > 0 else None,
        None if unverified is None else explain_unverified_network(unverified),
        "Only one rank was recorded: it cannot be compared with other ranks." if len(run.team_of) < 2 else None,
        _ASSUMED_RANK if evidence.coverage.has_assumed_rank else None,
        ONE_STEP if len(run.keys) < 2 else None,
        *_describe_side_work(evidence),
        _describe_unfinished_step(evidence),
    ]
    return [doubt for doubt in doubts if doubt is not None], [limit for limit in others if limit is not None]


def _describe_unfinished_step(evidence: Evidence) -> str | None:
    """Say which ranks of one program ran the fewest kernels outside the steps, where most ran as many as any.

    Of a job that hung, all others got at least as far in the program as the rank that they wait for.
    """
    kernels = Counter[int]()
    for source in evidence.traces.sources:
        if source.rank is not None and source.steps_from == "marker":
            kernels[source.rank] += source.outside_steps
    least, most = min(kernels.values(), default=0), max(kernels.values(), default=0)
    behind, ahead = ([rank for rank in sorted(kernels) if kernels[rank] == count] for count in (least, most))
    if least == most or 2 * len(ahead) <= len(kernels) or len(evidence.analysis.run.programs) > 1:
        return None
    few = Ranks(behind)
    return (
        f"Outside every step {few} ran {format_count(least, 'kernel')} and most ranks {most:,}: if the job hung at the "
        f"end of the recording, it waits for {'one of ' if len(behind) > 1 else ''}{few}."
    )


def _describe_side_work(evidence: Evidence) -> Iterator[str]:
    """Say which steps contain a checkpoint, and which a validation."""
    for kind, times in evidence.side_work_times.items():
        shown = [str(key) for key in sorted(times)[: THRESHOLDS.sentences.max_named]]
        unlisted = len(times) - len(shown)
        listed = ", ".join(shown) + (f" and {format_count(unlisted, 'more step')}" if unlisted else "")
        ranks = format_ranks(sorted({rank for by_rank in times.values() for rank in by_rank}))
        longest = max(ns for by_rank in times.values() for ns in by_rank.values())
        yield f"A {kind} lies in {listed} ({ranks}, up to {format_time(longest)})."


def _describe_host_waits(evidence: Evidence) -> Iterator[str]:
    """Say how the waits of hosts that no call records are treated."""
    run = evidence.analysis.run
    places = {
        (team, wait.op_index)
        for team, rules in run.dependencies.items()
        for waits in rules.of_hosts.values()
        for wait in waits
    }
    if places:
        yield (
            f"Hosts wait for their GPU at {format_count(len(places), 'place')} of a step without a recorded call: the "
            "waits are inferred from how launches follow the ends of GPU activities."
        )
    if run.unexplained_fraction >= THRESHOLDS.min_cost_share:
        doubt = ": every saving is a range, and no finding about ranks is sure" if run.is_unexplained else ""
        yield (
            f"{format_percent(run.unexplained_fraction)} of the step time is in host gaps that vary and may be waits "
            f"for the GPU without a recorded call{doubt}."
        )


def _describe_following_hosts(run: RunModel) -> str | None:
    """Say which hosts wait for other ranks, which no price contains."""
    ranks = sorted(frozenset[int]().union(*run.following_hosts.values()))
    if not ranks:
        return None
    return (
        f"Hosts of {format_ranks(ranks)} go on after ends of other ranks' steps, as if they waited for the last "
        "stage's tokens: where they are late by that is no finding, and what a late rank costs through it has no price."
    )


def _describe_possible_waits(evidence: Evidence, loss: Loss) -> Iterator[str]:
    """Say what jitter costs if hosts wait for the GPU wherever the recording allows it, if that is much more."""
    analysis = evidence.analysis
    (possible_ns,) = analysis.bound_gains([Scenario(everything=True)])
    run_ns = float(analysis.measured.total(analysis.measured.assumed_step_ns))
    if loss.ns is not None and possible_ns - loss.ns >= THRESHOLDS.min_clear_share * run_ns:
        yield (
            "Host gaps may be waits for the GPU without a recorded call, or the host's own time: if they are waits, "
            f"jitter costs {format_time(possible_ns)}, so no rank can be cleared."
        )


def _describe_model_error(evidence: Evidence, loss: Loss) -> Iterator[str]:
    """Say that the replay contradicts the recording: by more than the clocks err, jitter would make the run shorter."""
    analysis = evidence.analysis
    qualities = analysis.measured.statistics.qualities
    error_ns = max((quality.uncertainty_ns or 0 for quality in qualities), default=0) * len(analysis.keys)
    if loss.ns is not None and analysis.account.prolonged_ns > max(error_ns, THRESHOLDS.later_ns * len(analysis.keys)):
        yield (
            f"Replayed with every rank at the median, the run takes {format_time(analysis.account.prolonged_ns)} "
            "longer than recorded: what waits for what is not fully known, so savings may be wrong."
        )


def lacks_common_step(evidence: Evidence) -> bool:
    """Return whether there are several ranks, and no two of them recorded the same step."""
    analysis = evidence.analysis
    return len(analysis.run.team_of) > 1 and all(len(evidence.records[key]) < 2 for key in analysis.keys)


def find_lone_ranks(run: RunModel) -> list[int]:
    """Return ranks that cannot be compared with any other rank, although there are others."""
    return sorted(rank for rank, team in run.team_of.items() if run.sizes[team] == 1 < len(run.team_of))


def _describe_fast_ranks(evidence: Evidence, culprits: Sequence[Culprit]) -> Iterator[str]:
    """Say which few ranks are faster than all others: the others may be slow, unless they are culprits already."""
    named = {rank for culprit in culprits for rank in culprit.ranks}
    for gap in evidence.analysis.outliers.fast_ranks:
        if not named.issuperset(gap.slow):
            fast = Ranks(gap.fast)
            yield capitalize(
                f"{fast} {fast:needs|need} {format_time(gap.gap_ns)} of GPU time per step less than "
                f"{format_ranks(gap.slow)}: unless there is less work there, the others are slow, which the loss "
                "does not show."
            )


def unverified_transfers(evidence: Evidence, shared_by: Mapping[int, object] | None = None) -> float | None:
    """Return the part of the run's time that transfers take and no benchmark gives; None if it is too small to matter.

    A network that is slow for all ranks in every step is the baseline of its own run. With `shared_by`, the host of
    each rank, or the rank itself: of transfers alike of which one of these takes part in most, as its link is then in
    their baseline.
    """
    arrays, alike = evidence.analysis.run.collective_arrays, evidence.analysis.transfers.alike.numbers
    unverified = ~arrays.incomplete  # the time of incomplete ones is that of unrecorded ranks, too
    if shared_by is not None:
        places = number_places(shared_by[rank] for rank in evidence.analysis.run.rank_numbers.tolist())
        unverified = unverified & meeting_at_one(arrays, alike, places)
    is_unknown = np.isnan(np.stack(evidence.analysis.transfers.expected))
    unverified_ns = float(sum(evidence.coverage.transfers_ns(is_unknown & unverified).tolist()))
    whole_ns = float(evidence.analysis.measured.assumed_step_ns.sum())
    share = unverified_ns / whole_ns if whole_ns > 0 else 0.0
    return share if share >= THRESHOLDS.min_clear_share else None


def explain_unverified_network(share: float) -> str:
    """Say what cannot be seen of the network, and what to add."""
    return (
        f"Communication on the critical path takes {format_percent(share)} of the steps, and nothing in this run says "
        "how long it should take: a network that is slow for all ranks in every step is not excluded. Ingest the "
        "output of nccl-tests on these nodes with the traces, or compare with a good run (jitter compare GOOD NEW)."
    )


def explain_no_peers(ranks: Sequence[int], *, are_stages: bool = False) -> str:
    """Say what cannot be seen of ranks without peers, whose kernels may be compared with those of other stages."""
    if len(ranks) == 1:
        subject, one = f"Rank {ranks[0]} runs a program of its own", "it"
    else:
        subject, one = f"Ranks {format_numbers(ranks)} each run a program of their own", "one of them"
    if are_stages:
        return (
            f"{subject}: what slows {one} in every step is seen only where its kernels take longer than other ranks'."
        )
    return f"{subject}: a fault that slows {one} in every step cannot be seen."


def conclude(
    evidence: Evidence, loss: Loss, steps: Sequence[StepAnswer], culprits: Sequence[Culprit]
) -> tuple[Conclusion, tuple[str, ...]]:
    """Return the conclusion from the loss, the steps and the findings, and the limits of the diagnosis as sentences."""
    unrecorded = bound_unrecorded(evidence)
    doubts, others = list_limits(evidence, loss, culprits, unrecorded)
    status = _status(evidence, loss, steps, culprits)
    transfers = unverified_transfers(evidence)
    cleared: tuple[Cleared, ...] = ()
    if status == "within_noise" and not doubts and not evidence.is_single_rank:
        hosts = {rank: location.host for rank, location in evidence.locations.items()}
        places: dict[Cleared, Mapping[int, object] | None] = {
            "rank": dict(zip(hosts, hosts, strict=True)),
            "host": hosts,
            "link": None,
        }
        cleared = tuple(kind for kind, of_rank in places.items() if unverified_transfers(evidence, of_rank) is None)
    return Conclusion(status, tuple(doubts), cleared, transfers, unrecorded), (*doubts, *others)


def _status(evidence: Evidence, loss: Loss, steps: Sequence[StepAnswer], culprits: Sequence[Culprit]) -> Status:
    if culprits:
        return "found"
    if loss.ns is None:
        return "unknown"
    if loss.fraction is None or loss.fraction < THRESHOLDS.min_cost_share:
        return "within_noise"
    counted = [number for number, step in enumerate(steps) if step.loss_ns is not None]
    noise = evidence.analysis.account.loss_from_noise(counted)
    is_small = loss.fraction < THRESHOLDS.min_clear_share and loss.ns <= THRESHOLDS.loss_noise_factor * noise
    return "within_noise" if is_small else "spread"
