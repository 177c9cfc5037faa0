"""nccl-tests and rccl-tests: every layout's rows, with the collective and the ranks, stated or not."""

import json

import pytest
from log_reading import parsed, rows
from published_logs import TABLES, as_printed

from jitter.logs import parse, sniff
from tests.support.real_recordings import EVIDENCE, needs_evidence

COLUMNS = ("size_bytes", "in_place", "time_us", "algbw", "busbw")


@pytest.mark.parametrize("name", TABLES)
def test_published_tables_are_recomputed_from_size_and_time(name: str):
    text, ranks = TABLES[name]
    log = parsed(as_printed(text))
    assert log.problems == []
    expected = []
    for row in text.splitlines():
        size, *cells = row.split()
        expected += [(int(size), False, *map(float, cells[:3])), (int(size), True, *map(float, cells[3:]))]
    assert rows(log, "bandwidth", *COLUMNS) == expected
    assert set(rows(log, "bandwidth", "collective", "ranks", "wrong")) == {("all_reduce", ranks, 0)}
    recomputed = 0
    for size, _, time, algbw, busbw in rows(log, "bandwidth", *COLUMNS):
        # the printed time is rounded to its own digits, so the bandwidth's bounds follow from the time's
        digits = next(cell for cell in text.split() if float(cell) == time).partition(".")[2]
        slack = 0.5 * 10 ** -len(digits)
        factor = 2 * (ranks - 1) / ranks
        for printed, scale in ((algbw, 1.0), (busbw, factor)):
            low, high = (scale * size / (time + sign * slack) / 1e3 for sign in (1, -1))
            assert low - 0.00501 <= printed <= high + 0.00501
            recomputed += 1
    assert recomputed == 4 * len(text.splitlines())


def test_published_summary_comes_out_as_printed():
    busbw = {
        name: dict(rows(parsed(as_printed(text)), "bandwidth", "size_bytes", "busbw"))
        for name, (text, _) in TABLES.items()
    }  # the in-place row of a size comes last
    three = ("tcp", "plugin", "gdr")
    assert [busbw[name][65536] for name in three] == [0.93, 2.74, 2.67]
    assert [busbw[name][4 << 20] for name in three] == [6.33, 27.80, 29.83]
    assert [busbw[name][4 << 30] for name in three] == [8.03, 56.85, 109.01]
    assert [round(busbw[name][4 << 30] / busbw["tcp"][4 << 30], 2) for name in three[1:]] == [7.08, 13.58]
    below_4_mib = [size for size in busbw["gdr"] if size < 4 << 20]
    assert len(below_4_mib) == 2
    assert all(busbw["gdr"][size] / busbw["plugin"][size] < 1.1 for size in below_4_mib)


@needs_evidence
@pytest.mark.parametrize(
    ("name", "collective", "empty", "last"),
    [
        ("allreduce", "all_reduce", 2, (235.26, 235.03)),
        ("allgather", "all_gather", 5, (223.39, 230.07)),
        ("alltoall", "all_to_all", 5, (224.31, 226.16)),
        ("reducescatter", "reduce_scatter", 5, (231.52, 231.25)),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_2019_layout(name: str, collective: str, empty: int, last: tuple[float, float], named: bool):
    path = EVIDENCE / f"nccl_tests/superbench_{name}_2019layout.log"
    log = parse(path) if named else parsed(path.read_bytes())
    assert sniff(path) == "nccl-tests"
    assert log.problems == []
    assert len(rows(log, "bandwidth", "size_bytes")) == 68
    assert rows(log, "bandwidth", "size_bytes").count(0) == 2 * empty
    assert set(rows(log, "bandwidth", "collective", "ranks", "dtype", "wrong")) == {(collective, 8, "float", None)}
    assert tuple(rows(log, "bandwidth", "busbw")[-2:]) == last
    average = {"allreduce": 68.4048, "allgather": 58.2651, "alltoall": 58.6481, "reducescatter": 60.168}[name]
    busbw = rows(log, "bandwidth", "busbw")
    assert sum(busbw) / len(busbw) == pytest.approx(average, abs=0.005)


@needs_evidence
def test_2022_layout_behind_a_prefix_without_a_banner():
    log = parse(EVIDENCE / "nccl_tests/p4de_16ranks_srun_l.log")
    assert len(rows(log, "bandwidth", "size_bytes")) == 58
    assert set(rows(log, "bandwidth", "collective", "ranks", "wrong")) == {("all_reduce", 16, 0)}
    assert rows(log, "bandwidth", "size_bytes", "busbw")[-2:] == [(2 << 30, 78.33), (2 << 30, 78.33)]
    assert rows(log, "bandwidth", "size_bytes")[0] == 8
    assert log.tables["bandwidth"]["label"].unique().to_pylist() == ["nccl_tests"]


ROW = (
    "  1048576        262144     float     sum      -1   101.7   10.31   18.05{extra}      0"
    "   101.4   10.34   18.10{extra}      0"
)


@pytest.mark.parametrize(
    ("line", "in_place"),
    [
        (ROW.format(extra=""), [False, True]),
        (ROW.format(extra="   12.00"), [False, True]),
        (ROW.format(extra="") + "  2025-10-01 12:00:00", [False, True]),
        ("  1048576  262144  float  sum  -1  101.7  10.31  18.05    N/A", [False]),
        (
            "  1048576  262144  bfloat16  sum  -1  101.7  10.31  18.05  0  99.1  120.0  119.0  3.2"
            "  101.4  10.34  18.10  0  99.1  120.0  119.0  3.2",
            [False, True],
        ),
        ("  1048576  262144  fp8_e4m3  sum    101.7  10.31  18.05    N/A  101.4  10.34  18.10   5e-07", [False, True]),
        ("\x1b[36m(Worker pid=17, ip=10.0.0.1)\x1b[0m" + ROW.format(extra=""), [False, True]),
        ("2025-10-01T12:00:00.123456789Z stdout F" + ROW.format(extra=""), [False, True]),
        ("[1,0]<stdout>:" + ROW.format(extra=""), [False, True]),
        ("Sun Feb 23 16:24:18 2025[1,0]<stdout>:" + ROW.format(extra=""), [False, True]),
        ("[prterun-node-1234@1,0]<stdout>: " + ROW.format(extra=""), [False, True]),
        ("[default0]:" + ROW.format(extra=""), [False, True]),
        ("0: " + ROW.format(extra=""), [False, True]),
    ],
)
def test_every_layout_and_prefix_gives_the_same_measurement(line: str, in_place: list[bool]):
    log = parsed(line + "\n")
    expected = [(1 << 20, False, 101.7, 10.31, 18.05), (1 << 20, True, 101.4, 10.34, 18.10)]
    assert rows(log, "bandwidth", *COLUMNS) == [row for row in expected if row[1] in in_place]
    assert log.problems == []


def test_row_into_which_a_record_of_nccl_ran():
    row = ROW.format(extra="")
    head = "node-1:12:34 [0] NCCL INFO "
    log = parsed(f"{head}Using network IB\n{row}{head}Launch mode Parallel\n{row} {head}Launch mode Parallel\n")
    assert rows(log, "bandwidth", "busbw") == [18.05, 18.10] * 2
    assert log.records == {"nccl-tests": 4, "nccl-debug": 3}
    assert log.problems == []


def test_in_place_half_alone():
    log = parsed(
        "rccl-tests: Version develop:83d38d9\n#          in-place\n"
        "#  size  count  type  redop  root  time  algbw  busbw  #wrong\n"
        "  1048576  262144  float  sum  -1  101.7  10.31  18.05  0\n"
    )
    assert rows(log, "bandwidth", "in_place", "busbw") == [(True, 18.05)]


def test_rows_of_ranks_that_print_one_table_each_do_not_mix():
    header = "{0}: # size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
    text = "".join(header.format(rank) for rank in (0, 1)) + "".join(
        f"{rank}: {size} {size // 4} float sum -1 100.0 {a} {b} 0 100.0 {a} {b} 0\n"
        for size, a, b in ((1 << 24, 167.77, 293.60), (1 << 25, 335.54, 587.20))
        for rank in (0, 1)
    )
    assert set(rows(parsed(text), "bandwidth", "collective", "ranks")) == {("all_reduce", 8)}
    assert len(rows(parsed(text), "bandwidth", "ranks")) == 8


def test_program_of_the_table_names_the_collective():
    text = (
        "# Collective test starting: all_gather_perf\n# Using devices\n"
        + "".join(f"#  Rank {rank:2} Group  0 Pid 1 on node device {rank} [0000:0{rank}:00] GPU\n" for rank in range(8))
        + "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
        + "8589934592 268435456 float none -1 33646 255.31 223.39 0 32669 262.94 230.07 0\n"
    )
    assert set(rows(parsed(text), "bandwidth", "collective", "ranks")) == {("all_gather", 8)}
    unnamed = text.replace("all_gather_perf", "other")
    assert set(rows(parsed(unnamed), "bandwidth", "collective", "ranks")) == {(None, 8)}
    wrong_banner = text.replace("Rank  7", "Rank 70")
    assert set(rows(parsed(wrong_banner), "bandwidth", "ranks")) == {8}


def test_broken_rows_lose_themselves_and_are_counted():
    good = ROW.format(extra="")
    log = parsed(f"{good}\n{good[:70]}\n{good.replace('10.31', '10.3x')}\n{good}\n")
    assert len(rows(log, "bandwidth", "busbw")) == 4
    assert [(problem.count, problem.lines) for problem in log.problems] == [(2, (2, 3))]


def test_json_report():
    half = {"time": 7.5, "alg_bw": 1.0923, "bus_bw": 1.9115, "nwrong": 0}
    report = {
        "version": 3,
        "args": ["/secret/path/all_reduce_perf", "-b", "8192"],
        "env": {"TOKEN": "secret"},
        "config": {"devices": [{"rank": rank} for rank in range(8)]},
        "results": [
            {"size": 8192, "count": 2048, "type": "float", "redop": "sum", "root": "-1",
             "out_of_place": half, "in_place": half | {"nwrong": "N/A"}},
            {"size": "broken", "out_of_place": half},
        ],
    }  # fmt: skip
    content = json.dumps(report).encode()
    log = parsed(content)
    assert sniff(content) == "nccl-tests-json"
    assert rows(log, "bandwidth", "collective", "ranks", "size_bytes", "in_place", "busbw", "wrong") == [
        ("all_reduce", 8, 8192, False, 1.9115, 0),
        ("all_reduce", 8, 8192, True, 1.9115, None),
    ]
    assert [problem.count for problem in log.problems] == [1]
    assert "secret" not in str(log)
    newer = parsed(json.dumps(report | {"version": 9}).encode())
    assert len(rows(newer, "bandwidth", "size_bytes")) == 2
    assert "version 9" in str(newer.problems[0])
