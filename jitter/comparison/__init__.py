"""Compare two runs: what changed between them, and whether it is more than noise."""
