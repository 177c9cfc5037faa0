"""Findings that a test states: a culprit, a group of findings, and the evidence of a lake to judge it by."""

from typing import Any

import jitter
from jitter.analysis.detection.findings import of_one_rank
from jitter.analysis.detection.standouts import Outlier
from jitter.analysis.diagnosis.causes import Judgement
from jitter.analysis.diagnosis.evidence.facts import Evidence
from jitter.analysis.diagnosis.finding_groups import FindingGroup, RankGroup
from jitter.analysis.diagnosis.model import Culprit, IndexRange, ProfileLocation, Seen
from jitter.analysis.diagnosis.step_pattern import StepPattern
from jitter.analysis.execution.self_times import TimePart
from jitter.core.step_key import StepKey

MS = 1_000_000


def culprit(rank: int = 3, **more: Any) -> Culprit:
    """A slow GPU in every step of a run of 2 steps, with other fields where a test gives them."""
    stated = {
        "rung": "ranks",
        "loss_class": "gpu",
        "scope": "rank",
        "rank": rank,
        "ranks": (rank,),
        "cause": "gpu_compute",
        "cause_certainty": "likely",
        "confidence": "high",
        "seen": Seen(2, 2),
        "recurs": "yes",
        "excess_ns": 9 * MS,
        "gain_ns": 4 * MS,
        "loss_ns": 4 * MS,
        "fraction": 0.2,
        "steps": (StepKey(None, 1),),
        "step_pattern": StepPattern("every step", is_count=True),
        "kernel_index": IndexRange(4, 9),
        "evidence": ("it is slow",),
        "look_at": ProfileLocation("/traces/r3.sqlite", 76_056_465_178, 76_057_981_000),
    }
    return Culprit(**{**stated, **more})


def late_rank(
    rank: int,
    part: TimePart = TimePart.GPU,
    steps: tuple[int, ...] = (0,),
    excess_ns: float = 1e6,
    sigmas: float = 9.0,
    chance: float = 1e-9,
    *,
    is_lead: bool = False,
) -> FindingGroup:
    """A rank that stands out by a part of its time in these positions of the run's steps."""
    finding = of_one_rank(Outlier(0, rank, part, steps, excess_ns, sigmas, chance))
    return FindingGroup((finding,), RankGroup("rank", (rank,)), Judgement("gpu_compute", "likely"), is_lead)


def evidence_of(lake: "jitter.Lake") -> Evidence:
    """The evidence of a lake's run."""
    return Evidence(lake.analyze(), lake)
