"""Calls, waits and time shares of hand-made steps."""

import tracemalloc
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from jitter.analysis.diagnosis.efficiency import find_bound
from jitter.analysis.metrics import collective_calls as step_calls
from jitter.analysis.metrics import communication
from jitter.analysis.metrics.collective_calls import COLUMNS, match_calls
from jitter.analysis.metrics.communication import (
    MeasuredStep,
    measure_communication,
    tabulate_collectives,
    tabulate_sizes,
    tabulate_steps,
)
from jitter.analysis.metrics.recorded_sizes import UNORDERED, RecordedSizes, describe_disagreements
from jitter.core.schema import KERNELS
from jitter.core.step_key import StepKey
from jitter.lake.step_reader import StepColumns

Row = dict[str, Any]


def compute(start: int, end: int) -> Row:
    return {"kind": "compute", "start_ns": start, "end_ns": end}


def collective(start: int, end: int, **more: Any) -> Row:
    row = {"kind": "collective", "start_ns": start, "end_ns": end, "collective": "all_reduce", "size_bytes": 4000}
    return {**row, "dtype": "float", "group_size": 2, "group_ranks": [0, 1], **more}


def step(*ranks: list[Row]) -> StepColumns:
    rows = [row for own in ranks for row in own]
    columns = {}
    for name in COLUMNS:
        kind = KERNELS.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        column = pa.array([row.get(name) for row in rows], kind)
        columns[name] = column.dictionary_encode() if pa.types.is_string(kind) else column
    return StepColumns(pa.table(columns), tuple(range(len(ranks))), tuple(map(len, ranks)))


def measured(*steps: StepColumns, hosts: dict[int, str | None] | None = None):
    keys = [StepKey(None, number) for number in range(len(steps))]
    return measure_communication(map(MeasuredStep, keys, steps, steps), hosts or {})


def test_of_a_large_step_collectives_and_copies_alone_are_kept_some_ranks_at_a_time(monkeypatch: pytest.MonkeyPatch):
    copy = {"kind": "memory", "start_ns": 600, "end_ns": 700, "copy_direction": "host_to_device", "size_bytes": 8}
    of_ranks = [
        [compute(0, 90), collective(100, 500), copy],
        [compute(0, 450), compute(460, 470), collective(480, 500), copy, compute(710, 900)],
        [],
        [compute(0, 5)],
    ]
    asked: list[list[int]] = []

    def read(ranks: Sequence[int]) -> StepColumns:
        asked.append(list(ranks))
        return replace(step(*(of_ranks[rank] for rank in ranks)), ranks=tuple(ranks))

    monkeypatch.setattr(step_calls, "_ROWS_AT_ONCE", 8)
    found, whole, key = (
        step_calls.read_calls(read, dict(enumerate(map(len, of_ranks)))),
        step(*of_ranks),
        StepKey(None, 0),
    )
    assert asked == [[0, 1], [2, 3]]
    assert (found.ranks, found.rows) == ((0, 1, 2, 3), (2, 2, 0, 0))
    assert found.table["kind"].to_pylist() == ["collective", "memory"] * 2
    usual = measure_communication([MeasuredStep(key, whole, whole)], {})
    assert len(usual.rank_steps) == 4
    assert usual.copies
    np.testing.assert_equal(vars(measure_communication([MeasuredStep(key, found, whole)], {})), vars(usual))


def test_the_shortest_kernel_is_the_last_arrivals():
    # clocks differ by 1,000,000 ns; both leave at the same time
    calls = match_calls(step([collective(100, 500)], [collective(1_000_400, 1_000_500)]))
    assert calls.time_ns.tolist() == [100]
    assert calls.wait_ns.tolist() == [300]
    assert calls.last_rank.tolist() == [1]
    assert not calls.reasons


def test_calls_of_a_group_are_matched_in_order_whatever_the_group_of_others():
    other = {"group_ranks": [0], "group_size": 1}
    calls = match_calls(
        step(
            [collective(0, 10, **other), collective(20, 50, size_bytes=1), collective(60, 90, size_bytes=2)],
            [collective(40, 50, size_bytes=1), collective(70, 90, size_bytes=2)],
        )
    )
    assert sorted(zip(calls.size_bytes.tolist(), calls.time_ns.tolist(), strict=True)) == [(1, 10), (2, 20), (4000, 10)]


def test_unrecorded_ranks_leave_the_time_unknown():
    found = measured(step([collective(0, 10, group_ranks=[0, 1, 2], group_size=3)], [compute(0, 5)]))
    (row,) = tabulate_collectives(found)
    assert (row.calls, row.size, row.time_us, row.busbw, row.wait_us, row.last_rank) == (
        1,
        4000,
        None,
        None,
        None,
        None,
    )
    assert [text.format(n) for text, n in found.reasons.items()] == [
        "1 collectives have ranks that were not recorded: their last arrival is unknown"
    ]


def test_ranks_that_disagree_about_the_operation_are_left_out():
    found = measured(step([collective(0, 10)], [collective(0, 10, collective="broadcast")]))
    assert tabulate_collectives(found) == []
    assert sum(found.reasons.values()) == 1


@pytest.mark.parametrize(
    ("operation", "factor"),
    [("all_reduce", 1.0), ("all_gather", 0.5), ("reduce_scatter", 0.5), ("all_to_all", 0.5), ("broadcast", 1.0)],
)
def test_bus_bandwidth(operation: str, factor: float):
    own = {"collective": operation}
    (row,) = tabulate_collectives(measured(step([collective(0, 200, **own)], [collective(100, 200, **own)])))
    assert (row.algbw, row.busbw, row.time_us) == (40.0, 40.0 * factor, 0.1)


def test_unequal_parts_have_no_bus_bandwidth():
    own = {"collective": "all_to_all", "split_imbalance": 1.5}
    (row,) = tabulate_collectives(measured(step([collective(0, 200, **own)], [collective(100, 200, **own)])))
    assert (row.size, row.algbw, row.busbw, row.imbalance) == (4000, 40.0, None, 1.5)


@pytest.mark.parametrize(("hosts", "told"), [({0: "a", 1: "a"}, "one"), ({0: "a", 1: "b"}, "many"), ({0: "a"}, None)])
def test_hosts(hosts: dict[int, str | None], told: str | None):
    (row,) = tabulate_collectives(measured(step([collective(0, 9)], [collective(0, 9)]), hosts=hosts))
    assert row.hosts == told


def test_shares_of_a_step():
    # rank 0: computes 0-100, waits 80-150 (20 of it hidden), transfers 150-200 (10 of it hidden), idle until 240
    first = [compute(0, 100), collective(80, 200), compute(190, 200)]
    second = [compute(0, 150), collective(150, 200)]
    found = measured(step(first, second), step([compute(240, 250)], [compute(200, 250)]))
    own = next(one for one in found.rank_steps if (one.rank, one.key.step) == (0, 0))
    assert (own.step_ns, own.shares_ns) == (240, (80, 30, 40, 50, 0, 40))
    (row,) = tabulate_collectives(found)
    assert row.hidden_share == pytest.approx(30 / (120 + 50))
    assert row.lost_ms == pytest.approx((90 + 50) / 4 / 1e6)
    assert [one.samples for one in tabulate_steps(found)] == [2, 2]


@pytest.mark.parametrize("rows", [1, 3, 4, 7])
def test_shares_of_some_ranks_at_once_are_those_of_all(rows: int, monkeypatch: pytest.MonkeyPatch):
    first = [compute(0, 100), collective(80, 200), compute(190, 200)]
    second = [compute(10, 150), collective(150, 200), {"kind": "memory", "start_ns": 5, "end_ns": 20}]
    steps = step(first, [], second, first), step(second, first, [compute(240, 250)], [])
    whole = measured(*steps)
    monkeypatch.setattr(communication, "_ROWS_AT_ONCE", rows)
    assert measured(*steps).rank_steps == whole.rank_steps
    np.testing.assert_equal(measured(*steps).calls, whole.calls)


def test_memory_of_shares_is_that_of_some_ranks(monkeypatch: pytest.MonkeyPatch):
    rows = 2_000
    read = step(*[[compute(10 * at, 10 * at + 9) for at in range(rows)] for _ in range(32)])
    calls = match_calls(read)
    peaks = []
    for rows_at_once in (32 * rows, rows):
        monkeypatch.setattr(communication, "_ROWS_AT_ONCE", rows_at_once)
        tracemalloc.start()
        communication.measure_shares(read, calls)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] / 2


def test_copies_of_a_step():
    """Copies 20 to 60 and 90 to 150: they count where neither compute nor communication runs."""
    copies = [copy(20, 60), copy(90, 150)]
    first = [compute(0, 50), collective(100, 140), *copies]
    found = measured(step(first, [compute(0, 50), collective(100, 140)]))
    own = next(one for one in found.rank_steps if one.rank == 0)
    # compute 50, communication 40; copies alone 50-60, 90-100, 140-150; idle 60-90
    assert (own.step_ns, own.shares_ns) == (150, (50, 0, 40, 0, 30, 30))


def copy(start_ns: int, end_ns: int) -> Row:
    return {"kind": "memory", "start_ns": start_ns, "end_ns": end_ns, "size_bytes": 1, "copy_direction": None}


def test_send_and_receive_are_calls_of_their_own():
    own = {"collective": "send_recv", "group_size": None, "group_ranks": None}
    found = measured(step([collective(0, 10, **own)], [collective(0, 30, **own), collective(40, 50, **own)]))
    (row,) = tabulate_collectives(found)
    assert (row.calls, row.wait_us, row.busbw) == (3, None, None)


def transfer(start: int, end: int, source: int | None, destination: int | None) -> Row:
    peers = {"source_rank": source, "destination_rank": destination}
    return collective(start, end, collective="send_recv", group_size=4, group_ranks=[0, 1, 2, 3], **peers)


def test_a_send_meets_the_receive_of_its_stated_peer():
    found = measured(
        step([transfer(0, 10, 0, 1), transfer(20, 50, 0, 1)], [transfer(2, 10, 0, 1), transfer(45, 50, 0, 1)])
    )
    (row,) = tabulate_collectives(found)
    # sent 10 and 30 long, received 8 and 5: the later of each pair waits for none
    assert (row.calls, row.group_size, row.time_us, row.wait_us) == (2, 2, 0.0065, (2 + 25) / 2 / 1e3)
    assert not +found.reasons


def test_a_send_without_its_receive_is_a_call_of_its_own():
    found = measured(step([transfer(0, 10, 0, 3)], [transfer(0, 30, None, None)]))
    assert sum(row.calls for row in tabulate_collectives(found)) == 2
    assert all(row.wait_us is None for row in tabulate_collectives(found))


def test_a_name_that_only_one_rank_knows_divides_no_group():
    addresses = [collective(0, end, group_name=name) for end, name in ((10, "0x1f"), (30, "0x2f"))]
    (row,) = tabulate_collectives(measured(step([addresses[0]], [addresses[1]])))
    assert (row.calls, row.group_size, row.wait_us) == (1, 2, 0.02)


def test_groups_of_equal_ranks_and_other_names_are_two():
    ranks = [[collective(0, 10, group_name=name) for name in order] for order in (("a", "b"), ("b", "a"))]
    found = measured(step(*ranks))
    assert [row.calls for row in tabulate_collectives(found, by_group=True)] == [1, 1]


def test_histogram_counts_calls_and_copies():
    copy = {"kind": "memory", "start_ns": 0, "end_ns": 1, "size_bytes": 5120, "copy_direction": "host_to_device"}
    found = measured(step([copy, copy, collective(0, 10)], [collective(0, 10)]))
    assert [tuple(one) for one in tabulate_sizes(found)] == [
        ("all_reduce", 2048, 1.0, 4000.0),
        ("host_to_device", 4096, 2.0, 10240.0),
    ]


def recorded(rank: int, size: int, group: str = "0x5fcb", sequence: int | None = 7, **more: Any) -> Row:
    row = {"rank": rank, "group_name": group, "sequence": sequence, "size_bytes": size, "source": "a.log"}
    return {**row, "collective": "all_reduce", **more}


def sized(logged: list[Row], *steps: StepColumns) -> tuple[list[int | None], dict[str, int], RecordedSizes]:
    """Return the sizes of all rows after the log's were filled in, what is doubtful, and the sizes of the log."""
    keyed = [(StepKey(None, number), one) for number, one in enumerate(steps)]
    sizes, reasons = RecordedSizes(logged, lambda: keyed), Counter[str]()
    filled = [size for key, read in keyed for size in sizes.filled(key, read, reasons).table["size_bytes"].to_pylist()]
    return filled, {text: count for text, count in reasons.items() if count}, sizes


@pytest.mark.parametrize(
    ("stated", "logged", "expected", "disagreements"),
    [
        (None, [recorded(0, 64), recorded(1, 64)], [64, 64], 0),
        (None, [recorded(0, 64, group="0x0000000000005fcb"), recorded(1, 64)], [64, 64], 0),
        (None, [recorded(0, 64, sequence=8), recorded(1, 64, group="other")], [None, None], 0),
        (None, [recorded(0, 64, collective="all_gather"), recorded(1, 64)], [None, 64], 0),
        (4000, [recorded(0, 64), recorded(1, 4000)], [4000, 4000], 1),
    ],
)
def test_sizes_of_logs_fill_and_never_overwrite(
    stated: int | None, logged: list[Row], expected: list[int | None], disagreements: int
):
    own = {"size_bytes": stated, "group_name": "0x5fcb", "sequence": 7}
    found, doubts, sizes = sized(logged, step([collective(0, 9, **own)], [collective(0, 9, **own)]))
    assert (found, sum(doubts.values())) == (expected, disagreements)
    told = describe_disagreements(sizes.disagreements())
    assert [(file, rank) for file, rank, _ in told] == [("a.log", 0)] * disagreements
    if told:
        assert told[0][2] == (
            "1 collective of rank 0 has another size than in the trace, which is kept (first in step 0: 64 B, in the "
            "trace 4,000 B)"
        )


def unsized(start: int, **more: Any) -> Row:
    return collective(start, start + 9, size_bytes=None, **more)


def test_without_numbers_the_order_in_the_group_matches_sizes():
    log = [recorded(0, size, "g", None, start_ns=size) for size in (30, 20, 10)]
    others = [recorded(0, 7, "h", None, start_ns=1), recorded(0, 9, "g", None, collective="send_recv")]
    in_g, in_h = {"group_name": "g"}, {"group_name": "h"}
    steps = [step([unsized(0, **in_g), unsized(20, **in_h), unsized(40, **in_g)]), step([unsized(0, **in_g)])]
    assert sized([*log, *others], *steps)[:2] == ([10, 7, 20, 30], {})
    # a choice of steps does not change the order
    keyed = [(StepKey(None, number), one) for number, one in enumerate(steps)]
    last = RecordedSizes([*log, *others], lambda: keyed).filled(*keyed[1])
    assert last.table["size_bytes"].to_pylist() == [30]


def test_the_order_is_that_of_the_numbers_where_the_log_alone_has_them():
    log = [recorded(0, size, sequence=number) for number, size in ((9, 90), (8, 80))]
    assert sized(log, step([unsized(0), unsized(20)]))[0] == [80, 90]  # one group in the log: it needs no name


@pytest.mark.parametrize("log", [["all_reduce"], ["all_reduce", "all_gather"], ["all_reduce"] * 3])
def test_the_order_tells_nothing_if_the_log_holds_other_collectives(log: list[str]):
    logged = [recorded(0, 64, sequence=None, collective=name) for name in log]
    found, doubts, _ = sized(logged, step([unsized(0), unsized(20)]))
    assert (found, doubts) == ([None, None], {UNORDERED: 2})


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([[compute(0, 960), compute(980, 1000)]], "compute takes 98.0% of the steps, no communication seen"),
        ([[compute(0, 960), collective(980, 1000, group_size=1, group_ranks=[0])]], "without compute 2.00%"),
        ([[compute(0, 800), compute(980, 1000)]], None),
        ([[compute(0, 960)], [compute(0, 960)]], None),
    ],
    ids=["one rank", "and its collective", "which idles", "ranks that must communicate"],
)
def test_whether_computation_takes_the_time(ranks: list[list[Row]], said: str | None):
    bound = find_bound(measured(step(*ranks)), None)
    assert (bound is None) == (said is None)
    if bound is not None and said is not None:
        assert bound.kind == "compute_bound"
        assert said in bound.sentence
