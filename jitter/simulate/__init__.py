"""Simulated traces of training jobs with known faults, to test an analysis against the truth.

The simulator shares no code with the analysis. It is deterministic and computes in int64 nanoseconds:

    run = simulate(Job(ranks=8, steps=4, kernels=60, seed=1, first_step=2000),
                   [Fault.parse("cpu_stall:rank=3,step=2002,kernel=17,ms=2")])
    for recording in run.ranks():          # RankRecording: numpy columns, ranges, calls, on the rank's clock
        recording.start_ns, recording.clock.offset_ns, recording.steps
    truth_document(run)                    # ranks, cause and cost of each fault: the content of truth.json
    run.step_times()                       # step -> ns, in global time; run.last_collective_ends()
    run.without(fault)                     # the same run and noise without it
    write_logs(run, folder)              # paths of the logs of the job: nccl-tests' and NCCL's
    write(run, folder, "nsys", layout="2026.2", shuffle=True)   # paths; options as in the `Options` of the format
"""

from jitter.simulate.faults import Fault
from jitter.simulate.formats import write
from jitter.simulate.job import Job
from jitter.simulate.job_logs import write_logs
from jitter.simulate.recording import RankRecording
from jitter.simulate.run import Run, simulate, truth_document

__all__ = [
    "Fault",
    "Job",
    "RankRecording",
    "Run",
    "simulate",
    "truth_document",
    "write",
    "write_logs",
]
