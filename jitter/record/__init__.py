"""Recording of a job for its analysis: step markers, the rank in every name, few steps, no stacks.

with jitter.record.torch_profiler("traces/", steps=range(100, 110)) as profiler:
    for batch in loader:
        train(batch)
        profiler.step()
"""

from jitter.record.torch import torch_profiler

__all__ = ["torch_profiler"]
