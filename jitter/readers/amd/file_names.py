"""File names of rocprof's output: the rank or process id in them, and the files of one recording."""

import os
import re
from pathlib import Path
from typing import Final

NAMING_HINT: Final = (
    "name rocprof's output after the rank, as in `rocprofv3 -o rank-%env{RANK}%` "
    "(under srun %env{SLURM_PROCID}%; %pid% and, under torchrun, %rank% are not the rank)"
)
"""Advice on naming files so that the rank is known."""

# `myprofile-3`: a short number after a word; not dates, times or bare process ids
_TRAILING: Final = re.compile(r"(?P<before>.*[A-Za-z].*?)[-_.](?P<number>\d{1,5})")
_NO_RANK: Final = re.compile(
    r"(?i)(?:^|[^a-z])(?:local[-_.]?rank|pid|p|process|proc|node|host|step|epoch|iter|iteration|run|try|trial|attempt"
    r"|job|v|version|part|gpu|device|worker[-_.]?pid)[-_.]?$"
)


def sibling_files(path: Path, prefix: str) -> list[Path]:
    """Return the other files in the same folder whose names start with `prefix`, sorted."""
    # names only: a folder may hold the files of a thousand ranks and is listed for each
    names = sorted(name for name in os.listdir(path.parent) if name.startswith(prefix) and name != path.name)  # noqa: PTH208
    return [file for name in names if (file := path.parent / name).is_file()]


def rank_in_file_name(stem: str, pids: frozenset[int] = frozenset()) -> int | None:
    """Return the rank at the end of a name given with -o (`myprofile-3`); None for process ids and other numbers."""
    match = _TRAILING.fullmatch(stem.rstrip("-_."))
    if match is None or _NO_RANK.search(match["before"]):
        return None
    number = int(match["number"])
    return None if number in pids else number


def pid_in_file_name(stem: str) -> int | None:
    """Return the process id with which rocprofv3 starts file names by default (`4711_kernel_trace.csv`), else None."""
    match = re.match(r"(\d{1,9})(?:_|$)", stem)
    return int(match[1]) if match else None
