"""Output of `ncclras`, NCCL's health query (2.24 on; JSON from 2.28.7 on), and of its monitoring mode (2.29).

NCCL counts a communicator's collectives, from 2.26 on each kind by itself. It lists the ranks of a small group of
outliers and counts the others. Ranks are numbers in the communicator.
"""

import re
from typing import Any, Final

from jitter.logs.line_parser import Context, LineParser, split_prefix
from jitter.logs.values import as_integer, as_text

FORMAT: Final = "nccl-ras"
_COMMUNICATOR: Final = re.compile(r"\s*#\d+-\d+ \(([0-9a-f]{1,32})\) ([A-Z]+)")
_COUNT: Final = re.compile(r"\s*(\d{1,9}) ranks? (?:has|have) launched up to (?:(\w{1,32}) )?operation (\d{1,18})")
_GROUP: Final = re.compile(r"\s*\d{1,9} ranks? (?:has|have) ")
_RANK: Final = re.compile(
    r"\s*Rank (?P<rank>\d{1,9}) -- GPU (?P<device>\d{1,6})(?: \([^()]*\))? "
    r"managed by process (?P<process>\d{1,18}) on node (?P<host>\S+)"
)
_MISSING: Final = re.compile(r"\s*The missing ranks?: ([\d ,]+)")
_PROCESS: Final = re.compile(
    r"\s*(?:\[[\d :-]{19}\] (?P<event>PEER_DEAD): )?Process \d+ on node (?P<host>\S+) managing GPUs? "
    r"(?P<device>\d{1,6})"
)
_NO_DATA: Final = re.compile(r"\s*Missing communicator data from \d{1,9} ranks?\b")
_LARGEST: Final = 1 << 20
"""More ranks than a job has: NCCL 2.27.3 prints memory that is none of the communicator's."""
_SECTION: Final = {"INCOMPLETE": "unresponsive", "DEAD": "dead"}


class RasParser(LineParser):
    """Text of `ncclras`."""

    format = FORMAT
    triggers = (
        b"Job summary", b" launched up to ", b" -- GPU ", b"The missing rank", b" managing GPU", b" ranks have ",
        b"INCOMPLETE", b"DEAD", b") MISMATCH", b"Missing communicator data",
    )  # fmt: skip

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._query = 0
        self._communicator: str | None = None
        self._group: dict[str, Any] | None = None
        """Of the ranks that follow: the collective and how many they launched, or that they do not answer."""
        self._state: str | None = None

    def line(self, line: bytes, number: int) -> None:
        text = split_prefix(line)[1]
        if text.strip() == "Job summary":
            self._query += 1
            self._communicator = self._group = self._state = None
        elif text.strip() in _SECTION:
            self._state = _SECTION[text.strip()]
        elif match := _COMMUNICATOR.match(text):
            self._communicator, self._group = match[1], None
        elif _NO_DATA.match(text):
            self._group = {"state": "unresponsive"}
        elif match := _COUNT.match(text):
            self._group = {"operation": match[2], "operations": int(match[3])}
            self._add(count=int(match[1]), **self._group)
        elif _GROUP.match(text):
            self._group = None
        elif (match := _RANK.match(text)) and self._group is not None:
            if "state" not in self._group or (self._communicator is not None and int(match["rank"]) < _LARGEST):
                self._add(**_place(match), **self._group)
        elif match := _MISSING.match(text):
            for rank in re.findall(r"\d{1,9}", match[1]):
                self._add(rank=int(rank), state="unresponsive")
        elif (match := _PROCESS.match(text)) and (state := "dead" if match["event"] else self._state) is not None:
            values = {"host": match["host"], "device": int(match["device"]), "time_ns": self.context.times.read(text)}
            self.add("ras", query=self._query, state=state, **values)

    def _add(self, **values: Any) -> None:
        self.add("ras", query=self._query, comm=self._communicator, **values)


def _place(match: re.Match[str]) -> dict[str, Any]:
    return {"host": match["host"], **{name: int(match[name]) for name in ("rank", "device", "process")}}


def read_json(answer: Any, context: Context) -> None:
    """Read a query's answer in JSON."""
    time = context.times.read(as_text(answer.get("timestamp")) or "")
    for communicator in _objects(answer, "communicators"):
        facts = {"time_ns": time, "comm": as_text(communicator.get("hash")), "ranks": communicator.get("size")}
        for rank in _objects(communicator, "ranks"):
            counts = rank.get("collective_counts")
            for operation, count in (counts or {None: None}).items() if isinstance(counts, dict | None) else ():
                _add(context, rank, facts | {"operation": operation, "operations": as_integer(count)})
        for rank in _objects(communicator, "missing_ranks"):
            given = rank.get("status")
            status: dict[str, Any] = given if isinstance(given, dict) else {}
            state = "dead" if status.get("considered_dead") is True else "missing"
            _add(context, rank, facts | {"state": "unresponsive" if status.get("unresponsive") is True else state})


def _add(context: Context, rank: dict[str, Any], facts: dict[str, Any]) -> None:
    number, device = as_integer(rank.get("rank")), as_integer(rank.get("cuda_dev"))
    try:
        place = {"host": as_text(rank.get("host")), "device": device, "process": as_integer(rank.get("pid"))}
        context.add(FORMAT, "ras", query=0, rank=number, **place, **facts)
    except (ValueError, TypeError):
        context.problems.note(FORMAT, "a rank of it cannot be read")


def _objects(value: dict[str, Any], name: str) -> list[dict[str, Any]]:
    members = value.get(name)
    return [member for member in members if isinstance(member, dict)] if isinstance(members, list) else []
