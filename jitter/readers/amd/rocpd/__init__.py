"""Reader of rocpd, rocprofv3's databases: table names end with a guid, one set of tables per session."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from jitter.core.errors import UnreadableTraceError
from jitter.readers import Advance, Batch, Files, Reader, Recording
from jitter.readers.amd.batches import BatchBuilder
from jitter.readers.amd.file_names import NAMING_HINT, sibling_files
from jitter.readers.amd.rocpd.batches import SessionBatches
from jitter.readers.amd.rocpd.metadata import read_session_metadata
from jitter.readers.amd.rocpd.tables import Session, find_sessions
from jitter.readers.amd.rocprofv3.csv import is_companion_csv
from jitter.readers.amd.sqlite_tables import Database, RowProgress, list_tables

_OTHER_FORMS: Final = (".json", ".json.gz", ".pftrace", ".otf2")


class RocpdReader:
    """Reads databases of rocprofv3 and rocprof-sys, not RPD's, whose table names start with rocpd_ as well."""

    name = "rocpd"
    version = 1

    def sniff(self, path: Path) -> bool:
        if path.suffix.lower() not in (".db", ".rocpd", ".sqlite", ".sqlite3") or not path.is_file():
            return False
        return bool(find_sessions(list_tables(path)))

    def files(self, path: Path) -> Files:
        prefix = path.stem.removesuffix("results")
        others = [path.with_name(path.stem + form) for form in _OTHER_FORMS]
        if prefix != path.stem:
            # the same run as CSV, if both were recorded
            others += [file for file in sibling_files(path, prefix) if is_companion_csv(prefix, file.name)]
        return Files((path,), tuple(file for file in others if file.is_file()))

    def open(self, path: Path) -> tuple[Recording, Callable[[Advance], Iterator[Batch]]]:
        """Return the recording and its batches.

        Raises UnreadableTraceError for a damaged database, for one without kernels and for unknown schemas.
        """
        database = Database(path)
        sessions = find_sessions(database.tables)
        for session in sessions:
            session.check(database)
        if not any(database.count(session.table("kernel_dispatch")) for session in sessions):
            raise UnreadableTraceError(
                f"{path}: no kernels in this database", "did the process use a GPU? record with --kernel-trace"
            )
        recording = Recording(path=path, format=self.name, rank_hint=NAMING_HINT)
        return recording, lambda advance: _batches(recording, database, sessions, advance)


READER: Reader = RocpdReader()


def _batches(recording: Recording, database: Database, sessions: list[Session], advance: Advance) -> Iterator[Batch]:
    rows = BatchBuilder()
    progress = RowProgress(database.size, sum(session.size(database) for session in sessions))
    problems: list[str] = []
    for session in sessions:
        origin = read_session_metadata(database, session)
        recording.profiler_version = recording.profiler_version or origin.version
        recording.world_size = recording.world_size or origin.world_size
        parts = SessionBatches(database, session, origin, rows)
        for batch, read in parts.batches():
            advance(progress.seen(read))
            if batch.rows.num_rows:
                yield batch
        problems += [*origin.problems, *parts.problems()]
    rows.complete(
        recording, recording.path.stem.removesuffix("results"), [*dict.fromkeys(problems), *database.problems()]
    )
    advance(progress.rest())
