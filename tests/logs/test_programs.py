"""Logs of the program itself: mpitrace, the profiler's table, rocprof's statistics, the trainer's last line."""

import gzip
from pathlib import Path

import pytest
from log_reading import parsed, rows
from published_logs import BIGBIRD, CPU_8, CPU_32, GPT_J, GPU_8_NCCL, HEADER, ruled, tabbed

from jitter.cli import main
from jitter.logs import SCHEMAS, parse, sniff
from tests.support.printed import json_of
from tests.support.real_recordings import EVIDENCE, needs_evidence


@pytest.mark.parametrize(
    ("profile", "communication", "elapsed"),
    [(CPU_32, 251.328, 317.922), (GPU_8_NCCL, 6.047, 49.737), (CPU_8, 109.223, 671.970)],
)
def test_mpitrace_sums(profile: str, communication: float, elapsed: float):
    log = parsed(profile)
    assert log.problems == []
    assert rows(log, "mpi_ranks", "rank", "communication_s", "elapsed_s")[0] == (0, communication, elapsed)
    calls = rows(log, "mpi_calls", "rank", "call", "average_bytes", "calls", "seconds")
    totals = {call: (count, seconds) for _, call, average, count, seconds in calls if average is None}
    buckets: dict[str, list[tuple[int, float]]] = {}
    for _, call, average, count, seconds in calls:
        if average is not None:
            buckets.setdefault(call, []).append((count, seconds))
    assert "MPI_Allreduce" in buckets
    for call, parts in buckets.items():
        assert sum(count for count, _ in parts) == totals[call][0]
        assert sum(seconds for _, seconds in parts) == pytest.approx(totals[call][1], abs=0.0005 * (len(parts) + 1))
    assert sum(seconds for _, seconds in totals.values()) == pytest.approx(communication, abs=0.005)


def test_mpitrace_of_many_ranks():
    log = parsed(CPU_32)
    calls = rows(log, "mpi_calls", "call", "average_bytes", "calls", "seconds")
    assert ("MPI_Allreduce", None, 47108, 250.492) in calls
    assert ("MPI_Allreduce", 8.0, 45773, 214.933) in calls
    assert rows(log, "mpi_ranks", "rank", "host", "communication_s", "memory_bytes") == [
        (0, "nid00102", 251.328, round(1177.191 * 2**20)),
        (1, "nid00102", 267.30, round(1168.41 * 2**20)),
        (2, "nid00102", 269.22, round(1165.58 * 2**20)),
        (3, "nid00102", 269.65, round(1177.88 * 2**20)),
        (26, None, 273.408, None),
        (28, None, 278.406, None),
    ]
    assert rows(log, "mpi_ranks", "rank", "user_s", "system_s", "switches")[:2] == [
        (0, 8761.318, 308.435, 634913),
        (1, 4895.77, 158.60, 257482),
    ]
    joint = parsed(CPU_32 + GPU_8_NCCL + CPU_8)
    assert [row[1] for row in rows(joint, "mpi_ranks", "rank", "elapsed_s")][-2:] == [49.737, 671.970]


def test_mpitrace_of_today():
    text = """\
Data for MPI rank 3 of 8:
Times and statistics from MPI_Init() to MPI_Finalize().
-----------------------------------------------------------------------
MPI Routine                        #calls     avg. bytes      time(sec)
-----------------------------------------------------------------------
MPI_Bcast                               2           16.5          0.000
MPI_Bcast damaged
-----------------------------------------------------------------------
total communication time = 0.000 seconds.
total elapsed time       = 232.130 seconds.
max resident set size    = 4064.422 MiB.

Message size distributions (all communicators):

MPI_Bcast                 #calls    avg. bytes      time(sec)
                               1           4.0          0.000
                               1          29.0          0.000

MPI timing summary for all ranks:
taskid             host    cpu    comm(s)  elapsed(s)     user(s)   system(s)   size(MiB)    switches
     0   x3210c0s37b1n0      0       0.00      232.13      122.01       96.95     4064.42   240460957
     3   x3210c0s37b1n0      1       0.00      227.60      126.06       95.88     4001.15   231353798

something else 1 2 3
"""
    log = parsed(text)
    assert rows(log, "mpi_calls", "rank", "call", "average_bytes", "calls") == [
        (3, "MPI_Bcast", None, 2), (3, "MPI_Bcast", 4.0, 1), (3, "MPI_Bcast", 29.0, 1)
    ]  # fmt: skip
    assert rows(log, "mpi_ranks", "rank", "host", "elapsed_s") == [
        (0, "x3210c0s37b1n0", 232.13), (3, "x3210c0s37b1n0", 232.13)
    ]  # fmt: skip
    assert [problem.lines for problem in log.problems] == [(7,)]


@pytest.mark.parametrize("written", [ruled, tabbed])
def test_published_profiler_tables(written):
    gpt = parsed(written(HEADER, GPT_J))
    assert gpt.problems == []
    found = {
        row[0]: row[1:] for row in rows(gpt, "operators", "name", "calls", "self_cpu_ns", "self_device_ns", "share")
    }
    assert len(found) == 4
    assert found["record_param_comms"] == (1380, 32_264_000, 6_478_273_000_000, pytest.approx(0.9997))
    assert found["aten::item"][:2] == (22, -233_000)
    assert "autograd::engine::evaluate_function: torch::autograd..." in found

    bigbird = parsed(written(HEADER.removesuffix("|# of Calls"), BIGBIRD))
    assert rows(bigbird, "operators", "calls") == [None] * 3
    assert max(rows(bigbird, "operators", "share")) == pytest.approx(0.1932)
    assert not any("comms" in name or "c10d" in name for name in rows(bigbird, "operators", "name"))


def test_profiler_table_of_the_cpu_alone_and_its_broken_rows():
    header = "Name|Self CPU %|Self CPU|CPU total %|CPU total|CPU time avg|# of Calls"
    table = ["aten::mm|40.00%|4.000ms|40.00%|4.000ms|2.000ms|2", "aten::add|60.00%|6.000xx|60.00%|6.000ms|3.000ms|2"]
    log = parsed(ruled(header, table))
    assert rows(log, "operators", "name", "calls", "self_cpu_ns", "self_device_ns", "share") == [
        ("aten::mm", 2, 4_000_000, None, pytest.approx(0.4))
    ]
    assert [problem.lines for problem in log.problems] == [(5,)]


def test_rocprof_statistics():
    text = (
        '"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n'
        '"void k<int, 4>(float*, ""x"")",12,24000,2000,75.0\n"Cijk_Alik",4,8000,2000,25.0\n"broken",x,1,1,1\n'
    )
    log = parsed(text, "out/results_kernel_stats.csv")
    assert rows(log, "operators", "name", "calls", "self_cpu_ns", "self_device_ns", "share") == [
        ('void k<int, 4>(float*, "x")', 12, None, 24000, 0.75),
        ("Cijk_Alik", 4, None, 8000, 0.25),
    ]
    assert [problem.lines for problem in log.problems] == [(4,)]
    api = parsed('"Name","Calls","TotalDurationNs"\n"hipLaunchKernel",3,900\n', "out/results.hip_stats.csv")
    assert rows(api, "operators", "self_cpu_ns", "self_device_ns") == [(900, None)]


def test_throughput_of_every_result():
    log = parsed(
        "100%|####| 10/10 [18:46<00:00]\r{'train_runtime': 1126.1257, 'train_samples_per_second': 36.372, 'epoch': 0"
        ".09}{'train_runtime': '671.7561', 'train_samples_per_second': '60.975'}\n"
        "[rank0]: {'train_runtime': 568.0539, 'epoch': 0.09}\n{'train_runtime': soon}\n",
        "plugin/slurm-1.out",
    )
    assert rows(log, "throughput", "label", "seconds", "samples_per_s") == [
        ("plugin", 1126.1257, 36.372), ("plugin", 671.7561, 60.975), ("plugin", 568.0539, None)
    ]  # fmt: skip
    assert [problem.lines for problem in log.problems] == [(3,)]


LOOKALIKES = [
    b"",
    b"hello\nworld\n",
    b"The network is slow. Set NCCL_DEBUG=INFO and look for NCCL INFO lines such as Using network.\n",
    b'{"header": 1, "rows": [1, 2]}\n',
    b'[{"name": "x", "ph": "X", "ts": 1, "dur": 2}]\n',
    b"a,b,c\n1,2,3\n",
    b"Self CPU % is a column whose Name says so\n",
    b"size 4 float sum\nbusbw\n",
    b"\x80\x04not a pickle",
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR NCCL INFO Channel 00 : 0[1] -> 1[2] via P2P/IPC",
    b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce"}]}',
]


@pytest.mark.parametrize("content", LOOKALIKES)
def test_what_only_looks_like_a_log_is_left_alone(content: bytes):
    assert sniff(content) is None


@needs_evidence
@pytest.mark.parametrize("name", ["README.md", "compare/mfu_2gpu_after.sqlite"])
def test_files_beside_logs_are_left_alone(name: str):
    assert sniff(EVIDENCE / name) is None


def test_sources_that_quote_logs_are_left_alone(tmp_path):
    line = b"node-1:12:34 [0] NCCL INFO Channel 00 : 0[1] -> 1[2] via P2P/IPC\n"
    for name, expected in (("quote.py", None), ("job.log", "nccl-debug"), ("job", "nccl-debug")):
        (tmp_path / name).write_bytes(line)
        assert sniff(tmp_path / name) == expected


@pytest.mark.parametrize("packed", [False, True])
def test_an_error_in_the_middle_of_a_long_system_log_is_found(tmp_path: Path, *, packed: bool):
    lines = b"Mar 14 12:00:00 n2 systemd[1]: Started Session 44 of User train.\n" * 80_000
    error = b"Mar 14 12:00:06 n2 kernel: NVRM: Xid (PCI:0000:c1:00): 94, pid=4611, Contained: SM (0x1).\n"
    path = tmp_path / "kern.log"
    path.write_bytes(gzip.compress(lines + error + lines) if packed else lines + error + lines)
    assert sniff(path) == "kernel-log"


def test_result_at_the_end_of_a_long_log_is_found(tmp_path):
    path = tmp_path / "slurm.out"
    path.write_bytes(b"loss 1.0\n" * 700_000 + b"{'train_runtime': 2.5}\n")
    assert sniff(path) == "train-runtime"
    assert rows(parse(path), "throughput", "seconds", "label") == [(2.5, tmp_path.name)]
    assert parse(path, label="x", source="s").tables["throughput"].to_pylist()[0]["source"] == "s"


def test_a_log_with_many_formats_at_once():
    head = "node-1:12:34 [0] NCCL INFO "
    log = parsed(
        f"{head}Using network Socket\n0 -- GPUS 0 -- pid 1's current affinity mask: f\n"
        "8388608 2097152 float sum -1 1159.1 7.24 13.57 0 1146.5 7.32 13.72 0\n"
        f"[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:9b:00): 79, pid=1\n{head}Channel 0 : 0 -> 1 via P2P/IPC\n"
        "{'train_runtime': 2.5}\n"
    )
    assert {name: table.num_rows for name, table in log.tables.items()} == {
        "bandwidth": 2, "communicators": 1, "edges": 1, "gpu_errors": 1, "bindings": 1, "throughput": 1,
    }  # fmt: skip
    assert log.problems == []


def test_tables_have_the_declared_schemas():
    log = parsed("{'train_runtime': 2.5}\n")
    assert log.tables["throughput"].schema.equals(SCHEMAS["throughput"])
    assert all(schema.names[-1] == "source" for schema in SCHEMAS.values())
    assert all(field.metadata[b"description"] for schema in SCHEMAS.values() for field in schema)


def test_long_names_are_cut_and_numbers_out_of_range_are_broken():
    header = '"Name","Calls","TotalDurationNs"\n'
    log = parsed(f'{header}"{"é" * 70_000}",1,5\n"k",1,{10**30}\n"k",1,6\n')
    assert rows(log, "operators", "self_device_ns") == [5, 6]
    assert len(rows(log, "operators", "name")[0].encode()) == 65_536
    assert [problem.lines for problem in log.problems] == [(3,)]


def test_a_line_without_end_is_skipped():
    log = parsed(b"{'train_runtime': 1.5}\n" + b"x" * (6 << 20) + b"\n{'train_runtime': 2.5}\n")
    assert rows(log, "throughput", "seconds") == [1.5, 2.5]
    assert [(problem.count, problem.lines) for problem in log.problems] == [(1, (2,))]


# the layout that pat_report prints; the figures of the second table are those of a published training of T5
PLAIN = """\
Table 2:  Time and Bytes Transferred for Accelerator Regions

   Host | Host |    Acc |  Acc |  Acc Copy |  Acc Copy | Events |Function
  Time% | Time |  Time% | Time |        In |       Out |        | PE=HIDE
        |      |        |      | (MiBytes) | (MiBytes) |        |

 100.0% | 0.68 | 100.0% | 0.68 |     3,840 |    118.16 |    216 |Total
|--------------------------------------------------------------------------
|  61.5% | 0.42 |  61.5% | 0.42 |     3,840 |    118.16 |    204 |cudaMemcpy
|  38.5% | 0.26 |  38.5% | 0.26 |        -- |        -- |     12 |cudaLaunch
|==========================================================================
"""
SIZES = """\
Table 1:  Time and Bytes Transferred for Accelerator Regions

  Time% |       Time |    Acc |    Acc |  Acc Copy |  HtoA | HtoA |    AtoH |  Events |Function
        |            |  Time% |   Time |        In |  16<= | 1MiB<= |   CpySz |         |
        |            |        |        | (MiBytes) |  <256 | <16MiB |     <16 |         |
        |            |        |        |           | Count |  Count |   Count |         |

 100.0% | 192.144116 | 100.0% | 344.88 |    854.88 |  80.0 |  192.0 | 6,121.2 | 1,765,354 |Total
|----------------------------------------------------------------------------------------------
|  20.3% |  38.945723 |  70.3% | 242.46 |      0.00 |   0.0 |    0.0 | 6,000.0 | 1,286,371 |python.train
||  3.6% |   6.871981 |  11.2% |  38.49 |        -- |   0.0 |    0.0 |     0.0 |   211,308 |python.validation
"""


def test_regions():
    log = parsed(PLAIN)
    assert sniff(PLAIN.encode()) == "perftools"
    assert log.problems == []
    assert rows(log, "regions", "region", "depth", "seconds", "device_seconds", "share", "events", "bytes_in") == [
        ("Total", 0, 0.68, 0.68, 1.0, 216, 3840 << 20),
        ("cudaMemcpy", 1, 0.42, 0.42, 0.615, 204, 3840 << 20),
        ("cudaLaunch", 1, 0.26, 0.26, 0.385, 12, None),
    ]


def test_copies_by_size():
    log = parsed(SIZES)
    assert rows(log, "copy_sizes", "region", "depth", "direction", "least_bytes", "below_bytes", "copies") == [
        ("Total", 0, "HtoA", 16, 256, 80.0),
        ("Total", 0, "HtoA", 1 << 20, 16 << 20, 192.0),
        ("Total", 0, "AtoH", None, 16, 6121.2),
        ("python.train", 1, "AtoH", None, 16, 6000.0),
    ]
    assert [row[1] for row in rows(log, "regions", "region", "depth")] == [0, 1, 2]


def test_a_damaged_row_loses_itself():
    log = parsed(SIZES.replace("|  20.3% |  38.945723 |", "|  20.3% |"))
    assert rows(log, "regions", "region") == ["Total", "python.validation"]
    assert [str(problem) for problem in log.problems] == ["perftools: 1 line cannot be read (10)"]


def test_the_report_names_reads_of_single_values(tmp_path, capsys):
    (tmp_path / "report.txt").write_text(SIZES)
    assert main(["ingest", str(tmp_path / "report.txt"), "-o", str(tmp_path / "lake")]) == 0
    assert json_of(capsys, "report", tmp_path / "lake", "--json")["verdict"].startswith(
        "6,121 copies from the GPU have less than 16 B, 6,000 of them in python.train: reading a value waits for the "
        "GPU each time."
    )
