"""How often the analysis is right: hundreds of simulated jobs, with known faults and without, written as traces,
ingested and diagnosed. `python -m tests.accuracy` prints the table; `--only SEED` looks at one job.

It knows the analysis by what a user sees of it: `jitter.ingest`, `jitter.open`, `Lake.diagnosis`, `Lake.waits`.
"""
