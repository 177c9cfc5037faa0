"""Tests of the simulator share its slow replay."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
