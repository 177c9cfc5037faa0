"""Derived data, which make reading a large lake faster: disposable, and never needed for an answer.

An ingest writes timing caches; `Lake.prepare` writes what is missing. Measured on 960 ranks × 10 steps × 904 activities
(processor seconds of one process, wall seconds of two busy processors in parentheses):

- Timing caches: a diagnosis takes 2.8 s (5.9) with them, 18.5 s (46) without; 147 MB beside 188 MB of parquet.
- Compacted steps: a sum over all kernels in SQL takes 0.3 s (0.6) instead of 2.4 s (4.1), the metrics of all steps
  4.4 s (9.9) instead of 12 s (32). Compacting takes 21 s once.
- Kept answers (`analysis.diagnosis.answer_cache`): a second diagnosis takes 0.01 s instead of 2.8 s; 16 kB.

They serve different commands: the first report; SQL over kernels; every later report, table or list of steps.
"""

from typing import Final

MANY_FILES: Final = 10_000
"""Derived data are worth making from this number of parquet files on; fewer are read in a few seconds."""
