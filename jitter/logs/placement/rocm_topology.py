"""`rocm-smi --showtopo`, `--showtoponuma`: `GPU[0] : (Topology) Numa Node: 0`, with the CPUs of `lscpu`.

Which CPUs a NUMA node has stands in `NUMA node0 CPU(s): 0-23,96-119` of the same file alone; else they are unknown.
"""

import re
from typing import Final

from jitter.logs.line_parser import Context, LineParser
from jitter.logs.prefixes import split_prefix
from jitter.logs.values import cpu_list

_GPU: Final = re.compile(r"\s*GPU\[(\d{1,4})\]\s*: \(Topology\) Numa (Node|Affinity): (-?\d{1,5})\s*")
_NODE: Final = re.compile(r"\s*NUMA node(\d{1,5}) CPU\(s\):\s+([\d,-]+)\s*")


class RocmTopologyParser(LineParser):
    """Near CPUs of each GPU."""

    format = "rocm-topology"
    triggers = (b"(Topology) Numa ", b"NUMA node")

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._node_of: dict[int, int] = {}
        self._cpus: dict[int, list[int]] = {}

    def line(self, line: bytes, number: int) -> None:
        """Read the node of a GPU, or the CPUs of a node."""
        text = split_prefix(line)[1]
        if found := _GPU.fullmatch(text):
            if found[2] == "Node" or int(found[1]) not in self._node_of:
                self._node_of[int(found[1])] = int(found[3])
        elif found := _NODE.fullmatch(text):
            self._cpus[int(found[1])] = cpu_list(found[2])
        elif "(Topology)" in text:
            raise ValueError("not the node of a GPU")

    def finish(self) -> None:
        """Add the GPUs."""
        for gpu, node in sorted(self._node_of.items()):
            self.add("topology", gpu=gpu, near_cpus=self._cpus.get(node))
