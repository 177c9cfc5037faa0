"""What the names of rocprof's files tell: a rank where one is spelled out, a process never taken for one."""

import os
import re
from pathlib import Path
from typing import Final

NAMING_HINT: Final = (
    "name rocprof's output after the rank, as in `rocprofv3 -o rank-%env{RANK}%` "
    "(under srun %env{SLURM_PROCID}%; %pid% and, under torchrun, %rank% tell no rank)"
)
"""For people whose files' names tell no rank."""

# `myprofile-3`: a short number behind a word; dates, times and bare process ids are none
_TRAILING: Final = re.compile(r"(?P<before>.*[A-Za-z].*?)[-_.](?P<number>\d{1,5})")
_NO_RANK: Final = re.compile(
    r"(?i)(?:^|[^a-z])(?:local[-_.]?rank|pid|p|process|proc|node|host|step|epoch|iter|iteration|run|try|trial|attempt"
    r"|job|v|version|part|gpu|device|worker[-_.]?pid)[-_.]?$"
)


def sibling_files(path: Path, prefix: str) -> list[Path]:
    """The other files in this file's folder whose names begin with this, in order."""
    # names alone: a folder may hold the files of a thousand ranks, and is looked through for each of them
    names = sorted(name for name in os.listdir(path.parent) if name.startswith(prefix) and name != path.name)  # noqa: PTH208
    return [file for name in names if (file := path.parent / name).is_file()]


def rank_in_file_name(stem: str, pids: frozenset[int] = frozenset()) -> int | None:
    """The rank at the end of a name given with -o (`myprofile-3`), if it can be no process id and no other number."""
    found = _TRAILING.fullmatch(stem.rstrip("-_."))
    if found is None or _NO_RANK.search(found["before"]):
        return None
    number = int(found["number"])
    return None if number in pids else number


def pid_in_file_name(stem: str) -> int | None:
    """The process id that rocprofv3 begins its files' names with, unless told otherwise (`4711_kernel_trace.csv`)."""
    found = re.match(r"(\d{1,9})(?:_|$)", stem)
    return int(found[1]) if found else None
