"""The document of `jitter report --json`, key by key and type by type, as INTERFACE has it."""

import math
from typing import Any

NULL = type(None)
INT, FLOAT, TEXT = (int,), (int, float), (str,)
CAUSES = {
    "late_start",
    "cpu_launch",
    "cpu_after",
    "gpu_compute",
    "workload_imbalance",
    "gpu_time",
    "communication",
    "none",
}

STEP = {
    "epoch": (int, NULL),
    "step": INT,
    "step_time_ns": (int, NULL),
    "loss_ns": (int, NULL),
    "loss_fraction": (int, float, NULL),
    "min_rank": (int, NULL),
    "max_rank": (int, NULL),
    "divergence": (NULL, {"kernel_index": INT, "kernel_name": TEXT}),
    "split": (NULL, {"start_ns": INT, "cpu_ns": INT, "after_ns": INT, "gpu_ns": INT}),
    "cause": TEXT,
}
CULPRIT = {
    "scope": TEXT,
    "rank": INT,
    "ranks": [INT],
    "host": (str, NULL),
    "device": (int, NULL),
    "cause": TEXT,
    "confidence": TEXT,
    "excess_ns": INT,
    "gain_ns": INT,
    "share_ns": INT,
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
        "warnings": [TEXT],
    },
    "loss": {"ns": (int, NULL), "fraction": (int, float, NULL)},
    "steps": [STEP],
    "split": [{"part": TEXT, "ns": INT, "fraction": (int, float, NULL), "ranks": [{"rank": INT, "ns": INT}]}],
    "culprits": [CULPRIT],
    "efficiency": [
        {
            "scope": TEXT,
            "kind": TEXT,
            "finding": TEXT,
            "share": (int, float, NULL),
            "gain_ns": (int, NULL),
            "evidence": [TEXT],
        }
    ],
    "what_if": {"culprits_repaired_ns": (int, NULL), "all_repaired_ns": (int, NULL)},
    "conclusion": {
        "status": TEXT,
        "cleared": [TEXT],
        "doubts": [TEXT],
        "unverified_transfers": (float, NULL),
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


PARTS = ["late_start", "cpu_launch", "cpu_after", "gpu", "communication", "unexplained"]


def _assert_split_adds_up(said: dict[str, Any]) -> None:
    """The parts add up to the loss, and the ranks of a part to the part."""
    split = said["split"]
    assert [share["part"] for share in split] == ([] if said["loss"]["ns"] is None else PARTS)
    if not split:
        return
    assert sum(share["ns"] for share in split) == said["loss"]["ns"]
    for share in split:
        own = [one["ns"] for one in share["ranks"]]
        assert own == sorted(own, reverse=True)
        assert sum(own) == (0 if share["part"] in PARTS[4:] else share["ns"])
        assert share["ns"] >= 0 or share["part"] == "unexplained"
    if said["loss"]["fraction"] is not None:
        assert math.isclose(
            sum(share["fraction"] for share in split), said["loss"]["fraction"], rel_tol=1e-9, abs_tol=1e-12
        )


def _assert_holds(said: dict[str, Any]) -> None:
    assert said["schema_version"] == 1
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
        assert (step["split"] is None) == (step["max_rank"] is None)
        assert step["split"] is None or sum(step["split"].values()) > 0
        if step["loss_fraction"] is not None:
            assert math.isclose(step["loss_fraction"], step["loss_ns"] / step["step_time_ns"], abs_tol=1e-12)
    gains = [max(one["gain_ns"], 0) for one in said["culprits"]]
    assert gains == sorted(gains, reverse=True)
    for one in said["culprits"]:
        assert one["scope"] in {"rank", "host", "device", "ranks", "unrecorded", "job"}
        assert one["cause"] in CAUSES - {"none"}
        assert one["confidence"] in {"high", "medium", "low"}
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
