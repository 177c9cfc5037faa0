"""A lake's rows as a diagnosis reads them: from a recording's timing cache if it is fresh, else from its own files."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.execution.step_times import StepActivities
from jitter.core.names.kernels import KINDS
from jitter.core.numeric.arrays import Ints, IntTimes, unknown_value
from jitter.core.parallel.prefetch import announce_reads
from jitter.core.step_key import StepKey
from jitter.lake.derived.timing_cache import TIMES, StepSpan, TimingCache, TimingCaches
from jitter.lake.host_events import SyncCalls
from jitter.lake.layout import timing_cache_file
from jitter.lake.records import RankStepRecord, SourceRecord
from jitter.lake.step_reader import read_step

_CODES = {word: code for code, word in enumerate(KINDS)}
_BYTES_AHEAD: Final = 28 << 20
"""Times of successive steps that are read at once: opening hundreds of files takes longer than reading a step."""
_STEPS_AHEAD: Final = 32
"""Such steps: of more, however small, the objects that hold them would take more memory than their times."""


class _Alike(NamedTuple):
    """Distinguishes ranks of a step by their sequences of kernels and kinds, and the type of their times."""

    key: StepKey
    sequence: str
    kinds: str
    dtype: np.dtype[np.signedinteger]


class ActivityReader:
    """Reads the rows of a step; the timing caches are opened once."""

    def __init__(self, root: Path, held: Mapping[StepKey, Mapping[int, RankStepRecord]], caches: TimingCaches) -> None:
        self._root, self._held, self._caches = root, held, caches
        self._opened: dict[str, TimingCache | None] = {}
        self._block_of: dict[StepKey, Sequence[StepKey]] = {}
        """By announced step those to read with it."""
        self._ahead: dict[StepKey, list[StepActivities]] = {}
        """Steps that were read and not asked for yet."""
        digests = {its.record.digest for found in held.values() for its in found.values()}
        announce_reads(root / timing_cache_file(digest) for digest in digests)

    @contextmanager
    def announce(self, keys: Sequence[StepKey]) -> Iterator[None]:
        """Within this context these steps are asked for in this order, so some at a time are read at once."""
        blocks: list[list[StepKey]] = []
        waiting = 0
        for key in keys:
            step_bytes = sum(held.step.rows for held in self._held[key].values()) * len(TIMES) * np.dtype("i4").itemsize
            if not blocks or waiting + step_bytes > _BYTES_AHEAD or len(blocks[-1]) == _STEPS_AHEAD:
                blocks.append([])
                waiting = 0
            blocks[-1].append(key)
            waiting += step_bytes
        self._block_of.update((key, block[at:]) for block in blocks for at, key in enumerate(block))
        try:
            yield
        finally:
            for key in keys:
                self._block_of.pop(key, None)
                self._ahead.pop(key, None)

    def of_step(self, key: StepKey) -> Iterator[StepActivities]:
        """Yield the activities of a step's ranks, together for ranks with equal sequences of kernels and kinds."""
        found = self._ahead.pop(key, None)
        if found is None:
            read = self._read_cached(self._block_of.get(key, (key,)))
            found = read.pop(key)
            self._ahead.update(read)
        yield from found
        lacking = self._held[key].keys() - {rank for part in found for rank in part.ranks.tolist()}
        if lacking:
            yield from self._from_files(key, sorted(lacking))

    def _read_cached(self, keys: Sequence[StepKey]) -> dict[StepKey, list[StepActivities]]:
        """Read these steps, of ranks whose timing caches hold them: each file once."""
        alike: dict[_Alike, list[tuple[int, TimingCache, StepSpan]]] = {}
        for key in keys:
            for rank, held in sorted(self._held[key].items()):
                cache, span = self._find(held)
                if cache is not None and span is not None:
                    which = _Alike(key, span.sequence, span.kinds, cache.dtype)
                    alike.setdefault(which, []).append((rank, cache, span))
        times: dict[_Alike, IntTimes] = {}
        wanted: dict[TimingCache, list[tuple[_Alike, StepSpan, IntTimes]]] = {}
        for which, members in alike.items():
            times[which] = np.empty((len(members), len(TIMES) * members[0][2].rows), which.dtype)
            for own, (_, cache, span) in zip(times[which], members, strict=True):
                wanted.setdefault(cache, []).append((which, span, own))
        for cache, parts in wanted.items():
            groups, spans, rows = zip(*parts, strict=True)
            try:
                cache.read_times(spans, rows)
            except OSError:  # another process removed or replaced it
                for which in groups:
                    times.pop(which, None)
        found: dict[StepKey, list[StepActivities]] = {key: [] for key in keys}
        for which, read in times.items():
            ranks = [rank for rank, _, _ in alike[which]]
            _, cache, span = alike[which][0]
            with suppress(OSError):
                shaped = read.reshape(len(ranks), len(TIMES), span.rows)
                found[which.key].append(self._together(which.key, ranks, which.sequence, cache.kinds(span), shaped))
        return found

    def calls(self, record: SourceRecord) -> SyncCalls | None:
        """A recording's synchronising calls; None if it has no timing cache."""
        cache = self._cache(record)
        return None if cache is None else cache.sync_calls

    def threads(self, key: StepKey, ranks: Iterable[int]) -> dict[int, Ints]:
        """The threads that launched each of these ranks' activities of a step."""
        found: dict[int, Ints] = {}
        lacking = []
        for rank in sorted(ranks):
            _, span = self._find(self._held[key][rank])
            if span is None:
                lacking.append(rank)
            else:
                found[rank] = np.array(span.threads, np.int64)
        if lacking:
            read = read_step(self._root, key, self._held[key], ("launch_thread",), lacking)
            threads, known = read.values("launch_thread"), read.known("launch_thread")
            for rank, (first, last) in zip(read.ranks, pairwise(read.bounds.tolist()), strict=True):
                found[rank] = np.unique(threads[first:last][known[first:last]])
        return found

    def may_be_grouped(self, held: RankStepRecord) -> bool:
        """Whether collectives of this rank may name their groups."""
        cache = self._cache(held.record)
        return cache is None or cache.has_groups

    def _find(self, held: RankStepRecord) -> tuple[TimingCache | None, StepSpan | None]:
        cache = self._cache(held.record)
        return cache, None if cache is None else cache.span(held.step)

    def _cache(self, record: SourceRecord) -> TimingCache | None:
        if record.digest not in self._opened:
            self._opened[record.digest] = None
            with suppress(OSError, ValueError):  # lost, damaged, or of another reading: as good as absent
                self._opened[record.digest] = self._caches.open(record)
        return self._opened[record.digest]

    def _from_files(self, key: StepKey, ranks: Sequence[int]) -> Iterator[StepActivities]:
        found = read_step(self._root, key, self._held[key], (*TIMES, "kind"), ranks)
        codes, words = found.codes("kind")
        kind = np.array([_CODES[word] for word in words], np.int8)[codes]
        start = np.repeat([self._held[key][rank].step.start_ns for rank in found.ranks], found.rows)
        times = []
        for name in TIMES:
            known = found.known(name)
            times.append(np.where(known, found.values(name) - start, unknown_value(np.int64)))
        alike: dict[tuple[str, bytes], list[int]] = {}
        for at, (first, last) in enumerate(pairwise(found.bounds.tolist())):
            sequence = self._held[key][found.ranks[at]].step.sequence
            alike.setdefault((sequence, kind[first:last].tobytes()), []).append(at)
        for (sequence, kinds), members in alike.items():
            where = (found.bounds[members][:, None] + np.arange(len(kinds))).ravel()
            own = [values[where].reshape(len(members), len(kinds)) for values in times]
            yield self._together(key, [found.ranks[at] for at in members], sequence, kinds, np.stack(own, axis=1))

    def _together(
        self, key: StepKey, ranks: Sequence[int], sequence: str, kinds: bytes, times: IntTimes
    ) -> StepActivities:
        zero = np.array([self._held[key][rank].step.start_ns for rank in ranks], np.int64)
        return StepActivities(np.array(ranks, np.int64), sequence, np.frombuffer(kinds, np.int8), zero, times)
