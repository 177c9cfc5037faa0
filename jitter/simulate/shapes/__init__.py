"""The shapes of jobs. A new one is one new file here and one line in `SHAPES`."""

from collections.abc import Callable
from importlib import import_module
from typing import Final

from jitter.simulate.job import Job
from jitter.simulate.program import Plan

SHAPES: Final = {
    "data_parallel": "all-reduces of gradients overlap the backward; one sync a step",
    "tensor_parallel": "all-reduces within every layer, which all else waits for",
    "sharded": "parameters all-gathered a layer ahead, gradients reduce-scattered behind",
    "tensor_data": "tensor-parallel groups of neighbours, gradients all-reduced across them",
    "expert": "two blocking all-to-alls a layer among neighbours, gradients all-reduced across them",
    "pipeline": "stages of different programs that send and receive micro-batches (1F1B)",
}
"""What each is. Its module has `plan(job) -> Plan`."""


def plan(job: Job) -> Plan:
    """What each rank of this job runs."""
    build: Callable[[Job], Plan] = import_module(f"jitter.simulate.shapes.{job.shape}").plan
    return build(job)
