"""The function of the program that made each CUDA call, from the sampled call chains of an export.

In exports of 2021 and 2022 the calls number the chains from 0, and the table of chains from 1.
"""

import re
from pathlib import PurePath
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.numeric.arrays import Ints
from jitter.readers.nsys.names import StringTable, decode_utf8
from jitter.readers.nsys.tables import CALL_CHAINS, RUNTIME, Tables

_LIBRARY: Final = re.compile(
    r"(?:ld-|lib(?:c|m|rt|dl|pthread|stdc\+\+|gcc_s|gomp|cuda\w*|cu[a-z]+|nv\w*|nccl\w*|c10\w*|torch\w*|python[\d.]*)"
    r"(?:[-.]|$)|python[\d.]*$|\[|linux-vdso|cpython)"
)
"""Modules that are no part of the program: the system's, CUDA's, Python's and PyTorch's."""
_RUNTIME: Final = re.compile(
    r"(?:cuda\w+ )?(?:cuda|cu|nccl)[A-Z]\w*(?:[<(]|$)|__cud\w*|_start$|__libc_start\w*$|clone\d?$|start_thread$|0x"
)
"""Functions of CUDA's runtime, which may be linked into the program, and of its start."""
_FRAMES: Final = ["id", "symbol", "module", "stackDepth"]


class CallChains:
    """The innermost function of the program in each call chain."""

    def __init__(self, tables: Tables) -> None:
        """Read the chains. Raises what `tables` raises."""
        self.functions: list[str] = []
        """Functions as `module!function`, each once."""
        self._ids: Ints = np.zeros(0, np.int64)
        self._function: Ints = np.zeros(0, np.int64)
        self._shift = 0
        if not tables.columns(CALL_CHAINS).issuperset(_FRAMES):
            return
        pairs = self._frames(tables)
        self._read(tables, pairs)
        self._shift = int(_smallest(tables, CALL_CHAINS, "id") == 1 and _smallest(tables, RUNTIME, "callchainId") == 0)

    def of(self, chains: pa.Array) -> Ints:
        """Return the index into `functions` of each `callchainId` (int64, nullable); −1: none is known."""
        wanted = chains.fill_null(-1).to_numpy() + self._shift
        if not len(self._ids):
            return np.full(len(wanted), -1, np.int64)
        at = np.searchsorted(self._ids, wanted).clip(max=len(self._ids) - 1)
        return np.where(
            (self._ids[at] == wanted) & chains.is_valid().to_numpy(zero_copy_only=False), self._function[at], -1
        )

    def _frames(self, tables: Tables) -> dict[tuple[int, int], int]:
        """Return the index into `functions` of each (symbol, module) that is of the program."""
        distinct = np.zeros((2, 0), np.int64)
        for rows in tables.read(CALL_CHAINS, ["symbol", "module"]):
            pairs = np.stack([rows[name].fill_null(-1).to_numpy() for name in ("symbol", "module")])
            distinct = np.unique(np.concatenate([distinct, pairs], axis=1), axis=1)
        strings = StringTable(tables, np.unique(distinct))
        symbols, modules = (decode_utf8(strings.at(pa.array(ids)))[0].to_pylist() for ids in distinct)
        numbers: dict[str, int] = {}
        found = {}
        for pair, symbol, module in zip(distinct.T.tolist(), symbols, modules, strict=True):
            name = "" if module is None else PurePath(module).name
            if symbol is not None and name and not _LIBRARY.match(name) and not _RUNTIME.match(symbol):
                found[pair[0], pair[1]] = numbers.setdefault(f"{name}!{symbol}", len(numbers))
        self.functions = list(numbers)
        return found

    def _read(self, tables: Tables, pairs: dict[tuple[int, int], int]) -> None:
        keys = np.array(sorted(pairs), np.int64).reshape(-1, 2)
        numbers = np.array([pairs[symbol, module] for symbol, module in keys.tolist()], np.int64)
        width = int(keys.max(initial=0)) + 2
        combined = keys[:, 0] * width + keys[:, 1]
        chain, depth, function = (np.zeros(0, np.int64) for _ in range(3))
        for rows in tables.read(CALL_CHAINS, _FRAMES):
            own, symbol, module, level = (rows[name].fill_null(-1).to_numpy() for name in _FRAMES)
            wanted = np.where((symbol < width) & (module < width), symbol * width + module, -1)
            at = np.searchsorted(combined, wanted).clip(max=max(len(combined) - 1, 0))
            is_own = combined[at] == wanted if len(combined) else np.zeros(len(own), np.bool_)
            chain = np.concatenate([chain, own[is_own]])
            depth = np.concatenate([depth, level[is_own]])
            function = np.concatenate([function, numbers[at[is_own]] if len(numbers) else own[is_own]])
            order = np.lexsort((depth, chain))
            kept = order[np.append(True, np.diff(chain[order]) != 0)] if len(order) else order
            chain, depth, function = chain[kept], depth[kept], function[kept]
        self._ids, self._function = chain, function


def _smallest(tables: Tables, table: str, column: str) -> int | None:
    """Return the smallest value of a column; None if all are null, or the table lacks it."""
    if column not in tables.columns(table):
        return None
    found = [pc.min(rows[column]).as_py() for rows in tables.read(table, [column])]
    return min((one for one in found if one is not None), default=None)
