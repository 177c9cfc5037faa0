"""Reports about several runs: comparisons, gates, history."""
