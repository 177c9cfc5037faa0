"""Simulated jobs in lakes, examined; the slow replay and the hand-made parts that the tests share."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
# the accuracy harness is a package of the repository's root
sys.path[:0] = [str(HERE), str(HERE.parent / "report"), str(HERE.parents[1])]
