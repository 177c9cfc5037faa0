"""Logs of NCCL_DEBUG=INFO: NCCL 2.4 to 2.30, RCCL, the aws-ofi plug-ins.

The hot path of the package: a log can have a gigabyte. Most lines state an edge, and equal edges repeat; a line costs
a few searches for a substring, and only a text that is new is matched against a pattern.
"""

from typing import Final

from jitter.logs.line_parser import Context, LineParser
from jitter.logs.nccl_communicators import INTERESTING, Communicators
from jitter.logs.nccl_edges import Edges
from jitter.logs.nccl_head import MARK, NO_HEAD, head_of, message_of, split_records
from jitter.logs.prefixes import without_escapes

_INFO: Final = b" NCCL INFO "


class NcclDebugParser(LineParser):
    """Communicators and edges."""

    format = "nccl-debug"
    triggers = (b"NCCL ", b"RCCL version")

    def __init__(self, context: Context) -> None:
        """Start without records."""
        super().__init__(context)
        self._edges = Edges(self.format, context.problems)
        self._communicators = Communicators()
        self._records = 0

    def read(self, lines: list[bytes], first: int) -> None:
        """Read lines that follow each other."""
        texts = self._edges.texts
        records = 0
        for number, line in enumerate(lines, first):
            at = line.find(_INFO)
            if at >= 0 and line.find(MARK, at + 6) < 0 and line.startswith((b"Channel ", b"Ring "), at + 11):
                records += 1
                text = line[at + 11 :]
                if text in texts:
                    texts[text] += 1
                else:
                    self._edges.count(text, number)
            elif at >= 0 or b"CCL " in line:
                self.read_line(line, number)
        self._records += records

    def line(self, line: bytes, number: int) -> None:
        """Read a line that states no edge, or several records."""
        line = without_escapes(line).rstrip(b"\r")
        if line.count(MARK) > 1:
            for record in split_records(line, self._communicators.hosts):
                self._read_record(record, number)
        else:
            self._read_record(line, number)

    def finish(self) -> None:
        """Add communicators and edges."""
        self._edges.add_to(self.context.tables)
        self._communicators.add_to(self.context.tables)
        if self._records:
            self.context.count(self.format, self._records)
        for version in self._communicators.unknown_versions():
            reason = f"version {version} is newer than the newest known one (2.30); what is known of it was read"
            self.context.problems.note(self.format, reason)

    def _read_record(self, record: bytes, number: int) -> None:
        at = record.find(MARK)
        if at < 0 and record.startswith(MARK[1:]):
            record, at = b" " + record, 0
        message = message_of(record, at) if at >= 0 else None
        if message is None:
            self._communicators.read_version(record)
            return
        if record[at + len(MARK) :].startswith((b"INFO ", b"WARN ")):
            self._records += 1
        if message.startswith((b"Channel ", b"Ring ")):
            self._edges.count(message, number)
        elif INTERESTING.search(message):
            head = head_of(record[:at])
            self._communicators.read(head if head.host else NO_HEAD, message)
