"""Kills, simultaneous work, mutated sources and flipped bits: `make torture` counts what survives them."""
