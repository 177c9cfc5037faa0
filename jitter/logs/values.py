"""Values as logs print them: numbers, CPU lists and masks, PCI addresses, durations."""

import re
from typing import Any, Final, TypeVar

import msgspec

Kind = TypeVar("Kind")
_MOST_CPUS: Final = 1 << 16
_DURATION: Final = re.compile(r"(-?\d+(?:\.\d+)?)(ns|us|μs|µs|ms|s|m|h)")
_UNIT_NS: Final = {"ns": 1, "us": 1e3, "μs": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9}


def number(text: str) -> float | None:
    """Return the number at the start of a text with a unit ("62.35 W"), or None for "[N/A]" and the like."""
    match = re.match(r"\s*(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)", text)
    return float(match[1]) if match else None


def decode_json(content: bytes) -> Any:
    """Return the JSON value in a content; ValueError where it is none, or is nested too deeply."""
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None


def converted(value: Any, kind: type[Kind]) -> Kind:
    """Return a decoded value as this kind; ValueError where it is of another one."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
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
