"""What is unusual in a job's logs: rules over their relations, each with its words, its certainty and its advice."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from statistics import median
from typing import Any, Final, NamedTuple, get_args

import numpy as np

from jitter.analysis.diagnosis.evidence.logs.job_logs import JobLogs, Rows
from jitter.analysis.diagnosis.evidence.logs.measurements import describe_exits, describe_proxies
from jitter.analysis.diagnosis.model import Cause, CauseCertainty, Fact, FactKind
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import (
    escape_control,
    format_count,
    format_numbers,
    format_percent,
    format_ranks,
    format_time,
)
from jitter.lake.rank_places import short_host

_LIMITS: Final = THRESHOLDS.evidence
_MOST: Final = THRESHOLDS.sentences.max_named
_FABRIC: Final = ("hsn", "ib", "mlx", "rdma", "efa", "cxi", "opa")
"""Beginnings of names of a fabric's interfaces."""
_SLOWDOWNS: Final = {
    "sw_power_cap": "its power cap",
    "hw_power_brake_slowdown": "a power brake",
    "hw_slowdown": "a hardware slowdown",
    "sw_thermal_slowdown": "heat",
    "hw_thermal_slowdown": "heat",
    "throttled": "its firmware",
}
_EXPECTED: Final = frozenset(("its power cap",))
"""What limits healthy GPUs, too."""
_GPU_CAUSES: Final[tuple[Cause, ...]] = ("gpu_compute", "gpu_time")
_HOST_CAUSES: Final[tuple[Cause, ...]] = ("cpu_launch", "late_start", "cpu_after", "launch_bound")
_NETWORK: Final[tuple[Cause, ...]] = ("communication", "slow_network", "exposed_communication")
_OF_PCIE: Final[tuple[Cause, ...]] = (*_NETWORK, "slow_copies", "blocking_copies", "serial_copies")
_LANES: Final = "PCIe lanes"
_LINK_ERRORS: Final = frozenset((74, 137))
"""Xid numbers of NVLink."""
_OF_PROGRAM: Final = frozenset((13, 31, 43, 45))
"""Xid numbers of a program's own faults, and of its end: 13 and 31 wrong accesses, 43 and 45 work that is stopped."""


class Match(NamedTuple):
    """What a rule is true of."""

    values: Mapping[str, Any]
    """What its words name."""
    ranks: tuple[int, ...] = ()
    host: str | None = None
    device: int | None = None
    certainty: CauseCertainty | None = None
    """In place of the rule's."""
    causes: tuple[Cause, ...] | None = None
    is_item: bool | None = None


class Rule(NamedTuple):
    """What is unusual, over the relations of logs."""

    kind: FactKind
    causes: tuple[Cause, ...]
    certainty: CauseCertainty
    find: Callable[[JobLogs], Iterable[Match]]
    words: str
    advice: str = ""
    reason: str = ""
    """In a few words."""
    is_item: bool = True


def find_facts(logs: JobLogs, kinds: Collection[FactKind] = get_args(FactKind)) -> tuple[Fact, ...]:
    """Return what the logs state that is unusual, of these kinds, in the order of `RULES`."""
    return tuple(
        Fact(
            rule.kind,
            escape_control(rule.words.format(**match.values)),
            rule.causes if match.causes is None else match.causes,
            match.certainty or rule.certainty,
            match.ranks,
            match.host,
            match.device,
            rule.advice,
            escape_control(rule.reason.format(**match.values)),
            rule.is_item if match.is_item is None else match.is_item,
        )
        for rule in RULES
        if rule.kind in kinds
        for match in rule.find(logs)
    )


def far_gpu(binding: Mapping[str, Any], device: int | None, near: Mapping[int, set[int]]) -> int | None:
    """Return the GPU that none of a binding's hardware threads is near; None if some are, or if it is unknown.

    `device` is the rank's GPU; a binding that names one GPU states it where the trace does not. `near` are the
    hardware threads near each GPU.
    """
    gpus: Sequence[int] = binding["gpus"] or ()
    gpu = device if device is not None else next(iter(gpus)) if len(gpus) == 1 else None
    if gpu is None or gpu not in near or near[gpu] & set(binding["cpus"]):
        return None
    return gpu


# ---- network


def _unlike_others(logs: JobLogs, column: str) -> Iterator[tuple[Any, tuple[int, ...], Any]]:
    """Return each value of a column that fewer ranks have than the commonest one, its ranks, and the commonest."""
    ranks: dict[Any, set[int]] = defaultdict(set)
    for members, row in logs.members:
        if row[column] is not None:
            ranks[row[column]].update(members)
    usual = max(ranks, key=lambda value: (len(ranks[value]), str(value)), default=None)
    for value, ranks_of_value in sorted(ranks.items(), key=lambda item: str(item[0])):
        if ranks_of_value and len(ranks_of_value) < len(ranks[usual]):
            yield value, tuple(sorted(ranks_of_value)), usual


def _odd_tcp(logs: JobLogs) -> tuple[int, ...]:
    """Return the ranks that communicate by TCP while most of the job's ranks use a fabric."""
    return next((ranks for network, ranks, _ in _unlike_others(logs, "network") if network == "Socket"), ())


def _over_tcp(logs: JobLogs) -> Iterator[Match]:
    for network, ranks, usual in _unlike_others(logs, "network"):
        if network == "Socket":
            rows = [row for members, row in logs.members if set(members) & set(ranks)]
            yield Match(
                {
                    "ranks": format_ranks(ranks),
                    "communicate": "communicates" if len(ranks) == 1 else "communicate",
                    "over": _over(rows),
                    "usual": usual,
                    "why": _why(rows),
                },
                ranks,
            )


def _odd(column: str, but: str | None = None) -> Callable[[JobLogs], Iterator[Match]]:
    """Return a rule that finds ranks with another value of a column than most ranks, except the value `but`."""

    def find(logs: JobLogs) -> Iterator[Match]:
        for value, ranks, usual in _unlike_others(logs, column):
            if value != but:
                yield Match({"ranks": format_ranks(ranks), column: value, "usual": usual}, ranks)

    return find


def _all_over_tcp(logs: JobLogs) -> Iterator[Match]:
    """Find TCP where a fabric is present; else, worth a word only where communication is slow, TCP between hosts."""
    rows = [row for row in logs.communicators if row["network"] == "Socket"]
    if not rows or _odd_tcp(logs):
        return
    others = {row["network"] for row in logs.communicators} - {"Socket", None}
    fabric = sorted(others) or sorted({nic for row in logs.topology for nic in row["near_nics"] or ()})
    interfaces = {name for row in rows for name in row["interfaces"] or ()}
    why = _why(rows)
    has_fabric = fabric or why or any(name.startswith(_FABRIC) for name in interfaces)
    if has_fabric or len({row["host"] for row in logs.communicators}) > 1:
        present = f", although {_listed(fabric)} is present" if fabric else ""
        certainty: CauseCertainty = "certain" if has_fabric else "likely"
        values = {"over": _over(rows), "present": present, "why": why}
        yield Match(values, certainty=certainty, is_item=bool(has_fabric))


def _over(rows: Rows) -> str:
    interfaces = sorted({name for row in rows for name in row["interfaces"] or ()})
    return f" over {_listed(interfaces)}" if interfaces else ""


def _why(rows: Rows) -> str:
    """Return what keeps these processes from a fabric, by the log."""
    failed = sorted({str(row["host"]) for row in rows if row["plugin"] == "failed"})
    if failed:
        return f": the network plug-in could not be loaded on {_listed(failed)}"
    return ": no InfiniBand device was found" if any(row.get("lacks_ib") for row in rows) else ""


def _failed_plugins(logs: JobLogs) -> Iterator[Match]:
    """Find plug-ins that failed on hosts which use a fabric all the same, or whose network is not stated."""
    failed = sorted(
        {str(row["host"]) for row in logs.communicators if row["plugin"] == "failed" and row["network"] != "Socket"}
    )
    if failed:
        yield Match({"hosts": _listed(failed)})


def _other_interfaces(logs: JobLogs) -> Iterator[Match]:
    odd = set(_odd_tcp(logs))
    rows = [row for ranks, row in logs.members if not odd.intersection(ranks)]
    used = sorted({name for row in rows for name in row["interfaces"] or ()})
    fabric = [name for name in used if _is_of_fabric(name)]
    wrong = [name for name in used if not _is_of_fabric(name)]
    if fabric and wrong:
        are = "is" if len(wrong) == 1 else "are"
        yield Match({"wrong": _listed(wrong), "are": are, "fabric": _listed(fabric)})


def _is_of_fabric(name: str) -> bool:
    """Return whether an interface is of a fabric: NCCL states the protocol of adapters (`irdma0:1/RoCE`)."""
    return name.startswith(_FABRIC) or name.endswith(("/IB", "/RoCE"))


def _mixed_fabric(logs: JobLogs) -> Iterator[Match]:
    """Find ranks whose adapters speak another protocol (`mlx5_0:1/RoCE`, `mlx5_0:1/IB`) than most ranks' do."""
    by_protocol: dict[str, set[int]] = defaultdict(set)
    for ranks, row in logs.members:
        protocols = {name.rpartition("/")[2] for name in row["interfaces"] or () if "/" in name}
        if len(protocols) == 1:
            by_protocol[protocols.pop()].update(ranks)
    usual = max(by_protocol, key=lambda protocol: (len(by_protocol[protocol]), protocol), default="")
    for protocol, of_protocol in sorted(by_protocol.items()):
        if protocol != usual and of_protocol:
            values = {"ranks": format_ranks(sorted(of_protocol)), "protocol": protocol, "usual": usual}
            yield Match(values, tuple(sorted(of_protocol)))


def _odd_adapters(logs: JobLogs) -> Iterator[Match]:
    """Find ranks with other adapters than most ranks; where each GPU has its own, than most GPUs of its number."""
    adapters = {
        ranks[0]: tuple(sorted(name.partition(":")[0] for name in row["interfaces"] or ()))
        for ranks, row in logs.members
        if len(ranks) == 1 and row["network"] not in (None, "Socket")
    }
    known = {rank: names for rank, names in adapters.items() if names}
    everywhere = Counter(known.values())
    is_shared = bool(known) and 2 * max(everywhere.values()) > len(known)
    by_place: dict[int | None, dict[tuple[str, ...], list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, names in sorted(known.items()):
        device = None if is_shared or rank not in logs.places else logs.places[rank].device
        if is_shared or device is not None:
            by_place[device][names].append(rank)
    ranks_of_node: dict[object, list[int]] = defaultdict(list)
    for rank in known:
        ranks_of_node[logs.nodes.get(rank)].append(rank)
    users = Counter((logs.nodes.get(rank), names) for rank, names in known.items())
    for device, ranks_of in by_place.items():
        # of two hosts whose ranks differ, the odd one shares the adapter with another rank of its host
        weight = {
            names: (len(ranks), all(users[logs.nodes.get(rank), names] == 1 for rank in ranks))
            for names, ranks in ranks_of.items()
        }
        usual = max(ranks_of, key=lambda names: (weight[names], names))
        for names, ranks in ranks_of.items():
            # hosts name their adapters in the order in which they find them
            is_host = ranks == ranks_of_node[logs.nodes.get(ranks[0])]
            if weight[names] < weight[usual] and not is_host:
                others = "the other ranks" if device is None else f"ranks of GPU {device} elsewhere"
                yield Match({"ranks": format_ranks(ranks), "names": _listed(names), "others": others,
                             "usual": _listed(usual)}, tuple(ranks))  # fmt: skip


def _explained(logs: JobLogs) -> Callable[[Mapping[str, Any]], bool]:
    """Return whether an edge is one of ranks that communicate by TCP, which another rule tells."""
    odd = set(_odd_tcp(logs))
    is_all = any(True for _ in _all_over_tcp(logs))
    return lambda row: is_all or row["from_rank"] in odd or row["to_rank"] in odd


def _unequal_transports(logs: JobLogs) -> Iterator[Match]:
    is_explained = _explained(logs)
    edges = [row for row in logs.edges if str(row["transport"]).startswith("NET/") and not is_explained(row)]
    counts = Counter(row["transport"] for row in edges)
    if len(counts) > 1:
        rarest = min(counts, key=lambda name: (counts[name], name))
        pairs = sorted({(row["from_rank"], row["to_rank"]) for row in edges if row["transport"] == rarest})
        transports = ", ".join(f"{count} {name}" for name, count in counts.most_common())
        named = _listed([f"{from_rank} to {to_rank}" for from_rank, to_rank in pairs])
        yield Match({"counts": transports, "rarest": rarest, "pairs": named})


def _without_gdr(logs: JobLogs) -> Iterator[Match]:
    is_explained = _explained(logs)
    network = [row for row in logs.edges if row["gdr"] is not None]
    without = [row for row in network if not row["gdr"] and not is_explained(row)]
    if without:
        yield Match({"without": len(without), "all": format_count(len(network), "network connection")})


def _without_p2p(logs: JobLogs) -> Iterator[Match]:
    """Find hosts whose GPUs do not reach each other's memory; of all hosts, worth a word beside slow communication."""
    hosts = {short_host(row["host"]) for row in logs.communicators if row["host"]}
    lacking = {short_host(row["host"]) for row in logs.communicators if row["host"] and row.get("lacks_p2p")}
    if lacking and lacking == hosts:
        yield Match({"where": "a host", "others": ""}, is_item=False)
    elif lacking:
        ranks = tuple(sorted(rank for rank, node in logs.nodes.items() if node in lacking))
        host = next(iter(lacking)) if len(lacking) == 1 else None
        values = {"where": _listed(sorted(map(str, lacking))), "others": ", unlike those of the other hosts"}
        yield Match(values, ranks, host, certainty="likely", causes=_NETWORK if ranks or host else ())


def _below_benchmark(logs: JobLogs) -> Iterator[Match]:
    for row in logs.slow_network:
        size, reached = f"{row.size_bytes:,}", f"{row.busbw:.1f} of {row.baseline_busbw:.1f}"
        yield Match({"collective": row.collective, "size": size, "reached": reached})


def _links(logs: JobLogs) -> Iterator[Match]:
    """Find links that are down, slower or have fewer lanes, beside others that work, and counters of errors."""
    links: dict[tuple[str | None, int | None, str], Counter[str]] = defaultdict(Counter)
    read: Counter[tuple[object, ...]] = Counter()
    working = any(row["state"] in ("active", "Active") for row in logs.links)
    widest = max((row["count"] or 0 for row in logs.links if row["counter"] == _LANES), default=0)
    fastest: dict[str | None, float] = defaultdict(float)  # of NVLinks, and of adapters of one name
    for row in logs.links:
        fastest[row["nic"]] = max(fastest[row["nic"]], row.get("gb_per_s") or 0.0)
    for row in logs.links:
        gpu = f"NVLink of GPU {row['device']}"
        name = gpu if row["device"] is not None else f"port of {row['nic'] or 'a NIC'}"
        key, count = (row["host"], row["device"]), row["count"]
        if row["counter"] == _LANES:
            if count is not None and count < widest:
                links[*key, f"PCIe link of GPU {row['device']}: {count} of {widest} lanes"]["links"] = 1
        elif row["state"] not in (None, "active", "Active") and working:
            links[*key, f"{name} {row['state'].lower()}"]["down"] += 1
        elif (row.get("gb_per_s") or math.inf) < fastest[row["nic"]]:
            links[*key, f"{name}: {row['gb_per_s']:g} of {fastest[row['nic']]:g} GB/s"]["down"] += 1
        elif row["counter"] not in (None, "PortXmitWait") and count:
            subject = (*key, f"{name}: {row['counter']}")
            if row.get("is_event"):
                links[subject]["errors"] += count
            else:  # a counter that was read several times has its last value
                of_link = (*subject, row["nic"], row.get("link"))
                links[subject]["errors"] += max(count - read[of_link], 0)
                read[of_link] = max(count, read[of_link])
    for (host, device, what), counts in sorted(links.items(), key=str):
        ranks = logs.ranks_of_gpu(host, device, None) if device is not None else ()
        number = f" {counts['errors']:,}" if counts["errors"] else ""
        number = f" ({format_count(counts['down'], 'link')})" if counts["down"] else number
        of_rank = f" ({format_ranks(ranks)})" if ranks else ""
        where = f" on {host}" if host is not None else ""
        causes = _OF_PCIE if what.startswith("PCIe") else None
        yield Match({"what": f"{what}{number}{of_rank}{where}"}, ranks, host, device, causes=causes)


# ---- GPUs


class _Gpu(NamedTuple):
    host: str | None
    device: int | None
    bus_id: str | None

    @property
    def name(self) -> str:
        subject = f"GPU {self.device}" if self.device is not None else f"the GPU at {self.bus_id}"
        return f"{subject} of {self.host}" if self.host is not None else subject


def _clock_rows(logs: JobLogs) -> dict[_Gpu, list[Mapping[str, Any]]]:
    """Return the samples of each GPU; a row that names no host is of the job's host, if there is one alone."""
    hosts = {place.host for place in logs.places.values() if place.host is not None}
    only = next(iter(hosts)) if len(hosts) == 1 else None
    by_gpu: dict[_Gpu, list[Mapping[str, Any]]] = defaultdict(list)
    for row in logs.gpu_clocks:
        device = row["device"]
        bus_id = row.get("bus_id") if device is None else None
        if device is not None or bus_id is not None:
            by_gpu[_Gpu(row["host"] or only, device, bus_id)].append(row)
    return by_gpu


def _limits_of(row: Mapping[str, Any]) -> set[str]:
    """Return what limited a clock in one sample, each once: several reasons may mean the same."""
    return {_SLOWDOWNS[reason] for reason in row["reasons"] or () if reason in _SLOWDOWNS}


def _clocks(logs: JobLogs) -> Iterator[Match]:
    """Find GPUs whose clock is lower than the others', or limited in a larger share of its samples."""
    by_gpu = _clock_rows(logs)
    idle = {gpu for gpu, *_ in _idle_gpus(logs)}
    speeds = {gpu: [row["sm_mhz"] for row in rows if row["sm_mhz"] is not None] for gpu, rows in by_gpu.items()}
    values = np.array([mhz for gpu_mhz in speeds.values() for mhz in gpu_mhz] or [0.0])
    owners = np.repeat(np.arange(len(speeds)), [len(gpu_mhz) for gpu_mhz in speeds.values()])
    usual = float(np.median(values))
    limited = {gpu: Counter(limit for row in rows for limit in _limits_of(row)) for gpu, rows in by_gpu.items()}
    everywhere: Counter[str] = sum(limited.values(), Counter())
    counts = {gpu: sum(row["reasons"] is not None for row in rows) for gpu, rows in by_gpu.items()}
    samples = sum(counts.values())
    gpus_of_host = Counter(gpu.host for gpu in by_gpu)
    limited_gpus: dict[tuple[str | None, str], list[_SlowClock]] = defaultdict(list)
    for number, (gpu, rows) in enumerate(by_gpu.items()):
        if gpu in idle:
            continue
        own_mhz, others = median(speeds[gpu] or [0.0]), usual
        if own_mhz and len(speeds) > 1 and own_mhz < usual:
            rest_of_job = values[owners != number]
            others = float(np.median(rest_of_job)) if len(rest_of_job) else 0.0
        is_lower = bool(own_mhz) and len(speeds) > 1 and own_mhz < _LIMITS.lower_clock * others
        shares = {limit: count / counts[gpu] for limit, count in limited[gpu].items()}
        rest = max(samples - counts[gpu], 1)
        unusual = {
            limit: limited[gpu][limit]
            for limit, share in sorted(shares.items())
            if share > (everywhere[limit] - limited[gpu][limit]) / rest
        }
        if not is_lower and not unusual:
            continue
        is_strong = any(
            shares[limit] >= max(0.5, 2 * (everywhere[limit] - limited[gpu][limit]) / rest) for limit in unusual
        )
        slow = _SlowClock(
            gpu,
            own_mhz if is_lower else None,
            others,
            tuple(f"{count} of {counts[gpu]}" for count in dict.fromkeys(unusual.values())),
            logs.ranks_of_gpu(gpu.host, gpu.device, gpu.bus_id or rows[0].get("bus_id")),
            is_lower or is_strong,
            is_lower or (is_strong and not _EXPECTED.issuperset(unusual)),
        )
        limited_gpus[gpu.host, " and ".join(unusual)].append(slow)
    for (host, limits), slow_gpus in limited_gpus.items():
        is_node = host is not None and 2 * len(slow_gpus) > gpus_of_host[host]
        by_words: dict[object, list[_SlowClock]] = defaultdict(list)
        for slow in slow_gpus:
            told = slow.gpu if host is None else None if is_node else slow.told
            by_words[told].append(slow)
        for alike in by_words.values():
            yield _describe_clocks(alike, limits)


class _SlowClock(NamedTuple):
    """A GPU whose clock is lower than the others', or limited in more of its samples."""

    gpu: _Gpu
    mhz: float | None
    """None: not lower."""
    others_mhz: float
    samples: tuple[str, ...]
    """In how many of its samples each limit is active."""
    ranks: tuple[int, ...]
    is_clear: bool
    is_item: bool

    @property
    def told(self) -> tuple[object, ...]:
        """What is said of it: GPUs of a host of which the same is said are one fact."""
        mhz = None if self.mhz is None else round(self.mhz)
        return mhz, round(self.others_mhz), self.samples, self.is_clear, self.is_item


def _describe_clocks(alike: Sequence[_SlowClock], limits: str) -> Match:
    """Describe the clocks of one GPU, or of the GPUs of a host that have the same limits."""
    first, is_one = alike[0], len(alike) == 1
    speeds = sorted(f"{slow.mhz:,.0f}" for slow in alike if slow.mhz is not None)
    by = f" limited by {limits if is_one else limits.replace('its', 'their')}" if limits else ""
    speed = f": {' to '.join(dict.fromkeys((speeds[0], speeds[-1])))} of {first.others_mhz:,.0f} MHz" if speeds else ""
    parts = ["the other GPUs' median"] if speeds else []
    if len({slow.samples for slow in alike}) == 1:
        parts += [f"in {samples} samples" for samples in first.samples]
    ranks = tuple(sorted(rank for slow in alike for rank in slow.ranks))
    subject = first.gpu.name if is_one else f"{len(alike)} GPUs of {first.gpu.host}"
    return Match(
        {
            "told": f"{subject}{by}{speed}{', ' if speed and parts else ' ' if parts else ''}{', '.join(parts)}",
            "reason": f"{'' if is_one else 's'}{by}{speed}" if by else speed.replace(":", " at"),
        },
        ranks,
        first.gpu.host,
        first.gpu.device if is_one else None,
        certainty="certain" if any(slow.is_clear for slow in alike) else "likely",
        causes=_GPU_CAUSES if ranks else (),  # the GPU of an unknown rank is evidence of no rank
        is_item=any(slow.is_item for slow in alike),
    )


def _power_caps(logs: JobLogs) -> Iterator[Match]:
    """Find GPUs whose power is capped lower than most GPUs'; at its cap, a slow GPU is slow for that."""
    caps = {
        gpu: (median(known), rows)
        for gpu, rows in _clock_rows(logs).items()
        if (known := [row["power_cap_w"] for row in rows if row.get("power_cap_w")])
    }
    counts = Counter(cap for cap, _ in caps.values())
    usual = max(counts, key=lambda cap: (counts[cap], cap), default=0.0)
    alike: dict[tuple[str | None, float], list[_Gpu]] = defaultdict(list)
    for gpu, (cap, _) in caps.items():
        if cap < _LIMITS.lower_power_cap * usual:
            alike[gpu.host, cap].append(gpu)
    for (host, cap), gpus in sorted(alike.items(), key=str):
        ranks = tuple(sorted({rank for gpu in gpus for rank in logs.ranks_of_gpu(*gpu)}))
        drawn = [row["power_w"] for gpu in gpus for row in caps[gpu][1] if row.get("power_w") is not None]
        is_at_cap = bool(drawn) and median(drawn) >= _LIMITS.lower_power_cap * cap
        where = f" of {host}" if host is not None else ""
        yield Match(
            {"gpus": gpus[0].name if len(gpus) == 1 else f"{len(gpus)} GPUs{where}", "cap": cap, "usual": usual},
            ranks,
            host,
            gpus[0].device if len(gpus) == 1 else None,
            certainty="certain" if is_at_cap else "likely",
            causes=_GPU_CAUSES if ranks else (),
        )


def _all_limited(logs: JobLogs) -> Iterator[Match]:
    by_gpu = _clock_rows(logs)
    samples = sum(row["reasons"] is not None for rows in by_gpu.values() for row in rows)
    counts = Counter(limit for rows in by_gpu.values() for row in rows for limit in _limits_of(row))
    for limit, count in sorted(counts.items()):
        gpus = sum(any(limit in _limits_of(row) for row in rows) for rows in by_gpu.values())
        if 2 * gpus > len(by_gpu) > 1 and 2 * count >= samples:
            yield Match({"gpus": f"{gpus} of {len(by_gpu)} GPUs", "by": limit.replace("its", "their"), "n": count,
                         "all": samples}, is_item=limit not in _EXPECTED)  # fmt: skip


def _idle_gpus(logs: JobLogs) -> Iterator[tuple[_Gpu, tuple[int, ...], int, int]]:
    """Return GPUs that the clock log calls idle during steps, in which the traces have kernels on all ranks."""
    if not logs.step_times_ns:
        return
    during = logs.during(list(logs.step_times_ns), margin_ns=0)
    for gpu, rows in sorted(_clock_rows(during).items(), key=str):
        timed = [row for row in rows if row.get("time_ns") is not None]
        idle = sum("gpu_idle" in (row["reasons"] or ()) for row in timed)
        ranks = logs.ranks_of_gpu(gpu.host, gpu.device, gpu.bus_id)
        if ranks and idle and 2 * idle > len(timed):
            yield gpu, ranks, idle, len(timed)


def _idle_and_busy(logs: JobLogs) -> Iterator[Match]:
    for gpu, ranks, idle, samples in _idle_gpus(logs):
        values = {"gpu": gpu.name, "idle": f"{idle} of {samples} samples", "ranks": format_ranks(ranks)}
        yield Match(values, ranks, gpu.host, gpu.device)


def _errors(logs: JobLogs) -> Iterator[Match]:
    """Find GPUs and switches with errors; those of which each error follows from the program are told apart."""
    for codes, match in _errors_by_gpu(logs):
        if not _OF_PROGRAM.issuperset(codes):
            yield match


def _faults_of_program(logs: JobLogs) -> Iterator[Match]:
    """Find GPUs whose errors are all of the program: many GPUs have them where a job is ended."""
    found = [(codes, match) for codes, match in _errors_by_gpu(logs) if _OF_PROGRAM.issuperset(codes)]
    by_codes: dict[tuple[int, ...], list[Match]] = defaultdict(list)
    for counts, match in found:
        by_codes[tuple(sorted(counts))].append(match)
    for codes, matches in by_codes.items():
        if len(matches) <= _MOST:
            yield from (match._replace(causes=(), certainty="unknown") for match in matches)
            continue
        hosts = {match.host for match in matches if match.host is not None}
        values = {
            "errors": _listed([f"Xid {code}" for code in codes]),
            "gpu": f" of {len(matches)} GPUs",
            "where": f"on {format_count(len(hosts), 'host')}" if hosts else "in kernel logs",
        }
        yield Match(values, tuple(sorted({rank for match in matches for rank in match.ranks})))


def _errors_by_gpu(logs: JobLogs) -> Iterator[tuple[Counter[int], Match]]:
    """Return what is told of the errors of each GPU and switch, with how often each error number occurs."""
    by_gpu: dict[_Gpu, Counter[int]] = defaultdict(Counter)
    files: dict[tuple[object, ...], set[str]] = defaultdict(set)
    for row in logs.gpu_errors:
        if row["code"] is not None:
            owner = _Gpu(row["host"], row.get("device"), row["bus_id"])
            by_gpu[owner][row["code"]] += 1
            files[owner].add(PurePath(row["source"]).name if row.get("source") else "a kernel log")
    for (host, number, bus_id), codes in sorted(
        by_gpu.items(), key=lambda gpu_codes: (-gpu_codes[1].total(), str(gpu_codes[0]))
    ):
        ranks = logs.ranks_of_gpu(host, number, bus_id)
        device = logs.places[ranks[0]].device if ranks else number
        ordered = sorted(codes.items(), key=lambda code_count: (-code_count[1], code_count[0]))
        listed = [
            f"{'SXid' if _is_of_switch(code) else 'Xid'} {code}" + (f" ({count} times)" if count > 1 else "")
            for code, count in ordered
        ]
        kind = "NVSwitch" if all(map(_is_of_switch, codes)) else "GPU"
        gpu = f" of {kind} {device}" if device is not None else f" of the {kind} at {bus_id}" if bus_id else ""
        if ranks:
            gpu += f" ({format_ranks(ranks)})"
        elif kind == "GPU" and host is not None and logs.node_of(host) is not None:
            gpu += " (whose rank is not known)"
        causes: tuple[Cause, ...] = (
            _NETWORK if all(_is_of_switch(code) or code in _LINK_ERRORS for code in codes) else _GPU_CAUSES
        )
        where = f"on {host}" if host is not None else f"in {_listed(sorted(files[host, number, bus_id]))}"
        if not ranks and host is None:
            causes = ()  # of an unknown host: evidence of no rank
        values = {"errors": _listed(listed), "gpu": gpu, "where": where}
        certainty: CauseCertainty | None = None if ranks else "unknown"
        yield codes, Match(values, ranks, host, device, certainty, causes)


def _memory(logs: JobLogs) -> Iterator[Match]:
    """Find GPUs with errors of their memory that could not be corrected; without a time, of the GPU's whole life."""
    by_gpu: dict[_Gpu, dict[str, int]] = defaultdict(dict)
    for row in logs.gpu_errors:
        if row.get("memory") is not None:
            counts = by_gpu[_Gpu(row["host"], row["device"], row["bus_id"])]
            counts[row["memory"]] = max(row["count"] or 0, counts.get(row["memory"], 0))
    for gpu, counts in sorted(by_gpu.items(), key=str):
        ranks = logs.ranks_of_gpu(*gpu)
        of_rank = f" ({format_ranks(ranks)})" if ranks else ""
        values = {
            "gpu": f"{gpu.name}{of_rank}",
            "what": ", ".join(f"{what} {count:,}" for what, count in counts.items()),
            "source": "" if all(": " in what for what in counts) else " (nvidia-smi)",  # the others name theirs
        }
        yield Match(values, ranks, gpu.host, gpu.device, causes=_GPU_CAUSES if ranks else ())


def _is_of_switch(code: int) -> bool:
    return code >= 10_000  # SXids


# ---- hosts


def _incidents(
    kind: str, words: Callable[[Sequence[Mapping[str, Any]], int], dict[str, Any]]
) -> Callable[[JobLogs], Iterator[Match]]:
    """Return a rule that finds the ranks, GPUs and hosts with incidents of a kind, told from their rows and number."""

    def find(logs: JobLogs) -> Iterator[Match]:
        alike: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
        for row in logs.incidents:
            if row["kind"] == kind:
                detail = row["detail"] if kind == "pcie" else None
                alike[row["rank"], row["host"], row["bus_id"], detail].append(row)
        for (rank, host, bus_id, detail), rows in sorted(alike.items(), key=str):
            of_gpu = logs.ranks_of_gpu(host, None, bus_id) if bus_id is not None else ()
            ranks = (rank,) if rank is not None else of_gpu
            device = f"the device at {bus_id}" if bus_id is not None else None
            of_host = host if device is not None else f"on {host or 'a host'}"
            named = [f"rank {rank}"] if rank is not None else [name for name in (device, of_host) if name is not None]
            subject = " of ".join(named)
            if of_gpu:
                subject += f" ({format_ranks(of_gpu)})"
            counts = [row["count"] or 1 for row in rows]
            # a count since the beginning of the program grows
            count = max(counts) if any(row["detail"] for row in rows) and kind == "allocator" else sum(counts)
            yield Match(
                {"subject": subject} | words(rows, count),
                ranks,
                host,
                causes=None if ranks or host is not None else (),  # of an unknown host: evidence of no rank
                is_item=detail != "corrected" or count >= _LIMITS.min_corrected,
            )

    return find


def _blocked(rows: Sequence[Mapping[str, Any]], count: int) -> dict[str, Any]:
    seconds = max(row["seconds"] or 0 for row in rows)
    times = f" ({count} times)" if count > 1 else ""
    return {"detail": rows[0]["detail"], "seconds": f"{seconds:.0f}", "times": times}


# ---- placement


def _shared_threads(logs: JobLogs) -> Iterator[Match]:
    bound = logs.bound
    sharing = {rank: shared for rank, shared in bound.sharing.items() if shared}
    for rank, shared in sorted(sharing.items()):
        others = sorted(set().union(*shared.values()))
        values = {
            "rank": rank,
            "shared": len(shared),
            "threads": format_count(len(bound.cpus[rank]), "hardware thread"),
            "others": format_ranks(others),
        }
        # ranks that are not bound at all share everything, and harm nobody where there are threads for all
        is_odd = len(shared) == len(bound.cpus[rank]) and 2 * len(sharing) < len(bound.rows)
        yield Match(values, (rank,), certainty="certain" if is_odd else "likely")


def _far_threads(logs: JobLogs) -> Iterator[Match]:
    bound = logs.bound
    for rank, row in sorted(bound.rows.items()):
        device = far_gpu(row, bound.devices.get(rank), bound.near)
        if device is not None:
            yield Match({"rank": rank, "gpu": device, "threads": format_numbers(set(row["cpus"]))}, (rank,))


def _far_ranks(logs: JobLogs) -> Iterator[Match]:
    bound = logs.bound
    gpus = {rank: bound.gpu_of(rank) for rank in bound.rows}
    counted = [rank for rank, gpu in gpus.items() if gpu in bound.near]
    far = [rank for rank in counted if far_gpu(bound.rows[rank], gpus[rank], bound.near) is not None]
    if far:
        is_assumed = any(
            bound.devices.get(rank) is None and len(bound.rows[rank]["gpus"] or ()) > 1 for rank in counted
        )
        assumed = ", if a rank uses the GPU of its number on the node" if is_assumed else ""
        values = {"n": len(far), "all": format_count(len(counted), "rank"), "which": _name_ranks(far, counted)}
        yield Match(values | {"assumed": assumed}, tuple(sorted(far)))


def _sharing_ranks(logs: JobLogs) -> Iterator[Match]:
    bound = logs.bound
    sharing = [rank for rank, shared in bound.sharing.items() if shared]
    if sharing:
        subject = _name_ranks(sharing, list(bound.rows))
        yield Match(
            {"n": len(sharing), "all": format_count(len(bound.rows), "rank"), "which": subject}, tuple(sorted(sharing))
        )


def _conflicts(logs: JobLogs) -> Iterator[Match]:
    conflicts = {rank: place.conflicts for rank, place in logs.places.items() if place.conflicts}
    if conflicts:
        first, clauses = next(iter(conflicts.items()))
        rest = (
            f", and so do {format_ranks(others)}" if (others := [rank for rank in conflicts if rank != first]) else ""
        )
        yield Match({"first": f"rank {first} has {'; '.join(clauses)}", "more": rest}, tuple(conflicts))


def _contested(logs: JobLogs) -> Iterator[Match]:
    for ranks, files in logs.contested:
        names = [PurePath(file).name for file in files]
        yield Match({"files": _listed(names), "ranks": format_ranks(ranks)}, ranks)


# ---- training


def _profiler_overhead(logs: JobLogs) -> Iterator[Match]:
    """Compare the steps that were recorded with the others that a training log times."""
    recorded = {key.step: (last - first) / 1e9 for key, (first, last) in logs.step_times_ns.items()}
    by_log: dict[str, dict[int, float]] = defaultdict(dict)
    for row in logs.throughput:
        if row["step"] is not None and (row["seconds"] or row["samples_per_s"] or row["tokens_per_s"]):
            by_log[row["source"]][row["step"]] = row["seconds"] or 1 / (row["samples_per_s"] or row["tokens_per_s"])
    timed = {row["source"] for row in logs.throughput if row["seconds"]}
    for source, steps in by_log.items():
        profiled = [seconds for step, seconds in steps.items() if step in recorded]
        others = [seconds for step, seconds in steps.items() if step not in recorded]
        is_timed = source in timed
        if not profiled and is_timed:  # the log prints every tenth step, or numbers them in another way
            profiled = list(recorded.values())
        if not profiled or len(others) < THRESHOLDS.min_steps:
            continue
        ratio = median(profiled) / median(others)
        if 1 + THRESHOLDS.min_clear_share <= ratio <= _LIMITS.max_overhead:
            times = f"{format_time(median(profiled) * 1e9)} against {format_time(median(others) * 1e9)}, "
            number = format_count(len(others), "step")
            yield Match({"times": times if is_timed else "", "share": format_percent(ratio - 1), "others": number})


def _name_ranks(chosen: Sequence[int], every: Sequence[int]) -> str:
    """Name the chosen ranks, or if they are most of all, the others."""
    others = set(every) - set(chosen)
    if not others:
        return "all"
    return f"all but {format_numbers(others)}" if len(others) < len(chosen) else format_numbers(chosen)


def _listed(names: Sequence[str]) -> str:
    omitted = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + omitted


_CHECK_FABRIC: Final = "check the network plug-in, NCCL_IB_DISABLE, NCCL_NET and the adapters of these nodes"

RULES: Final[tuple[Rule, ...]] = (
    Rule("network", _NETWORK, "certain", _over_tcp,
         "{ranks} {communicate} by TCP{over}, the other ranks by {usual}{why}", _CHECK_FABRIC,
         "NCCL over TCP in place of {usual}"),
    Rule("network", _NETWORK, "likely", _odd("network", but="Socket"),
         "{ranks}: network {network}, the other ranks: {usual}", _CHECK_FABRIC),
    Rule("network", _NETWORK, "certain", _all_over_tcp,
         "NCCL communicates by TCP{over}{present}{why}", _CHECK_FABRIC, "NCCL communicates by TCP{over}{why}"),
    Rule("network", _NETWORK, "certain", _failed_plugins,
         "the network plug-in could not be loaded on {hosts}", _CHECK_FABRIC, "network plug-in not loaded"),
    Rule("network", _NETWORK, "likely", _mixed_fabric, "{ranks}: adapters of {protocol}, the other ranks: {usual}",
         "check that the ranks of a job are on one fabric"),
    Rule("network", _NETWORK, "likely", _odd_adapters, "{ranks}: network adapter {names}, {others}: {usual}",
         "check NCCL_IB_HCA and that each rank finds the adapters of its node"),
    Rule("network", _NETWORK, "unknown", _other_interfaces,
         "NCCL uses {wrong}, which {are} not of the fabric, beside {fabric}: set NCCL_SOCKET_IFNAME to the fabric's "
         "interfaces"),
    Rule("network", _NETWORK, "unknown", _unequal_transports,
         "network connections use different transports ({counts}): {rarest} from rank {pairs}"),
    Rule("network", _NETWORK, "unknown", _without_gdr,
         "{without} of {all} do not use GPUDirect RDMA (GDR)",
         "check NCCL_NET_GDR_LEVEL and the driver's peer memory module"),
    Rule("network", _NETWORK, "unknown", _without_p2p,
         "GPUs of {where} do not reach each other's memory (P2P is disabled){others}",
         "check NCCL_P2P_DISABLE and NCCL_P2P_LEVEL, the IOMMU, and PCIe access control (ACS)"),
    Rule("network", _NETWORK, "unknown", _links, "{what}"),
    Rule("network", _NETWORK, "unknown",
         lambda logs: (Match({"said": sentence}) for sentence in describe_proxies(logs.proxied)), "{said}",
         is_item=False),
    Rule("network", _NETWORK, "unknown", _odd("version"), "{ranks}: version {version}, the other ranks: {usual}"),
    Rule("network", _NETWORK, "unknown", _below_benchmark,
         "{collective} of {size} B: {reached} GB/s in every step", is_item=False),
    Rule("contradiction", _GPU_CAUSES, "unknown", _idle_and_busy,
         "the clock log calls {gpu} idle in {idle} during the steps, and the trace of {ranks} has kernels there: the "
         "trace is believed, which records each kernel; the log may be of another GPU, so its clocks are not used"),
    Rule("gpu_clock", _GPU_CAUSES, "certain", _clocks, "{told}", "check the GPU's cooling and its power limit",
         "GPU{reason}"),
    Rule("gpu_clock", _GPU_CAUSES, "likely", _power_caps,
         "{gpus}: power cap {cap:,.0f} W, most GPUs: {usual:,.0f} W", "give the GPU the power limit of the others",
         "GPU's power is capped at {cap:,.0f} of {usual:,.0f} W"),
    Rule("gpu_clock", _GPU_CAUSES, "unknown", _all_limited,
         "{gpus} are limited by {by} ({n} of {all} samples)", "check the cooling and the power limits"),
    Rule("gpu_error", _GPU_CAUSES, "likely", _errors,
         "{errors}{gpu} {where}", "read the kernel log; reset or replace the GPU"),
    Rule("gpu_error", (), "unknown", _faults_of_program,
         "{errors}{gpu} {where}, which a program's own fault or its end causes, too",
         "read the log of the program that ran there for its first error; what stays with one GPU whatever runs is a "
         "fault of the GPU"),
    Rule("gpu_error", _GPU_CAUSES, "likely", _memory,
         "{gpu}: {what}{source}", "reset the GPU; replace it where errors come back"),
    Rule("exit", (), "unknown", lambda logs: (Match({"said": text}) for text in describe_exits(logs.exits)), "{said}"),
    Rule("host", (*_HOST_CAUSES, "sync_calls"), "likely",
         _incidents("allocator", lambda _, count: {"n": format_count(count, "time")}),
         "{subject}: PyTorch's allocator ran out of GPU memory {n} and freed its cache",
         "use less memory, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
    Rule("host", _HOST_CAUSES, "likely", _incidents("soft_lockup", _blocked),
         "{subject}: a processor was held in the kernel for {seconds} s by {detail}{times}",
         "read the host's kernel log for what holds it"),
    Rule("host", _HOST_CAUSES, "likely", _incidents("hung_task", _blocked),
         "{subject}: {detail} was blocked in the kernel for more than {seconds} s{times}",
         "check the host's file systems and its driver: that is what such a process waits for"),
    Rule("host", _OF_PCIE, "unknown",
         _incidents("pcie", lambda rows, count: {"errors": format_count(count, f"{rows[0]['detail']} PCIe error")}),
         "{subject}: {errors}", "check the slot, the riser and the link's speed"),
    Rule("placement", _HOST_CAUSES, "likely", _shared_threads,
         "rank {rank} shares {shared} of {threads} with {others}", "bind each rank to CPU cores of its own",
         "launches late on shared hardware threads", is_item=False),
    Rule("placement", _HOST_CAUSES, "likely", _far_threads,
         "rank {rank} runs on hardware threads far from its GPU {gpu}: {threads}",
         "bind each rank to the CPU cores near its GPU", is_item=False),
    Rule("placement", (), "unknown", _far_ranks,
         "{n} of {all} run on hardware threads far from their GPUs ({which}){assumed}",
         "bind each rank to the CPU cores near its GPU"),
    Rule("placement", (), "unknown", _sharing_ranks,
         "{n} of {all} share hardware threads with other ranks ({which})", "bind each rank to CPU cores of its own"),
    Rule("profiler", (), "unknown", _profiler_overhead,
         "recorded steps take {share} longer than the {others} that the training log times without the profiler "
         "({times}medians): the profiler, or what else these steps do, costs that",
         "record fewer activities: no stacks, no shapes, no memory"),
    Rule("contradiction", (), "unknown", _contested,
         "the files {files} state different hosts or networks of {ranks}, as of two runs: what NCCL says there is not "
         "used"),
    Rule("contradiction", (), "unknown", _conflicts,
         "{first}{more}: their logs may be of another job; no log is joined to them by what differs"),
)  # fmt: skip
"""In their order of precedence: the first that applies to a finding comes first in its evidence."""
