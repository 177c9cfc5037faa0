"""CPUs and GPUs that ranks are bound to, and what of a host is near each GPU."""

import re
from typing import Final

from jitter.logs.declared import Patterns, Values, rule
from jitter.logs.line_parser import Context, LineParser, split_prefix
from jitter.logs.values import cpu_list, cpu_mask

_RANK: Final = re.compile(r"(?:\b(?:[Rr]ank|RANK|PROCID|task)[ =:]*(\d{1,9})|^\s*(\d{1,9}) +(?:--|:|->|-))")
_GPUS: Final = re.compile(r"\bGPUS? (?:=|:)? ?(\d+(?:,\d+)*)")
_THREAD: Final = re.compile(
    r"MPI (\d{1,9}) - (?:OMP (\d{1,5}) - )?HWT (\d{1,5})(?: - Node (\S+))?(?: - (?:RT|RunTime)_GPU_ID (\S+))?"
    r"(?: - (?:ROCR_VISIBLE_)?GPU_ID ([\dN/A,]+))?"
)
_DISTANCE: Final = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 3, "SYS": 4}
_COLUMN: Final = re.compile(
    r"GPU\d+|NIC\d+|(?:mlx|bnxt|hns|irdma|efa|rdma|hsi|cxi)\w*|X(?= |$)|CPU Affinity|NUMA Affinity|GPU NUMA ID"
)
_CELL: Final = re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS|OK|P2P|PXI")
_LEGEND: Final = re.compile(r"\s*(NIC\d+): (\S+)\s*")
_CPUS: Final = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")
_NUMA_OF_GPU: Final = re.compile(r"\s*GPU\[(\d{1,4})\]\s*: \(Topology\) Numa (Node|Affinity): (-?\d{1,5})\s*")
_CPUS_OF_NUMA: Final = re.compile(r"\s*NUMA node(\d{1,5}) CPU\(s\):\s+([\d,-]+)\s*")


def _taskset(match: re.Match[str], before: str) -> Values:
    rank, gpus = _RANK.search(before), _GPUS.search(before)
    stated = {"rank": rank[1] or rank[2]} if rank else {}
    return stated | {
        "cpus": cpu_mask(match["cpus"]) if match["form"] == "mask" else cpu_list(match["cpus"]),
        "gpus": [int(gpu) for gpu in gpus[1].split(",")] if gpus else None,
    }


BINDINGS: Final = Patterns(
    "cpu-binding",
    (
        # `taskset -p`; scripts put rank and GPUs before it: `3 -- GPUS 0,1 -- pid …`, `Rank 3 --> pid …`
        rule(
            "bindings",
            r"pid \d+'s (?:current|new) affinity (?P<form>mask|list): (?P<cpus>[0-9a-fA-F,x-]+)",
            *(b" affinity mask: ", b" affinity list: "),
            values=_taskset,
        ),
        # Slurm's `--cpu-bind=verbose`
        rule(
            "bindings",
            r"cpu[-_]bind(?:[-_]\w+)?=\w+ - <host>, task +<rank> +\d+ +\[\d+\]: mask (?P<cpus>0x[0-9a-fA-F]+)",
            *(b"cpu-bind", b"cpu_bind"),
            values=lambda match, before: match.groupdict() | {"cpus": cpu_mask(match["cpus"])},
        ),
    ),
    mention=r"pid \d+'s (?:current|new) affinity",
)


_Key = tuple[int, str | None, tuple[int, ...] | None]


class JobstepParser(LineParser):
    """Hardware threads and GPUs of each rank; a rank's threads make one binding."""

    format = "hello-jobstep"
    triggers = (b" - HWT ",)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._bindings: list[tuple[_Key, dict[int, int]]] = []
        self._last: dict[_Key, dict[int, int]] = {}

    def line(self, line: bytes, number: int) -> None:
        threads = list(_THREAD.finditer(split_prefix(line)[1]))
        if not threads:
            raise ValueError("not a thread")
        for thread in threads:
            rank, omp, cpu, host, seen, used = thread.groups()
            gpus = _numbers(used) or _numbers(seen)
            key = (int(rank), host if host and not host.startswith("<") else None, gpus)
            number_of_thread = int(omp or 0)
            if number_of_thread in self._last.get(key, {number_of_thread: 0}):  # another run of the program
                self._last[key] = {}
                self._bindings.append((key, self._last[key]))
            self._last[key][number_of_thread] = int(cpu)

    def finish(self) -> None:
        for (rank, host, gpus), cpus in self._bindings:
            self.add(
                "bindings", rank=rank, host=host, cpus=sorted(set(cpus.values())), gpus=list(gpus) if gpus else None
            )


def _numbers(text: str | None) -> tuple[int, ...] | None:
    digits = re.findall(r"\d{1,5}", text or "")
    return tuple(map(int, digits)) or None


class NvidiaTopologyParser(LineParser):
    """Near CPUs and NICs of each GPU."""

    format = "nvidia-topology"
    triggers = (b"CPU Affinity",)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._columns: list[str] = []
        self._rows: list[tuple[int, list[int] | None, list[str], int | None]] = []
        self._names: dict[str, str] = {}

    def line(self, line: bytes, number: int) -> None:
        text = split_prefix(line)[1].rstrip()
        if "CPU Affinity" in text:
            if "GPU0" in text:
                self.finish()
                self._columns = _COLUMN.findall(text)
                self.is_open = True
        elif text.startswith("GPU"):
            self._read_row(text)
        elif match := _LEGEND.fullmatch(text):
            self._names[match[1]] = match[2]

    def _read_row(self, text: str) -> None:
        name, *cells = text.split()
        peers = self._columns[: self._columns.index("CPU Affinity")]
        if not re.fullmatch(r"GPU\d{1,4}", name) or len(cells) < len(peers):
            raise ValueError("not a row")
        if not all(_CELL.fullmatch(cell) for cell in cells[: len(peers)]):
            raise ValueError("not a row")
        after = cells[len(peers) :]
        cpus = cpu_list(after[0]) if after and _CPUS.fullmatch(after[0]) else None
        distances = {
            peer: _DISTANCE[cell]
            for peer, cell in zip(peers, cells, strict=False)
            if not peer.startswith("GPU") and cell in _DISTANCE
        }
        least = min(distances.values(), default=_DISTANCE["SYS"])
        near = [peer for peer, distance in distances.items() if distance == least < _DISTANCE["SYS"]]
        numa = int(after[1]) if len(after) > 1 and after[1].isdigit() and "NUMA Affinity" in self._columns else None
        self._rows.append((int(name[3:]), cpus, near, numa))

    def finish(self) -> None:
        has_nics = any(not column.startswith(("GPU", "CPU", "NUMA")) for column in self._columns)
        for gpu, cpus, nics, numa in self._rows:
            names = [self._names.get(nic, nic) for nic in nics] if has_nics else None
            self.add("topology", gpu=gpu, numa=numa, near_cpus=cpus, near_nics=names)
        self._rows = []
        self._names = {}


class RocmTopologyParser(LineParser):
    """Near CPUs of each GPU."""

    format = "rocm-topology"
    triggers = (b"(Topology) Numa ", b"NUMA node")

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._node_of: dict[int, int] = {}
        self._cpus: dict[int, list[int]] = {}

    def line(self, line: bytes, number: int) -> None:
        text = split_prefix(line)[1]
        if match := _NUMA_OF_GPU.fullmatch(text):
            if match[2] == "Node" or int(match[1]) not in self._node_of:
                self._node_of[int(match[1])] = int(match[3])
        elif match := _CPUS_OF_NUMA.fullmatch(text):
            self._cpus[int(match[1])] = cpu_list(match[2])
        elif "(Topology)" in text:
            raise ValueError("not the node of a GPU")

    def finish(self) -> None:
        for gpu, node in sorted(self._node_of.items()):
            self.add("topology", gpu=gpu, numa=node if node >= 0 else None, near_cpus=self._cpus.get(node))
