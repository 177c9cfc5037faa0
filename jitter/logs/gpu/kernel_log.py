"""Errors of GPUs and NVSwitches in kernel logs: `Xid (PCI:0000:9b:00): 119, …`, `SXid (PCI:0000:05:00.0): 12028`.

`dmesg -T`, `dmesg --time-format iso`, syslog, journalctl. A time since boot, or without a year, is unknown.
"""

import re
from typing import Final

from jitter.logs.line_parser import LineParser
from jitter.logs.prefixes import decoded
from jitter.logs.values import bus_address, time_ns

_ERROR: Final = re.compile(r"\bS?Xid \((?:PCI:)?([0-9a-fA-F:.]{7,16})\): (\d{1,6})\b")
_MENTION: Final = re.compile(r"\bS?Xid \(")
_SYSLOG: Final = re.compile(
    r"(?:<\d+>)?(?:[A-Z][a-z]{2} +\d+ [\d:]{8}|\d{4}-\d\d-\d\dT\S+) (?P<host>[A-Za-z0-9][\w.-]*) kernel(?:\[\d+\])?: "
)


class KernelLogParser(LineParser):
    """Xid and SXid errors."""

    format = "kernel-log"
    triggers = (b"Xid (",)

    def line(self, line: bytes, number: int) -> None:
        """Read the errors of a line."""
        text = decoded(line)
        errors = list(_ERROR.finditer(text))
        if len(errors) < len(_MENTION.findall(text)):
            self.context.problems.broken(self.format, number)
        at = 0
        for error in errors:
            before = text[at : error.start()]
            at = error.end()
            bus_id = bus_address(error[1])
            if bus_id is None:
                raise ValueError("not a PCI address")
            host = _SYSLOG.search(before)
            self.add(
                "gpu_errors",
                time_ns=time_ns(before),
                host=host["host"] if host else None,
                bus_id=bus_id,
                code=int(error[2]),
            )
