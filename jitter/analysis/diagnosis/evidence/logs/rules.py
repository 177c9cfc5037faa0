"""What is unusual in a job's logs: a literal list of rules over their relations, each of which yields facts."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from operator import itemgetter
from pathlib import PurePath
from statistics import median
from typing import Any, Final, NamedTuple, get_args

import numpy as np

from jitter.analysis.detection.significance import binomial_tail
from jitter.analysis.diagnosis.evidence.logs.job_logs import LANES, PCIE_GENERATION, JobLogs
from jitter.analysis.diagnosis.evidence.logs.measurements import describe_exits, describe_proxies
from jitter.analysis.diagnosis.model import Cause, CauseCertainty, Fact, FactKind
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import (
    Ranks,
    escape_control,
    format_bandwidth,
    format_count,
    format_numbers,
    format_percent,
    format_ranks,
    format_some,
    format_time,
)
from jitter.core.grouping import by_key
from jitter.lake.log_records import Rows
from jitter.lake.rank_places import short_host

_LIMITS: Final = THRESHOLDS.evidence
_MOST: Final = THRESHOLDS.sentences.max_named
_listed: Final = partial(format_some, most=_MOST)
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
_OF_ERRORS: Final[tuple[Cause, ...]] = (*_GPU_CAUSES, "gpu_pause")
"""What errors of a GPU may be; no clock makes it pause."""
_HOST_CAUSES: Final[tuple[Cause, ...]] = ("cpu_launch", "late_start", "cpu_after", "launch_bound")
_NETWORK: Final[tuple[Cause, ...]] = ("communication", "slow_network", "exposed_communication")
_OF_PCIE: Final[tuple[Cause, ...]] = (*_NETWORK, "slow_copies", "blocking_copies", "serial_copies")
_OF_CLOCK: Final = "'s counter of "
"""In the names of counters of the time for which a GPU's clock was limited."""
_FULL: Final = {
    **dict.fromkeys(("SymbolErrorCounter", "PortRcvErrors", "PortXmitDiscards"), 2**16 - 1),
    **dict.fromkeys(("LinkErrorRecoveryCounter", "LinkDownedCounter"), 2**8 - 1),
}
"""Where counters of InfiniBand's ports stop: whether one grew is unknown there."""
_OF_TRAFFIC: Final = re.compile(f"(?i:xmit_?wait|link.?down)|_pause|retrans_pkts|TCP segments|{_OF_CLOCK}")
"""Counters that grow on healthy hosts, too, as at each boot: they tell something beside those of others."""
_LINK_ERRORS: Final = frozenset((74, 137, *range(144, 151)))
"""Xid numbers of NVLink."""
_OF_PROGRAM: Final = frozenset((13, 31, 43, 45))
"""Xid numbers of a program's own faults, and of its end: 13 and 31 wrong accesses, 43 and 45 work that is stopped."""


class Statement(NamedTuple):
    """What a rule finds."""

    words: str
    ranks: tuple[int, ...] = ()
    host: str | None = None
    device: int | None = None
    reason: str = ""
    causes: tuple[Cause, ...] | None = None
    """In place of the rule's, as the following."""
    certainty: CauseCertainty | None = None
    is_item: bool | None = None


class Rule(NamedTuple):
    """What is unusual, over the relations of logs."""

    kind: FactKind
    causes: tuple[Cause, ...]
    certainty: CauseCertainty
    find: Callable[[JobLogs], Iterable[Statement]]
    advice: str = ""
    is_item: bool = True
    excludes: bool = False
    """Whether it rules out what is usually checked first: its advice takes the place of that."""


def find_facts(logs: JobLogs, kinds: Collection[FactKind] = get_args(FactKind)) -> tuple[Fact, ...]:
    """Return what the logs state that is unusual, of these kinds, in the order of `RULES`."""
    return tuple(
        Fact(
            rule.kind,
            escape_control(said.words),
            _causes(rule, said, logs),
            said.certainty or rule.certainty,
            said.ranks,
            said.host,
            said.device,
            rule.advice,
            escape_control(said.reason),
            rule.is_item if said.is_item is None else said.is_item,
            rule.excludes,
        )
        for rule in RULES
        if rule.kind in kinds
        for said in _without_strangers(rule.find(logs), logs)
    )


def _causes(rule: Rule, said: Statement, logs: JobLogs) -> tuple[Cause, ...]:
    """Return the causes that a statement speaks for: none where it is about a GPU that no rank uses."""
    if said.device is not None and not said.ranks and logs.is_unused(said.host, said.device):
        return ()
    return rule.causes if said.causes is None else said.causes


def _without_strangers(statements: Iterable[Statement], logs: JobLogs) -> Iterator[Statement]:
    """Yield the statements; one alone of hosts without a recording where many are, as in the logs of a cluster."""
    kept = list(statements)
    strange = [
        at
        for at, said in enumerate(kept)
        if logs.places and said.host and not said.ranks and logs.node_of(said.host) is None
    ]
    others = set(strange[1:]) if len(strange) > _MOST else ()
    if others:
        first = kept[strange[0]]
        more = f"{len(others):,} more such lines of hosts without a recording"
        kept[strange[0]] = first._replace(words=f"{first.words}; {more}")
    yield from (said for at, said in enumerate(kept) if at not in others)


# ---- network


def _unlike_others(
    logs: JobLogs, value_of: Callable[[Mapping[str, Any]], Any], *, of_equal: bool = False
) -> Iterator[tuple[Any, tuple[int, ...], Any]]:
    """Return each value that fewer ranks have than the commonest one, its ranks, and the commonest.

    With `of_equal`, of values that equally many ranks have one is the commonest.
    """
    stated = by_key((value_of(row), rank) for members, row in logs.members for rank in members)
    ranks = {value: tuple(sorted(set(of_value))) for value, of_value in stated.items() if value is not None}
    usual = max(ranks, key=lambda value: (len(ranks[value]), str(value)), default=None)
    for value in sorted(ranks, key=str):
        if len(ranks[value]) < len(ranks[usual]) or (of_equal and value != usual):
            yield value, ranks[value], usual


def _unlike(
    words: str, value_of: Callable[[Mapping[str, Any]], Any], *, of_equal: bool = False
) -> Callable[[JobLogs], Iterator[Statement]]:
    """Return a rule that finds the ranks of `_unlike_others`; `words` name the value."""

    def find(logs: JobLogs) -> Iterator[Statement]:
        for value, ranks, usual in _unlike_others(logs, value_of, of_equal=of_equal):
            yield Statement(f"{format_ranks(ranks)}: {words} {value}, the other ranks: {usual}", ranks)

    return find


def _fabric(row: Mapping[str, Any]) -> str | None:
    """Return the network of a process; None for TCP, which has rules of its own."""
    return None if row["network"] == "Socket" else row["network"]


def _odd_tcp(logs: JobLogs) -> tuple[int, ...]:
    """Return the ranks that communicate by TCP while others of the job use a fabric, be these few."""
    by_fabric = {rank for ranks, row in logs.members if _fabric(row) for rank in ranks}
    by_tcp = {rank for ranks, row in logs.members if row["network"] == "Socket" for rank in ranks}
    return tuple(sorted(by_tcp - by_fabric)) if by_fabric else ()


def _over_tcp(logs: JobLogs) -> Iterator[Statement]:
    if ranks := _odd_tcp(logs):
        usual = _listed(sorted({network for _, row in logs.members if (network := _fabric(row))}))
        rows = [row for members, row in logs.members if set(members) & set(ranks)]
        odd, over, why = Ranks(ranks), _over(rows), _why(rows)
        words = f"{odd} {odd:communicates|communicate} by TCP{over}, the other ranks by {usual}{why}"
        yield Statement(words, ranks, reason=f"NCCL over TCP in place of {usual}")


def _all_over_tcp(logs: JobLogs) -> Iterator[Statement]:
    """Find TCP where a fabric is present; else, worth a word only where communication is slow, TCP between hosts."""
    rows = [row for row in logs.communicators if row["network"] == "Socket"]
    spans_hosts = _spans_hosts(logs)
    if not rows or _odd_tcp(logs) or spans_hosts is False:
        return
    others = {row["network"] for row in logs.communicators} - {"Socket", None}
    fabric = sorted(others) or sorted({nic for row in logs.topology for nic in row["near_nics"] or ()})
    interfaces = {name for row in rows for name in row["interfaces"] or ()}
    over, why = _over(rows), _why(rows)
    has_fabric = bool(fabric or why or any(name.startswith(_FABRIC) for name in interfaces))
    if has_fabric or len({row["host"] for row in logs.communicators}) > 1:
        present = f", although {_listed(fabric)} is present" if fabric else ""
        said = f"NCCL {'communicates' if spans_hosts else 'reaches other hosts'} by TCP{over}"
        certainty: CauseCertainty = "certain" if has_fabric else "likely"
        certainty = "unknown" if logs.is_of_other_hosts or not spans_hosts else certainty
        yield Statement(f"{said}{present}{why}", reason=f"{said}{why}", certainty=certainty, is_item=has_fabric)


def _spans_hosts(logs: JobLogs) -> bool | None:
    """Return whether the job uses NCCL's network, which NCCL names on a lone host, too; None where nothing tells."""
    if len({row["host"] for row in logs.communicators}) > 1:
        return True
    if logs.edges:
        return any("NET/" in str(row["transport"]) for row in logs.edges)
    located = {rank: short_host(place.host) for rank, place in logs.places.items() if place.host is not None}
    if len(set(located.values())) > 1:
        return True
    world = max((row["ranks"] or 0 for row in logs.communicators), default=0)
    ranks = located.keys() | {row["rank"] for row in logs.communicators if row["ranks"] == world}
    return False if ranks and len(ranks) >= world else None


def _over(rows: Rows) -> str:
    interfaces = sorted({name for row in rows for name in row["interfaces"] or ()})
    return f" over {_listed(interfaces)}" if interfaces else ""


def _why(rows: Rows) -> str:
    """Return what keeps these processes from a fabric, by the log."""
    if failed := [row for row in rows if row["plugin"] == "failed"]:
        return f": {_not_loaded(failed)}"
    if any(row.get("disables_ib") for row in rows):
        return ": NCCL_IB_DISABLE or NCCL_NET in its environment turns InfiniBand off"
    return ": no InfiniBand device was found" if any(row.get("lacks_ib") for row in rows) else ""


def _not_loaded(failed: Rows) -> str:
    hosts = sorted({row["host"] for row in failed} - {None})
    return f"the network plug-in could not be loaded{f' on {_listed(hosts)}' if hosts else ''}"


def _failed_plugins(logs: JobLogs) -> Iterator[Statement]:
    """Find plug-ins that failed on hosts which use a fabric all the same, or whose network is not stated."""
    failed = [row for row in logs.communicators if row["plugin"] == "failed" and row["network"] != "Socket"]
    if failed:
        yield Statement(_not_loaded(failed), reason="network plug-in not loaded")


def _other_interfaces(logs: JobLogs) -> Iterator[Statement]:
    odd = set(_odd_tcp(logs))
    rows = [row for ranks, row in logs.members if not odd.intersection(ranks)]
    used = sorted({name for row in rows for name in row["interfaces"] or ()})
    fabric = [name for name in used if _is_of_fabric(name)]
    wrong = [name for name in used if not _is_of_fabric(name)]
    if fabric and wrong:
        are = "is" if len(wrong) == 1 else "are"
        yield Statement(
            f"NCCL uses {_listed(wrong)}, which {are} not of the fabric, beside {_listed(fabric)}: set "
            "NCCL_SOCKET_IFNAME to the fabric's interfaces"
        )


def _is_of_fabric(name: str) -> bool:
    """Return whether an interface is of a fabric: NCCL states the protocol of adapters (`irdma0:1/RoCE`)."""
    return name.startswith(_FABRIC) or name.endswith(("/IB", "/RoCE"))


def _protocol(row: Mapping[str, Any]) -> str | None:
    """Return the protocol of a process' adapters (`mlx5_0:1/RoCE`, `mlx5_0:1/IB`); None if they have several."""
    protocols = {name.rpartition("/")[2] for name in row["interfaces"] or () if "/" in name}
    return protocols.pop() if len(protocols) == 1 else None


def _odd_adapters(logs: JobLogs) -> Iterator[Statement]:
    """Find ranks with other adapters than most ranks; where each GPU has its own, than most GPUs of its number."""
    adapters = {
        ranks[0]: tuple(sorted(name.partition(":")[0] for name in row["interfaces"] or ()))
        for ranks, row in logs.members
        if len(ranks) == 1 and row["network"] not in (None, "Socket")
    }
    known = {rank: names for rank, names in adapters.items() if names}
    everywhere = Counter(known.values())
    is_shared = bool(known) and 2 * max(everywhere.values()) > len(known)
    devices = {} if is_shared else {rank: place.device for rank, place in logs.places.items()}
    ranks_of_node = by_key((logs.nodes.get(rank), rank) for rank in known)
    users = Counter((logs.nodes.get(rank), names) for rank, names in known.items())
    for device, ranks_there in by_key((devices.get(rank), rank) for rank in sorted(known)).items():
        if device is None and not is_shared:
            continue
        ranks_of = by_key((known[rank], rank) for rank in ranks_there)
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
                words = f"{format_ranks(ranks)}: network adapter {_listed(names)}, {others}: {_listed(usual)}"
                yield Statement(words, tuple(ranks))


def _explained(logs: JobLogs) -> Callable[[Mapping[str, Any]], bool]:
    """Return whether an edge is one of ranks that communicate by TCP, which another rule tells."""
    odd = set(_odd_tcp(logs))
    is_all = any(True for _ in _all_over_tcp(logs))
    return lambda row: is_all or row["from_rank"] in odd or row["to_rank"] in odd


def _unequal_transports(logs: JobLogs) -> Iterator[Statement]:
    is_explained = _explained(logs)
    edges = [row for row in logs.edges if str(row["transport"]).startswith("NET/") and not is_explained(row)]
    counts = Counter(row["transport"] for row in edges)
    if len(counts) > 1:
        rarest = min(counts, key=lambda name: (counts[name], name))
        pairs = sorted({(row["from_rank"], row["to_rank"]) for row in edges if row["transport"] == rarest})
        transports = ", ".join(f"{count} {name}" for name, count in counts.most_common())
        named = _listed([f"{from_rank} to {to_rank}" for from_rank, to_rank in pairs])
        yield Statement(f"network connections use different transports ({transports}): {rarest} from rank {named}")


def _without_gdr(logs: JobLogs) -> Iterator[Statement]:
    is_explained = _explained(logs)
    network = [row for row in logs.edges if row["gdr"] is not None]
    without = [row for row in network if not row["gdr"] and not is_explained(row)]
    if without:
        every = format_count(len(network), "network connection")
        yield Statement(f"{len(without)} of {every} do not use GPUDirect RDMA (GDR)")


def _without_p2p(logs: JobLogs) -> Iterator[Statement]:
    """Find hosts whose GPUs do not reach each other's memory; of all hosts, worth a word beside slow communication."""
    hosts = {short_host(row["host"]) for row in logs.communicators if row["host"]}
    lacking = {short_host(row["host"]) for row in logs.communicators if row["host"] and row.get("lacks_p2p")}
    if not lacking:
        return
    is_all = lacking == hosts
    ranks = () if is_all else tuple(sorted(rank for rank, node in logs.nodes.items() if node in lacking))
    host = next(iter(lacking)) if len(lacking) == 1 and not is_all else None
    where = "a host" if is_all else _listed(sorted(map(str, lacking)))
    others = "" if is_all else ", unlike those of the other hosts"
    yield Statement(
        f"GPUs of {where} do not reach each other's memory (P2P is disabled){others}",
        ranks,
        host,
        causes=None if is_all or ranks or host else (),
        certainty=None if is_all else "likely",
        is_item=not is_all,
    )


def _below_benchmark(logs: JobLogs) -> Iterator[Statement]:
    for row in logs.slow_network:
        reached = format_bandwidth(row.busbw, of=row.baseline_busbw)
        yield Statement(f"{row.collective} of {row.size_bytes:,} B: {reached} in every step")


def _links(logs: JobLogs, *, is_of_clock: bool = False) -> Iterator[Statement]:
    """Find links that are down or slower than those like them, their events, and counters that stand out.

    `is_of_clock`: the counters of the time for which clocks of GPUs were limited instead.
    """
    odd = by_key((odd_link.link, odd_link) for odd_link in _odd_links(logs))
    for (host, device, what), alike in sorted(odd.items(), key=str):
        if (_OF_CLOCK in what) != is_of_clock:
            continue
        ranks = logs.ranks_of_gpu(host, device, None) if device is not None else ()
        first, count = alike[0], sum(odd_link.errors or 0 for odd_link in alike)
        number = f" ({format_count(len(alike), 'link')})" if first.errors is None else f" {count:,}" if count else ""
        where = f" on {host}" if host is not None else ""
        causes = _OF_PCIE if what.startswith("PCIe") else None
        if host is None and logs.places and logs.node_of(None) is None:
            causes = ()  # of an unknown host: evidence of no rank
        words = f"{what}{number}{_of_known_ranks(ranks)}{where}{first.undated}"
        yield Statement(words, ranks, host, device, causes=causes, certainty=first.certainty)


class _OddLink(NamedTuple):
    link: "_Link"
    certainty: CauseCertainty
    errors: int | None = None
    """0 for none; None: the links of one name are counted."""
    undated: str = ""


def _odd_links(logs: JobLogs) -> Iterator[_OddLink]:
    """Yield links that are down or slow unlike those like them, with events, or with counters that stand out."""
    used = {name.partition(":")[0] for row in logs.communicators for name in row["interfaces"] or () if ":" in name}
    # adapters that NCCL does not use on any host; where its log states none, any may be used
    unused = {row["nic"] for row in logs.links if row["counter"] is None} - used - {None} if used else set()
    yield from _links_down(logs, unused)
    yield from _slower_links(logs, unused)
    yield from _links_with_events(logs)
    for link, count, is_grown in _odd_counters(logs):
        yield _OddLink(link, "likely" if is_grown else "unknown", count)


def _links_down(logs: JobLogs, unused: AbstractSet[str]) -> Iterator[_OddLink]:
    """Yield links that do not work where at most half of their name do not: else all of them are out of use."""
    by_name: dict[tuple[Any, ...], dict[_Link, bool]] = defaultdict(dict)
    for row in logs.links:
        if row["state"] is not None:
            is_down = row["state"] not in _WORKING
            link = row["host"], row["device"], f"{_name_of_link(logs, row)} {row['state'].lower() if is_down else ''}"
            by_name[row["nic"], row["device"] is None, row.get("link")][link] = is_down
    if all(is_down for links in by_name.values() for is_down in links.values()):
        return
    for (nic, *_), links in by_name.items():
        down = [link for link, is_down in links.items() if is_down]
        if len(links) == 1 or 2 * len(down) <= len(links):
            is_doubtful = len(links) == 1 or nic in unused
            yield from (_OddLink(link, "unknown" if is_doubtful else "likely") for link in down)


def _slower_links(logs: JobLogs, unused: AbstractSet[str]) -> Iterator[_OddLink]:
    """Yield links that are slower, or of fewer lanes or a lower PCIe generation, than the fastest one like them.

    NVLinks are compared with each other, adapters with those of the same name.
    """
    by_kind: dict[str, dict[tuple[Any, ...], float]] = defaultdict(lambda: defaultdict(float))
    for row in logs.links:
        is_width = row["counter"] in _WIDTHS
        kind, speed = (row["counter"], row["count"]) if is_width else (row["nic"], row.get("gb_per_s"))
        if speed and row["state"] in (None, *_WORKING):
            speeds, of_link = by_kind[kind], (row["host"], row["device"], _name_of_link(logs, row), row.get("link"))
            speeds[of_link] = max(speeds[of_link], speed)
    for kind, speeds in by_kind.items():
        is_doubtful = kind == PCIE_GENERATION or kind in unused  # idle GPUs lower the generation
        is_width, fastest = kind in _WIDTHS, max(speeds.values())
        for (host, device, name, _), speed in speeds.items():
            if speed < fastest:
                width = f"{kind.removeprefix('PCIe ')} {speed} of {fastest}" if is_width else ""
                link = host, device, f"{name}: {width or format_bandwidth(speed, of=fastest)}"
                yield _OddLink(link, "unknown" if is_doubtful else "likely", 0 if is_width else None)


def _links_with_events(logs: JobLogs) -> Iterator[_OddLink]:
    """Yield links of which a log states events, as that they went down."""
    events = by_key(
        ((row["host"], row["device"], f"{_name_of_link(logs, row)}: {row['counter']}"), row)
        for row in logs.links
        if row.get("is_event")
    )
    for link, rows in events.items():
        undated = _undated(logs, rows)
        yield _OddLink(link, "unknown" if undated else "likely", sum(row["count"] or 0 for row in rows), undated)


_Link = tuple[str | None, int | None, str]
"""The host, the number of the GPU (None: of no GPU), and the name of the link with its counter or state."""
_WORKING: Final = ("active", "Active")
_WIDTHS: Final = (LANES, PCIE_GENERATION)


def _name_of_link(logs: JobLogs, row: Mapping[str, Any]) -> str:
    file = logs.file_of(row)
    counter, is_adapter = row["counter"] or "", row["device"] is None
    kind = "" if _OF_CLOCK in counter else "port of " if is_adapter else "NVLink of "
    subject = row["nic"] or "a NIC" if is_adapter else f"GPU {row['device']}"
    return f"{'PCIe link of ' if counter.startswith('PCIe') else kind}{subject}{'' if file is None else f' in {file}'}"


def _odd_counters(logs: JobLogs) -> Iterator[tuple[_Link, int, bool]]:
    """Return the largest counters, where most links' are far smaller; healthy links have counted errors since boot.

    One that was read in several logs, or at several times, counts with what it grew between them: whether it did.
    """
    readings: dict[tuple[str, _Link, object, object], dict[object, int]] = defaultdict(lambda: defaultdict(int))
    for row in logs.links:
        if row["counter"] not in (None, *_WIDTHS) and not row.get("is_event") and row["count"] is not None:
            link = row["host"], row["device"], f"{_name_of_link(logs, row)}: {row['counter']}"
            counts = readings[row["counter"], link, row["nic"], row.get("link")]
            at = row.get("source"), row.get("time_ns")
            counts[at] = max(counts[at], row["count"])
    of_counter: dict[str, Counter[_Link]] = defaultdict(Counter)
    grown = {link for (_, link, *_), counts in readings.items() if len(counts) > 1}
    for (counter, link, *_), counts in readings.items():
        largest = max(counts.values())
        if largest == _FULL.get(counter):
            yield (link[0], link[1], f"{link[2]} at its largest value,"), largest, False
        else:
            of_counter[counter][link] += largest - (min(counts.values()) if len(counts) > 1 else 0)
    for counter, of_links in of_counter.items():
        if len(of_links) > 1 or not _OF_TRAFFIC.search(counter):
            usual = sorted(of_links.values())[len(of_links) // 4] if len(of_links) > 1 else 0
            least = max(_LIMITS.odd_counter * usual, max(of_links.values()) / _LIMITS.odd_counter)
            for link, count in of_links.most_common(_MOST):
                if count > least and (link in grown or not _is_by_chance(count, of_links)):
                    yield link, count, link in grown


def _is_by_chance(count: int, of_links: Counter[_Link]) -> bool:
    """Return whether one of several links may count as much where all of them count alike, as each does at a boot."""
    chance = binomial_tail(count, of_links.total(), 1 / len(of_links))
    return len(of_links) > 1 and len(of_links) * chance > THRESHOLDS.max_chance


# ---- GPUs


class _Gpu(NamedTuple):
    host: str | None
    device: int | None
    bus_id: str | None
    file: str | None = None
    """The file that stands for its host: see `JobLogs.file_of`."""

    def numbered(self, logs: JobLogs, ranks: Sequence[int]) -> "_Gpu":
        """Return it with the number that the recording of its rank states, where that is known."""
        return self._replace(device=logs.gpu_numbers.get(ranks[0], self.device)) if len(ranks) == 1 else self

    def name(self, ranks: Sequence[int] = ()) -> str:
        """Return what messages call it, with its ranks where they are known."""
        subject = f"GPU {self.device}" if self.device is not None else f"the GPU at {self.bus_id}"
        of_host = f" of {self.host}" if self.host is not None else "" if self.file is None else f" in {self.file}"
        return f"{subject}{of_host}{_of_known_ranks(ranks)}"


def _of_known_ranks(ranks: Sequence[int]) -> str:
    return f" ({format_ranks(ranks)})" if ranks else ""


def _clock_rows(logs: JobLogs) -> dict[_Gpu, list[Mapping[str, Any]]]:
    """Return the samples of each GPU; a row that names no host is of the job's host, if there is one alone."""
    hosts = {place.host for place in logs.places.values() if place.host is not None}
    only = next(iter(hosts)) if len(hosts) == 1 else None
    by_gpu = by_key(
        (
            _Gpu(
                row["host"] or only,
                row["device"],
                row.get("bus_id") if row["device"] is None else None,
                logs.file_of(row),
            ),
            row,
        )
        for row in logs.gpu_clocks
    )
    return {gpu: rows for gpu, rows in by_gpu.items() if gpu.device is not None or gpu.bus_id is not None}


def _limits_of(row: Mapping[str, Any]) -> set[str]:
    """Return what limited a clock in one sample, each once: several reasons may mean the same."""
    return {_SLOWDOWNS[reason] for reason in row["reasons"] or () if reason in _SLOWDOWNS}


class _Clock(NamedTuple):
    """The samples of a GPU's clock, beside those of the other GPUs."""

    gpu: _Gpu
    mhz: float | None
    """Its median."""
    others_mhz: float
    is_lower: bool
    limits: str
    """What limits it in a larger share of its samples than the others' clocks."""
    samples: tuple[str, ...]
    """In how many of its samples each of these limits is active."""
    ranks: tuple[int, ...]
    is_clear: bool
    is_item: bool
    is_free: bool
    """Whether nothing but its power cap, which limits healthy GPUs, too, limits it, nor is it lower for a while."""

    @property
    def told(self) -> tuple[object, ...]:
        """What is said of it: GPUs of a host of which the same is said are one fact."""
        mhz = round(self.mhz) if self.is_lower and self.mhz is not None else None
        return mhz, round(self.others_mhz), self.samples, self.is_clear, self.is_item


def _compare_clocks(logs: JobLogs) -> Iterator[_Clock]:
    """Yield the clock of each GPU that works, as the traces say, beside those of the other GPUs."""
    by_gpu = _clock_rows(logs)
    idle = {gpu for gpu, *_ in _idle_gpus(logs)}
    speeds = {gpu: [row["sm_mhz"] for row in rows if row["sm_mhz"] is not None] for gpu, rows in by_gpu.items()}
    values = np.array([mhz for gpu_mhz in speeds.values() for mhz in gpu_mhz] or [0.0])
    owners = np.repeat(np.arange(len(speeds)), [len(gpu_mhz) for gpu_mhz in speeds.values()])
    usual = float(np.median(values))
    lower = [sum(mhz < THRESHOLDS.whole_share * usual for mhz in gpu_mhz) for gpu_mhz in speeds.values()]
    all_lower, all_speeds = sum(lower), sum(map(len, speeds.values()))
    limited = {gpu: Counter(limit for row in rows for limit in _limits_of(row)) for gpu, rows in by_gpu.items()}
    everywhere: Counter[str] = sum(limited.values(), Counter())
    counts = {gpu: sum(row["reasons"] is not None for row in rows) for gpu, rows in by_gpu.items()}
    samples = sum(counts.values())
    for number, (gpu, rows) in enumerate(by_gpu.items()):
        if gpu in idle:
            continue
        own_mhz, others = median(speeds[gpu] or [0.0]), usual
        if own_mhz and len(speeds) > 1 and own_mhz < usual:
            rest_of_job = values[owners != number]
            others = float(np.median(rest_of_job)) if len(rest_of_job) else 0.0
        is_lower = bool(own_mhz) and len(speeds) > 1 and own_mhz < THRESHOLDS.whole_share * others
        rest = max(samples - counts[gpu], 1)
        # of each limit the share of the GPU's samples, and of the other GPUs'
        shares = {
            limit: (count / counts[gpu], (everywhere[limit] - count) / rest)
            for limit, count in sorted(limited[gpu].items())
        }
        unusual = [limit for limit, (share, elsewhere) in shares.items() if share > elsewhere]
        is_strong = any(shares[limit][0] >= max(0.5, 2 * shares[limit][1]) for limit in unusual)
        own_speeds = len(speeds[gpu])
        lower_elsewhere = (all_lower - lower[number]) / max(all_speeds - own_speeds, 1)
        is_lower_for_a_while = lower[number] > own_speeds * max(1 - THRESHOLDS.whole_share, lower_elsewhere)
        ranks = logs.ranks_of_gpu(gpu.host, gpu.device, gpu.bus_id or rows[0].get("bus_id"))
        yield _Clock(
            gpu.numbered(logs, ranks),
            own_mhz or None,
            others,
            is_lower,
            " and ".join(unusual),
            tuple(
                "the only sample" if counts[gpu] == 1 else f"{count} of {counts[gpu]} samples"
                for count in dict.fromkeys(limited[gpu][limit] for limit in unusual)
            ),
            ranks,
            is_lower or is_strong,
            is_lower or (is_strong and not _EXPECTED.issuperset(unusual)),
            _EXPECTED.issuperset(limited[gpu]) and not is_lower_for_a_while,
        )


def _clocks(logs: JobLogs) -> Iterator[Statement]:
    """Find GPUs whose clock is lower than the others', or limited in a larger share of its samples."""
    gpus_of_host = Counter(gpu.host for gpu in _clock_rows(logs))
    slow = (clock for clock in _compare_clocks(logs) if clock.is_lower or clock.limits)
    for (host, limits), clocks in by_key(((clock.gpu.host, clock.limits), clock) for clock in slow).items():
        is_node = host is not None and 2 * len(clocks) > gpus_of_host[host]
        alike = by_key((clock.gpu if host is None else None if is_node else clock.told, clock) for clock in clocks)
        for clocks_alike in alike.values():
            yield _describe_clocks(clocks_alike, limits)


def _usual_clocks(logs: JobLogs) -> Iterator[Statement]:
    """Find GPUs whose clock is that of the others, and is not limited: what makes them slow is something else."""
    clocks = list(_compare_clocks(logs))
    if len(clocks) < THRESHOLDS.min_repeats or any(clock.mhz is None for clock in clocks):
        return
    usual = [clock for clock in clocks if clock.ranks and clock.is_free and not clock.is_lower and not clock.limits]
    for host, alike in sorted(by_key((clock.gpu.host, clock) for clock in usual).items(), key=str):
        ranks = tuple(sorted(rank for clock in alike for rank in clock.ranks))
        mhz = median(clock.mhz for clock in alike if clock.mhz is not None)
        words = f"{_name_gpus(alike, ranks)}: clock of {mhz:,.0f} MHz, as on the other GPUs"
        yield Statement(words, ranks, host, alike[0].gpu.device if len(alike) == 1 else None)


def _name_gpus(clocks: Sequence[_Clock], ranks: Sequence[int]) -> str:
    gpu = clocks[0].gpu
    return gpu.name(ranks) if len(clocks) == 1 else f"{len(clocks)} GPUs of {gpu.host}{_of_known_ranks(ranks)}"


def _describe_clocks(alike: Sequence[_Clock], limits: str) -> Statement:
    """Describe the clocks of one GPU, or of the GPUs of a host that have the same limits."""
    first, is_one = alike[0], len(alike) == 1
    speeds = [f"{mhz:,.0f}" for mhz in sorted(clock.mhz for clock in alike if clock.is_lower and clock.mhz)]
    by = f" limited by {limits if is_one else limits.replace('its', 'their')}" if limits else ""
    speed = f": {' to '.join(dict.fromkeys((speeds[0], speeds[-1])))} of {first.others_mhz:,.0f} MHz" if speeds else ""
    parts = ["the other GPUs' median"] if speeds else []
    if len({clock.samples for clock in alike}) == 1:
        parts += [f"in {samples}" for samples in first.samples]
    ranks = tuple(sorted(rank for clock in alike for rank in clock.ranks))
    return Statement(
        f"{_name_gpus(alike, ranks)}{by}{speed}{', ' if speed and parts else ' ' if parts else ''}{', '.join(parts)}",
        ranks,
        first.gpu.host,
        first.gpu.device if is_one else None,
        f"GPU{'' if is_one else 's'}{by}{speed}" if by else f"GPU{speed.replace(':', ' at')}",
        None if ranks else (),  # the GPU of an unknown rank is evidence of no rank
        "certain" if any(clock.is_clear for clock in alike) else "likely",
        any(clock.is_item for clock in alike),
    )


def _power_caps(logs: JobLogs) -> Iterator[Statement]:
    """Find GPUs whose power is capped lower than most GPUs'; at its cap, a slow GPU is slow for that."""
    caps = {
        gpu: (median(known), rows)
        for gpu, rows in _clock_rows(logs).items()
        if (known := [row["power_cap_w"] for row in rows if row.get("power_cap_w")])
    }
    counts = Counter(cap for cap, _ in caps.values())
    usual = max(counts, key=lambda cap: (counts[cap], cap), default=0.0)
    alike = by_key(((gpu.host, cap), gpu) for gpu, (cap, _) in caps.items() if cap < THRESHOLDS.whole_share * usual)
    for (host, cap), gpus in sorted(alike.items(), key=str):
        ranks = tuple(sorted({rank for gpu in gpus for rank in logs.ranks_of_gpu(gpu.host, gpu.device, gpu.bus_id)}))
        drawn = [row["power_w"] for gpu in gpus for row in caps[gpu][1] if row.get("power_w") is not None]
        is_at_cap = bool(drawn) and median(drawn) >= THRESHOLDS.whole_share * cap
        where = f" of {host}" if host is not None else ""
        is_one = len(gpus) == 1
        subject = (
            gpus[0].numbered(logs, ranks).name(ranks) if is_one else f"{len(gpus)} GPUs{where}{_of_known_ranks(ranks)}"
        )
        yield Statement(
            f"{subject}: power cap {cap:,.0f} W, most GPUs: {usual:,.0f} W",
            ranks,
            host,
            gpus[0].numbered(logs, ranks).device if is_one else None,
            f"GPU's power is capped at {cap:,.0f} of {usual:,.0f} W",
            None if ranks else (),
            "certain" if is_at_cap else "likely",
        )


def _all_limited(logs: JobLogs) -> Iterator[Statement]:
    by_gpu = _clock_rows(logs)
    samples = sum(row["reasons"] is not None for rows in by_gpu.values() for row in rows)
    counts = Counter(limit for rows in by_gpu.values() for row in rows for limit in _limits_of(row))
    for limit, count in sorted(counts.items()):
        gpus = sum(any(limit in _limits_of(row) for row in rows) for rows in by_gpu.values())
        if 2 * gpus > len(by_gpu) > 1 and 2 * count >= samples:
            by = limit.replace("its", "their")
            words = f"{gpus} of {len(by_gpu)} GPUs are limited by {by} ({count} of {samples} samples)"
            yield Statement(words, is_item=limit not in _EXPECTED)


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


def _idle_and_busy(logs: JobLogs) -> Iterator[Statement]:
    for gpu, ranks, idle, samples in _idle_gpus(logs):
        words = (
            f"the clock log calls {gpu.name()} idle in {idle} of {samples} samples during the steps, and the trace of "
            f"{format_ranks(ranks)} has kernels there: the trace is believed, which records each kernel; the log may "
            "be of another GPU, so its clocks are not used"
        )
        yield Statement(words, ranks, gpu.host, gpu.device)


def _errors(logs: JobLogs) -> Iterator[Statement]:
    """Find GPUs and switches with errors; those of which each error follows from the program are told apart."""
    return (said for codes, said in _errors_by_gpu(logs) if not _OF_PROGRAM.issuperset(codes))


def _faults_of_program(logs: JobLogs) -> Iterator[Statement]:
    """Find GPUs whose errors are all of the program: many GPUs have them where a job is ended."""
    of_program = ((codes, said) for codes, said in _errors_by_gpu(logs) if _OF_PROGRAM.issuperset(codes))
    for codes, of_gpus in by_key((tuple(sorted(codes)), said) for codes, said in of_program).items():
        listed = of_gpus
        if len(of_gpus) > _MOST:
            hosts = {said.host for said in of_gpus if said.host is not None}
            where = f"on {format_count(len(hosts), 'host')}" if hosts else "in kernel logs"
            words = f"{_listed([f'Xid {code}' for code in codes])} of {len(of_gpus)} GPUs {where}"
            listed = [Statement(words, tuple(sorted({rank for said in of_gpus for rank in said.ranks})))]
        for said in listed:
            words = f"{said.words}, which a program's own fault or its end causes, too"
            yield said._replace(words=words, causes=None, certainty=None)


def _errors_by_gpu(logs: JobLogs) -> Iterator[tuple[Counter[int], Statement]]:
    """Return what is told of the errors of each GPU and switch, with how often each error number occurs."""
    by_gpu = by_key(
        (_Gpu(row["host"], row.get("device"), row["bus_id"]), row) for row in logs.gpu_errors if row["code"] is not None
    )
    for gpu_of_rows, rows in sorted(by_gpu.items(), key=lambda gpu_rows: (-len(gpu_rows[1]), str(gpu_rows[0]))):
        (host, device, bus_id, _), codes = gpu_of_rows, _count_codes(rows, is_of_one_host=gpu_of_rows.host is not None)
        files = {PurePath(row["source"]).name if row.get("source") else "a kernel log" for row in rows}
        ranks = logs.ranks_of_gpu(host, device, bus_id)
        device = gpu_of_rows.numbered(logs, ranks).device
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
            _NETWORK
            if all(_is_of_switch(code) or code in _LINK_ERRORS for code in codes.keys() - _OF_PROGRAM or codes)
            else _OF_ERRORS
        )
        where = f"on {host}" if host is not None else f"in {_listed(sorted(files))}"
        if not ranks and host is None:
            causes = ()  # of an unknown host: evidence of no rank
        undated = _undated(logs, rows)
        certainty: CauseCertainty | None = "unknown" if undated or not ranks else None
        words = f"{_listed(listed)}{gpu} {where}{undated}"
        yield codes, Statement(words, ranks, host, device, causes=causes, certainty=certainty)


def _count_codes(rows: Rows, *, is_of_one_host: bool) -> Counter[int]:
    """Return how often each error of a GPU occurs; files of one host repeat what they state of one time, or of none."""
    stated = Counter((row["code"], row.get("time_ns"), row.get("source")) for row in rows)
    events: dict[tuple[Any, ...], int] = {}
    for (code, time_ns, source), count in stated.items():
        event = code, time_ns, None if is_of_one_host else source
        events[event] = max(count, events.get(event, 0))
    codes: Counter[int] = Counter()
    for (code, *_), count in events.items():
        codes[code] += count
    return codes


def _memory(logs: JobLogs) -> Iterator[Statement]:
    """Find GPUs with errors of their memory that could not be corrected; without a time, of the GPU's whole life."""
    by_gpu = by_key(
        (_Gpu(row["host"], row["device"], row["bus_id"], logs.file_of(row)), row)
        for row in logs.gpu_errors
        if row.get("memory") is not None
    )
    for gpu, rows in sorted(by_gpu.items(), key=lambda gpu_rows: str(gpu_rows[0])):
        errors = by_key((row["memory"], row["count"] or 0) for row in rows)
        counts = {what: max(of_kind) for what, of_kind in errors.items()}
        ranks = logs.ranks_of_gpu(gpu.host, gpu.device, gpu.bus_id)
        gpu = gpu.numbered(logs, ranks)  # noqa: PLW2901
        what = ", ".join(f"{what} {count:,}" for what, count in counts.items())
        source = "" if all(": " in what for what in counts) else " (nvidia-smi)"  # the others name theirs
        words = f"{gpu.name(ranks)}: {what}{source}"
        is_dated = any(row.get("time_ns") is not None for row in rows)  # counters are not, and count since boot
        certainty: CauseCertainty | None = None if is_dated else "unknown"
        yield Statement(words, ranks, gpu.host, gpu.device, causes=None if ranks else (), certainty=certainty)


def _undated(logs: JobLogs, rows: Rows) -> str:
    """Return what to add of errors that no row dates, as lines of `dmesg` with the time since boot: any day's."""
    is_dated = not logs.step_times_ns or any(row.get("time_ns") is not None for row in rows)
    return "" if is_dated else ", at a time that the log does not state"


def _is_of_switch(code: int) -> bool:
    return code >= 10_000  # SXids


# ---- hosts


def _incidents(kind: str, words: str, *, is_told: bool = True) -> Callable[[JobLogs], Iterator[Statement]]:
    """Return a rule that finds the ranks, GPUs and hosts with incidents of a kind.

    Without `is_told` they tell something of a host only beside a finding, and only where not all hosts have them.
    """

    def find(logs: JobLogs) -> Iterator[Statement]:
        has_detail = kind in ("pcie", "memory", "file_system", "state", "load")
        alike = by_key(
            ((row["rank"], host, row["bus_id"], row["detail"] if has_detail else None), row)
            for row in logs.incidents
            if row["kind"] == kind
            for host in logs.hosts_in(row["host"])
        )
        nodes = {logs.node_of(host) for _, host, *_ in alike}
        is_everywhere = not is_told and len(nodes) > 1 and nodes.issuperset(logs.nodes.values())
        for (rank, host, bus_id, detail), rows in sorted(alike.items(), key=str):
            of_gpu = logs.ranks_of_gpu(host, None, bus_id) if bus_id is not None else ()
            ranks = (rank,) if rank is not None else of_gpu
            device = f"the device at {bus_id}" if bus_id is not None else None
            of_host = host if device is not None else f"on {host or 'a host'}"
            named = [f"rank {rank}"] if rank is not None else [name for name in (device, of_host) if name is not None]
            counts = [row["count"] or 1 for row in rows]
            # a count since the beginning of the program grows
            is_growing = kind == "allocator" and any(row["detail"] for row in rows)
            count = max(counts) if is_growing else sum(counts)
            seconds = max(row["seconds"] or 0 for row in rows)
            held = f" for {seconds:.0f} s" if seconds else ""
            said = words.format(
                n=format_count(count, "time"),
                errors=format_count(count, f"{detail} PCIe error"),
                detail=rows[0]["detail"] or "out of service",
                held=held + (f" by {rows[0]['detail']}" if rows[0]["detail"] else ""),
                seconds=seconds,
                times=f" ({count} times)" if count > 1 else "",
            )
            undated = "" if kind == "allocator" else _undated(logs, rows)
            yield Statement(
                f"{' of '.join(named)}{_of_known_ranks(of_gpu)}: {said}{undated}",
                ranks,
                host,
                causes=None if ranks or host is not None else (),  # of an unknown host: evidence of no rank
                certainty="unknown" if undated or is_everywhere else None,
                is_item=is_told and (detail != "corrected" or count >= _LIMITS.min_corrected),
            )

    return find


# ---- placement


def _shared_threads(logs: JobLogs) -> Iterator[Statement]:
    bound = logs.bound
    alike = by_key((len(shared) == len(bound.cpus[rank]), rank) for rank, shared in bound.sharing.items() if shared)
    for is_all, ranks in alike.items():
        # ranks that are not bound at all share everything, and harm nobody where there are threads for all
        is_odd = is_all and 2 * len(ranks) < len(bound.rows)
        some = "all" if is_all else "some"
        does = f"{{:shares {some} of its|share {some} of their}} hardware threads with other ranks".format(Ranks(ranks))
        words = _of_ranks(does, ranks, list(bound.rows))
        reason = "launches late on shared hardware threads"
        yield Statement(words, tuple(sorted(ranks)), reason=reason, certainty="certain" if is_odd else None)


def _far_threads(logs: JobLogs) -> Iterator[Statement]:
    bound = logs.bound
    gpus = {rank: gpu for rank in bound.rows if (gpu := bound.gpu_of(rank)) in bound.near}
    far = [rank for rank, gpu in gpus.items() if bound.is_far(rank, gpu)]
    assumed = {rank for rank in far if bound.devices.get(rank) is None and len(bound.rows[rank]["gpus"] or ()) > 1}
    for is_assumed, ranks in by_key((rank in assumed, rank) for rank in far).items():
        does = f"{Ranks(ranks):runs on hardware threads far from its GPU|run on hardware threads far from their GPUs}"
        known = ", if a rank uses the GPU of its number on the node" if is_assumed else ""
        words = f"{_of_ranks(does, ranks, list(gpus))}{known}"
        certainty: CauseCertainty | None = "unknown" if is_assumed else None
        yield Statement(words, tuple(sorted(ranks)), causes=() if is_assumed else None, certainty=certainty)


def _of_ranks(does: str, ranks: Sequence[int], every: Sequence[int]) -> str:
    return f"{len(ranks)} of {format_count(len(every), 'rank')} {does} ({_name_ranks(ranks, every)})"


def _conflicts(logs: JobLogs) -> Iterator[Statement]:
    conflicts = {rank: place.conflicts for rank, place in logs.places.items() if place.conflicts}
    if conflicts:
        first, clauses = next(iter(conflicts.items()))
        others = [rank for rank in conflicts if rank != first]
        rest = f", and so do {format_ranks(others)}" if others else ""
        words = (
            f"rank {first} has {'; '.join(clauses)}{rest}: their logs may be of another job; no log is joined to them "
        )
        yield Statement(f"{words}by what differs", tuple(conflicts))


def _contested(logs: JobLogs) -> Iterator[Statement]:
    for ranks, files in logs.contested:
        named = _listed([PurePath(file).name for file in files])
        state = f"the files {named} state" if len(files) > 1 else f"the file {named} states"
        words = f"{state} different hosts or networks of "
        said = f"{words}{format_ranks(ranks)}, as of two runs: what NCCL says there is not used"
        yield Statement(said, ranks)


# ---- training


def _profiler_overhead(logs: JobLogs) -> Iterator[Statement]:
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
            yield Statement(
                f"recorded steps take {format_percent(ratio - 1)} longer than the {format_count(len(others), 'step')} "
                f"that the training log times without the profiler ({times if is_timed else ''}medians): the profiler, "
                "or what else these steps do, costs that"
            )


def _name_ranks(chosen: Sequence[int], every: Sequence[int]) -> str:
    """Name the chosen ranks, or if they are most of all, the others."""
    others = set(every) - set(chosen)
    if not others:
        return "all"
    return f"all but {format_numbers(others)}" if len(others) < len(chosen) else format_numbers(chosen)


_CHECK_FABRIC: Final = "check the network plug-in, NCCL_IB_DISABLE, NCCL_NET and the adapters of these nodes"

RULES: Final[tuple[Rule, ...]] = (
    Rule("network", _NETWORK, "certain", _over_tcp, _CHECK_FABRIC),
    Rule("network", _NETWORK, "likely", _unlike("network", _fabric), _CHECK_FABRIC),
    Rule("network", _NETWORK, "certain", _all_over_tcp, _CHECK_FABRIC),
    Rule("network", _NETWORK, "likely", _failed_plugins, _CHECK_FABRIC),
    Rule("network", _NETWORK, "likely", _unlike("adapters of", _protocol, of_equal=True),
         "check that the ranks of a job are on one fabric"),
    Rule("network", _NETWORK, "likely", _odd_adapters,
         "check NCCL_IB_HCA and that each rank finds the adapters of its node"),
    Rule("network", _NETWORK, "unknown", _other_interfaces),
    Rule("network", _NETWORK, "unknown", _unequal_transports),
    Rule("network", _NETWORK, "unknown", _without_gdr, "check NCCL_NET_GDR_LEVEL and the driver's peer memory module"),
    Rule("network", _NETWORK, "unknown", _without_p2p,
         "check NCCL_P2P_DISABLE and NCCL_P2P_LEVEL, the IOMMU, and PCIe access control (ACS)"),
    Rule("network", _NETWORK, "unknown", _links,
         "check the cable or the slot of that link, and the port at its other end"),
    Rule("network", _NETWORK, "unknown", lambda logs: map(Statement, describe_proxies(logs.proxied)), is_item=False),
    Rule("network", _NETWORK, "unknown", _unlike("version", itemgetter("version"))),
    Rule("network", _NETWORK, "unknown", _below_benchmark, is_item=False),
    Rule("contradiction", _GPU_CAUSES, "unknown", _idle_and_busy),
    Rule("gpu_clock", _GPU_CAUSES, "certain", _clocks, "check the GPU's cooling and its power limit"),
    Rule("gpu_clock", _GPU_CAUSES, "unknown", _usual_clocks,
         "check what else runs on the GPU, its memory for errors and its PCIe link", is_item=False, excludes=True),
    Rule("gpu_clock", _GPU_CAUSES, "likely", _power_caps, "give the GPU the power limit of the others"),
    Rule("gpu_clock", _GPU_CAUSES, "unknown", partial(_links, is_of_clock=True),
         "check the GPU's cooling and its power limit"),
    Rule("gpu_clock", _GPU_CAUSES, "unknown", _all_limited, "check the cooling and the power limits"),
    Rule("gpu_error", _OF_ERRORS, "likely", _errors, "read the kernel log; reset or replace the GPU"),
    Rule("gpu_error", (), "unknown", _faults_of_program,
         "read the log of the program that ran there for its first error; what stays with one GPU whatever runs is a "
         "fault of the GPU"),
    Rule("gpu_error", _OF_ERRORS, "likely", _memory, "reset the GPU; replace it where errors come back"),
    Rule("exit", (), "unknown", lambda logs: map(Statement, describe_exits(logs.exits))),
    Rule("host", (*_HOST_CAUSES, "sync_calls"), "likely",
         _incidents("allocator", "PyTorch's allocator ran out of GPU memory {n} and freed its cache"),
         "use less memory, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
    Rule("host", _HOST_CAUSES, "likely",
         _incidents("soft_lockup", "a processor was held in the kernel{held}{times}"),
         "read the host's kernel log for what holds it"),
    Rule("host", _HOST_CAUSES, "likely",
         _incidents("hung_task", "{detail} was blocked in the kernel for more than {seconds:.0f} s{times}"),
         "check the host's file systems and its driver: that is what such a process waits for"),
    Rule("host", _HOST_CAUSES, "likely", _incidents("cpu_heat", "the clock of a processor was lowered for heat{times}"),
         "check the host's cooling"),
    Rule("host", _HOST_CAUSES, "likely", _incidents("file_system", "no access to {detail}{times}"),
         "check the file system and the host's network to it"),
    Rule("host", _HOST_CAUSES, "unknown", _incidents("memory", "{detail} errors of the memory{times}"),
         "replace the memory module that the kernel log names"),
    # healthy hosts are busy, too
    Rule("host", _HOST_CAUSES, "likely", _incidents("load", "{detail}{times}", is_told=False),
         "look for what else runs on the host"),
    Rule("host", _HOST_CAUSES, "likely",
         _incidents("cpu_clock", "processors ran below their base clock{times}", is_told=False),
         "check the host's power settings and its cooling"),
    Rule("host", (*_HOST_CAUSES, *_GPU_CAUSES, *_NETWORK), "unknown", _incidents("state", "{detail}"),
         "ask the cluster's administrators for the reason"),
    Rule("host", _OF_PCIE, "unknown", _incidents("pcie", "{errors}"), "check the slot, the riser and the link's speed"),
    Rule("placement", _HOST_CAUSES, "unknown", _shared_threads, "bind each rank to CPU cores of its own"),
    Rule("placement", _HOST_CAUSES, "likely", _far_threads, "bind each rank to the CPU cores near its GPU"),
    Rule("profiler", (), "unknown", _profiler_overhead, "record fewer activities: no stacks, no shapes, no memory"),
    Rule("contradiction", (), "unknown", _contested),
    Rule("contradiction", (), "unknown", _conflicts),
)  # fmt: skip
"""In their order of precedence: the first that applies to a finding comes first in its evidence."""
