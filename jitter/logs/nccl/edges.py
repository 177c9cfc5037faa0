"""Connections between ranks in NCCL_DEBUG logs: `Channel 00/0 : 0[a01c0] -> 8[101c0] [send] via NET/IB/0/GDRDMA`.

`Ring 00 : …` in NCCL 2.4; the brackets hold the PCI address to 2.16 and NVML's device from 2.18 on; RCCL adds
`comm 0x… nRanks 16`. Transports: `NET/<name>/<device>[(proxy rank)][/GDRDMA[(PCI)]][/Shared]`, `COLLNET/…` alike,
`P2P/IPC`, `P2P/CUMEM`, `P2P/direct pointer`, `SHM/direct/direct`, to 2.12 `direct shared memory`.
"""

import re
from typing import Final

import pyarrow as pa

from jitter.logs.problems import Problems
from jitter.logs.schemas import SCHEMAS
from jitter.logs.tables import Tables

_EDGE: Final = re.compile(
    rb"(?:Channel|Ring) (\d{1,6})(?:/\d+)?\s*:\s*(\d{1,9})(?:\[\w+\])? -> (\d{1,9})(?:\[\w+\])? "
    rb"(?:\[(?:send|receive)\] )?via (.+?)(?: comm 0x\w+ nRanks \d+)?\s*"
)
_NETWORK: Final = re.compile(rb"((?:NET|COLLNET)/[\w][\w .+-]*)/(\d{1,4})(?:\(\d+\))?((?:/\w+(?:\([\w:.]+\))?)*)")
_LOCAL: Final = re.compile(rb"[A-Za-z][\w]*(?:/[\w][\w \[\]-]*)*|direct shared memory")
_KNOWN_LOCAL: Final = re.compile(
    rb"(?:P2P/(?:IPC|CUMEM|MNNVL|direct pointer|common device)(?:/read)?(?:/CE)?|SHM/\w+(?:/\w+)?|direct shared memory)"
    rb"(?=[^\w/])"
)
"""The rest of an edge that another record interrupted."""
_MOST_MESSAGES: Final = 20_000
_MOST_BATCHES: Final = 200
_KEYS: Final = ["channel", "from_rank", "to_rank", "transport", "nic", "gdr"]
_RELATION: Final = pa.schema([field for field in SCHEMAS["edges"] if field.name != "source"])
_SCHEMA: Final = _RELATION.set(3, pa.field("transport", pa.dictionary(pa.int32(), pa.string())))
"""Few texts of transports for many edges."""

_Edge = tuple[int, int, int, str, int | None, bool | None]


class Edges:
    """Edges with the number of lines that state each; equal texts are matched once."""

    def __init__(self, format_: str, problems: Problems) -> None:
        self._format = format_
        self._problems = problems
        self.texts: dict[bytes, int] = {}
        """How often each text of an edge occurs; the caller counts known texts here, without a call of `count`."""
        self._line: dict[bytes, int] = {}
        self._batches: list[pa.Table] = []

    def count(self, text: bytes, line: int) -> None:
        """Count a message that begins like an edge; orders of a ring (`Channel 00/08 : 0 1 2`) state none."""
        if text in self.texts:
            self.texts[text] += 1
            return
        if b" -> " not in text or (b" via " not in text and text.count(b" -> ") > 1):
            return
        self.texts[text] = 1
        self._line[text] = line
        if len(self.texts) >= _MOST_MESSAGES:
            self._drain()

    def add_to(self, tables: Tables) -> None:
        """Add all edges, ordered by channel and ranks, as rows of the relation."""
        self._drain()
        if not self._batches:
            return
        self._merge()
        table = self._batches.pop()
        table = table.set_column(3, _RELATION.field(3), table["transport"].cast(pa.string()))
        for batch in table.sort_by([(key, "ascending") for key in _KEYS]).to_batches(max_chunksize=65_536):
            tables.add_batch("edges", batch.cast(_RELATION))

    def _drain(self) -> None:
        """Parse the texts and put their edges into a batch."""
        edges: dict[_Edge, int] = {}
        for text, count in self.texts.items():
            edge = _parsed(text)
            if edge is None:
                for _ in range(count):
                    self._problems.broken(self._format, self._line[text])
            else:
                edges[edge] = edges.get(edge, 0) + count
        self.texts.clear()
        self._line.clear()
        if edges:
            columns = [*zip(*edges, strict=True), tuple(edges.values())]
            arrays = [pa.array(column, kind) for column, kind in zip(columns, _SCHEMA.types, strict=True)]
            self._batches.append(pa.Table.from_arrays(arrays, schema=_SCHEMA))
        if len(self._batches) >= _MOST_BATCHES:
            self._merge()

    def _merge(self) -> None:
        merged = (
            pa.concat_tables(self._batches)
            .unify_dictionaries()
            .group_by(_KEYS, use_threads=False)
            .aggregate([("lines", "sum")])
        )
        self._batches = [merged.rename_columns({"lines_sum": "lines"}).select(_SCHEMA.names).cast(_SCHEMA)]


def _parsed(text: bytes) -> _Edge | None:
    found = _EDGE.fullmatch(text)
    if found is None:
        return None
    channel, source, target, via = found.groups()
    nic: int | None = None
    gdr: bool | None = None
    if network := _NETWORK.fullmatch(via):
        via, nic, gdr = network[1], int(network[2]), b"/GDRDMA" in network[3]
    elif not _LOCAL.fullmatch(via):
        known = _KNOWN_LOCAL.match(via)
        if known is None:
            return None
        via = known[0]
    if max(int(source), int(target)) >= 1 << 31:
        return None
    return int(channel), int(source), int(target), via.decode("ascii", "replace"), nic, gdr
