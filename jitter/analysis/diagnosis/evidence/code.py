"""Evidence from the program: the operator that launched a finding's kernel, the host's work before a late launch.

Where the recording has the scheduling of threads, also how often the system moves the launching threads between cores.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.analysis.diagnosis.causes import CAUSES
from jitter.analysis.diagnosis.diagnosed_lake import DiagnosedLake
from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.model import CodeLocation, Culprit, Pause
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import abbreviate_start, format_time
from jitter.core.names.kernels import KINDS, MEMORY
from jitter.core.schema import MIGRATION, OFF_CPU
from jitter.core.step_key import StepKey
from jitter.lake.host_events import read_host_events

_LIMITS: Final = THRESHOLDS.evidence

_CODE: Final = ("operator", "scope", "phase", "source_line")
_COLUMNS: Final = ("kind", *_CODE, "launch_start_ns", "launch_end_ns", "launch_thread")


class _Launch(NamedTuple):
    """One kernel's row, and when the process's launch before it returned."""

    code: CodeLocation
    thread: int | None
    start_ns: int | None
    before_ns: int | None


def add_code_evidence(diagnosis: Diagnosis, lake: DiagnosedLake) -> Diagnosis:
    """Return the diagnosis with what the recordings say of the code behind each culprit, where they say anything.

    Raises `LakeError` if a file of the lake is missing or damaged.
    """
    return replace(
        diagnosis,
        culprits=tuple(
            _with_code(culprit, lake).with_evidence(describe_migrations(lake, culprit.rank, culprit.steps))
            if CAUSES[culprit.cause].is_late_launch
            else _with_code(culprit, lake)
            for culprit in diagnosis.culprits
        ),
        of_all_ranks=tuple(_with_code(culprit, lake) for culprit in diagnosis.of_all_ranks),
    )


def _with_code(culprit: Culprit, lake: DiagnosedLake) -> Culprit:
    if culprit.pauses:
        pauses = "; ".join(_describe_pause(pause, culprit, lake) for pause in culprit.pauses)
        culprit = culprit.with_evidence([f"the longest pauses that the job waited for: {pauses}"])
        if culprit.scope == "job":
            return culprit
    where, steps = culprit.kernel_index, (*(pause.key for pause in culprit.pauses), *culprit.steps)
    key = next((key for key in steps if culprit.rank in lake.ranks_of(key)), None)
    if not CAUSES[culprit.cause].is_at_kernels or where is None or key is None:
        return culprit
    if where.last - where.first >= _LIMITS.max_code_kernels:
        return culprit
    launch = _find_launch(lake, key, culprit.rank, where.first)
    if launch is None:
        return culprit
    words, gap = describe_launch(launch.code), None
    if CAUSES[culprit.cause].is_late_launch:
        gap = _describe_gap(lake, key, culprit.rank, launch)
    sentences = [] if words is None else [words]
    if gap is not None and not any(gap.mention in line for line in culprit.evidence):
        sentences.insert(0, f"before the launch of kernel {where.first} the host was {gap.words}")
    return replace(culprit.with_evidence(sentences), code=None if words is None else launch.code)


def _describe_pause(pause: Pause, culprit: Culprit, lake: DiagnosedLake) -> str:
    """Return a culprit's pause in words, with the host operation that covers it where one is recorded."""
    rank = f" on rank {pause.rank}" if len(culprit.ranks) > 1 else ""
    text = f"{format_time(pause.excess_ns)} before kernel {pause.kernel_index}{rank} in {pause.key}"
    launch = _find_launch(lake, pause.key, pause.rank, pause.kernel_index)
    gap = None if launch is None else _describe_gap(lake, pause.key, pause.rank, launch)
    return text if gap is None else f"{text} ({gap.words})"


def describe_launch(code: CodeLocation | None) -> str | None:
    """Return the kernel with where it is launched, in words; None where that is unknown."""
    words = None if code is None else describe_code(code)
    return None if code is None or words is None else f"kernel {code.kernel_index} is {words}"


def describe_code(code: CodeLocation) -> str | None:
    """Return operator, scope, Python line and phase of a kernel in words; None if none but the phase is known.

    >>> describe_code(CodeLocation(17, "aten::add_", "model/mlp", "backward", "train.py(12): step"))
    'launched by `aten::add_` in `model/mlp` at `train.py(12): step`, backward'
    """
    operator, scope, phase = code.operator, code.scope, code.phase
    if operator is None and scope is None and code.source_line is None:
        return None
    longest = THRESHOLDS.sentences.max_scope_characters
    line = "" if code.source_line is None else f" at `{abbreviate_start(code.source_line, longest)}`"
    by = "" if operator is None else f" by `{operator}`"
    within = "" if scope is None else f" in `{abbreviate_start(scope, longest)}`"
    phase_text = "" if phase is None or phase == (scope or "").rpartition("/")[2] else f", {phase}"
    return f"launched{by}{within}{line}{phase_text}"


def _find_launch(lake: DiagnosedLake, key: StepKey, rank: int, kernel_index: int) -> _Launch | None:
    """Return the rank's kernel with this index."""
    for index in lake.kernel_indices(key):
        member = next((candidate for candidate in index.members if candidate.rank == rank), None)
        if member is not None and kernel_index in index.partners[member.sequence]:
            number = index.partners[member.sequence].index(kernel_index)
            rows = lake.step_columns(key, _COLUMNS, [rank]).table
            kinds = rows["kind"].to_pylist()
            row = [at for at, kind in enumerate(kinds) if kind != KINDS[MEMORY]][number]
            start_ns = rows["launch_start_ns"][row].as_py()
            return _Launch(
                CodeLocation(kernel_index, *(rows[name][row].as_py() for name in _CODE)),
                rows["launch_thread"][row].as_py(),
                start_ns,
                _last_return(rows, start_ns, lake.record_of(key, rank).step.start_ns),
            )
    return None


def _last_return(rows: pa.Table, start_ns: int | None, step_start_ns: int) -> int | None:
    if start_ns is None:
        return None
    earlier = rows.filter(pc.less(rows["launch_start_ns"], start_ns))
    returned = pc.max(earlier["launch_end_ns"]).as_py() if earlier.num_rows else None
    return step_start_ns if returned is None else min(returned, start_ns)


class _Gap(NamedTuple):
    """What a host did in the gap before a launch."""

    words: str
    mention: str
    """How other evidence names it."""


def _describe_gap(lake: DiagnosedLake, key: StepKey, rank: int, launch: _Launch) -> _Gap | None:
    """Return which host operation covers most of the gap before a launch; None if none is recorded."""
    start_ns, before_ns = launch.start_ns, launch.before_ns
    if start_ns is None or before_ns is None or start_ns <= before_ns:
        return None
    columns = ("kind", "name", "thread", "start_ns", "end_ns")
    rows = read_host_events(lake.root, lake.record_of(key, rank).record, columns)
    if rows is None:
        return None
    rows = rows.filter(pc.and_(pc.equal(rows["kind"], "operation"), rows["end_ns"].is_valid()))
    if launch.thread is not None:
        rows = rows.filter(pc.equal(rows["thread"], launch.thread))
    begins, ends = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    covers = np.minimum(ends, start_ns) - np.maximum(begins, before_ns)
    chosen = np.flatnonzero(covers >= THRESHOLDS.main_share * (start_ns - before_ns))
    if not len(chosen):
        return None
    # the outermost first: it lasts longest
    chosen = chosen[np.argsort(begins[chosen] - ends[chosen], kind="stable")]
    names = list(dict.fromkeys(rows["name"][int(row)].as_py() for row in chosen))
    inner, outer = names[-1], names[:-1][-1:]
    within = "".join(f" (called by `{name}`)" for name in outer)
    took, of = format_time(int(covers[chosen[-1]])), format_time(start_ns - before_ns)
    is_suspended = inner in (OFF_CPU, MIGRATION)
    what, mention = ("off the CPU", "off the CPU") if is_suspended else (f"in `{inner}`", f"`{inner}`")
    return _Gap(f"{what}{within} for {took} of {of}", mention.replace(": ", ":"))


def describe_migrations(recordings: DiagnosedLake, rank: int, steps: Sequence[StepKey]) -> tuple[str, ...]:
    """Say how often a rank's launching threads moved to another core in these steps, where that is unusual.

    Nothing where the recording has no scheduling, or the rank moved about as often as the others. Raises `LakeError` if
    a file of the lake is missing or damaged.
    """
    own_moves = _moves(recordings, rank, steps)
    if own_moves is None or own_moves[0] < THRESHOLDS.main_share:
        return ()
    others = sorted({peer for key in steps for peer in recordings.ranks_of(key)} - {rank}, key=lambda o: abs(o - rank))
    moves = (_moves(recordings, peer, steps) for peer in others[: THRESHOLDS.sampled_ranks])
    known_moves = [of_peer[0] for of_peer in moves if of_peer is not None]
    usual = float(median(known_moves)) if known_moves else 0.0
    if own_moves[0] < THRESHOLDS.much_more * usual:
        return ()
    of_others = f" (the other ranks' {usual:.1f})" if known_moves else ""
    return (
        f"its launching threads moved to another CPU core {own_moves[0]:.1f} times per step{of_others}, and were off "
        f"the CPU for {format_time(own_moves[1])} at that",
    )


def _moves(recordings: DiagnosedLake, rank: int, steps: Sequence[StepKey]) -> tuple[float, float] | None:
    """Return moves to another core, and the time off the CPU in them, per step; None if scheduling is not recorded."""
    held = [(key, recordings.record_of(key, rank).record) for key in steps if rank in recordings.ranks_of(key)]
    if not held:
        return None
    by_source = {record.digest: record for _, record in held}
    moves, away_ns, has_any = 0, 0, False
    for digest, record in by_source.items():
        rows = read_host_events(recordings.root, record, ("name", "epoch", "step", "start_ns", "end_ns"))
        if rows is None:
            continue
        has_any |= bool(pc.any(pc.is_in(rows["name"], pa.array([MIGRATION, OFF_CPU]))).as_py())
        rows = rows.filter(pc.equal(rows["name"], MIGRATION))
        wanted = {(key.epoch, key.step) for key, source in held if source.digest == digest}
        columns = (rows[name].to_pylist() for name in ("epoch", "step", "start_ns", "end_ns"))
        for epoch, step, start_ns, end_ns in zip(*columns, strict=True):
            if (epoch, step) in wanted:
                moves += 1
                away_ns += end_ns - start_ns
    # without any row of it the recording may lack the scheduling: then nothing is known
    return (moves / len(held), away_ns / len(held)) if has_any else None
