"""The document of `jitter report --json`, key by key and type by type, as INTERFACE has it."""

import math
import re
from itertools import pairwise
from typing import Any

NULL = type(None)
INT, FLOAT, TEXT = (int,), (int, float), (str,)
CAUSES = {
    "late_start",
    "cpu_launch",
    "cpu_after",
    "unequal_stages",
    "gpu_compute",
    "gpu_pause",
    "workload_imbalance",
    "gpu_time",
    "slow_copies",
    "communication",
    "slow_network",
    "sync_calls",
    "blocking_copies",
    "launch_bound",
    "exposed_communication",
    "serial_copies",
    "none",
}

CLASSES = ["start", "launch", "after", "gpu", "transfer", "overlap", "carried", "unexplained"]
RUNGS = ["recorded", "ranks", "steps", "network", "sync", "launch", "overlap", "balance"]

STEP = {
    "epoch": (int, NULL),
    "step": INT,
    "kind": TEXT,
    "step_time_ns": (int, NULL),
    "loss_ns": (int, NULL),
    "loss_fraction": (int, float, NULL),
    "min_rank": (int, NULL),
    "max_rank": (int, NULL),
    "expert_imbalance": (int, float, NULL),
    "expert_rank": (int, NULL),
    "expert_wait_ns": (int, NULL),
    "divergence": (NULL, {"kernel_index": INT, "kernel_name": TEXT}),
    "split": (NULL, {f"{name}_ns": (int, NULL) for name in CLASSES}),
    "cause": TEXT,
}
CULPRIT = {
    "rung": (str, NULL),
    "class": TEXT,
    "scope": TEXT,
    "rank": INT,
    "ranks": [INT],
    "host": (str, NULL),
    "device": (int, NULL),
    "bus_id": (str, NULL),
    "cause": TEXT,
    "cause_certainty": TEXT,
    "confidence": TEXT,
    "seen": {"steps": INT, "of": INT},
    "recurs": TEXT,
    "loss_ns": INT,
    "fraction": (int, float, NULL),
    "excess_ns": INT,
    "gain_ns": INT,
    "gain_with_hidden_ns": (NULL, INT),
    "gain_range_ns": (NULL, [INT]),
    "steps": [INT],
    "step_pattern": TEXT,
    "kernel_index": (NULL, {"first": INT, "last": INT}),
    "code": (
        NULL,
        {
            "kernel_index": INT,
            "operator": (str, NULL),
            "scope": (str, NULL),
            "phase": (str, NULL),
            "source_line": (str, NULL),
        },
    ),
    "evidence": [TEXT],
    "advice": TEXT,
    "look_at": (NULL, {"file": TEXT, "start_ns": INT, "end_ns": INT}),
}
DOCUMENT = {
    "schema_version": INT,
    "run": {
        "ranks": INT,
        "steps": INT,
        "hosts": INT,
        "kernels": INT,
        "kernels_per_step": INT,
        "formats": [TEXT],
        "cohorts": INT,
        "unmatched_kernels": INT,
        "outside_steps": INT,
        "alignment": {"method": TEXT, "uncertainty_ns": (int, NULL)},
        "unexplained_fraction": (int, float, NULL),
        "warnings": [TEXT],
    },
    "loss": {"ns": (int, NULL), "fraction": (int, float, NULL)},
    "waterfall": [{"rung": TEXT, "step_time_ns": (int, NULL), "loss_ns": (int, NULL)}],
    "steps": [STEP],
    "split": [{"class": TEXT, "ns": INT, "fraction": (int, float, NULL), "ranks": [{"rank": INT, "ns": INT}]}],
    "culprits": [CULPRIT],
    "headline": (int, NULL),
    "hang": (NULL,),
    "efficiency": [{"scope": TEXT, "kind": TEXT, "finding": TEXT, "share": (int, float, NULL)}],
    "facts": [
        {
            "kind": TEXT,
            "words": TEXT,
            "causes": [TEXT],
            "certainty": TEXT,
            "ranks": [INT],
            "host": (str, NULL),
            "device": (int, NULL),
            "advice": TEXT,
            "reason": TEXT,
        }
    ],
    "what_if": {"culprits_repaired_ns": (int, NULL), "all_repaired_ns": (int, NULL)},
    "conclusion": {
        "status": TEXT,
        "cleared": [TEXT],
        "doubts": [TEXT],
        "unverified_transfers": (float, NULL),
        "unrecorded": {"ranks": [INT], "unplaced": INT, "at_most_ns": (int, NULL), "fraction": (int, float, NULL)},
    },
    "verdict": TEXT,
}


def assert_fits_schema(value: Any, wanted: Any = DOCUMENT, at: str = "document") -> None:
    """All keys are there, no others, in this order, and every value is of its type; the rest follows from METRICS."""
    if isinstance(wanted, dict):
        assert isinstance(value, dict), at
        # of steps in epochs a culprit names these too
        assert [key for key in value if key != "epochs"] == list(wanted), at
        for key, own in wanted.items():
            assert_fits_schema(value[key], own, f"{at}.{key}")
    elif isinstance(wanted, list):
        assert isinstance(value, list), at
        for number, one in enumerate(value):
            assert_fits_schema(one, wanted[0], f"{at}[{number}]")
    else:
        shape = next((one for one in wanted if isinstance(one, dict)), None)
        if isinstance(value, dict) and shape is not None:
            assert_fits_schema(value, shape, at)
        else:
            assert type(value) in wanted, (at, value)
            assert not isinstance(value, float) or math.isfinite(value), at
    if at == "document":
        _assert_holds(value)


def _assert_split_adds_up(said: dict[str, Any]) -> None:
    """The classes add up to the loss, and the ranks of a class to the class."""
    assert [share["class"] for share in said["split"]] == ([] if said["loss"]["ns"] is None else CLASSES)
    if not said["split"]:
        return
    split = said["split"]
    assert sum(share["ns"] for share in split) == said["loss"]["ns"]
    for share in split:
        own = [one["ns"] for one in share["ranks"]]
        assert own == sorted(own, reverse=True)
        assert sum(own) == (0 if share["class"] in ("transfer", "unexplained") else share["ns"])
    if said["loss"]["fraction"] is not None:
        assert math.isclose(
            sum(share["fraction"] for share in split), said["loss"]["fraction"], rel_tol=1e-9, abs_tol=1e-12
        )


def _assert_waterfall_adds_up(said: dict[str, Any]) -> None:
    """Means over the steps with a time and a loss; what is not judged is null, and a warning says so."""
    assert [one["rung"] for one in said["waterfall"]] == RUNGS
    recorded, ranks, *_ = said["waterfall"]
    unjudged = [one["rung"] for one in said["waterfall"] if one["step_time_ns"] is None]
    rungs, verb = ("rung", "is") if len(unjudged) == 1 else ("rungs", "are")
    told = f"The {rungs} {', '.join(unjudged)} of the waterfall {verb} not judged."
    assert (told in said["run"]["warnings"]) == bool(unjudged)
    judged = [one for one in said["waterfall"] if one["step_time_ns"] is not None]
    for above, one in pairwise(judged):
        assert above["step_time_ns"] == one["step_time_ns"] + one["loss_ns"]
    timed = [step for step in said["steps"] if step["loss_ns"] is not None and step["step_time_ns"] is not None]
    assert recorded["loss_ns"] is None
    assert (ranks["loss_ns"] is None) == (not timed)
    if timed:
        assert recorded["step_time_ns"] == ranks["step_time_ns"] + ranks["loss_ns"]
        assert math.isclose(ranks["loss_ns"], sum(step["loss_ns"] for step in timed) / len(timed), abs_tol=1)


def differing(said: dict[str, Any]) -> list[dict[str, Any]]:
    """The findings about what differs between ranks or steps: those of the program, of all ranks alike, left out."""
    return [one for one in said["culprits"] if one["rung"] not in ("sync", "launch", "overlap")]


def _assert_holds(said: dict[str, Any]) -> None:
    assert said["schema_version"] == 2
    assert len(said["steps"]) == said["run"]["steps"]
    assert {step["cause"] for step in said["steps"]} <= CAUSES
    assert said["verdict"].endswith(".")
    told = [step["loss_ns"] for step in said["steps"] if step["loss_ns"] is not None]
    # of one rank it is told only where it has steps enough to be compared with
    if not told or (said["run"]["ranks"] == 1 and said["loss"]["ns"] is None):
        assert said["loss"] == {"ns": None, "fraction": None}
    else:
        assert said["loss"]["ns"] == sum(told)
    assert said["what_if"]["all_repaired_ns"] == said["loss"]["ns"]
    _assert_split_adds_up(said)
    for step in said["steps"]:
        assert re.fullmatch("[a-z][a-z0-9_]*", step["kind"])
        assert step["split"] is None or sum(ns or 0 for ns in step["split"].values()) == step["loss_ns"]
        if step["loss_fraction"] is not None:
            assert math.isclose(step["loss_fraction"], step["loss_ns"] / step["step_time_ns"], abs_tol=1e-12)
    _assert_waterfall_adds_up(said)
    losses = [one["loss_ns"] for one in said["culprits"]]
    assert losses == sorted(losses, reverse=True)
    for one in said["culprits"]:
        assert one["scope"] in {"rank", "host", "device", "ranks", "unrecorded", "job"}
        assert one["cause"] in CAUSES - {"none"}
        assert one["rung"] in {*RUNGS[1:], None}
        assert one["class"] in CLASSES
        assert one["cause_certainty"] in {"certain", "likely", "unknown"}
        assert one["confidence"] in {"high", "medium", "low"}
        assert one["seen"]["steps"] == len(one["steps"]) <= one["seen"]["of"] <= said["run"]["steps"]
        assert one["recurs"] in {"yes", "no", "together", "unknown"}
        assert ("unknown" in one["advice"]) == (one["recurs"] == "unknown")
        assert one["rank"] in one["ranks"]
        assert one["ranks"] == sorted(one["ranks"])
        assert set(one["steps"]) <= {step["step"] for step in said["steps"]}
        assert one["steps"]
        assert one["excess_ns"] > 0
        assert one["evidence"]
        if one["kernel_index"] is not None:
            assert 0 <= one["kernel_index"]["first"] <= one["kernel_index"]["last"] < said["run"]["kernels_per_step"]
        if one["look_at"] is not None:
            assert one["look_at"]["start_ns"] < one["look_at"]["end_ns"]
