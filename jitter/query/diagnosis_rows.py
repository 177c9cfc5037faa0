"""The diagnosis as rows for SQL: one per step, one per culprit, with the names of the JSON report."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

import pyarrow as pa

from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.efficiency import EfficiencyFinding
from jitter.analysis.diagnosis.model import ClassShares, Culprit, Fact, StepAnswer
from jitter.analysis.diagnosis.verdict import write_advice
from jitter.query.columns import table_schema


def steps_table(steps: Sequence[StepAnswer]) -> pa.Table:
    """Return one row per step, in order (`sql/steps.sql`); times in ns, null for the unknown.

    `start_ns` to `unexplained_ns` are the loss by class, and add up to it.
    """
    return pa.Table.from_pylist([step_row(step) for step in steps], table_schema("steps"))


def culprit_rows(diagnosis: Diagnosis) -> pa.Table:
    """Return one row per finding over all rungs, the largest loss first."""
    return pa.Table.from_pylist(list(map(_culprit, diagnosis.findings)), table_schema("culprits"))


def fact_rows(diagnosis: Diagnosis) -> pa.Table:
    """Return one row per fact of the logs, those of findings first, with the finding's number."""
    of_findings = [(number, fact) for number, culprit in enumerate(diagnosis.findings) for fact in culprit.facts]
    numbered_facts = [*of_findings, *((None, fact) for fact in diagnosis.facts)]
    return pa.Table.from_pylist(
        [{**fact_row(fact), "finding": number} for number, fact in numbered_facts], table_schema("facts")
    )


def fact_row(fact: Fact) -> dict[str, object]:
    """Return one fact with the columns of the relation `facts` but its finding."""
    return {name: getattr(fact, name) for name in table_schema("facts").names if name != "finding"}


def efficiency_rows(diagnosis: Diagnosis) -> pa.Table:
    """Return one row per fact about all ranks alike."""
    return pa.Table.from_pylist(list(map(efficiency_row, diagnosis.efficiency)), table_schema("efficiency"))


def efficiency_row(finding: EfficiencyFinding) -> dict[str, object]:
    """Return one fact about all ranks alike with the columns of the relation `efficiency`."""
    return {"kind": finding.kind, "finding": finding.sentence, "share": finding.share}


def step_values(step: StepAnswer) -> dict[str, object]:
    """Return what rows and the JSON report alike say of a step."""
    names = ("kind", "step_time_ns", "loss_ns", "loss_fraction", "min_rank", "max_rank")
    experts = step.experts or (None, None, None)
    return {
        **step.key._asdict(),
        **{name: getattr(step, name) for name in names},
        **dict(zip(("expert_imbalance", "expert_rank", "expert_wait_ns"), experts, strict=True)),
    }


_CULPRIT: Final = (
    *("rung", "loss_class", "scope", "rank", "ranks", "host", "device", "bus_id", "cause"),
    *("cause_certainty", "confidence", "seen", "recurs", "loss_ns", "fraction", "excess_ns", "gain_ns"),
    *("gain_with_hidden_ns", "gain_range_ns", "steps"),
)


def culprit_values(culprit: Culprit) -> dict[str, object]:
    """Return what rows and the JSON report alike say of a culprit."""
    values = {"class" if name == "loss_class" else name: getattr(culprit, name) for name in _CULPRIT}
    in_words = {"step_pattern": culprit.step_pattern.words}
    return values | {"seen": asdict(culprit.seen), "steps": [key.step for key in culprit.steps]} | in_words


def step_row(step: StepAnswer) -> dict[str, object]:
    """Return one step's answer as a flat row with the columns of the relation `steps`; unknown values are None."""
    began, shares = step.divergence, step.by_class
    return {
        **step_values(step),
        "kernel_index": None if began is None else began.kernel_index,
        "kernel_name": None if began is None else began.kernel_name,
        **(dict.fromkeys(ClassShares._fields) if shares is None else shares._asdict()),
        "cause": step.cause,
    }


def _culprit(culprit: Culprit) -> dict[str, object]:
    fields: dict[str, object] = {
        **culprit_values(culprit),
        "epochs": [key.epoch for key in culprit.steps],
        "code": None if culprit.code is None else asdict(culprit.code),
        "evidence": culprit.evidence,
        "advice": write_advice(culprit),
    }
    if culprit.kernel_index is not None:
        fields |= {"first_index": culprit.kernel_index.first, "last_index": culprit.kernel_index.last}
    if culprit.look_at is not None:
        look = culprit.look_at
        fields |= {"file": look.file, "start_ns": look.start_ns, "end_ns": look.end_ns}
    return fields
