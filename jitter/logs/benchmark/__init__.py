"""nccl-tests and rccl-tests: measured bandwidths."""
