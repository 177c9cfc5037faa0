"""Notes of an ingest: each once, with the number of recordings that it holds for."""

from pathlib import Path

import pytest

from jitter.cli.commands.ingest import print_ingest_report
from jitter.ingestion.discovery.discover import DiscoveredFiles
from jitter.ingestion.ingest import IngestReport


def test_notes_that_differ_in_a_number_are_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    report = IngestReport(tmp_path, DiscoveredFiles([], [], 0))
    report.warnings += [f"rank{rank}.sqlite: {30 + rank} kernels lie outside every step" for rank in range(5)]
    report.warnings += ["a sentence about all", "two.csv: cut", "three.csv: cut"]
    print_ingest_report(report, [tmp_path], strict=False)
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")] == [
        "note: rank0.sqlite: 30 kernels lie outside every step (and 4 more recordings, with other numbers)",
        "note: a sentence about all",
        "note: two.csv: cut (and 1 more recording)",
    ]
