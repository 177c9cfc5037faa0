"""Lines of OLCF's hello_jobstep and programs that print like it, a thread a line.

`MPI 002 - OMP 000 - HWT 144 - Node host - RT_GPU_ID 0 - GPU_ID 2 - Bus_ID 02`; newer `RunTime_GPU_ID`,
`ROCR_VISIBLE_GPU_ID`. `GPU_ID` numbers GPUs on the host, `RT_GPU_ID` those that the process sees.
"""

import re
from typing import Final

from jitter.logs.line_parser import Context, LineParser
from jitter.logs.prefixes import decoded

_THREAD: Final = re.compile(
    r"MPI (\d{1,9}) - (?:OMP (\d{1,5}) - )?HWT (\d{1,5})(?: - Node (\S+))?(?: - (?:RT|RunTime)_GPU_ID (\S+))?"
    r"(?: - (?:ROCR_VISIBLE_)?GPU_ID ([\dN/A,]+))?"
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
        """Read the threads of a line."""
        threads = list(_THREAD.finditer(decoded(line)))
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
        """Add the bindings, in the order of their first lines."""
        for (rank, host, gpus), cpus in self._bindings:
            self.add(
                "bindings", rank=rank, host=host, cpus=sorted(set(cpus.values())), gpus=list(gpus) if gpus else None
            )


def _numbers(text: str | None) -> tuple[int, ...] | None:
    found = re.findall(r"\d{1,5}", text or "")
    return tuple(map(int, found)) or None
