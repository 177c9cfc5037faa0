"""Helpers of the log tests: parse a text as if it were a file, and compare tables as sets of rows."""

import io
from collections import Counter
from functools import partial
from pathlib import PurePath

from jitter.logs import ParsedLog, parse_blocks


def parsed(text: str | bytes, name: str = "run/job.log") -> ParsedLog:
    content = text if isinstance(text, bytes) else text.encode()
    return parse_blocks(iter(partial(io.BytesIO(content).read, 1 << 20), b""), PurePath(name))


def rows(log: ParsedLog, relation: str, *columns: str) -> list:
    """Rows of a relation as tuples of these columns; of one column, its values."""
    if relation not in log.tables:
        return []
    found = [tuple(row[column] for column in columns) for row in log.tables[relation].to_pylist()]
    return [row[0] for row in found] if len(columns) == 1 else found


def counted(log: ParsedLog, relation: str) -> Counter:
    """Rows with how often each occurs; an edge counts once for each line that states it."""
    if relation not in log.tables:
        return Counter()
    found: Counter = Counter()
    for row in log.tables[relation].to_pylist():
        lines = row.pop("lines", 1)
        found[repr(sorted(row.items()))] += lines
    return found
