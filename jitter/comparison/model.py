"""A comparison as plain data, from which every form of it is made, and as JSON (keys: `jitter explain compare`)."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import msgspec

from jitter.comparison.document import CollectiveEntry, CulpritEntry, Environment
from jitter.comparison.kernel_changes import KernelChange, KernelComparison
from jitter.comparison.log_tables import BandwidthChange, ThroughputChange
from jitter.comparison.significance import StepEffect

COMPARISON_SCHEMA_VERSION: Final = 3
_MOST_COSTS: Final = 200
Verdict = Literal["slower", "faster", "same", "incomparable"]


@dataclass(frozen=True)
class Side:
    """The base, or the new run."""

    label: str
    """Of several bases: all labels."""
    runs: int
    ranks: int
    hosts: int
    steps: int
    """Of several bases: of all of them."""
    formats: tuple[str, ...]


@dataclass(frozen=True)
class PartChange:
    """What one class of time adds to the new run's step, ns; all parts add up to the difference of the step times."""

    part: str
    """The label of a `LossClass`."""
    usual_ns: int
    """Of all ranks alike: between the usual steps, and of the median steps above them."""
    jitter_ns: int
    """Of ranks that are later than others, and transfers above their usual time."""

    @property
    def difference_ns(self) -> int:
        return self.usual_ns + self.jitter_ns


@dataclass(frozen=True)
class Cost:
    """What one place adds to the new run's step, ns: the rows of one class, rank and kernel."""

    rung: str
    loss_class: str
    rank: int | None
    kernel_name: str | None
    new_kernel_name: str | None
    loss_ns: float


@dataclass(frozen=True)
class CollectiveChange:
    """Collectives of one operation, size and group size; a side that lacks them is None."""

    base: CollectiveEntry | None
    new: CollectiveEntry | None

    @property
    def either(self) -> CollectiveEntry:
        """Return the base's entry, or the new run's where the base has none."""
        entry = self.base or self.new
        assert entry is not None
        return entry

    @property
    def ratio(self) -> float | None:
        """Return new ÷ base bus bandwidth; None where one is unknown."""
        if self.base is None or self.new is None or not self.base.busbw or self.new.busbw is None:
            return None
        return self.new.busbw / self.base.busbw


@dataclass(frozen=True)
class RankChange:
    """What a usual step loses to a rank, ns; None where a run lacks the rank or cannot tell."""

    rank: int
    host: str | None
    base_ns: int | None
    new_ns: int | None

    @property
    def difference_ns(self) -> int | None:
        """Return new − base; None where neither is known."""
        if self.base_ns is None and self.new_ns is None:
            return None
        return (self.new_ns or 0) - (self.base_ns or 0)


@dataclass(frozen=True)
class CulpritChange:
    """A finding of one of the runs or both."""

    entry: CulpritEntry
    """As the new run has it; of the base where the new run lacks it."""
    difference_ns: int | None
    """What its ranks and class add to the new run's step; None where the finding is not of jitter."""


@dataclass(frozen=True)
class CulpritChanges:
    """Findings of the new run alone, of the base alone, and of both."""

    appeared: tuple[CulpritChange, ...]
    went: tuple[CulpritChange, ...]
    stayed: tuple[CulpritChange, ...]


@dataclass(frozen=True)
class Comparison:
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
    environment: tuple[tuple[str, Environment], tuple[str, Environment]] | None
    """("base", its environment), ("new", its environment) where they differ."""
    throughput: tuple[ThroughputChange, ...]
    """The trainings' speed, by the logs."""
    bandwidths: tuple[BandwidthChange, ...] = ()
    """What benchmarks measured in both runs."""


def render_comparison_json(comparison: Comparison) -> str:
    """Return the document as text, one value per line."""
    return json.dumps(comparison_document(comparison), indent=1, allow_nan=False) + "\n"


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as plain data; times in ns."""
    effect, kernels = comparison.effect, comparison.kernels
    return {
        "schema_version": COMPARISON_SCHEMA_VERSION,
        "verdict": comparison.verdict,
        "sentence": comparison.sentence,
        "reasons": list(comparison.reasons),
        "notes": list(comparison.notes),
        "base": asdict(comparison.base) | {"formats": list(comparison.base.formats)},
        "new": asdict(comparison.new) | {"formats": list(comparison.new.formats)},
        "step_time": None
        if effect is None
        else {
            "base_ns": round(effect.base_ns),
            "new_ns": round(effect.new_ns),
            "difference_ns": round(effect.new_ns) - round(effect.base_ns),
            "fraction": effect.fraction,
            "interval_ns": [round(effect.low_ns), round(effect.high_ns)],
            "noise_fraction": effect.noise_fraction,
            "p": effect.p,
        },
        "loss": {"base_fraction": comparison.base_loss, "new_fraction": comparison.new_loss},
        "split": [asdict(part) | {"difference_ns": part.difference_ns} for part in comparison.split],
        "costs": [_cost(cost) for cost in comparison.costs[:_MOST_COSTS]],
        "kernel_names": None if kernels is None else {"matched": kernels.names_matched, "base": kernels.names},
        "kernels": [] if kernels is None else [_kernel(change) for change in kernels.changes],
        "launch_shapes": []
        if kernels is None
        else [asdict(change) | {"base": list(change.base), "new": list(change.new)} for change in kernels.shapes],
        "collectives": [_collective(change) for change in comparison.collectives],
        "ranks": [asdict(change) | {"difference_ns": change.difference_ns} for change in comparison.ranks],
        "culprits": {
            kind: [_culprit(change) for change in getattr(comparison.culprits, kind)]
            for kind in ("appeared", "went", "stayed")
        },
        "environment": None
        if comparison.environment is None
        else {side: msgspec.to_builtins(environment) for side, environment in comparison.environment},
        "throughput": [_throughput(change) for change in comparison.throughput],
        "bandwidths": [asdict(change) | {"ratio": change.ratio} for change in comparison.bandwidths],
    }


def _cost(cost: Cost) -> dict[str, Any]:
    fields = asdict(cost)
    return {"rung": fields.pop("rung"), "class": fields.pop("loss_class"), **fields, "loss_ns": round(cost.loss_ns)}


def _throughput(change: ThroughputChange) -> dict[str, Any]:
    is_run = change.quantity == "seconds"
    seconds = {"base_seconds": change.base if is_run else None, "new_seconds": change.new if is_run else None}
    return {**asdict(change), **seconds, "speedup": change.speedup}


def _kernel(change: KernelChange) -> dict[str, Any]:
    return {
        "kernel_name": change.kernel_name,
        "new_kernel_name": change.new_kernel_name,
        "places": change.places,
        "new_places": change.new_places,
        "kind": change.kind,
        "base_ns": round(change.base_ns),
        "new_ns": round(change.new_ns),
        "difference_ns": round(change.new_ns) - round(change.base_ns),
        "loss_ns": None if change.loss_ns is None else round(change.loss_ns),
        "rank": change.rank,
        "p_adjusted": change.p_adjusted,
        "kernel_indices": sorted(change.indices),
    }


def _collective(change: CollectiveChange) -> dict[str, Any]:
    base, new = change.base, change.new
    return {
        "collective": change.either.collective,
        "size_bytes": change.either.size_bytes,
        "dtype": change.either.dtype,
        "group_size": change.either.group_size,
        "hosts": change.either.hosts,
        "base_calls_per_step": base and base.calls_per_step,
        "new_calls_per_step": new and new.calls_per_step,
        "base_busbw": base and base.busbw,
        "new_busbw": new and new.busbw,
        "ratio": change.ratio,
        "base_wait_us": base and base.wait_us,
        "new_wait_us": new and new.wait_us,
    }


def _culprit(change: CulpritChange) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(change.entry)
    steps, of = fields.pop("steps"), fields.pop("of_steps")
    return {**fields, "seen": {"steps": steps, "of": of}, "difference_ns": change.difference_ns}
