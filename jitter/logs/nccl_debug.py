"""Logs of NCCL_DEBUG=INFO: NCCL 2.4 to 2.30, RCCL, the aws-ofi plug-ins.

The hot path of the package: a log can have a gigabyte. Most lines state an edge, and equal edges repeat; a line costs
a few searches for a substring, and only a text that is new is matched against a pattern.

The head of a record is `host:pid:tid [device] NCCL INFO`. WARN puts the source's file and line before `NCCL`, 2.30 its
function in brackets, too; 2.26 on can put a time before the host, CALL has no device. Where lines of several processes
run into each other, a line holds several records.

Communicators: `comm 0x… rank R nranks N cudaDev D busId B - Init COMPLETE` (2.4 on; RCCL adds words before the dash),
from 2.19 on with the function's name, `nvmlDev` and the `commId` that all ranks share; `Init START`, `Destroy COMPLETE`
alike. Plug-in: 2.4 `NET/Plugin : No plugin found`, 2.5 on `NET/Plugin: Loaded net plugin X (v5)`, `NET/OFI …` of
aws-ofi.

Edges: `Channel 00/0 : 0[a01c0] -> 8[101c0] [send] via NET/IB/0/GDRDMA`, `Ring 00 : …` in NCCL 2.4; the brackets hold
the PCI address to 2.16 and NVML's device from 2.18 on; RCCL adds `comm 0x… nRanks 16`. Transports:
`NET/<name>/<device>[(proxy rank)][/GDRDMA[(PCI)]][/Shared]`, `COLLNET/…` alike, `P2P/IPC`, `P2P/CUMEM`,
`P2P/direct pointer`, `SHM/direct/direct`, to 2.12 `direct shared memory`.
"""

import re
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from jitter.core.bandwidth import NCCL_TYPES
from jitter.core.grouping import by_key
from jitter.logs.line_parser import Context, LineParser, Lines, Problems
from jitter.logs.schemas import SCHEMAS
from jitter.logs.tables import Tables
from jitter.logs.values import bus_address

MARK: Final = b" NCCL "
_LEVELS: Final = (b"INFO", b"WARN", b"TRACE", b"CALL", b"VERSION", b"ABORT")
_HEAD: Final = re.compile(
    rb"(?P<host>[A-Za-z0-9_][\w.-]*|<[\w-]+>):(?P<pid>\d{1,10}):(?P<tid>\d{1,10})\s(?:\[(?P<device>\d{1,4})\]\s)?"
    rb"(?P<place>[\w./+-]+:\d+\s(?:\(\w+\)\s)?)?$"
)
_SPLIT: Final = re.compile(
    rb"([A-Za-z0-9_][\w.-]{0,253}:\d{1,10}:\d{1,10}\s(?:\[\d{1,4}\]\s)?(?:[\w./+-]{1,255}:\d{1,10}\s(?:\(\w{1,80}\)\s)?)?"
    rb"NCCL (?:INFO|WARN|TRACE|CALL) )"
)
"""Bounded, as all patterns that are searched for are: the time of an unbounded one grows with the line's square."""


class Head(NamedTuple):
    """The process that wrote a record."""

    host: str | None
    pid: int | None


NO_HEAD: Final = Head(None, None)


def head_of(text: bytes) -> Head:
    """Return the process that the text before " NCCL " names, or Nones where it names none."""
    match = _HEAD.search(text[-400:] + b" ")
    if match is None:
        return NO_HEAD
    return Head(match["host"].decode(), int(match["pid"]))


def message_of(record: bytes, at: int) -> bytes | None:
    """Return what follows "NCCL INFO " of a record with " NCCL " at `at`, or None where no level follows."""
    level, _, message = record[at + len(MARK) :].partition(b" ")
    return message if level in _LEVELS else None


def split_records(line: bytes, hosts: set[str]) -> list[bytes]:
    """Return the records of a line that holds several, each with its head.

    Where a record begins within a word, the longest known host name decides.
    """
    parts = _SPLIT.split(line)
    records = [parts[0]]
    for head, rest in zip(parts[1::2], parts[2::2], strict=True):
        cut = _foreign(head.partition(b":")[0], hosts)
        records[-1] += head[:cut]
        records.append(head[cut:] + rest)
    return [record for record in records if record.strip()]


def before_nccl_record(line: bytes, hosts: set[str]) -> bytes:
    """Return a line without the record of NCCL that ran into it."""
    at = line.find(MARK)
    if at < 0:
        return line
    match = _HEAD.search(line[: at + 1])
    if match is None:
        return line
    return line[: match.start() + _foreign(match["host"], hosts)]


def _foreign(host: bytes, hosts: set[str]) -> int:
    """Return how much of what looks like a host's name belongs to the text before it."""
    name = host.decode("ascii", "replace")
    if name in hosts:
        return 0
    known_host = max((host for host in hosts if name.endswith(host)), key=len, default=name)
    return len(name) - len(known_host)


_COMM: Final = re.compile(
    rb"comm (0x[\w.]+) rank (\d{1,9}) n[rR]anks (\d{1,9})(?: cudaDev (\d{1,5}))?(?: nvmlDev \d+)?(?: busId (\w+))?"
    rb"(?: commId (0x[\w.]+))?"
)
_STATEMENTS: Final = tuple(
    map(
        re.compile,
        (
            rb"Using network (?P<network>[A-Za-z][\w .+-]*)",
            rb"\ANET/(?P<transport>\w+) ?: Using (?P<interfaces>\[0\][^;]*)",
            rb"\A(?P<lacks_ib>NET/IB ?: No (?:\w+ )?device found|Failed to open libibverbs"
            rb"|Failed to initialize NET plugin IB)",
            rb"\A(?P<disables_ib>NCCL_IB_DISABLE set by environment to [1-9]|NCCL_NET set by environment to Socket)",
            rb"\A(?P<lacks_p2p>P2P is disabled between|NCCL_P2P_DISABLE set by environment to [1-9])",
            rb"\ABootstrap ?: Using (?:\[0\])?(?P<bootstrap>[A-Za-z][\w.@-]*):",
            rb"(?:NCCL|RCCL) version ?:? ?(?P<version>\d[\w.+-]*)",
            rb"NET/OFI Selected [Pp]rovider is (?P<provider>[\w;-]+)",
            rb"Loaded net plugin (?P<plugin>[\w][\w .+-]{0,255} \(v\d+\))",
            rb"NET/OFI Using (?P<plugin>aws-ofi-\w+ [\w.-]+|[\w.-]+ \d[\w.-]*)",
            rb"(?P<failed>Failed to initialize (?:any )?NET plugin(?! IB| Socket)|Failed to find ncclNetPlugin symbol"
            rb"|NET/OFI .{0,255}[Ii]nitialization failed|Failed to load.{0,255}net plugin"
            rb"|NET/OFI .{0,255}No eligible providers)",
            rb"(?P<none>[Nn]o plugin found|using internal (?:network|implementation)|Using internal net"
            rb"|Could not find: .{0,255}libnccl-net)",
        ),
    )
)
"""What a message states of its process, by the names of the groups; of several statements of one the first counts."""
_VERSION: Final = _STATEMENTS[6]
_INTERFACE: Final = re.compile(r"\[\d+\] ?([A-Za-z][\w.@-]*)(?::(\d+/\w+))?")
_NEWEST: Final = (2, 30)

INTERESTING: Final = re.compile(
    rb" n[rR]anks |Using network|NET/\w+ ?: |NET/OFI |Bootstrap ?: Using|CCL version|NET plugin"
    rb"|net plugin|libibverbs|P2P is dis|P2P_DIS|IB_DISABLE set|NCCL_NET set"
)
"""Messages that may state one of these; all other messages are skipped."""


class Communicators:
    """Statements of each process of a log about its communicators."""

    def __init__(self, hosts: set[str]) -> None:
        """Start without processes; names of hosts are added to `hosts`."""
        self._hosts = hosts
        self._processes: dict[Head, dict[str, str]] = {}
        self._members: dict[tuple[Head, str, int], dict[str, object]] = {}
        """By process, address there and rank."""
        self._versions: dict[str, None] = {}

    def read(self, head: Head, message: bytes) -> None:
        """Read a message of a process."""
        process = self._processes.setdefault(head, {})
        if head.host:
            self._hosts.add(head.host)
        if match := _COMM.search(message):
            _read_member(self._members, head, match)
        elif match := next(filter(None, (pattern.search(message) for pattern in _STATEMENTS)), None):
            stated = {name: value.decode().strip() for name, value in match.groupdict().items()}
            is_fabric = stated.get("transport", "Socket") != "Socket"  # NCCL 2.4 names its bootstrap's sockets first
            process.update(stated if is_fabric else {**stated, **process})
            self.read_version(message)

    def read_version(self, line: bytes) -> None:
        """Read the version that a line states, with or without a process."""
        if match := _VERSION.search(line):
            self._versions[match["version"].decode().rstrip(".")] = None

    def unknown_versions(self) -> Iterator[str]:
        """Yield the versions newer than the newest known one."""
        for version in self._versions:
            match = re.match(r"(\d+)\.(\d+)", version)
            if match is not None and tuple(map(int, match.groups())) > _NEWEST:
                yield version

    def members(self) -> dict[tuple[Head, str], dict[str, object]]:
        """Return what is known of the rank that each process has in each communicator, by the address there.

        A process of several GPUs has an address for each rank.
        """
        return {(head, address): member for (head, address, _), member in self._members.items()}

    def add_to(self, tables: Tables) -> None:
        """Add a row for each rank of each communicator, and for each process that states its network alone."""
        only = next(iter(self._versions)) if len(self._versions) == 1 else None
        members = by_key((head, member) for (head, *_), member in self._members.items())
        for head, process in self._processes.items():
            network = process.get("network", process.get("transport"))
            used = [":".join(filter(None, pair)) for pair in _INTERFACE.findall(process.get("interfaces", ""))]
            bootstrap = [process["bootstrap"]] if "bootstrap" in process else None
            plugin = process.get("plugin", "none" if "none" in process else None)
            plugin = "failed" if "failed" in process else plugin
            is_stated = network or plugin or used or not {"lacks_p2p", "disables_ib"}.isdisjoint(process)
            if "provider" in process:
                plugin = f"{plugin or 'OFI'} ({process['provider']})"
            for member in members.get(head) or ([{}] if is_stated else []):
                tables.add(
                    "communicators",
                    host=head.host,
                    version=process["version"].rstrip(".") if "version" in process else only,
                    network=network,
                    plugin=plugin,
                    interfaces=used or bootstrap,
                    lacks_ib="lacks_ib" in process or None,
                    disables_ib="disables_ib" in process or None,
                    lacks_p2p="lacks_p2p" in process or None,
                    **member,
                )


def _read_member(members: dict[tuple[Head, str, int], dict[str, object]], head: Head, match: re.Match[bytes]) -> None:
    address, rank, ranks, device, bus_id, shared = match.groups()
    member = members.setdefault((head, address.decode(), int(rank)), {})
    name = shared if shared and b"." not in shared else address
    if "comm" not in member or shared:
        member["comm"] = None if b"." in name else name.decode()
    stated = {
        "rank": int(rank),
        "ranks": int(ranks),
        "device": int(device) if device else None,
        "bus_id": bus_address(bus_id.decode()) if bus_id else None,
    }
    member.update({key: value for key, value in stated.items() if value is not None})


_EDGE: Final = re.compile(
    rb"(?:Channel|Ring) (\d{1,6})(?:/\d+)?\s*:\s*(\d{1,9})(?:\[\w+\])? -> (\d{1,9})(?:\[\w+\])? "
    rb"(?:\[(?:send|receive)\] )?via (.+?)(?: comm 0x\w+ nRanks \d+)?"
)
_NETWORK_EDGE: Final = re.compile(rb"((?:NET|COLLNET)/[\w][\w .+-]*)/(\d{1,4})(?:\(\d+\))?((?:/\w+(?:\([\w:.]+\))?)*)")
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
    match = _EDGE.fullmatch(text.rstrip())
    if match is None:
        return None
    channel, source, target, via = match.groups()
    nic: int | None = None
    gdr: bool | None = None
    if network := _NETWORK_EDGE.fullmatch(via):
        via, nic, gdr = network[1], int(network[2]), b"/GDRDMA" in network[3]
    elif not _LOCAL.fullmatch(via):
        local_match = _KNOWN_LOCAL.match(via)
        if local_match is None:
            return None
        via = local_match[0]
    if max(int(source), int(target)) >= 1 << 31:
        return None
    return int(channel), int(source), int(target), via.decode("ascii", "replace"), nic, gdr


_CALL: Final = re.compile(
    rb"([A-Z]\w{2,20}): opCount ([0-9a-f]{1,16}) sendbuff \S{1,20} recvbuff \S{1,20} count (\d{1,18}) "
    rb"datatype (\d{1,3}) op \d{1,10} root (-?\d{1,10}) comm (0x[0-9a-f]{1,16}) \[nranks=(\d{1,9})\]"
)
_LAST_CALLS: Final = 64
_MOST_CALLERS: Final = 65_536


class Calls:
    """The last calls of each rank in each communicator; a log has many thousands of each."""

    def __init__(self) -> None:
        self._last: dict[tuple[Head, str], deque[tuple[int, str, int, str, int, int]]] = {}

    def read(self, head: Head, message: bytes) -> None:
        """Read a message that states a call."""
        match = _CALL.match(message)
        if match is None:
            return
        name, number, count, kind, root, address, ranks = match.groups()
        dtype = NCCL_TYPES[int(kind)] if int(kind) < len(NCCL_TYPES) else f"type {int(kind)}"
        key = head, address.decode()
        if key not in self._last and len(self._last) >= _MOST_CALLERS:
            return
        call = int(number, 16), name.decode(), int(count), dtype, int(root), int(ranks)
        self._last.setdefault(key, deque(maxlen=_LAST_CALLS)).append(call)

    def add_to(self, tables: Tables, members: dict[tuple[Head, str], dict[str, object]]) -> None:
        """Add a row for each call of a rank that the log names."""
        for (head, address), calls in self._last.items():
            member = members.get((head, address))
            if member is None:
                continue
            for number, name, count, dtype, root, ranks in calls:
                if number >> 63 == 0 and ranks == member.get("ranks"):
                    tables.add(
                        "nccl_calls",
                        comm=member.get("comm"),
                        rank=member.get("rank"),
                        ranks=ranks,
                        host=head.host,
                        process=head.pid,
                        sequence=number,
                        operation=name,
                        elements=count,
                        dtype=dtype,
                        root=root,
                    )


_INFO: Final = b" NCCL INFO "
_LONGEST_HEAD: Final = 96
_MOST_SILENT: Final = 20_000
_SILENT: Final = re.compile(rb"[\w ,:;|/.+=>\[\]-]{1,400}")
"""Messages that state nothing of use and hold no other record."""
_PLAIN: Final = re.compile(rb"[\w ,:;|/.+=<>%\[\]-]{1,400}")


class NcclDebugParser(LineParser):
    """Communicators and edges."""

    format = "nccl-debug"
    triggers = (b"NCCL ", b"RCCL version")

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._edges = Edges(self.format, context.problems)
        self._communicators = Communicators(context.hosts)
        self._calls = Calls()
        self._records = 0
        self._silent: set[bytes] = set()
        self._facts: set[bytes] = set()

    def take(self, lines: Lines) -> Lines:
        """Read the records among the lines, and return the lines that other parsers may have to read, too.

        A line is left to them unless it holds nothing but a record: its head is short, and its message is known to
        state an edge, or nothing.
        """
        texts = self._edges.texts
        silent = self._silent
        facts = self._facts
        rest = []
        records = 0
        for pair in lines:
            line = pair[1]
            at = line.find(_INFO)
            if 0 <= at < _LONGEST_HEAD:
                text = line[at + len(_INFO) :]
                if text in texts:
                    texts[text] += 1
                    records += 1
                    continue
                if text in silent or line in facts:
                    records += 1
                    continue
            rest.append(pair)
            if at >= 0 or b"CCL " in line:
                self.read_line(line, pair[0])
        self._records += records
        return rest

    def line(self, line: bytes, number: int) -> None:
        if line.count(MARK) > 1:
            for record in split_records(line, self.context.hosts):
                self._read_record(record, number)
        else:
            self._read_record(line, number)

    def finish(self) -> None:
        self._edges.add_to(self.context.tables)
        self._communicators.add_to(self.context.tables)
        self._calls.add_to(self.context.tables, self._communicators.members())
        if self._records:
            self.context.count(self.format, self._records)
        for version in self._communicators.unknown_versions():
            reason = f"version {version} is newer than the newest known one (2.30); what is known of it was read"
            self.context.problems.note(self.format, reason)

    def _read_record(self, record: bytes, number: int) -> None:
        at = record.find(MARK)
        if at < 0 and record.startswith(MARK[1:]):
            record, at = b" " + record, 0
        message = message_of(record, at) if at >= 0 else None
        if message is None:
            self._communicators.read_version(record)
            return
        if record[at + len(MARK) :].startswith((b"INFO ", b"WARN ")):
            self._records += 1
        if message.startswith((b"Channel ", b"Ring ")):
            self._edges.count(message, number)
        elif b": opCount " in message:
            self._calls.read(head_of(record[:at]), message)
        elif INTERESTING.search(message):
            self._communicators.read(head_of(record[:at]), message)
            if len(self._facts) < _MOST_SILENT and _PLAIN.fullmatch(message):
                self._facts.add(record)  # reading it again would change nothing
        elif len(self._silent) < _MOST_SILENT and _SILENT.fullmatch(message):
            self._silent.add(message)
