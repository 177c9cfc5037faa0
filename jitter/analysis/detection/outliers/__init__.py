"""Own times that stand out above the noise: of a rank, of a group of ranks, of a step."""
