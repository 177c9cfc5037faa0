"""GPU ordinals from 0 by HSA agent number; HSA numbers processors and GPUs together."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Self

import pyarrow as pa

from jitter.core.arrow import map_distinct
from jitter.readers.amd.batches import decode_text

_AGENT: Final = re.compile(r"(?:(?P<word>Agent|GPU)\s*)?(?P<number>\d{1,9})", re.IGNORECASE)
_ROCMINFO_NODE: Final = re.compile(r"^\s*Node:\s*(\d+)\s*$")
_ROCMINFO_TYPE: Final = re.compile(r"^\s*Device Type:\s*(\w+)\s*$")


@dataclass
class Agents:
    """GPU ordinals by node number and by logical number; empty if not recorded."""

    by_node: dict[int, int] = field(default_factory=dict)
    by_logical: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Iterable[tuple[str, int, int | None]]) -> Self:
        """Build from (type, node number, logical number or None) of each agent."""
        logical_by_node = {node: logical for kind, node, logical in rows if kind.strip().upper() == "GPU"}
        nodes = sorted(logical_by_node)
        logical = [logical_by_node[node] for node in nodes]
        return cls(
            {node: ordinal for ordinal, node in enumerate(nodes)},
            {number: ordinal for ordinal, number in enumerate(logical) if number is not None},
        )

    @classmethod
    def of_rocminfo(cls, text: str) -> Self:
        """Build from the output of `rocminfo`; empty if it lists no agents."""
        rows: list[tuple[str, int, int | None]] = []
        node: int | None = None
        for line in text.splitlines():
            if found := _ROCMINFO_NODE.match(line):
                node = int(found[1])
            elif (found := _ROCMINFO_TYPE.match(line)) and node is not None:
                rows.append((found[1], node, None))
                node = None
            elif found:
                # in some versions the type comes before its node
                rows.append((found[1], -1, None))
            if node is not None and rows and rows[-1][1] == -1:
                rows[-1] = (rows[-1][0], node, None)
                node = None
        return cls.of(row for row in rows if row[1] >= 0)

    def device(self, text: str) -> int | None:
        """Return the ordinal of "4" (node), "Agent 4" (logical) or "GPU 0"; the recorded number if unknown."""
        found = _AGENT.fullmatch(text.strip())
        if found is None:
            return None
        number = int(found["number"])
        word = (found["word"] or "").lower()
        if word == "gpu":
            return number
        for numbers in (self.by_logical, self.by_node) if word == "agent" else (self.by_node, self.by_logical):
            if number in numbers:
                return numbers[number]
        return number

    def ordinals(self, nodes: pa.Array) -> pa.Array:
        """Return the ordinal of each node number (int64); the recorded number if unknown."""
        return map_distinct(nodes, lambda node: self.by_node.get(node, node), pa.int64())

    def devices(self, texts: pa.Array) -> pa.Array:
        """Return `device` of each text (binary) as int32."""
        return map_distinct(texts, lambda text: self.device(decode_text(text)), pa.int32())
