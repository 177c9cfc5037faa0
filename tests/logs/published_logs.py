"""Published figures of RCCL tests, bindings, PyTorch's profiler and mpitrace, as these programs print them."""

SINGLE_NODE = """\
65536 37.54 1.75 3.06 34.53 1.90 3.32
131072 34.76 3.77 6.60 34.43 3.81 6.66
262144 67.83 3.86 6.76 66.68 3.93 6.88
524288 90.54 5.79 10.13 90.54 5.79 10.13
1048576 101.7 10.31 18.05 101.4 10.34 18.10
2097152 125.1 16.77 29.34 125.0 16.78 29.37
4194304 170.8 24.56 42.99 170.0 24.68 43.19
8388608 271.6 30.89 54.06 271.8 30.86 54.01
16777216 286.7 58.52 102.41 284.6 58.96 103.18
33554432 498.5 67.31 117.80 498.3 67.34 117.84
67108864 931.1 72.08 126.13 932.9 71.93 125.89
134217728 1804.6 74.38 130.16 1804.2 74.39 130.19
268435456 3552.8 75.56 132.22 3551.5 75.58 132.27
536870912 7059.0 76.05 133.10 7047.4 76.18 133.31
1073741824 13993 76.73 134.28 14009 76.64 134.13
2147483648 27847 77.12 134.96 27750 77.39 135.43
4294967296 55157 77.87 136.27 55313 77.65 135.88
"""
TCP = """\
65536 138.8 0.47 0.89 132.1 0.50 0.93
131072 143.0 0.92 1.72 151.3 0.87 1.62
262144 206.9 1.27 2.38 206.7 1.27 2.38
524288 288.8 1.82 3.40 282.3 1.86 3.48
1048576 438.2 2.39 4.49 447.1 2.35 4.40
2097152 732.4 2.86 5.37 693.3 3.02 5.67
4194304 1235.0 3.40 6.37 1243.1 3.37 6.33
8388608 2086.3 4.02 7.54 2070.2 4.05 7.60
16777216 4069.6 4.12 7.73 3981.8 4.21 7.90
33554432 7602.9 4.41 8.28 7622.4 4.40 8.25
67108864 15715 4.27 8.01 15658 4.29 8.04
134217728 32255 4.16 7.80 32296 4.16 7.79
268435456 64577 4.16 7.79 64669 4.15 7.78
536870912 128849 4.17 7.81 128647 4.17 7.82
1073741824 252600 4.25 7.97 252861 4.25 7.96
2147483648 503080 4.27 8.00 503154 4.27 8.00
4294967296 1002721 4.28 8.03 1003000 4.28 8.03
"""
PLUGIN = """\
65536 48.15 1.36 2.55 44.81 1.46 2.74
131072 66.72 1.96 3.68 59.44 2.21 4.13
262144 94.59 2.77 5.20 83.99 3.12 5.85
524288 131.9 3.98 7.45 129.7 4.04 7.58
1048576 151.5 6.92 12.98 151.0 6.94 13.02
2097152 191.4 10.96 20.54 191.6 10.95 20.52
4194304 282.6 14.84 27.83 282.9 14.83 27.80
8388608 441.6 19.00 35.62 442.1 18.97 35.58
16777216 718.8 23.34 43.77 719.8 23.31 43.70
33554432 1502.7 22.33 41.87 1273.5 26.35 49.40
67108864 2436.5 27.54 51.64 2437.3 27.53 51.63
134217728 4617.0 29.07 54.51 4623.6 29.03 54.43
268435456 9119.3 29.44 55.19 9146.5 29.35 55.03
536870912 17938 29.93 56.12 17882 30.02 56.29
1073741824 35112 30.58 57.34 35057 30.63 57.43
2147483648 70499 30.46 57.11 70247 30.57 57.32
4294967296 140733 30.52 57.22 141643 30.32 56.85
"""
PLUGIN_AND_GDR = """\
65536 47.80 1.37 2.57 45.96 1.43 2.67
131072 66.79 1.96 3.68 57.10 2.30 4.30
262144 87.64 2.99 5.61 81.01 3.24 6.07
524288 125.5 4.18 7.83 125.2 4.19 7.85
1048576 145.1 7.23 13.55 145.4 7.21 13.52
2097152 181.7 11.54 21.64 183.1 11.46 21.48
4194304 266.1 15.76 29.56 263.6 15.91 29.83
8388608 341.0 24.60 46.13 342.0 24.53 45.99
16777216 549.4 30.54 57.26 534.5 31.39 58.85
33554432 1810.3 18.53 34.75 886.4 37.85 70.98
67108864 1508.5 44.49 83.41 1507.6 44.51 83.46
134217728 2747.7 48.85 91.59 2746.8 48.86 91.62
268435456 5165.4 51.97 97.44 5164.1 51.98 97.46
536870912 9971.1 53.84 100.95 9967.0 53.87 101.00
1073741824 19099 56.22 105.41 19098 56.22 105.42
2147483648 37328 57.53 107.87 37323 57.54 107.88
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
MPI_Bcast #calls avg. bytes time(sec)
117 4.0 0.005
101 25.0 0.002
2 40.0 0.000
2 256.0 0.000
6 283.7 0.000
8 867.2 0.000
3 1573.7 0.000
1 2121.0 0.000
3 6232.3 0.000
4 16384.0 0.046
2 163840.0 0.002
2 442368.0 0.051
6 2850816.0 0.085
2 16777216.0 0.114
2 67108864.0 0.437
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
MPI_Bcast #calls avg. bytes time(sec)
34 4.0 0.000
17 25.0 0.000
1 128.0 0.000
8 211.0 0.000
1 281.0 0.000
1 569.0 0.000
2 2525.0 0.000
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
MPI_Bcast #calls avg. bytes time(sec)
32 4.0 0.000
12 25.0 0.000
2 40.0 0.000
15 219.5 0.000
6 938.7 0.000
2 1536.0 0.000
2 2525.0 0.000
2 6912.0 0.000
4 16384.0 0.002
2 163840.0 0.001
2 442368.0 0.001
6 2850816.0 0.024
2 16777216.0 0.023
2 67108864.0 0.084
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
