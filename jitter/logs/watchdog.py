"""Timeouts of PyTorch's watchdog, and the exceptions that ended ranks.

`[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=19, …)`: pytorch
torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp. Versions 2.2 to 2.6 name the group of a timeout only in the line after
it (`[PG 1 Rank 3] … detected by watchdog at work: 19, last enqueued …`), older ones nowhere. The rank in brackets is
the rank in the group; the launcher's or logger's prefix (`[rank3]:`) is the global rank, wherever it stands before. The
lines' dates have no year.

`[rank3]: Traceback (most recent call last):`, as PyTorch (2.2 on) prints uncaught ones:
torch/distributed/__init__.py puts the rank before each line. Without it a traceback may be of a caught exception.
Messages are not kept: they quote whatever the program worked on.

ProcessGroupGloo.cpp: `[Rank 0]: Ranks 4, 5 failed to pass monitoredBarrier in 600000 ms`; ranks are those in the group.
"""

import re
from math import prod
from typing import Any, Final

from jitter.logs.flight_recorder import LIBRARY_FILE
from jitter.logs.line_parser import Context, LineParser, split_prefix

_LINE: Final = re.compile(r"\[rank(\d{1,9})\]: ?(.*)")
"""Whatever launchers put before it."""
_FRAME: Final = re.compile(r'  File "([^"]{1,400})", line (\d{1,9}), in (\S{1,200})')
_ERROR: Final = re.compile(r"([A-Za-z_][\w.]{0,200})(?::|$)")
_OF_OTHERS: Final = re.compile(
    r"torch\.distributed\.|Dist\w{0,64}Error|KeyboardInterrupt|SystemExit|BrokenPipe|Connection|EOFError|NCCL|gloo|"
    r"Socket|TCPStore|Timed out waiting|Watchdog|monitoredBarrier|between collectives"
)
"""Exceptions that follow from the end, or the silence, of another rank."""
_TOLD_APART: Final = re.compile(r"(?:CUDA|HIP) (?:out of memory|error)")
"""Failures that other patterns read, with or without a traceback."""


class TracebackParser(LineParser):
    """The first exception of each rank, with the innermost frame of the program."""

    format = "python-traceback"
    triggers = (b"]: Traceback (most recent call last):",)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._open: dict[int, str] = {}
        """Of each rank in a traceback the innermost frame so far."""
        self._ended: set[int] = set()

    def line(self, line: bytes, number: int) -> None:
        match = _LINE.search(line.decode("utf-8", "replace"))
        if match is None:
            return
        rank, text = int(match[1]), match[2]
        if text.startswith("Traceback (most recent call last):"):
            self._open[rank] = ""
        elif rank in self._open and (frame := _FRAME.match(text)) is not None:
            if not LIBRARY_FILE.search(frame[1]):
                self._open[rank] = f" at {frame[1]}({frame[2]}): {frame[3]}"
        elif rank in self._open and (error := _ERROR.match(text)) is not None:
            self._end(rank, error[1], text)
        self.is_open = bool(self._open)

    def _end(self, rank: int, error: str, text: str) -> None:
        where = self._open.pop(rank)
        is_first = rank not in self._ended
        self._ended.add(rank)
        if is_first and not _OF_OTHERS.search(text) and not _TOLD_APART.search(text):
            self.add("exits", rank=rank, manner=f"{error}{where}", stated_by="program")


_OWNER: Final = re.compile(
    r"\[(?:PG (?:ID \d+ PG GUID )?(?P<group>[\w.:-]+?) ?(?:\((?P<description>[^()]*)\))? )?Rank (?P<rank>\d{1,9})\]"
)
_TIMEOUT: Final = re.compile(
    r"WorkNCCL\((?P<fields>[^()]*(?:\([^()]*\)[^()]*)*)\)(?: ran for (?P<waited>\d+) milliseconds)?"
)
_FIELD: Final = re.compile(r"\b(\w+)(?:\(ms\))?=([\w.-]+)")
_STATUS: Final = re.compile(
    r"at (?:NCCL )?work(?: sequence id)?: (?P<at>\d+),?.{0,40}?last enqueued (?:NCCL )?work: (?P<enqueued>-?\d+)"
    r"(?:, last started (?:NCCL )?work: (?P<started>-?\d+))?"
    r",.{0,60}?last completed (?:NCCL )?work: (?P<completed>-?\d+)"
)
_SIGNAL: Final = re.compile(
    r"dump signal due to a collective timeout.{0,120}?Last enqueued \w+ work: (?P<enqueued>-?\d+)"
    r", last completed \w+ work: (?P<completed>-?\d+)"
)
"""What any rank prints once another one gives up: how far it got in the default group."""
_GLOBAL: Final = re.compile(r"\[rank=?(\d{1,9})\]")
"""Ray and NeMo put `(Worker[rank=9] pid=…)` before it, progress bars and other launchers anything."""
_STUCK: Final = re.compile(r"watchdog got stuck for (\d{1,9}) seconds")
_ABSENT: Final = re.compile(r"Ranks? (\d{1,9}(?:, ?\d{1,9}){0,65536}) failed to pass monitoredBarrier in (\d{1,12}) ms")
_REACHED: Final = re.compile(r"Rank (\d{1,9}) successfully reached monitoredBarrier")
_PRINTED: Final = re.compile(
    r"Rank (\d{1,9}) is running collective: CollectiveFingerPrint\((?:SequenceNumber=(\d{1,18}))?,? ?OpType=(\w{1,40})"
    r"(?:, TensorShape=\[([\d, ]{0,200})\], TensorDtypes=(\w{1,40}))?"
)
"""ProcessGroupWrapper.cpp, with TORCH_DISTRIBUTED_DEBUG=DETAIL; ranks are those in the group."""
WORLD: Final = "0"
"""PyTorch's name of the default group."""
BARRIER: Final = "monitored_barrier"
"""What `collective_timeouts` calls it: it is not numbered."""
_UNSET: Final = 1 << 63
"""What is printed of a coalesced call is 2^64 - 1."""


class WatchdogParser(LineParser):
    """Timeouts, and how far the rank got in the group."""

    format = "pytorch-watchdog"
    triggers = (
        b"Watchdog caught collective operation timeout", b"last enqueued ", b"Last enqueued ",
        b"watchdog got stuck for ", b" monitoredBarrier", b"Detected mismatch between collectives on ranks",
    )  # fmt: skip

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._timeouts: dict[tuple[int | None, str | None, int], dict[str, Any]] = {}
        """By rank, group (None: the line names none) and number."""
        self._progress: dict[tuple[int | None, str], dict[str, Any]] = {}

    def line(self, line: bytes, number: int) -> None:
        prefix, text, of_prefix = split_prefix(line)
        owner = _OWNER.search(text)
        before = prefix + (text if owner is None else text[: owner.start()])
        stated = _GLOBAL.findall(before)
        of_prefix = int(stated[-1]) if stated else of_prefix
        if "Detected mismatch between collectives" in text:
            self._read_mismatch(text, number)
            return
        if "monitoredBarrier" in text:
            self._read_barrier(text, of_prefix)
        if owner is None:
            return
        group = owner["group"]
        rank = of_prefix if of_prefix is not None or group not in (None, WORLD) else int(owner["rank"])
        if (stuck := _STUCK.search(text)) is not None and group is not None:
            progress = self._progress_of(rank, group, owner["description"])
            progress["watchdog_stuck_ns"] = int(stuck[1]) * 1_000_000_000
        if (status := _STATUS.search(text) or _SIGNAL.search(text)) is not None and group is not None:
            self._read_status(status, rank, group, owner["description"])
        elif (timeout := _TIMEOUT.search(text)) is not None and "Watchdog caught" in text:
            self._read_timeout(timeout, rank, group, owner["description"])

    def finish(self) -> None:
        for timeout in self._timeouts.values():
            self.add("collective_timeouts", **timeout)
        for progress in self._progress.values():
            self.add("process_groups", **progress)

    def _read_timeout(self, match: re.Match[str], rank: int | None, group: str | None, description: str | None) -> None:
        fields = dict(_FIELD.findall(match["fields"]))
        sequence, milliseconds = int(fields["SeqNum"]) if "SeqNum" in fields else None, fields.get("Timeout")
        if sequence is None:
            raise ValueError("a timeout without a number")
        elements = fields.get("NumelIn")
        self._timeouts.setdefault(
            (rank, group, sequence),
            {
                "rank": rank,
                "group_name": group,
                "group_description": description,
                "sequence": sequence,
                "operation": fields.get("OpType"),
                "input_elements": int(elements) if elements is not None and int(elements) < _UNSET else None,
                "timeout_ns": None if milliseconds is None else int(milliseconds) * 1_000_000,
                "waited_ns": None if match["waited"] is None else int(match["waited"]) * 1_000_000,
            },
        )

    def _read_status(self, match: re.Match[str], rank: int | None, group: str, description: str | None) -> None:
        unnamed = self._timeouts.get((rank, None, int(match["at"]))) if match.re is _STATUS else None
        if unnamed is not None and unnamed["group_name"] is None:
            unnamed.update(group_name=group, group_description=description)
        progress = self._progress_of(rank, group, description)
        for what, number in match.groupdict().items():
            if what != "at" and number is not None:
                progress.setdefault(f"last_{what}", max(int(number), 0))

    def _progress_of(self, rank: int | None, group: str, description: str | None) -> dict[str, Any]:
        stated = {"rank": rank, "group_name": group, "group_description": description}
        return self._progress.setdefault((rank, group), stated)

    def _read_mismatch(self, text: str, number: int) -> None:
        """Read the calls that ranks of a group made under one number."""
        stated = list(_PRINTED.finditer(text))
        for rank, sequence, operation, shape, dtype in (match.groups() for match in stated if len(stated) > 1):
            sizes = None if shape is None else prod(map(int, re.findall(r"\d+", shape)))
            self.add(
                "collective_timeouts",
                rank=int(rank),
                sequence=None if sequence is None else int(sequence),
                operation=operation,
                input_elements=sizes if sizes is not None and sizes < _UNSET else None,
                dtype=dtype,
                mismatch=number,
            )

    def _read_barrier(self, text: str, rank: int | None) -> None:
        """Read which ranks a barrier's first rank missed, or that a rank waited in it."""
        if (match := _ABSENT.search(text)) is not None:
            # global ranks are known of the default group alone, whose first rank is rank 0
            absent = ",".join(re.findall(r"\d+", match[1])) if not rank else None
            waited = {"timeout_ns": int(match[2]) * 1_000_000, "not_entered": absent}
            self.add("collective_timeouts", rank=rank or 0, operation=BARRIER, **waited)
        elif (match := _REACHED.search(text)) is not None:
            self.add("collective_timeouts", rank=int(match[1]) if rank is None else rank, operation=BARRIER)
