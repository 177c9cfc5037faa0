"""Metadata of a rocpd session: processes, hosts, GPUs, versions; of the environment only the rank."""

import json
from dataclasses import dataclass, field
from typing import Any, Final

from jitter.core.names.launchers import RANK_VARIABLES, SIZE_VARIABLES, first_number
from jitter.readers import Process
from jitter.readers.amd.agents import Agents
from jitter.readers.amd.batches import decode_text
from jitter.readers.amd.rocpd.tables import Session
from jitter.readers.amd.sqlite_tables import Database
from jitter.readers.integers import parse_integer

_NUMBERS: Final = frozenset({"id", "nid", "pid", "tid", "absolute_index"})


@dataclass
class SessionMetadata:
    """Contents of the small tables of one session."""

    version: str | None = None
    world_size: int | None = None
    processes: dict[int, Process] = field(default_factory=dict)
    """By the row id of info_process."""
    threads: dict[int, int] = field(default_factory=dict)
    """Thread ids by the row id of info_thread."""
    gpus: dict[int, int] = field(default_factory=dict)
    """Ordinals of GPUs by the row id of info_agent."""
    kernels: dict[int | None, str] = field(default_factory=dict)
    """Names by the row id of info_kernel_symbol."""
    problems: list[str] = field(default_factory=list)

    def process(self, row: int | None) -> Process:
        """Return the process with this row id; an empty one if it is not recorded."""
        return self.processes.get(-1 if row is None else row) or Process(None)


def read_session_metadata(database: Database, session: Session) -> SessionMetadata:
    """Read the small tables that exist. Raises UnreadableTraceError for a damaged database."""
    origin = SessionMetadata()
    hosts = {row["id"]: row["hostname"] for row in _rows(database, session, "info_node", ["id", "hostname"])}
    for row in _rows(database, session, "info_process", ["id", "nid", "pid", "environment"]):
        process = Process(row["pid"], _text(hosts.get(row["nid"])))
        variables = _variables(row["environment"])
        process.rank, process.rank_from = first_number(variables, RANK_VARIABLES)
        origin.world_size = origin.world_size or first_number(variables, SIZE_VARIABLES)[0] or None
        origin.processes[row["id"]] = process
    for row in _rows(database, session, "info_thread", ["id", "tid"]):
        if row["tid"] is not None:
            origin.threads[row["id"]] = row["tid"]
    _read_agents(origin, _rows(database, session, "info_agent", ["id", "nid", "pid", "type", "absolute_index"]))
    columns = ["id", "display_name", "kernel_name"]
    for row in _rows(database, session, "info_kernel_symbol", columns):
        origin.kernels[row["id"]] = _text(row["display_name"]) or _text(row["kernel_name"]) or ""
    for row in _rows(database, session, "metadata", ["tag", "value"]):
        if row["tag"] == "schema_version":
            origin.version = f"rocpd schema {row['value']}"
    return origin


def _variables(environment: object) -> dict[str, Any]:
    """Return the environment of a process, which is JSON; empty if it is not recorded or damaged."""
    try:
        found = json.loads(environment) if isinstance(environment, str | bytes) else None
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}


def _read_agents(origin: SessionMetadata, rows: list[dict[str, Any]]) -> None:
    """Number the GPUs of each process separately, because each process lists all agents of its node."""
    seen: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    for row in rows:
        seen.setdefault((row["nid"], row["pid"]), []).append(row)
    for agents in seen.values():
        listed = [(str(a["type"] or ""), a["absolute_index"], None) for a in agents if a["absolute_index"] is not None]
        ordinals = Agents.of(listed).by_node
        for agent in agents:
            if agent["absolute_index"] in ordinals:
                origin.gpus[agent["id"]] = ordinals[agent["absolute_index"]]


def _rows(database: Database, session: Session, table: str, wanted: list[str]) -> list[dict[str, Any]]:
    """Return all rows of a small table; columns that this version lacks are None."""
    if not session.has(database, table):
        return []
    present = [column for column in wanted if session.has(database, table, column)]
    if not present:
        return []
    columns = ", ".join(f'"{column}"' for column in present)
    rows = database.rows(f'SELECT {columns} FROM "{session.table(table)}"')
    missing = dict.fromkeys(wanted)
    found = [missing | dict(zip(present, row, strict=True)) for row in rows]
    return [{name: parse_integer(value) if name in _NUMBERS else value for name, value in row.items()} for row in found]


def _text(value: object) -> str | None:
    return decode_text(value) if isinstance(value, str | bytes) else None
