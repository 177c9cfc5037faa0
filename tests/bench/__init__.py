"""Benchmarks against what one would use instead; `make bench`. Ratios and medians, never a test of time."""
