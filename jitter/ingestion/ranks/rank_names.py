"""Ranks in names: of files and folders, and of step markers. Only a global rank is a rank.

`tp_rank_1`, `local_rank 3` or `node-rank=0` number something else and never count.
"""

import re
from pathlib import Path
from typing import Final, NamedTuple

_OTHER_RANKS: Final = (
    *("local", "tp", "pp", "dp", "cp", "ep", "mp", "sp", "etp", "edp", "cdp", "vp", "vpp", "ddp", "fsdp", "hsdp"),
    *("tensor", "pipeline", "pipe", "data", "expert", "model", "context", "sequence", "parallel", "mpu", "stage"),
    *("node", "machine", "host", "server", "group", "intra", "inner", "inter", "device", "numa", "attn", "moe"),
)
"""Words that before "rank" say that it is not the global one."""
_SEPARATORS: Final = r"[_\-. ]"
GLOBAL_RANK: Final = (
    r"(?<![a-z])"
    + "".join(rf"(?<!(?<![a-z]){word})(?<!(?<![a-z]){word}{_SEPARATORS})" for word in _OTHER_RANKS)
    + rf"(?:(?:global|world){_SEPARATORS}?)?rank"
)
"""Regular expression of the word for a global rank, for patterns that ignore case."""

_STRONG: Final = re.compile(rf"(?i){GLOBAL_RANK}[_\-.=:\[]?(?P<rank>\d{{1,9}})(?!\d)")
_SGLANG: Final = re.compile(r"(?i)-TP-(?P<rank>\d{1,5})(?P<rest>(?:-[A-Z]+-\d+)*)(?:-[A-Z]+)?(?=\.)")
_WEAK: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?i)(?<![a-z])worker[_\-.]?(?P<rank>\d{1,9})(?!\d)",
        r"(?i)kineto[_\-.](?P<rank>\d{1,9})(?!\d)",
        r"(?i)(?<![a-z])(?:gpu|trainer)[_\-.]?(?P<rank>\d{1,4})(?!\d)(?![_\-.]?of)",
        r"(?i)(?:^|[_\-.])(?:report|profile|prof|trace|nsys|timeline)(?:[_\-.]r?|[_\-]rank)(?P<rank>\d{1,4})(?=$|\.[a-z])",
        r"(?i)^(?P<rank>\d{1,4})(?=\.pt\.trace\.json)",
    )
)
_OTHER_NUMBERS: Final = re.compile(r"(?i)(?<![a-z])(?:tp|pp|dp|cp|ep|mp|sp|vpp|etp|edp)[_\-.]?(?:rank[_\-.]?)?\d")
_YEARS: Final = range(1990, 2100)


class NamedRank(NamedTuple):
    """A rank in a file's path. A strong one says "rank"; a weak one is a number where tools put the rank."""

    rank: int
    is_strong: bool


def rank_in_path(path: Path) -> int | None:
    """Return the rank in the file's name, else in the name of the nearest folder that has one; None if none has."""
    path_rank = named_rank(path)
    return None if path_rank is None else path_rank.rank


def named_rank(path: Path) -> NamedRank | None:
    """Return the rank as `rank_in_path`, with its strength."""
    for part in (path.name, *(parent.name for parent in path.parents)):
        part_rank = _rank_in_part(part)
        if part_rank is not None:
            return part_rank
    return None


def stated_rank(path: Path) -> int | None:
    """Return the rank that the file's own name states with the word "rank"; None if it does not."""
    name_rank = _rank_in_part(path.name)
    return name_rank.rank if name_rank is not None and name_rank.is_strong else None


def _rank_in_part(part: str) -> NamedRank | None:
    strong = list(_STRONG.finditer(part))
    if strong:
        named = [match for match in strong if match[0].lower().startswith(("global", "world"))]
        return NamedRank(int((named or strong)[-1]["rank"]), True)
    sglang = _SGLANG.search(part)
    if sglang is not None:
        # with -DP-, -PP- or -EP- the global rank depends on their sizes, which the name does not state
        return None if sglang["rest"] else NamedRank(int(sglang["rank"]), False)
    if _OTHER_NUMBERS.search(part):
        return None
    for pattern in _WEAK:
        matches = list(pattern.finditer(part))
        if matches and int(matches[-1]["rank"]) not in _YEARS:
            return NamedRank(int(matches[-1]["rank"]), False)
    return None
