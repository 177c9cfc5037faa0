"""Evidence from a job's logs: GPUs, network, placement of ranks."""
