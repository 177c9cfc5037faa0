"""Times as logs print them, and the time zone that a log's times are in where they state none."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

YEARLESS: Final = 1972
"""The year of dates that state none: it has a 29 February."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MONTHS: Final = {
    name: at
    for at, name in enumerate(("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1)
}
_CTIME: Final = re.compile(
    r"(?P<month>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) (?:(?P<before>\d{4}) )?(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)"
    r"(?:\.(?P<fraction>\d+))?(?(before)|(?: (?P<after>\d{4})\b)?)"
)
_ISO: Final = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9})\d*)?(Z| ?[+-]\d\d:?\d\d\b)?"
)
_HOUR_NS: Final = 3_600_000_000_000
_ZONES_NS: Final = tuple(
    round(hours * _HOUR_NS)
    for hours in (*range(-12, 15), -9.5, -3.5, -2.5, 3.5, 4.5, 5.5, 5.75, 6.5, 8.75, 9.5, 10.5, 12.75, 13.75)
)
"""How far local times are ahead of UTC."""
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
        elif time_ns is not None and (self._last_ns is None or time_ns > self._last_ns):
            self._before_ns, self._last_ns = self._last_ns, time_ns
        return time_ns

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
        ahead_ns = in_year_of(self._last_ns, written_ns) - written_ns
        due_ns = min(self._last_ns - self._before_ns, _SLOWEST_NS) + 1_000_000_000  # logs print whole seconds
        return next((zone_ns for zone_ns in _ZONES_NS if -1_000_000_000 <= zone_ns - ahead_ns <= due_ns), 0)


def _moment(text: str, *, yearless: bool) -> tuple[int | None, str | None]:
    """Return a date and time as ns since 1970, and its zone, where it states them."""
    if match := _ISO.search(text):
        *parts, fraction, zone = match.groups()
        shift = timedelta()
        if zone is not None and (stated := zone.strip()) != "Z":
            sign = -1 if stated[0] == "-" else 1
            shift = sign * timedelta(hours=int(stated[1:3]), minutes=int(stated[-2:]))
        return _since_epoch(*map(int, parts), fraction=fraction, shift=shift), zone
    for match in _CTIME.finditer(text):
        year = match["before"] or match["after"] or (YEARLESS if yearless else None)
        if year is None or match["month"] not in _MONTHS:
            continue
        date = int(year), _MONTHS[match["month"]], int(match["day"])
        return _since_epoch(*date, *map(int, match.group("h", "m", "s")), fraction=match["fraction"]), None
    return None, None


def in_year_of(moment_ns: int, near_ns: int) -> int:
    """Return a time; one of `YEARLESS` in the year that brings it nearest to another time."""
    moment, near = (_EPOCH + timedelta(seconds=at // 1_000_000_000) for at in (moment_ns, near_ns))
    if moment.year != YEARLESS:
        return moment_ns
    parts = moment.month, moment.day, moment.hour, moment.minute, moment.second
    dated = (_since_epoch(near.year + years, *parts, fraction=None) for years in (-1, 0, 1))
    return min((at for at in dated if at is not None), key=lambda at: abs(at - near_ns), default=moment_ns)


def _since_epoch(*parts: int, fraction: str | None, shift: timedelta = timedelta()) -> int | None:
    year, month, day, hour, minute, second = parts
    try:
        moment = datetime(year, month, day, hour, minute, min(second, 59), tzinfo=UTC) - shift
    except (ValueError, OverflowError):
        return None
    whole = (moment - _EPOCH) // timedelta(seconds=1)
    return whole * 1_000_000_000 + int((fraction or "0")[:9].ljust(9, "0"))
