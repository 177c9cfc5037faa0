"""Two recordings of one program on 2 × H100: the later one is slower because its hosts launch late."""

import json

import pytest

import jitter
from jitter.comparison.compare_documents import comparison_document
from jitter.comparison.runs import load_run
from tests.support.printed import output_of
from tests.support.real_recordings import EVIDENCE, TRACES, needs_evidence, needs_traces

BEFORE = TRACES / "nsys" / "nsysai_mfu_2gpu_before.sqlite"
AFTER = EVIDENCE / "compare" / "mfu_2gpu_after.sqlite"
pytestmark = [needs_traces, needs_evidence]


@pytest.fixture(scope="module")
def lakes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    for name, trace in (("before", BEFORE), ("after", AFTER)):
        assert jitter.ingest([trace], folder / name).refused == []
    return folder


@pytest.fixture(scope="module")
def documents(lakes):
    return {name: load_run(lakes / name) for name in ("before", "after")}


def test_the_later_recording_is_slower_by_its_launches(documents):
    found = comparison_document(jitter.compare(documents["before"], documents["after"]))
    assert found["verdict"] == "slower"
    assert 0.115 <= found["step_time"]["fraction"] <= 0.13
    assert found["step_time"]["base_ns"] == pytest.approx(16.682e6, rel=1e-4)
    assert found["step_time"]["new_ns"] == pytest.approx(18.676e6, rel=1e-4)
    largest = max(found["split"], key=lambda part: abs(part["difference_ns"]))
    assert largest["part"] == "launch"
    assert 0.8 <= largest["difference_ns"] / found["step_time"]["difference_ns"] <= 1.2
    assert found["kernels"] == []
    assert found["kernel_names"] == {"matched": 30, "base": 30}
    assert "launch" in found["sentence"]
    assert "spread between runs is unknown" in found["sentence"]


def test_the_parts_add_up_to_the_step(documents):
    found = comparison_document(jitter.compare(documents["before"], documents["after"]))
    difference_ns = found["step_time"]["difference_ns"]
    assert sum(part["difference_ns"] for part in found["split"]) == difference_ns
    assert sum(part["usual_ns"] + part["jitter_ns"] for part in found["split"]) == difference_ns


def test_two_calls_give_one_answer(lakes, capsys):
    said = []
    for _ in range(2):
        said.append(output_of(capsys, "compare", lakes / "before", lakes / "after", "--json"))
    assert said[0] == said[1]
    assert json.loads(said[0])["schema_version"] == 3
