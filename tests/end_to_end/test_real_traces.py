"""Real traces (JITTER_TRACES names their folder): each is diagnosed in silence, and replayed to the nanosecond."""

import json
from pathlib import Path
from typing import Any

import pytest

import jitter
from jitter.comparison.document import MAX_DOCUMENT_BYTES, decode_document, encode_document
from jitter.comparison.runs import load_run
from jitter.core.errors import LakeError
from jitter.core.formatting import format_time
from jitter.query.diagnosis_rows import steps_table
from jitter.report.json_report import render_json
from jitter.report.markdown import render_markdown
from jitter.report.page import render_html
from jitter.report.text.fix_list import answer_questions
from jitter.report.text.step_table import format_steps
from jitter.report.views.run_overview import build_run_overview
from tests.support.real_recordings import TRACES, needs_traces
from tests.support.replay_assertions import assert_replay_matches_recording

JOBS = [
    TRACES / "kineto/amd-4rank",
    TRACES / "kineto/hta/sampled-pair",
    TRACES / "rocprof/v1",
    TRACES / "rocprof/v3-json",
]
SOURCES = [
    *(path for path in JOBS if path.exists()),
    *sorted((TRACES / "kineto").glob("[!a]*/*.json.gz")),
    *sorted((TRACES / "nsys").glob("*.sqlite")),
    *sorted((TRACES / "rocprof").glob("v3-csv*/*kernel_trace.csv")),
    *sorted((TRACES / "rocprof/rpd").glob("*.rpd")),
]
pytestmark = needs_traces


def _lake(source: Path, root: Path) -> "jitter.Lake | None":
    """Ingest it, as rank 0 if nothing tells its rank; None if nothing in it can be read."""
    report = jitter.ingest([source], root)
    if report.refused and all("--rank " in str(error) for error in report.refused):
        report = jitter.ingest([source], root, rank=0)
    try:
        return jitter.open(root)
    except LakeError:
        return None


def _report(lake: "jitter.Lake") -> dict[str, Any]:
    def never(word: str) -> float:
        raise AssertionError(f"{word} is no JSON")

    facts = build_run_overview(lake, lake.step_keys)
    assert render_markdown(lake.diagnose(), facts, lake.hosts).startswith("# jitter report")
    return json.loads(render_json(lake.diagnose(), facts), parse_constant=never)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(TRACES)))
def test_every_form_of_report_in_silence(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    lake = _lake(source, tmp_path / "lake")
    if lake is None:
        pytest.skip("nothing in it can be read")
    capsys.readouterr()
    said = _report(lake)
    assert format_steps(steps_table(lake.diagnose().steps)).count("\n") == len(lake.step_keys) + 1
    assert capsys.readouterr() == ("", "")
    assert said["verdict"]
    assert [step["step"] for step in said["steps"]] == [key.step for key in lake.step_keys]
    assert_replay_matches_recording(lake)
    assert_is_itself(lake)


def assert_is_itself(lake: "jitter.Lake") -> None:
    """Its document is small, whole, and the same as itself, or not comparable with a reason."""
    document = load_run(lake)
    content = encode_document(document)
    assert len(content) < MAX_DOCUMENT_BYTES
    assert decode_document(content, "file") == document
    found = jitter.compare(document, document)
    if len(document.steps) < 3:
        assert found.verdict == "incomparable"
        assert "fewer than 3" in found.sentence or not any(team.places for team in document.teams)
    else:
        assert found.verdict == "same"
        assert found.effect is not None
        assert [found.effect.difference_ns, *(part.difference_ns for part in found.split)] == [0] * (
            1 + len(found.split)
        )
        assert found.kernels is not None
        assert found.kernels.changes == []


def test_rank_1_launches_late_in_step_6(tmp_path: Path):
    lake = _lake(TRACES / "nsys/nsysai_mfu_2gpu_before.sqlite", tmp_path / "lake")
    assert lake is not None
    (step,) = [step for step in _report(lake)["steps"] if step["step"] == 6]
    assert (step["max_rank"], step["cause"]) == (1, "cpu_launch")


def test_rank_3_launches_late_in_every_form(tmp_path: Path):
    """Rank 3 is the last one at 15 of 15 large all-reduces, by its launches; three steps make that a lead."""
    lake = _lake(TRACES / "kineto/amd-4rank", tmp_path / "lake")
    assert lake is not None
    found = lake.diagnose()
    (lead,) = found.culprits
    assert (lead.scope, lead.ranks, lead.cause, lead.confidence) == ("rank", (3,), "cpu_launch", "low")
    by_part = {share.loss_class: share for share in found.split}
    assert by_part["launch"].ns >= 0.9 * (found.loss.ns or 0)
    assert by_part["launch"].ranks[0].rank == 3
    assert "it arrives last at 17 of 21 collectives" in lead.evidence
    answers = {one.question: one.answer for one in answer_questions(found, lake.hosts)}
    assert "Rank 3 launches its kernels late" in found.verdict
    saving = f"fixing it alone would save about {format_time(lead.gain_ns)}, because others are as late or later"
    assert saving in found.verdict
    assert answers["Which GPU?"].startswith("Rank 3, device ")
    assert answers["CPU or GPU?"] == "The CPU (late kernel launches)."
    assert "rank-3.json.gz" in answers["Where to look?"]
    assert {step.key.step: (step.max_rank, step.cause) for step in found.steps} == dict.fromkeys(
        (9, 10, 11), (3, "cpu_launch")
    )
    assert lead.gain_ns < 0.5 * lead.loss_ns  # other ranks are as late or later
    page, markdown = render_html(lake), render_markdown(found, build_run_overview(lake, lake.step_keys), lake.hosts)
    for text in (page, markdown):
        assert "Rank 3 launches its kernels late" in text
    assert "stands out" not in found.verdict


def test_waiting_of_a_single_rank_is_no_slow_gpu(tmp_path: Path):
    """Its slow steps are long in collectives, on several streams, without launches: no sign of a slow GPU.

    Independently: before step 1 the GPU ran nothing for 96 ms; steps 35 and 47 take 84 and 109 ms longer than usual,
    and their collectives as much.
    """
    lake = _lake(TRACES / "rocprof/v3-json", tmp_path / "lake")
    assert lake is not None
    found = lake.diagnose()
    waits, idle = found.culprits
    assert (waits.scope, waits.cause, waits.confidence) == ("unrecorded", "communication", "low")
    assert {35, 47} <= {key.step for key in waits.steps}
    assert waits.loss_ns == pytest.approx(84e6 + 109e6, rel=0.1)
    assert (idle.cause, idle.confidence, idle.steps[0].step) == ("late_start", "low", 1)
    assert 96_200_000 <= idle.loss_ns < found.steps[1].loss_ns
    assert found.conclusion.cleared == ()
    assert found.verdict.startswith("Only one rank was recorded, so jitter between ranks cannot be measured")


def test_the_prompts_of_an_inference_server_are_no_jitter(tmp_path: Path):
    """Steps 0 and 1 read prompts: 154 ms on the GPU, 5.3 ms in the others, which decode."""
    lake = _lake(TRACES / "rocprof/rpd/mytrace.rpd", tmp_path / "lake")
    assert lake is not None
    assert set(lake.kinds.values()) == {"serve"}
    found = lake.diagnose()
    assert found.culprits == ()
    assert found.loss.ns is not None
    assert found.loss.ns < 6_000_000
    assert any("Another program runs in steps 0-1 (429 kernels" in note for note in found.notes)


def test_a_recording_without_a_complete_step_clears_nobody(tmp_path: Path):
    report = jitter.ingest([TRACES / "rocprof/v3-csv/prefill_kernel_trace.csv"], tmp_path, rank=0)
    assert report.refused == []
    found = jitter.open(tmp_path).diagnose()
    assert found.verdict == "No rank recorded a step completely, so jitter cannot be measured."
    assert found.conclusion.cleared == ()
