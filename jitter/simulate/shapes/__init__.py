"""The shapes of jobs: kinds of parallelism. A new one is a module here and an entry in `SHAPES`."""

from collections.abc import Callable
from importlib import import_module
from typing import Final

from jitter.simulate.job import Job
from jitter.simulate.program import Plan

SHAPES: Final = {
    "data_parallel": "all-reduces of gradients overlap the backward; one sync a step",
    "tensor_parallel": "blocking all-reduces in every layer",
    "sharded": "parameters all-gathered a layer ahead, gradients reduce-scattered behind",
    "tensor_data": "tensor-parallel groups of neighbours, gradients all-reduced across them",
    "expert": "two blocking all-to-alls a layer among neighbours, gradients all-reduced across them",
    "pipeline": "stages of different programs that send and receive micro-batches (1F1B)",
}
"""Description of each shape, whose module has `plan(job) -> Plan`."""


def plan(job: Job) -> Plan:
    """Return the programs and process groups of a job."""
    build: Callable[[Job], Plan] = import_module(f"jitter.simulate.shapes.{job.shape}").plan
    return build(job)
