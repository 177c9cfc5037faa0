"""A lake's rows as a diagnosis reads them: from a recording's timing cache if it is fresh, else from its own files."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np

from jitter.analysis.execution.rank_groups import StepActivities
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


class ActivityReader:
    """Reads the rows of a step; the timing caches are opened once."""

    def __init__(self, root: Path, held: Mapping[StepKey, Mapping[int, RankStepRecord]], caches: TimingCaches) -> None:
        self._root, self._held, self._caches = root, held, caches
        self._opened: dict[str, TimingCache | None] = {}
        digests = {its.record.digest for found in held.values() for its in found.values()}
        announce_reads(root / timing_cache_file(digest) for digest in digests)

    def of_step(self, key: StepKey) -> Iterator[StepActivities]:
        """Yield the activities of a step's ranks, together for ranks with equal sequences of kernels and kinds."""
        lacking: list[int] = []
        alike: dict[tuple[str, str, np.dtype[np.signedinteger]], list[tuple[int, TimingCache, StepSpan]]] = {}
        for rank, held in sorted(self._held[key].items()):
            cache, span = self._find(held)
            if cache is None or span is None:
                lacking.append(rank)
            else:
                which = (span.sequence, span.kinds, cache.dtype)
                alike.setdefault(which, []).append((rank, cache, span))
        for (sequence, _, dtype), members in alike.items():
            _, first, like = members[0]
            ranks = [rank for rank, _, _ in members]
            times = np.empty((len(members), len(TIMES) * like.rows), dtype)
            try:
                kinds = first.kinds(like)
                for own, (_, cache, span) in zip(times, members, strict=True):
                    cache.read_times(span, own)
            except OSError:  # another process removed or replaced one
                lacking += ranks
                continue
            shaped = times.reshape(len(members), len(TIMES), like.rows)
            yield self._together(key, ranks, sequence, kinds, shaped)
        if lacking:
            yield from self._from_files(key, sorted(lacking))

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
