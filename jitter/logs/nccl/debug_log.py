"""Logs of NCCL_DEBUG=INFO: NCCL 2.4 to 2.30, RCCL, the aws-ofi plug-ins.

The hot path of the package: a log can have a gigabyte. Most lines state an edge, and equal edges repeat; a line costs
a few searches for a substring, and only a text that is new is matched against a pattern.
"""

import re
from typing import Final

from jitter.logs.line_parser import Context, LineParser, Lines
from jitter.logs.nccl.communicators import INTERESTING, Communicators
from jitter.logs.nccl.edges import Edges
from jitter.logs.nccl.record_head import MARK, head_of, message_of, split_records
from jitter.logs.prefixes import without_escapes

_INFO: Final = b" NCCL INFO "
_LONGEST_HEAD: Final = 96
_MOST_SILENT: Final = 20_000
_SILENT: Final = re.compile(rb"[\w ,:;|/.+=>\[\]-]{1,400}")
"""Messages that state nothing of use and hold no other record."""
_PLAIN: Final = re.compile(rb"[\w ,:;|/.+=<>%\[\]-]{1,400}")


class NcclDebugParser(LineParser):
    """Communicators and edges."""

    format = "nccl-debug"
    triggers = (b"NCCL ", b"RCCL version")

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._edges = Edges(self.format, context.problems)
        self._communicators = Communicators(context.hosts)
        self._records = 0
        self._silent: set[bytes] = set()
        self._facts: set[bytes] = set()

    def take(self, lines: Lines) -> Lines:
        """Read the records among the lines, and return the lines that other parsers may have to read, too.

        A line is left to them unless it holds nothing but a record: its head is short, and its message is known to
        state an edge, or nothing.
        """
        texts = self._edges.texts
        silent = self._silent
        facts = self._facts
        rest = []
        records = 0
        for pair in lines:
            line = pair[1]
            at = line.find(_INFO)
            if 0 <= at < _LONGEST_HEAD:
                text = line[at + len(_INFO) :]
                if text in texts:
                    texts[text] += 1
                    records += 1
                    continue
                if text in silent or line in facts:
                    records += 1
                    continue
            rest.append(pair)
            if at >= 0 or b"CCL " in line:
                self.read_line(line, pair[0])
        self._records += records
        return rest

    def line(self, line: bytes, number: int) -> None:
        """Read a line that states no edge, or several records."""
        line = without_escapes(line).rstrip(b"\r")
        if line.count(MARK) > 1:
            for record in split_records(line, self.context.hosts):
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
            self._communicators.read(head_of(record[:at]), message)
            if len(self._facts) < _MOST_SILENT and _PLAIN.fullmatch(message):
                self._facts.add(record)  # reading it again would change nothing
        elif len(self._silent) < _MOST_SILENT and _SILENT.fullmatch(message):
            self._silent.add(message)
