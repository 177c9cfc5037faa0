"""The talk's tables, by the way users go: exports of Nsight Systems, `jitter ingest`, `jitter table`.

Its 960 GPUs are eight here: the four it shows, and four more that make its averages come out.
"""

import csv
import io
import random
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import pytest

import jitter
from jitter.cli import main
from tests.support.databases import open_database

Table = Callable[..., dict[int, dict[str, str]]]
"""Asks for a metric, with further options: kernel index -> column -> cell."""
SHOWN = (0, 1, 180, 959)
FURTHER = (2, 3, 4, 5)
RANKS = (*SHOWN, *FURTHER)
LAST = 902
ALL_REDUCE = 500  # launched as this one of the step, beside the main stream: a kernel index, and no time of its own
GIVEN = {  # (metric, kernel) -> the four shown, and the average over all
    ("duration", 0): ((9176, 10575, 7866, 8234), 9611),
    ("duration", 1): ((3451, 6456, 9765, 4401), 5562),
    ("duration", LAST): ((4144, 7345, 5721, 5177), 5230),
    ("gap", 0): ((12921, 11034, 14548, 9813), 11544),
    ("gap", 1): ((80124, 94890, 100344, 91209), 97389),
    ("gap", LAST): ((210467, 197712, 215983, 200334), 202399),
}
TTKE = {0: ((22097, 21609, 22414, 18047), 21155), 1: ((105672, 122955, 132523, 113657), 124106)}
DEVIATIONS = {
    ("duration", 0): (-435, 964, -1745, -1377),
    ("duration", 1): (-2111, 894, 4203, -1161),
    ("duration", LAST): (-1086, 2115, 491, -53),
    ("gap", 0): (1377, -510, 3004, -1731),
    ("gap", 1): (-17265, -2499, 2955, -6180),
    ("gap", LAST): (8068, -4687, 13584, -2065),
    ("ttke", 0): (942, 454, 1259, -3108),
    ("ttke", 1): (-18434, -1151, 8417, -10449),
}


def of_all(metric: str, kernel: int) -> dict[int, int]:
    """Rank -> value: the rest of the sum is spread over the further ranks; the first gap of one of them is 0."""
    shown, average = GIVEN[metric, kernel]
    rest = average * len(RANKS) - sum(shown)
    some = FURTHER[1:] if (metric, kernel) == ("gap", 0) else FURTHER
    values = dict.fromkeys(FURTHER, 0) | {rank: rest // len(some) for rank in some}
    values[some[-1]] += rest - sum(values.values())
    assert min(values.values()) >= 0
    return dict(zip(SHOWN, shown, strict=True)) | values


def export(path: Path, rank: int, zero: int) -> None:
    """One rank's step on a clock that shows `zero` when the earliest rank's first kernel starts."""
    chance = random.Random(rank)
    names = {1: "cudaLaunchKernel_v7000", 2: "ncclAllReduceRingLLKernel_sum_f16(ncclColl)", 3: "memcpy"}
    names |= {10 + n: f"void kernel_{n % 7}<float>(int)" for n in range(LAST + 1)}
    kernels, calls = [], []
    at = zero
    for index in range(LAST + 1):
        if index == ALL_REDUCE:
            # begins on each rank when it likes, ends for all at the same moment, long after the step's kernels
            kernels.append((at - 700, zero + 900_000_000, 0, 33, 9000, 2, 2))
            calls.append((zero - 90_000 + 40 * index - 20, zero - 90_000 + 40 * index - 10, rank << 24 | 7, 9000, 1))
            continue
        gap, duration = (
            of_all(metric, index)[rank] if (metric, index) in GIVEN else chance.randrange(900, 90_000)
            for metric in ("gap", "duration")
        )
        start = at + gap
        at = start + duration
        kernels.append((start, at, 0, 7, 100 + index, 10 + index, 10 + index))
        calls.append((zero - 90_000 + 40 * index, zero - 90_000 + 40 * index + 30, rank << 24 | 7, 100 + index, 1))
    tables = {
        "StringIds": ("id, value", list(names.items())),
        "CUPTI_ACTIVITY_KIND_KERNEL": (
            'start, "end", deviceId, streamId, correlationId, demangledName, shortName, globalPid, '
            "gridX, gridY, gridZ, blockX, blockY, blockZ",
            [(*row, rank << 24, 1, 1, 1, 32, 1, 1) for row in kernels],
        ),
        "CUPTI_ACTIVITY_KIND_MEMCPY": (
            'start, "end", deviceId, streamId, correlationId, globalPid, copyKind, bytes',
            [(zero + 20_000, zero + 20_001, 0, 7, 8000, rank << 24, 1, 4)],
        ),
        "CUPTI_ACTIVITY_KIND_RUNTIME": ('start, "end", globalTid, correlationId, nameId', calls),
        "NVTX_EVENTS": (
            'start, "end", eventType, text, globalTid',
            [(zero - 100_000, zero + 10**9, 59, f"epoch1_step2003-rank{rank}-640_8-640_8-640_8", rank << 24 | 7)],
        ),
    }
    with open_database(path) as connection:
        for table, (columns, rows) in tables.items():
            connection.execute(f"CREATE TABLE {table} ({columns})")
            connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("talk")
    chance = random.Random(7)
    for number, rank in enumerate(RANKS):
        export(folder / f"report{number}.sqlite", rank, chance.randrange(10**6, 10**12))
    assert main(["ingest", str(folder), "-o", str(folder / "lake"), "--quiet"]) == 0
    return folder / "lake"


@pytest.fixture(scope="module")
def table(lake: Path) -> Table:
    @cache
    def ask(metric: str, *more: str) -> dict[int, dict[str, str]]:
        with redirect_stdout(io.StringIO()) as out:
            assert main(["table", str(lake), "--metric", metric, "--format", "csv", *more]) == 0
        return {int(row["kernel_index"]): row for row in csv.DictReader(io.StringIO(out.getvalue()))}

    return ask


EXPECTED = [(metric, kernel, *values) for (metric, kernel), values in GIVEN.items()]
EXPECTED += [("ttke", kernel, *values) for kernel, values in TTKE.items()]


@pytest.mark.parametrize(("metric", "kernel", "shown", "average"), EXPECTED)
def test_values_and_averages(table, metric, kernel, shown, average):
    row = table(metric)[kernel]
    assert list(row)[:4] == ["kernel_index", "kernel_name", "mean", "rank_0"]
    assert tuple(int(row[f"rank_{rank}"]) for rank in SHOWN) == shown
    assert row["mean"] == f"{average}.000"
    assert row["kernel_name"] == f"void kernel_{kernel % 7}<float>(int)"


@pytest.mark.parametrize(("metric", "kernel"), DEVIATIONS)
def test_deviations(table, metric, kernel):
    row = table(metric, "--deviation", "--step", "2003")[kernel]
    assert tuple(float(row[f"rank_{rank}"]) for rank in SHOWN) == DEVIATIONS[metric, kernel]


def test_columns_may_be_chosen_and_the_mean_is_still_over_all(table):
    row = table("ttke", "--ranks", "0-1,180", "--deviation")[0]
    assert list(row) == ["kernel_index", "kernel_name", "mean", "rank_0", "rank_1", "rank_180"]
    assert row["mean"] == "21155.000"
    assert float(row["rank_180"]) == 1259


def test_903_kernels_one_of_them_beside_the_others(table):
    rows = table("gap")
    assert list(rows) == list(range(LAST + 1))
    assert {rows[ALL_REDUCE][f"rank_{rank}"] for rank in RANKS} == {"0"}
    ttke = table("ttke")
    for rank in RANKS:
        assert ttke[ALL_REDUCE][f"rank_{rank}"] == ttke[ALL_REDUCE - 1][f"rank_{rank}"]


def test_the_same_from_python(lake):
    frame = jitter.open(lake).table("gap", 2003, deviation=True, ranks=[959, 0])
    assert frame.columns.tolist() == ["kernel_name", "mean", "rank_0", "rank_959"]
    assert frame.loc[LAST].tolist()[1:] == [202399.0, 8068.0, -2065.0]
