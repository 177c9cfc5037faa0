"""A comparison as JSON, for scripts; `jitter explain compare` lists the keys."""

import json
from dataclasses import asdict
from typing import Any, Final

import msgspec

from jitter.comparison.kernel_changes import KernelChange
from jitter.comparison.log_tables import ThroughputChange
from jitter.comparison.model import CollectiveChange, Comparison, Cost, CulpritChange, Side

COMPARISON_SCHEMA_VERSION: Final = 3
_MOST_COSTS: Final = 200


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
        "base": _side(comparison.base),
        "new": _side(comparison.new),
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
        "split": [
            {
                "part": one.part,
                "usual_ns": one.usual_ns,
                "jitter_ns": one.jitter_ns,
                "difference_ns": one.difference_ns,
            }
            for one in comparison.split
        ],
        "costs": [_cost(one) for one in comparison.costs[:_MOST_COSTS]],
        "kernel_names": None if kernels is None else {"matched": kernels.names_matched, "base": kernels.names},
        "kernels": [] if kernels is None else [_kernel(one) for one in kernels.changes],
        "launch_shapes": []
        if kernels is None
        else [
            {"kernel_name": one.kernel_name, "base": list(one.base), "new": list(one.new), "places": one.places}
            for one in kernels.shapes
        ],
        "collectives": [_collective(one) for one in comparison.collectives],
        "ranks": [asdict(one) | {"difference_ns": one.difference_ns} for one in comparison.ranks],
        "culprits": {
            "appeared": [_culprit(one) for one in comparison.culprits.appeared],
            "went": [_culprit(one) for one in comparison.culprits.went],
            "stayed": [_culprit(one) for one in comparison.culprits.stayed],
        },
        "environment": None
        if comparison.environment is None
        else {side: msgspec.to_builtins(found) for side, found in comparison.environment},
        "throughput": [_throughput(one) for one in comparison.throughput],
        "bandwidths": [{**asdict(one), "ratio": one.ratio} for one in comparison.bandwidths],
    }


def _cost(one: Cost) -> dict[str, Any]:
    found = asdict(one)
    return {"rung": found.pop("rung"), "class": found.pop("loss_class"), **found, "loss_ns": round(one.loss_ns)}


def _throughput(one: ThroughputChange) -> dict[str, Any]:
    is_run = one.quantity == "seconds"
    seconds = {"base_seconds": one.base if is_run else None, "new_seconds": one.new if is_run else None}
    return {**asdict(one), **seconds, "speedup": one.speedup}


def _side(side: Side) -> dict[str, Any]:
    return {
        "label": side.label,
        "runs": side.runs,
        "ranks": side.ranks,
        "hosts": side.hosts,
        "steps": side.steps,
        "formats": list(side.formats),
    }


def _kernel(one: KernelChange) -> dict[str, Any]:
    return {
        "kernel_name": one.kernel_name,
        "new_kernel_name": one.new_kernel_name,
        "places": one.places,
        "new_places": one.new_places,
        "kind": one.kind,
        "base_ns": round(one.base_ns),
        "new_ns": round(one.new_ns),
        "difference_ns": round(one.new_ns) - round(one.base_ns),
        "loss_ns": None if one.loss_ns is None else round(one.loss_ns),
        "rank": one.rank,
        "p_adjusted": one.p_adjusted,
        "kernel_indices": sorted(one.indices),
    }


def _collective(one: CollectiveChange) -> dict[str, Any]:
    base, new = one.base, one.new
    return {
        "collective": one.either.collective,
        "size_bytes": one.either.size_bytes,
        "dtype": one.either.dtype,
        "group_size": one.either.group_size,
        "hosts": one.either.hosts,
        "base_calls_per_step": base and base.calls_per_step,
        "new_calls_per_step": new and new.calls_per_step,
        "base_busbw": base and base.busbw,
        "new_busbw": new and new.busbw,
        "ratio": one.ratio,
        "base_wait_us": base and base.wait_us,
        "new_wait_us": new and new.wait_us,
    }


def _culprit(one: CulpritChange) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(one.entry)
    steps, of = found.pop("steps"), found.pop("of_steps")
    return {**found, "seen": {"steps": steps, "of": of}, "difference_ns": one.difference_ns}
