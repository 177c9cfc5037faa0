"""A second generator of jobs with known truth: irregular noise, interference, pipelines. It shares no code with jitter.

Jobs run on an event-by-event engine of its own and are written as PyTorch (Kineto) traces. The truth about a fault is
the same job, with the same random draws, run without it.
"""
