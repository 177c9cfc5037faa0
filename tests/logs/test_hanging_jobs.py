"""Hangs of simulated jobs with a known cause: no innocent rank is named, and the guilty one is not cleared."""

import json
import random
from dataclasses import replace

import pytest
from hanging_jobs import HangingJob, HungCall, hang_of

from jitter.analysis.diagnosis.hang.model import Hang
from tests.support.fuzz_depth import fuzz, of_all

RANKS = 8
GROUPS = {
    "0": ("default_pg", range(RANKS)),
    **{str(1 + pair): ("tp", [2 * pair, 2 * pair + 1]) for pair in range(4)},
    "5": ("dp", [0, 2, 4, 6]),
    "6": ("dp", [1, 3, 5, 7]),
}


def programs(steps: int = 6) -> list[list[HungCall]]:
    """Tensor parallel pairs whose GPUs wait, data parallel groups that overlap, and a call that hosts wait for."""

    def step(rank: int) -> list[HungCall]:
        tp, dp = str(1 + rank // 2), str(5 + rank % 2)
        layers = [HungCall(tp, elements=512, waits="gpu") for _ in range(3)]
        return [
            *layers,
            HungCall(dp, elements=2048),
            HungCall(dp, elements=4096),
            HungCall("0", elements=1, waits="host"),
        ]

    return [step(rank) * steps for rank in range(RANKS)]


def named(hang: Hang) -> set[int]:
    """Return the ranks that a hang blames: culprits, or the fewer of the ranks whose calls differ."""
    if hang.is_circular:
        return set()
    if hang.kind == "mismatch" and hang.parted_at is None:
        first, *others = hang.operation.variants
        return {rank for variant in others if len(variant.ranks) < len(first.ranks) for rank in variant.ranks}
    return set(hang.culprits)


FAULTS = ("host", "never", "skip", "extra", "size", "operation", "gpu")


@fuzz
@pytest.mark.parametrize("fault", FAULTS)
def test_no_innocent_rank_is_named_and_the_guilty_one_not_cleared(fault):
    right, jobs = 0, of_all(24, 8)
    for seed in range(jobs):
        rng = random.Random(seed)
        job = HangingJob(GROUPS, programs())
        rank = rng.randrange(RANKS)
        program = job.programs[rank]
        at = rng.randrange(len(program) // 3, len(program) - 6)
        if fault == "host":
            job.host_stops_before[rank] = at
        elif fault == "never":
            job.host_stops_before[rank] = 0
        elif fault == "skip":
            del program[at]
        elif fault == "extra":
            program.insert(at, program[at])
        elif fault == "size":
            program[at] = replace(program[at], elements=program[at].elements + 8)
        elif fault == "operation":
            program[at] = replace(program[at], operation="_all_gather_base")
        else:
            job.gpu_stops_before[rank] = at
        with_status = seed % 2 == 0
        hang = hang_of(job.run().dumps(with_status=with_status, with_starts=fault == "gpu"))
        assert hang is not None
        assert named(hang) <= {rank}, (seed, rank, hang.headline)
        assert named(hang) == {rank} or hang.kind != "all_entered", (seed, rank, hang.headline)
        right += named(hang) == {rank}
        cut = hang_of(job.dumps(kept=9, with_status=with_status))
        assert cut is None or named(cut) <= {rank}, (seed, rank, cut.headline)
        assert cut is None or named(cut) or fault == "gpu" or cut.kind != "all_entered", (seed, rank, cut.headline)
    assert right >= (
        jobs // 2 if fault == "never" else 3 * jobs // 4
    )  # a dump without calls and without the groups' status tells nothing


def stopped_job() -> HangingJob:
    """All-reduces of four ranks, of which rank 2 stops before its 18th."""
    job = HangingJob({"0": ("default_pg", range(4))}, [[HungCall("0")] * 20 for _ in range(4)])
    job.host_stops_before[2] = 17
    return job.run()


def test_a_dump_that_is_cut_blames_nobody():
    whole = stopped_job().dumps()
    hang = hang_of(whole)
    assert hang is not None
    assert (hang.kind, hang.culprits) == ("not_entered", (2,))
    text = json.dumps(whole["nccl_trace_rank_1"], sort_keys=True)  # the entries come first, as PyTorch writes them
    hang = hang_of(whole | {"nccl_trace_rank_1": text[: len(text) // 2]})
    assert hang is not None
    assert (hang.culprits, hang.operation.unknown) == ((2,), (1,))
    text = json.dumps(whole["nccl_trace_rank_2"], sort_keys=True)
    hang = hang_of(whole | {"nccl_trace_rank_2": text[: len(text) // 2]})
    assert hang is not None
    assert (hang.kind, hang.culprits, hang.operation.unknown) == ("undecided", (), (2,))
    assert "cut off" in hang.headline


def test_dumps_of_different_times_blame_no_rank_that_went_on():
    """Rank 1's dump is of call 9; the calls up to 17 completed on ranks 0 and 3, so rank 1 entered them, too."""
    dumps = stopped_job().dumps()
    dumps["nccl_trace_rank_1"]["entries"] = dumps["nccl_trace_rank_1"]["entries"][:9]
    hang = hang_of(dumps)
    assert hang is not None
    assert (hang.culprits, hang.operation.unknown) == ((2,), (1,))
    assert any("older" in line for line in hang.evidence)


def test_dumps_of_two_jobs_and_of_two_runs_are_not_mixed():
    newer = stopped_job().dumps()
    for dump in newer.values():
        for entry in dump["entries"]:
            entry["time_created_ns"] += 3_600 * 10**9
    missing = {f"run2/{name}": dump for name, dump in newer.items() if not name.endswith("0")}
    former = HangingJob({"0": ("default_pg", range(4))}, [[HungCall("0")] * 9 for _ in range(4)])
    former.host_stops_before[3] = 5
    earlier = {f"run1/{name}": dump for name, dump in former.run().dumps().items()}
    other = HangingJob({"0": ("default_pg", range(6))}, [[HungCall("0")] * 9 for _ in range(6)])
    other.host_stops_before[5] = 2
    of_other_job = {f"other/{name}": dump for name, dump in other.run().dumps().items()}
    hang = hang_of(missing | earlier | of_other_job)
    assert hang is not None
    assert (hang.culprits, hang.operation.unrecorded, hang.operation.members) == ((2,), (0,), (0, 1, 2, 3))
    assert any(line.startswith("10 dumps of another job") for line in hang.evidence)


def test_of_two_folders_with_the_same_ranks_one_is_used():
    """Each folder has the newer dump of one rank."""
    job = HangingJob({"0": ("default_pg", range(2))}, [[HungCall("0")] * 9 for _ in range(2)], {1: 5})
    dumps = job.run().dumps()
    later = {name: json.loads(json.dumps(dump)) for name, dump in dumps.items()}
    later["nccl_trace_rank_0"]["entries"][-1]["time_created_ns"] += 10**9
    dumps["nccl_trace_rank_1"]["entries"][-1]["time_created_ns"] += 10**9
    hang = hang_of(
        {f"a/{name}": dump for name, dump in dumps.items()} | {f"b/{name}": dump for name, dump in later.items()}
    )
    assert hang is not None
    assert (hang.culprits, hang.operation.waiting) == ((1,), (0,))


def test_a_group_that_each_rank_names_in_its_own_way_is_one_group():
    job = HangingJob({"0": ("default_pg", range(4)), "7": ("pair", [0, 1])},
                     [[HungCall("7") if rank < 2 else HungCall("0")] * 3 for rank in range(4)])  # fmt: skip
    job.host_stops_before |= {1: 2, 2: 0, 3: 0}
    dumps = job.run().dumps()
    text = json.dumps(dumps["nccl_trace_rank_1"]).replace('"7"', '"a81f"')
    hang = hang_of(dumps | {"nccl_trace_rank_1": text})
    assert hang is not None
    assert (hang.culprits, hang.is_circular) == ((1,), False)


def test_a_rank_behind_two_that_wait_for_each_other_is_not_of_their_circle():
    """Rank 0 sends first, to rank 1; ranks 1 and 2 send to each other, and neither receives."""
    programs = [[HungCall("0", one, waits="host")] for one in ("send 0->1", "send 1->2", "send 2->1", "recv 3<-2")]
    hang = hang_of(HangingJob({"0": ("default_pg", range(4))}, programs).run().dumps())
    assert hang is not None
    assert hang.is_circular
    assert {hang.operation.waiting, hang.culprits} == {(1,), (2,)}


def test_one_rank_that_made_a_call_too_much_is_told_as_such_and_the_others_are_not_blamed():
    job = HangingJob(
        {"0": ("default_pg", range(4))}, [[HungCall("0")] * (21 if rank == 1 else 20) for rank in range(4)]
    )
    hang = hang_of(job.run().dumps())
    assert hang is not None
    assert hang.headline.startswith("Hang: rank 1 alone entered all_reduce 21")
    assert (hang.culprits, hang.operation.not_entered) == ((), (0, 2, 3))


def test_a_call_behind_another_one_on_the_gpu_is_not_the_root():
    """All ranks entered the call of hosts; rank 1's pair waits for rank 1 before it."""
    pairs = {"0": ("default_pg", range(4)), "1": ("tp", [0, 1]), "2": ("tp", [2, 3])}
    step = [[HungCall("1" if rank < 2 else "2", waits="gpu")] * 2 + [HungCall("0", waits="host")] for rank in range(4)]
    job = HangingJob(pairs, [one * 4 for one in step])
    job.gpu_stops_before[1] = 7
    hang = hang_of(job.run().dumps(with_starts=True))
    assert hang is not None
    assert (hang.kind, hang.operation.call.group, hang.culprits) == ("not_started", "1", (1,))
