"""What Nsight Systems records on request, added to exports in SQLite: call chains, the scheduling of threads."""

from itertools import pairwise
from pathlib import Path
from typing import Final

from tests.support.databases import open_database

_CALL_CHAIN: Final = (
    ("cudaLaunchKernel", "/usr/local/cuda/lib64/libcudart.so.12.4.127"),
    ("at::native::launch", "/opt/venv/lib/libtorch_cuda.so"),
    ("train_step(Batch const&)", "/opt/app/train"),
    ("main", "/opt/app/train"),
)
"""Functions and their modules in every call chain, the innermost first."""
_CORES: Final = 64
_LONG_GAP_NS: Final = 200_000
"""A gap between two calls of a thread from which on the system suspends the thread."""


def add_call_chains(folder: Path) -> None:
    """Give each call of layout 2022.4 a second row of eventClass 67 with a call chain, as CUDA backtraces do."""
    for path in folder.glob("*.sqlite"):
        with open_database(path) as export:
            calls = export.execute("SELECT * FROM CUPTI_ACTIVITY_KIND_RUNTIME").fetchall()
            chained = [(*call[:2], 67, *call[3:-1], chain) for chain, call in enumerate(calls, 1)]
            export.executemany(
                f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES ({', '.join('?' * len(calls[0]))})", chained
            )
            (last,) = export.execute("SELECT max(id) FROM StringIds").fetchone()
            texts = {text: last + at for at, text in enumerate(dict.fromkeys(sum(_CALL_CHAIN, ())), 1)}
            export.executemany("INSERT INTO StringIds VALUES (?, ?)", [(at, text) for text, at in texts.items()])
            rows = [
                (chain, texts[symbol], texts[module], depth)
                for chain in range(1, len(calls) + 1)
                for depth, (symbol, module) in enumerate(_CALL_CHAIN)
            ]
            export.execute("CREATE TABLE CUDA_CALLCHAINS (id INT, symbol INT, module INT, stackDepth INT)")
            export.executemany("INSERT INTO CUDA_CALLCHAINS (id, symbol, module, stackDepth) VALUES (?, ?, ?, ?)", rows)


def add_scheduling(folder: Path) -> None:
    """Let each thread leave its core in long gaps between its calls, and come back on the next core."""
    for path in folder.glob("*.sqlite"):
        with open_database(path) as export:
            calls: dict[int, list[tuple[int, int]]] = {}
            for tid, *span in export.execute(
                "SELECT globalTid, start, end FROM CUPTI_ACTIVITY_KIND_RUNTIME ORDER BY 2"
            ):
                calls.setdefault(tid, []).append((span[0], span[1]))
            export.execute("CREATE TABLE SCHED_EVENTS (start INT, cpu INT, isSchedIn INT, globalTid INT)")
            for number, (tid, spans) in enumerate(calls.items()):
                core = 2 * number
                for (_, before), (start, _) in pairwise(spans):
                    if start - before >= _LONG_GAP_NS:
                        events = [(before + 10_000, core, 0, tid), (start - 10_000, (core + 1) % _CORES, 1, tid)]
                        export.executemany("INSERT INTO SCHED_EVENTS VALUES (?, ?, ?, ?)", events)
                        core = (core + 1) % _CORES
