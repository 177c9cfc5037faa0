"""Real recordings (JITTER_TRACES): each has a document, and is the same as itself or not comparable with a reason."""

import pytest

import jitter
from jitter.comparison.document import MAX_DOCUMENT_BYTES, decode_document, encode_document
from jitter.comparison.runs import load_run
from tests.support.real_recordings import TRACES, needs_traces

SOURCES = ("kineto/amd-4rank", "kineto/hta/df_index_resolver.json.gz", "kineto/hta/sampled-pair", "rocprof/v3-json")
pytestmark = [pytest.mark.slow, needs_traces]


@pytest.mark.parametrize("source", SOURCES)
def test_a_recording_against_itself(source, tmp_path):
    report = jitter.ingest([TRACES / source], tmp_path / "lake")
    if report.refused:
        jitter.ingest([TRACES / source], tmp_path / "lake", rank=0)
    document = load_run(tmp_path / "lake")
    content = encode_document(document)
    assert len(content) < MAX_DOCUMENT_BYTES
    assert decode_document(content, "file") == document
    found = jitter.compare(document, document)
    if len(document.steps) < 5:
        assert found.verdict == "incomparable"
        assert "fewer than 5" in found.sentence
    else:
        assert found.verdict == "same"
        assert found.kernels is not None
        assert found.kernels.changes == []
