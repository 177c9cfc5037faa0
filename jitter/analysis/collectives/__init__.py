"""Which kernels of several ranks are one collective: recorded groups, inferred groups, matched sends and receives."""
