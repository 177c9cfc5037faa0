"""Lists of numbers as people write them: `0-7,180`."""

from collections.abc import Iterable

from jitter.errors import UsageError


def parse_numbers(text: str, option: str) -> list[int]:
    """Read `0-7,180` into numbers in order; raise `UsageError` naming the option otherwise."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"{option}: {part.strip()!r} is no number or range", "write it like 0-7,180")
        found.update(range(int(first), int(last or first) + 1))
    if not found:
        raise UsageError(f"{option}: {text!r} is empty", "write it like 0-7,180")
    return sorted(found)


def format_numbers(numbers: Iterable[int]) -> str:
    """Write numbers as `0-7,180`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
