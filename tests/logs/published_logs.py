"""Published figures of RCCL tests, bindings, PyTorch's profiler and mpitrace, as these programs print them."""

SINGLE_NODE = """\
65536 37.54 1.75 3.06 34.53 1.90 3.32
1048576 101.7 10.31 18.05 101.4 10.34 18.10
4194304 170.8 24.56 42.99 170.0 24.68 43.19
4294967296 55157 77.87 136.27 55313 77.65 135.88
"""
TCP = """\
65536 138.8 0.47 0.89 132.1 0.50 0.93
1048576 438.2 2.39 4.49 447.1 2.35 4.40
4194304 1235.0 3.40 6.37 1243.1 3.37 6.33
4294967296 1002721 4.28 8.03 1003000 4.28 8.03
"""
PLUGIN = """\
65536 48.15 1.36 2.55 44.81 1.46 2.74
1048576 151.5 6.92 12.98 151.0 6.94 13.02
4194304 282.6 14.84 27.83 282.9 14.83 27.80
4294967296 140733 30.52 57.22 141643 30.32 56.85
"""
PLUGIN_AND_GDR = """\
65536 47.80 1.37 2.57 45.96 1.43 2.67
1048576 145.1 7.23 13.55 145.4 7.21 13.52
4194304 266.1 15.76 29.56 263.6 15.91 29.83
4294967296 73869 58.14 109.02 73877 58.14 109.01
"""
TABLES = {"single-node": (SINGLE_NODE, 8), "tcp": (TCP, 16), "plugin": (PLUGIN, 16), "gdr": (PLUGIN_AND_GDR, 16)}


def as_printed(table: str) -> str:
    """The table in the 2022 layout, without a banner: the ranks are not stated."""
    lines = [
        "#                                                              out-of-place                       in-place",
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw"
        " #wrong",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
    ]
    for row in table.splitlines():
        size, *cells = row.split()
        out = "".join(f"{cell:>8}" for cell in cells[:3])
        inside = "".join(f"{cell:>8}" for cell in cells[3:])
        lines.append(f"{size:>12}  {int(size) // 4:>12}     float     sum      -1{out}      0{inside}      0")
    return "\n".join(lines) + "\n"


LUMI_NODES = """\
NUMA node0 CPU(s):   0-15,64-79
NUMA node1 CPU(s):   16-31,80-95
NUMA node2 CPU(s):   32-47,96-111
NUMA node3 CPU(s):   48-63,112-127
""" + "".join(f"GPU[{gpu}]\t\t: (Topology) Numa Node: {node}\n" for gpu, node in enumerate((3, 3, 1, 1, 0, 0, 2, 2)))
FIRST = [0xFE << 8 * at for at in range(8)]
SECOND = [FIRST[at] for at in (6, 7, 2, 3, 0, 1, 4, 5)]


def affinity_listing(masks: list[int]) -> str:
    """Return the lines that `taskset -p` prints for each rank, each with the mask of its number on the node."""
    return "".join(
        f"{rank} -- GPUS 0,1,2,3,4,5,6,7 -- pid {54249 + rank}'s current affinity mask: {masks[rank % 8]:x}\n"
        for rank in range(16)
    )


HEADER = (
    "Name|Self CPU %|Self CPU|CPU total %|CPU total|CPU time avg|Self CUDA|Self CUDA %|CUDA total|CUDA time avg"
    "|# of Calls"
)
GPT_J = [
    "record_param_comms|0.22%|32.264ms|0.39%|56.688ms|41.078us|6478.273s|99.97%|7400.400s|5.363s|1380",
    "autograd::engine::evaluate_function: torch::autograd...|0.30%|43.386ms|0.61%|88.287ms|154.889us|0.000us|0.00%"
    "|6401.640s|11.231s|570",
    "hipLaunchKernel|0.19%|27.003ms|0.19%|27.003ms|3.919us|883.350s|13.63%|883.350s|128.208ms|6890",
    "aten::item|-0.00%|-233.000us|88.44%|12.753s|579.668ms|0.000us|0.00%|160.403s|7.291s|22",
]
BIGBIRD = [
    "aten::copy_|0.20%|13.452ms|18.30%|1.232s|265.930us|765.246ms|19.32%|944.254ms|203.854us",
    "aten::mm|0.07%|4.745ms|0.10%|6.544ms|22.108us|746.361ms|18.85%|761.703ms|2.573ms",
    "void at::native::modern::elementwise_kernel<at::nati...|0.00%|0.000us|0.00%|0.000us|0.000us|380.209ms"
    "|9.60%|380.209ms|271.190us",
]


def ruled(header: str, table: list[str]) -> str:
    """A table as PyTorch prints it: rulers, columns to the right, two blanks between them."""
    cells = [line.split("|") for line in (header, *table)]
    widths = [max(map(len, column)) + 2 for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    ruler = "  ".join("-" * width for width in widths)
    return "\n".join([ruler, lines[0], ruler, *lines[1:], ruler, "Self CPU time total: 14.420s", "a  b  12%"]) + "\n"


def tabbed(header: str, table: list[str]) -> str:
    return "".join(line.replace("|", "\t") + "\n" for line in (header, *table))


CPU_32 = """\
Data for MPI rank 0 of 32:
Times and statistics from MPI_Init() to MPI_Finalize().
MPI Routine #calls avg. bytes time(sec)
MPI_Comm_rank 5 0.0 0.000
MPI_Comm_size 3 0.0 0.000
MPI_Bcast 261 713382.3 0.743
MPI_Allreduce 47108 247017.5 250.492
MPI_Gather 112 4.0 0.085
MPI_Gatherv 112 0.0 0.007
MPI_Allgather 2 4.0 0.000
MPI task 0 of 32 had the minimum communication time.
total communication time = 251.328 seconds.
total elapsed time = 317.922 seconds.
user cpu time = 8761.318 seconds.
system time = 308.435 seconds.
max resident set size = 1177.191 MBytes.
Rank 3 reported the largest memory utilization : 1177.88 MBytes
Rank 0 reported the largest elapsed time : 317.92 sec
Message size distributions:
MPI_Allreduce #calls avg. bytes time(sec)
20 4.0 0.001
45773 8.0 214.933
124 40.0 0.137
16 256.0 0.002
43 952.6 0.006
12 1536.0 0.002
124 7135.0 0.026
125 16384.0 0.282
125 163840.3 0.954
124 443061.7 0.230
372 2851875.8 3.562
125 16865650.7 5.794
125 67108864.0 24.563
MPI_Gather #calls avg. bytes time(sec)
112 4.0 0.085
MPI_Allgather #calls avg. bytes time(sec)
2 4.0 0.000
Communication summary for all tasks:
minimum communication time = 251.328 sec for task 0
median communication time = 273.408 sec for task 26
maximum communication time = 278.406 sec for task 28
MPI timing summary for all ranks:
taskid hostname comm(s) elapsed(s) user(s) system(s) size(MB) switches
0 nid00102 251.33 317.92 8761.32 308.44 1177.19 634913
1 nid00102 267.30 317.92 4895.77 158.60 1168.41 257482
2 nid00102 269.22 317.92 4937.79 160.15 1165.58 253738
3 nid00102 269.65 317.92 5059.87 157.44 1177.88 265483
"""
GPU_8_NCCL = """\
Data for MPI rank 0 of 8:
Times and statistics from MPI_Init() to MPI_Finalize().
MPI Routine #calls avg. bytes time(sec)
MPI_Comm_rank 5 0.0 0.000
MPI_Comm_size 3 0.0 0.000
MPI_Bcast 64 129.3 0.000
MPI_Barrier 1 0.0 0.001
MPI_Allreduce 8758 8.0 6.038
MPI_Gather 29 4.0 0.007
MPI_Gatherv 29 0.0 0.000
MPI_Allgather 2 4.0 0.000
total communication time = 6.047 seconds.
total elapsed time = 49.737 seconds.
user cpu time = 28.839 seconds.
system time = 58.022 seconds.
max resident set size = 4025.664 MBytes.
Rank 2 reported the largest memory utilization : 4045.00 MBytes
Rank 1 reported the largest elapsed time : 49.85 sec
Message size distributions:
MPI_Allreduce #calls avg. bytes time(sec)
40 4.0 0.002
8718 8.0 6.036
"""
CPU_8 = """\
Data for MPI rank 0 of 8:
Times and statistics from MPI_Init() to MPI_Finalize().
MPI Routine #calls avg. bytes time(sec)
MPI_Comm_rank 5 0.0 0.000
MPI_Comm_size 3 0.0 0.000
MPI_Bcast 91 2046004.3 0.136
MPI_Allreduce 123445 739019.0 109.085
MPI_Gather 27 4.0 0.001
MPI_Gatherv 27 0.0 0.000
MPI_Allgather 2 4.0 0.000
MPI task 0 of 8 had the median communication time.
total communication time = 109.223 seconds.
total elapsed time = 671.970 seconds.
user cpu time = 883.652 seconds.
system time = 583.520 seconds.
max resident set size = 820.883 MBytes.
Rank 2 reported the largest memory utilization : 839.72 MBytes
Rank 2 reported the largest elapsed time : 671.97 sec
Message size distributions:
MPI_Allreduce #calls avg. bytes time(sec)
40 4.0 0.000
115190 8.0 12.123
24 40.0 0.000
6 256.0 0.000
18 1024.0 0.000
9 1536.0 0.000
648 7181.0 0.030
980 16384.0 0.081
980 163879.0 0.319
980 445554.2 0.640
2610 2914170.0 9.014
980 17588391.2 17.817
980 67108864.0 69.061
"""
