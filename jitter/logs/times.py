"""Times as logs print them, and the time zone that a log's times are in where they state none."""

import re
from datetime import date
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

YEARLESS: Final = 1972
"""The year of dates that state none: it has a 29 February."""
_EPOCH: Final = date(1970, 1, 1).toordinal()
_MONTHS: Final = {
    name: at
    for at, name in enumerate(("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1)
}
_CTIME: Final = re.compile(
    r"(?P<month>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) (?:(?P<before>\d{4}) )?(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)"
    r"(?:\.(?P<fraction>\d+))?(?(before)|(?: (?P<after>\d{4})\b)?)"
)
_ISO: Final = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9})\d*)?(Z| UTC\b| ?[+-]\d\d:?\d\d\b)?"
)
_RFC: Final = re.compile(
    r"(\d{1,2}) ([A-Z][a-z]{2}) (\d{4}) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9})\d*)?( (?:GMT|UTC)\b| [+-]\d{4}\b)?"
)
_HOUR_NS: Final = 3_600_000_000_000
_DAY_NS: Final = 24 * _HOUR_NS
_ZONES_NS: Final = tuple(
    round(hours * _HOUR_NS)
    for hours in (*range(-12, 15), -9.5, -3.5, -2.5, 3.5, 4.5, 5.5, 5.75, 6.5, 8.75, 9.5, 10.5, 12.75, 13.75)
)
"""How far local times are ahead of UTC."""
_LONGEST: Final = 40
_SLOWEST_NS: Final = 60_000_000_000
"""Logs that state a time less often do not tell their zone."""


class LogTimes:
    """Reads the times that one log states. Those without a zone are as if in UTC, until `ahead_ns` tells their zone."""

    def __init__(self) -> None:
        self._has_zone = False
        self._before_ns: int | None = None
        self._last_ns: int | None = None

    def read(self, text: str, *, yearless: bool = False) -> int | None:
        """Return a date and time, or seconds since 1970, as ns since 1970; None where there is none.

        No zone means UTC. A date without a year, as syslog prints it, is None, with `yearless` of `YEARLESS`.
        """
        if match := re.match(r"\s*(1\d{9})(?:\.(\d{1,9}))?(?:\s|$)", text):
            self.note_zone()
            return int(match[1]) * 1_000_000_000 + int((match[2] or "0").ljust(9, "0"))
        time_ns, zone = _moment(text, yearless=yearless)
        if zone is not None:
            self.note_zone()
        elif time_ns is not None:
            self._note(time_ns)
        return time_ns

    def read_last(self, text: str) -> None:
        """Take the time that begins one of the log's last lines; with a zone it tells nothing of other times."""
        time_ns, zone = _moment(text[:_LONGEST], yearless=True)
        if time_ns is not None and zone is None:
            self._note(time_ns)

    def _note(self, time_ns: int) -> None:
        if self._last_ns is None or time_ns > self._last_ns:
            self._before_ns, self._last_ns = self._last_ns, time_ns
        elif (self._before_ns or 0) < time_ns < self._last_ns:
            self._before_ns = time_ns

    def note_zone(self) -> None:
        """Take a time that is in UTC, or states its zone: nothing else is inferred then."""
        self._has_zone = True

    def ahead_ns(self, written_ns: int) -> int:
        """Return how far the times without a zone are ahead of UTC, by when the log's file was last modified.

        A log that states a time with each line states the time of its last one when it is written. So the zone is the
        one in which the file was modified after the last time, and no later than the next line was due; 0 where it is
        none, as of a file that was copied later.
        """
        if self._has_zone or self._before_ns is None or self._last_ns is None:
            return 0
        ahead_ns = int(in_year_of(np.array([self._last_ns]), written_ns)[0]) - written_ns
        due_ns = min(self._last_ns - self._before_ns, _SLOWEST_NS) + 1_000_000_000  # logs print whole seconds
        return next((zone_ns for zone_ns in _ZONES_NS if -1_000_000_000 <= zone_ns - ahead_ns <= due_ns), 0)


def _moment(text: str, *, yearless: bool) -> tuple[int | None, str | None]:
    """Return a date and time as ns since 1970, and its zone, where it states them."""
    if match := _ISO.search(text):
        *parts, fraction, zone = match.groups()
        return _in_zone(*parts, fraction=fraction, zone=zone)
    for match in _CTIME.finditer(text):
        year = match["before"] or match["after"] or (YEARLESS if yearless else None)
        if year is None or match["month"] not in _MONTHS:
            continue
        date = int(year), _MONTHS[match["month"]], int(match["day"])
        return _since_epoch(*date, *map(int, match.group("h", "m", "s")), fraction=match["fraction"]), None
    if match := _RFC.search(text):
        day, month, year, *clock, fraction, zone = match.groups()
        return _in_zone(year, str(_MONTHS.get(month, 0)), day, *clock, fraction=fraction, zone=zone)
    return None, None


def _in_zone(*parts: str, fraction: str | None, zone: str | None) -> tuple[int | None, str | None]:
    ahead_s = 0
    if zone is not None and (stated := zone.strip())[0] in "+-":
        ahead_s = (-1 if stated[0] == "-" else 1) * (int(stated[1:3]) * 3600 + int(stated[-2:]) * 60)
    return _since_epoch(*map(int, parts), fraction=fraction, ahead_s=ahead_s), zone


def in_year_of(times_ns: npt.NDArray[np.int64], near_ns: int) -> npt.NDArray[np.int64]:
    """Return times; those of `YEARLESS` in the year that brings their day nearest to another time."""
    days, at = np.unique(times_ns // _DAY_NS, return_inverse=True)
    later = np.array([_days_later(day, near_ns) for day in days.tolist()], np.int64)
    return times_ns + later[at] * _DAY_NS


def _days_later(day: int, near_ns: int) -> int:
    stated, near = (date.fromordinal(_EPOCH + days) for days in (day, near_ns // _DAY_NS))
    dated = (_day(near.year + years, stated.month, stated.day) for years in (-1, 0, 1) if stated.year == YEARLESS)
    return min((at for at in dated if at is not None), key=lambda at: abs(at * _DAY_NS - near_ns), default=day) - day


@lru_cache(maxsize=4096)
def _day(year: int, month: int, day: int) -> int | None:
    """Return a date as days since 1970; None where there is none."""
    try:
        return date(year, month, day).toordinal() - _EPOCH
    except ValueError:
        return None


def _since_epoch(*parts: int, fraction: str | None, ahead_s: int = 0) -> int | None:
    hour, minute, second = parts[3:]
    day = _day(*parts[:3]) if hour < 24 and minute < 60 else None
    if day is None:
        return None
    whole = (day * 24 + hour) * 3600 + minute * 60 + min(second, 59) - ahead_s
    return whole * 1_000_000_000 + (int(fraction[:9].ljust(9, "0")) if fraction else 0)
