"""The truth about a run as a small document: ranks, steps, cause and cost of each fault."""

from typing import Any

from jitter.simulate.faults import Fault
from jitter.simulate.run import Run


def truth_document(run: Run) -> dict[str, Any]:
    """Return the content of `truth.json`: job, faults with ranks and costs, step times with and without faults.

    `step_time_ns`: from the end of the previous step's last collective to the end of this step's; null for the first
    step. `gain_ns`: time saved over all steps but the first if this fault alone is removed, with the same noise.
    `delay_ns`: delay of the end of the first step by all faults.
    """
    job = run.job
    ends, healthy = run.last_collective_ends(), run.without().last_collective_ends()
    steps = []
    for at, step in enumerate(job.step_numbers):
        period = ends[at] - ends[at - 1] if at else None
        should = healthy[at] - healthy[at - 1] if at else None
        active = [f for f in run.faults if f.at_step(step)]
        steps.append(
            {
                "step": step,
                "step_time_ns": period,
                "healthy_step_time_ns": should,
                "culprits": sorted({rank for f in active for rank in f.on_ranks(step, job.ranks)}),
                "causes": sorted({f.cause for f in active}),
            }
        )
    return {
        "schema_version": 1,
        "job": {
            "ranks": job.ranks,
            "steps": [job.step_numbers[0], job.step_numbers[-1]],
            "epoch": job.epoch if job.marker == "talk" else None,
            "kernels_per_step": max(program.kernels for program in run.plan.programs),
            "seed": job.seed,
            "gpus_per_node": job.gpus_per_node,
        },
        **_stages(run),
        "delay_ns": ends[0] - healthy[0],
        "faults": [_fault(run, fault, ends) for fault in run.faults],
        "steps": steps,
    }


def _stages(run: Run) -> dict[str, Any]:
    """Return the ranks of each stage; empty for a single program."""
    if len(run.plan.programs) == 1:
        return {}
    of_rank = enumerate(run.plan.programs)
    return {
        "stages": [{"ranks": run.plan.ranks_of(at).tolist(), "kernels": program.kernels} for at, program in of_rank]
    }


def _fault(run: Run, fault: Fault, ends: list[int]) -> dict[str, Any]:
    repaired = run.without(fault).last_collective_ends()
    kernels = sorted(fault.kernels) if fault.kernels else None
    steps = [step for step in run.job.step_numbers if fault.at_step(step)]
    ranks = sorted({rank for step in steps for rank in fault.on_ranks(step, run.job.ranks)})
    return {
        "kind": fault.kind,
        "cause": fault.cause,
        "ranks": ranks,
        "hosts": sorted({f"node{rank // run.job.gpus_per_node:04d}" for rank in ranks}),
        "steps": steps,
        "kernel": fault.kernel if kernels is None else kernels[0],
        "gain_ns": (ends[-1] - ends[0]) - (repaired[-1] - repaired[0]),
    }
