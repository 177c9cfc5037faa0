"""Cuts and flipped bytes: the reader must neither fail, nor hang, nor pass damaged rows off as whole.

    python -m tests.readers.kineto.fuzz [CASES] [SEED]

Takes real traces from JITTER_TRACES if that is set, else one that is made here; prints what it met.
"""

import gzip
import os
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from jitter.core.errors import UnreadableTraceError
from tests.support.kineto_traces import as_read, events_in, expected, is_within, kernel, operator, read, small, text

LARGEST = 3_000_000
"""Bytes of JSON: a case is to take some milliseconds."""
SLOWEST_S = 20.0


@dataclass
class Figures:
    """The outcomes of the cases."""

    outcomes: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    rows_of_whole: int = 0
    slowest_s: float = 0.0
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        told = ", ".join(f"{count:,} {what}" for what, count in sorted(self.outcomes.items()))
        return (
            f"{self.outcomes.total():,} cases: {told}; {self.rows:,} of {self.rows_of_whole:,} rows kept; "
            f"slowest {self.slowest_s:.2f} s; {len(self.failures)} failures"
        )


def own_trace() -> bytes:
    events = [*small(60), *(operator(f"op {k}", x=[{"a": k}, {"b": []}]) for k in range(20)), kernel("},{", ts=9000)]
    about = {"distributedInfo": {"rank": 3, "pg_config": [{"a": 1}, {"a": 2}]}, "baseTimeNanoseconds": 10**18}
    return text(events, before=about, after={"traceName": "x", "INFO": ["a", "b"]}, indent=1)


def real_traces(folder: Path) -> list[bytes]:
    found = []
    for path in sorted(folder.glob("kineto/[!m]*/**/*.gz")):
        content = gzip.decompress(path.read_bytes())
        if len(content) <= LARGEST and b'"kernel"' in content:
            found.append(content)
    return found


def damaged(content: bytes, dice: random.Random) -> tuple[str, bytes, bool]:
    """(kind, file content, whether it is still JSON that may be taken for whole)."""
    kind = dice.choice(("cut", "flip", "delete", "insert", "quote", "gzip cut", "gzip flip"))
    if kind.startswith("gzip"):
        zipped = bytearray(gzip.compress(content, 1, mtime=0))
        at = dice.randrange(10, len(zipped))
        if kind == "gzip cut":
            return kind, bytes(zipped[:at]), False
        zipped[at] ^= 1 << dice.randrange(8)
        return kind, bytes(zipped), False
    at = dice.randrange(len(content))
    if kind == "cut":
        return kind, content[:at], False
    some = bytearray(content)
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(some))
        if kind == "flip":
            some[at] ^= 1 << dice.randrange(8)
        elif kind == "delete":
            del some[at : at + dice.randint(1, 200)]
        elif kind == "insert":
            some[at:at] = bytes(dice.choices(b'{}[]",:\\\0\n9a', k=dice.randint(1, 6)))
        else:
            some[at:at] = b'"'
    return kind, bytes(some), True


def fuzz(contents: list[bytes], cases: int, seed: int) -> Figures:
    """Read `cases` damaged variants. A row that the whole trace does not have is a failure unless damage may make
    it: where bytes change, numbers and names do; then at most a few rows may be new."""
    dice = random.Random(seed)
    figures = Figures()
    wholes = [expected(events_in(content)) for content in contents]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        for case in range(cases):
            which = dice.randrange(len(contents))
            kind, content, may_change = damaged(contents[which], dice)
            path.write_bytes(content)
            whole = wholes[which]
            started = time.monotonic()
            try:
                recording, rows = read(path, dice.choice((1000, 20_000, 262_144)))
            except UnreadableTraceError as error:
                figures.outcomes[f"{kind}: refused"] += 1
                if len(str(error)) < 20 or "\n" in str(error):
                    figures.failures.append(f"case {case} ({kind}): {error}")
                continue
            except Exception as error:
                figures.failures.append(f"case {case} ({kind}): {error!r}")
                continue
            finally:
                figures.slowest_s = max(figures.slowest_s, time.monotonic() - started)
            found = as_read(recording, rows)
            kept = sum((found[table] & whole[table]).total() for table in found)
            total = sum(whole[table].total() for table in whole)
            new = sum((found[table] - whole[table]).total() for table in found)
            figures.rows += kept
            figures.rows_of_whole += total
            told = bool(recording.problems)
            figures.outcomes[f"{kind}: {'damage told' if told else 'nothing told'}"] += 1
            if kind in ("cut", "gzip cut") and not is_within(found, whole):
                figures.failures.append(f"case {case} ({kind}): rows that are not in the whole trace")
            if may_change and (new > 3 or (not told and kept + new < total - 3)):
                figures.failures.append(f"case {case} ({kind}): {kept:,} of {total:,} rows, {new:,} new, told: {told}")
            if not may_change and not told and kept < total:
                figures.failures.append(f"case {case} ({kind}): {kept:,} of {total:,} rows and nothing told")
            if figures.slowest_s > SLOWEST_S:
                figures.failures.append(f"case {case} ({kind}): {figures.slowest_s:.0f} s")
    return figures


def main() -> int:
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    folder = os.environ.get("JITTER_TRACES")
    figures = fuzz(real_traces(Path(folder)) if folder else [own_trace()], cases, seed)
    print(figures)
    print("\n".join(figures.failures[:20]))
    return bool(figures.failures)


if __name__ == "__main__":
    sys.exit(main())
