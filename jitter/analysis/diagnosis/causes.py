"""The causes that a culprit can have: for each its words, side, part of time, advice, and how it is detected.

To add a cause: a name in `model.Cause`, an entry of `CAUSES` and a detector here, and a fault in
`jitter.simulate.faults` whose cause it is. A test compares the four; the guide's topic `causes` has a line for each.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, cast

from jitter.analysis.diagnosis.model import Cause, CauseCertainty
from jitter.analysis.execution.self_times import TimePart
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_count, format_percent, format_ranks, format_time

if TYPE_CHECKING:
    from jitter.analysis.detection.candidates import Candidate
    from jitter.analysis.detection.outliers import Outlier
    from jitter.analysis.detection.slow_communication import SlowCommunication
    from jitter.analysis.diagnosis.evidence.facts import Evidence

Side = Literal["CPU", "GPU", "network"]


class CauseEvidence(NamedTuple):
    """What tells that a candidate has a cause."""

    certainty: CauseCertainty
    sentences: tuple[str, ...] = ()


Detector = Callable[["Evidence", "Candidate"], CauseEvidence | None]
"""Returns the evidence that a candidate has the cause; None if it does not have it."""


@dataclass(frozen=True)
class CauseInfo:
    """Everything about one cause."""

    words: str
    """Its name in prose."""
    side: Side | None
    part: TimePart | None
    """Part of the step time that holds its excess."""
    advice: str
    """Behaviour of the culprit and where to look, as the end of a sentence that begins with the culprit."""
    detect: Detector | None
    other_parts: tuple[TimePart, ...] = ()
    """Other parts in which its excess may be."""
    job_advice: str = ""
    """The same of all ranks of the job."""
    remedy: str = "fixing it"
    """What would help, as the subject of a sentence that says what it saves."""
    place: str = ""
    """Place in the step of its excess, where that is no kernel."""
    is_at_kernels: bool = True
    """Whether the kernels with its excess, and the code that launches them, are worth a look."""
    is_late_launch: bool = False
    """Whether the host's work before a launch is evidence of it."""


def find_cause(evidence: "Evidence", candidate: "Candidate") -> tuple[Cause, CauseEvidence]:
    """Return the candidate's cause and its evidence: the first cause of its part of time whose detector finds it."""
    for cause, info in CAUSES.items():
        if candidate.part in (info.part, *info.other_parts) and info.detect is not None:
            found = info.detect(evidence, candidate)
            if found is not None:
                return cause, found
    return "none", CauseEvidence("unknown")


def _after_last_launch(evidence: "Evidence", candidate: "Candidate") -> CauseEvidence | None:
    ranks = (candidate.rank,) if hasattr(candidate, "rank") else tuple(getattr(candidate, "ranks", ()))
    shares = [evidence.after_launches.share(rank, candidate.part, candidate.steps) for rank in ranks]
    share = max(shares, default=0.0)
    if share < THRESHOLDS.cause_share:
        return None
    told = f"{format_percent(min(share, 1.0))} of the excess lies between the last launch of a step and the step's end"
    return CauseEvidence("likely", (told,))


def _late_start(evidence: "Evidence", candidate: "Candidate") -> CauseEvidence:
    outlier = cast("Outlier", candidate)
    if side_work := evidence.side_work(outlier):
        return CauseEvidence("certain", side_work)
    loading = evidence.data_loading(outlier)
    if loading is None:
        return CauseEvidence("unknown", ("no data-loading range was recorded",))
    told = f"its data-loading ranges take {format_time(loading.own_ns)} per step"
    if loading.others_ns is not None:
        told += f", the other ranks' {format_time(loading.others_ns)}"
    more = loading.own_ns - (loading.others_ns or 0.0)
    if more >= THRESHOLDS.cause_share * outlier.excess_ns / len(outlier.steps):
        return CauseEvidence("certain", (f"{told}: the input pipeline stalled",))
    return CauseEvidence("unknown", (f"{told}: they do not explain the late start",))


def _late_launches(evidence: "Evidence", candidate: "Candidate") -> CauseEvidence:
    outlier = cast("Outlier", candidate)
    by_launches_ns, lost_ns = evidence.lost_by_launches(outlier.rank, outlier.steps)
    if side_work := evidence.side_work(outlier):
        return CauseEvidence("certain", side_work)
    if not evidence.has_launches(outlier.team):
        told = "no launches were recorded: an idle GPU is taken to wait for its host"
        return CauseEvidence("unknown", (told,))
    if 0 < by_launches_ns <= lost_ns:
        told = f"{format_percent(by_launches_ns / lost_ns)} of what the job lost to it is late launches"
    elif not evidence.has_meeting(outlier.steps):
        told = "its launches are late; the ranks share no collective in these steps"
    else:
        told = "its launches are late, but slower ranks mask them: the job did not wait for them"
    return CauseEvidence("likely", (told,))


def _never_of_one_rank(evidence: "Evidence", candidate: "Candidate") -> CauseEvidence | None:
    """Return None: stages are compared with each other, and all ranks lose alike to the program."""
    return None


def _different_work(evidence: "Evidence", candidate: "Candidate") -> CauseEvidence | None:
    outlier = cast("Outlier", candidate)
    if outlier.pace is not None:
        return None  # it takes longer for the work that it has
    found = evidence.workload(outlier)
    stated = evidence.marker_numbers(outlier)
    if not found.excess_ns or found.differing_ns < THRESHOLDS.cause_share * found.excess_ns:
        return CauseEvidence("certain", stated) if stated else None
    where, they = ("in its other steps", "those steps") if found.own_steps else ("on the other ranks", "most ranks")
    told = (
        f"{format_percent(found.differing_ns / found.excess_ns)} of the excess GPU time is in "
        f"{format_count(found.differing, 'operation')} with another kernel name or launch shape than {where}"
    )
    extra = f", {found.extra} of which {they} do not have" if found.extra else ""
    return CauseEvidence("certain", (told + extra, *stated))


def _undecided(evidence: "Evidence", candidate: "Candidate") -> CauseEvidence | None:
    found = evidence.workload(cast("Outlier", candidate))
    share = 0.0 if found.own_steps else found.unaffected_share(THRESHOLDS.unaffected_factor)
    if share < THRESHOLDS.min_unaffected_share:
        return None
    told = (
        f"kernels with {format_percent(share)} of the GPU time are hardly slower, all others are, with the same launch "
        "shapes: more work in launches of a fixed size, or a cause that slows some kernels only"
    )
    return CauseEvidence("unknown", (told,))


def _same_work(evidence: "Evidence", candidate: "Candidate") -> CauseEvidence:
    outlier = cast("Outlier", candidate)
    if outlier.pace is not None:
        told = (
            f"its kernels take {format_percent(outlier.pace - 1)} longer than the other ranks' for the same launch "
            "size, which varies over ranks and steps"
        )
        return CauseEvidence("likely", (told,))
    found = evidence.workload(outlier)
    same = found.operations - found.differing
    where = "in its other steps" if found.own_steps else "on the other ranks"
    told = f"{same} of {format_count(found.operations, 'slower operation')} have the same launch shape as {where}"
    return CauseEvidence("likely", (told,))


def _slow_communication(evidence: "Evidence", candidate: "Candidate") -> CauseEvidence:
    slow = cast("SlowCommunication", candidate)
    usual = evidence.baseline_ns(slow)
    taken = usual + slow.excess_ns / max(len(slow.steps), 1)
    baseline = "by the lake's bandwidth benchmark" if slow.by_benchmark else "baseline"
    told = [
        f"from the last arrival to the end, {format_count(len(slow.meetings), 'collective')} per step take "
        f"{format_time(taken)} ({baseline} {format_time(usual)})"
    ]
    if len(slow.ranks) == 1:
        told.append("all slow groups contain this rank, and no other group is slow")
    is_of_unrecorded = evidence.waits_for_unrecorded(slow)
    if is_of_unrecorded:
        missing = evidence.unrecorded_members(slow)
        which = f" ({format_ranks(missing)})" if missing else ""
        told.append(
            "all recorded ranks of these collectives wait for members without a recording of these steps"
            f"{which}, or for the network"
        )
    return CauseEvidence("unknown" if is_of_unrecorded else "likely", tuple(told))


CAUSES: Final[Mapping[Cause, CauseInfo]] = MappingProxyType(
    {
        "cpu_after": CauseInfo(
            words="late step ends",
            side="CPU",
            part=TimePart.START,
            other_parts=(TimePart.CPU,),
            advice="is late at the end of its steps: check the host work after the last launch (optimizer, logging, "
            "freeing memory)",
            detect=_after_last_launch,
            job_advice="are late at the end of their steps: check the host work after the last launch (optimizer, "
            "logging, freeing memory)",
            place="after the last launch of the step",
            is_at_kernels=False,
        ),
        "late_start": CauseInfo(
            words="late step starts",
            side="CPU",
            part=TimePart.START,
            advice="starts its steps late: check its data loading and its host",
            detect=_late_start,
            job_advice="start their steps late: check the data loading and the hosts",
            remedy="less host work before the first kernel of the step",
            place="before the first kernel of the step",
            is_late_launch=True,
        ),
        "cpu_launch": CauseInfo(
            words="late kernel launches",
            side="CPU",
            part=TimePart.CPU,
            advice="launches its kernels late: check its host's CPU",
            detect=_late_launches,
            job_advice="launch their kernels late, at different places: check the hosts' CPUs and the training loop",
            remedy="launching its kernels in time (CPU binding, fewer synchronizing calls, no pauses)",
            is_late_launch=True,
        ),
        "unequal_stages": CauseInfo(
            words="unequal pipeline stages",
            side="GPU",
            part=TimePart.GPU,
            advice="is a longer pipeline stage than the others, and every micro-batch waits for it: divide the layers "
            "anew",
            detect=_never_of_one_rank,
            job_advice="are a longer pipeline stage than the others, and every micro-batch waits for it: divide the "
            "layers anew",
            remedy="a stage as long as the other ones (fewer layers, or recomputation elsewhere)",
        ),
        "workload_imbalance": CauseInfo(
            words="more or different work",
            side="GPU",
            part=TimePart.GPU,
            advice="has more or different work: check how work is divided",
            detect=_different_work,
            job_advice="have more or different work in these steps: check how work is divided over the steps",
            remedy="equal work on all ranks (batch, sequence lengths, routing)",
        ),
        "gpu_time": CauseInfo(
            words="slower execution, or more work in launches of the same size",
            side="GPU",
            part=TimePart.GPU,
            advice="takes longer for some of its kernels: check its share of the work, then its GPU",
            detect=_undecided,
            job_advice="take longer for some of their kernels: check the work of these steps, then the GPUs",
        ),
        "gpu_compute": CauseInfo(
            words="slower execution of the same kernels",
            side="GPU",
            part=TimePart.GPU,
            advice="executes the same kernels more slowly: check its GPU's clocks, temperature and neighbours",
            detect=_same_work,
            job_advice="execute the same kernels more slowly: check the GPUs' clocks, power and cooling",
            remedy="a GPU at full speed (check clocks, power, temperature, neighbours)",
        ),
        "communication": CauseInfo(
            words="slow communication",
            side="network",
            part=TimePart.TRANSFER,
            advice="communicates slowly although the ranks arrive at the same time: check its network",
            detect=_slow_communication,
            job_advice="communicate slowly although they arrive at the same time: check the network and the "
            "communication library's settings",
            remedy="a network link at full speed (check the NIC and the path of these ranks)",
        ),
        "sync_calls": CauseInfo(
            words="calls in which the host waits for the GPU",
            side="CPU",
            part=TimePart.CPU,
            advice="waits for its GPU in calls of the host: read results later, or less often",
            detect=_never_of_one_rank,
            job_advice="wait for their GPUs in calls of the host, and launches after them come late: read results "
            "later, or less often",
            remedy="no call in which the host waits for the GPU",
        ),
        "blocking_copies": CauseInfo(
            words="copies that block the host",
            side="CPU",
            part=TimePart.CPU,
            advice="waits for its GPU in copies: use pinned memory and asynchronous copies",
            detect=_never_of_one_rank,
            job_advice="wait for their GPUs in copies that block the host: use pinned memory and asynchronous copies",
            remedy="copies that do not block the host",
        ),
        "launch_bound": CauseInfo(
            words="kernels shorter than their launches",
            side="CPU",
            part=TimePart.CPU,
            advice="launches kernels that take less time than their launch: fuse them, or launch them as a graph",
            detect=_never_of_one_rank,
            job_advice="launch kernels that take less time than their launch: fuse them, or launch them as a graph",
            remedy="launches that take the host no time",
        ),
        "exposed_communication": CauseInfo(
            words="communication that nothing hides",
            side="network",
            part=TimePart.TRANSFER,
            advice="communicates without computing: start collectives earlier, beside compute",
            detect=_never_of_one_rank,
            job_advice="communicate without computing at the same time: start collectives earlier, in parts, beside "
            "compute (at most this can be hidden)",
            remedy="communication hidden by compute",
        ),
        "serial_copies": CauseInfo(
            words="copies between host and GPU without kernels beside them",
            side="GPU",
            part=TimePart.GPU,
            advice="copies without kernels beside it: copy ahead, on another stream",
            detect=_never_of_one_rank,
            job_advice="copy between host and GPU without kernels beside it: copy ahead, on another stream",
            remedy="copies hidden by compute",
        ),
        "none": CauseInfo(words="no cause found", side=None, part=None, advice="", detect=None),
    }
)
"""The causes. Where two have the same part of time, the first whose detector finds it is the cause."""
