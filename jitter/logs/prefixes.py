"""Prefixes that launchers put before each line of a log, and the rank that they state.

Open MPI `[1,0]<stdout>:` (5.x `[prterun-host-1@1,0]<stdout>:`), `srun -l` `0: `, torchrun `[default0]:`, MPICH `[0] `,
PyTorch `[rank0]:`, Ray `(Worker pid=1, ip=…)`, Kubernetes times and CRI's `stdout F`, ANSI colours.
"""

import re
from typing import Final

_ESCAPES: Final = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
_PREFIX: Final = re.compile(
    r"""\s*(?:
        (?:[A-Z][a-z]{2}\ [A-Z][a-z]{2}\ +\d+\ [\d:.]+\ \d{4})?\[[^\[\]\s]*?\d+,(?P<mpi>\d+)\]<std\w+>:\ ?
      | (?P<srun>\d+):\ (?=\S|\s|$)
      | \[(?:rank)(?P<rank>\d+)\]:?\ ?
      | \[default\d+\]:\ ?
      | \[\d+\]:?\ (?=[^\[\s]|\s)
      | \([\w.<>-]+(?:\([\w.]+\))?\ pid=\d+(?:,\ ip=[\d.:a-f]+)?\)\ ?
      | \(pid=\d+(?:,\ ip=[\d.:a-f]+)?\)\ ?
      | \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)\ (?:std(?:out|err)\ [FP]\ )?
      | \[pod/[^\]\s]+\]\ ?
    )""",
    re.VERBOSE,
)
_MOST: Final = 5


def without_escapes(line: bytes) -> bytes:
    """Return the line without terminal escapes (colours, titles)."""
    return _ESCAPES.sub(b"", line) if b"\x1b" in line else line


def decoded(line: bytes) -> str:
    """Return the line as text, without escapes and line end; bytes that are no UTF-8 are replaced."""
    return without_escapes(line).rstrip(b"\r\n").decode("utf-8", "replace")


def split_prefix(line: bytes) -> tuple[str, str, int | None]:
    """Return the prefixes of a line, the text after them, and the rank that they state."""
    text = decoded(line)
    at = 0
    rank = None
    for _ in range(_MOST):
        found = _PREFIX.match(text, at)
        if found is None:
            break
        stated = found["mpi"] or found["srun"] or found["rank"]
        if stated is not None and len(stated) < 10:
            rank = int(stated)
        at = found.end()
    return text[:at].strip(), text[at:], rank
