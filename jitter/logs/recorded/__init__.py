"""Collectives that NCCL's profilers and PyTorch's Flight Recorder record one by one."""
