"""Jobs that hang for a known reason: ranks with hosts that run ahead, GPUs with calls in order, and dumps."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

import pyarrow as pa

from jitter.analysis.diagnosis.hang.find_hang import find_hang
from jitter.analysis.diagnosis.hang.model import Hang
from jitter.logs import SCHEMAS, parse_blocks

BASE_NS = 1_724_779_239_000_000_000


@dataclass
class HungCall:
    """A call of a program; `waits`: whether the host waits for its end, the GPU's next calls do, or nothing."""

    group: str
    operation: str = "all_reduce"
    elements: int = 1024
    waits: str = "nothing"
    number: int = 0
    at: int = 0
    position: int = 0
    started: bool = False
    done: bool = False

    @property
    def is_p2p(self) -> bool:
        return self.operation.startswith(("send", "recv"))


@dataclass
class HangingJob:
    """A job of groups (members by name; "0" is the default group) and a program a rank."""

    groups: Mapping[str, tuple[str, Sequence[int]]]
    programs: list[list[HungCall]]
    host_stops_before: dict[int, int] = field(default_factory=dict)
    gpu_stops_before: dict[int, int] = field(default_factory=dict)
    calls: list[list[HungCall]] = field(default_factory=list)

    def run(self) -> "HangingJob":
        """Let all ranks go on until nothing moves."""
        self.calls = [[] for _ in self.programs]
        numbers: list[dict[Any, int]] = [defaultdict(int) for _ in self.programs]
        moment, moved = 0, True
        while moved:
            moved = False
            for rank, program in enumerate(self.programs):
                made = self.calls[rank]
                if made and made[-1].waits == "host" and not made[-1].done:
                    continue
                if len(made) < self.host_stops_before.get(rank, len(program)) and len(made) < len(program):
                    one = replace(program[len(made)], at=(moment := moment + 1), position=len(made))
                    numbers[rank][one.group, one.is_p2p] += 1
                    one.number = numbers[rank][one.group, one.is_p2p]
                    made.append(one)
                    moved = True
            moved |= self._start() | self._complete()
        return self

    def _start(self) -> bool:
        moved = False
        for rank, made in enumerate(self.calls):
            gpu_stops = self.gpu_stops_before.get(rank, len(made))
            for at, one in enumerate(made[:gpu_stops]):
                before = [
                    other for other in made[:at] if other.waits != "nothing" or
                    (other.group, other.is_p2p) == (one.group, one.is_p2p)
                ]  # fmt: skip
                if not one.started and all(other.done for other in before):
                    one.started = moved = True
        return moved

    def _complete(self) -> bool:
        sides: dict[Any, list[HungCall]] = defaultdict(list)
        counts: dict[Any, int] = defaultdict(int)
        for rank, made in enumerate(self.calls):
            for one in made:
                key: Any = (one.group, one.number)
                if one.is_p2p:
                    verb, peers = one.operation.split()
                    pair = tuple(map(int, peers.split("->") if verb == "send" else reversed(peers.split("<-"))))
                    counts[rank, one.group, verb, pair] += 1
                    key = (one.group, pair, counts[rank, one.group, verb, pair])
                sides[key].append(one)
        moved = False
        for key, ends in sides.items():
            expected = 2 if ends[0].is_p2p else len(self.groups[key[0]][1])
            is_alike = ends[0].is_p2p or len({(end.operation, end.elements) for end in ends}) == 1
            if len(ends) == expected and is_alike and all(end.started for end in ends) and not ends[0].done:
                for end in ends:
                    end.done = moved = True
        return moved

    def dumps(self, *, kept: int | None = None, with_status: bool = False, with_starts: bool = False) -> dict[str, Any]:
        """Return the dumps by file name; `kept`: calls that the buffer holds."""
        return {
            f"nccl_trace_rank_{rank}": self._dump(rank, kept or len(made), with_status=with_status, starts=with_starts)
            for rank, made in enumerate(self.calls)
        }

    def _dump(self, rank: int, kept: int, *, with_status: bool, starts: bool) -> dict[str, Any]:
        names = [name for name, (_, members) in self.groups.items() if rank in members]
        made = self.calls[rank]
        entries = [
            {
                "record_id": one.position, "pg_id": names.index(one.group),
                "process_group": [one.group, self.groups[one.group][0]],
                "collective_seq_id": 0 if one.is_p2p else one.number, "p2p_seq_id": one.number if one.is_p2p else 0,
                "profiling_name": f"nccl:{one.operation}", "time_created_ns": BASE_NS + one.at * 1_000_000,
                "input_sizes": [[one.elements]], "input_dtypes": ["Float"], "output_sizes": [[one.elements]],
                "output_dtypes": ["Float"], "timeout_ms": 600_000, "is_p2p": one.is_p2p,
                "state": "completed" if one.done else "started" if one.started and starts else "scheduled",
            }
            for one in made[max(len(made) - kept, 0) :]
        ]  # fmt: skip
        config = {name: {"desc": self.groups[name][0], "ranks": str(list(self.groups[name][1]))} for name in names}
        status = {}
        for at, name in enumerate(names):
            of_group = [one.number for one in made if one.group == name]
            done = [one.number for one in made if one.group == name and one.done]
            numbers = {"enqueued": of_group, "started": done, "completed": done}
            status[str(at)] = {f"last_{what}_collective": str(max(all_, default=-1)) for what, all_ in numbers.items()}
        return {"entries": entries, "pg_config": config, "pg_status": status if with_status else {}, "version": "2.10"}


def hang_of(files: Mapping[str, Any], log: str = "") -> Hang | None:
    """Return the hang that files show: dumps as objects or text, and a log."""
    tables: dict[str, list[pa.Table]] = {"recorded": [], "process_groups": [], "collective_timeouts": []}
    texts = {name: content if isinstance(content, str) else json.dumps(content) for name, content in files.items()}
    for name, content in {**texts, **({"job.log": log} if log else {})}.items():
        read = parse_blocks(iter([content.encode()]), PurePath("/job") / name).tables
        for relation, kept in tables.items():
            kept.append(read.get(relation, SCHEMAS[relation].empty_table()))
    return find_hang(*(pa.concat_tables(kept) for kept in tables.values()))
