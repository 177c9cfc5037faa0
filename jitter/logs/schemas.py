"""Arrow schemas of the relations that log files fill; each field carries its description as metadata."""

from typing import Final

import pyarrow as pa

_STRINGS: Final = pa.list_(pa.string())
_INTS: Final = pa.list_(pa.int32())


def _schema(*fields: tuple[str, pa.DataType, str]) -> pa.Schema:
    described = [pa.field(name, kind, metadata={"description": text}) for name, kind, text in fields]
    return pa.schema([*described, _SOURCE])


_SOURCE: Final = pa.field("source", pa.string(), nullable=False, metadata={"description": "the file it was read from"})
_RANK: Final = ("rank", pa.int32(), "global rank")
_HOST: Final = ("host", pa.string(), "name of the host, as the source prints it")
_MPI_RUN: Final = (
    "run",
    pa.string(),
    "name of the profile's file without the rank, and the number of a later run in it",
)
_DEVICE: Final = ("device", pa.int32(), "number of the GPU on its host")
_BUS_ID: Final = ("bus_id", pa.string(), "PCI address domain:bus:device, hexadecimal, without the function")
_TIME: Final = (
    "time_ns",
    pa.int64(),
    "in ns since 1970; without a zone in that of the file's own time, else in UTC; without a year as of 1972",
)
_LABEL: Final = ("label", pa.string(), "what the measurement belongs to")
_COLLECTIVE: Final = ("collective", pa.string(), "operation: all_reduce, all_gather, reduce_scatter, all_to_all, …")
_SIZE: Final = ("size_bytes", pa.int64(), "size S as nccl-tests prints it: of the largest buffer of a rank")
_GROUP: Final = ("group_name", pa.string(), "process group, as PyTorch names it")
_GROUP_DESCRIPTION: Final = ("group_description", pa.string(), "what the program calls the process group")
_OPERATION: Final = ("operation", pa.string(), "operation as PyTorch names it: nccl:_all_gather_base, ALLREDUCE, …")
_INPUT_ELEMENTS: Final = ("input_elements", pa.int64(), "elements of the rank's input")

DATED: Final = frozenset(("exits", "gpu_clocks", "gpu_errors", "incidents", "links"))
"""Relations whose rows may have a time without a year: it is compared with that of the steps."""
SCHEMAS: Final[dict[str, pa.Schema]] = {
    "bandwidth": _schema(
        _LABEL,
        _COLLECTIVE,
        _SIZE,
        ("dtype", pa.string(), "type of an element, as printed"),
        ("ranks", pa.int32(), "ranks that took part"),
        ("in_place", pa.bool_(), "whether input and output share a buffer"),
        ("time_us", pa.float64(), "time of one operation in microseconds"),
        ("algbw", pa.float64(), "size / time in GB/s (1e9 bytes)"),
        ("busbw", pa.float64(), "algbw times the factor of the collective, in GB/s"),
        ("wrong", pa.int64(), "elements with a wrong result"),
    ),
    "benchmark_ranks": _schema(("rank", pa.int32(), "rank in the benchmark"), _HOST, _DEVICE),
    "communicators": _schema(
        ("comm", pa.string(), "id shared by its ranks where the source prints one, else the address in the process"),
        ("rank", pa.int32(), "rank in the communicator"),
        ("ranks", pa.int32(), "ranks in the communicator"),
        _HOST,
        _DEVICE,
        _BUS_ID,
        ("version", pa.string(), "version of NCCL or RCCL"),
        ("network", pa.string(), "network in use: Socket, IB, AWS Libfabric, …"),
        ("plugin", pa.string(), "network plug-in: its name, `none` (NCCL's own transports) or `failed`"),
        ("interfaces", _STRINGS, "interfaces of the network; of the bootstrap where the source names no others"),
        ("lacks_ib", pa.bool_(), "whether NCCL says that it found no InfiniBand device"),
        ("disables_ib", pa.bool_(), "whether NCCL says that its environment turns InfiniBand off"),
        ("lacks_p2p", pa.bool_(), "whether NCCL says that GPUs of the host do not reach each other's memory (P2P)"),
    ),
    "edges": _schema(
        ("channel", pa.int32(), "number of the channel"),
        ("from_rank", pa.int32(), "sending rank"),
        ("to_rank", pa.int32(), "receiving rank"),
        ("transport", pa.string(), "P2P/IPC, SHM/direct, NET/Socket, NET/IB, NET/AWS Libfabric, …"),
        ("nic", pa.int32(), "number of the network device; null for transports within a host"),
        ("gdr", pa.bool_(), "whether the NIC accesses GPU memory directly; null for transports within a host"),
        ("lines", pa.int64(), "lines that state it"),
    ),
    "recorded": _schema(
        _RANK,
        ("group_name", pa.string(), "communicator id or process group, as the source names it"),
        ("sequence", pa.int64(), "number of the operation in its group"),
        _COLLECTIVE,
        _SIZE,
        ("start_ns", pa.int64(), "start on the clock of the source; Flight Recorder: creation on the host"),
        ("duration_ns", pa.int64(), "execution time"),
        ("kernel_ns", pa.int64(), "time of its longest kernel of a channel, by the profiler plug-in"),
        ("proxy_ns", pa.int64(), "time in which network proxies worked for it, by the profiler plug-in"),
        ("timing", pa.string(), "what measured the duration: kernel_gpu, kernel_cpu, collective_cpu, cuda_event, host"),
        ("algorithm", pa.string(), "RING, TREE, …"),
        ("protocol", pa.string(), "SIMPLE, LL, LL128"),
        ("state", pa.string(), "completed, started or scheduled"),
        _OPERATION,
        ("is_p2p", pa.bool_(), "whether it is a send or a receive: these are numbered apart from collectives"),
        _INPUT_ELEMENTS,
        ("dtype", pa.string(), "type of an element of the input"),
        ("timeout_ns", pa.int64(), "time after which the watchdog ends the job"),
        ("source_line", pa.string(), "innermost frame of the program in the Python stack: `file(line): function`"),
    ),
    "nccl_calls": _schema(
        ("comm", pa.string(), "communicator, as in `communicators`"),
        ("rank", pa.int32(), "rank in the communicator"),
        ("ranks", pa.int32(), "ranks in the communicator"),
        _HOST,
        ("process", pa.int64(), "number of the process on its host"),
        ("sequence", pa.int64(), "number of the call in its communicator (`opCount`), which grouped calls share"),
        ("operation", pa.string(), "operation as NCCL names it: AllReduce, Send, …"),
        ("elements", pa.int64(), "elements, as the program passes them"),
        ("dtype", pa.string(), "type of an element"),
        ("root", pa.int64(), "root of a broadcast or reduce; the peer of a send or receive"),
    ),
    "process_groups": _schema(
        _RANK,
        _GROUP,
        _GROUP_DESCRIPTION,
        ("members", pa.string(), "global ranks of the group: `0-3,8`"),
        ("last_enqueued", pa.int64(), "number of the last operation that the rank enqueued; 0 for none"),
        ("last_started", pa.int64(), "number of the last operation that its GPU began"),
        ("last_completed", pa.int64(), "number of the last operation that its GPU completed"),
        ("is_whole", pa.bool_(), "whether the recording goes back to the first operation of the rank"),
        ("is_cut", pa.bool_(), "whether the file is cut off, so that the rank's last operations may be missing"),
        ("watchdog_stuck_ns", pa.int64(), "time for which the watchdog of the rank's process made no progress"),
    ),
    "ras": _schema(
        _TIME,
        ("query", pa.int32(), "number of the query in its file"),
        ("comm", pa.string(), "hash of the communicator"),
        ("rank", pa.int32(), "rank in the communicator; null for a row that counts ranks, or is of a process"),
        ("ranks", pa.int32(), "ranks in the communicator"),
        _HOST,
        _DEVICE,
        ("process", pa.int64(), "number of the process on its host"),
        ("operation", pa.string(), "collective that is counted: AllReduce, …; null for all of them together"),
        ("operations", pa.int64(), "collectives of this kind that the ranks launched in the communicator"),
        ("count", pa.int32(), "ranks that launched so many; null for a row of one rank"),
        ("state", pa.string(), "unresponsive, dead, or missing (the process answers, and not for the communicator)"),
    ),
    "collective_timeouts": _schema(
        _TIME,
        _RANK,
        _GROUP,
        _GROUP_DESCRIPTION,
        ("sequence", pa.int64(), "number of the operation in its group"),
        _OPERATION,
        _INPUT_ELEMENTS,
        ("timeout_ns", pa.int64(), "time after which the watchdog ends the job"),
        ("waited_ns", pa.int64(), "time since the operation was enqueued"),
        ("dtype", pa.string(), "type of an element of the input"),
        ("mismatch", pa.int64(), "line that states a call to differ from those of its other rows"),
        ("not_entered", pa.string(), "ranks that did not enter a monitored barrier, as its first rank states: `4,5`"),
    ),
    "exits": _schema(
        _TIME,
        _RANK,
        _HOST,
        ("exit_code", pa.int32(), "exit code of the rank's process; the negative number of the signal that ended it"),
        ("tasks", pa.string(), "processes that ended so, as Slurm numbers what it starts: `0-2,5`; no ranks"),
        ("manner", pa.string(), "how it ended: Out Of Memory, Exited with exit code 1, CUDA error: …, lack of memory"),
        ("process", pa.string(), "name of the process that the system killed, or of the job that Slurm ended"),
        (
            "stated_by",
            pa.string(),
            "torchrun, srun, sacct, slurmctld (of a node), system (of lack of memory) or program",
        ),
        ("is_first", pa.bool_(), "whether it is the first exit that the launcher of its node observed"),
    ),
    "gpu_clocks": _schema(
        _TIME,
        _HOST,
        _DEVICE,
        _BUS_ID,
        ("sm_mhz", pa.float64(), "clock of the multiprocessors (SM, AMD: SCLK)"),
        ("power_w", pa.float64(), "power draw"),
        ("power_cap_w", pa.float64(), "limit of the power draw"),
        ("temp_c", pa.float64(), "temperature of the GPU"),
        ("reasons", _STRINGS, "active reasons for a lower clock: sw_power_cap, hw_slowdown, sw_thermal_slowdown, …"),
    ),
    "gpu_errors": _schema(
        _TIME,
        _HOST,
        _DEVICE,
        _BUS_ID,
        ("code", pa.int32(), "number of the Xid (under 10000) or SXid; null for a counter"),
        ("memory", pa.string(), "what of the GPU's memory nvidia-smi counts: uncorrectable errors, remapped rows, …"),
        ("count", pa.int64(), "value of the counter"),
    ),
    "incidents": _schema(
        _TIME,
        _RANK,
        _HOST,
        _DEVICE,
        _BUS_ID,
        (
            "kind",
            pa.string(),
            "soft_lockup, hung_task, cpu_heat, cpu_clock, file_system, pcie, memory, allocator, state or load",
        ),
        (
            "detail",
            pa.string(),
            "the process; the file server; corrected or uncorrected; a host's state or load; for an allocator, what "
            "counts since the beginning",
        ),
        ("count", pa.int64(), "how often it happened, by the line"),
        ("seconds", pa.float64(), "for how long it lasted so far"),
    ),
    "links": _schema(
        _TIME,
        _HOST,
        ("device", pa.int32(), "number of the GPU on its host; null for a network adapter"),
        ("nic", pa.string(), "name of the network adapter; null for a GPU, or where the source does not state it"),
        ("link", pa.int32(), "number of the NVLink, or of the adapter's port; null for a GPU's PCIe link"),
        ("state", pa.string(), "active, inactive; of ports as printed: Active, Down, Initializing, …"),
        ("gb_per_s", pa.float64(), "speed of the link in GB/s (1e9 bytes)"),
        ("counter", pa.string(), "CRC, Replay, Recovery errors, SymbolErrorCounter, PortXmitWait, PCIe lanes, …"),
        ("count", pa.int64(), "value of the counter"),
        (
            "is_event",
            pa.bool_(),
            "whether the row is one event and its count 1; null: of a counter, which keeps growing",
        ),
    ),
    "bindings": _schema(
        _RANK,
        _HOST,
        ("cpus", _INTS, "hardware threads it may run on"),
        ("gpus", _INTS, "GPUs it sees or uses, numbered on the host"),
    ),
    "topology": _schema(
        ("gpu", pa.int32(), "number of the GPU on its host"),
        ("numa", pa.int32(), "its NUMA node"),
        ("near_cpus", _INTS, "hardware threads of its NUMA node"),
        ("near_nics", _STRINGS, "NICs with the shortest path that stays in the NUMA node"),
    ),
    "mpi_calls": _schema(
        _MPI_RUN,
        _RANK,
        ("call", pa.string(), "MPI function"),
        ("average_bytes", pa.float64(), "average size of the bucket; null: the call's total"),
        ("calls", pa.int64(), "number of calls"),
        ("seconds", pa.float64(), "time in the calls"),
    ),
    "mpi_ranks": _schema(
        _MPI_RUN,
        _RANK,
        _HOST,
        ("world_size", pa.int32(), "ranks of the run"),
        ("communication_s", pa.float64(), "time in MPI"),
        ("elapsed_s", pa.float64(), "time from MPI_Init to MPI_Finalize"),
        ("memory_bytes", pa.int64(), "largest resident set"),
        ("user_s", pa.float64(), "processor time of the program, over all threads"),
        ("system_s", pa.float64(), "processor time of the system for it"),
        ("switches", pa.int64(), "context switches"),
        ("communication_order", pa.string(), "what the summary calls its time in MPI: minimum, median or maximum"),
    ),
    "operators": _schema(
        ("name", pa.string(), "operator or kernel"),
        ("calls", pa.int64(), "number of calls"),
        ("self_cpu_ns", pa.int64(), "time on the CPU without children"),
        ("self_device_ns", pa.int64(), "time on the GPU without children"),
        (
            "share",
            pa.float64(),
            "share of the total device time (CPU time where the source has no device time), 0 to 1",
        ),
    ),
    "regions": _schema(
        ("region", pa.string(), "function or region of the program; `Total`: all of it"),
        ("depth", pa.int32(), "regions around it; times hold those of the regions within"),
        ("seconds", pa.float64(), "time on the host"),
        ("device_seconds", pa.float64(), "time on the GPU"),
        ("share", pa.float64(), "of the GPU time, 0 to 1"),
        ("events", pa.int64(), "kernels and copies"),
        ("bytes_in", pa.int64(), "copied to the GPU"),
        ("bytes_out", pa.int64(), "copied from the GPU"),
    ),
    "copy_sizes": _schema(
        ("region", pa.string(), "as in `regions`"),
        ("depth", pa.int32(), "as in `regions`"),
        ("direction", pa.string(), "HtoA: to the GPU, AtoH: from it, AtoA: within it"),
        ("least_bytes", pa.int64(), "least size; null: no bound"),
        ("below_bytes", pa.int64(), "sizes are below it; null: no bound"),
        ("copies", pa.float64(), "copies of such a size, a mean over processes"),
    ),
    "throughput": _schema(
        _LABEL,
        _TIME,
        _RANK,
        ("step", pa.int64(), "number of the step; null for a figure of the whole run"),
        ("seconds", pa.float64(), "time of a step; without a step, run time of the training"),
        ("samples_per_s", pa.float64(), "samples (sequences, images) a second, of all ranks"),
        ("tokens_per_s", pa.float64(), "tokens a second and GPU"),
        ("tflops", pa.float64(), "TFLOP/s of a GPU, as the program counts them"),
        ("ranks", pa.int32(), "GPUs that took part"),
    ),
}
