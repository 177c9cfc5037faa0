"""Tests of the metrics share the oracle that lies one folder up."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
