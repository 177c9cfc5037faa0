"""Compacts a lake, as who sums up all of its steps does first. Timed by `answers.py` and `growth.py`.

python -m tests.bench.compacted LAKE
"""

import sys
from pathlib import Path

from jitter.lake.derived.compaction import compact_steps

if __name__ == "__main__":
    print(compact_steps(Path(sys.argv[1])))
