"""Which CPUs and GPUs ranks are bound to, and how a host is laid out."""
