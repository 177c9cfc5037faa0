"""Bindings of 16 ranks on two nodes of eight GPUs, published in a talk, and the nodes' topology."""

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
