"""Logs of a job go into the lake, beside traces or alone."""

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest

import jitter
from jitter.cli import main
from jitter.core.errors import LakeError
from jitter.ingestion.inspect import inspect
from jitter.logs import SCHEMAS
from jitter.logs.declared import ColumnsParser
from jitter.simulate import Job, simulate, write, write_logs
from tests.support.printed import json_of, output_of
from tests.support.real_recordings import EVIDENCE, needs_evidence


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "fabric"
    write_logs(simulate(Job(ranks=2, steps=2, kernels=16)), folder)
    return folder


def test_logs_alone_make_a_lake_without_steps(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["ingest", str(logs), "-o", str(tmp_path / "lake")]) == 0
    assert "3 logs added" in capsys.readouterr().err
    lake = jitter.open(tmp_path / "lake")
    assert lake.step_keys == []
    rows = lake.sql("select distinct label, collective, ranks from bandwidth", arrow=True).to_pylist()
    assert rows == [{"label": "fabric", "collective": "all_reduce", "ranks": 2}]
    (network,) = lake.sql("select distinct network, source from communicators", arrow=True).to_pylist()
    assert network == {"network": "IB", "source": str(logs / "nccl_debug.log")}
    with pytest.raises(LakeError, match="holds logs and no steps"):
        lake.diagnose()
    assert main(["collectives", str(tmp_path / "lake")]) == 0
    for arguments in (["export", "--csv", str(tmp_path / "csv")], ["query", "from metrics(1)"]):
        assert main([arguments[0], str(tmp_path / "lake"), *arguments[1:]]) == 2
        assert "it holds logs and no steps" in capsys.readouterr().err


def test_files_of_the_far_future_go_in(logs: Path, tmp_path: Path):
    write(simulate(Job(ranks=1, steps=2, kernels=16)), logs, "nsys")
    for file in logs.iterdir():
        os.utime(file, (10**12, 10**12))  # some file systems hold times of 2446
    jitter.ingest([logs], tmp_path / "lake")
    lake = jitter.open(tmp_path / "lake")
    assert (len(lake.sources), len(lake.logs)) == (1, 3)
    assert jitter.ingest([logs], tmp_path / "lake").unchanged == 1


def test_equal_clocks_of_two_hosts_are_two_logs(tmp_path: Path):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("node0000", "node0001"):
        text = "timestamp, index, clocks.current.sm [MHz]\n2024/06/10 06:13:19.000, 0, 1980 MHz\n"
        (folder / f"nvidia-smi-{name}.csv").write_text(text)
    report = jitter.ingest([folder], tmp_path / "lake")
    assert (len(report.logs.added), report.logs.unchanged) == (2, 0)
    again = jitter.ingest([folder], tmp_path / "lake")
    assert (len(again.logs.added), again.logs.unchanged) == (0, 2)


def test_beside_traces_and_again(logs: Path, tmp_path: Path):
    write(simulate(Job(ranks=2, steps=2, kernels=16)), logs, "nsys")
    first = jitter.ingest([logs], tmp_path / "lake")
    assert (len(first.added), len(first.logs.added), first.other_files) == (2, 3, 0)
    again = jitter.ingest([logs], tmp_path / "lake")
    assert (len(again.logs.added), again.logs.unchanged) == (0, 3)


def test_a_changed_log_replaces_its_former_content(logs: Path, tmp_path: Path):
    (path,) = logs.glob("nccl-tests*")
    jitter.ingest([path], tmp_path / "lake")
    before = jitter.open(tmp_path / "lake").log_table("bandwidth").num_rows
    lines = path.read_text().splitlines()
    rows = [line for line in lines if line.split()[:1] and line.split()[0].isdigit()]
    path.write_text("\n".join(line for line in lines if line != rows[0]) + "\n")
    jitter.ingest([path], tmp_path / "lake")
    lake = jitter.open(tmp_path / "lake")
    assert (len(lake.logs), lake.log_table("bandwidth").num_rows) == (1, before - 2)
    assert len(list((tmp_path / "lake" / "logs" / "bandwidth").iterdir())) == 1


def test_the_label_names_what_the_logs_belong_to(logs: Path, tmp_path: Path):
    jitter.ingest([logs], tmp_path / "lake", label="before the repair")
    table = jitter.open(tmp_path / "lake").log_table("bandwidth")
    assert set(table["label"].to_pylist()) == {"before the repair"}


def test_broken_lines_are_problems(logs: Path, tmp_path: Path):
    (path,) = logs.glob("nccl-tests*")
    text = path.read_text().splitlines()
    at = next(n for n, line in enumerate(text) if line.split()[:1] and line.split()[0].isdigit())
    path.write_text("\n".join([*text[:at], text[at][:60], *text[at + 1 :]]) + "\n")
    jitter.ingest([path], tmp_path / "lake")
    found = jitter.open(tmp_path / "lake").sql("select file, rank, problem from problems", arrow=True).to_pylist()
    assert [(row["file"], row["rank"]) for row in found] == [(str(path), None)]
    assert "1 line" in found[0]["problem"]


def test_other_texts_are_left_alone(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("NCCL is slow today, all_reduce reaches 3 GB/s\n")
    report = jitter.ingest([tmp_path / "notes.txt"], tmp_path / "lake")
    assert (report.logs.added, len(report.rejected)) == ([], 1)
    assert not (tmp_path / "lake").exists()


def test_inspect_lists_logs(logs: Path, capsys: pytest.CaptureFixture[str]):
    found = inspect([logs]).sources
    assert {one.format for one in found} == {"nccl-tests", "nccl-debug", "nvidia-smi"}
    files = json_of(capsys, "inspect", logs, "--json")["files"]
    assert {tuple(file["log"]["relations"]) for file in files} == {
        ("bandwidth", "benchmark_ranks"),
        ("communicators", "edges"),
        ("gpu_clocks",),
    }


def test_a_bug_of_a_parser_stops_no_other_log(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(parser: ColumnsParser, line: bytes, number: int) -> None:
        raise KeyError("timestamp")

    monkeypatch.setattr(ColumnsParser, "line", fail)
    report = jitter.ingest([logs], tmp_path / "lake")
    assert {name for log in report.logs.added for name in log.formats} == {"nccl-tests", "nccl-debug"}
    (error,) = report.refused
    assert "could not be read: KeyError: 'timestamp'" in str(error)


def test_inspect_lists_a_damaged_dump_without_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "run" / "nccl_trace_rank_1"
    path.parent.mkdir()
    path.write_bytes(pickle.dumps({"pg_config": {}, "entries": [{"record_id": 0}] * 9})[:-20])
    first, second = output_of(capsys, "inspect", tmp_path).splitlines()
    assert first == f"{path}  no records  label run"
    assert second.strip().startswith("flight-recorder: the file is damaged or cut off")
    assert json_of(capsys, "inspect", tmp_path, "--json")["files"][0]["format"] is None


def test_every_relation_is_documented(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    jitter.ingest([logs], tmp_path / "lake")
    told = output_of(capsys, "query", tmp_path / "lake", "--relations")
    for name, schema in SCHEMAS.items():
        part = told.split(f"\n{name}: ", 1)[1].split("\n\n", 1)[0]
        assert [line.split()[0] for line in part.splitlines()[1:]] == schema.names


@needs_evidence
def test_real_logs(tmp_path: Path):
    for name in ("inspector", "gpu_health", "nccl_debug"):
        shutil.copytree(EVIDENCE / name, tmp_path / "logs" / name)
    jitter.ingest([tmp_path / "logs"], tmp_path / "lake")
    lake = jitter.open(tmp_path / "lake")
    edges = lake.sql(
        "select count(*) as n, bool_and(gdr) as gdr from edges "
        "where starts_with(transport, 'NET/') and source like '%p4d%'",
        arrow=True,
    )
    assert edges.to_pylist() == [{"n": 32, "gdr": True}]
    recorded = lake.sql(
        "select collective, size_bytes, duration_ns from recorded order by size_bytes desc limit 1", arrow=True
    )
    assert recorded.to_pylist() == [
        {"collective": "all_reduce", "size_bytes": 17_179_869_184, "duration_ns": 61_974_000}
    ]
    assert lake.sql("select distinct code from gpu_errors order by 1", arrow=True).to_pylist() == [
        {"code": 119},
        {"code": 12028},
    ]


def write_inspector(lake: "jitter.Lake", path: Path, first_rank: int, larger: int) -> int:
    """Write what NCCL's Inspector records of the lake's collectives; those of a rank are `larger` by so many bytes.

    Return the number of collectives.
    """
    rows = lake.sql(
        "select * from kernels where kind = 'collective' order by rank, step, ordinal", arrow=True
    ).to_pylist()
    orders: dict[int, int] = {}
    lines = []
    for row in rows:
        rank = row["rank"]
        orders[rank] = orders.get(rank, 0) + 1
        more = larger if rank == first_rank else 0
        measured = {
            "coll": "AllReduce",
            "coll_sn": 100 + orders[rank],
            "coll_msg_size_bytes": row["size_bytes"] + more,
            "coll_exec_time_us": 100,
        }
        header = {"id": row["group_name"], "rank": rank, "n_ranks": 2, "nnodes": 1}
        version = {"inspector_output_format_version": "v4.0", "hostname": "node0"}
        lines.append(json.dumps({"header": header, "metadata": version, "coll_perf": measured}))
    path.write_text("\n".join(lines) + "\n")
    return len(rows)


def test_sizes_that_contradict_the_traces_are_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    traces = tmp_path / "traces"
    write(simulate(Job(ranks=2, steps=2, kernels=16), []), traces, "kineto")
    jitter.ingest([traces], tmp_path / "lake")
    lake = jitter.open(tmp_path / "lake")
    before = lake.sql("select size_bytes from kernels where kind = 'collective'", arrow=True).to_pylist()
    count = write_inspector(lake, tmp_path / "inspector.log", 1, 512) // 2
    jitter.ingest([tmp_path / "inspector.log"], tmp_path / "lake")
    lake = jitter.open(tmp_path / "lake")
    (problem,) = lake.sql("select rank, file, problem from problems where file like '%.log'", arrow=True).to_pylist()
    assert (problem["rank"], Path(problem["file"]).name) == (1, "inspector.log")
    assert problem["problem"].startswith(f"{count} collectives of rank 1 have another size than in the trace")
    assert lake.sql("select size_bytes from kernels where kind = 'collective'", arrow=True).to_pylist() == before
    assert problem["problem"] in " ".join(json_of(capsys, "report", tmp_path / "lake", "--json")["run"]["warnings"])
