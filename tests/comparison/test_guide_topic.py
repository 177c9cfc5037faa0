"""The guide's topic `compare` says what the code does: its tables equal the code's, both ways."""

from typing import get_args

import pytest

import jitter
from jitter.analysis.account.losses import LossClass
from jitter.comparison.compare_documents import Verdict, comparison_document
from jitter.comparison.kernel_changes import Kind
from jitter.comparison.rows import RowRung
from jitter.comparison.runs import load_run
from jitter.simulate import Fault, Job, simulate
from tests.guide.test_guide import firsts, json_keys, tables
from tests.support.simulated import ingest_run


def test_verdicts_parts_and_kinds():
    verdicts, rungs, parts, kinds, *_ = tables("compare")
    assert tuple(firsts(rungs)) == get_args(RowRung)
    assert tuple(firsts(verdicts)) == get_args(Verdict)
    assert firsts(parts) == [one.label for one in LossClass]
    assert tuple(firsts(kinds)) == get_args(Kind)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    job = {"ranks": 4, "steps": 6, "kernels": 40}
    base = ingest_run(simulate(Job(**job, seed=1)), tmp_path_factory.mktemp("base"), "nsys", layout="2026.2")
    fault = [Fault.parse("slow_gpu:rank=0-3,factor=1.5")]
    new = ingest_run(simulate(Job(**job, seed=2), fault), tmp_path_factory.mktemp("new"), "nsys", layout="2026.2")
    return jitter.compare(load_run(base), load_run(new))


CONTAINERS = {"base", "new", "loss", "culprits"}
TESTED_ELSEWHERE = {"launch_shapes[]", "environment.", "throughput[]", "culprits."}


def test_keys_of_the_json_form(comparison):
    told = {row[0]: set(row[1].split(" or ")) for row in tables("compare")[5]}
    found: dict[str, set[str]] = {}
    for key, kind in json_keys(comparison_document(comparison)):
        found.setdefault(key, set()).add(kind)
    assert set(found) - CONTAINERS - {key for key in found if key.startswith("culprits.")} <= set(told)
    missing = {key for key in told if key not in found and not any(key.startswith(one) for one in TESTED_ELSEWHERE)}
    assert missing == set()
    kinds = {key: found[key] - told[key] - {""} for key in found if key in told}
    assert {key: more for key, more in kinds.items() if more} == {}
