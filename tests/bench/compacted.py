"""Compacts a lake, as who sums up all of its steps does first. Timed by `answers.py` and `growth.py`.

python -m tests.bench.compacted LAKE
"""

import sys
from pathlib import Path

from jitter.lake.derived.compaction import compact

if __name__ == "__main__":
    print(compact(Path(sys.argv[1])))
