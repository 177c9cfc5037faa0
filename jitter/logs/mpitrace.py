"""Profiles of IBM's mpitrace, `mpi_profile.<job>.<rank>`: calls, their sizes, and the ranks' times.

IBM/mpitrace src/mpitrace_common.c. Rows are words apart: `name calls average-bytes seconds`; a size distribution has
the same columns without names. Older ones print `MBytes` and `hostname`, newer ones `MiB`, `host` and `cpu`; both are
2^20 bytes. A file can hold several profiles. Only some ranks write one; rank 0's ends with a table of all.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from jitter.logs.line_parser import Context, LineParser, split_prefix

_START: Final = re.compile(r"Data for MPI rank (\d{1,9}) of (\d{1,9})")
_CALL: Final = re.compile(r"\s*(MPIX?_\w+)\s+(\d{1,18})\s+(\d+\.\d+)\s+(\d+\.\d+)\s*")
_BUCKET: Final = re.compile(r"\s*(\d{1,18})\s+(\d+\.\d+)\s+(\d+\.\d+)\s*")
_BUCKETS_OF: Final = re.compile(r"\s*(MPIX?_\w+)\s.*#calls")
_COLUMNS: Final = {
    **dict.fromkeys(("total communication time", "comm(s)"), "communication_s"),
    **dict.fromkeys(("total elapsed time", "elapsed(s)"), "elapsed_s"),
    **dict.fromkeys(("user cpu time", "user(s)"), "user_s"),
    **dict.fromkeys(("system time", "system(s)"), "system_s"),
    **dict.fromkeys(("max resident set size", "size(MB)", "size(MiB)"), "memory_bytes"),
}
"""By what a rank's profile and the table of all ranks call them."""
_VALUE: Final = re.compile(rf"\s*({'|'.join(map(re.escape, _COLUMNS))})\s*= (\d+\.\d+)")
_OF_ALL: Final = re.compile(r"\s*(minimum|median|maximum) communication time = (\d+\.\d+) sec for task (\d{1,9})")
_MEBI: Final = 1 << 20


class MpitraceParser(LineParser):
    """Calls with totals and size buckets; ranks with times and memory."""

    format = "mpitrace"
    triggers = (b"Data for MPI rank",)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._rank = 0
        self._world_size: int | None = None
        self._ranks_of_run: set[int] = set()
        """Ranks whose profiles the file has of the run that is read."""
        self._runs = 0
        """Runs of the file so far."""
        self._run = ""
        self._call: str | None = None
        self._in_distributions = False
        self._after_blank = False
        self._values: dict[str, Any] | None = None
        self._columns: list[str] = []
        self._summary: dict[int, float] = {}
        """Time in MPI of the ranks with the least, the median and the most, which the table of all may lack."""
        self._order: dict[int, str] = {}
        """What the summary calls these times."""

    def line(self, line: bytes, number: int) -> None:
        text = split_prefix(line)[1].rstrip()
        if match := _START.search(text):
            self.finish()
            self._begin_profile(int(match[1]), int(match[2]))
            self._call, self._columns = None, []
            self._in_distributions = False
            self._values = {}
            self.is_open = True
        elif "Message size distributions" in text:
            self._in_distributions = True
        elif text.startswith("taskid"):
            self._columns = text.split()
        elif match := _OF_ALL.match(text):
            self._order.setdefault(int(match[3]), match[1])
            if int(match[3]) != self._rank:
                self._summary[int(match[3])] = float(match[2])
        elif self._columns:
            self._read_task(text)
        elif match := _VALUE.match(text):
            if self._values is not None:
                self._values |= _stated({match[1]: match[2]})
        else:
            self._read_row(text)

    def _begin_profile(self, rank: int, world_size: int) -> None:
        """Begin the profile of another rank, or of another run: that of a rank which the run has, or of more ranks."""
        if rank in self._ranks_of_run or world_size != self._world_size:
            self._runs += 1
            self._ranks_of_run.clear()
        self._ranks_of_run.add(rank)
        self._rank, self._world_size = rank, world_size
        name = self.context.path.name.removesuffix(f".{rank}")
        self._run = name if self._runs == 1 else f"{name} ({self._runs})"

    def _read_row(self, text: str) -> None:
        if match := _BUCKETS_OF.match(text):
            self._call = match[1]
        elif not text.strip():
            self._after_blank = True
            return
        elif (
            self._call
            and self._in_distributions
            and ("#calls" in text or self._after_blank)
            and not _BUCKET.match(text)
        ):
            self._call = None  # a damaged title: the buckets below it are of an unknown call
            if "#calls" in text:
                raise ValueError("not the title of a distribution")
        elif match := _CALL.fullmatch(text):
            self._add_call(match[1], None, match[2], match[4])
        elif self._call and (match := _BUCKET.fullmatch(text)):
            self._add_call(self._call, float(match[2]), match[1], match[3])
        elif text.startswith(("MPI_", "MPIX_")):
            self._call = None
            raise ValueError("not a row")
        elif re.match(r"\s*\d", text) and (self._call or self._in_distributions):
            raise ValueError("not a row, or of an unknown call")
        self._after_blank = False

    def _add_call(self, call: str, average: float | None, calls: str, seconds: str) -> None:
        self.add(
            "mpi_calls",
            run=self._run,
            rank=self._rank,
            call=call,
            average_bytes=average,
            calls=int(calls),
            seconds=float(seconds),
        )

    def _read_task(self, text: str) -> None:
        """Read a row of the table of all ranks; the rank's own profile states its values with more digits."""
        cells = text.split()
        if not cells:
            self._columns, self.is_open = [], False
            return
        if not cells[0].isdigit() or len(cells) != len(self._columns):
            raise ValueError("not a row")
        row = dict(zip(self._columns, cells, strict=True))
        switches = int(row["switches"]) if "switches" in row else None
        place = {"host": row.get("hostname", row.get("host")), "switches": switches}
        if int(cells[0]) == self._rank and self._values is not None:
            self._values |= place
            self._end_rank()
            return
        self._summary.pop(int(cells[0]), None)
        self._add_rank(int(cells[0]), **place, **_stated(row))

    def _end_rank(self) -> None:
        values, self._values = self._values, None
        if values:
            self._add_rank(self._rank, **values)

    def finish(self) -> None:
        self._end_rank()
        for rank, seconds in self._summary.items():
            self._add_rank(rank, communication_s=seconds)
        self._summary, self._order = {}, {}

    def _add_rank(self, rank: int, **values: Any) -> None:
        named = {"run": self._run, "world_size": self._world_size, "communication_order": self._order.get(rank)}
        self.add("mpi_ranks", rank=rank, **named, **values)


def _stated(values: Mapping[str, str]) -> dict[str, float]:
    """Return what names and values of a profile, or of a row of the table, state."""
    known = [(_COLUMNS[name], float(value)) for name, value in values.items() if name in _COLUMNS]
    return {column: round(value * _MEBI) if column == "memory_bytes" else value for column, value in known}
