"""Format numbers, times and names for people."""

import json
import math
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from jitter.core.errors import UsageError

_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"))
UNKNOWN = "unknown"
_FORMULA: Final = re.compile(r"[\s�]*[=+\-@＝＋－＠]")
"""The beginning of a text that a spreadsheet may take for a formula (OWASP, CSV injection)."""
_COMMANDS: Final = re.compile(r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""DEL, C1 and characters that change the direction of a text; JSON encoders escape C0 themselves."""


def format_time(ns: float | None, *, signed: bool = False) -> str:
    """Return nanoseconds with three digits in a suitable unit: `1.16 ms`, signed `−78.2 µs`.

    >>> format_time(1159365), format_time(-78200, signed=True), format_time(None)
    ('1.16 ms', '−78.2 µs', 'unknown')
    """
    if ns is None or math.isnan(ns):
        return UNKNOWN
    sign = "−" if ns < 0 else "+" if signed and ns > 0 else ""
    size = abs(ns)
    # 999.6 µs rounds to 1000: it belongs to the next unit
    scale, unit = next(((scale, unit) for scale, unit in _UNITS if size >= scale * 0.9995), (1.0, "ns"))
    value = size / scale
    digits = 0 if unit == "ns" or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{sign}{value:.{digits}f} {unit}"


def format_time_range(range_ns: tuple[int, int]) -> str:
    """Return the least and the most time that something may take, neither below 0: `2.18 ms to 4.90 ms`.

    Ends that read the same are one time.

    >>> format_time_range((2_178_544, 4_895_861)), format_time_range((-5, 1_000)), format_time_range((1_000, 1_001))
    ('2.18 ms to 4.90 ms', 'at most 1.00 µs', '1.00 µs')
    """
    if range_ns[0] <= 0 < range_ns[1]:
        return f"at most {format_time(range_ns[1])}"
    return " to ".join(dict.fromkeys(format_time(max(ns, 0)) for ns in range_ns))


def format_timeline_span(start_ns: int, end_ns: int) -> str:
    """Write a span as a profiler's timeline shows it: seconds with four decimals.

    >>> format_timeline_span(76_056_465_178, 76_057_981_000)
    '76.0565 s to 76.0580 s'
    """
    return f"{start_ns / 1e9:,.4f} s to {end_ns / 1e9:,.4f} s"


def format_percent(fraction: float | None) -> str:
    """Return a fraction as a percentage: `20.3%`, `0.74%`, `<0.01%`.

    >>> format_percent(0.20286), format_percent(0.0074), format_percent(-0.00001)
    ('20.3%', '0.74%', '>−0.01%')
    """
    if fraction is None:
        return UNKNOWN
    value = abs(100 * fraction)
    if 0 < value < 0.01:
        return "<0.01%" if fraction > 0 else ">−0.01%"
    sign = "−" if fraction < 0 else ""
    return f"{sign}{value:.1f}%" if value >= 9.995 else f"{sign}{value:.2f}%"


def format_rank(rank: int, host: str | None) -> str:
    """Return a rank with its host: `rank 11 (node0001)`."""
    return f"rank {rank}" if host is None else f"rank {rank} ({host})"


def format_ranks(ranks: Sequence[int]) -> str:
    """Return ranks with their noun: `rank 3`, `ranks 0-3,8`."""
    return format_numbered("rank", ranks)


def format_numbered(noun: str, numbers: Sequence[int]) -> str:
    """Return the numbers of things with the noun of these.

    >>> format_numbered("rank", [0, 1, 2, 8]), format_numbered("step", [4])
    ('ranks 0-2,8', 'step 4')
    """
    return f"{noun}{'s' if len(numbers) > 1 else ''} {format_numbers(numbers)}"


class Ranks(tuple[int, ...]):
    """Ranks in a sentence: `{ranks}` names them, `{ranks:waits|wait}` says what one of them does, or several.

    >>> "{0} {0:waits|wait}; {1} {1:waits|wait}".format(Ranks([3]), Ranks([0, 1]))
    'rank 3 waits; ranks 0-1 wait'
    """

    __slots__ = ()

    def __format__(self, forms: str) -> str:
        one, bar, many = forms.partition("|")
        if not bar:
            return format_ranks(self) if self else "these ranks"
        return one if len(self) == 1 else many


def abbreviate(name: str, most: int = 44) -> str:
    """Return a name, cut to `most` characters with an ellipsis."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def abbreviate_start(name: str, most: int) -> str:
    """Return a name, its start cut off for an ellipsis if it is longer than `most` characters."""
    return name if len(name) <= most else f"…{name[-most:]}"


def format_count(number: int, singular: str, plural: str | None = None) -> str:
    """Return a number with its noun: `1 rank`, `1,152 kernels`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def format_digits(value: float, digits: int = 3) -> str:
    """Return a number with so many digits or more, and no exponent.

    >>> format_digits(388282.87), format_digits(101.96), format_digits(36.372, 4), format_digits(0.00008)
    ('388,283', '102', '36.37', '0.00008')
    """
    text = f"{value:,.0f}" if abs(value) >= 10**digits - 0.5 else f"{value:,.{digits}g}"
    exponent = text.partition("e")[2]
    return f"{value:.{digits - 1 - int(exponent)}f}".rstrip("0") if exponent else text


def format_bandwidth(gb_per_s: float, of: float | None = None) -> str:
    """Return a bandwidth of so many GB/s (1e9 bytes), and what it could be.

    >>> format_bandwidth(25.49), format_bandwidth(12.5, of=25.0)
    ('25.5 GB/s', '12.5 of 25 GB/s')
    """
    return f"{format_digits(gb_per_s)}{'' if of is None else f' of {format_digits(of)}'} GB/s"


def format_factor(ratio: float) -> str:
    """Return how many times as much something is.

    >>> format_factor(0.4567)
    '0.46×'
    """
    return f"{ratio:.2f}×"


def format_pace(change: float) -> str:
    """Return the change of a time, as a part of it: `3.00% slower`."""
    return f"{format_percent(abs(change))} {'slower' if change > 0 else 'faster'}"


def format_bytes(size: int) -> str:
    """Return a size with its unit, of powers of ten.

    >>> format_bytes(512), format_bytes(4_194_304)
    ('512 B', '4.19 MB')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size} B"


def capitalize(sentence: str) -> str:
    """Return a sentence that begins with a capital letter and ends with a full stop.

    >>> capitalize("NCCL uses nmn0"), capitalize("two copies per step.")
    ('NCCL uses nmn0.', 'Two copies per step.')
    """
    return f"{sentence[:1].upper()}{sentence[1:].removesuffix('.')}."


def format_columns(lines: Iterable[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """Return the cells of lines as columns: those at the positions `left` are flush left, the others flush right.

    >>> format_columns([("rank", "time"), ("3", "12.5")])
    'rank  time\\n3     12.5\\n'
    """
    columns = list(zip(*lines, strict=True))
    widths = [max(map(len, column)) for column in columns]
    aligned = (
        [cell.ljust(width) if at in left else cell.rjust(width) for cell in column]
        for at, (column, width) in enumerate(zip(columns, widths, strict=True))
    )
    return "".join("  ".join(line).rstrip() + "\n" for line in zip(*aligned, strict=True))


def escape_control(text: str) -> str:
    """Return a text with every control character replaced, so that it stays one line and cannot command a terminal.

    >>> escape_control("evil\x1b[31m kernel")
    'evil�[31m kernel'
    """
    return text if text.isprintable() else "".join(char if char.isprintable() else "�" for char in text)


def csv_text(text: str) -> str:
    """Return a text for a cell of a CSV file; it commands no terminal, and a spreadsheet takes it for no formula.

    Control characters are replaced. A text that begins like a formula, also after white space or control characters,
    gets an apostrophe in front.

    >>> csv_text("=1+1"), csv_text("  =1+1"), csv_text("a=1")
    ("'=1+1", "'  =1+1", 'a=1')
    """
    cell = escape_control(text)
    return f"'{cell}" if _FORMULA.match(cell) else cell


def format_json(document: object) -> str:
    """Return plain data as a JSON document, one value a line."""
    # json's own indentation takes three times as long
    return msgspec.json.format(json.dumps(document, allow_nan=False), indent=1) + "\n"


def json_text(document: str) -> str:
    """Return a JSON document in which characters that command a terminal are escapes, which mean the same.

    >>> json_text('"evil\x9b31m kernel"') == '"evil' + chr(92) + 'u009b31m kernel"'
    True
    """
    return _COMMANDS.sub(lambda match: f"\\u{ord(match[0]):04x}", document)


def parse_numbers(text: str, option: str) -> list[int]:
    """Return the numbers in a text such as `0-7,180`, in order; raise `UsageError` with the option's name otherwise."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"{option}: {part.strip()!r} is no number or range", "write it like 0-7,180")
        numbers.update(range(int(first), int(last or first) + 1))
    if not numbers:
        raise UsageError(f"{option}: {text!r} is empty", "write it like 0-7,180")
    return sorted(numbers)


_MANY_EVENLY: Final = 6
"""Numbers at one distance, as ranks of one device of many hosts are, of which a text names the first and the last."""


_MOST_PARTS: Final = 24
"""Numbers and ranges in a text: some three lines, of which a person sees how the numbers lie."""


def format_numbers(numbers: Iterable[int], *, in_full: bool = False) -> str:
    """Return numbers as a text for people, or as an option takes them (`in_full`).

    >>> format_numbers([0, 1, 2, 180]), format_numbers(range(5, 512, 8)), format_numbers(range(0, 12, 2), in_full=True)
    ('0-2,180', '5,13,…,509', '0,2,4,6,8,10')
    """
    least = math.inf if in_full else _MANY_EVENLY
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        run = runs[-1] if runs else []
        apart = run[1] - run[0] if len(run) > 1 else None
        if run and apart in (None, number - run[-1]):
            run.append(number)
        elif run and apart != 1 and len(run) < least:
            runs[-1:] = run[:-1], [run[-1], number]
        else:
            runs.append([number])
    texts: list[str] = []
    for run in runs:
        if len(run) > 1 and run[1] == run[0] + 1:
            texts.append(f"{run[0]}-{run[-1]}")
        elif len(run) < least:
            texts += map(str, run)
        else:
            texts.append(f"{run[0]},{run[1]},…,{run[-1]}")
    if not in_full and len(texts) > _MOST_PARTS:
        texts[_MOST_PARTS - 2 : -1] = ["…"]
    return ",".join(texts)


def format_some(texts: Sequence[str], most: int) -> str:
    """Return the first texts, and how many more there are: `a, b and 3 more`.

    >>> format_some(["a", "b"], 2), format_some(["a", "b", "c"], 2)
    ('a, b', 'a, b and 1 more')
    """
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return f"{', '.join(texts[:most])}{more}"


def format_ordinal(number: int) -> str:
    """Return the ordinal number as text: 2nd, 3rd, 11th."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{ending}"
