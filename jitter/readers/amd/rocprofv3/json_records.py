"""Record types of rocprofv3's JSON, with the fields that are read. Times in ns."""

import msgspec

from jitter.readers.integers import Integer64


class Handle(msgspec.Struct):
    """A reference by handle."""

    handle: Integer64 = 0


class Correlation(msgspec.Struct):
    """The correlation of a call and its kernels."""

    internal: Integer64 | None = None


class Dimensions(msgspec.Struct):
    """Size of a grid or group, in work items."""

    x: Integer64 | None = None
    y: Integer64 | None = None
    z: Integer64 | None = None


class Dispatch(msgspec.Struct):
    """The kernel, agent, queue and shape of a dispatch."""

    agent_id: Handle
    kernel_id: Integer64
    queue_id: Handle | None = None
    workgroup_size: Dimensions = msgspec.field(default_factory=Dimensions)
    grid_size: Dimensions = msgspec.field(default_factory=Dimensions)


class Kernel(msgspec.Struct):
    """A kernel dispatch."""

    start_timestamp: Integer64
    end_timestamp: Integer64
    dispatch_info: Dispatch
    correlation_id: Correlation = msgspec.field(default_factory=Correlation)
    stream_id: Handle | None = None


class Api(msgspec.Struct):
    """An API call or a roctx range."""

    kind: Integer64 | str
    operation: Integer64 | str
    start_timestamp: Integer64
    end_timestamp: Integer64
    thread_id: Integer64 | None = None
    correlation_id: Correlation = msgspec.field(default_factory=Correlation)


class Copy(msgspec.Struct):
    """A copy."""

    kind: Integer64 | str
    operation: Integer64 | str
    start_timestamp: Integer64
    end_timestamp: Integer64
    correlation_id: Correlation = msgspec.field(default_factory=Correlation)
    dst_agent_id: Handle | None = None
    src_agent_id: Handle | None = None
    bytes: Integer64 | None = None
    stream_id: Handle | None = None


class Node(msgspec.Struct):
    """The host."""

    hostname: str | None = None


class Metadata(msgspec.Struct):
    """The recorded process."""

    pid: Integer64 | None = None
    node: Node = msgspec.field(default_factory=Node)


class Agent(msgspec.Struct):
    """A processor or a GPU."""

    id: Handle
    type: Integer64 | str
    node_id: Integer64


class Symbol(msgspec.Struct):
    """A kernel's names."""

    kernel_id: Integer64
    formatted_kernel_name: str = ""
    kernel_name: str = ""


class Kind(msgspec.Struct):
    """A kind of records and the names of its operations."""

    kind: str
    operations: list[str] = msgspec.field(default_factory=list)


class Text(msgspec.Struct):
    """The text of a roctx range by correlation."""

    key: Integer64
    value: str


class Tool(msgspec.Struct):
    """The records of one process: its short values, and the positions of its lists of records in the document."""

    metadata: Metadata = msgspec.field(default_factory=Metadata)
    agents: list[Agent] = msgspec.field(default_factory=list)
    names: dict[int, str] = msgspec.field(default_factory=dict)
    """Names of kernels by id."""
    kinds: list[Kind] = msgspec.field(default_factory=list)
    texts: dict[int, str] = msgspec.field(default_factory=dict)
    """Texts of roctx ranges by correlation."""
    tables: dict[str, int] = msgspec.field(default_factory=dict)
    """Position of each list of records by name."""
