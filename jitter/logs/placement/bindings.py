"""CPUs that a process may run on: lines of `taskset -p`, and Slurm's `--cpu-bind=verbose`.

`pid 1234's current affinity mask: fe00`, with `-c` `affinity list: 1-7`; scripts put the rank and its GPUs before it:
`3 -- GPUS 0,1 -- pid …`, `Rank 3 --> pid …`. Slurm: `cpu-bind=MASK - host, task  3  0 [1234]: mask 0xfe set`.
"""

import re
from typing import Final

from jitter.logs.line_parser import LineParser
from jitter.logs.prefixes import split_prefix
from jitter.logs.values import cpu_list, cpu_mask

_TASKSET_START: Final = re.compile(r"pid \d+'s (?:current|new) affinity")
_TASKSET: Final = re.compile(r"pid \d+'s (?:current|new) affinity (mask|list): ([0-9a-fA-F,x-]+)")
_RANK: Final = re.compile(r"(?:\b(?:[Rr]ank|RANK|PROCID|task)[ =:]*(\d{1,9})|^\s*(\d{1,9}) +(?:--|:|->|-))")
_GPUS: Final = re.compile(r"\bGPUS? (?:=|:)? ?(\d+(?:,\d+)*)")
_SLURM: Final = re.compile(
    r"cpu[-_]bind(?:[-_]\w+)?=\w+ - ([A-Za-z0-9][\w.-]*), task +(\d{1,9}) +\d+ +\[\d+\]: mask (0x[0-9a-fA-F]+)"
)


class BindingParser(LineParser):
    """CPUs and visible GPUs of each rank."""

    format = "cpu-binding"
    triggers = (b" affinity mask: ", b" affinity list: ", b"cpu-bind", b"cpu_bind")

    def line(self, line: bytes, number: int) -> None:
        """Read the bindings of a line."""
        _, text, rank = split_prefix(line)
        found = 0
        at = 0
        for binding in _TASKSET.finditer(text):
            before, at = text[at : binding.start()], binding.end()
            stated = _RANK.search(before)
            gpus = _GPUS.search(before)
            self.add(
                "bindings",
                rank=int(stated[1] or stated[2]) if stated else rank,
                cpus=cpu_mask(binding[2]) if binding[1] == "mask" else cpu_list(binding[2]),
                gpus=[int(gpu) for gpu in gpus[1].split(",")] if gpus else None,
            )
            found += 1
        for binding in _SLURM.finditer(text):
            self.add("bindings", rank=int(binding[2]), host=binding[1], cpus=cpu_mask(binding[3]))
            found += 1
        if not found and "pid " in text and _TASKSET_START.search(text):
            raise ValueError("not a binding")
