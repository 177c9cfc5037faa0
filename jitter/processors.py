"""How many processors there are to work with."""

import os


def processors() -> int:
    """Those this process may use: a scheduler such as Slurm gives a job a part of its node."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
