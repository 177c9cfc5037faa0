"""Rank decision: the global rank of each GPU of a recording, from evidence in order of trust."""

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from jitter.core.errors import UnknownRankError, UsageError, reason_of
from jitter.core.grouping import by_key
from jitter.core.names.launchers import MAX_RANKS
from jitter.ingestion.names import (
    compile_collective_pattern,
    compile_rank_pattern,
    compile_step_pattern,
    has_unlike_numbers,
    rank_in_path,
    stated_rank,
)
from jitter.lake.records import RANK_ASSUMED

RANK_HINT = "give it with --rank N (one file), --rank-map CSV (file,rank) or --rank-pattern RE (group rank)"

DEVICE_ORDER = "device order"
"""What decides ranks that nothing states: a guess."""
BY_NAME = "file name"
"""What decides ranks that the recording does not state."""
_MOST_DIGITS = 9  # a longer number is no rank and does not fit the column
_ASSUMED = "neither the trace nor the file name states its rank; as the only {} it is taken as rank 0, an assumption"
BY_HOSTS = "--hosts"
"""What decides ranks by the order of hosts, and the order of their GPUs."""
_ORDER_OF_HOSTS = "give the hosts in the order of their nodes: --hosts {}"
_MOST_HOSTS = 32
"""Hosts that a hint lists: a line to copy."""
_FILE_NAME = "the file name"
_STRAY = 0.01  # share of kernels below which a GPU is not the process's own


@dataclass(frozen=True)
class ReadOptions:
    """What the user says of recordings: ranks (one, by file and device, or by a pattern of paths), and other names."""

    rank: int | None = None
    by_file: tuple[tuple[str, int | None, int], ...] = ()
    rank_pattern: str | None = None
    step_pattern: str | None = None
    collective_pattern: str | None = None
    hosts: tuple[str, ...] = ()
    """Hosts in the order of their nodes."""

    @property
    def gives_ranks(self) -> bool:
        """Whether one of the options that give ranks is given."""
        return self.rank is not None or bool(self.by_file or self.hosts) or self.rank_pattern is not None

    def rank_map_lines(self, path: Path) -> list[int]:
        """Return the positions in `by_file` of the lines for a file: they name it, or end as its path does."""
        if not self.by_file:
            return []
        lines, parts = _lines_by_path(self.by_file), path.parts
        keys = {path.resolve(), *(Path(*parts[at:]) for at in range(len(parts)))}
        return sorted({line for key in keys for line in lines.get(key, ())})

    def node_of(self, path: Path, host: str | None) -> int | None:
        """Return the number of a recording's node by --hosts; None if its host is not among them.

        Where no host is recorded, the path names it: a folder, or a part of the file's name.
        """
        names = [_short(name) for name in self.hosts]
        texts = [_short(host)] if host else [*path.parts[:-1], *re.split(r"[^A-Za-z0-9-]|-(?=rank)", path.name)]
        return next((names.index(text) for text in reversed(texts) if text in names), None)


@lru_cache(maxsize=1)
def _lines_by_path(by_file: tuple[tuple[str, int | None, int], ...]) -> dict[Path, list[int]]:
    """Return the positions of lines by the path that they state, and by the file that it is."""
    paths = ((Path(file), line) for line, (file, *_) in enumerate(by_file))
    return by_key((key, line) for path, line in paths for key in {path, path.resolve()})


@dataclass(frozen=True)
class GpuEvidence:
    """Evidence for the rank of one GPU of a recording. `kernels` is the number of kernels it ran."""

    process: int
    device: int | None
    kernels: int
    stated: tuple[tuple[int, str], ...] = ()
    """Ranks that the recording states for the process, with what states them, the most trusted first."""
    launcher: tuple[int, str] | None = None
    """The rank in the environment of the process that the profiler launched, and the variable that states it."""


@dataclass(frozen=True)
class RankDecision:
    """A GPU's rank (None: another rank's process touched the GPU in passing), the evidence, and a warning."""

    rank: int | None
    decided_by: str
    warning: str | None = None


def _short(host: str) -> str:
    """Return a host's name without its domain."""
    return host.partition(".")[0]


def parse_options(
    rank: int | None,
    rank_map: str | Path | None,
    rank_pattern: str | None,
    step: str | None,
    collective: str | None,
    hosts: Sequence[str] = (),
) -> ReadOptions:
    """Return the options; raise `UsageError` for an invalid pattern, an unreadable map or a host given twice."""
    if len({_short(host) for host in hosts}) < len(hosts) or not all(hosts):
        raise UsageError("--hosts names a host twice, or none", f"got {','.join(hosts)}")
    if rank_pattern is not None:
        compile_rank_pattern(rank_pattern)
    compile_step_pattern(step)
    compile_collective_pattern(collective)
    by_file = () if rank_map is None else read_rank_map(Path(rank_map))
    return ReadOptions(rank, by_file, rank_pattern, step, collective, tuple(hosts))


def read_rank_map(path: Path) -> tuple[tuple[str, int | None, int], ...]:
    """Read lines `file,rank` or `file,device,rank` (a heading is allowed); raise `UsageError` for anything else."""
    rows = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:  # spreadsheets write a byte order mark
            reader = csv.reader(lines)
            for row in reader:
                number = reader.line_num
                cells = [cell.strip() for cell in row]
                if not any(cells) or (number == 1 and cells[0] == "file"):
                    continue
                if len(cells) not in (2, 3) or not all(
                    cell.isdecimal() and len(cell) <= _MOST_DIGITS for cell in cells[1:]
                ):
                    raise UsageError(f"{path}:{number}: not `file,rank` or `file,device,rank`", f"got {row!r}")
                rows.append((cells[0], int(cells[1]) if len(cells) == 3 else None, int(cells[-1])))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(
            f"{path}: cannot be read: {reason_of(error)}", "give a CSV file with columns file,rank"
        ) from None
    return tuple(rows)


def decide_ranks(
    path: Path,
    gpus: Sequence[GpuEvidence],
    options: ReadOptions,
    in_name: int | None = None,
    hint: str | None = None,
    node: tuple[int, str] | None = None,
    *,
    is_only: bool = False,
    is_window: bool = False,
    devices: Sequence[int] = (),
) -> list[RankDecision]:
    """Return the rank decision of each GPU, in the order given.

    `in_name` is a rank that the format's naming convention states, `hint` advises how to record the rank. `node` is
    the number of the recording's node among the job's, and what states it. `is_only` says that the lake will hold the
    recordings of this process alone, `is_window` that it recorded several, which the number in the file's name counts.
    `devices` are the numbers of its node's GPUs, where each is in a recording of its own. Processes beside the job's
    have no rank, nor a say.

    Order of trust: the user's options, the rank that the recording states for the process, the step markers' text,
    the environment of the launched process (if one process used GPUs), the file name (likewise), the order of
    devices in a recording of several GPUs, after those of the nodes before its own (a guess, with a warning), rank 0
    for the one GPU of the only recording (likewise). The environment contradicts nothing: it is that of the profiled
    process, which may be a launcher with a process number of its own.

    Raises `UnknownRankError` if nothing states the rank, if recording, marker and file name state different ranks, or
    for a rank that no job has.
    """
    strays = _strays(gpus)
    used_gpus = [gpu for gpu in gpus if gpu not in strays]
    decisions = _decide(path, used_gpus, options, in_name, is_window)
    if decisions is None and is_only and len(used_gpus) == 1:
        assumed = _ASSUMED.format("process" if is_window else "recording")
        decisions = [RankDecision(0, RANK_ASSUMED, f"{assumed}: {RANK_HINT}")]
    decisions = decisions or _by_device_order(path, used_gpus, hint, node, is_window, devices)
    largest = max((decision.rank for decision in decisions if decision.rank is not None), default=0)
    if largest >= MAX_RANKS:
        raise UnknownRankError(f"{path}: rank {largest} is not below {MAX_RANKS:,}: no job has as many", RANK_HINT)
    decided = strays | dict(zip(used_gpus, decisions, strict=True))
    return [decided[gpu] for gpu in gpus]


def _strays(gpus: Sequence[GpuEvidence]) -> dict[GpuEvidence, RankDecision]:
    """Return the GPUs of processes that state no rank and ran few kernels on another's GPU, as a monitor does."""
    kernels = Counter[int]()
    for gpu in gpus:
        kernels[gpu.process] += gpu.kernels
    few = _STRAY * max(kernels.values(), default=0)
    devices = {gpu.device for gpu in gpus if kernels[gpu.process] >= few}
    return {
        gpu: RankDecision(
            None,
            "few kernels",
            f"{gpu.kernels} kernels of a process that states no rank, on the GPU of another one (device {gpu.device}), "
            "are left out",
        )
        for gpu in gpus
        if kernels[gpu.process] < few and not gpu.stated and gpu.device in devices
    }


def _decide(
    path: Path, gpus: Sequence[GpuEvidence], options: ReadOptions, in_name: int | None, is_window: bool
) -> list[RankDecision] | None:
    """Return the decisions by all evidence but the order of devices; None without any."""
    by_user = decide_by_user(path, gpus, options)
    if by_user is not None:
        return by_user
    processes = {gpu.process for gpu in gpus}
    rank_of_process = _stated_ranks(path, gpus)
    if len(processes) == 1 and not rank_of_process:
        in_path = rank_in_path(path, is_window=is_window)
        in_path = in_name if in_path is None else in_path
        if in_path is not None:
            rank_of_process = dict.fromkeys(processes, (in_path, BY_NAME))
    if not rank_of_process:
        return None
    if len(rank_of_process) < len(processes):
        unknown = [gpu for gpu in gpus if gpu.process not in rank_of_process]
        listed = ", ".join(f"{gpu.kernels:,} kernels on device {gpu.device}" for gpu in unknown)
        raise UnknownRankError(f"{path}: the rank of some of its processes is not recorded ({listed})", RANK_HINT)
    decisions: dict[GpuEvidence, RankDecision] = {}
    for process, (rank, decided_by) in rank_of_process.items():
        of_process = [gpu for gpu in gpus if gpu.process == process]
        decisions |= zip(of_process, _within_process(of_process, rank, decided_by), strict=True)
    return [decisions[gpu] for gpu in gpus]


def _stated_ranks(path: Path, gpus: Sequence[GpuEvidence]) -> dict[int, tuple[int, str]]:
    """Return, by process, the rank that recording or markers state, else its environment if it alone used GPUs.

    With what states it. Raises `UnknownRankError` if these state different ranks, or the file's name another one.
    """
    is_alone = len({gpu.process for gpu in gpus}) == 1
    in_file_name = stated_rank(path) if is_alone else None
    ranks: dict[int, tuple[int, str]] = {}
    for gpu in gpus:
        # a number in the name that is that of the GPU may be a local rank, and contradicts nothing
        statements = [*gpu.stated, *([] if in_file_name in (None, gpu.device) else [(in_file_name, _FILE_NAME)])]
        for other_rank, other_from in statements[1:]:
            if other_rank != statements[0][0]:
                first, first_from = statements[0]
                raise UnknownRankError(
                    f"{path}: {first_from} says rank {first}, and {other_from} says rank {other_rank}",
                    f"give the right one: --rank {first} or --rank {other_rank} (one file), --rank-map CSV (file,rank) "
                    "or --rank-pattern RE (group rank)",
                )
        if gpu.stated:
            ranks[gpu.process] = gpu.stated[0]
        elif is_alone and gpu.launcher is not None:
            ranks[gpu.process] = gpu.launcher
    return ranks


def decide_by_user(path: Path, gpus: Sequence[GpuEvidence], options: ReadOptions) -> list[RankDecision] | None:
    """Return the decisions by --rank, --rank-map and --rank-pattern; None where these say nothing of the recording.

    Raises `UnknownRankError` if they do not tell its GPUs apart.
    """
    if options.rank is not None:
        if len(gpus) > 1:
            raise UnknownRankError(
                f"{path}: holds {len(gpus)} GPUs, so --rank {options.rank} is ambiguous",
                "use --rank-map with columns file,device,rank",
            )
        return [RankDecision(options.rank, "--rank")]
    by_device = dict(options.by_file[line][1:] for line in options.rank_map_lines(path))
    if by_device:
        alone = by_device.get(None) if len(gpus) == 1 else None
        missing = [gpu.device for gpu in gpus if by_device.get(gpu.device, alone) is None]
        if missing:
            raise UnknownRankError(
                f"{path}: holds {len(gpus)} GPUs and --rank-map does not name device {missing[0]}",
                "give one line per device: file,device,rank",
            )
        return [RankDecision(by_device.get(gpu.device, alone), "--rank-map") for gpu in gpus]
    match = None if options.rank_pattern is None else compile_rank_pattern(options.rank_pattern).search(str(path))
    text = "" if match is None else match.groupdict().get("rank") or match.group(1) or ""
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        return None
    if len({gpu.device for gpu in gpus}) < len(gpus):
        raise UnknownRankError(
            f"{path}: holds several processes, and their GPUs have equal numbers, so --rank-pattern is ambiguous",
            "use --rank-map with columns file,device,rank",
        )
    return _within_process(gpus, int(text), "--rank-pattern")


def _within_process(gpus: Sequence[GpuEvidence], rank: int, decided_by: str) -> list[RankDecision]:
    """Return one rank for one GPU of its own, consecutive ranks in device order for several GPUs.

    Of those `rank` numbers the process; with --rank-pattern, the recording, as of a node.
    """
    total = sum(gpu.kernels for gpu in gpus)
    busy = [gpu for gpu in gpus if gpu.kernels >= _STRAY * total]
    busy.sort(key=lambda gpu: (gpu.device is None, gpu.device))
    first, count, warning = rank * len(busy), len(busy), None
    if count > 1:
        warning = (
            f"{count} GPUs of number {rank} by {decided_by}, assumed to be ranks {first} to {first + count - 1} in "
            f"device order, a guess: {RANK_HINT}"
        )
    return [
        RankDecision(first + busy.index(gpu), decided_by, warning)
        if gpu in busy
        else RankDecision(
            None,
            decided_by,
            f"{gpu.kernels} kernels of rank {rank} on device {gpu.device}, which is not its own, are left out",
        )
        for gpu in gpus
    ]


def unknown_rank_error(
    path: Path, hint: str | None = None, reason: str = "", *, is_window: bool = False
) -> UnknownRankError:
    """Return the error for a recording whose rank nothing states; `hint` advises how to record it."""
    ways = RANK_HINT if hint is None else f"{RANK_HINT}; {hint}"
    number = " (its number is that of a window of its process)" if is_window else ""
    number = number or (" (its number is not that of its folder)" if has_unlike_numbers(path) else "")
    return UnknownRankError(
        f"{path}: rank unknown: neither the trace nor the file name{number} states it{reason}", ways
    )


class HostGpus(NamedTuple):
    """The GPUs of recordings that state no rank, of one GPU each: a host's are numbered as on the others."""

    files: list[Path]
    """The recordings whose ranks the order of hosts and GPUs tells."""
    devices: tuple[int, ...]
    """The numbers of a host's GPUs, also of those whose recordings are lost."""
    way: str | None = None
    """How to give the order of several hosts, if it is unknown."""


def find_host_gpus(places: Mapping[Path, tuple[str | None, int | None]], options: ReadOptions) -> HostGpus:
    """Return the GPUs of recordings at these hosts and devices.

    None of a single recording, if two are of one GPU, or if the host or GPU of one is unknown; with --hosts, those of
    these hosts.
    """
    hosts = sorted({host for host, _ in places.values() if host is not None})
    if len(hosts) > 1 and not options.hosts:
        listed = hosts if len(hosts) <= _MOST_HOSTS else [*hosts[:2], "…", hosts[-1]]
        return HostGpus([], (), _ORDER_OF_HOSTS.format(",".join(listed)))
    place_of_file = {
        path: (host, device)
        for path, (host, device) in places.items()
        if not options.hosts or options.node_of(path, host) is not None
    }
    devices = [
        device for host, device in place_of_file.values() if device is not None and (options.hosts or host is not None)
    ]
    are_known = len(devices) == len(place_of_file) == len(set(place_of_file.values()))
    if not are_known or len(place_of_file) < (1 if options.hosts else 2):
        return HostGpus([], ())
    return HostGpus([*place_of_file], tuple(range(min(devices), max(devices) + 1)))


def _by_device_order(
    path: Path,
    gpus: Sequence[GpuEvidence],
    hint: str | None,
    node: tuple[int, str] | None,
    is_window: bool,
    of_node: Sequence[int],
) -> list[RankDecision]:
    devices = sorted(gpu.device for gpu in gpus if gpu.device is not None)
    if len(set(devices)) < len(devices):
        raise UnknownRankError(
            f"{path}: ranks unknown: the recording does not state them, and GPUs of its processes have equal numbers",
            "record again with the rank in the steps' markers (`step 12 rank 3`), or each process by itself, with "
            "--rank, --rank-map or --rank-pattern",
        )
    if len(gpus) + len(of_node) < 2 or len(devices) < len(gpus):
        raise unknown_rank_error(path, hint, is_window=is_window)
    by, first = DEVICE_ORDER, 0 if node is None else node[0] * len(of_node or devices)
    assumed = f"its {len(gpus)} GPUs are assumed to be ranks 0 to {len(gpus) - 1}"
    if of_node:  # alike for all recordings
        assumed = "this GPU and those of the other recordings without one are assumed to be ranks"
    elif node is not None:  # alike for all nodes
        assumed = f"its {len(gpus)} GPUs are assumed to have ranks"
    if node is not None:
        assumed += f" by the number of their node ({node[1]}), then"
        by = f"{BY_HOSTS}: node {node[0]}" if node[1] == BY_HOSTS else by
    warning = f"no rank is recorded; {assumed} in device order, a guess: {RANK_HINT}"
    places = [(of_node or devices).index(gpu.device) for gpu in gpus if gpu.device is not None]
    return [RankDecision(first + place, by, warning) for place in places]
