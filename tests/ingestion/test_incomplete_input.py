"""Missing or damaged input is named, recorded and counted: no rank or kernel is left out silently."""

import gzip
import json
import shutil
from pathlib import Path

import pytest

import jitter
from jitter.cli import main
from jitter.core.step_key import StepKey
from jitter.ingestion.ingest import IngestReport
from jitter.lake.rank_coverage import rank_coverage
from jitter.report.json_report import report_document
from jitter.report.views.run_overview import build_run_overview
from jitter.simulate import Job, simulate, write
from tests.readers.test_contract import SOURCES
from tests.support import kineto_traces, nsys_exports
from tests.support.databases import run_sql


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("four")
    write(simulate(Job(ranks=4, steps=5, kernels=30)), folder, "kineto")
    return folder


@pytest.fixture
def kineto(four_ranks: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(four_ranks, tmp_path / "t"))


def ingest(folder: Path) -> IngestReport:
    return jitter.ingest(folder, folder.parent / "lake")


def refusals(lake: Path) -> list[str]:
    records = [json.loads(path.read_text()) for path in (lake / "sources").glob("*.json")]
    return [Path(record["file"]).name for record in records if record["rank"] is None]


DAMAGES = {
    "empty": b"",
    "broken gzip": b"\x1f\x8b\x08" + bytes(40),
    "no gzip": b"oops, no gzip data",
    "opening only": gzip.compress(b'{"traceEvents": ['),
    "half a gzip header": b"\x1f\x8b",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_rank_among_good_ones(kineto: Path, damage: str):
    (bad,) = kineto.glob("*2*")
    bad.write_bytes(DAMAGES[damage])
    report = ingest(kineto)
    assert sorted(record.rank or 0 for record in report.added) == [0, 1, 3]
    (error,) = report.refused
    assert bad.name in error.message
    assert report.other_files == 0
    assert refusals(report.lake) == [bad.name]
    assert any("rank 2 has no recording" in note for note in report.warnings)
    assert [Path(record.file).name for record in jitter.open(report.lake).rejected] == [bad.name]
    assert main(["ingest", str(kineto), "-o", str(report.lake), "--strict"]) == 3


def test_all_ranks_empty(tmp_path: Path):
    for rank in range(3):
        (tmp_path / "t").mkdir(exist_ok=True)
        (tmp_path / "t" / f"rank{rank}.pt.trace.json").touch()
    report = ingest(tmp_path / "t")
    assert ["a damaged trace (0 bytes)" in str(error) for error in report.refused] == [True] * 3
    assert not report.lake.exists()


def test_two_empty_ranks_have_two_records_and_one_that_is_copied_again_has_none(kineto: Path):
    first, second = sorted(kineto.iterdir())[1:3]
    whole = first.read_bytes()
    first.write_bytes(b"")
    second.write_bytes(b"")
    report = ingest(kineto)
    assert sorted(refusals(report.lake)) == [first.name, second.name]
    first.write_bytes(whole)
    assert [record.rank for record in ingest(kineto).added] == [1]
    assert refusals(report.lake) == [second.name]


def test_an_empty_kernel_trace_of_rocprofv3(tmp_path: Path):
    folder = tmp_path / "t"
    write(simulate(Job(ranks=3, steps=3, kernels=20)), folder, "rocprof-csv")
    (bad,) = [path for path in folder.rglob("*kernel_trace.csv") if "2" in path.relative_to(folder).as_posix()]
    bad.write_bytes(b"")
    report = ingest(folder)
    assert sorted(record.rank or 0 for record in report.added) == [0, 1]
    assert any(bad.name in str(error) for error in report.refused)


def test_files_of_other_names_stay_uncounted(kineto: Path):
    (kineto / "notes.txt").write_text("x")
    (kineto / "config.json").write_text("{}")
    (kineto / "train.log").touch()
    report = ingest(kineto)
    assert (report.refused, report.other_files, report.warnings) == ([], 3, [])


MISSPELLED = {
    "rocpd": b"rocpd_kernel_dispatch",
    "rpd": b"rocpd_op",
    "rocprof v2": b"Kernel_Name",
    "rocprofv3 json": b"tool",
}


@pytest.mark.parametrize("source", MISSPELLED)
def test_a_trace_whose_header_is_damaged_is_named(source: str, tmp_path: Path):
    """No reader recognizes it, and no other rank lies beside it; it is no "other file"."""
    (tmp_path / "t").mkdir()
    path = SOURCES[source][1](tmp_path / "t")
    word = MISSPELLED[source]
    path.write_bytes(path.read_bytes().replace(word, b"#" + word[1:]))
    report = ingest(tmp_path / "t")
    (error,) = report.refused
    assert f"{path}: a damaged trace" in error.message
    assert (report.added, report.other_files) == ([], 0)


def test_tables_of_other_programs_are_no_damaged_traces(tmp_path: Path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "results.csv").write_text("kernel_name,loss\nconv,0.5\n")
    (tmp_path / "t" / "events.json").write_text('{"buffer": []}')
    run_sql(tmp_path / "t" / "runs.db", "CREATE TABLE runs (id INTEGER, started TEXT)")
    report = ingest(tmp_path / "t")
    assert (report.refused, report.other_files) == ([], 3)


def test_a_rank_in_a_folder_of_its_own(tmp_path: Path, kineto: Path):
    tree = tmp_path / "tree"
    for rank, path in enumerate(sorted(kineto.iterdir())):
        (tree / f"host{rank}").mkdir(parents=True)
        path.rename(tree / f"host{rank}" / "trace.json.gz")
    (tree / "host3" / "trace.json.gz").write_bytes(b"not gzip data")
    (error,) = ingest(tree).refused
    assert "host3/trace.json.gz: a damaged trace" in error.message


@pytest.mark.parametrize(
    ("ranks", "world_size", "warnings", "coverage"),
    [
        ((0, 2), 5, ["the job has 5 ranks, and ranks 1,3-4 have no recording"], ((0, 2), (1, 3, 4), 5)),
        (range(4), 2, [], ((0, 1, 2, 3), (), None)),  # it counts nodes
    ],
)
def test_missing_ranks_of_the_world(tmp_path: Path, ranks, world_size: int, warnings: list[str], coverage):
    folder = tmp_path / "t"
    folder.mkdir()
    for rank in ranks:
        info = {"distributedInfo": {"rank": rank, "world_size": world_size}}
        kineto_traces.write(folder / f"{rank}.json", kineto_traces.text(kineto_traces.small(), before=info))
    report = ingest(folder)
    assert {record.world_size for record in report.added} == {world_size}
    assert report.warnings == warnings
    assert rank_coverage(report.added) == coverage


@pytest.mark.parametrize("variable", ["WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"])
def test_world_size_in_the_environment_of_an_nsys_export(tmp_path: Path, variable: str):
    environment = f"RANK=1;{variable}=4;HOME=/root"
    system = [{"globalVid": 1, "name": "DeviceEnvironment", "value": environment, "nameEnum": 0, "devStateName": ""}]
    tables = nsys_exports.export(TARGET_INFO_SYSTEM_ENV=system)
    recording, _ = nsys_exports.read(nsys_exports.write(tmp_path / "x.sqlite", "sqlite", tables))
    assert recording.world_size == 4


@pytest.mark.parametrize("share", [0.3, 0.4, 0.5, 0.6, 0.99])
def test_steps_of_a_cut_trace_that_lack_kernels_are_cut(tmp_path: Path, share: float):
    folder = tmp_path / "t"
    (path,) = write(simulate(Job(ranks=1, steps=6, kernels=40)), folder, "kineto", zipped=False)
    whole = jitter.ingest(folder, tmp_path / "whole").added[0]
    assert not any(step.cut for step in whole.steps)
    kernels = {step.key: step.kernels for step in whole.steps}
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    (record,) = ingest(folder).added
    short = {step.key for step in record.steps if step.kernels < kernels[step.key]}
    assert bool(short or len(record.steps) < 6) == (share < 0.9)
    assert {step.key for step in record.steps if step.cut} >= short
    assert sum(not step.cut for step in record.steps) != 1  # one step alone is no evidence of its own completeness
    assert any("is cut" in problem for problem in record.problems)


def test_a_negative_profiler_step_is_not_merged_into_another(tmp_path: Path):
    events = [
        kineto_traces.step(ts=0.0, dur=90.0, name="ProfilerStep#-1"),
        kineto_traces.step(ts=100.0, dur=90.0, name="ProfilerStep#1"),
        *(kineto_traces.call(ts=10.0 + 100 * n, correlation=n + 1) for n in range(2)),
        *(kineto_traces.kernel(ts=20.0 + 100 * n, correlation=n + 1) for n in range(2)),
    ]
    (tmp_path / "t").mkdir()
    kineto_traces.write(tmp_path / "t" / "rank0.json", events)
    (record,) = ingest(tmp_path / "t").added
    assert [(step.key, step.kernels) for step in record.steps] == [(StepKey(None, 1), 1)]
    assert record.outside_steps == 1


def test_a_source_that_yields_nothing_says_why(tmp_path: Path):
    events = [kineto_traces.kernel(ts=100.0 * n, correlation=n, device=n) for n in range(300)]
    (tmp_path / "t").mkdir()
    kineto_traces.write(tmp_path / "t" / "rank0.json", [kineto_traces.step(ts=0.0, dur=1e6), *events])
    report = ingest(tmp_path / "t")
    assert (report.added, report.unchanged) == ([], 0)
    (error,) = report.refused
    assert "none of its 300 GPUs ran enough of its kernels" in error.message
    assert (ingest(tmp_path / "t").unchanged, len(ingest(tmp_path / "t").refused)) == (0, 1)


def test_long_names_are_cut_and_said(tmp_path: Path):
    (tmp_path / "t").mkdir()
    name = "k" * 200_000
    events = [kineto_traces.step(name="step 1 " + "x" * 100_000), kineto_traces.call(), kineto_traces.kernel(name)]
    kineto_traces.write(tmp_path / "t" / "rank0.json", events)
    (record,) = ingest(tmp_path / "t").added
    assert "cut to 65,536 characters: 1 name of kernels or calls" in record.problems
    assert "cut to 65,536 characters: 1 text of ranges" in record.problems
    assert len(record.steps[0].marker or "") == 65_536


def test_kernels_whose_launch_was_lost_between_two_steps_are_told(kineto: Path):
    (path,) = kineto.glob("rank-1.*")
    trace = json.loads(gzip.decompress(path.read_bytes()))
    events = trace["traceEvents"]
    second = sorted(one["ts"] for one in events if one["name"].startswith("ProfilerStep") and one.get("ph") == "X")[1]
    launches = sorted(
        (one for one in events if one.get("cat") == "cuda_runtime" and one["ts"] >= second), key=lambda one: one["ts"]
    )
    lost = [id(one) for one in launches[:3]]
    kept = trace | {"traceEvents": [one for one in events if id(one) not in lost]}
    path.write_bytes(gzip.compress(json.dumps(kept).encode()))
    report = ingest(kineto)
    told = "3 GPU activities without a recorded launch may be of a later step"
    assert [record.rank for record in report.added if any(told in problem for problem in record.problems)] == [1]
    lake = jitter.open(kineto.parent / "lake")
    warnings = report_document(lake.diagnose(), build_run_overview(lake, lake.step_keys))["run"]["warnings"]
    assert any(told in warning for warning in warnings)
