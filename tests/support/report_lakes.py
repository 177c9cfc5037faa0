"""Lakes made by hand for the report: a small job with exactly known times, and what may be missing from it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jitter
from jitter.report.views.step_view import StepGrid, StepView, build_step_view
from tests.support.lakes import RankLake, kernel, lake_of
from tests.support.records import MAIN

Rows = list[dict[str, Any]]


def step_rows(
    rank: int,
    step: int,
    kernels: int = 12,
    late: Mapping[int, int] | None = None,
    name: Callable[[int], str] = lambda k: f"void ns::kernel_{k}<int>(float*)",
    collective: bool = True,
) -> Rows:
    """One rank's step: `late[k]` ns more before kernel k; all leave one all-reduce together, a kernel follows it.

    Own times differ a little from rank to rank, by a rule and not by chance. Each rank has a clock of its own.
    """
    clock = 1_000_000_000 * (rank + 1) + 50_000_000 * step
    time, rows = clock, []
    for k in range(kernels):
        time += 1000 + (rank * 37 + k * 11 + step * 5) % 40 + (late or {}).get(k, 0)
        duration = 20_000 + (rank * 53 + k * 29 + step * 3) % 200
        rows.append(_row(name(k), "compute", MAIN, time, time + duration))
        time += duration
    if collective:
        end = clock + 30_000_000
        rows.append(_row("ncclDevKernel_AllReduce_Sum_f16_RING_LL", "collective", 20, time + 500, end))
        rows[-1]["collective"] = "all_reduce"
        rows.append(_row(name(kernels), "compute", MAIN, end + 3000, end + 23_000))
    return rows


def _row(name: str, kind: str, stream: int, start: int, end: int) -> dict[str, Any]:
    launch = start - 5000 - (end - start) % 700
    return kernel(name, start, end, stream, kind=kind, launch_start_ns=launch, launch_end_ns=launch + 900)


def report_lake(
    root: Path,
    ranks: Mapping[int, Mapping[tuple[int | None, int], Rows]],
    cut: Sequence[tuple[int, int]] = (),
    refused: Sequence[str] = (),
    problems: Sequence[str] = (),
    host: Callable[[int], str | None] = lambda rank: f"node{rank // 2}",
) -> "jitter.Lake":
    """Write and open a lake of rank -> (epoch, step) -> rows, two ranks a host.

    `cut`: (rank, step) that were not recorded to their end; `refused`: the problem of each source without a rank;
    `problems`: of every other source.
    """
    sources = [
        RankLake(
            rank,
            dict(its_steps),
            cut={key for key in its_steps if (rank, key[1]) in cut},
            fields={**_FIELDS, "host": host(rank), "problems": list(problems)},
            begins_with_rows=True,
        )
        for rank, its_steps in ranks.items()
    ]
    sources += [RankLake(None, {}, fields={**_FIELDS, "problems": [problem]}) for problem in refused]
    return lake_of(root, sources)


_FIELDS = {"profiler_version": "2026.2", "outside_steps": 3, "before_capture": 1}


def report_job(
    root: Path, ranks: int = 4, steps: int = 3, late: tuple[int, int, int, int] = (2, 1, 5, 400_000)
) -> "jitter.Lake":
    """A job where `late` = (rank, step, kernel, ns) is the one thing that goes wrong."""
    rank, step, kernel, ns = late
    return report_lake(
        root,
        {
            r: {(1, s): step_rows(r, s, late={kernel: ns} if (r, s) == (rank, step) else None) for s in range(steps)}
            for r in range(ranks)
        },
    )


def view_of(lake: "jitter.Lake", number: int = 1) -> StepView:
    """Return the view of the step at this position of the run."""
    examined, step = lake.analyze(), lake.diagnose().steps[number]
    return build_step_view(StepGrid(lake, step), examined, step)
