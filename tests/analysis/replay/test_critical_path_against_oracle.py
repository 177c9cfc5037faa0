"""The critical path against the slow one: the same operations, the same excess, and all of it accounted for."""

import numpy as np
import pytest

from jitter.analysis.execution.time_part import TimePart
from tests.support.oracles.critical_path import Charged, Path
from tests.support.oracles.replay_jobs import OracleJob

pytestmark = pytest.mark.slow


def baseline_transfers(job: OracleJob) -> dict[int, float]:
    """Of each collective of the program the lower median over steps and groups."""
    step = job.recorded[0][0]
    met: dict[tuple[object, int], int] = {}
    found: dict[int, list[float]] = {}
    for rank in job.recorded:
        count: dict[object, int] = {}
        for at, op in enumerate(step):
            if op.kind == "collective":
                group = job.group(rank, at)
                met[group, count.get(group, 0)] = at
                count[group] = count.get(group, 0) + 1
    for (group, _, order), took in job.transfers.items():
        found.setdefault(met[group, order], []).append(took)
    return {at: sorted(every)[(len(every) - 1) // 2] for at, every in found.items()}


def oracle_paths(job: OracleJob) -> dict[int, tuple[Path, float]]:
    """Each step's but the first's, and when it ended; they begin where the analysis says that the step ends."""
    found = {}
    last = max(at for at, op in enumerate(job.recorded[0][0]) if op.kind == "collective")
    for number in range(1, job.run.job.steps):
        first = next(iter(job.examined.paths[number].charges))
        assert (first.place, first.part) == (last, TimePart.TRANSFER)
        path = Path(job, number, baseline_transfers(job))
        found[number] = path, path.walk(first.rank, first.place)
    return found


def test_the_same_operations_with_the_same_excess(job: OracleJob):
    for number, (path, _) in oracle_paths(job).items():
        told = [
            Charged(c.rank, c.place, TimePart(c.part).name, c.excess_ns) for c in job.examined.paths[number].charges
        ]
        assert [one[:3] for one in told] == [one[:3] for one in path.charges]
        assert [one.excess for one in told] == pytest.approx([one.excess for one in path.charges], abs=1e-3)


def test_excess_is_what_the_path_takes_beyond_its_medians(job: OracleJob):
    for number, (path, ended) in oracle_paths(job).items():
        assert path.began is not None
        assert path.took == pytest.approx(ended - path.began, abs=1e-3), number
        told = sum(charge.excess_ns for charge in job.examined.paths[number].charges)
        assert told == pytest.approx(ended - path.began - path.at_medians, abs=1e-2)
        assert any(abs(charge.excess) > 1000 for charge in path.charges)


def test_the_max_ranks_excess_is_split_without_remainder(job: OracleJob):
    answers = job.lake.diagnose().steps
    for number, (path, _) in oracle_paths(job).items():
        excess: dict[int, dict[str, float]] = {}
        for charge in path.charges:
            parts = excess.setdefault(charge.rank, {"START": 0.0, "CPU": 0.0, "GPU": 0.0, "TRANSFER": 0.0})
            parts[charge.part] += charge.excess
        for tail in job.examined.paths[number].tail:  # the oracle's path ends at the step before
            parts = excess.setdefault(tail.rank, {"START": 0.0, "CPU": 0.0, "GPU": 0.0, "TRANSFER": 0.0})
            parts[TimePart(tail.part).name] += tail.excess_ns
        own = {rank: parts["START"] + parts["CPU"] + parts["GPU"] for rank, parts in excess.items()}
        worst = max(own, key=lambda rank: (own[rank], -rank))
        answer = answers[number]
        if own[worst] <= 0:  # whatever it takes longer, it makes up in the tail
            assert answer.max_rank is None
            continue
        assert answer.max_rank == worst
        split = answer.split
        assert split is not None
        assert split.start_ns + split.cpu_ns + split.after_ns + split.gpu_ns == round(own[worst])
        assert split.after_ns == 0
        for told, part in ((split.start_ns, "START"), (split.cpu_ns, "CPU"), (split.gpu_ns, "GPU")):
            assert told == pytest.approx(excess[worst][part], abs=1)


def test_the_min_rank_waits_longest(job: OracleJob):
    answers = job.lake.diagnose().steps
    for number in range(job.run.job.steps):
        waited = dict.fromkeys(job.recorded, 0.0)
        for at, op in enumerate(job.recorded[0][number]):
            if op.kind != "collective":
                continue
            for rank in job.recorded:
                mine = [other for other in job.recorded if job.group(other, at) == job.group(rank, at)]
                last = max(job.recorded[other][number][at].start for other in mine)
                waited[rank] += last - job.recorded[rank][number][at].start
        assert answers[number].min_rank == max(waited, key=lambda rank: (waited[rank], -rank))


def test_step_times_are_the_simulators(job: OracleJob):
    assert [answer.step_time_ns for answer in job.lake.diagnose().steps] == list(job.run.step_times().values())
    assert np.isnan(job.examined.step_ns[0])
