"""What the report says of logs without traces: the facts that they measured, with hand-worked numbers."""

import json
from pathlib import Path

import pytest
from published_logs import CPU_8, CPU_32, GPU_8_NCCL

from jitter.analysis.diagnosis.evidence.logs.measurements import describe_measurements
from jitter.cli import main
from tests.support.printed import output_of


def measured(source: str, size: int, busbw: float, **given: object) -> dict[str, object]:
    row = {"collective": "all_reduce", "ranks": 8, "in_place": False, "wrong": 0, "algbw": busbw}
    return row | {"source": source, "size_bytes": size, "busbw": busbw} | given


def facts(**relations: list) -> list[str]:
    return describe_measurements(relations)


def test_tables_of_one_operation_are_compared_at_common_sizes():
    mib = 1 << 20
    fast = [measured("run/plugin.log", mib * 2**power, 100.0 + power) for power in range(3)]
    slow = [
        measured("run/plain.log", mib * 2**power, (100.0 + power) * ratio) for power, ratio in ((1, 0.2), (2, 0.25))
    ]
    other = [measured("run/plain.log", mib, 50.0, collective="all_gather", ranks=4)]
    first, *peaks = facts(bandwidth=[*fast, *slow, *other])
    assert first == (
        "the slowest table of all_reduce, run/plain.log, reaches 25.0% of the bus bandwidth of run/plugin.log "
        "at 4.19 MB (25.5 GB/s against 102 GB/s; median over 2 sizes 22.5%)"
    )
    assert peaks == [
        "the largest bus bandwidth of all_reduce of 8 ranks is 102 GB/s at 4.19 MB (run/plugin.log)",
        "the largest bus bandwidth of all_gather of 4 ranks is 50 GB/s at 1.05 MB (run/plain.log)",
        "the largest bus bandwidth of all_reduce of 8 ranks is 25.5 GB/s at 4.19 MB (run/plain.log)",
    ]


def test_hosts_that_each_ran_the_whole_benchmark_were_measured_alone():
    """As mpirun does with an nccl-tests that is built without MPI: each host prints ranks from 0."""
    rows = [
        {"rank": gpu, "device": gpu, "host": host, "source": "run/two.log"} for host in ("n1", "n2") for gpu in range(4)
    ]
    assert facts(benchmark_ranks=rows) == [
        "each of 2 hosts (n1, n2) was measured alone, as by nccl-tests built without MPI: the network between them was "
        "not (run/two.log)"
    ]
    together = [row | {"rank": at} for at, row in enumerate(rows)]
    both_ways = [
        {"rank": rank, "device": 0, "host": host, "source": "run/pairs.log"} for host in ("n1", "n2") for rank in (0, 1)
    ]  # one log of two tests, with one GPU of each host
    for others in (together, both_ways, rows[:4]):
        assert facts(benchmark_ranks=others) == []


def test_a_benchmark_of_one_rank_communicates_with_no_other():
    """nccl-tests prints algbw, and 0 for busbw; of several ranks, small sizes alone have 0."""
    lone = [measured("run/one.log", size, 0.0, ranks=1) | {"algbw": 700.0} for size in (1 << 20, 1 << 25)]
    said = "each test was of one rank, which communicates with no other: bus bandwidth 0 (run/one.log)"
    assert facts(bandwidth=lone) == [said]
    small = measured("run/one.log", 8, 0.0) | {"algbw": 0.01}
    assert said not in facts(bandwidth=[small, measured("run/one.log", 1 << 25, 50.0) | {"algbw": 30.0}])
    assert facts(bandwidth=[small]) == []


def test_a_slow_node_is_in_every_slow_pair():
    """Of the six pairs of four nodes, those with node2 reach 10 to 12 GB/s, the others 40."""
    pairs = [(one, other) for one in range(4) for other in range(one + 1, 4)]
    tables = [
        measured(f"pairs/{one}-{other}.log", 1 << 30, 10.0 + one if 2 in (one, other) else 40.0, ranks=2)
        for one, other in pairs
    ]
    ranks = [
        {"rank": rank, "device": 0, "host": f"node{node}", "source": f"pairs/{pair[0]}-{pair[1]}.log"}
        for pair in pairs
        for rank, node in enumerate(pair)
    ]
    assert facts(bandwidth=tables, benchmark_ranks=ranks)[0] == (
        "node2 is slow with every partner: all_reduce reaches at most 12 GB/s in the 3 tables with it, at least 40 "
        "GB/s in the 3 without it"
    )
    usual = [row | {"busbw": 40.0 - at} for at, row in enumerate(tables)]
    assert not any("with every partner" in text for text in facts(bandwidth=usual, benchmark_ranks=ranks))


def test_bindings_are_listed_by_runs_of_the_program():
    def run(cpus: dict[int, int], gpus: list[int] | None = None, source: str = "a.log") -> list[dict[str, object]]:
        return [{"rank": rank, "cpus": [cpu], "gpus": gpus or [rank], "source": source} for rank, cpu in cpus.items()]

    topology = [{"gpu": 0, "near_cpus": [0, 1]}, {"gpu": 1, "near_cpus": [2, 3]}]
    seen, near, far = run({1: 2, 0: 0}, [0, 1]), run({0: 1, 1: 3}), run({0: 1, 1: 0})
    assert facts(bindings=[*seen, *near, *far, *run({0: 0, 1: 2}, source="b.log")], topology=topology) == [
        "4 listings of bindings: in 1 each rank sees several GPUs (a program that chooses none of them computes on the "
        "first), in 1 ranks run on hardware threads far from their GPUs, in 2 all ranks run on hardware threads near "
        "their GPUs"
    ]
    assert facts(bindings=near) == []


def test_proxies_beside_kernels():
    recorded = [
        {"rank": 0, "group_name": "c", "sequence": at, "collective": "all_reduce", "size_bytes": None, "timing": "host",
         "duration_ns": 1000, "proxy_ns": 900, "kernel_ns": 950, "source": "x/y"}
        for at in range(3)
    ]  # fmt: skip
    assert facts(recorded=recorded) == [
        "network proxies work for 90.0% of the time of 3 collectives (median), kernels for 95.0%"
    ]


def test_wrong_results_come_first():
    first, *_ = facts(bandwidth=[measured("a/b.log", 1024, 9.0, wrong=3)])
    assert first == "3 elements of all_reduce had a wrong result (a/b.log)"


def test_rank_that_enters_last_has_the_shortest_kernel():
    """Rank 2's kernels take 1 ms; the others wait in theirs, 5 ms."""
    recorded = [
        {
            "rank": rank, "group_name": "c", "sequence": number, "collective": "all_reduce", "size_bytes": None,
            "duration_ns": 1_000_000 if rank == 2 else 5_000_000, "timing": "kernel_gpu", "source": "x/y",
        }
        for rank in range(4) for number in range(50)
    ]  # fmt: skip
    (said,) = facts(recorded=recorded)
    assert said == (
        "rank 2 enters 50 of 50 collectives last: its kernel is shorter than the median rank's by 4.00 ms, which the "
        "other ranks wait"
    )
    by_chance = [row | {"duration_ns": 5_000_000 - (row["sequence"] % 4 == row["rank"])} for row in recorded]
    assert facts(recorded=by_chance) == []
    alone = [row for row in recorded if row["rank"] == 2]
    assert facts(recorded=alone) == []


def test_published_mpitrace_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "mpi_profile.0").write_text(CPU_32)
    assert main(["ingest", str(folder), "-o", str(tmp_path / "lake")]) == 0
    printed = output_of(capsys, "report", tmp_path / "lake", "--json")
    verdict = json.loads(printed)["verdict"]
    assert verdict.startswith(
        "MPI takes 251 of 318 s (79.1%) on rank 0, 250 s of it in MPI_Allreduce. 45,773 of 47,108 calls of "
        "MPI_Allreduce on rank 0 have 8 B and take 215 s: ranks wait for each other there, the network "
        "carries little. "
        "MPI takes 251 s on rank 0 (least), 273 s on rank 26 (median), 278 s on rank 28 (most): the other ranks wait "
        "for the rank with the least. "
    )
    notes = " ".join(json.loads(printed)["run"]["warnings"])
    # (8,761.318 + 308.435) / 317.922; of the other ranks' switches 257,482, 253,738, 265,483 the median
    assert "Rank 0 uses 28.5 CPUs, 3.40% of it in the system, memory 1.23 GB" in notes
    assert "Rank 0 has 634,913 context switches, the other ranks 257,482 (median)" in notes
    assert verdict.endswith("The lake holds logs and no traces, so jitter is unknown: ingest the job's traces too.")


def test_profiles_of_several_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A rank's calls are compared with its own run's time, on the first screen too."""
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "notes.txt").write_text(CPU_32 + GPU_8_NCCL + CPU_8)
    said = " ".join(output_of(capsys, "report", folder, "-L", tmp_path / "lake", "-o", tmp_path / "page.html").split())
    shares = [
        "MPI takes 251 of 318 s (79.1%) on rank 0 of 32, 250 s of it in MPI_Allreduce.",
        "MPI takes 109 of 672 s (16.3%) on rank 0 of 8, 109 s of it in MPI_Allreduce.",
        "MPI takes 6 of 50 s (12.2%) on rank 0 of 8, 6 s of it in MPI_Allreduce.",
    ]
    assert said.startswith(shares[0])
    assert [share in said for share in shares] == [True, True, True]
