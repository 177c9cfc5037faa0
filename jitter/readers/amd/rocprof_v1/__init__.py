"""Reader of rocprof (version 1): `NAME.db`, `NAME.json`, `NAME.csv` of a run are one recording; .db has the most."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

from jitter.core.errors import UnreadableTraceError
from jitter.readers import Advance, Batch, Files, Reader, Recording
from jitter.readers.amd.agents import Agents
from jitter.readers.amd.batches import BatchBuilder
from jitter.readers.amd.csv_file import CsvFile, read_header
from jitter.readers.amd.file_names import NAMING_HINT
from jitter.readers.amd.rocprof_v1.csv import CSV_COLUMNS, read_csv
from jitter.readers.amd.rocprof_v1.db import read_database
from jitter.readers.amd.rocprof_v1.events import is_rocprof_v1_json
from jitter.readers.amd.rocprof_v1.json import read_json
from jitter.readers.amd.sqlite_tables import list_tables

_OPS: Final = frozenset({"BeginNs", "EndNs", "dev-id", "queue-id", "Name"})
_FORMS: Final = (".db", ".json", ".csv")
_SUMS: Final = (".stats.csv", ".hip_stats.csv", ".hsa_stats.csv", ".copy_stats.csv")
_HINT: Final = f"or name rocprof's output after it: `rocprof -o rank-$RANK.csv …`; with rocprofv3, {NAMING_HINT}"
_MOST_SYSINFO: Final = 1 << 24


class _Read(Protocol):
    """Yields all rows of a file and appends what is wrong with it to `problems`."""

    def __call__(
        self, path: Path, rows: BatchBuilder, agents: Agents, problems: list[str], advance: Advance
    ) -> Iterator[Batch]: ...


_READ: Final[dict[str, _Read]] = {".db": read_database, ".json": read_json, ".csv": read_csv}


class RocprofV1Reader:
    """Reads the database, the Chrome trace or the CSV, in that order of preference."""

    name = "rocprof-v1"
    version = 1

    def sniff(self, path: Path) -> bool:
        form = path.suffix.lower()
        if form not in _FORMS or not path.is_file():
            return False
        try:
            if form == ".db":
                return list_tables(path).get("OPS", frozenset()) >= _OPS
            if form == ".json":
                return is_rocprof_v1_json(path)
            return {name.lower() for name in read_header(path)} >= CSV_COLUMNS
        except OSError:
            return False

    def files(self, path: Path) -> Files:
        sysinfo = path.with_suffix(".sysinfo.txt")
        worse = _FORMS[_FORMS.index(path.suffix.lower()) + 1 :]
        siblings = [path.with_suffix(form) for form in (*worse, *_SUMS)]
        read = (path, sysinfo) if sysinfo.is_file() else (path,)
        return Files(read, tuple(file for file in siblings if file.is_file()))

    def open(self, path: Path) -> tuple[Recording, Callable[[Advance], Iterator[Batch]]]:
        """Return the recording and its batches. Raises UnreadableTraceError for a CSV file without times."""
        if path.suffix.lower() == ".csv" and not CsvFile(path).has("beginns", "endns"):
            raise UnreadableTraceError(
                f"{path}: counters only, without times of kernels", "record again with `rocprof --timestamp on`"
            )
        recording = Recording(path=path, format=self.name, rank_hint=_HINT)
        return recording, lambda advance: _batches(recording, advance)


READER: Reader = RocprofV1Reader()


def _batches(recording: Recording, advance: Advance) -> Iterator[Batch]:
    path = recording.path
    rows = BatchBuilder()
    problems: list[str] = []
    kernels = 0
    agents = _agents(path.with_suffix(".sysinfo.txt"), advance)
    for batch in _READ[path.suffix.lower()](path, rows, agents, problems, advance):
        kernels += batch.rows.num_rows if batch.table == "activities" else 0
        if batch.rows.num_rows:
            yield batch
    if not kernels:
        raise UnreadableTraceError(f"{path}: no kernels in it", "did the process use a GPU? record with --hip-trace")
    rows.complete(recording, path.stem, problems)


def _agents(sysinfo: Path, advance: Advance) -> Agents:
    if not sysinfo.is_file():
        return Agents()
    advance(sysinfo.stat().st_size)
    with sysinfo.open("rb") as file:
        return Agents.of_rocminfo(file.read(_MOST_SYSINFO).decode("utf-8", "replace"))
