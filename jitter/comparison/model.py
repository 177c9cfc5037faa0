"""A comparison as plain data, from which every form of it is made, and as JSON (keys: `jitter explain compare`)."""

import json
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from jitter.comparison.document import CulpritEntry, Environment
from jitter.comparison.kernel_changes import KernelComparison
from jitter.comparison.log_tables import BandwidthChange, ThroughputChange
from jitter.comparison.significance import StepEffect

COMPARISON_SCHEMA_VERSION: Final = 3
_MOST_COSTS: Final = 200
Verdict = Literal["slower", "faster", "same", "incomparable"]


class Side(msgspec.Struct, frozen=True):
    """The base, or the new run."""

    label: str
    """Of several bases: all labels."""
    runs: int
    ranks: int
    hosts: int
    steps: int
    """Of several bases: of all of them."""
    formats: tuple[str, ...]


class PartChange(msgspec.Struct, frozen=True):
    """What one class of time adds to the new run's step, ns; all parts add up to the difference of the step times."""

    part: str
    """The label of a `LossClass`."""
    usual_ns: int
    """Of all ranks alike: between the usual steps, and of the median steps above them."""
    jitter_ns: int
    """Of ranks that are later than others, and transfers above their usual time."""
    difference_ns: int


class Cost(msgspec.Struct, frozen=True):
    """What one place adds to the new run's step, ns: the rows of one class, rank and kernel."""

    rung: str
    loss_class: str = msgspec.field(name="class")
    rank: int | None
    kernel_name: str | None
    new_kernel_name: str | None
    loss_ns: float


class CollectiveChange(msgspec.Struct, frozen=True):
    """Collectives of one operation, size and group size; what a run lacks or does not tell is None."""

    collective: str | None
    size_bytes: int | None
    dtype: str | None
    group_size: int | None
    hosts: str | None
    base_calls_per_step: float | None
    new_calls_per_step: float | None
    base_busbw: float | None
    new_busbw: float | None
    ratio: float | None
    """New ÷ base bus bandwidth."""
    base_wait_us: float | None
    new_wait_us: float | None


class RankChange(msgspec.Struct, frozen=True):
    """What a usual step loses to a rank, ns; None where a run lacks the rank or cannot tell."""

    rank: int
    host: str | None
    base_ns: int | None
    new_ns: int | None
    difference_ns: int | None
    """None where neither is known."""


class CulpritChange(msgspec.Struct, frozen=True):
    """A finding of one of the runs or both."""

    entry: CulpritEntry
    """As the new run has it; of the base where the new run lacks it."""
    difference_ns: int | None
    """What its ranks and class add to the new run's step; None where the finding is not of jitter."""


class CulpritChanges(msgspec.Struct, frozen=True):
    """Findings of the new run alone, of the base alone, and of both."""

    appeared: tuple[CulpritChange, ...]
    went: tuple[CulpritChange, ...]
    stayed: tuple[CulpritChange, ...]


class Comparison(msgspec.Struct, frozen=True):
    """The differences between the base and the new run. Times in ns a step."""

    verdict: Verdict
    sentence: str
    reasons: tuple[str, ...]
    """Why the runs cannot be compared; empty where they can."""
    notes: tuple[str, ...]
    """How the two runs differ as recordings, and what limits the comparison."""
    base: Side
    new: Side
    effect: StepEffect | None
    """None where the runs cannot be compared."""
    base_loss: float | None
    """Part of the run's time that jitter costs."""
    new_loss: float | None
    split: tuple[PartChange, ...]
    """Empty where a run has no usual step."""
    costs: tuple[Cost, ...]
    """The rows, the largest first; they add up to the difference of the step times."""
    kernels: KernelComparison | None
    collectives: tuple[CollectiveChange, ...]
    ranks: tuple[RankChange, ...]
    culprits: CulpritChanges
    environment: Mapping[str, Environment] | None
    """That of `base` and that of `new` where they differ."""
    throughput: tuple[ThroughputChange, ...]
    """The trainings' speed, by the logs."""
    bandwidths: tuple[BandwidthChange, ...] = ()
    """What benchmarks measured in both runs."""


def render_comparison_json(comparison: Comparison) -> str:
    """Return the document as text, one value per line."""
    return json.dumps(comparison_document(comparison), indent=1, allow_nan=False) + "\n"


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as plain data; times in whole ns."""
    effect, kernels = comparison.effect, comparison.kernels
    document = {
        "schema_version": COMPARISON_SCHEMA_VERSION,
        **{name: getattr(comparison, name) for name in ("verdict", "sentence", "reasons", "notes", "base", "new")},
        "step_time": effect
        and {
            "base_ns": effect.base_ns,
            "new_ns": effect.new_ns,
            "difference_ns": effect.difference_ns,
            "fraction": effect.fraction,
            "interval_ns": [effect.low_ns, effect.high_ns],
            "noise_fraction": effect.noise_fraction,
            "p": effect.p,
        },
        "loss": {"base_fraction": comparison.base_loss, "new_fraction": comparison.new_loss},
        "split": comparison.split,
        "costs": comparison.costs[:_MOST_COSTS],
        "kernel_names": kernels and {"matched": kernels.names_matched, "base": kernels.names},
        "kernels": kernels.changes if kernels else [],
        "launch_shapes": kernels.shapes if kernels else [],
        "collectives": comparison.collectives,
        "ranks": comparison.ranks,
        "culprits": {
            kind: list(map(_culprit, getattr(comparison.culprits, kind))) for kind in CulpritChanges.__struct_fields__
        },
        "environment": comparison.environment,
        "throughput": comparison.throughput,
        "bandwidths": comparison.bandwidths,
    }
    plain: dict[str, Any] = _whole(msgspec.to_builtins(document))
    return plain


def _whole(value: Any, key: str = "") -> Any:
    """Return plain data with times as whole ns."""
    if isinstance(value, dict):
        return {name: _whole(element, name) for name, element in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(element, key) for element in value]
    return round(value) if isinstance(value, float) and key.endswith("_ns") else value


def _culprit(change: CulpritChange) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(change.entry)
    steps, of = fields.pop("steps"), fields.pop("of_steps")
    return {**fields, "seen": {"steps": steps, "of": of}, "difference_ns": change.difference_ns}
