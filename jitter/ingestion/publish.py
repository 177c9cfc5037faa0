"""Publish staged sources into a lake: skip what it holds, resolve steps that two sources claim."""

import hashlib
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from jitter.core.errors import JitterError, RejectedForAnotherError, UnknownRankError
from jitter.core.files import modified_ns
from jitter.core.grouping import by_key
from jitter.core.step_key import StepKey
from jitter.ingestion.convert import Outcome, file_digest
from jitter.ingestion.discovery.discover import Source
from jitter.ingestion.names import rank_in_path
from jitter.ingestion.ranks.decide_ranks import (
    BY_HOSTS,
    DEVICE_ORDER,
    GpuEvidence,
    ReadOptions,
    decide_by_user,
    unknown_rank_error,
)
from jitter.ingestion.ranks.jobs import (
    CORRECT_RANK,
    REPLACE,
    GivenRecording,
    JobChoice,
    LeadingJob,
    RecordedJob,
    choose_job,
    describe_steps,
    find_conflicts,
    not_in_lake_error,
    ranks_in_lake,
    records_of_other_job,
)
from jitter.ingestion.ranks.windows import Window, window_of
from jitter.ingestion.stage import StagedRank
from jitter.ingestion.step_numbering import number_windows
from jitter.lake.folder import LakeFolder
from jitter.lake.integrity.verify import record_problems
from jitter.lake.layout import files_of_record
from jitter.lake.parquet import find_incomplete
from jitter.lake.records import SourceRecord, encode_record
from jitter.readers import readers


class Publisher:
    """Publishes converted sources into one lake, one after the other."""

    def __init__(self, folder: LakeFolder, options: ReadOptions, replace: bool, same_job: bool = False) -> None:
        """`replace` keeps the newer of two sources; `same_job` takes every source for one of the lake's job."""
        self._folder = folder
        self._options = options
        self.may_replace = replace
        self._same_job = same_job
        self.grown: list[str] = []
        """A sentence for each source that has grown since it was ingested, and was taken again."""
        self._former: dict[str, list[SourceRecord]] = {}
        self.replaced = 0
        """Number of sources of another job that were removed from the lake."""
        self._of_job: set[str] = set()
        """Digests of the files that were found to be of one job before they are published."""
        self._leading = LeadingJob[Outcome]((), 0, 0)
        self._published: dict[str, list[SourceRecord]] = {}
        """The records that this run has published, by digest of the file."""
        self._records = {record.digest: record for record in folder.intact_records()[0]}
        self._at_start = by_key((record.file, record) for record in self.records)
        self.yielded: list[tuple[SourceRecord, JitterError]] = []
        """The recordings of assumed rank that another recording has removed from the lake, with the error."""
        self._incomplete: dict[str, Path] = {}
        """The first missing or damaged file of recordings that have one, by digest."""

    @property
    def records(self) -> list[SourceRecord]:
        """Records of the sources in the lake; rejected sources are not included."""
        return [record for record in self._records.values() if record.rank is not None]

    def check_files(self, sources: Sequence[Source]) -> list[str]:
        """Find records of these sources whose files are incomplete: they are read again. Return a sentence for each."""
        sizes = {source.size for source in sources}
        records = [record for record in self.records if record.size in sizes]
        self._incomplete = find_incomplete(self._folder.root, records)
        files = {record.file: self._incomplete.get(record.digest) for record in records}
        root = self._folder.root
        return [f"{file}: read again, because {root / at} is missing or cut" for file, at in files.items() if at]

    def holds(self, source: Source) -> bool:
        """Return whether the lake holds this complete file, unchanged in size and time, read with these options."""
        return self._is_held(self._unchanged(source), source.path)

    def _is_held(self, records: Sequence[SourceRecord], path: Path) -> bool:
        """Return whether these are all records of one content, with complete files, as read with these options."""
        if any(record.digest in self._incomplete for record in records):
            return False
        root = self._folder.root
        if self.may_replace and any(_is_outdated(record) or record_problems(root, record) for record in records):
            return False
        is_whole = bool(records) and {record.part for record in records} == set(range(records[0].parts))
        return is_whole and _as_told(records, path, self._options)

    def outdated_readers(self, sources: Sequence[Source]) -> list[str]:
        """Return one sentence per reader of which an older version read some of these unchanged sources."""
        if self.may_replace:
            return []
        counts = Counter[tuple[str, int, int]]()
        for source in sources:
            records = self._unchanged(source)
            if records and _is_outdated(records[0]):
                counts[source.reader, records[0].reader_version, readers()[source.reader].version] += 1
        return [
            f"{count} {'source was' if count == 1 else 'sources were'} read by version {old} of the reader {name!r}, "
            f"and version {new} is installed: --replace reads {'it' if count == 1 else 'them'} again"
            for (name, old, new), count in counts.items()
        ]

    def _unchanged(self, source: Source) -> list[SourceRecord]:
        """Return the records of this path if its size and time have not changed since."""
        of_file = self._at_start.get(str(source.path.resolve()), [])
        return [record for record in of_file if (record.size, record.mtime_ns) == (source.size, source.changed_ns)]

    def digests(self) -> dict[int, frozenset[str]]:
        """Return the digests of file contents that the lake holds, by file size in bytes."""
        by_size = by_key(
            (records[0].size, digest)
            for digest, records in (self._by_content().items() if not self._options.gives_ranks else ())
            if self._is_held(records, Path(records[0].file))
        )
        return {size: frozenset(digests) for size, digests in by_size.items()}

    def found_again(self, outcome: Outcome) -> None:
        """Record the new path of a file that the lake holds and whose old path no longer exists."""
        for record in self._by_content().get(outcome.file_digest, []):
            if not Path(record.file).exists():
                record.file, record.mtime_ns = str(outcome.path.resolve()), outcome.source.changed_ns
                self._folder.write_record(record)

    def publish(self, outcome: Outcome) -> list[SourceRecord]:
        """Move the staged ranks of an outcome into the lake and return their records.

        Raises `UnknownRankError` if another source holds one of the steps for the same rank and `--replace` was not
        given, and `OtherJobError` if the outcome is of another job; the lake is then unchanged. With `--replace`, the
        sources of the other job are removed. A recording that counts as rank 0 only because it was alone is rejected.

        A kill at any moment leaves the source either completely in the lake or absent: records of an earlier
        reading are removed first, and the paths that change are written to a journal.
        """
        self._check_within(outcome)
        self.see_others()
        others = self._of_other_job(outcome)
        assumed = [record for record in self._find_assumed(outcome) if record not in others]
        shorter = self._shorter(outcome)
        before = [*self._before(outcome), *others, *assumed, *shorter]
        self.replaced += len(others)
        old = [place for record in before for place in files_of_record(record)]
        new = [place for staged in outcome.ranks for _, place in staged.places()]
        with self._folder.journal(old, new):
            for staged in outcome.ranks:
                self._settle(staged.record, before)
            self._drop(before)
            for staged in outcome.ranks:
                place = Path("sources", staged.record.name)
                self._folder.publish(staged.folder, staged.places(), place, encode_record(staged.record))
                self._records[staged.record.digest] = staged.record
                shutil.rmtree(staged.folder, ignore_errors=True)
                staged.folder, staged.files = self._folder.root, []
            if old:
                self._remove_old(old, new)
        if shorter:
            self.grown.append(
                f"{outcome.path}: has grown from {shorter[0].size:,} to {outcome.source.size:,} bytes since it "
                "was ingested; the longer recording replaces the shorter one"
            )
        for record in assumed:
            file = Path(record.file)
            reason = f"; it counted as rank 0 until {outcome.path} was added, and is no longer in the lake"
            error = unknown_rank_error(file, reason=reason)
            self.yielded.append((record, error))
            self._refuse(file, record.file_digest, record.size, record.mtime_ns, record.reader, error)
        self._published[outcome.file_digest] = [staged.record for staged in outcome.ranks]
        return self._published[outcome.file_digest]

    def windows(self) -> dict[Path, Window]:
        """Return the lake's recordings whose ranks nothing but the files' names states, by file."""
        ranks = ranks_in_lake(self.records, self._folder.root)
        return {Path(rank.record.file): window for rank in ranks if (window := window_of(rank)) is not None}

    def withdraw(self, outcome: Outcome) -> None:
        """Remove what this run has published of an outcome, if it turns out to be of another job or in conflict."""
        records = self._published.pop(outcome.file_digest, [])
        if not records:
            return
        old = [place for record in records for place in files_of_record(record)]
        with self._folder.journal(old, []):
            self._drop(records)
            self._remove_old(old)

    def _find_assumed(self, outcome: Outcome) -> list[SourceRecord]:
        """Return the recordings of assumed rank in the lake, which are no longer alone.

        Raises `UnknownRankError` if the rank of the outcome itself is assumed, and the lake holds other recordings.
        """
        is_assumed = outcome.has_assumed_rank
        own_files = {str(outcome.path.resolve())}
        if is_assumed and (window := outcome.find_window()) is not None:
            own_files |= {str(file) for file, other in self.windows().items() if other.process == window.process}
        others = [
            record
            for record in self.records
            if record.file not in own_files and record.file_digest != outcome.file_digest
        ]
        if others and is_assumed:
            raise unknown_rank_error(outcome.path, reason=f", and {self._folder.root} holds other recordings")
        return [record for record in others if record.has_assumed_rank]

    def _remove_old(self, old: Sequence[Path], new: Sequence[Path] = ()) -> None:
        """Remove files of an earlier reading, except where this (`new`) or another source now has a file."""
        owned = {place for record in self._records.values() for place in files_of_record(record)}
        kept = set(new)
        self._folder.remove(
            place for place in old if place not in kept and (place not in owned or place.parts[0] == "host")
        )

    def expect(self, sources: Sequence[Source]) -> None:
        """Prepare for outcomes of these sources, which are given to `publish_certain` as they are read."""
        self._of_job |= {record.file_digest for record in self.records}
        in_lake = ranks_in_lake(self.records, self._folder.root)
        self._leading = LeadingJob[Outcome](in_lake, len(sources), sum(source.size for source in sources))

    def publish_certain(self, outcome: Outcome) -> None:
        """Take an outcome, and publish those that are now known to be of the job that will be taken.

        An outcome that would change what the lake already holds waits until all outcomes are published.
        """
        if self.may_replace or self._same_job:  # may yet renumber its steps
            return
        for certain in self._leading.add(outcome):
            if (
                certain.has_assumed_rank
                or any(record.has_assumed_rank for record in self.records)
                or any(self._holders(staged.record) for staged in certain.ranks)
                or self._before(certain)
                or self._shorter(certain)
            ):
                continue
            self._of_job.add(certain.file_digest)
            with suppress(UnknownRankError):  # raised again, and told, when all are published
                self.publish(certain)

    def published(self, outcome: Outcome) -> list[SourceRecord]:
        """Return the records that this run has published of an outcome."""
        return self._published.get(outcome.file_digest, [])

    def find_conflicts(self, outcomes: Sequence[Outcome]) -> Mapping[GivenRecording, UnknownRankError]:
        """Return the errors of outcomes to leave out because others hold the same steps of their ranks.

        With `--replace` there are none: the newer one is taken for each step.
        """
        if self.may_replace:
            return {}
        published = {record.file_digest for records in self._published.values() for record in records}
        others = ranks_in_lake(
            [record for record in self.records if record.file_digest not in published], self._folder.root
        )
        return find_conflicts(outcomes, [*(rank for outcome in outcomes for rank in outcome.ranks), *others])

    def choose_job(self, outcomes: Sequence[Outcome], held: Sequence[Source]) -> JobChoice:
        """Return the jobs of which these outcomes and the sources that the lake holds are, and which one to take.

        With `--replace` the lake's job has no precedence: sources that the lake holds count as given ones. With
        `--same-job` windows whose steps are numbered anew become epochs.
        """
        windows = None
        if self._same_job:
            windows = number_windows(outcomes, ranks_in_lake(self.records, self._folder.root))
        stated = [outcome for outcome in outcomes if not outcome.has_assumed_rank]
        given: list[GivenRecording] = [*(stated or outcomes)]
        dropped = {
            record.digest for outcome in outcomes for record in (*self._before(outcome), *self._shorter(outcome))
        }
        in_lake = ranks_in_lake([record for record in self.records if record.digest not in dropped], self._folder.root)
        if self.may_replace:
            files = {str(source.path.resolve()): source.path for source in held}
            by_file = by_key((files[rank.record.file], rank) for rank in in_lake if rank.record.file in files)
            given += [GivenRecording(path, ranks) for path, ranks in by_file.items()]
            in_lake = []
        choice = choose_job(given, in_lake, is_one_run=not self.may_replace, is_same_job=self._same_job)
        if choice.taken is not None:
            self._of_job = {rank.record.file_digest for rank in choice.taken.ranks}
        return choice if windows is None else choice._replace(warning=windows)

    def _of_other_job(self, outcome: Outcome) -> list[SourceRecord]:
        """Return the lake's records of another job than the outcome's. Raises `OtherJobError` without `--replace`.

        Without `--replace`, only runs on other machines can have published another job since the job was chosen.
        """
        job_digests = self._of_job | {outcome.file_digest}
        others = [record for record in self.records if record.file_digest not in job_digests]
        if self._same_job or not others:
            return []
        job = RecordedJob(ranks_in_lake(others, self._folder.root))
        for rank in outcome.ranks:
            reason = job.find_mismatch([rank], "in the lake")
            if reason is not None and not self.may_replace:
                new_job = RecordedJob()
                new_job.add(outcome)
                raise not_in_lake_error(outcome.path, reason, job, new_job, self._folder.root)
            if reason is not None:
                return records_of_other_job(rank, job.ranks)
        return []

    def see_others(self) -> None:
        """Load the records that ingests on other machines have published since the start."""
        for record in self._folder.records_except(self._records):
            self._records[record.digest] = record

    def refuse(self, outcome: Outcome, error: JitterError) -> None:
        """Write a record of a rejected source, as `_refuse`."""
        source, ranks = outcome.source, [staged.record.rank for staged in outcome.ranks]
        self._refuse(source.path, outcome.file_digest, source.size, source.changed_ns, source.reader, error, *ranks[:1])

    def refuse_file(self, path: Path, error: JitterError) -> None:
        """Write a record of a damaged trace that no reader accepts, as `_refuse`."""
        state = path.stat()
        # empty files have equal contents, and each of them is a rank
        digest = (
            file_digest([path]) if state.st_size else hashlib.blake2b(str(path.resolve()).encode()).hexdigest()[:32]
        )
        self._refuse(path, digest, state.st_size, modified_ns(state), None, error)

    def _refuse(
        self,
        path: Path,
        digest: str,
        size: int,
        changed_ns: int,
        reader: str | None,
        error: JitterError,
        rank: int | None = None,
    ) -> None:
        """Write a record in place of earlier ones, unless the content was not read or the lake holds it."""
        if not digest or digest in self._by_content():
            return
        refusal = SourceRecord(
            digest=digest,
            file=str(path.resolve()),
            file_digest=digest,
            size=size,
            mtime_ns=changed_ns,
            format=reader or "unrecognized",
            problems=[str(error)],
            claimed_rank=rank_in_path(path) if rank is None else rank,
            left_out_because=error.reason,
        )
        self._drop(self._replaced(refusal.file, digest))
        self._records[digest] = refusal
        self._folder.write_record(refusal)

    def _by_content(self) -> dict[str, list[SourceRecord]]:
        return by_key((record.file_digest, record) for record in self.records)

    def _before(self, outcome: Outcome) -> list[SourceRecord]:
        return self._replaced(str(outcome.path.resolve()), outcome.file_digest)

    def _replaced(self, file: str, digest: str) -> list[SourceRecord]:
        """Records that a reading replaces: those of the same content, and earlier rejections of the same path."""
        return [
            record
            for record in self._records.values()
            if record.file_digest == digest or (record.rank is None and record.file == file)
        ]

    def _shorter(self, outcome: Outcome) -> list[SourceRecord]:
        """Return the records of the same path when it was smaller, if the recording begins like them."""
        file = str(outcome.path.resolve())
        if file not in self._former:
            smaller = [
                record
                for record in self._at_start.get(file, [])
                if record.size < outcome.source.size and record.file_digest != outcome.file_digest
            ]
            self._former[file] = smaller if smaller and _begins_like(outcome, smaller) else []
        return [record for record in self._former[file] if record.digest in self._records]

    def _holders(self, record: SourceRecord, without: Sequence[SourceRecord] = ()) -> dict[StepKey, SourceRecord]:
        """Return by step the record of another source that holds it for the same rank."""
        gone = {removed.digest for removed in without}
        others = [other for other in self._records.values() if other.rank == record.rank and other.digest not in gone]
        held = {step.key: other for other in others for step in other.steps}
        return {step.key: held[step.key] for step in record.steps if step.key in held}

    def _settle(self, record: SourceRecord, removed: Sequence[SourceRecord]) -> None:
        """Decide which source keeps steps that two sources hold for the same rank; the `removed` ones keep none."""
        holders = self._holders(record, removed)
        for digest, keys in by_key((holder.digest, key) for key, holder in holders.items()).items():
            holder = self._records[digest]
            if not self.may_replace:
                raise _steps_taken_error(record, keys, holder)
            older, newer = (holder, record) if _newer(record, holder) else (record, holder)
            older.steps[:] = [step for step in older.steps if step.key not in set(keys)]
            older.problems.append(f"{describe_steps(keys)} replaced by {newer.file}")
            if older is holder:
                # written before the newer source: after a kill in between, the next ingest publishes the newer one
                self._folder.write_record(holder)

    def _check_within(self, outcome: Outcome) -> None:
        """Raise `UnknownRankError` if two GPUs of one recording have the same rank in the same step."""
        claimed: dict[tuple[StepKey, int], StagedRank] = {}
        for staged in outcome.ranks:
            for step in staged.record.steps:
                assert staged.record.rank is not None
                holder = claimed.setdefault((step.key, staged.record.rank), staged)
                if holder is not staged:
                    raise UnknownRankError(
                        f"{staged.record.file}: two of its GPUs are both rank {staged.record.rank} in {step.key} "
                        f"(devices {holder.record.device} and {staged.record.device})",
                        "tell them apart with --rank-map (file,device,rank)",
                    )

    def _drop(self, records: Sequence[SourceRecord]) -> None:
        if not records:
            return
        gone = {record.digest for record in records}
        self._records = {digest: record for digest, record in self._records.items() if digest not in gone}
        self._folder.remove_records(records)


def _as_told(records: Sequence[SourceRecord], path: Path, options: ReadOptions) -> bool:
    """Return whether all records of a recording agree with the options; options that are not given always agree."""
    if options.step_pattern not in (None, records[0].step_pattern):
        return False
    if options.collective_pattern not in (None, records[0].collective_pattern):
        return False
    if options.gives_ranks and any(record.has_assumed_rank for record in records):
        return False  # they may state it
    by_hosts = [record for record in records if (record.rank_told_by or "").startswith((DEVICE_ORDER, BY_HOSTS))]
    if options.rank is None and options.hosts and by_hosts:
        return all(
            record.rank_told_by == f"{BY_HOSTS}: node {options.node_of(path, record.host)}" for record in by_hosts
        )
    gpus = [GpuEvidence(0, record.device, record.kernels) for record in records]
    try:
        decisions = decide_by_user(path, gpus, options)
    except UnknownRankError:
        return False
    return decisions is None or [decision.rank for decision in decisions] == [record.rank for record in records]


def _begins_like(outcome: Outcome, records: Sequence[SourceRecord]) -> bool:
    """Return whether a recording begins with the content of the records of one file, or with their steps."""
    path, *companions = outcome.source.files
    if not companions and path.is_file() and file_digest([path], records[0].size) == records[0].file_digest:
        return True
    # databases change at their beginning when they grow, and the last step may have grown
    staged = [staged_rank.record for staged_rank in outcome.ranks]
    starts = {(record.rank, step.start_ns) for record in staged for step in record.steps}
    whole = {(record.rank, step.start_ns, step.sequence) for record in staged for step in record.steps}
    return all(
        bool(record.steps)
        and (record.rank, record.steps[0].start_ns) in starts
        and all((record.rank, step.start_ns, step.sequence) in whole for step in record.steps[:-1] if not step.cut)
        for record in records
    )


def _newer(first: SourceRecord, second: SourceRecord) -> bool:
    """Return whether `first` is at least as new: by recorded UTC time where both have it, else by file times."""
    if (of_first := first.utc_range) and (of_second := second.utc_range):
        return of_first[0] >= of_second[0]
    return first.mtime_ns >= second.mtime_ns


def _steps_taken_error(record: SourceRecord, keys: list[StepKey], owner: SourceRecord) -> RejectedForAnotherError:
    """Return the error of a recording whose steps another recording in the lake holds."""
    error = RejectedForAnotherError(
        f"{record.file}: rank {record.rank} has {describe_steps(keys)} already, from {owner.file}",
        f"of another run: use another lake (`ingest -o LAKE`, `report -L LAKE`); else {REPLACE}, or {CORRECT_RANK}",
    )
    error.cause = f"{Path(record.file).parent} {Path(owner.file).parent}"
    return error


def _is_outdated(record: SourceRecord) -> bool:
    """Return whether a newer version of the reader is installed than the one that read the source."""
    name = record.reader or record.format
    return name in readers() and record.reader_version < readers()[name].version
