"""`nvidia-smi topo -m`: a matrix of path kinds between GPUs and NICs, and each GPU's CPUs.

NICs have columns `mlx5_0`, or from driver 510 on `NIC0` with a legend after the matrix. PIX < PXB < PHB < NODE < SYS.
"""

import re
from typing import Final

from jitter.logs.line_parser import Context, LineParser
from jitter.logs.prefixes import split_prefix
from jitter.logs.values import cpu_list

_DISTANCE: Final = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 3, "SYS": 4}
_COLUMN: Final = re.compile(
    r"GPU\d+|NIC\d+|(?:mlx|bnxt|hns|irdma|efa|rdma|hsi|cxi)\w*|X(?= |$)|CPU Affinity|NUMA Affinity|GPU NUMA ID"
)
_CELL: Final = re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS|OK|P2P|PXI")
_LEGEND: Final = re.compile(r"\s*(NIC\d+): (\S+)\s*")
_CPUS: Final = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")


class NvidiaTopologyParser(LineParser):
    """Near CPUs and NICs of each GPU."""

    format = "nvidia-topology"
    triggers = (b"CPU Affinity",)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._columns: list[str] = []
        self._rows: list[tuple[int, list[int] | None, list[str]]] = []
        self._names: dict[str, str] = {}

    def line(self, line: bytes, number: int) -> None:
        """Read the header, a row or a line of the legend."""
        text = split_prefix(line)[1].rstrip()
        if "CPU Affinity" in text:
            if "GPU0" in text:
                self._end()
                self._columns = _COLUMN.findall(text)
                self.is_open = True
        elif text.startswith("GPU"):
            self._read_row(text)
        elif found := _LEGEND.fullmatch(text):
            self._names[found[1]] = found[2]

    def finish(self) -> None:
        """Add the GPUs."""
        self._end()

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
        self._rows.append((int(name[3:]), cpus, near))

    def _end(self) -> None:
        has_nics = any(not column.startswith(("GPU", "CPU", "NUMA")) for column in self._columns)
        for gpu, cpus, nics in self._rows:
            names = [self._names.get(nic, nic) for nic in nics] if has_nics else None
            self.add("topology", gpu=gpu, near_cpus=cpus, near_nics=names)
        self._rows = []
        self._names = {}
