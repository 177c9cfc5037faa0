"""NCCL's and RCCL's debug logs: communicators and edges."""
