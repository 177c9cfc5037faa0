"""The runs of a history: add one, list them, read their documents."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from typing import Final

import msgspec
import sqlalchemy as sa

from jitter.comparison.compare_documents import step_times
from jitter.comparison.document import Document, decode_document, encode_document
from jitter.core.errors import UsageError
from jitter.core.formatting import format_some
from jitter.core.numeric.stats import middle_value
from jitter.history.change_points import ChangePoint, find_change_points
from jitter.history.database import Database


@dataclass(frozen=True)
class HistoryRun:
    """One run of a job."""

    job: str
    digest: str
    name: str
    added_ns: int
    """ns since 1970."""
    ranks: int
    steps: int
    step_time_ns: int | None
    """Median; None where unknown."""
    loss_fraction: float | None
    labels: Mapping[str, str] = field(default_factory=dict)
    change: ChangePoint | None = None
    """The change of the job's step time that begins with this run."""
    is_name_shared: bool = False
    """Whether another run of the job has the name: a lake's folder is often called alike in the folder of each run."""

    @property
    def title(self) -> str:
        """Its name, with its labels, else the time at which it was added, where another run of the job has the name."""
        if not self.is_name_shared:
            return self.name
        return f"{self.name} ({format_labels(self) or format_date(self.added_ns)})"


def format_labels(run: HistoryRun) -> str:
    """Return the labels of a run: `commit=ab12cd,driver=560.35`."""
    return ",".join(f"{name}={value}" for name, value in run.labels.items())


def format_date(added_ns: int) -> str:
    """Return a time in ns since 1970 as a date and minutes, UTC."""
    return datetime.fromtimestamp(added_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M")


_MOST_JOBS: Final = 10
"""Jobs that are named where one is asked for that has no runs."""
_COLUMNS = ("job", "digest", "name", "added_ns", "ranks", "steps", "step_time_ns", "loss_fraction")


def add_run(database: Database, job: str, document: Document, labels: Mapping[str, str]) -> bool:
    """Add a run to a job and return whether it is new; labels of a run that is there are added or replaced."""
    times = step_times(document)
    values = {
        "job": job,
        "digest": document.digest,
        "name": document.label,
        "added_ns": time.time_ns(),
        "ranks": document.ranks,
        "steps": len(document.steps),
        "step_time_ns": round(middle_value(times)) if len(times) else None,
        "loss_fraction": document.loss_fraction,
        "document": encode_document(document).decode(),
    }
    names = ", ".join(values)
    places = ", ".join(f":{name}" for name in values)
    insert = sa.text(f"INSERT INTO jitter_runs ({names}) VALUES ({places}) ON CONFLICT (job, digest) DO NOTHING")
    label = sa.text(
        "INSERT INTO jitter_labels (job, digest, name, value) VALUES (:job, :digest, :name, :value) "
        "ON CONFLICT (job, digest, name) DO UPDATE SET value = excluded.value"
    )
    with database.transaction() as connection:
        added = connection.execute(insert, values).rowcount > 0
        for name, value in labels.items():
            row = {"job": job, "digest": document.digest, "name": name, "value": value}
            connection.execute(label, row)
    return added


def list_runs(database: Database, job: str | None = None) -> list[HistoryRun]:
    """Return the runs of a job (default: of all jobs), by job and time, with the change points of each job.

    Raises `UsageError` if the job has no runs; its hint names the jobs that have some.
    """
    where = "" if job is None else " WHERE job = :job"
    given = {} if job is None else {"job": job}
    columns = ", ".join(_COLUMNS)
    with database.transaction() as connection:
        rows = connection.execute(
            sa.text(f"SELECT {columns} FROM jitter_runs{where} ORDER BY job, added_ns, digest"), given
        ).all()
        if job is not None and not rows:
            jobs = connection.execute(sa.text("SELECT DISTINCT job FROM jitter_runs ORDER BY job")).scalars().all()
            there = (
                f"its jobs: {format_some(jobs, _MOST_JOBS)}"
                if jobs
                else "it is empty: jitter history add LAKE --job NAME"
            )
            raise UsageError(f"the history has no job {job}", there)
        labels: dict[tuple[str, str], dict[str, str]] = {}
        for row in connection.execute(
            sa.text(f"SELECT job, digest, name, value FROM jitter_labels{where} ORDER BY name"), given
        ):
            labels.setdefault((row.job, row.digest), {})[row.name] = row.value
    runs = []
    for _, of_job in groupby(rows, key=lambda row: row.job):
        job_rows = list(of_job)
        counts = Counter(row.name for row in job_rows)
        changes = {change.run: change for change in find_change_points([row.step_time_ns for row in job_rows])}
        for at, row in enumerate(job_rows):
            of_run, is_shared = labels.get((row.job, row.digest), {}), counts[row.name] > 1
            runs.append(HistoryRun(**row._mapping, labels=of_run, change=changes.get(at), is_name_shared=is_shared))
    return runs


def read_documents(database: Database, runs: Sequence[HistoryRun]) -> list[Document]:
    """Return the documents of these runs, in their order, each with the title of its run."""
    query = sa.text("SELECT document FROM jitter_runs WHERE job = :job AND digest = :digest")
    documents = []
    with database.transaction() as connection:
        for run in runs:
            text = connection.execute(query, {"job": run.job, "digest": run.digest}).scalar_one()
            document = decode_document(text.encode(), f"run {run.title} of the history")
            documents.append(msgspec.structs.replace(document, label=run.title))
    return documents
