"""Tests of compacted steps share the random lakes that lie one folder up."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
