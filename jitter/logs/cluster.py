"""How processes ended, and what held up hosts, by launchers, schedulers and the system."""

import re
from dataclasses import replace
from functools import partial
from math import inf
from typing import Final

from jitter.logs.declared import KILLED, Columns, Patterns, Values, rule
from jitter.logs.line_parser import Context
from jitter.logs.values import number

_NODES: Final = r"(?P<host>[A-Za-z0-9][\w.,\[\]-]{0,253})"
_OUT: Final = r"[\w+*]*(?:DOWN|DRAIN|FAIL|NOT_RESPONDING)"
_REASON: Final = r"(?P<why>.{1,200}?) \[[^\s@\]]{0,64}@(?P<time_ns>[^\s\]]{1,40})\]"
_ENDS: Final = ("NODE_FAIL", "OUT_OF_MEMORY")
_OUT_OF_SERVICE: Final = "out of service in Slurm ({why})"
_SWAPPED_PAGES: Final = 250
"""A second, 1,000 KiB. The system swaps less than that also on a healthy host: memory that no program uses."""
_LOADS: Final = (
    (("si", "so"), 4 * _SWAPPED_PAGES, inf, "memory was swapped"),
    (("pswpin/s", "pswpout/s"), _SWAPPED_PAGES, inf, "memory was swapped"),
    (("majflt/s",), _SWAPPED_PAGES, inf, "programs waited for pages of theirs from disks"),
    (("st",), 5, inf, "other virtual machines had its processors"),
    (("%steal",), 5, inf, "other virtual machines had its processors"),
    (("id", "wa"), 0, 2, "all processors were busy"),
    (("%idle", "%iowait"), 0, 2, "all processors were busy"),
)
"""Columns of vmstat (KiB, %) and of sar and mpstat (pages, %), the least and the most of their sum, what it means."""
_SLOW_CLOCK: Final = 0.95
"""Of the base clock (TSC): processors that work run at it at least, to the accuracy of a sample."""
_WORKING_PERCENT: Final = 1
"""Of their time: processors that work less are idle, and at any clock."""


def _sacct(row: Values, context: Context) -> Values | None:
    state, nodes = row["State"], row.get("NodeList", "")
    if state not in _ENDS:
        return None
    host = nodes if re.fullmatch(r"[\w.-]+", nodes) else None
    if state == "OUT_OF_MEMORY" and host is not None:
        return {**KILLED, "host": host}
    job = f"job {row['JobID'].partition('.')[0]}"
    return {"manner": state, "stated_by": "sacct", "host": nodes or None, "process": job}


def _condition(match: re.Match[str], before: str) -> Values | None:
    """Return a condition that is not as it should be."""
    if (match["is"] == "True") == (match["what"] == "Ready"):
        return None
    what = "NotReady" if match["what"] == "Ready" else match["what"]
    return {"detail": f"{what} in Kubernetes", "time_ns": match["time_ns"]}


def _load(row: Values, context: Context) -> Values | None:
    if row.get("CPU", "all") != "all":
        return None
    for columns, least, most, detail in _LOADS:
        stated = [number(row.get(column, "").replace(",", ".")) for column in columns]
        known = [value for value in stated if value is not None]
        if len(known) == len(stated) and least <= sum(known) <= most:
            return {"kind": "load", "detail": detail, "count": 1, **_time_of_day(row)}
    return None


def _time_of_day(row: Values) -> Values:
    """Return the time of a row with a day, as of sar's or mpstat's banner: `2/23/2025`, `23.02.25`, `2025-02-23`."""
    clock, day = next(iter(re.findall(r"\b\d\d:\d\d:\d\d\b", " ".join(row.values()))), None), row.get("day")
    if clock is None or day is None:
        return {}
    first, second, third = map(int, re.split(r"[-./]", day))
    year, month, of_month = (first, second, third) if first > 31 else (third % 100 + 2000, first, second)
    if month > 12 or "." in day:
        month, of_month = of_month, month
    half = row.get("AM") or row.get("PM") or row.get("half")
    hour = int(clock[:2]) % 12 + 12 * (half == "PM") if half else int(clock[:2])
    return {"time_ns": f"{year}-{month:02}-{of_month:02} {hour:02}{clock[2:]}"}


def _processors(row: Values, context: Context) -> Values | None:
    """Return that processors ran below their base clock, where they worked."""
    busy, mhz, base_mhz = (number(row.get(column, "")) for column in ("Busy%", "Bzy_MHz", "TSC_MHz"))
    if busy is None or mhz is None or base_mhz is None or busy < _WORKING_PERCENT or mhz >= _SLOW_CLOCK * base_mhz:
        return None
    return {"kind": "cpu_clock", "count": 1}


_CLOCKS: Final = r"(?=.*\bBzy_MHz\b)(?=.*\bTSC_MHz\b)"
# `turbostat`, with `-S` a row alone; without, the row of all processors, below which theirs lack the last columns
_TURBOSTAT: Final = Columns(
    "turbostat",
    (b"Bzy_MHz",),
    "incidents",
    {"time_ns": "Time_Of_Day_Seconds", "kind": "Bzy_MHz"},
    rf"^(?=.*\bCPU\b){_CLOCKS}",
    gaps=r"\s+",
    row=r"(?:[\d.]+\s+){0,2}-\s",
    values=_processors,
)
_state: Final = partial(rule, "incidents", kind="state", count=1)

FORMATS: Final = (
    Patterns(
        "torchrun-failures",
        (
            # torch/distributed/elastic/multiprocessing/errors/__init__.py
            rule("exits", r"^\s*\[\d{1,6}\]:\s*$", begins=True, is_first=True, stated_by="torchrun"),
            rule(None, r"^\s*time\s+: (?P<day>\d{4}-\d\d-\d\d)_(?P<time>\d\d:\d\d:\d\d)\s*$",
                 values=lambda match, before: {"time_ns": f"{match['day']} {match['time']}"}),
            rule(None, r"^\s*host\s+: <host>\s*$"),
            rule(None, r"^\s*rank\s+: <rank> \(local_rank: \d{1,6}\)\s*$"),
            rule(None, r"^\s*exitcode\s*: (?P<exit_code>-?\d{1,9}) \(pid: \d{1,9}\)"),
        ),
        (b"Root Cause (first observed failure):",),
        opens=r"^\s*Root Cause \(first observed failure\):",
        closes=r"^\s*={10,}\s*$",
    ),
    Patterns(
        "slurm",
        (
            # a task is a rank where srun starts each rank, and a node where it starts torchrun
            rule("exits",
                 rf"\bsrun: error: {_NODES}: tasks? (?P<tasks>[\d,-]{{1,200}}): "
                 r"(?P<manner>Exited with exit code <exit_code>|[A-Z][a-zA-Z ]{2,40})", b"srun: error: ",
                 stated_by="srun"),
            rule("exits", rf"\b(?:srun: error: Node failure on|Killing JobId=\d{{1,10}} on failed node) {_NODES}",
                 *(b"srun: error: ", b" on failed node "), manner="node failure", stated_by="slurmctld"),
            rule("exits", r"(?:\bslurmstepd-<host>: )?\berror: Detected \d{1,9} oom[_-]kill event",
                 *(b"oom_kill event", b"oom-kill event"), **KILLED),
            # slurmctld.log
            _state(rf"\berror: Nodes {_NODES} not responding", b"error: Nodes ", detail="not responding to Slurm"),
            _state(rf"\bnode {_NODES} (?:reason set to|state to \w{{1,20}} with reason): ?(?P<why>.{{1,200}})",
                   *(b" reason set to: ", b" with reason:"), detail=_OUT_OF_SERVICE),
        ),
    ),
    # `sacct -P`: of jobs that ended for a node or for memory; with several nodes it does not state which of them
    Columns(
        "sacct",
        (b"|State",),
        "exits",
        {"time_ns": "End", "host": "NodeList"},
        r"^(?=[\w|]*\bState\b)(?=[\w|]*\bJobID\b)\w+(?:\|\w*)+$",
        gaps=r"\|",
        row=r"[^|]*\|",
        values=_sacct,
        closes=r"^[^|]*$",
    ),
    # `scontrol show node`, where `-o` prints each node in one line: of nodes out of service the reason and its time
    Patterns(
        "scontrol-node",
        (
            _state(rf"^NodeName=<host> (?>.{{1,2000}}?\bState=){_OUT}(?>.{{0,4000}}?\bReason=){_REASON}",
                   detail=_OUT_OF_SERVICE),
            rule(None, r"^NodeName=<host>\b"),
            _state(rf"^\s+State={_OUT}", begins=True),
            rule(None, rf"^\s+Reason={_REASON}", detail=_OUT_OF_SERVICE),
        ),
        (b"NodeName=",),
        opens="^NodeName=",
    ),
    # `sinfo -R`, which cuts reasons
    Patterns(
        "sinfo",
        (
            _state(rf"^(?P<why>\S.{{0,40}}?) +\S+ +(?P<time_ns>\d{{4}}-\d\d-\d\dT[\d:]{{8}}) {_NODES}\s*$",
                   detail=_OUT_OF_SERVICE),
        ),
        (b"REASON  ",),
        opens=r"^REASON +USER +TIMESTAMP +NODELIST",
    ),
    # `kubectl get events`, whose times are ages
    Patterns(
        "kubectl-events",
        (
            rule("exits",
                 r"^(?:\S{1,64}\s+)?\w{1,12}\s+Warning\s+(?:SystemOOM|OOMKilling)\s+(?:node|pod)/<host>\s"
                 r"(?:.{0,200}?(?:victim process: |Killed process \d{1,10} \()(?P<process>[\w.:-]{1,32}))?", **KILLED),
            _state(r"^(?:\S{1,64}\s+)?\w{1,12}\s+(?:Warning|Normal)\s+(?P<what>Evicted|Preempted|Rebooted|NodeNotReady|"
                   r"NodeHas(?:InsufficientMemory|DiskPressure|InsufficientPID))\s+(?:node|pod)/<host>\s",
                   detail="{what} in Kubernetes"),
        ),
        (b" node/", b" pod/"),
    ),
    # `kubectl describe`: what ended a pod's containers before; conditions of a node, each with the time of its change
    Patterns(
        "kubectl-describe",
        (
            rule(None, r"^Name:\s+<host>\s*$"),
            rule("exits", r"^\s+Reason:\s+OOMKilled\s*$", begins=True,
                 values=lambda match, before: {"time_ns": None},  # not that of the container before
                 **KILLED),
            rule(None, r"^\s+Finished:\s+(?P<time_ns>\S.*)$"),
            _state(r"^Reason:\s+(?P<what>Evicted|NodeLost|Preempting)\s*$", detail="{what} in Kubernetes"),
            _state(r"^\s+(?P<what>\w{1,64}Pressure|NetworkUnavailable|Ready)\s+(?P<is>True|False|Unknown)\s+"
                   r"\w{3}, .{22,28}?\s+(?P<time_ns>\w{3}, \d\d \w{3} \d{4} [\d:]{8} \S{3,5})\s", values=_condition),
        ),
        (b"Name:  ",),
        opens=r"^Name:\s+\S",
    ),
    # `kubectl get pods`, `get nodes`, with `-A` of all namespaces
    Patterns(
        "kubectl-get",
        (
            rule("exits", r"^(?:\S{1,64}\s+)?<host>\s+\d{1,4}/\d{1,4}\s+OOMKilled\s", **KILLED),
            _state(r"^(?:\S{1,64}\s+)?<host>\s+\d{1,4}/\d{1,4}\s+(?P<what>Evicted)\s", detail="{what} in Kubernetes"),
            _state(r"^<host>\s+(?P<what>NotReady)\S{0,64}\s+\S+\s+\w{1,16}\s+v\d", detail="{what} in Kubernetes"),
        ),
        (b"NAME  ",),
        opens=r"^(?:NAMESPACE\s+)?NAME\s+(?:READY\s+STATUS|STATUS\s+ROLES)\s",
        closes=r"^\s*$",
    ),
    # `ipmitool sel list` and `elist`: what a host's management controller saw
    Patterns(
        "ipmi-sel",
        (
            _state(r"^\s*[0-9a-f]{1,6} +\| +(?P<day>\d\d/\d\d/\d{2,4}) +\| +(?P<time>\d\d:\d\d:\d\d)"
                   r"(?: (?P<half>[AP]M))?(?: [A-Z]{2,5})? +\| (?P<what>[^|]{1,80}?) +\| "
                   r"(?P<event>(?:Upper|Lower) (?:Critical|Non-recoverable) going \w{3,4}|Failure detected|Throttled"
                   r"|Power Supply AC lost|Thermal Trip|Uncorrectable ECC)[^|]{0,80}\| Asserted", b"| Asserted",
                   detail="{what}: {event}, by its management controller",
                   values=lambda match, _: _time_of_day({key: text or "" for key, text in match.groupdict().items()})),
        ),
    ),
    # `vmstat -t`, whose last column has the name of the time zone; the first row is a mean since boot
    Columns(
        "vmstat",
        (b" swpd ",),
        "incidents",
        {"time_ns": r"[A-Z]{2,5}|[+-]\d\d"},
        r"^\s*r\s+b\s+swpd\s",
        gaps=r"\s+(?!\d\d:)",
        row=r"\s*\d+\s+\d+\s",
        values=_load,
        begins_with_mean=True,
    ),
    # `sar -u`, `-P ALL`, `-B` and `-W`, and `mpstat`
    Columns(
        "sar",
        (b" CPU)", b"%idle", b"majflt/s", b"pswpin/s"),
        "incidents",
        {"detail": "%idle|majflt/s|pswpout/s"},
        r"^\d\d:\d\d:\d\d(?: [AP]M)?\s+(?:CPU\s+%us|pgpgin/s|pswpin/s)",
        gaps=r"\s+",
        row=r"\d\d:\d\d:\d\d(?: [AP]M)?\s+(?:all|[\d.,]+)\s",
        values=_load,
        closes=r"^\s*$|^Average:",
        banner=r"^Linux \S+ \((?P<host>[\w.-]{1,253})\)\s+(?P<day>\d{1,4}[-./]\d\d[-./]\d{2,4})\s",
    ),
    # `cpu.stat` of a control group, which counts since it was made
    Patterns(
        "cpu-stat",
        (
            rule("incidents", r"^nr_throttled [1-9]\d{0,17}\s*$", b"nr_throttled ", kind="load", count=1,
                 detail="the quota of processor time of its control group was used up"),
        ),
    ),
    _TURBOSTAT,
    replace(_TURBOSTAT, header=rf"^(?!.*\bCPU\b){_CLOCKS}", row=r"[\d.]+\s"),
)  # fmt: skip
