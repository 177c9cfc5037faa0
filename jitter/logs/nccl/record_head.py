"""The head of a record of NCCL_DEBUG: `host:pid:tid [device] NCCL INFO`, NCCL 2.4 to 2.30 and RCCL.

WARN puts the source's file and line before `NCCL`, 2.26 on can put a time before the host, CALL has no device. Where
lines of several processes run into each other, a line holds several records.
"""

import re
from typing import Final, NamedTuple

MARK: Final = b" NCCL "
_LEVELS: Final = (b"INFO", b"WARN", b"TRACE", b"CALL", b"VERSION", b"ABORT")
_HEAD: Final = re.compile(
    rb"(?P<host>[A-Za-z0-9_][\w.-]*|<[\w-]+>):(?P<pid>\d{1,10}):(?P<tid>\d{1,10})\s(?:\[(?P<device>\d{1,4})\]\s)?"
    rb"(?P<place>[\w./+-]+:\d+\s)?$"
)
_SPLIT: Final = re.compile(
    rb"([A-Za-z0-9_][\w.-]*:\d{1,10}:\d{1,10}\s(?:\[\d{1,4}\]\s)?(?:[\w./+-]+:\d+\s)?NCCL (?:INFO|WARN|TRACE|CALL) )"
)


class Head(NamedTuple):
    """The process that wrote a record."""

    host: str | None
    pid: int | None


NO_HEAD: Final = Head(None, None)


def head_of(text: bytes) -> Head:
    """Return the process that the text before " NCCL " names, or Nones where it names none."""
    found = _HEAD.search(text[-400:] + b" ")
    if found is None:
        return NO_HEAD
    return Head(found["host"].decode(), int(found["pid"]))


def message_of(record: bytes, at: int) -> bytes | None:
    """Return what follows "NCCL INFO " of a record with " NCCL " at `at`, or None where no level follows."""
    level, _, message = record[at + len(MARK) :].partition(b" ")
    return message if level in _LEVELS else None


def split_records(line: bytes, hosts: set[str]) -> list[bytes]:
    """Return the records of a line that holds several, each with its head.

    Where a record begins within a word, the longest known host name decides.
    """
    parts = _SPLIT.split(line)
    records = [parts[0]]
    for head, rest in zip(parts[1::2], parts[2::2], strict=True):
        cut = _foreign(head.partition(b":")[0], hosts)
        records[-1] += head[:cut]
        records.append(head[cut:] + rest)
    return [record for record in records if record.strip()]


def before_nccl_record(line: bytes, hosts: set[str]) -> bytes:
    """Return a line without the record of NCCL that ran into it."""
    at = line.find(MARK)
    if at < 0:
        return line
    found = _HEAD.search(line[: at + 1])
    if found is None:
        return line
    return line[: found.start() + _foreign(found["host"], hosts)]


def _foreign(host: bytes, hosts: set[str]) -> int:
    """Return how much of what looks like a host's name belongs to the text before it."""
    name = host.decode("ascii", "replace")
    if name in hosts:
        return 0
    known = max((host for host in hosts if name.endswith(host)), key=len, default=name)
    return len(name) - len(known)
