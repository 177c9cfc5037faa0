"""Values as logs print them: numbers, CPU lists and masks, PCI addresses, times, durations."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

YEARLESS: Final = 1972
"""The year of dates that state none: it has a 29 February."""
_MOST_CPUS: Final = 1 << 16
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
_DURATION: Final = re.compile(r"(-?\d+(?:\.\d+)?)(ns|us|μs|µs|ms|s|m|h)")
_UNIT_NS: Final = {"ns": 1, "us": 1e3, "μs": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9}


def number(text: str) -> float | None:
    """Return the number at the start of a text with a unit ("62.35 W"), or None for "[N/A]" and the like."""
    match = re.match(r"\s*(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)", text)
    return float(match[1]) if match else None


def decode_json(content: bytes | msgspec.Raw, kind: Any = Any) -> Any:
    """Return the JSON value of this kind in a content; ValueError where it is none, or is nested too deeply."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None


def as_integer(value: object) -> int | None:
    """Return a decoded value that is an integer; None for anything else, true and false included."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def as_text(value: object) -> str | None:
    """Return a decoded value that is a text; None for anything else and for an empty one."""
    return value if isinstance(value, str) and value else None


def cpu_list(text: str) -> list[int]:
    """Return the CPUs of a list ("0-23,96-119"); ValueError where it is none."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.strip().partition("-")
        low = _cpu(first)
        high = _cpu(last) if last else low
        if high < low:
            raise ValueError(f"not a range of CPUs: {part}")
        cpus.extend(range(low, high + 1))
    return cpus


def cpu_mask(text: str) -> list[int]:
    """Return the CPUs of a hexadecimal mask, with or without "0x" and commas every 32 bits."""
    digits = text.lower().removeprefix("0x").replace(",", "")
    if not digits or len(digits) > _MOST_CPUS // 4:
        raise ValueError("not a mask of CPUs")
    mask = int(digits, 16)
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


def bus_address(text: str) -> str | None:
    """Return a PCI address as domain:bus:device, from "0000:9b:00.0" or from NCCL's digits "a01c0"."""
    match = re.fullmatch(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.[0-9a-fA-F])?", text)
    if match:
        return f"{int(match[1] or '0', 16):04x}:{match[2]}:{match[3]}".lower()
    if re.fullmatch(r"[0-9a-fA-F]{1,13}", text):
        value = int(text, 16)
        return f"{value >> 20:04x}:{value >> 12 & 0xFF:02x}:{value >> 4 & 0xFF:02x}"
    return None


def time_ns(text: str, *, yearless: bool = False) -> int | None:
    """Return a date and time, or seconds since 1970, as ns since 1970; None where there is none.

    No zone means UTC. A date without a year, as syslog prints it, is None, with `yearless` of `YEARLESS`.
    """
    if match := re.match(r"\s*(1\d{9})(?:\.(\d{1,9}))?(?:\s|$)", text):
        return int(match[1]) * 1_000_000_000 + int((match[2] or "0").ljust(9, "0"))
    if match := _ISO.search(text):
        *parts, fraction, zone = match.groups()
        shift = timedelta()
        zone = (zone or "Z").strip()
        if zone != "Z":
            sign = -1 if zone[0] == "-" else 1
            shift = sign * timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:]))
        return _since_epoch(*map(int, parts), fraction=fraction, shift=shift)
    for match in _CTIME.finditer(text):
        year = match["before"] or match["after"] or (YEARLESS if yearless else None)
        if year is None or match["month"] not in _MONTHS:
            continue
        date = int(year), _MONTHS[match["month"]], int(match["day"])
        return _since_epoch(*date, *map(int, match.group("h", "m", "s")), fraction=match["fraction"])
    return None


def duration_ns(text: str) -> int:
    """Return a duration with its unit ("3.134ms") in ns; ValueError where it is none."""
    match = _DURATION.fullmatch(text.strip())
    if not match:
        raise ValueError(f"not a duration: {text[:40]}")
    return round(float(match[1]) * _UNIT_NS[match[2]])


def _cpu(text: str) -> int:
    cpu = int(text)
    if not 0 <= cpu < _MOST_CPUS:
        raise ValueError(f"not a CPU: {cpu}")
    return cpu


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
