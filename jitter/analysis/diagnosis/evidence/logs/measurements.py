"""What logs measured of a job without traces: bandwidths reached, tables compared, time in MPI, the last rank."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import sqrt
from pathlib import PurePath
from signal import SIGABRT, SIGINT, SIGKILL, SIGTERM
from statistics import median, median_low
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.bandwidth import bandwidth as compute_bandwidth
from jitter.core.formatting import (
    escape_control,
    format_bandwidth,
    format_bytes,
    format_count,
    format_digits,
    format_percent,
    format_ranks,
    format_some,
    format_time,
)
from jitter.core.grouping import by_key
from jitter.lake.log_records import Row, Rows
from jitter.lake.rank_places import short_host
from jitter.logs.times import in_year_of

_MOST: Final = THRESHOLDS.sentences.max_named
_LIMITS: Final = THRESHOLDS.evidence
_SINGLE: Final = _LIMITS.single_value_bytes
MAX_MEASUREMENTS: Final = _MOST
"""Sentences that a verdict begins with."""


_SPEEDS: Final = {
    "seconds": "{}",
    "samples_per_s": "{} samples/s",
    "tokens_per_s": "{} tokens/s a GPU",
    "tflops": "{} TFLOP/s a GPU",
}


_SOURCES: Final = {
    "torchrun": None,
    "program": "manner",
    "system": "process",
    "slurmctld": None,
    "sacct": "manner",
    "srun": None,
}
"""How processes end, the most telling first, each with the column whose value one sentence states for all of them."""
_ENDED_BY_OTHERS: Final = (-SIGABRT, -SIGINT, -SIGKILL, -SIGTERM)
"""Signals with which watchdogs, users, launchers and schedulers end processes that did not fail of themselves."""
_Table = tuple[str, int | None, str]
"""Operation, ranks and source."""
NO_HOSTS: Final[Mapping[str, Iterable[str]]] = MappingProxyType({})


class _Measured(NamedTuple):
    """The bus bandwidths of one operation in one table."""

    collective: str
    ranks: int | None
    source: str
    busbw: dict[int, float]
    """By size in bytes: the median of the measurements."""
    hosts: tuple[str, ...] = ()
    """On which it was measured; empty where the source does not state them."""

    @property
    def peak(self) -> tuple[float, int]:
        return max((value, size) for size, value in self.busbw.items())


MEASURED_RELATIONS: Final = (
    *("bandwidth", "benchmark_ranks", "recorded", "communicators", "mpi_ranks"),
    *("mpi_calls", "copy_sizes", "bindings", "topology", "throughput"),
)
"""The relations that measurements are read from."""


def describe_measurements(relations: Mapping[str, Rows]) -> list[str]:
    """Return what the logs measured, as sentences, the most telling first; `relations` are rows by relation."""
    rows = {name: relations.get(name, ()) for name in MEASURED_RELATIONS}
    recorded, tables = rows["recorded"], _tables(rows["bandwidth"], rows["benchmark_ranks"])
    sentences = [
        *_wrong_results(rows["bandwidth"]),
        *_without_network(rows["bandwidth"], rows["benchmark_ranks"]),
        *_slow_host(tables),
        *_compare_tables(tables),
        *_last_rank(recorded),
        *describe_proxies(recorded),
        *_training(rows["throughput"]),
        *_time_in_mpi(rows["mpi_ranks"], rows["mpi_calls"]),
        *_small_copies(rows["copy_sizes"]),
        *_bindings(rows["bindings"], rows["topology"]),
        *_peaks([*tables, *_by_size(_recorded_bandwidths(recorded, rows["communicators"]))]),
    ]
    return [escape_control(text) for text in sentences]


def _tables(rows: Rows, ranks: Rows) -> list[_Measured]:
    alone = dict(_measured_alone(ranks))
    hosts = by_key((row["source"], row["host"]) for row in ranks if row["source"] not in alone)
    return _by_size(
        (
            ((row["collective"], row["ranks"], row["source"]), row["size_bytes"], row["busbw"])
            for row in rows
            if row["collective"] and row["size_bytes"] and row["busbw"]
        ),
        hosts,
    )


def _recorded_bandwidths(recorded: Rows, communicators: Rows) -> Iterator[tuple[_Table, int, float]]:
    """Yield the bandwidths of the collectives that the Inspector or the profiler plug-in timed."""
    ranks = {row["comm"]: row["ranks"] for row in communicators if row["ranks"]}
    for row in recorded:
        size, members = row["size_bytes"], ranks.get(row["group_name"])
        if row["collective"] and size and row["duration_ns"] and members and row["timing"] != "host":
            _, bus = compute_bandwidth(row["collective"], size, row["duration_ns"], members)
            if bus:
                yield (row["collective"], members, row["source"]), size, bus


def _by_size(
    measured: Iterable[tuple[_Table, int, float]], hosts: Mapping[str, Iterable[str]] = NO_HOSTS
) -> list[_Measured]:
    """Return tables of bandwidths from single ones: table, size, GB/s; `hosts` are those of each source."""
    bandwidths = by_key((table, (size, busbw)) for table, size, busbw in measured)
    return [
        _Measured(
            *table,
            {size: median(values) for size, values in by_key(of_table).items()},
            tuple(dict.fromkeys(hosts.get(table[2], ()))),
        )
        for table, of_table in bandwidths.items()
    ]


def _alike(tables: Iterable[_Measured]) -> list[tuple[str, list[_Measured]]]:
    """Return the tables of each operation and number of ranks."""
    alike = by_key(((table.collective, table.ranks), table) for table in tables)
    return [(collective, rows) for (collective, _), rows in alike.items()]


def _wrong_results(rows: Rows) -> Iterator[str]:
    wrong: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if row["wrong"]:
            wrong[row["collective"] or "a collective", row["source"]] += row["wrong"]
    for (collective, source), number in wrong.most_common(_MOST):
        yield f"{format_count(number, 'element')} of {collective} had a wrong result ({_file(source)})"


def _measured_alone(ranks: Rows) -> Iterator[tuple[str, list[str]]]:
    """Return the logs of several hosts in which each host has all ranks, with the hosts: each ran the whole test."""
    places = by_key((row["source"], (row["host"], (row["rank"], row["device"]))) for row in ranks)
    for source, of_source in places.items():
        of_hosts = {host: set(on_host) for host, on_host in by_key(of_source).items()}
        numbers = {tuple(sorted(rank for rank, _ in on_host)) for on_host in of_hosts.values()}
        # ranks that share a GPU are of several tests
        are_whole = all(len({device for _, device in on_host}) == len(on_host) for on_host in of_hosts.values())
        if len(of_hosts) > 1 and are_whole and numbers == {tuple(range(max(map(len, numbers))))}:
            yield source, sorted(of_hosts)


def _without_network(rows: Rows, ranks: Rows) -> Iterator[str]:
    """Tell of benchmarks that are asked for the network between hosts, or between GPUs, and do not use it."""
    alone = dict(_measured_alone(ranks))
    for source, hosts in alone.items():
        named = ", ".join(hosts[:_MOST]) + (", …" if len(hosts) > _MOST else "")
        yield (
            f"each of {len(hosts)} hosts ({named}) was measured alone, as by nccl-tests built without MPI: the network "
            f"between them was not ({_file(source)})"
        )
    # with an algorithm bandwidth of which no bus bandwidth of several ranks rounds to 0
    busbw = by_key((row["source"], row["busbw"]) for row in rows if row["algbw"] and row["algbw"] >= 1)
    for source, values in busbw.items():
        if not any(values) and source not in alone:
            yield f"each test was of one rank, which communicates with no other: bus bandwidth 0 ({_file(source)})"


def _slow_host(tables: Sequence[_Measured]) -> Iterator[str]:
    """Name the host that is slow with every partner, where one operation was measured on several sets of hosts."""
    for collective, rows in _alike(table for table in tables if len(table.hosts) > 1):
        peaks = by_key((host, table.peak[0]) for table in rows for host in table.hosts)
        best = {host: max(reached) for host, reached in peaks.items()}
        slowest = min(best, key=lambda host: (best[host], host))
        without = [table.peak[0] for table in rows if slowest not in table.hosts]
        with_it = [table for table in rows if slowest in table.hosts]
        if len(with_it) > 1 and without and best[slowest] < THRESHOLDS.efficiency.below_baseline * min(without):
            most, least = format_bandwidth(best[slowest]), format_bandwidth(min(without))
            yield (
                f"{slowest} is slow with every partner: {collective} reaches at most {most} in the {len(with_it)} "
                f"tables with it, at least {least} in the {len(without)} without it"
            )


def _compare_tables(tables: Sequence[_Measured]) -> Iterator[str]:
    """Compare tables of one operation and number of ranks: the slowest with the fastest, at the sizes of both."""
    for collective, rows in _alike(tables):
        ordered = sorted(rows, key=lambda table: table.peak)
        slow, fast = ordered[0], ordered[-1]
        common = sorted(set(slow.busbw) & set(fast.busbw))
        if slow is fast or not common:
            continue
        at = common[-1]
        ratio = median(slow.busbw[size] / fast.busbw[size] for size in common)
        against = f"{format_bandwidth(slow.busbw[at])} against {format_bandwidth(fast.busbw[at])}"
        yield (
            f"the slowest table of {collective}, {_file(slow.source)}, reaches "
            f"{format_percent(slow.busbw[at] / fast.busbw[at])} of the bus bandwidth of {_file(fast.source)} at "
            f"{format_bytes(at)} ({against}; median over "
            f"{format_count(len(common), 'size')} {format_percent(ratio)})"
        )


def _peaks(tables: Sequence[_Measured]) -> Iterator[str]:
    ordered = sorted(tables, key=lambda table: table.peak, reverse=True)
    for table in ordered[:_MOST]:
        busbw, size = table.peak
        ranks = "" if table.ranks is None else f" of {format_count(table.ranks, 'rank')}"
        reached = f"{format_bandwidth(busbw)} at {format_bytes(size)}"
        yield f"the largest bus bandwidth of {table.collective}{ranks} is {reached} ({_file(table.source)})"
    if len(ordered) > _MOST:
        yield f"{format_count(len(ordered) - _MOST, 'more table')} of bandwidths (jitter query: relation bandwidth)"


def _last_rank(recorded: Rows) -> Iterator[str]:
    """Name the rank that enters most collectives last: its kernel waits for no other rank, and is the shortest."""
    calls = by_key(
        ((row["group_name"], row["sequence"]), (row["rank"], row["duration_ns"]))
        for row in recorded
        if None not in (row["group_name"], row["sequence"], row["rank"], row["duration_ns"])
        and row["timing"] in ("kernel_gpu", "cuda_event")
    )
    counted = [durations for call in calls.values() if len(durations := dict(call)) > 1]
    if not counted:
        return
    last = [min(durations, key=durations.__getitem__) for durations in counted]
    waits = by_key(
        (rank, median_low(durations.values()) - durations[rank]) for rank, durations in zip(last, counted, strict=True)
    )
    rank, lags = max(waits.items(), key=lambda pair: len(pair[1]))
    # of two ranks alike, each is last in half of the calls, with a standard deviation of √calls / 2
    if len(lags) - len(counted) / 2 > THRESHOLDS.outlier_sigmas * sqrt(len(counted)) / 2:
        yield (
            f"rank {rank} enters {len(lags)} of {format_count(len(counted), 'collective')} last: its kernel is shorter "
            f"than the median rank's by {format_time(median(lags))}, which the other ranks wait"
        )


def describe_exits(rows: Rows) -> Iterator[str]:
    """Tell which process failed first, by its launcher, and which failed for what, by the system or the program."""
    stated = [(row["stated_by"] or "torchrun", row) for row in rows]  # as older versions read it
    alike = by_key(
        ((source, (column := _SOURCES[source]) and row[column]), row) for source, row in stated if source in _SOURCES
    )
    sentences = []
    if (first := _first_exit(alike.get(("torchrun", None), ()))) is not None:
        killed = ", as the system does that is out of memory, and the scheduler"
        sentences.append(
            f"the first process that torchrun saw fail is rank {first['rank']}{_on([first])}, with "
            f"{_how(first['exit_code'])}{killed if first['exit_code'] == -SIGKILL else ''}"
        )
    for (source, what), ended in sorted(alike.items(), key=lambda item: [*_SOURCES].index(item[0][0])):
        ranks = sorted({row["rank"] for row in ended if row["rank"] is not None})
        if source == "program":
            sentences.append(f"{format_ranks(ranks) if ranks else f'a process{_on(ended)}'} failed: {what}")
        elif source == "system":
            sentences.append(f"the system killed {what or 'a process'}{_on(ended)} for lack of memory")
        elif source == "slurmctld":
            sentences.append(f"Slurm lost nodes:{_on(ended).removeprefix(' on')}")
        elif source == "sacct":
            jobs = format_some(sorted({row["process"] or "a job" for row in ended}), _MOST)
            sentences.append(f"Slurm ended {jobs}{_on(ended)}: {what}")
        elif source == "srun":
            end = ended[0]
            sentences.append(f"the first that srun saw end: task {end['tasks']}{_on([end])}, {end['manner']}")
    yield from map(escape_control, dict.fromkeys(sentences))


def failures(rows: Rows) -> dict[int, str]:
    """Return the ranks that failed of themselves, and how: by their program, or as the first that torchrun saw fail."""
    ended = {}
    first = _first_exit([row for row in rows if row["stated_by"] in ("torchrun", None)])
    if first is not None and first["exit_code"] not in _ENDED_BY_OTHERS:
        ended[first["rank"]] = _how(first["exit_code"])
    elif first is not None and first["exit_code"] == -SIGKILL and first["host"] is not None:
        hosts = {
            short_host(row["host"])
            for row in rows
            if row["stated_by"] == "system" and _may_be_of_one_day(row.get("time_ns"), first.get("time_ns"))
        }
        if short_host(first["host"]) in hosts:
            ended[first["rank"]] = "killed for lack of memory"
    of_program = (row for row in rows if row["stated_by"] == "program" and row["rank"] is not None and row["manner"])
    return ended | {row["rank"]: row["manner"] for row in of_program}


def _may_be_of_one_day(one_ns: int | None, other_ns: int | None) -> bool:
    """Return whether two events may belong together, whose times are unknown, or of unknown zones."""
    if one_ns is None or other_ns is None:
        return True
    near_ns = int(in_year_of(np.array([one_ns]), other_ns)[0])
    return abs(near_ns - other_ns) <= THRESHOLDS.evidence.time_zones_ns


def _first_exit(rows: Rows) -> Row | None:
    """Return the process that torchrun saw fail first, on the node whose launcher saw it first."""
    first = [row for row in rows if row["is_first"] and row["rank"] is not None and row["exit_code"] is not None]
    return min(first, key=lambda row: (row["time_ns"] is None, row["time_ns"] or 0, row["rank"]), default=None)


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _on(rows: Rows) -> str:
    hosts = sorted({row["host"] for row in rows if row["host"] is not None})
    return f" on {format_some(hosts, _MOST)}" if hosts else ""


def describe_proxies(recorded: Rows) -> Iterator[str]:
    """Return what part of the collectives' time network proxies and kernels work, by the profiler plug-in."""
    timed = [row for row in recorded if row.get("proxy_ns") is not None and row["duration_ns"]]
    if timed:
        proxy = median(row["proxy_ns"] / row["duration_ns"] for row in timed)
        kernels = [row["kernel_ns"] / row["duration_ns"] for row in timed if row.get("kernel_ns") is not None]
        beside = f", kernels for {format_percent(median(kernels))}" if kernels else ""
        yield (
            f"network proxies work for {format_percent(proxy)} of the time of {format_count(len(timed), 'collective')} "
            f"(median){beside}"
        )


def _training(rows: Rows) -> Iterator[str]:
    """Say what training logs time: the median of their steps, or the whole run."""
    by_log = by_key(((row["source"], row["step"] is not None), row) for row in rows)
    for (source, has_steps), of_log in by_log.items():
        medians = {}
        for column, words in _SPEEDS.items():
            values = [row[column] for row in of_log if row[column] is not None]
            if values and column == "seconds":
                medians[column] = words.format(format_time(median(values) * 1e9))
            elif values:
                medians[column] = words.format(format_digits(median(values), 4))
        if medians:
            what = f"a step (median of {len(of_log)})" if has_steps else "the training"
            yield f"{what}: {', '.join(medians.values())} ({_file(source)})"


def _time_in_mpi(ranks: Rows, calls: Rows) -> Iterator[str]:
    """Tell each run's time in MPI, the one with the largest share first; then which calls and ranks have it."""
    timed = by_key(
        (row["run"], row)
        for row in ranks
        if row["communication_s"] is not None and row["elapsed_s"] and row["rank"] is not None
    )
    details: list[str] = []
    profiled = {(total["run"], total["rank"]) for total in calls if total["average_bytes"] is None and total["seconds"]}
    typical = {}
    for run, rows in timed.items():
        by_share = sorted(rows, key=_share_in_mpi)
        detailed = [row for row in by_share if (run, row["rank"]) in profiled] or by_share
        typical[run] = detailed[(len(detailed) - 1) // 2]
    for run, row in sorted(typical.items(), key=lambda item: -_share_in_mpi(item[1])):
        of_run = [call for call in calls if call["run"] == run]
        totals = [call for call in of_run if call["average_bytes"] is None and call["rank"] == row["rank"]]
        most = max(totals, key=lambda total: total["seconds"], default=None)
        call = f", {most['seconds']:,.0f} s of it in {most['call']}" if most is not None and most["seconds"] else ""
        of_all = f" of {row['world_size']}" if len(typical) > 1 and row["world_size"] else ""
        yield (
            f"MPI takes {row['communication_s']:,.0f} of {row['elapsed_s']:,.0f} s "
            f"({format_percent(_share_in_mpi(row))}) on rank {row['rank']}{of_all}{call}"
        )
        if most is not None:
            details += _small_messages(of_run, most)
        details += _compare_ranks([row for row in ranks if row["run"] == run])
        details += _processors(timed[run])
    yield from details


def _share_in_mpi(row: Row) -> float:
    return float(row["communication_s"] / row["elapsed_s"])


def _compare_ranks(ranks: Rows) -> Iterator[str]:
    """Tell the least, the median and the most time of a run's ranks in MPI."""
    row_of_rank = {row["rank"]: row for row in ranks if row["communication_s"] is not None}
    if len(row_of_rank) > 1:
        ordered = sorted(row_of_rank.values(), key=lambda row: float(row["communication_s"]))
        # not all ranks have a row: mpitrace's own median is that of all
        of_all = (row for row in ordered if row.get("communication_order") == "median")
        middle = next(of_all, ordered[(len(ordered) - 1) // 2])
        named = zip(("least", "median", "most"), (ordered[0], middle, ordered[-1]), strict=True)
        times = ", ".join(f"{row['communication_s']:,.0f} s on rank {row['rank']} ({what})" for what, row in named)
        yield f"MPI takes {times}: the other ranks wait for the rank with the least"


def _small_messages(calls: Rows, most: Mapping[str, Any]) -> Iterator[str]:
    """Name the size of messages that takes most of a call's time, where that is a small one."""
    sizes = [
        row for row in calls if row["rank"] == most["rank"] and row["call"] == most["call"] and row["average_bytes"]
    ]
    top = max(sizes, key=lambda row: float(row["seconds"]), default=None)
    if (
        top is not None
        and top["average_bytes"] <= THRESHOLDS.evidence.small_message_bytes
        and 2 * top["seconds"] > most["seconds"]
    ):
        yield (
            f"{top['calls']:,} of {most['calls']:,} calls of {most['call']} on rank {most['rank']} have "
            f"{top['average_bytes']:,.0f} B and take {top['seconds']:,.0f} s: ranks wait for each other there, the "
            "network carries little"
        )


def _processors(ranks: Rows) -> Iterator[str]:
    """Name what a rank uses of CPUs, and the rank that is switched between most often."""
    used = [row for row in ranks if row.get("user_s") is not None and row.get("system_s") is not None]
    if used:
        row = max(used, key=lambda row: float(row["user_s"] + row["system_s"]))
        memory = f", memory {row['memory_bytes'] / 1e9:,.2f} GB" if row["memory_bytes"] else ""
        yield (
            f"rank {row['rank']} uses {(row['user_s'] + row['system_s']) / row['elapsed_s']:.1f} CPUs, "
            f"{format_percent(row['system_s'] / (row['user_s'] + row['system_s']))} of it in the system{memory}"
        )
    switched = {row["rank"]: row["switches"] for row in ranks if row.get("switches") is not None}
    if len(switched) > 2:
        rank = max(switched, key=lambda rank: (switched[rank], -rank))
        usual = median(count for other_rank, count in switched.items() if other_rank != rank)
        if switched[rank] > THRESHOLDS.much_more * usual:
            yield f"rank {rank} has {switched[rank]:,} context switches, the other ranks {usual:,.0f} (median)"


def _small_copies(rows: Rows) -> Iterator[str]:
    """Name the region with the most copies of single values from the GPU."""
    small = [row for row in rows if row["direction"] == "AtoH" and row["below_bytes"] and row["below_bytes"] <= _SINGLE]
    total = next((row["copies"] for row in small if row["depth"] == 0), None)
    inner = [row for row in small if row["depth"] > 0]
    if total is not None and total >= _LIMITS.min_small_copies:
        most = max(inner, key=lambda row: (row["copies"], row["depth"]), default=None)
        where = "" if most is None else f", {most['copies']:,.0f} of them in {most['region']}"
        yield (
            f"{total:,.0f} copies from the GPU have less than {_SINGLE} B{where}: reading a value waits for the GPU "
            "each time"
        )


_OPEN: Final = "each rank sees several GPUs (a program that chooses none of them computes on the first)"
_FAR: Final = "ranks run on hardware threads far from their GPUs"
_NEAR: Final = "all ranks run on hardware threads near their GPUs"


def _bindings(rows: Rows, topology: Rows) -> Iterator[str]:
    """Say in how many listings of bindings, one a run of the program, ranks choose among GPUs or are near theirs."""
    listings: list[dict[int, Mapping[str, Any]]] = []
    source = None
    for row in rows:
        if row["rank"] is not None and row["cpus"]:
            if row["source"] != source or row["rank"] in listings[-1]:
                listings.append({})
            source = row["source"]
            listings[-1][row["rank"]] = row
    near = {row["gpu"]: set(row["near_cpus"]) for row in topology if row["near_cpus"]}
    kinds: Counter[str] = Counter()
    for listing in listings:
        gpus: list[Sequence[int]] = [row["gpus"] or () for row in listing.values()]
        if all(len(of_rank) > 1 for of_rank in gpus):
            kinds[_OPEN] += 1
        elif all(len(of_rank) == 1 and of_rank[0] in near for of_rank in gpus):
            is_near = all(near[row["gpus"][0]].intersection(row["cpus"]) for row in listing.values())
            kinds[_NEAR if is_near else _FAR] += 1
    if texts := [f"in {kinds[kind]} {kind}" for kind in (_OPEN, _FAR, _NEAR) if kinds[kind]]:
        yield f"{format_count(len(listings), 'listing')} of bindings: {', '.join(texts)}"


def _file(source: str) -> str:
    return "/".join(PurePath(source).parts[-2:])
