"""Real recordings and logs, in the folders that JITTER_TRACES and JITTER_EVIDENCE name; tests on them skip without."""

import os
from pathlib import Path

import pytest

TRACES = Path(os.environ.get("JITTER_TRACES") or "/nonexistent")
EVIDENCE = Path(os.environ.get("JITTER_EVIDENCE") or "/nonexistent")
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="JITTER_TRACES names no folder of real recordings")
needs_evidence = pytest.mark.skipif(not EVIDENCE.is_dir(), reason="JITTER_EVIDENCE names no folder of real logs")
