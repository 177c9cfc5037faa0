"""Tests of the simulator share its slow replay, and the comparison of a lake with the truth."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "metrics")]
