"""Culprits: each group of findings with its certainty, recurrence, evidence, kernels and place in the profile.

Confidence is that of the attribution: doubtful is what the clocks, missing recordings, exchanges without partners and
inferred waits leave open. How often the finding was seen does not count: that is its recurrence.
"""

from collections.abc import Sequence
from statistics import median_low
from typing import Final

import numpy as np

from jitter.analysis.account.losses import CLASSES_OF_PART, LossClass, Losses, join_losses, join_some
from jitter.analysis.account.step_account import StepAccount
from jitter.analysis.alignment.kernel_index import UNMATCHED
from jitter.analysis.detection.awaited_ranks import MAY_WAIT
from jitter.analysis.detection.findings import Finding, of_one_rank
from jitter.analysis.detection.standouts import Recurrence, Recurs, decide_recurrence, decide_repetition, is_random
from jitter.analysis.diagnosis.evidence.facts import Evidence
from jitter.analysis.diagnosis.evidence.locations import find_profile_location
from jitter.analysis.diagnosis.finding_groups import FindingGroup
from jitter.analysis.diagnosis.model import Confidence, Culprit, IndexRange, Loss, Pause, Rung, Seen, StepAnswer
from jitter.analysis.diagnosis.step_pattern import find_step_pattern
from jitter.analysis.execution.self_times import TimePart
from jitter.analysis.replay.what_if import Scenario, together
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_numbers, format_percent, format_time
from jitter.core.grouping import by_key
from jitter.core.numeric.arrays import Floats

_LIMITS: Final = THRESHOLDS.sentences
_GAIN_RANGE: Final = "the saving is known as a range only: {}"
_UNKNOWN_GAIN: Final = "whether that delays other ranks is unknown: {}"


def make_culprit(
    group: FindingGroup, loss: Loss, time_ns: int, answers: Sequence[StepAnswer], evidence: Evidence
) -> Culprit:
    """Return the culprit of a group of findings that has a price.

    `time_ns` is the time of the steps that have a loss (0 if unknown), `answers` are those of all steps of the run.
    """
    analysis, steps, gain_ns, gain_range = evidence.analysis, group.steps, group.gain_ns, group.gain_range
    rank = _worst_rank(group, evidence)
    slow = next((candidate for candidate in group.candidates if candidate.kind == "slow_steps"), None)
    losses = _losses_of(group, rank, evidence) if slow is None else _losses_of_all_ranks(slow, rank, evidence)
    excess_of_steps = evidence.excess_of_steps(group.candidates).tolist()
    location = evidence.locations[rank]
    ranks = group.group.ranks
    recorded = rank if rank in ranks else ranks[0]
    if group.group.scope == "unrecorded":
        ranks = evidence.coverage.unrecorded_members(group.candidates[0]) or ranks
    else:
        steps = tuple(at for at in steps if any(rank in evidence.records[analysis.keys[at]] for rank in ranks))
    pricing = evidence.pricing
    capped_ns = cap_gain(max(gain_ns, 0.0), loss.ns if group.known_gain_ns is None else None)
    is_unknown = (analysis.measured.are_uncoupled and group.known_gain_ns is None) or (
        capped_ns < pricing.min_gain_ns(steps)
        and any(pricing.unpriced_ns(candidate) > 0 for candidate in group.candidates)
    )
    late = [answers[at] for at in steps if answers[at].max_rank in ranks and answers[at].cause == group.cause]
    late = [] if slow is not None else late  # what the ranks differ by is no part of it
    recurrence = decide_group_recurrence(group, evidence)
    recorded_at = _recorded_steps(group, evidence)
    place_of = {at: place for place, at in enumerate(recorded_at)}
    loss_ns = round(max(group.share_ns, 0.0))
    main = max(group.candidates, key=lambda candidate: candidate.excess_ns)
    if len(group.parts) > 1:
        main = max(group.candidates, key=lambda candidate: analysis.account.loss_of(candidate.repair))
    costly = _find_costly_steps(group, evidence)
    pauses = _longest_pauses(group, evidence) if group.group.scope == "job" or costly else ()
    return Culprit(
        rung=_rung(group),
        loss_class=(LossClass.AFTER if group.cause == "cpu_after" else CLASSES_OF_PART[main.part][0]).label,
        scope=group.group.scope,
        rank=rank if rank in ranks else ranks[0],
        ranks=ranks,
        host=location.host if group.group.scope in ("rank", "host") or _share_host(group, evidence) else None,
        device=location.device if group.group.scope == "device" else None,
        cause=group.cause,
        cause_certainty=group.judgement.certainty,
        confidence="low" if is_unknown else judge_confidence(group, evidence),
        seen=Seen(len(steps), len(recorded_at)),
        recurs=recurrence.answer,
        more_steps=recurrence.more_steps,
        excess_ns=round(group.excess_ns),
        gain_ns=capped_ns,
        loss_ns=loss_ns,
        fraction=loss_ns / time_ns if time_ns else None,
        steps=tuple(analysis.keys[number] for number in steps),
        step_pattern=find_step_pattern(
            [analysis.keys[at] for at in recorded_at],
            [place_of[at] for at in steps],
            [excess_of_steps[at] for at in recorded_at],
            [analysis.keys[at] for at in costly],
        ),
        kernel_index=_range_of_pauses(pauses) if costly and pauses else _kernel_range(losses, late, evidence),
        evidence=(
            describe_excess(group, evidence),
            *_describe_worst(group, evidence),
            *group.judgement.sentences,
            *((MAY_WAIT,) if _may_be_waits(group, evidence) else ()),
            *((_UNKNOWN_GAIN.format(pricing.unpriced_because),) if is_unknown else ()),
            *(() if is_unknown or gain_range is None else (_GAIN_RANGE.format(", and ".join(gain_range.unknown)),)),
        ),
        look_at=find_profile_location(analysis, recorded, losses, steps),
        is_before_steps=group.cause == "cpu_after"
        and main.part == TimePart.START
        and 2 * len(steps) <= len(recorded_at),
        is_beyond_loss=group.known_gain_ns is not None,
        pauses=pauses,
        are_others_as_late=group.is_lead and not is_unknown and gain_ns < pricing.min_gain_ns(steps),
        gain_range_ns=None if is_unknown or gain_range is None else gain_range[:2],
        unpriced_because=pricing.unpriced_because if is_unknown else "",
        advice=group.judgement.job_advice if group.group.scope == "job" and len(ranks) > 1 else group.judgement.advice,
        remedy=group.judgement.remedy,
        is_part_of_job=group.group.scope == "job" and len(group.group.ranks) < len(evidence.locations),
        lacks_ranks=evidence.coverage.has_unrecorded_ranks,
    )


def _share_host(group: FindingGroup, evidence: Evidence) -> bool:
    hosts = {evidence.locations[rank].host for rank in group.group.ranks} if group.group.scope == "ranks" else ()
    return len(hosts) == 1


def _rung(group: FindingGroup) -> Rung | None:
    """Return the rung that holds the group's loss; a slow majority of ranks, which is the median, is in none."""
    kinds = {candidate.kind for candidate in group.candidates}
    if kinds <= {"slow_steps", "awaited", "stage_slow_at_times"}:
        return "steps"
    if group.is_of_stages:
        return "balance"
    if group.known_gain_ns is None:
        return "ranks"
    return None if group.parts else "network"


def _recorded_steps(group: FindingGroup, evidence: Evidence) -> list[int]:
    """Return the numbers of the steps that some of the ranks recorded; of ranks that are missing, all of the run."""
    ranks, is_unrecorded = group.group.ranks, group.group.scope == "unrecorded"
    of_steps = [evidence.records[key] for key in evidence.analysis.keys]
    return [at for at, records in enumerate(of_steps) if is_unrecorded or any(rank in records for rank in ranks)]


def cap_gain(gain_ns: float, max_gain_ns: float | None) -> int:
    """Return the gain in whole ns, at most the loss: fixing part of the run cannot save more than fixing all of it."""
    return round(gain_ns if max_gain_ns is None else min(gain_ns, max(max_gain_ns, 0.0)))


def describe_excess(group: FindingGroup, evidence: Evidence) -> str:
    """Say how much slower the group is than its baseline, per step and rank or communicating group."""
    ranks = {outlier.rank for outlier in group.outliers}
    is_whole = len(group.steps) == len(evidence.analysis.keys)
    of_steps = "per step" if is_whole else "in this step" if len(group.steps) == 1 else "per affected step"
    usual_ns = float(evidence.analysis.measured.usual_steps_ns[list(group.steps)].mean())
    is_random = any(candidate.kind == "random_pauses" for candidate in group.candidates)
    if group.parts and (group.known_gain_ns is not None or is_random or (group.is_lead and len(ranks) > 1)):
        # ranks that are ahead shorten what those behind lose: a lead costs what both make together
        per_step = (group.share_ns if group.is_lead else group.excess_ns) / len(group.steps)
        where = "on this rank" if len(ranks) == 1 else "on these ranks"
        if group.is_lead:
            where = "where the job waited for it"
        elif group.known_gain_ns is None:  # more than the job waits for: no share of a step
            return f"{format_time(per_step)} {of_steps}, summed over the ranks"
        return f"{format_time(per_step)} {of_steps} {where} ({_format_share(per_step / usual_ns)})"
    # what precedes the first recorded step is unknown
    unknown = min((outlier.unknown_steps for outlier in group.outliers), default=0)
    per_step = group.excess_of_one_ns / max(len(group.steps) - unknown, 1)
    if group.is_lead:
        baseline = "the median of the same operations, where the job waited for it"
    elif not ranks:
        is_beside = group.known_gain_ns is not None
        baseline = "what the benchmark gives these collectives" if is_beside else "the baseline of these collectives"
    elif any(outlier.pace is not None for outlier in group.outliers):
        baseline = "the median of the other ranks for the same work"
    elif evidence.peers(group.group.ranks):
        baseline = "the median of the other ranks"
    else:
        baseline = "the median of its other steps"
    share = _format_share(per_step / usual_ns)
    # not of a lead, which passes no test; nor of a drift, whose growth counts as variation from step to step
    most = _LIMITS.max_sigmas
    sigmas = f", > {most:.0f}σ" if group.sigmas > most else f", {group.sigmas:.0f}σ"
    has_test = not group.is_lead and group.sigmas >= _LIMITS.min_sigmas
    timed = max(int((~np.isnan(evidence.analysis.measured.step_ns[list(group.steps)])).sum()), 1)
    is_small = bool(ranks) and 0 < group.share_ns / timed < THRESHOLDS.main_share * per_step
    waits = f"; the job waits for {format_time(group.share_ns / timed)} of it" if is_small else ""
    return f"{format_time(per_step)} {of_steps} above {baseline} ({share}{sigmas if has_test else ''}){waits}"


def _format_share(share: float) -> str:
    return (
        f"{format_percent(share)} of a step"
        if share <= _LIMITS.max_step_share
        else f"more than {_LIMITS.max_step_share:.0f} steps' time"
    )


def _losses_of(group: FindingGroup, rank: int, evidence: Evidence) -> Losses:
    """Return the shares of a group that have a place, in order of steps: of its worst rank, or of its collectives.

    What a rank loses at the end of a step is lost by the step after it: a share is of the step of its operation.
    """
    transfers = [transfer for candidate in group.candidates for transfer in candidate.transfers]
    classes = [loss_class for part in group.parts for loss_class in CLASSES_OF_PART[part]] or [LossClass.TRANSFER]
    chosen = []
    for joined in join_some([_shares_of(evidence.analysis.account.of_steps[at], group, rank) for at in group.steps]):
        shares = joined.of(classes, rank if group.parts else None)
        if not group.parts:
            shares = evidence.locate_transfers(shares.where(np.isin(shares.group, transfers)), rank)
        chosen.append(shares.where((shares.place >= 0) & np.isin(shares.origin, group.steps)))
    shares = join_losses(chosen)
    return shares.where(np.argsort(shares.origin, kind="stable"))


def _shares_of(account: StepAccount, group: FindingGroup, rank: int) -> Losses:
    """Return a step's shares: all of the rank to which most is lost, if it is the group's worst one."""
    is_largest = group.parts and len(account.largest) and account.largest.rank[0] == rank
    return account.largest if is_largest else account.losses


def _losses_of_all_ranks(slow: Finding, rank: int, evidence: Evidence) -> Losses:
    """Return what the usual rank of a rank's team takes longer than in the other steps, as this rank's shares.

    In steps that are slow for all ranks, the shares of the loss are those of jitter beside that.
    """
    run, measured = evidence.analysis.run, evidence.analysis.measured
    usual, losses, team = measured.usual_beside(slow.steps), list[Losses](), run.team_of[rank]
    place = np.arange(run.job.first[team + 1] - run.job.first[team])
    is_start = place <= run.job.first_kernel[team]
    is_of_part = {TimePart.START: is_start, TimePart.CPU: ~is_start}.get(slow.part, place >= 0)
    loss_class, ones = int(CLASSES_OF_PART[slow.part][0]), np.ones(len(place), np.int64)
    for number in slow.steps:
        baseline = measured.steps.baseline(number)
        longer_ns = baseline.delay + baseline.gpu - usual.delay - usual.gpu
        if slow.part is not TimePart.GPU:
            longer_ns = baseline.host_and_call - usual.host_and_call
        ns = np.where(is_of_part, np.nan_to_num(longer_ns)[run.job.first[team] + place], 0.0)
        numbers = np.stack([number * ones, rank * ones, team * ones, loss_class * ones, place, -ones])
        losses.append(Losses(numbers, np.stack([ns, ns])))
    return join_losses(losses)


def _find_costly_steps(group: FindingGroup, evidence: Evidence) -> list[int]:
    """Return the numbers of the steps that have nearly all that is charged to a group, if they are half or fewer."""
    if not group.parts or group.known_gain_ns is not None or group.group.scope == "job":
        return []
    charges = evidence.analysis.account.charges
    places = np.ix_(sorted(group.parts), group.steps, charges.columns(sorted(group.group.ranks)))
    return [group.steps[at] for at in _find_few(charges.own_ns[places].sum(axis=(0, 2)))]


def _find_few(of_steps: Floats) -> list[int]:
    """Return where the steps stand that have nearly all of what is above 0, if they are half or fewer; else none."""
    order = np.argsort(-of_steps, kind="stable")
    whole = float(np.maximum(of_steps, 0.0).sum())
    count = int(np.searchsorted(np.cumsum(of_steps[order]), THRESHOLDS.whole_share * whole)) + 1
    return sorted(order[:count].tolist()) if whole > 0 and 2 * count <= len(order) else []


def _worst_rank(group: FindingGroup, evidence: Evidence) -> int:
    """Return the group's rank that loses most, takes most longer, or arrives last most often; of equals the lowest."""
    if group.group.scope == "job" and group.parts:
        return _lost_most(group, evidence)
    excess_ns = by_key((outlier.rank, outlier.excess_ns) for outlier in group.outliers)
    if excess_ns:
        lost_most = _lost_most(group, evidence)
        return max(excess_ns, key=lambda rank: (sum(excess_ns[rank]), rank == lost_most, -rank))
    return _most_often_last(group, evidence)


def repair_worst(group: FindingGroup, evidence: Evidence) -> Scenario:
    """Return the scenario in which, of several late ranks, the one to which most is charged is fixed alone."""
    is_priced_otherwise = group.known_gain_ns is not None or group.group.scope == "job"
    if is_priced_otherwise or len({outlier.rank for outlier in group.outliers}) < 2:
        return Scenario()
    worst = _lost_most(group, evidence)
    return together(of_one_rank(outlier).repair for outlier in group.outliers if outlier.rank == worst)


def _describe_worst(group: FindingGroup, evidence: Evidence) -> tuple[str, ...]:
    """Say what fixing the worst of several ranks alone would save, where that is worth it and not the whole saving.

    And in which steps it is later than the usual one of them, where these are few.
    """
    (alone_ns,) = evidence.analysis.gains([repair_worst(group, evidence)])
    most_ns = (1 - THRESHOLDS.tolerance_share) * group.gain_ns
    if not evidence.pricing.min_gain_ns(group.steps) <= alone_ns <= most_ns:
        return ()
    worst, steps = _lost_most(group, evidence), list(group.steps)
    excess_of = by_key((late.rank, evidence.excess_ns(late)[steps]) for late in group.outliers)
    of_ranks = np.array([np.sum(of_rank, axis=0) for of_rank in excess_of.values()])
    is_worst = np.array([rank == worst for rank in excess_of])
    later_ns = of_ranks[is_worst][0] - np.median(of_ranks[~is_worst], axis=0)
    few = [evidence.analysis.keys[steps[at]].step for at in _find_few(later_ns)]
    where = f", nearly all of it in step{'s' if len(few) > 1 else ''} {format_numbers(few)}" if few else ""
    return (f"rank {worst} is later than the others{where}: fixing it first would save {format_time(alone_ns)}",)


def _lost_most(group: FindingGroup, evidence: Evidence) -> int:
    """Return the rank to which most of the loss by the group's parts is charged; of equals the lowest."""
    ranks, charges = sorted(group.group.ranks), evidence.analysis.account.charges
    lost = charges.own_ns[np.ix_(sorted(group.parts), group.steps, charges.columns(ranks))]
    return ranks[int(np.argmax(lost.sum(axis=(0, 1))))]


def _longest_pauses(group: FindingGroup, evidence: Evidence) -> tuple[Pause, ...]:
    """Return the host's pauses that cost most in the group's steps."""
    parts = [part for part in group.parts if part != TimePart.GPU]
    largest: list[tuple[float, int, Losses]] = []
    # of all ranks that pause alike none pauses longer than the others
    least_ns = THRESHOLDS.tolerance_share * group.excess_ns / len(group.steps)
    for number in group.steps if parts else ():
        rows = evidence.analysis.account.of_steps[number].losses
        shares = rows.of([loss_class for part in parts for loss_class in CLASSES_OF_PART[part]])
        shares = shares.where((shares.origin == number) & (shares.place >= 0) & np.isin(shares.rank, group.group.ranks))
        longest = np.argsort(-shares.loss_ns, kind="stable")[: _LIMITS.max_named].tolist()
        largest += [
            (float(shares.loss_ns[at]), number, shares.where(np.array([at])))
            for at in longest
            if shares.loss_ns[at] > least_ns
        ]
    pauses = []
    for _, number, shares in sorted(largest, key=lambda stall: -stall[0])[: _LIMITS.max_named]:
        key, rank = evidence.analysis.keys[number], int(shares.rank[0])
        kernel = evidence.kernels.locate(key, rank, int(shares.team[0]), int(shares.place[0]))
        if kernel is not None:
            pauses.append(Pause(key, rank, kernel.kernel_index, round(float(shares.excess_ns[0]))))
    return tuple(pauses)


def _range_of_pauses(pauses: Sequence[Pause]) -> IndexRange:
    indices = [pause.kernel_index for pause in pauses]
    return IndexRange(min(indices), max(indices))


def _most_often_last(group: FindingGroup, evidence: Evidence) -> int:
    """Return the group's rank that arrived last at most collectives; of equals the lowest."""
    last_at = evidence.analysis.measured.statistics.arrivals.last_at[list(group.steps)].sum(axis=0)
    counts = dict(zip(evidence.analysis.run.rank_numbers.tolist(), last_at.tolist(), strict=True))
    return max(group.group.ranks, key=lambda rank: (counts.get(rank, 0), -rank))


def _kernel_range(losses: Losses, late: Sequence[StepAnswer], evidence: Evidence) -> IndexRange | None:
    """Return the kernel indices, each of its own step, among which nearly all of the loss arose.

    It begins no later than where a rank of the finding diverges first in the usual one of the steps `late`, in which it
    is the max rank, if it does.
    """
    located = evidence.kernels.locate_all(losses)
    is_located = located != UNMATCHED
    indices, of_index = np.unique(located[is_located], return_inverse=True)
    lost = np.bincount(of_index, losses.loss_ns[is_located], len(indices))
    if not lost.sum() > 0:
        return None
    # noise of both signs cancels out: before the first late kernel, the sum stays near 0
    running = np.cumsum(lost) / lost.sum()
    tail = (1 - THRESHOLDS.whole_share) / 2
    stays_over = np.minimum.accumulate(running[::-1])[::-1] > tail
    at = int(np.argmax(stays_over))
    last = int(indices[at + np.argmax(running[at:] >= 1 - tail)])
    diverging = [step.divergence.kernel_index for step in late if step.divergence is not None]
    first = min(int(indices[at]), median_low(diverging or [int(indices[at])]))
    return IndexRange(first, max(first, last))


def judge_confidence(group: FindingGroup, evidence: Evidence) -> Confidence:
    """Return the confidence of a group of findings."""
    if _is_doubtful(group, evidence):
        return "low"
    if group.chance <= THRESHOLDS.high_chance or group.sigmas > THRESHOLDS.sentences.max_sigmas:
        # host time that no launches were recorded for, but gaps of the GPU; hosts that wait, which no call records;
        # sizes of messages, taken to be those of links with about as many
        is_inferred = (
            any(candidate.kind == "awaited" for candidate in group.candidates)
            or _may_be_waits(group, evidence)
            or any(
                candidate.transfers and evidence.analysis.transfers.has_assumed_sizes(candidate)
                for candidate in group.candidates
            )
            or any(
                outlier.part != TimePart.GPU and not evidence.has_launches(outlier.team) for outlier in group.outliers
            )
        )
        return "medium" if is_inferred else "high"
    return "medium" if group.chance <= THRESHOLDS.medium_chance else "low"


def _may_be_waits(group: FindingGroup, evidence: Evidence) -> bool:
    """Return whether hosts that pause may wait for another one: most ranks pause in a step of theirs, or beside it."""
    if TimePart.GPU in group.parts or not group.parts or group.judgement.certainty == "certain":
        return False
    above_noise = evidence.analysis.outliers.above_noise
    pauses = [
        outlier
        for outlier in (*above_noise.of_ranks, *(late for random in above_noise.random for late in random.members))
        if outlier.part != TimePart.GPU and not outlier.persistent
    ]
    late, ranks = by_key((at, pause.rank) for pause in pauses for at in pause.steps), len(evidence.locations)
    # pauses of a few ranks in each step are no barrier, whatever these add up to
    of_most = {at + beside for at, those in late.items() if 2 * len(set(those)) > ranks > 1 for beside in (-1, 0, 1)}
    are_slow = any(candidate.kind == "slow_steps" for candidate in group.candidates)
    return are_slow or not of_most.isdisjoint(group.steps)


def _is_doubtful(group: FindingGroup, evidence: Evidence) -> bool:
    """Return whether something that was not recorded may explain a finding as well."""
    return (
        group.group.scope == "unrecorded"
        or evidence.analysis.account.contradicts_recording
        or evidence.analysis.run.is_unexplained
        or not evidence.analysis.measured.lossy_ranks.isdisjoint(group.group.ranks)
        or (not group.is_of_stages and _hinges_on_unrecorded(group, evidence))
        or _exceeds_clocks(group, evidence)
        or _hinges_on_waits(group, evidence)
    )


def _hinges_on_unrecorded(group: FindingGroup, evidence: Evidence) -> bool:
    """Return whether ranks, partners or groups that were not recorded may explain it."""
    matching = evidence.analysis.run.matching
    if not group.parts:
        # of exchanges without partners, waiting cannot be told from transfers
        is_unknown = group.judgement.certainty == "unknown"
        return is_unknown or evidence.coverage.has_unrecorded_ranks or matching.unpaired > 0
    if any(evidence.share_in_exchanges(outlier) >= THRESHOLDS.main_share for outlier in group.outliers):
        return True
    # what a rank without peers waits for is known from the groups of its collectives alone
    return evidence.peers(group.group.ranks) < 1 and (evidence.coverage.has_unrecorded_ranks or matching.lacks_groups)


def _exceeds_clocks(group: FindingGroup, evidence: Evidence) -> bool:
    """Return whether the clocks of the ranks err by more than a part of the excess of one rank in one step."""
    qualities = evidence.analysis.measured.statistics.qualities
    error_ns = max((qualities[number].uncertainty_ns or 0 for number in group.steps), default=0)
    return error_ns > THRESHOLDS.main_share * group.excess_of_one_ns / max(len(group.steps), 1)


def _hinges_on_waits(group: FindingGroup, evidence: Evidence) -> bool:
    """Return whether host time is worth no report if hosts wait otherwise, as the recording allows as well.

    Waits decide what is a host's own time; a GPU's is known, whatever its repair saves.
    """
    if group.known_gain_ns is not None or group.parts <= {TimePart.GPU}:
        return False
    (gain_ns,) = evidence.analysis.gains([group.scenario])
    (other_ns,) = evidence.analysis.bound_gains([group.scenario])
    return other_ns < evidence.pricing.min_gain_ns(group.steps) <= gain_ns


_ORDER: tuple[Recurs, ...] = ("yes", "together", "no", "unknown")
"""Of several findings of a group, the first of these answers counts."""


def decide_group_recurrence(group: FindingGroup, evidence: Evidence) -> Recurrence:
    """Return whether a group of findings recurs."""
    if not group.parts:
        return _of_communication(group, evidence)
    if group.is_lead and group.group.scope == "host":  # one of its ranks after another
        charges, ranks = evidence.analysis.account.charges, group.group.ranks
        times, steps = charges.count_last(charges.columns(ranks))
        return decide_repetition(times, steps - times, len(ranks) / len(charges.ranks), len(evidence.analysis.keys))
    answers = [
        _of_job(candidate, evidence)
        for candidate in group.candidates
        if candidate.kind not in ("late_rank", "late_together", "awaited")
    ]
    alike = {(outlier.team, outlier.part): outlier for outlier in group.outliers}
    nodes, ranks = evidence.nodes, group.group.ranks
    host = [rank for rank, node in nodes.items() if group.group.scope == "host" and node == nodes.get(ranks[0])]
    answers = answers or [
        decide_recurrence(evidence.analysis.outliers.standouts_of(outlier), ranks, group.steps, host)
        for outlier in alike.values()
    ]
    return min(answers, key=lambda test: (_ORDER.index(test.answer), test.more_steps is None, test.more_steps or 0))


def _of_job(job: Finding, evidence: Evidence) -> Recurrence:
    """Return the answer for a finding about many ranks, whose detector compares them in its own way."""
    recorded = len(evidence.analysis.keys)
    if job.kind == "slow_steps":
        return Recurrence("together")
    if job.kind == "random_pauses":
        team = evidence.analysis.measured.deviations_of(job.members[0].team)
        events = np.array([len(job.steps_of_rank.get(rank, ())) for rank in team.ranks.tolist()])
        return Recurrence("no") if is_random(events) else Recurrence("unknown", recorded)
    if recorded < THRESHOLDS.min_steps:
        return Recurrence("unknown", THRESHOLDS.min_steps - recorded)
    if job.kind == "in_turn":
        return Recurrence("no")
    if job.kind == "uneven_ranks":
        return Recurrence("yes")
    return Recurrence("yes" if job.chance < THRESHOLDS.medium_chance else "unknown")


def _of_communication(group: FindingGroup, evidence: Evidence) -> Recurrence:
    """Return the answer for slow communication: against the other slow communication of the run."""
    recorded, slow = len(evidence.analysis.keys), len(group.steps)
    if slow == recorded >= THRESHOLDS.min_repeats or group.candidates[0].kind == "random_transfers":
        return Recurrence("yes")
    if group.group.scope == "unrecorded":
        return Recurrence("unknown")  # the same rank each time, or any of them
    if group.group.scope == "job":
        return Recurrence("together") if recorded > 1 else Recurrence("unknown", THRESHOLDS.min_steps - 1)
    elsewhere = sum(
        len(candidate.steps)
        for candidate in evidence.pricing.worth_fixing
        if candidate.part is TimePart.TRANSFER and candidate not in group.candidates
    )
    share = len(group.group.ranks) / len(evidence.locations)
    return decide_repetition(slow, elsewhere, share, recorded)
