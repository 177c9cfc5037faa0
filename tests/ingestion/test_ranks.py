"""Ranks from names, and from what is known of the GPUs of one recording."""

from pathlib import Path
from typing import Any

import pytest

import jitter
from jitter.cli import main
from jitter.core.errors import UnknownRankError, UsageError
from jitter.ingestion.ranks.decide_ranks import (
    GpuEvidence,
    RankDecision,
    ReadOptions,
    decide_ranks,
    find_host_gpus,
    parse_options,
    read_rank_map,
)
from jitter.simulate import Job, simulate, write
from tests.support.databases import open_database, run_sql
from tests.support.lake_content import records
from tests.support.simulated import small


def _gpu(process: int = 0, device: int | None = 0, kernels: int = 100, **known: Any) -> GpuEvidence:
    stated = [
        (known.get("process_rank"), known.get("process_rank_from") or "recording"),
        (known.get("step_text_rank"), "step marker"),
    ]
    launcher = (known["launcher_rank"], known.get("launcher_rank_from")) if "launcher_rank" in known else None
    return GpuEvidence(process, device, kernels, tuple(one for one in stated if one[0] is not None), launcher)  # type: ignore[arg-type]


NAMELESS = Path("report.sqlite")


def _ranks(verdicts: list[RankDecision]) -> list[int | None]:
    return [verdict.rank for verdict in verdicts]


def test_a_launchers_rank_holds_for_one_process_only():
    assert _ranks(decide_ranks(NAMELESS, [_gpu(launcher_rank=4, launcher_rank_from="RANK")], ReadOptions())) == [4]
    two = [_gpu(0, 0, launcher_rank=4), _gpu(1, 1, launcher_rank=4)]
    verdicts = decide_ranks(NAMELESS, two, ReadOptions())
    assert _ranks(verdicts) == [0, 1]
    assert all(v.warning is not None and "a guess" in v.warning for v in verdicts)


def test_a_file_name_holds_for_one_process_only():
    assert _ranks(decide_ranks(Path("rank6.sqlite"), [_gpu()], ReadOptions())) == [6]
    assert _ranks(decide_ranks(Path("rank6.sqlite"), [_gpu(0, 0), _gpu(1, 1)], ReadOptions())) == [0, 1]


def test_some_processes_known_is_not_enough():
    with pytest.raises(UnknownRankError, match="--rank-map"):
        decide_ranks(NAMELESS, [_gpu(0, 0, step_text_rank=2), _gpu(1, 1)], ReadOptions())


def test_device_order_needs_distinct_devices():
    for gpus in ([_gpu(0, 0), _gpu(1, 0)], [_gpu(0, None)], [_gpu(0, 0)], [_gpu(0, None), _gpu(1, 1)]):
        with pytest.raises(UnknownRankError, match="--rank-pattern"):
            decide_ranks(NAMELESS, gpus, ReadOptions())
    with pytest.raises(UnknownRankError, match="record again with the rank in the steps' markers"):
        decide_ranks(NAMELESS, [_gpu(0, 0), _gpu(1, 0)], ReadOptions())
    assert _ranks(decide_ranks(NAMELESS, [_gpu(0, 5), _gpu(1, 2)], ReadOptions())) == [1, 0]


def test_one_process_of_several_gpus():
    verdicts = decide_ranks(NAMELESS, [_gpu(0, 1, process_rank=3), _gpu(0, 0, process_rank=3)], ReadOptions())
    assert _ranks(verdicts) == [7, 6]
    assert all("a guess" in (v.warning or "") for v in verdicts)


def test_a_stray_gpu_is_left_out_and_said():
    verdicts = decide_ranks(NAMELESS, [_gpu(0, 0, 3, process_rank=5), _gpu(0, 5, 997, process_rank=5)], ReadOptions())
    assert _ranks(verdicts) == [None, 5]
    assert verdicts[0].warning == "3 kernels of rank 5 on device 0, which is not its own, are left out"
    assert verdicts[1].warning is None


@pytest.mark.parametrize("ranks", [{0: 5, 1: 4}, {}], ids=["stated", "by device order"])
def test_a_process_of_few_kernels_on_anothers_gpu_is_left_out_and_said(ranks: dict[int, int]):
    """Such as a monitor's, in one report of all processes of a node."""
    ranked = [_gpu(process, 1 - process, 1000, process_rank=ranks.get(process)) for process in (0, 1)]
    verdicts = decide_ranks(NAMELESS, [ranked[0], _gpu(2, 0, 3), ranked[1]], ReadOptions())
    assert _ranks(verdicts) == ([5, None, 4] if ranks else [1, None, 0])
    assert (verdicts[1].warning or "").startswith("3 kernels of a process that states no rank")
    with pytest.raises(UnknownRankError):  # it may be a rank whose GPU nobody else used
        decide_ranks(NAMELESS, [_gpu(0, 0, 1000, process_rank=5), _gpu(2, 1, 3)], ReadOptions())


def test_told_rank_for_a_file_of_several():
    with pytest.raises(UnknownRankError, match="file,device,rank"):
        decide_ranks(NAMELESS, [_gpu(0, 0), _gpu(1, 1)], parse_options(3, None, None, None, None))


def test_rank_zero_is_a_rank():
    gpu = _gpu(0, 1, process_rank=0, launcher_rank=4)
    assert _ranks(decide_ranks(NAMELESS, [gpu], ReadOptions())) == [0]
    assert _ranks(decide_ranks(Path("rank6.sqlite"), [gpu], ReadOptions(rank=0))) == [0]


@pytest.mark.parametrize(
    ("path", "known", "first", "second"),
    [
        ("a.json", {"process_rank": 7, "process_rank_from": "distributedInfo", "step_text_rank": 2}, 7, 2),
        ("rank_2.json", {"process_rank": 7, "process_rank_from": "distributedInfo"}, 7, 2),
        ("rank_2.json", {"step_text_rank": 7}, 7, 2),
    ],
)
def test_contradicting_ranks_are_an_error_that_shows_both(path: str, known: dict[str, Any], first: int, second: int):
    with pytest.raises(UnknownRankError) as error:
        decide_ranks(Path(path), [_gpu(0, 1, **known)], ReadOptions())
    assert f"says rank {first}, and" in str(error.value)
    assert f"says rank {second}" in str(error.value)
    assert f"--rank {first} or --rank {second}" in str(error.value)
    assert _ranks(decide_ranks(Path(path), [_gpu(0, 1, **known)], ReadOptions(rank=second))) == [second]


def test_a_name_with_the_number_of_the_gpu_may_state_a_local_rank():
    known = {"process_rank": 7, "process_rank_from": "distributedInfo"}
    assert _ranks(decide_ranks(Path("node3/rank_1.json"), [_gpu(0, 1, **known)], ReadOptions())) == [7]
    assert _ranks(decide_ranks(Path("node3/rank_1.json"), [_gpu(0, 1)], ReadOptions())) == [1]


def test_a_launchers_process_number_contradicts_nothing():
    launched = {"launcher_rank": 7, "launcher_rank_from": "SLURM_PROCID"}
    assert _ranks(decide_ranks(NAMELESS, [_gpu(step_text_rank=2, **launched)], ReadOptions())) == [2]
    assert _ranks(decide_ranks(Path("rank_2.json"), [_gpu(**launched)], ReadOptions())) == [7]


@pytest.mark.parametrize("path", ["trace_2.json", "gpu2.json", "rank_2/trace.json", "x-TP-2.trace.json.gz"])
def test_weak_names_contradict_nobody(path: str):
    assert _ranks(decide_ranks(Path(path), [_gpu(process_rank=7)], ReadOptions())) == [7]


def test_pattern():
    told = parse_options(None, None, r"node(\d+)/gpu", None, None)
    assert _ranks(decide_ranks(Path("a/node7/gpu.sqlite"), [_gpu(step_text_rank=1)], told)) == [7]
    assert _ranks(decide_ranks(Path("a/other/gpu.sqlite"), [_gpu(step_text_rank=1)], told)) == [1]
    assert _ranks(decide_ranks(Path("a/node99999999999/gpu.sqlite"), [_gpu(step_text_rank=1)], told)) == [1]
    verdicts = decide_ranks(Path("node7/gpu.sqlite"), [_gpu(0, 1), _gpu(1, 0)], told)
    assert _ranks(verdicts) == [15, 14]
    assert all("a guess" in (verdict.warning or "") for verdict in verdicts)
    with pytest.raises(UnknownRankError, match="several processes, and their GPUs have equal numbers"):
        decide_ranks(Path("node7/gpu.sqlite"), [_gpu(0, 0), _gpu(1, 0)], told)


def test_map_files(tmp_path: Path):
    path = tmp_path / "map.csv"
    path.write_text("\ufefffile,rank\n\n a.sqlite , 4\nb c.sqlite,0,5\n", encoding="utf-8")
    assert read_rank_map(path) == (("a.sqlite", None, 4), ("b c.sqlite", 0, 5))
    path.write_text("a.sqlite,99999999999\n")
    with pytest.raises(UsageError, match=r"map\.csv:1"):
        read_rank_map(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"map\.csv"):
        read_rank_map(path)


TRUST = ["--rank", "step marker", "NVTX 'MPI Rank 3'", "environment", "file name", "nothing"]


def _of_four_minds(folder: Path) -> Path:
    """Its marker says rank 0, NVTX says 3, the environment 4, the file name 5."""
    write(simulate(Job(ranks=1, steps=2, kernels=16)), folder, "nsys")
    path = (folder / "rank0.sqlite").rename(folder / "trace_5.sqlite")
    run_sql(
        path,
        "INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid) "
        "SELECT 1, 39, 'MPI Rank 3', globalTid FROM NVTX_EVENTS LIMIT 1",
        "UPDATE TARGET_INFO_SYSTEM_ENV SET value = replace(replace(value, 'RANK=0', 'RANK=4'), 'PROCID=0', "
        "'PROCID=4') WHERE name = 'DeviceEnvironment'",
    )
    return path


def _forget(path: Path, level: str) -> Path:
    with open_database(path) as connection:
        if level == "step marker":
            connection.execute("UPDATE NVTX_EVENTS SET text = replace(text, '-rank0', '')")
        elif level == "NVTX 'MPI Rank 3'":
            connection.execute("DELETE FROM NVTX_EVENTS WHERE eventType = 39")
        elif level == "environment":
            connection.execute("DELETE FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'DeviceEnvironment'")
    return path.rename(path.with_name("report1.sqlite")) if level == "file name" else path


def test_order_of_trust(tmp_path: Path):
    path = _of_four_minds(tmp_path / "t")
    found = []
    for level in TRUST:
        lake = tmp_path / f"lake{TRUST.index(level)}"
        report = jitter.ingest([path], lake, rank=9 if level == "--rank" else None)
        found += [(r.rank, r.rank_told_by) for r in report.added] or [str(report.refused[0])]
        path = _forget(path, level)
    assert "NVTX 'MPI Rank 3' says rank 3, and step marker says rank 0" in found[1]
    assert [found[0], *found[2:5]] == [(9, "--rank"), (3, "NVTX 'MPI Rank 3'"), (4, "RANK"), (5, "file name")]
    assert found[5] == (0, "assumption")


def test_device_order_is_a_guess_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write(simulate(Job(ranks=2, steps=2, kernels=16, marker="iteration")), tmp_path / "t", "nsys", ranks_per_report=2)
    lake = tmp_path / "lake"
    assert main(["ingest", str(tmp_path / "t"), "-o", str(lake)]) == 0
    assert [(r["rank"], r["device"], r["rank_told_by"]) for r in records(lake)] == [
        (0, 0, "device order"),
        (1, 1, "device order"),
    ]
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "a guess" in line]
    assert "2 GPUs are assumed to be ranks 0 to 1" in line
    assert "--rank-map" in line


def test_device_order_tells_no_ranks_of_two_hosts(tmp_path: Path):
    """One report a node, of torchrun: the reports of both nodes would hold ranks 0 and 1."""
    job = Job(ranks=4, steps=6, kernels=60, marker="iteration", gpus_per_node=2)
    write(simulate(job), tmp_path / "t", "nsys", ranks_per_report=2)
    report = jitter.ingest([tmp_path / "t"], tmp_path / "lake")
    assert report.added == []
    assert len(report.refused) == 2
    assert all("another rank, or of another job: neither is taken" in str(error) for error in report.refused)
    assert all("it numbers the recordings, as of nodes" in (error.hint or "") for error in report.refused)
    report = jitter.ingest([tmp_path / "t"], tmp_path / "lake", rank_pattern=r"node(\d+)-")
    assert [(r.rank, r.host) for r in report.added] == [
        (0, "node0000"), (1, "node0000"), (2, "node0001"), (3, "node0001")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("form", "options"), [("rocprof-csv", {}), ("rocpd", {"environment": "none"})], ids=["csv", "rocpd"]
)
def test_default_names_of_rocprofv3(form: str, options: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture):
    """A folder per host, a file per process: hosts and GPUs are known, and the order of hosts is asked for."""
    traces, lake = tmp_path / "t", tmp_path / "lake"
    job = small(ranks=4, gpus_per_node=2)
    paths = write(simulate(job), traces, form, names="process", **options)
    one_host, *_ = sorted({path.parent for path in paths})
    # alone, a host's recordings are like one of several GPUs; a lost one moves no other
    report = jitter.ingest(one_host, tmp_path / "one")
    assert [(r.rank, r.host, r.rank_told_by) for r in sorted(report.added, key=lambda r: r.rank or 0)] == [
        (0, "node0000", "device order"), (1, "node0000", "device order")
    ]  # fmt: skip
    assert len([warning for warning in report.warnings if "a guess" in warning]) == 1

    report = jitter.ingest(traces, lake)
    assert report.added == []
    (hint,) = {error.hint for error in report.refused}
    order = "give the hosts in the order of their nodes: --hosts node0000,node0001; or "
    assert (hint or "").startswith(order)
    # as typed, and in the other order, with a domain
    assert main(["ingest", str(traces), "-o", str(lake), "--hosts", "node0000,node0001"]) == 0
    assert sum("a guess" in line for line in capsys.readouterr().err.splitlines()) == 1
    ranks = {(r["rank"], r["host"], r["device"], r["rank_told_by"]) for r in records(lake)}
    assert ranks == {(n, f"node000{n // 2}", n % 2, f"--hosts: node {n // 2}") for n in range(4)}
    assert jitter.ingest(traces, lake, hosts=["node0000", "node0001"]).unchanged == 4
    report = jitter.ingest(traces, lake, hosts=["node0001.cluster", "node0000.cluster"], replace=True)
    assert {(r.rank, r.host) for r in report.added} == {
        (0, "node0001"),
        (1, "node0001"),
        (2, "node0000"),
        (3, "node0000"),
    }

    next(path for path in paths if path.parent == one_host).unlink()
    held = {
        (r.rank, r.host, r.device) for r in jitter.ingest(traces, tmp_path / "l", hosts=["node0000", "node0001"]).added
    }
    assert len(held) == 3
    assert held <= {(0, "node0000", 0), (1, "node0000", 1), (2, "node0001", 0), (3, "node0001", 1)}
    # a host that is not named; one named twice
    assert {r.host for r in jitter.ingest(traces, tmp_path / "m", hosts=["node0001"]).added} == {"node0001"}
    with pytest.raises(UsageError, match="twice"):
        jitter.ingest(traces, tmp_path / "m", hosts=["node0001", "node0001.cluster"])


@pytest.mark.parametrize(
    ("places", "hosts", "devices"),
    [
        ([("a", 2), ("a", 4)], (), (2, 3, 4)),
        ([("a", 0)], (), ()),
        ([("a", 0), ("a", 0)], (), ()),  # two runs
        ([("a", 0), (None, 1)], (), ()),
        ([("a", 0), ("a", None)], (), ()),
        ([(None, 0), (None, 1)], (), ()),
        ([("a", 1), ("b", 0)], (), ()),
        ([("a", 1), ("b", 0)], ("b", "a"), (0, 1)),
        ([("a", 1), ("b", 0)], ("c", "b"), (0,)),
    ],
)
def test_gpus_of_a_host(places: list[tuple[str | None, int | None]], hosts: tuple[str, ...], devices: tuple[int, ...]):
    by_path = {Path(f"{number}.db"): place for number, place in enumerate(places)}
    assert find_host_gpus(by_path, ReadOptions(hosts=hosts)).devices == devices


def test_reports_of_several_gpus_by_hosts(tmp_path: Path):
    job = Job(ranks=4, steps=6, kernels=60, marker="iteration", gpus_per_node=2)
    write(simulate(job), tmp_path / "t", "nsys", ranks_per_report=2)
    report = jitter.ingest([tmp_path / "t"], tmp_path / "lake", hosts=["node0001", "node0000"])
    assert {(r.rank, r.host) for r in report.added} == {
        (0, "node0001"),
        (1, "node0001"),
        (2, "node0000"),
        (3, "node0000"),
    }
    options = ReadOptions(hosts=("gpu-7", "gpu-12"))  # where no host is recorded, the path names it
    assert [options.node_of(Path(name), None) for name in ("t/gpu-12/x.rpd", "t/trace_gpu-7.rpd", "t/gpu-71.rpd")] == [
        1,
        0,
        None,
    ]


def test_reports_of_numbered_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The number that a name states, not one of the host's own; the first node has the number 0."""
    job = Job(ranks=4, steps=6, kernels=60, marker="iteration", gpus_per_node=2)
    paths = sorted(write(simulate(job), tmp_path / "t", "nsys", ranks_per_report=2))
    for number, path in enumerate(paths):
        path.rename(path.with_name(f"train-node{1 - number}.sqlite"))
    report = jitter.ingest([tmp_path / "t"], tmp_path / "lake")
    assert [(r.rank, r.host) for r in report.added] == [
        (0, "node0001"), (1, "node0001"), (2, "node0000"), (3, "node0000")
    ]  # fmt: skip
    (warning,) = {warning.partition(": ")[2] for warning in report.warnings if "a guess" in warning}
    assert "ranks by the number of their node (file name), then in device order, a guess: give it with" in warning
    assert main(["ingest", str(tmp_path / "t"), "-o", str(tmp_path / "other")]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "a guess" in line]
    assert line.endswith("(and 1 more recording)")
    (tmp_path / "t" / "train-node0.sqlite").rename(tmp_path / "t" / "train-node2.sqlite")
    assert len(jitter.ingest([tmp_path / "t"], tmp_path / "another").refused) == 2  # numbered from 1, or 0 is missing


def test_the_environment_of_a_node_orders_its_ranks():
    two = [_gpu(0, 1), _gpu(1, 0)]
    assert _ranks(decide_ranks(NAMELESS, two, ReadOptions(), node=(3, "SLURM_NODEID"))) == [7, 6]


def test_a_cut_file_may_have_lost_its_rank(tmp_path: Path):
    """PyTorch writes `distributedInfo` behind the events; its handler names files by host and process."""
    for rank, path in enumerate(sorted(write(simulate(small(ranks=2)), tmp_path / "t", "kineto", distributed="after"))):
        content = path.read_bytes()
        path.write_bytes(content[: len(content) * 4 // 5] if rank else content)
        path.rename(path.with_name(f"host_{rank}.1700000000000000000.pt.trace.json.gz"))
    report = jitter.ingest(tmp_path / "t", tmp_path / "lake")
    assert [record.rank for record in report.added] == [0]
    assert "the file is cut, and what is lost may state it: copy it again" in str(report.refused[0])


def test_two_processes_that_say_the_same_rank(tmp_path: Path):
    write(simulate(Job(ranks=2, steps=2, kernels=16)), tmp_path / "t", "nsys", ranks_per_report=2)
    (path,) = (tmp_path / "t").iterdir()
    run_sql(path, "UPDATE NVTX_EVENTS SET text = replace(text, '-rank1', '-rank0')")
    report = jitter.ingest([path], tmp_path / "lake")
    assert report.added == []
    assert "two of its GPUs are both rank 0 in epoch 1, step 0 (devices 0 and 1)" in str(report.refused[0])
    (record,) = records(tmp_path / "lake")
    assert record["rank"] is None


def test_one_rank_for_several_files(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["ingest", str(traces), "-o", str(tmp_path / "lake"), "--rank", "1"]) == 2
    assert "--rank 1 is for one file, and there are 3" in capsys.readouterr().err
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ("rank0.sqlite,0\nrank1.sqlite\n", ":2:"),
        ("rank0.sqlite,0\n\nrank1.sqlite,one\n", ":3:"),
        ("rank0.sqlite,-1\n", ":1:"),
        ("rank0.sqlite,0,1,2\n", ":1:"),
    ],
)
def test_a_map_with_a_bad_line(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: str, complaint: str
):
    told = tmp_path / "map.csv"
    told.write_text(lines)
    assert main(["ingest", str(traces), "-o", str(tmp_path / "lake"), "--rank-map", str(told)]) == 2
    assert f"{told}{complaint}" in capsys.readouterr().err
    assert not (tmp_path / "lake").exists()


def test_a_map_that_is_not_there(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["ingest", str(traces), "-o", str(tmp_path / "lake"), "--rank-map", str(tmp_path / "no.csv")]) == 2
    assert "no.csv" in capsys.readouterr().err


def test_a_map_names_files_in_any_way(traces: Path, tmp_path: Path):
    told = tmp_path / "map.csv"
    told.write_text(f"file,rank\n{traces / 'rank0.sqlite'},20\n{traces.name}/rank1.sqlite,21\nrank9.sqlite,29\n")
    report = jitter.ingest([traces], tmp_path / "lake", rank_map=told)
    assert [(r.rank, r.rank_told_by) for r in report.added] == [
        (20, "--rank-map"),
        (21, "--rank-map"),
        (2, "step marker"),
    ]
    assert ["rank9.sqlite" in warning for warning in report.warnings] == [True, False]
    assert "ranks 0-1,3-19 have no recording" in report.warnings[1]


def test_a_map_that_leaves_a_device_out(tmp_path: Path):
    write(simulate(Job(ranks=2, steps=2, kernels=16)), tmp_path / "t", "nsys", ranks_per_report=2)
    (path,) = (tmp_path / "t").iterdir()
    (tmp_path / "map.csv").write_text(f"{path.name},0,4\n")
    report = jitter.ingest([path], tmp_path / "lake", rank_map=tmp_path / "map.csv")
    assert "--rank-map does not name device 1" in str(report.refused[0])


def test_a_map_for_another_device_is_no_guess(traces: Path, tmp_path: Path):
    (tmp_path / "map.csv").write_text("rank1.sqlite,5,4\n")
    report = jitter.ingest([traces / "rank1.sqlite"], tmp_path / "lake", rank_map=tmp_path / "map.csv")
    assert report.added == []
    assert "--rank-map does not name device 1" in str(report.refused[0])


@pytest.mark.parametrize("pattern", [r"node\d+", "(", r"(?P<rank>"])
def test_a_pattern_that_names_no_rank(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], pattern: str):
    assert main(["ingest", str(traces), "-o", str(tmp_path / "lake"), "--rank-pattern", pattern]) == 2
    assert "--rank-pattern" in capsys.readouterr().err


def test_a_step_pattern_without_the_group(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["ingest", str(traces), "-o", str(tmp_path / "lake"), "--step-pattern", r"(\d+)"]) == 2
    assert "no group named step" in capsys.readouterr().err
