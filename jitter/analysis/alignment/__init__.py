"""Which kernels, operations, ranks of several ranks, steps and runs are the same: one alignment."""
