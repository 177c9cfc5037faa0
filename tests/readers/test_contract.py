"""The reader contract: every registered reader keeps it, the kit finds violations, batches are validated at ingest."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import jitter
from jitter.core.errors import UnreadableTraceError, UsageError
from jitter.core.schema import ACTIVITIES
from jitter.readers import Batch, Files, Process, ReaderError, Recording, readers
from jitter.readers.columns import Progress
from jitter.readers.testing import check
from jitter.simulate import Job, RankRecording, simulate, write
from tests.readers import example_reader
from tests.readers.amd import test_rocprof_v2, test_rocprofv3_json, test_rpd
from tests.support import perfetto_traces, xplane_traces
from tests.support.added_reader import added_reader

JOB = Job(ranks=1, steps=2, kernels=12)


def simulated(form: str, **options: object) -> Callable[[Path], Path]:
    return lambda folder: write(simulate(JOB), folder, form, **options)[0]


def rocprof_v2(folder: Path) -> Path:
    path = folder / "results_rank-0.csv"
    rows = [test_rocprof_v2.row(n, 1000 * n, 1000 * n + 500) for n in range(1, 17)]
    path.write_text(test_rocprof_v2.RESULTS + "".join(rows))
    return path


def rocprof_json(folder: Path) -> Path:
    kernels = [test_rocprofv3_json.dispatch(1, 100 * n, 100 * n + 50, n) for n in range(1, 17)]
    return test_rocprofv3_json.document(folder / "0_results.json", test_rocprofv3_json.tool(kernel_dispatch=kernels))


def rpd(folder: Path) -> Path:
    kernels = [(0, 0, 1000 * n + 100, 1000 * n + 200, test_rpd.GEMM, test_rpd.KERNEL) for n in range(16)]
    calls = [(7, 70, 1000 * n + 50, 1000 * n + 60, test_rpd.LAUNCH, test_rpd.EMPTY) for n in range(16)]
    return test_rpd.database(folder / "0.rpd", kernels, calls, [(n, n) for n in range(1, 17)])


def encoded(path: Path, encode: Callable[[RankRecording], bytes]) -> Path:
    path.write_bytes(encode(next(iter(simulate(JOB).ranks()))))
    return path


SOURCES = {
    "nsys sqlite": ("nsys", simulated("nsys")),
    "nsys parquetdir": ("nsys", simulated("nsys", container="parquet")),
    "kineto": ("kineto", simulated("kineto", zipped=False)),
    "kineto gzip": ("kineto", simulated("kineto")),
    "rocpd": ("rocpd", simulated("rocpd")),
    "rocprofv3 csv": ("rocprof-csv", simulated("rocprof-csv")),
    "rocprofv3 json": ("rocprof-json", rocprof_json),
    "rocprof v1": ("rocprof-v1", simulated("rocprof-v1")),
    "rocprof v2": ("rocprof-v2", rocprof_v2),
    "rpd": ("rpd", rpd),
    "perfetto": (
        "rocprof-perfetto",
        lambda folder: encoded(folder / "rank0_results.pftrace", perfetto_traces.recorded),
    ),
    "xplane": ("xplane", lambda folder: encoded(folder / "node0.xplane.pb", xplane_traces.recorded)),
    "xla json": ("xplane", lambda folder: encoded(folder / "node0.trace.json.gz", xplane_traces.recorded_json)),
}


def test_every_registered_reader_has_a_source():
    assert {reader for reader, _ in SOURCES.values()} == set(readers())


@pytest.mark.parametrize("name", SOURCES)
def test_contract(name: str, tmp_path: Path):
    reader, make = SOURCES[name]
    recording = check(readers()[reader], make(tmp_path))
    assert recording.format


def csv_trace(folder: Path, rank: int = 0) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"rank{rank}.csv"
    rows = [f"{name},7,{1000 * step + 10 * n + rank},5\n" for step in range(6) for n, name in enumerate("abcde")]
    path.write_text(",".join(example_reader.COLUMNS) + "\n" + "".join(rows))
    return path


def test_example_reader_keeps_the_contract(tmp_path: Path):
    recording = check(example_reader.READER, csv_trace(tmp_path / "t"))
    assert recording.names == list("abcde")


def test_example_reader_is_short():
    lines = Path(example_reader.__file__).read_text().splitlines()
    assert len(lines) <= 55


def test_example_reader_installed_by_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for rank in range(2):
        csv_trace(tmp_path / "t", rank)
    source = Path(example_reader.__file__).read_text()
    with added_reader("kernel_csv", source, tmp_path / "site", monkeypatch):
        for jobs in (1, 2):
            executor = jitter.PoolExecutor(jobs)
            report = jitter.ingest(
                tmp_path / "t", tmp_path / f"lake{jobs}", executor=executor, rank_pattern=r"rank(\d)"
            )
            assert report.refused == []
            assert sorted((r.rank, r.reader, r.reader_version, r.kernels) for r in report.added) == [
                (0, "kernel_csv", 1, 30),
                (1, "kernel_csv", 1, 30),
            ]


class Broken(example_reader.KernelCsvReader):
    """The example reader with one fault."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def sniff(self, path: Path) -> bool:
        return True if self.fault == "accepts all" else super().sniff(path)

    def files(self, path: Path) -> Files:
        return Files((path, path.with_name("absent"))) if self.fault == "absent file" else super().files(path)

    def batches(self, recording: Recording, progress: Progress) -> Iterator[Batch]:
        for table, rows in super().batches(recording, progress):
            if self.fault == "type":
                rows = rows.set_column(0, "process", rows["process"].cast(pa.int64()))  # noqa: PLW2901
            elif self.fault == "misspelt column":
                rows = rows.rename_columns([name.replace("stream", "streem") for name in rows.schema.names])  # noqa: PLW2901
            elif self.fault == "missing column":
                rows = rows.drop_columns(["start_ns"])  # noqa: PLW2901
            elif self.fault == "nulls":
                nulls = pa.array([None] * len(rows), pa.bool_())
                rows = rows.set_column(4, ACTIVITIES.field("is_memory").with_nullable(True), nulls)  # noqa: PLW2901
            yield Batch("activites" if self.fault == "misspelt table" else table, rows)  # type: ignore[arg-type]
        if self.fault == "too few names":
            recording.names = recording.names[:2]
        if self.fault == "no process":
            recording.processes = list[Process]()
        if self.fault == "advances too far":
            progress(1 << 20)
        if self.fault == "writes":
            recording.path.with_suffix(".index").touch()


FAULTS = {
    "type": r"table 'activities', column 'process': int64, expected int32",
    "misspelt table": r"unknown table 'activites' \(did you mean 'activities'\?\)",
    "misspelt column": r"table 'activities': unknown column 'streem' \(did you mean 'stream'\?\)",
    "missing column": r"table 'activities': no column 'start_ns'",
    "nulls": r"table 'activities', column 'is_memory': 30 nulls",
    "too few names": r"table 'activities', column 'name': index 4, but the recording has 2 names",
    "no process": r"table 'activities', column 'process': index 0, but the recording has 0 processes",
}
KIT_FAULTS = FAULTS | {
    "accepts all": "sniff accepts an empty file",
    "absent file": "files names .*absent, which does not exist",
    "advances too far": "advance got .* bytes in all",
    "writes": "reading changed the folder",
}


@pytest.mark.parametrize("fault", KIT_FAULTS)
def test_the_kit_finds_violations(fault: str, tmp_path: Path):
    with pytest.raises(ReaderError, match=KIT_FAULTS[fault]):
        check(Broken(fault), csv_trace(tmp_path / "t"))


@pytest.mark.parametrize("fault", FAULTS)
def test_an_ingest_refuses_the_file_of_a_broken_reader(
    fault: str, tmp_path: Path, own_traces: Path, monkeypatch: pytest.MonkeyPatch
):
    csv_trace(own_traces, 9)
    monkeypatch.setitem(readers(), "rpd", Broken(fault))
    monkeypatch.setattr(Broken, "name", "rpd")
    report = jitter.ingest([own_traces], tmp_path / "lake")
    assert sorted(record.rank or 0 for record in report.added) == [0, 1, 2]
    (error,) = report.refused
    assert "bug of reader 'rpd'" in str(error)
    assert "\n" not in str(error)
    assert "rank9.csv" in error.message
    assert re.search(FAULTS[fault], error.message)


def test_a_newer_reader_version_is_said_and_replace_reads_again(own_traces: Path, tmp_path: Path, monkeypatch):
    lake = tmp_path / "lake"
    jitter.ingest(own_traces, lake)
    assert jitter.ingest(own_traces, lake).warnings == []
    old = readers()["nsys"].version
    monkeypatch.setattr(type(readers()["nsys"]), "version", old + 1)
    report = jitter.ingest(own_traces, lake)
    assert (report.unchanged, report.added) == (3, [])
    (note,) = report.warnings
    assert note.startswith(f"3 sources were read by version {old} of the reader 'nsys', and version {old + 1} is")
    assert "--replace" in note
    report = jitter.ingest(own_traces, lake, replace=True)
    assert (report.unchanged, [record.reader_version for record in report.added]) == (0, [old + 1] * 3)
    assert jitter.ingest(own_traces, lake).warnings == []


def test_one_path_or_several(own_traces: Path, tmp_path: Path):
    for number, paths in enumerate((own_traces, str(own_traces), [own_traces], (str(own_traces),))):
        report = jitter.ingest(paths, tmp_path / f"lake{number}")
        assert sorted(record.rank or 0 for record in report.added) == [0, 1, 2]
    with pytest.raises(UnreadableTraceError, match="nowhere: no such file or directory"):
        jitter.ingest(tmp_path / "nowhere", tmp_path / "lake")
    assert not (tmp_path / "lake").exists()
    with pytest.raises(UsageError, match="no path given"):
        jitter.ingest([], tmp_path / "lake")
