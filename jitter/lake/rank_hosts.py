"""Hosts that recordings or logs do not name: of ranks from log lines that do, of a log from its path."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import PurePath
from typing import Any, Final

_WORD: Final = "(?<![A-Za-z0-9]){}(?![A-Za-z0-9])"


def hosts_in_logs(communicators: Iterable[Mapping[str, Any]], ranks: Collection[int]) -> dict[int, str]:
    """Return the host of each rank by the rows of the relation `communicators`; empty unless all ranks have one.

    Only communicators of the whole job count: in others a rank has another number. A rank with two hosts, as where logs
    of two jobs lie in one folder, makes all of them unknown.
    """
    rows = [row for row in communicators if None not in (row["rank"], row["ranks"], row["host"])]
    world = max((row["ranks"] for row in rows), default=0)
    named: dict[int, set[str]] = defaultdict(set)
    for row in rows:
        if row["ranks"] == world:
            named[row["rank"]].add(row["host"])
    if not ranks or world <= max(ranks) or any(len(named[rank]) != 1 for rank in ranks):
        return {}
    return {rank: next(iter(named[rank])) for rank in ranks}


def host_of_file(file: str, hosts: Collection[str]) -> str | None:
    """Return the one of the job's hosts that the name of a file, or of its folder, holds as a word; else None.

    >>> host_of_file("logs/nvidia-smi-node1.csv", ["node1", "node10.cluster"])
    'node1'
    """
    text = "/".join(PurePath(file).parts[-2:])
    found = [host for host in hosts if re.search(_WORD.format(re.escape(host.partition(".")[0])), text)]
    return found[0] if len(found) == 1 else None
