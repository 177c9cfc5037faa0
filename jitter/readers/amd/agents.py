"""GPU ordinals from 0 by HSA agent number; HSA numbers processors and GPUs together."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

import pyarrow as pa

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
        gpus = sorted((node, logical) for kind, node, logical in rows if kind.strip().upper() == "GPU")
        return cls(
            {node: ordinal for ordinal, (node, _) in enumerate(gpus)},
            {logical: ordinal for ordinal, (_, logical) in enumerate(gpus) if logical is not None},
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
        order: tuple[Mapping[int, int], ...] = (self.by_node, self.by_logical)
        for numbers in reversed(order) if word == "agent" else order:
            if number in numbers:
                return numbers[number]
        return number

    def devices(self, texts: pa.Array) -> pa.Array:
        """Return `device` of each text (binary) as int32."""
        encoded = texts.dictionary_encode("encode")
        found = [
            None if text is None else self.device(text.decode("utf-8", "replace"))
            for text in encoded.dictionary.to_pylist()
        ]
        return pa.array(found, pa.int32()).take(encoded.indices)
