"""Record types of rocprofv3's JSON, with the fields that are read. Times in ns."""

import msgspec


class Handle(msgspec.Struct):
    """A reference by handle."""

    handle: int = 0


class Correlation(msgspec.Struct):
    """The correlation of a call and its kernels."""

    internal: int | None = None


class Dimensions(msgspec.Struct):
    """Size of a grid or group, in work items."""

    x: int | None = None
    y: int | None = None
    z: int | None = None


class Dispatch(msgspec.Struct):
    """The kernel, agent, queue and shape of a dispatch."""

    agent_id: Handle
    kernel_id: int
    queue_id: Handle | None = None
    workgroup_size: Dimensions = msgspec.field(default_factory=Dimensions)
    grid_size: Dimensions = msgspec.field(default_factory=Dimensions)


class Kernel(msgspec.Struct):
    """A kernel dispatch."""

    start_timestamp: int
    end_timestamp: int
    dispatch_info: Dispatch
    correlation_id: Correlation = msgspec.field(default_factory=Correlation)
    stream_id: Handle | None = None


class Api(msgspec.Struct):
    """An API call or a roctx range."""

    kind: int | str
    operation: int | str
    start_timestamp: int
    end_timestamp: int
    thread_id: int | None = None
    correlation_id: Correlation = msgspec.field(default_factory=Correlation)


class Copy(msgspec.Struct):
    """A copy."""

    kind: int | str
    operation: int | str
    start_timestamp: int
    end_timestamp: int
    correlation_id: Correlation = msgspec.field(default_factory=Correlation)
    dst_agent_id: Handle | None = None
    src_agent_id: Handle | None = None
    bytes: int | None = None
    stream_id: Handle | None = None


class Node(msgspec.Struct):
    """The host."""

    hostname: str | None = None


class Metadata(msgspec.Struct):
    """The recorded process."""

    pid: int | None = None
    node: Node = msgspec.field(default_factory=Node)


class Agent(msgspec.Struct):
    """A processor or a GPU."""

    id: Handle
    type: int | str
    node_id: int


class Symbol(msgspec.Struct):
    """A kernel's names."""

    kernel_id: int
    formatted_kernel_name: str = ""
    kernel_name: str = ""


class Kind(msgspec.Struct):
    """A kind of records and the names of its operations."""

    kind: str
    operations: list[str] = msgspec.field(default_factory=list)


class Text(msgspec.Struct):
    """The text of a roctx range by correlation."""

    key: int
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
