"""What logs measured of a job without traces: bandwidths reached, tables compared, time in MPI, the last rank."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from pathlib import PurePath
from statistics import median, median_low
from typing import Any, Final, NamedTuple

from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.bandwidth import bandwidth as compute_bandwidth
from jitter.core.formatting import escape_control, format_count, format_percent, format_time

Rows = Sequence[Mapping[str, Any]]
_MOST: Final = THRESHOLDS.sentences.max_named
MAX_MEASUREMENTS: Final = _MOST
"""Sentences that a verdict begins with."""


class _Measured(NamedTuple):
    """The bus bandwidths of one operation in one table."""

    collective: str
    ranks: int | None
    source: str
    busbw: dict[int, float]
    """By size in bytes: the median of the measurements."""

    @property
    def peak(self) -> tuple[float, int]:
        return max((value, size) for size, value in self.busbw.items())


def describe_measurements(
    bandwidth: Rows, recorded: Rows, communicators: Rows, mpi_ranks: Rows, mpi_calls: Rows
) -> list[str]:
    """Return what the logs measured, as sentences, the most telling first. Arguments are rows of these relations."""
    tables = _tables(bandwidth)
    sentences = [
        *_wrong_results(bandwidth),
        *_compare_tables(tables),
        *_last_rank(recorded),
        *_time_in_mpi(mpi_ranks, mpi_calls),
        *_peaks([*tables, *_recorded_bandwidths(recorded, communicators)]),
    ]
    return [escape_control(text) for text in sentences]


def _tables(rows: Rows) -> list[_Measured]:
    found: dict[tuple[str, int | None, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["collective"] and row["size_bytes"] and row["busbw"]:
            found[row["collective"], row["ranks"], row["source"]][row["size_bytes"]].append(row["busbw"])
    return [_Measured(*key, {size: median(values) for size, values in sizes.items()}) for key, sizes in found.items()]


def _recorded_bandwidths(recorded: Rows, communicators: Rows) -> list[_Measured]:
    """Return the bandwidths of the collectives that the Inspector or the profiler plug-in timed."""
    ranks = {row["comm"]: row["ranks"] for row in communicators if row["ranks"]}
    found: dict[tuple[str, int | None, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in recorded:
        size, members = row["size_bytes"], ranks.get(row["group_name"])
        if row["collective"] and size and row["duration_ns"] and members and row["timing"] != "host":
            _, bus = compute_bandwidth(row["collective"], size, row["duration_ns"], members)
            if bus:
                found[row["collective"], members, row["source"]][size].append(bus)
    return [_Measured(*key, {size: median(values) for size, values in sizes.items()}) for key, sizes in found.items()]


def _wrong_results(rows: Rows) -> Iterator[str]:
    wrong: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if row["wrong"]:
            wrong[row["collective"] or "a collective", row["source"]] += row["wrong"]
    for (collective, source), number in wrong.most_common(_MOST):
        yield f"{format_count(number, 'element')} of {collective} had a wrong result ({_file(source)})"


def _compare_tables(tables: Sequence[_Measured]) -> Iterator[str]:
    """Compare tables of one operation and number of ranks: the slowest with the fastest, at the sizes of both."""
    alike: dict[tuple[str, int | None], list[_Measured]] = defaultdict(list)
    for table in tables:
        alike[table.collective, table.ranks].append(table)
    for (collective, _), own in alike.items():
        ordered = sorted(own, key=lambda table: table.peak)
        slow, fast = ordered[0], ordered[-1]
        common = sorted(set(slow.busbw) & set(fast.busbw))
        if slow is fast or not common:
            continue
        ratio = median(slow.busbw[size] / fast.busbw[size] for size in common)
        at = common[-1]
        yield (
            f"the slowest table of {collective}, {_file(slow.source)}, reaches {format_percent(ratio)} of the bus "
            f"bandwidth of {_file(fast.source)} (median over {format_count(len(common), 'size')}; at {_size(at)} "
            f"{slow.busbw[at]:.3g} against {fast.busbw[at]:.3g} GB/s)"
        )


def _peaks(tables: Sequence[_Measured]) -> Iterator[str]:
    ordered = sorted(tables, key=lambda table: table.peak, reverse=True)
    for table in ordered[:_MOST]:
        busbw, size = table.peak
        ranks = "" if table.ranks is None else f" of {format_count(table.ranks, 'rank')}"
        reached = f"{busbw:.3g} GB/s at {_size(size)}"
        yield f"the largest bus bandwidth of {table.collective}{ranks} is {reached} ({_file(table.source)})"
    if len(ordered) > _MOST:
        yield f"{format_count(len(ordered) - _MOST, 'more table')} of bandwidths (jitter query: relation bandwidth)"


def _last_rank(recorded: Rows) -> Iterator[str]:
    """Name the rank that enters most collectives last: its kernel waits for no other rank, and is the shortest."""
    calls: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for row in recorded:
        known = (row["group_name"], row["sequence"], row["rank"], row["duration_ns"])
        if None not in known and row["timing"] in ("kernel_gpu", "cuda_event"):
            calls[known[0], known[1]][row["rank"]] = row["duration_ns"]
    waits: dict[int, list[int]] = defaultdict(list)
    counted = [durations for durations in calls.values() if len(durations) > 1]
    for durations in counted:
        last = min(durations, key=lambda rank: durations[rank])
        waits[last].append(median_low(durations.values()) - durations[last])
    if not counted:
        return
    rank, own = max(waits.items(), key=lambda one: len(one[1]))
    # of two ranks alike, each is last in half of the calls, with a standard deviation of √calls / 2
    if len(own) - len(counted) / 2 > THRESHOLDS.run_sigmas * sqrt(len(counted)) / 2:
        yield (
            f"rank {rank} enters {len(own)} of {format_count(len(counted), 'collective')} last: its kernel is shorter "
            f"than the median rank's by {format_time(median(own))}, which the other ranks wait"
        )


def _time_in_mpi(ranks: Rows, calls: Rows) -> Iterator[str]:
    timed = [
        row for row in ranks if row["communication_s"] is not None and row["elapsed_s"] and row["rank"] is not None
    ]
    if not timed:
        return
    totals = [one for one in calls if one["average_bytes"] is None and one["seconds"]]
    profiled = {one["rank"] for one in totals}
    by_share = sorted(timed, key=lambda row: row["communication_s"] / row["elapsed_s"])
    detailed = [row for row in by_share if row["rank"] in profiled] or by_share
    row = detailed[(len(detailed) - 1) // 2]
    share = row["communication_s"] / row["elapsed_s"]
    own = [one for one in totals if one["rank"] == row["rank"]]
    most = max(own, key=lambda one: one["seconds"], default=None)
    call = "" if most is None else f", {most['seconds']:,.0f} s of it in {most['call']}"
    yield (
        f"MPI takes {row['communication_s']:,.0f} of {row['elapsed_s']:,.0f} s ({format_percent(share)}) on "
        f"rank {row['rank']}{call}"
    )
    known = {one["rank"]: one["communication_s"] for one in ranks if one["communication_s"] is not None}
    if len(known) > 1:
        least, longest = min(known, key=lambda rank: known[rank]), max(known, key=lambda rank: known[rank])
        yield (
            f"rank {least} has the shortest time in MPI ({known[least]:,.0f} s), rank {longest} the longest "
            f"({known[longest]:,.0f} s): the rank with the shortest time is the one that others wait for"
        )


def _file(source: str) -> str:
    return "/".join(PurePath(source).parts[-2:])


def _size(size: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size} B"
