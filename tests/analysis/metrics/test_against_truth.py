"""Simulated runs, written as traces, ingested and measured: every kernel of every rank to the nanosecond."""

from dataclasses import replace
from pathlib import Path

import pytest

import jitter
from jitter.analysis.metrics.step_metrics import select_unmatched
from jitter.simulate import Fault, Job, RankRecording, Run, simulate, truth_document, write
from tests.support.databases import open_database
from tests.support.kernel_truth import KernelTruth, compute_truth, kernel_truth
from tests.support.metric_assertions import assert_matches_oracle, assert_matches_truth
from tests.support.partial_captures import PartialCapture, keep_activities
from tests.support.simulated import ingest_run, ingest_traces

SMALL = {"ranks": 3, "steps": 2, "kernels": 40, "gpus_per_node": 2}


def nothing_is_lost(lake: "jitter.Lake") -> None:
    for source in lake.sources:
        inside = sum(step.kernels for step in source.steps)
        assert inside + source.outside_steps + source.before_capture == source.kernels


@pytest.mark.parametrize(
    ("layout", "seed", "options"),
    [
        ("2020.3", 1, {"shuffle": True}),
        ("2022.4", 2, {"container": "parquet", "text_ids": True}),
        ("2022.4", 3, {"ranks_per_report": 2, "shuffle": True}),
    ],
)
def test_every_layout(tmp_path, layout, seed, options):
    run = simulate(Job(**SMALL, seed=seed, first_step=2000))
    lake = ingest_run(run, tmp_path, "nsys", layout=layout, **options)
    assert_matches_truth(lake, kernel_truth(run))
    nothing_is_lost(lake)
    # before the first step and after the last
    assert {source.outside_steps for source in lake.sources} == {run.job.warmup_kernels + run.job.tail_kernels}


def test_a_kernel_more_and_a_kernel_less_shift_nobody(tmp_path):
    faults = [
        Fault.parse("extra_kernel:rank=1,step=1,kernel=17,ms=0.1"),
        Fault.parse("missing_kernel:rank=2,step=1,kernel=20"),
    ]
    run = simulate(Job(ranks=4, steps=2, kernels=40), faults)
    lake = ingest_run(run, tmp_path, "nsys")
    assert_matches_truth(lake, kernel_truth(run))
    assert_matches_oracle(lake)
    unmatched = select_unmatched(lake.metrics(1, 1).rows).to_pandas()
    assert unmatched[["rank", "position"]].to_numpy().tolist() == [[1, 17]]
    table = lake.table("duration", 1, 1)
    assert table.index.tolist() == list(range(40))
    assert table["rank_2"].isna().to_numpy().nonzero()[0].tolist() == [20]
    assert table.loc[20, "mean"] == table.loc[20, ["rank_0", "rank_1", "rank_3"]].mean()
    # its own kernel is in its time to kernel end
    plain = lake.table("duration", 1, 1)["rank_1"].sum() + lake.table("gap", 1, 1)["rank_1"].sum()
    main = lake.metrics(1, 1).rows.to_pylist()
    last = [row for row in main if row["rank"] == 1][-1]
    beside = sum(row["duration_ns"] for row in main if row["rank"] == 1 and not row["on_main"])
    extra = unmatched.loc[0]
    assert last["ttke_ns"] == plain - beside + extra["duration_ns"] + extra["gap_ns"]


@pytest.mark.parametrize(
    "capture",
    [{"graphs": "node"}, {"unlaunched": 7}, {"early": 9}, {"unlaunched": 5, "early": 4, "graphs": "node"}],
    ids=str,
)
def test_captures_that_lack_launches(tmp_path, capture):
    """Kernels of lost launches go with the one before on their stream; those before the first launch go nowhere."""
    run = simulate(Job(ranks=2, steps=2, kernels=40, seed=3, warmup_kernels=12))
    captured = PartialCapture(run, **capture)
    lake = ingest_run(captured, tmp_path, "nsys", shuffle=True)
    placed = [_placed(recording) for recording in captured.ranks()]
    assert_matches_truth(lake, compute_truth([one for one, _ in placed], run.job.epoch))
    assert_matches_oracle(lake)
    nothing_is_lost(lake)
    assert {source.rank: source.before_capture for source in lake.sources} == {one.rank: n for one, n in placed}


def _placed(recording: RankRecording) -> tuple[RankRecording, int]:
    """The recording in the launch order that can be told of it, and how many kernels were launched before it."""
    place: dict[int, int] = {}
    last: dict[int, int] = {}  # stream -> the last activity of it whose launch is known
    before = 0
    ops = list(recording.ops())
    for at in sorted(range(len(recording)), key=lambda at: int(recording.start_ns[at])):
        if recording.has_launch[at]:
            last[ops[at].stream] = at
        if ops[at].stream in last:
            place[at] = last[ops[at].stream]
        else:
            before += ops[at].kind != "memory"
    launched = recording.launch_start_ns.tolist()
    order = sorted(place, key=lambda at: (launched[place[at]], ops[at].stream, int(recording.start_ns[at])))
    steps = [place[at] for at in order]
    return replace(keep_activities(recording, order), step=recording.step[steps]), before


def test_whole_graphs_are_one_kernel_each(tmp_path):
    run = simulate(Job(ranks=2, steps=2, kernels=40))
    lake = ingest_run(run, tmp_path, "nsys", graphs="graph")
    measured = assert_matches_oracle(lake)
    last = max(index for (key, _), one in measured.items() for _, index in one.rows)
    assert 0 < last < 39
    assert {one.method for one in measured.values()} == {"collective"}


def test_a_cut_capture_counts_where_it_reaches_and_nowhere_else(tmp_path):
    job = Job(ranks=4, steps=2, kernels=40)
    run = simulate(job)
    folder = tmp_path / "traces"
    write(run, folder, "nsys")
    for rank, cut in ((2, 5), (3, 12)):  # past the two tail kernels and the last copy: 2 and 9 of the last step
        one = simulate(job)
        write(PartialCapture(one, cut_kernels=cut), tmp_path / f"cut{cut}", "nsys")
        (tmp_path / f"cut{cut}" / f"rank{rank}.sqlite").replace(folder / f"rank{rank}.sqlite")
    lake = ingest_traces(tmp_path)
    wanted = {key: kernels for key, kernels in kernel_truth(run).items() if key[1] == 0}
    assert_matches_oracle(lake)
    state = {
        source.rank: [(step.cut, step.launches_without_kernel) for step in source.steps] for source in lake.sources
    }
    assert state[0] == state[1] == [(False, 0), (False, 0)]
    assert state[2][0] == state[3][0] == (False, 0)
    assert state[2][1][0]
    assert state[3][1][0]
    (last,) = lake.kernel_indices(lake.step(1, 1))
    assert [member.rank for member in last.members] + list(last.left_out) == [0, 1, 2, 3]
    assert 3 in last.left_out
    found = {row["rank"] for row in lake.metrics(0, 1).rows.to_pylist()}
    assert found == {rank for _, _, rank in wanted}


def test_the_last_range_is_open_on_every_rank(tmp_path):
    """No uncut sequence of the step: the run's usual one is the reference, for those that got that far."""
    run = simulate(Job(ranks=3, steps=3, kernels=40, tail_kernels=0))
    lake = ingest_run(PartialCapture(run, open_last=True), tmp_path, "nsys")
    assert [[step.cut for step in source.steps] for source in lake.sources] == [[False, False, True]] * 3
    assert_matches_truth(lake, kernel_truth(run))
    assert_matches_oracle(lake)


def test_a_capture_of_one_open_step_is_no_crash(tmp_path):
    run = simulate(Job(ranks=2, steps=1, kernels=40))
    lake = ingest_run(PartialCapture(run, open_last=True), tmp_path, "nsys")
    assert lake.metrics(0, 1).rows.num_rows == 0
    (index,) = lake.kernel_indices(lake.step_keys[0])
    assert (index.members, index.left_out) == ((), (0, 1))
    (reading,) = lake.ttke_readings()
    assert (reading.last_index, reading.max_rank) == (None, None)


def test_all_that_stalls_before_its_last_collective_is_left_out(tmp_path):
    run = simulate(Job(ranks=2, steps=2, kernels=40))
    lake = ingest_run(PartialCapture(run, cut_kernels=30), tmp_path, "nsys")
    assert lake.metrics(1, 1).rows.num_rows == 0
    assert [index.left_out for key in lake.step_keys for index in lake.kernel_indices(key)] == [(), (0, 1)]
    assert_as_truth_of(lake, run, 0)


def assert_as_truth_of(lake: "jitter.Lake", run: Run, step: int) -> None:
    rows = lake.metrics(step, 1).rows.to_pylist()
    wanted = {rank: kernels for (_, at, rank), kernels in kernel_truth(run).items() if at == step}
    assert [row["ttke_ns"] for row in rows] == [k.ttke_ns for rank in sorted(wanted) for k in wanted[rank]]


def test_a_rank_missing_a_step_shifts_nobody(tmp_path):
    run = simulate(Job(ranks=3, steps=3, kernels=40))
    folder = tmp_path / "traces"
    write(run, folder, "nsys")
    _without_marker(folder / "rank1.sqlite", "step1-")
    lake = ingest_traces(tmp_path)
    wanted = {key: kernels for key, kernels in kernel_truth(run).items() if key != (1, 1, 1)}
    # the earliest of those that are left has gap 0 in that step
    least = min(wanted[1, 1, rank][0].gap_ns for rank in (0, 2))
    for rank in (0, 2):
        wanted[1, 1, rank] = [_sooner(kernel, number, least) for number, kernel in enumerate(wanted[1, 1, rank])]
    assert_matches_truth(lake, wanted)
    assert lake.table("duration", 1, 1).columns.tolist() == ["kernel_name", "mean", "rank_0", "rank_2"]
    assert_matches_oracle(lake)


def _sooner(kernel: KernelTruth, number: int, by_ns: int) -> KernelTruth:
    gap = kernel.gap_ns - by_ns if number == 0 else kernel.gap_ns
    return kernel._replace(gap_ns=gap, ttke_ns=kernel.ttke_ns - by_ns)


def test_two_epochs_with_the_same_step_numbers(tmp_path):
    """The second epoch goes on on the same clocks: other traces, the same ranks."""
    jobs = [Job(ranks=2, steps=2, kernels=40, epoch=epoch, seed=epoch) for epoch in (1, 2)]
    runs = [simulate(job) for job in jobs]
    for run in runs:
        write(run, tmp_path / "traces" / f"epoch{run.job.epoch}", "nsys")
    lake = ingest_traces(tmp_path)
    assert_matches_truth(lake, {**kernel_truth(runs[0]), **kernel_truth(runs[1])})
    assert [tuple(step.key) for step in lake.diagnose().steps] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert [step.step_time_ns is None for step in lake.diagnose().steps] == [True, False, True, False]
    with pytest.raises(jitter.core.errors.UsageError, match="epochs 1, 2"):
        lake.table("gap", 0)


def test_one_rank_recorded_twice_is_on_two_clocks(tmp_path):
    """Each recording has its own zero: from the end of a step in one to that in the other no time can be told so."""
    job = Job(ranks=2, steps=4, kernels=40)
    run = simulate(job)
    write(run, tmp_path / "whole", "nsys")
    for name, offset, unwanted in (("first", 0, ("step2-", "step3-")), ("second", 5_000_000_000, ("step0-", "step1-"))):
        folder = tmp_path / "traces" / name
        folder.mkdir(parents=True)
        for rank in range(2):
            path = folder / f"rank{rank}.sqlite"
            path.write_bytes((tmp_path / "whole" / path.name).read_bytes())
            for text in unwanted:
                _without_marker(path, text)
            _moved(path, offset)
    lake = ingest_traces(tmp_path)
    assert_matches_truth(lake, kernel_truth(run))
    times = [step["step_time_ns"] for step in truth_document(run)["steps"]]
    assert [step.step_time_ns for step in lake.diagnose().steps] == times


def _without_marker(path: Path, text: str) -> None:
    _change(path, "DELETE FROM NVTX_EVENTS WHERE text LIKE ?", (f"%{text}%",))


def _moved(path: Path, by_ns: int) -> None:
    """The same recording with another zero, begun that much earlier by the wall clock."""
    for table in (
        "NVTX_EVENTS",
        *(f"CUPTI_ACTIVITY_KIND_{t}" for t in ("KERNEL", "RUNTIME", "MEMCPY", "MEMSET")),
    ):
        _change(path, f'UPDATE {table} SET start = start + ?, "end" = "end" + ?', (by_ns, by_ns))
    _change(path, "UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs - ?", (by_ns,))


def _change(path: Path, statement: str, values: tuple[object, ...]) -> None:

    with open_database(path) as connection:
        connection.execute(statement, values)
