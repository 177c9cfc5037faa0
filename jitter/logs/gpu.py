"""Logs of GPUs and of the links between them: clocks, power, temperature, errors.

Reasons for a lower clock: NVML's bits (nvml.h) and the names that nvidia-smi prints, `clocks_event_reasons.*`, to
driver 535 `clocks_throttle_reasons.*`. Times since boot, or without a year, are unknown.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from jitter.logs.declared import KILLED, Columns, ColumnsParser, Patterns, Rule, Values, rule
from jitter.logs.line_parser import Context
from jitter.logs.values import bus_address, number

_BITS: Final = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
_BLANK: Final = 9e18
"""DCGM prints values from here on for a measurement that it does not have."""


def _reasons_of_mask(mask: int) -> list[str]:
    """Return the names of the set bits; a bit without a known name is `bit_0x200`."""
    unknown = mask & ~sum(_BITS)
    return [
        *(name for bit, name in _BITS.items() if mask & bit),
        *(f"bit_{1 << at:#x}" for at in range(unknown.bit_length()) if unknown >> at & 1),
    ]


def _reason_of_name(name: str) -> str | None:
    """Return the reason that a printed name means ("SW Power Cap", "sw_power_cap"), or None."""
    words = name.strip().lower().replace(" ", "_")
    words = {"idle": "gpu_idle", "hw_power_brake": "hw_power_brake_slowdown"}.get(words, words)
    return words if words in _BITS.values() else None


def _nvidia_row(row: Values, context: Context) -> Values:
    mask, named, are_stated = None, [], False
    for name, value in row.items():
        if match := re.fullmatch(r"clocks_(?:event|throttle)_reasons\.(\w+)", name.partition(" ")[0]):
            if match[1] == "active":
                mask = value if value.startswith("0x") else None
            elif reason := _reason_of_name(match[1]):
                are_stated = True
                named += [reason] if value == "Active" else []
    device = row.get("index", "")
    if not device.isdigit() and not any(name.endswith("bus_id") for name in row):
        context.problems.note(
            "nvidia-smi", "names no GPU: query `index` or `pci.bus_id` too, else its rank is not known"
        )
    return {
        "device": device if device.isdigit() else None,
        "reasons": _reasons_of_mask(int(mask, 16)) if mask else named if are_stated else None,
    }


def _dcgmi_xid(row: Values, context: Context) -> Values:
    return {"device": row["Entity"], "code": row["XIDER"] if row["XIDER"].isdigit() else "0"}


def _dcgmi_row(row: Values, context: Context) -> Values:
    mask = next((number(row[name]) for name in ("DVCCTR", "CLKTR") if name in row), None)
    return {"device": row["Entity"], "reasons": None if mask is None else _reasons_of_mask(int(mask))}


def _dcgmi_counter(metric: str, row: Values, context: Context) -> Values:
    return {"device": row["Entity"], "counter": _DCGM["links"][metric]["counter"]}


# `dcgmi dmon -e 100,112,150,155`: short names of fields (dcgm_fields.cpp), no times
_DCGMI: Final = Columns(
    "dcgmi-dmon",
    (b"Entity",),
    "gpu_clocks",
    {"sm_mhz": "SMCLK", "power_w": "POWER", "temp_c": "TMPTR"},
    r"^\s*(?:#\s*)?Entity\s",
    words=r"GPU[ -](?=\d)|#",
    row=r"\s*GPU[ -]\d{1,4}\s",
    values=_dcgmi_row,
)

_VIOLATIONS: Final = {"pviol": "sw_power_cap", "tviol": "sw_thermal_slowdown"}
"""Columns of `nvidia-smi dmon`: part of the time, in %, and whether."""


def _dmon_row(row: Values, context: Context) -> Values:
    day = re.fullmatch(r"(\d{4})(\d\d)(\d\d)", row.get("Date", ""))
    limits = {reason: row[name] for name, reason in _VIOLATIONS.items() if row.get(name, "-") != "-"}
    return {
        "time_ns": f"{'-'.join(day.groups())} {row['Time']}" if day and "Time" in row else None,
        "reasons": [reason for reason, value in limits.items() if number(value)] if limits else None,
    }


def _amd_row(row: Values, context: Context) -> Values:
    device = re.fullmatch(r"(?:card)?(\d{1,4})", row.get("device", row.get("gpu", "")))
    clock = next(
        (value for name, value in row.items() if re.fullmatch(r"sclk clock speed:?|gfx_0_clk|gfx_clk|clk", name)), ""
    )
    status = row.get("throttle_status")
    return {
        "device": device[1] if device else None,
        "sm_mhz": number(clock.strip("()")),
        "time_ns": context.times.read(row.get("timestamp", "")),
        "reasons": {"THROTTLED": ["throttled"], "UNTHROTTLED": []}.get(status or ""),
    }


_DCGM: Final[Mapping[str, Mapping[str, Values]]] = {
    "gpu_clocks": {
        "SM_CLOCK": {"sm_mhz": float},
        "GPU_TEMP": {"temp_c": float},
        "POWER_USAGE": {"power_w": float},
        "POWER_MGMT_LIMIT": {"power_cap_w": float},
        "CLOCK_THROTTLE_REASONS": {"reasons": lambda value: _reasons_of_mask(int(value))},
        "CLOCKS_EVENT_REASONS": {"reasons": lambda value: _reasons_of_mask(int(value))},
    },
    "gpu_errors": {
        "ECC_DBE_VOL_TOTAL": {"count": int, "memory": "DCGM: double-bit errors"},
        "UNCORRECTABLE_REMAPPED_ROWS": {"count": int, "memory": "DCGM: rows remapped for uncorrectable errors"},
        "ROW_REMAP_FAILURE": {"count": int, "memory": "DCGM: failures to remap rows"},
    },
    "links": {
        "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": {"count": int, "counter": "CRC flit"},
        "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": {"count": int, "counter": "CRC data"},
        "NVLINK_REPLAY_ERROR_COUNT_TOTAL": {"count": int, "counter": "Replay"},
        "NVLINK_RECOVERY_ERROR_COUNT_TOTAL": {"count": int, "counter": "Recovery"},
        "PCIE_LINK_WIDTH": {"count": int, "counter": "PCIe lanes"},
        "PCIE_LINK_GEN": {"count": int, "counter": "PCIe generation"},
        "PCIE_REPLAY_COUNTER": {"count": int, "counter": "PCIe replays"},
        "POWER_VIOLATION": {"count": int, "counter": "DCGM's counter of limits by power"},
        "THERMAL_VIOLATION": {"count": int, "counter": "DCGM's counter of limits by heat"},
    },
}
"""By relation, what each metric of a GPU states: by column a text, or what makes it of the value."""
_LAST_XID: Final[Mapping[str, Values]] = {"XID_ERRORS": {"code": int}}
_PORTS: Final[Mapping[str, Values]] = {
    "state_id": {"state": lambda value: "Active" if value == 4 else "Down"},
    "rate_bytes_per_second": {"gb_per_s": lambda value: value / 1e9},
    "symbol_error_total": {"count": int, "counter": "symbol_error"},
    "link_error_recovery_total": {"count": int, "counter": "link_error_recovery"},
    "link_downed_total": {"count": int, "counter": "link_downed"},
    "port_errors_received_total": {"count": int, "counter": "port_rcv_errors"},
    "port_discards_transmitted_total": {"count": int, "counter": "port_xmit_discards"},
    "port_transmit_wait_total": {"count": int, "counter": "port_xmit_wait"},
    "local_link_integrity_errors_total": {"count": int, "counter": "local_link_integrity_errors"},
    "excessive_buffer_overrun_errors_total": {"count": int, "counter": "excessive_buffer_overrun_errors"},
}
"""Likewise what each metric of an adapter's port states; counters by the kernel's names."""
_AMD_METRICS: Final[Mapping[str, Mapping[str, Values]]] = {
    "gpu_clocks": {
        "gpu_clock": {"sm_mhz": float},
        "gpu_junction_temperature": {"temp_c": float},
        "gpu_package_power": {"power_w": float},
    },
    "gpu_errors": {"gpu_ecc_uncorrect_total": {"count": int, "memory": "amd-smi: uncorrectable errors"}},
    "links": {"pcie_replay_count": {"count": int, "counter": "PCIe replays"}},
}
"""Likewise of AMD's device metrics exporter."""
_INSTANCE: Final = re.compile(r"(?!localhost)(?P<host>[A-Za-z][\w.-]{0,253}):\d{1,5}")
"""The source that Prometheus asked, where it is named and no address."""


def _metrics_rule(prefix: str, relation: str, metrics: Mapping[str, Values], gauge: str | None = None) -> Rule:
    has_time = relation != "gpu_errors" or gauge is not None  # counters count since boot

    def values(match: re.Match[str], before: str) -> Values | None:
        """Return what a metric states; None for a value that is blank, and for a GPU without errors."""
        value = float(match["value"])
        if value >= _BLANK or (not value and not has_time):
            return None
        labels = dict(re.findall(r'\b(\w+)="([^"]*)"', match["labels"]))
        if labels.get("clock_type", "GPU_CLOCK_TYPE_SYSTEM") != "GPU_CLOCK_TYPE_SYSTEM":
            return None
        stated, asked = metrics[match["name"]].items(), _INSTANCE.fullmatch(labels.get("instance", ""))
        device = labels.get("gpu", labels.get("gpu_id"))
        return {
            "device": device,
            "nic": labels.get("device") if device is None else None,
            "link": labels.get("port"),
            "host": labels.get("Hostname") or labels.get("hostname") or (asked and asked["host"]),
            "bus_id": bus_address(labels.get("pci_bus_id", "")),
            "time_ns": int(match["ms"]) * 1_000_000 if match["ms"] and has_time else None,
            **{column: made if isinstance(made, str) else made(value) for column, made in stated},
        }

    names = "|".join(metrics)
    return rule(
        relation,
        rf'^{prefix}(?P<name>{names})\{{(?P<labels>(?:[^"}}]|"(?:[^"\\]|\\.)*")*)\}} '
        r"(?P<value>\d[\d.e+]*)(?: (?P<ms>\d{13}))?",
        values=values,
        gauge=gauge,
    )


DCGM: Final = Patterns(
    "dcgm-exporter",
    (
        *(_metrics_rule("DCGM_FI_DEV_", *metrics) for metrics in _DCGM.items()),
        _metrics_rule("DCGM_FI_DEV_", "gpu_errors", _LAST_XID, "code"),
    ),
    (b"DCGM_FI_DEV_",),
)
"""DCGM's exporter for Prometheus: a line a metric and GPU."""
_NODE_EXPORTER: Final = Patterns(
    "node-exporter", (_metrics_rule("node_infiniband_", "links", _PORTS),), (b"node_infiniband_",)
)
_AMD_EXPORTER: Final = Patterns(
    "amd-exporter",
    tuple(_metrics_rule("(?:amd_)?", *metrics) for metrics in _AMD_METRICS.items()),
    tuple(f"{name}{{".encode() for metrics in _AMD_METRICS.values() for name in metrics),
)
EXPORTERS: Final = (DCGM, _NODE_EXPORTER, _AMD_EXPORTER)


def read_prometheus(answer: Any, context: Context) -> None:
    """Read what Prometheus answers of metrics of GPUs and adapters: each sample as the exporter prints it."""
    parsers = [declared.parser(context) for declared in EXPORTERS]
    for at, one in enumerate(answer["data"]["result"], 1):
        labels = ",".join(f'{name}="{value}"' for name, value in one["metric"].items())
        for seconds, value in one.get("values") or [one["value"]]:
            line = f"{one['metric'].get('__name__')}{{{labels}}} {value} {round(float(seconds) * 1000)}"
            for parser in parsers:
                parser.read_line(line.encode(), at)


def _stated(title: str, tag: str, value: str) -> str:
    """Return the pattern of a value in the report of `nvidia-smi -q`, or `-q -x`."""
    return rf"^\s+(?:{title}\s+: |<{tag}>){value}(?![\w.])"


def _stated_reason(match: re.Match[str], before: str) -> Values | None:
    reason = _reason_of_name(match["why"] or match["tag"])
    return None if reason is None else {"reasons": [reason] if match["is"] == "Active" else []}


_STATUS: Final = {
    "4": "access outside of registered memory",
    "5": "flushed after another error",
    "9": "refused by the peer",
    "10": "refused by the peer",
    "11": "failed on the peer",
    "12": "no answer from the peer, retries exceeded",
    "13": "the peer was not ready, retries exceeded",
}
"""`ibv_wc_status` of rdma-core's verbs.h."""
_ECC: Final = {"CE": "corrected", "UE": "uncorrected"}
_event: Final = partial(rule, "links", count=1, is_event=True)
_incident: Final = partial(rule, "incidents", count=1)
_of_tcp: Final = partial(rule, "links", nic="any adapter", counter="TCP segments sent again")


def _completion(match: re.Match[str], before: str) -> Values:
    status = match["status"]
    words = f" ({_STATUS[status]})" if status in _STATUS else ""
    return {"nic": match["nic"], "counter": f"NCCL transfers with status {status}{words}"}


def _failed_call(match: re.Match[str], before: str) -> Values:
    why = f" ({match['why']})" if match["why"] else ""
    return {"nic": match["nic"], "link": match["link"], "counter": f"{match['call']} failed{why}"}


def _amdgpu(match: re.Match[str], before: str) -> Values:
    what = f"uncorrectable hardware errors{' in ' + match['block'] if match['block'] else ''}"
    return {
        "bus_id": match["bus_id"],
        "memory": f"amdgpu: {what if match['error'] else 'resets of the GPU'}",
        "count": match["count"] or 1,
    }


_REMAPPED: Final = {
    "u": "rows remapped for uncorrectable errors",
    "p": "row remapping pending",
    "r": "row remapping failed",
    "f": "row remapping failed",
}
"""By the first letter of what nvidia-smi calls it."""
_IS_SO: Final = "(?:Yes|GPU requires reset)"
_FABRIC: Final = {
    "Full": "active",
    "False": "active",
    "Degraded": "of degraded bandwidth",
    "True": "with an unhealthy route",
}
"""State of a GPU's NVLinks by the health of their fabric."""
_NO_MEMORY: Final = r"^(?!.*(?i:module|memory))"
"""Titles of sections that are of the whole GPU."""

# `nvidia-smi -q`, with `-x` XML: a report, GPU after GPU, whose place in it is its number if none is left out (`-i`);
# errors are of any time
_NVIDIA_REPORT: Final = Patterns(
    "nvidia-smi-q",
    (
        rule(None, r"^(?:Timestamp\s+: |\s+<timestamp>)(?P<time_ns>[^<]+)"),
        rule(None, r"^\s*(?:Attached GPUs\s+: |<attached_gpus>)<of>"),
        rule("gpu_clocks", r'^(?:GPU |\s+<gpu id=")<bus_id>(?:\s*$|">)', begins=True, numbered="device"),
        rule(None,
             _stated(r"(?P<why>[A-Z]\w*(?: \w+)*)", r"clocks_\w{1,9}_reason_(?P<tag>\w+)", "(?P<is>(?:Not )?Active)"),
             values=_stated_reason),
        rule(None, _stated("GPU Current Temp", "gpu_temp", "<temp_c>")),
        rule(None, _stated("(?:Instantaneous |Average )?Power Draw", "(?:instant_|average_)?power_draw", "<power_w>"),
             section=_NO_MEMORY),
        rule(None, _stated("(?:Enforced|Current) Power Limit", "(?:enforced|current)_power_limit", "<power_cap_w>"),
             section=_NO_MEMORY),
        rule(None, _stated("SM", "sm_clock", "<sm_mhz>"), section="^[Cc]locks$"),
        rule("links", _stated("Current", "current_link_width", "<count>x"), section="^(?i:link.width)",
             counter="PCIe lanes"),
        rule("links", _stated("Current", "current_link_gen", "<count>"), section="^(?i:pcie.gen)",
             counter="PCIe generation"),
        rule("links", _stated("Replays Since Reset", "replay_counter", "<count>"), counter="PCIe replays"),
        rule("links",
             r"^\s+(?:<clocks_event_reasons_counters_)?(?P<of>(?i:sw.power.cap|[sh]w.therm|hw.power.brak)[\w ]{0,40}?)"
             r"(?:\s+: |>)<count> us", counter="nvidia-smi's counter of {of}, us"),
        rule("gpu_errors",
             r"^\s+<?(?P<what>(?i:[ds]ram.uncorrectable)[\w -]{0,40}?)(?:\s+: |>)(?P<count>[1-9]\d*)\s*(?:$|<)",
             memory="{what} errors", time_ns=None),
        rule("gpu_errors",
             r"^\s+(?:<remapped_row_)?(Uncorrectable Error|unc|[Pp]ending|Remapping Failure Occurred|failure)"
             rf"(?:\s+: |>)(?:([1-9]\d*)|{_IS_SO})\s*(?:$|<)",
             section="^(?i:remapped.rows)$", time_ns=None,
             values=lambda match, _: {"memory": _REMAPPED[match[1][0].lower()], "count": match[2] or "1"}),
        # of drivers from 550 on; repairs are of memory channels and of parts of the processor
        rule("gpu_errors", rf"^\s+(?P<memory>(?:Channel|TPC) Repair Pending|Unrepairable Memory)\s+: {_IS_SO}\s*$",
             count=1, time_ns=None),
        rule("gpu_errors", r"^\s+GPU Recovery Action\s+: (?P<what>(?!None|N/A)\S.{0,40}?)\s*$",
             memory="recovery actions ({what})", count=1, time_ns=None),
        rule("links", r"^\s+(?:Bandwidth|Route Unhealthy)\s+: (?P<is>Full|Degraded|True|False)\s*$", section="^Health$",
             values=lambda match, _: {"state": _FABRIC[match["is"]]}),
    ),
    (b"NVSMI LOG", b"<nvidia_smi_log>"),
    opens="NVSMI LOG|<nvidia_smi_log>",
    section=r"\s+<?([A-Za-z][\w()]*(?: [\w()]+)*)>?\s*",
)  # fmt: skip


_NO_SOFTWARE: Final = "^(?!Deployment)"
"""Titles of sections of `dcgmi diag` that are of GPUs."""


def read_dcgm_diagnostic(answer: Any, context: Context) -> None:
    """Read what `dcgmi diag -j` (DCGM 3 and 4) says of tests that a GPU failed; those of the software are left out."""
    (report,) = (one for one in answer.values() if "test_categories" in one)
    categories = (category for category in report["test_categories"] if category["category"] != "Deployment")
    for test in (test for category in categories for test in category["tests"] if test is not None):
        for result in test["results"]:
            if result["status"].lower() == "fail":
                for gpu in str(result.get("gpu_ids", result.get("entity_id"))).split(","):
                    failed = f"DCGM's diagnostic: failures of {test['name']}"
                    context.add("dcgmi-diag", "gpu_errors", device=int(gpu), memory=failed, count=1)


# `rocm-smi --csv`, `amd-smi metric --csv`: what a column is called has changed from version to version
_AMD_CSV: Final = Columns(
    "amd-smi",
    tuple(b"Temperature (Sensor|Graphics Package Power|clock speed|socket_power|gfx_0_clk|hotspot|gfx_clk".split(b"|")),
    "gpu_clocks",
    {
        "temp_c": r"Temperature \(Sensor junction\) \(C\)|hotspot|hotspot_temperature|"
        r"Temperature \(Sensor edge\) \(C\)|edge|edge_temperature|temperature",
        "power_w": r"Current Socket Graphics Package Power \(W\)|Average Graphics Package Power \(W\)|socket_power|"
        r"average_socket_power|current_socket_power|power_usage",
        "power_cap_w": r"Max Graphics Package Power \(W\)|Current Power Cap \(W\)|power_cap|power_limit|max_power",
        "bus_id": r"PCI Bus|gpu_bdf|bdf",
    },
    r"(?i)^\s*(?:timestamp,)?(?:device|gpu),",
    row=r"\s*(?:\d{10},|\d{4}-\d\d-\d\d[T ][\d:.+]+,)?(?:card)?\d{1,4},",
    values=_amd_row,
)

# `nvidia-smi --query-gpu=… --format=csv`, with or without units; without a header nothing names the columns
_NVIDIA_CSV: Final = Columns(
    "nvidia-smi",
    (b"clocks.", b"power.draw", b"temperature.gpu", b"clocks_event_reasons", b"clocks_throttle_reasons"),
    "gpu_clocks",
    {
        "time_ns": "timestamp",
        "host": "host(?:name)?",
        "bus_id": r"(?:gpu_bus_id)|pci\.bus_id",
        "sm_mhz": r"clocks\.current\.sm.*|clocks\.sm.*|clocks\.current\.graphics.*|clocks\.gr.*",
        "power_w": r"power\.draw\.instant.*|power\.draw( .*)?|power\.draw\.average.*",
        "power_cap_w": r"enforced\.power\.limit.*|power\.limit.*",
        "temp_c": r"temperature\.gpu.*",
    },
    r"^(?=.*(?:clocks|power\.|temperature|pcie|ecc|remapped))"
    r"\s*[a-z_][\w.]*(?: \[[^\]]*\])?(?:, *[a-z_][\w.]*(?: \[[^\]]*\])?)+$",
    row=r"\s*\d.*,",
    values=_nvidia_row,
)


def _counts(base: Columns, relation: str, column: str, what: str) -> Columns:
    """Return the format of a counter in a table of GPUs; errors count since boot, or for the GPU's life: undated."""

    def values(row: Values, context: Context) -> Values | None:
        device = (row.get("index") or row.get("gpu", "")).removeprefix("card")
        count = row.get(column, "").replace("Yes", "1").replace("No", "0")
        if not count.isdigit() or not device.isdigit() or (relation == "gpu_errors" and count == "0"):
            return None
        named = {"counter": what} if relation == "links" else {"memory": what, "time_ns": None}
        return {**named, "device": device, "count": count}

    trigger = f",{column}" if base is _AMD_CSV else column
    return replace(base, relation=relation, triggers=(trigger.encode(),), values=values)


_COUNTS: Final = (
    _counts(_NVIDIA_CSV, "links", "pcie.link.width.current", "PCIe lanes"),
    _counts(_NVIDIA_CSV, "links", "pcie.link.gen.current", "PCIe generation"),
    _counts(_NVIDIA_CSV, "links", "pcie.link.gen.gpucurrent", "PCIe generation"),
    _counts(_NVIDIA_CSV, "gpu_errors", "ecc.errors.uncorrected.volatile.total", "errors of memory since boot"),
    _counts(_NVIDIA_CSV, "gpu_errors", "remapped_rows.uncorrectable", _REMAPPED["u"]),
    _counts(_NVIDIA_CSV, "gpu_errors", "remapped_rows.pending", _REMAPPED["p"]),
    _counts(_NVIDIA_CSV, "gpu_errors", "remapped_rows.failure", _REMAPPED["f"]),
    _counts(_AMD_CSV, "links", "width", "PCIe lanes"),
    _counts(_AMD_CSV, "links", "replay_count", "PCIe replays"),
    _counts(_AMD_CSV, "gpu_errors", "total_uncorrectable_count", "amd-smi: uncorrectable errors"),
)


def read_amd_json(answer: Any, context: Context) -> None:
    """Read `rocm-smi --json` or `amd-smi metric --json`: each GPU's values as in the CSV file of the same program."""
    answer = answer.get("gpu_data", answer) if isinstance(answer, dict) else answer
    if isinstance(answer, dict):
        answer = [{"device": name, **_dict(of_gpu)} for name, of_gpu in answer.items()]
    gpus = answer if isinstance(answer, list) else []
    parsers = [ColumnsParser(context, declared) for declared in (_AMD_CSV, *_COUNTS)]
    for at, of_gpu in enumerate(gpus, 1):
        cells = dict(sorted(_cells(_dict(of_gpu)), key=lambda cell: (cell[0] != "timestamp", cell[0] not in _NUMBERS)))
        if _NUMBERS.intersection(cells):
            for line in (cells, cells.values()):
                for parser in parsers:
                    parser.read_line(",".join(line).encode(), at)


_NUMBERS: Final = frozenset(("device", "gpu"))


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _cells(values: Mapping[str, Any], section: str = "") -> Iterator[tuple[str, str]]:
    """Return names and values as the CSV file has them: `clock.gfx_0.clk.value` is its `gfx_0_clk`."""
    for name, value in values.items():
        stated = value.get("value", value) if isinstance(value, dict) else value
        if isinstance(stated, dict):
            yield from _cells(stated, f"{section}{name}_" if section or name.startswith("gfx_") else "")
        elif isinstance(stated, str | int | float):
            yield f"{section}{name}".replace(",", " "), str(stated).replace(",", " ").replace('"', "")


_OF_PORT: Final = "|".join(
    (
        # InfiniBand's by perfquery, and as the kernel has them
        "SymbolErrorCounter|LinkErrorRecoveryCounter|LinkDownedCounter|PortRcvErrors|PortXmitDiscards|PortXmitWait",
        "LocalLinkIntegrityErrors|ExcessiveBufferOverrunErrors|local_link_integrity_errors|excessive_buffer_overrun_errors",
        "symbol_error|link_error_recovery|link_downed|port_rcv_errors|port_xmit_discards|port_xmit_wait",
        # of packets that mlx5 and EFA had to send again
        "local_ack_timeout_err|packet_seq_err|rnr_nak_retry_err|roce_adp_retrans|retrans_(?:pkts|timeout_events)",
        "(?:unresponsive_remote|impaired_remote_conn)_events",
        "Symbol Errors|Effective Physical Errors|Link Down Counter|Link Error Recovery Counter",
        # of errors of the wire, of packets that found no room, and of pauses
        r"rx_(?:pcs_)?symbol_err_phy|(?:port\.)?rx_crc_errors(?:_phy|\.nic)?|link_down_events_phy|[rt]x_discards_phy",
        r"[rt]x_pause_ctrl_phy|[rt]x_prio\d_(?:pause|discards)|tx_pause_storm_error_events",
    )
)
"""Counters of adapters' ports: of errors, and of times at which a port had data and could not send."""
_IP_ERRORS: Final = r"^\s+\d{1,20}\s+\d{1,20}\s+<count>(?:\s+\d{1,20}){2,4}\s*$"

# dmesg and syslog: drivers of GPUs and adapters, and the kernel's own lines of processes and of the PCI bus
_KERNEL_LOG: Final = Patterns(
    "kernel-log",
    (
        # `NVRM: Xid (PCI:0000:9b:00): 119, …`, `nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, …`
        rule("gpu_errors", r"\bS?Xid \((?:PCI:)?<bus_id>\): (?P<code>\d{1,6})\b", b"Xid ("),
        # a GPU that the driver finds fallen off the bus, said in three lines without an Xid; of one that it does
        # not support, it says more in the first
        rule("gpu_errors", r"\bNVRM: The NVIDIA GPU <bus_id>\s*(?:$|#012)", b"NVRM: The NVIDIA GPU ", code=79),
        # `mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link DOWN` of InfiniBand, `… ens1f0np0: Link down` and
        # `ice 0000:17:00.0 ens2f0: NIC Link is Down` of Ethernet, `cxi0[hsn0]: CXI_EVENT_LINK_DOWN` of Slingshot
        _event(r"[ \[](?P<nic>[a-z][\w.-]{0,63})\]?:? (?:Port: <link> )?"
               r"(?:(?:NIC )?Link (?:is )?(?:DOWN|[Dd]own)|CXI_EVENT_LINK_DOWN)\b",
               *(b"Link DOWN", b"Link down", b"Link is Down", b"Link is down", b"_LINK_DOWN"),
               counter="link down events"),
        # of 5.8 on `bond0: (slave ens4f0): link status definitely down, …`, before `… down for interface ens4f0, …`
        _event(r"(?:\(slave |definitely down for interface )<nic>(?:\): link status definitely down)?, disabling",
               b" definitely down", counter="link down events in its bond"),
        _event(r"\bmlx5_core [0-9a-f:.]{7,16}: .{0,160}?"
               r"(?P<what>health compromised|[Hh]igh [Tt]emperature|Bus stuck|Bad or shorted cable"
               r"|Power budget exceeded)", b"mlx5_core ", counter="adapter's {what}"),
        # `ice 0000:17:00.0 ens2f0: NETDEV WATCHDOG: CPU: 1: transmit queue 3 timed out 5312 ms`; older kernels name the
        # adapter behind: `NETDEV WATCHDOG: ens2f0 (ice): transmit queue 3 timed out`
        _event(r"(?:[ \]](?!kernel:)(?P<nic>[a-z][\w.-]{0,63}): )?NETDEV WATCHDOG: "
               r"(?:(?P<name>[a-z][\w.-]{0,63}) )?.{0,60}?transmit queue \d{1,5} timed out", b"NETDEV WATCHDOG",
               values=lambda match, _: {"nic": match["nic"] or match["name"]}, counter="transmissions that timed out"),
        # of adapters, by their drivers: `mlx5_core 0000:5e:00.0: 63.008 Gb/s available PCIe bandwidth, …`
        rule("links", r"(?<!\bpci) (?P<nic>[0-9a-f:.]{7,16}): (?P<gbit>[\d.]{1,16}) Gb/s available PCIe bandwidth",
             b" available PCIe bandwidth", counter="PCIe",
             values=lambda match, _: {"nic": f"the adapter at {match['nic']}", "gb_per_s": float(match["gbit"]) / 8}),
        # `amdgpu 0000:05:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block`, `GPU reset begin!`
        rule("gpu_errors",
             r"\bamdgpu <bus_id>: .{0,120}?"
             r"(?:(?P<error>(?:\b(?P<count>[1-9]\d{0,17}) (?:new )?)?uncorrectable hardware errors?\b)"
             r"(?:\(\w{1,80}\))? detected(?: in (?P<block>\w{1,40}) block)?|GPU reset begin)", b"amdgpu ",
             values=_amdgpu),
        rule("gpu_clocks", r"\bamdgpu <bus_id>: .{0,40}?GPU is throttled, expect performance decrease",
             b"GPU is throttled", reasons=["throttled"]),
        # aer.c; to 6.9 `Corrected error received: 0000:02:00.0`, later `Correctable error message received from …`
        _incident(r" AER: (?:Multiple )?(?P<how>Correct|Uncorrect)(?:ed|able)(?: \((?:Non-)?Fatal\))? error "
                  r"(?:message )?received(?::| from) <bus_id>", b" AER: ",
                  values=lambda match, before: {"bus_id": match["bus_id"], "detail": f"{match['how']}ed".lower()},
                  kind="pcie"),
        # watchdog.c, hung_task.c, oom_kill.c
        _incident(r"\b(?:soft lockup - CPU#\d{1,6} stuck for <seconds>s!(?: \[(?P<detail>[^\]]{1,32}):\d{1,10}\])?"
                  r"|detected hard LOCKUP on cpu|INFO: rcu_\w{1,16} (?:self-)?detected stalls? on CPU)",
                  *(b"soft lockup", b"hard LOCKUP", b"INFO: rcu_"), kind="soft_lockup"),
        _incident(r"\bINFO: task (?P<detail>\S.{0,31}?):\d{1,10} blocked for more than <seconds> seconds",
                  b" blocked for more ", kind="hung_task"),
        # therm_throt.c, of a core or of its package
        _incident(r"CPU\d{1,6}: (?:Core|Package) temperature (?:is )?above threshold, cpu clock",
                  b"above threshold, cpu clock", kind="cpu_heat"),
        _incident(r"\bnfs: server \S{1,255} not responding, (?:still trying|timed out)", b" not responding, ",
                  kind="file_system", detail="an NFS server"),
        # `nvme nvme0: I/O 123 QID 4 timeout, aborting`, newer `I/O tag 123 (307b) opcode 0x1 …`; blk-core.c
        _incident(r"\bnvme (?P<disk>nvme\d{1,3}): I/O .{0,100}?\btimeout,", b": I/O ", kind="file_system",
                  detail="the disk {disk}"),
        _incident(r"\bI/O error, dev (?P<disk>(?!fd|sr|loop)\w{1,32}),", b"I/O error, dev ", kind="file_system",
                  detail="the disk {disk}"),
        # `Lustre: x-OST3-osc-ff: Connection to … was lost`, `… Request sent has timed out … o4->x-OST3-osc-ff@…`,
        # `LustreError: 167-0: x-MDT0-mdc-ff: This client was evicted by x-MDT0`
        _incident(r"\bLustre(?:Error)?:(?=.{0,400}?[ >](?P<target>[\w-]{1,64}?)-(?:osc|mdc)-\w)"
                  r".{0,600}?(?:\bwas (?:lost|evicted)\b|Request sent has (?:timed out|failed))",
                  *(b"Lustre: ", b"LustreError: "), kind="file_system", detail="Lustre's {target}"),
        # edac_mc.c: `EDAC MC0: 1 CE memory read error on CPU_SrcID#0…`
        _incident(r"\bEDAC MC\d{1,3}: <count> (?P<how>CE|UE) ", b"EDAC MC", kind="memory",
                  values=lambda match, _: {"count": match["count"], "detail": _ECC[match["how"]]}),
        rule("exits", r"\bKilled process \d{1,10} \((?P<process>[^()]{1,32})\)", b"Killed process ", **KILLED),
    ),
    mention=r"\bS?Xid \(",
)  # fmt: skip
# NCCL's net_ib.cc, ibvwrap.cc and the plug-ins made after them; 2.4 to 2.12 print `error` for `status=`
_NCCL_DEBUG: Final = Patterns(
    "nccl-debug",
    (
        rule("exits", r"(?<=NCCL WARN )Cuda failure (?:\d{1,4} )?'(?P<what>(?!driver shutting)[^']{3,100})'",
             b" Cuda failure ",
             # without multicast over NVSwitches NCCL goes on
             values=lambda match, before: None if "nvls.cc:" in before else {}, manner="CUDA error: {what}",
             stated_by="program"),
        _event(r"NET/IB\w{0,16} ?: ?Got completion (?:from peer \S{1,300} )?with (?:status=|error )"
               r"(?P<status>\d{1,3})(?=\D)(?:.{0,400} hca <nic>\s*$)?", b"Got completion ", values=_completion),
        _event(r"NET/OFI Request .{0,40}?completed with error\. RC: \d{1,4}\. Error: (?P<why>[\w (),:-]{1,80})",
               b"NET/OFI Request", counter="OFI requests failed ({why})"),
        _event(r"NET/IB\w{0,16} ?: (?:<nic>:<link> )?(?:Got (?:non-fatal )?async event|"
               r"async fatal event(?: on \w{1,16} \(\w{1,20}\))?) ?: ?"
               r"(?=[a-zA-Z -]{0,80}(?:err|fatal|catastrophic))(?P<counter>[a-zA-Z][a-zA-Z -]{1,79}[a-zA-Z])",
               b" async "),
        _event(r"\bCall to (?P<call>ibv_\w{1,40}) failed"
               r"(?: with (?:error )?(?:\d{1,4} )?(?P<why>[A-Z][a-z ]{2,60}))?(?:.{0,60}? on dev <nic>:<link>)?",
               b"Call to ibv_", values=_failed_call),
    ),
)  # fmt: skip

FORMATS: Final = (
    _NVIDIA_CSV,
    *_COUNTS,
    # `nvidia-smi`: a box of two or three lines a GPU, first number, PCI address and errors, then temperature and power
    Patterns(
        "nvidia-smi-table",
        (
            rule("gpu_clocks", r"^\s*\|\s+<device>\s+\S.{0,80}?\|\s*<bus_id>", begins=True),
            rule(None,
                 r"^\s*\|\s*(?:N/A|ERR!|\d{1,3}%)\s+(?:<temp_c>C|\S{1,9})\s+P\d{1,2}\s+"
                 r"(?:<power_w>W|\S{1,9})\s*/\s*<power_cap_w>W\s*\|"),
        ),
        (b"| 000000", b"|   000000", b"W |"),
    ),
    Patterns(
        "nvidia-smi-table",
        (
            rule("gpu_errors", r"\|\s*<bus_id>\s+\w+\s*\|\s*(?P<count>[1-9]\d{0,17}) \|",
                 memory="uncorrected errors since the driver began"),
            # what nvidia-smi prints in place of a table, or in it, of a GPU that fell off the bus
            rule("gpu_errors",
                 r"^Unable to determine the device handle for (?:gpu|GPU) ?<bus_id>: (?:GPU is lost|Unknown Error)",
                 code=79),
        ),
        (b"| 000000", b"|   000000", b"the device handle for "),
    ),
    _NVIDIA_REPORT,
    _DCGMI,
    replace(_DCGMI, relation="gpu_errors", columns={"code": "XIDER"}, values=_dcgmi_xid, gauge="code"),
    replace(_DCGMI, relation="links", columns={"count": "PVIOL"}, values=partial(_dcgmi_counter, "POWER_VIOLATION")),
    replace(_DCGMI, relation="links", columns={"count": "TVIOL"}, values=partial(_dcgmi_counter, "THERMAL_VIOLATION")),
    # `nvidia-smi dmon`, with `-o DT` each row's date and time, with `--format csv` commas
    Columns(
        "nvidia-smi-dmon",
        (b" pclk",),
        "gpu_clocks",
        {"device": "gpu", "sm_mhz": "pclk", "power_w": "pwr", "temp_c": "gtemp|temp"},
        r"^\s*#\s*(?:Date,?\s+)?(?:Time,?\s+)?gpu,?\s.*\bpclk\b",
        words="[#,]",
        row=r"\s*(?:\d{8},?\s+)?(?:\d\d:\d\d:\d\d,?\s+)?\d{1,4},?\s",
        values=_dmon_row,
    ),
    *EXPORTERS,
    # `dcgmi diag`: tests by name, in DCGM 3 with lists of GPUs, in DCGM 4 with a line a GPU
    Patterns(
        "dcgmi-diag",
        (
            rule(None, r"^(?=\| (?P<test>[A-Za-z][\w ]{0,24}?) +\| (?:Pass|Fail|Skip))",
                 values=lambda match, _: {"memory": f"DCGM's diagnostic: failures of {match['test']}"}),
            rule("gpu_errors", r"(?:Fail - GPUs?: |(?<=\d, ))<device>(?=[\d, ]*\|)", b"Fail - GPU",
                 section=_NO_SOFTWARE, count=1),
            rule("gpu_errors", r"\| GPU<device>: Fail\b", section=_NO_SOFTWARE, count=1),
        ),
        (b"| Diagnostic  ",),
        opens=r"^\| Diagnostic +\| Result",
        closes=r"^(?![|+])",
        section=r"[|+]-----  (\w+)  -+\+-+[|+]",
    ),
    # the concise table of ROCm 5 and 6; ROCm 6 puts node, ids and partitions (`NPS1, SPX, 0`) between
    Patterns(
        "rocm-smi",
        (
            rule("gpu_clocks",
                 r"^\s*<device>\s+(?:\d+\s+0x\w+,\s+\w+\s+)?(?:<temp_c>\s?°?[cC]|N/A)\s+"
                 r"(?:<power_w>W|N/A)\s+(?:\S+, \S+, \S+\s+)?(?:<sm_mhz>M[hH]z|None|N/A)\s+"
                 # a cap of 0: of a GPU that shares another one's
                 r"(?:\S+\s+){3}(?:0+(?:\.0*)?W?|<power_cap_w>W?|\D\S*)(?:\s.*)?$"),
        ),
        (b"Concise Info", b"SCLK"),
        mention=r"^\s*\d{1,4}\s+\S+.*\d%",
        opens="Concise Info|SCLK.{0,255}MCLK",
        closes="End of ROCm",
    ),
    # `rocm-smi -a`: a line a measurement
    Patterns(
        "rocm-smi",
        (
            rule("gpu_clocks",
                 r"^GPU\[<device>\]\s*: (?:sclk clock level: \d+: \(<sm_mhz>Mhz\)"
                 r"|Temperature \(Sensor junction\) \(C\): <temp_c>"
                 r"|(?:Average|Current Socket) Graphics Package Power \(W\): <power_w>"
                 r"|Max Graphics Package Power \(W\): <power_cap_w>)"),
        ),
        (b"GPU[",),
    ),
    # `amd-smi metric`: an indented report
    Patterns(
        "amd-smi",
        (
            rule("gpu_clocks", r"^GPU: <device>\s*$", begins=True),
            rule(None, r"^\s+SOCKET_POWER: <power_w> W"),
            rule(None, r"^\s+(?:SOCKET_)?POWER_LIMIT: <power_cap_w> W"),
            rule(None, r"^\s+HOTSPOT: <temp_c> "),
            rule(None, r"^\s+CLK: <sm_mhz> MHz", section="^GFX_0$"),
            rule("links", r"^\s+WIDTH: <count>\s*$", section="^PCIE$", counter="PCIe lanes"),
            rule("links", r"^\s+REPLAY_COUNT: <count>\s*$", section="^PCIE$", counter="PCIe replays"),
            rule("gpu_errors", r"^\s+TOTAL_UNCORRECTABLE_COUNT: (?P<count>[1-9]\d{0,17})\s*$",
                 memory="amd-smi: uncorrectable errors", time_ns=None),
            rule(None, r"^\s+THROTTLE_STATUS: (UN)?THROTTLED",
                 values=lambda match, before: {"reasons": [] if match[1] else ["throttled"]}),
        ),
        (b"GPU: ",),
        opens=r"^GPU: \d{1,4}\s*$",
        closes=r"^(?!GPU: )\S",
        section=r"\s+([A-Z][A-Z_\d]*):\s*",
    ),
    _AMD_CSV,
    # `amd-smi monitor`: each value with its unit
    Columns(
        "amd-smi",
        (b"GFX_CL",),
        "gpu_clocks",
        {"time_ns": "TIMESTAMP", "device": "GPU", "sm_mhz": "GFX_CLOCK|GFX_CLK", "power_w": "POWER",
         "temp_c": "GPU_TEMP|GPU_T"},
        r"^\s*(?:TIMESTAMP\s+)?GPU\s.*\bGFX_CL(?:OC)?K\b",
        words=r"(?<=[\d/A]) (?:W|°C|%|MHz|[MG]B)(?=\s|$)",
        row=r"\s*(?:\d{10}\s+)?\d{1,4}\s",
    ),
    _KERNEL_LOG,
    _NCCL_DEBUG,
    Patterns(
        "fabric-manager",
        (
            rule("gpu_errors",
                 r"detected NVSwitch (?:non-)?fatal error (?P<code>\d{1,6}) on fid \d+ on NVSwitch pci bus id <bus_id>",
                 b"detected NVSwitch "),
        ),
    ),
    # `nvidia-smi nvlink -s` and `-e`
    Patterns(
        "nvlink",
        (
            rule("links", r"^\s+Link <link>: (?P<counter>[A-Z][\w ]*?) ?[Ee]rrors?: <count>\s*$"),
            rule("links", r"^\s+Link <link>: (?P<counter>Link recovery failed|Tx discards)(?: events)?: <count>\s*$"),
            rule("links", r"^\s+Link <link>: <gb_per_s> GB/s\s*$", state="active"),
            rule("links", r"^\s+Link <link>: <inactive>\s*$", state="inactive"),
            rule(None, r"^GPU <device>: (?:NVIDIA |.*\(UUID: GPU-)"),
        ),
        (b"(UUID: GPU-", b": NVIDIA "),
        opens=r"^GPU \d{1,4}: (?:NVIDIA |.*\(UUID: GPU-)",
    ),
    # `ibstat`, `ibstatus`, `ibv_devinfo`
    Patterns(
        "ibstat",
        (
            rule(None, r"^(?:\s*CA '|hca_id:\s+)<nic>"),
            rule("links", r"^Infiniband device '<nic>' port <link> status:", begins=True),
            rule("links", r"^\s*(?:Port |port:\s+)<link>:?\s*$", begins=True),
            rule(None, r"^\s*[Ss]tate:\s+(?:PORT_|\d+: )?(?P<state>[A-Z]\w+)",
                 values=lambda match, before: {"state": match["state"].capitalize()}),
            rule(None, r"^\s*[Rr]ate:\s+(?P<rate>[\d.]+)",
                 values=lambda match, before: {"gb_per_s": float(match["rate"]) / 8}),
        ),
        (b"CA '", b"Infiniband device '", b"hca_id:"),
        opens=r"^(?:\s*CA '|Infiniband device '|hca_id:)",
    ),
    # `ethtool eth0`, of no bridge or tunnel; `ibdev2netdev`
    Patterns(
        "port-states",
        (
            rule("links", r"^Settings for (?!lo:|docker|veth|virbr|br-|cni|cali|flannel|tun|tap|vxlan|dummy)<nic>:",
                 begins=True),
            rule(None, r"^\s+Speed: (?P<mbit>\d{1,9})Mb/s",
                 values=lambda match, _: {"gb_per_s": int(match["mbit"]) / 8e3}),
            rule(None, r"^\s+Link detected: (?P<is>yes|no)",
                 values=lambda match, _: {"state": "Active" if match["is"] == "yes" else "Down"}),
            rule("links", r"^<nic> port <link> ==> \S{1,64} \((?P<is>Up|Down)\)",
                 values=lambda match, _: {**match.groupdict(), "state": "Active" if match["is"] == "Up" else "Down"}),
        ),
        (b"Settings for ", b" ==> "),
        opens=r"^Settings for [\w.-]{1,64}:|^[\w.-]{1,64} port \d{1,3} ==> ",
    ),
    # an adapter's port by `rdma link`, and its counters: `perfquery`, `rdma statistic` (all in one line or, with `-p`,
    # each in one), `mlxlink -c`, `ethtool -S` (these two do not name the adapter), the files below
    # `/sys/class/infiniband`
    Patterns(
        "port-counters",
        (
            rule(None, r"^# Port (?:extended )?counters: Lid \d+ port <link>"),
            rule(None, r"^(?=link <nic>/<link>\s)"),
            rule(None, r"^(?=\S{0,64}/infiniband/<nic>/ports/<link>/)"),
            rule("links", r"^(?:State +: (?P<state>\w{1,32})|link .{1,300}? state (?P<up>\w{1,32}) physical_state )",
                 values=lambda match, _: {"state": (match["state"] or match["up"]).capitalize()}),
            rule("links", rf"(?:^|[\s/])(?P<counter>{_OF_PORT})(?: *: ?\.*| )<count>(?![\w.])"),
        ),
        (b"counters:", b"link ", b"Operational Info", b"NIC statistics:", b"counters/"),
        opens=r"^(?:# Port (?:extended )?counters:|link [\w.-]{1,64}/\d{1,3}\s|Operational Info|NIC statistics:)|"
        r"/infiniband/[\w.-]{1,64}/ports/",
    ),
    # `ibqueryerrors`: ports of the whole fabric; the name of a node is that of a host and its adapter, or of a switch
    Patterns(
        "ibqueryerrors",
        (
            rule(None, r'^Errors for (?:0x\w+ )?"<host> (?P<nic>[A-Za-z][\w-]{0,63})"'),
            rule(None, r'^Errors for (?:0x\w+ )?"(?P<host>[^"]{1,128})"', nic="a switch"),
            rule(None, r"^(?=\s+GUID 0x\w{1,16} port <link>:)"),
            rule("links", rf"\[(?P<counter>{_OF_PORT}) == <count>\]",
                 values=lambda match, before: None if " port ALL:" in match.string else match.groupdict()),
        ),
        (b"Errors for ",),
        opens="^Errors for ",
    ),
    # `nstat`, `netstat -s`
    Patterns(
        "tcp-counters",
        (
            _of_tcp(r"^TcpRetransSegs\s+<count>\s"),
            _of_tcp(r"^\s+<count> segments? retransmit"),
        ),
        (b"TcpRetransSegs", b" retransmit"),
    ),
    # `ip -s link`
    Patterns(
        "ip-link",
        (
            rule(None, r"^\d{1,6}: <nic>(?:@[\w.-]{1,64})?: <"),
            rule("links", _IP_ERRORS, section="^RX$", counter="RX errors"),
            rule("links", _IP_ERRORS, section="^TX$", counter="TX errors"),
        ),
        (b": <",),
        opens=r"^\d{1,6}: [\w.@-]{1,80}: <[A-Z]",
        section=r"\s+([RT]X(?: errors)?): .*",
    ),
)  # fmt: skip
