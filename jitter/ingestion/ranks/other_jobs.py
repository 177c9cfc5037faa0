"""The errors of recordings that are of another job than the one that is taken."""

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from jitter.core.errors import JitterError
from jitter.core.formatting import format_count
from jitter.ingestion.ranks.choose_job import GivenJob, GivenRecording, JobChoice

_SAME_JOB = "--same-job if it is the same job"


class OtherJobError(JitterError):
    """A recording that cannot belong to the job that is taken."""

    job = ""
    """The other job in words, equal for all of its recordings."""


class UndecidedJobError(OtherJobError):
    """A recording of one of several jobs of similar size, of which none is taken."""


def left_out_errors(choice: JobChoice, lake: Path) -> list[tuple[GivenRecording, OtherJobError]]:
    """Return the recordings that are not taken, each with its error. `lake` is the lake's folder."""
    if choice.taken is None:
        return _undecided_errors(choice)
    found = []
    place = "in the lake" if choice.is_in_lake else "in the job that is taken"
    for job in choice.left_out:
        for recording, reason in _reasons(choice.taken, job, place):
            if choice.is_in_lake:
                error = not_in_lake_error(recording.path, reason, choice.taken, job, lake)
            else:
                error = _not_taken_error(recording.path, reason, choice.taken, job)
            found.append((recording, error))
    return found


def not_in_lake_error(path: Path, reason: str, in_lake: GivenJob, job: GivenJob, lake: Path) -> OtherJobError:
    """Return the error for a recording of `job`, which is another one than the job in the lake."""
    size = "the job in the lake is the smaller one: " if job.rank_steps > in_lake.rank_steps else ""
    replace = f"jitter ingest {shlex.quote(str(_folder(job)))} -o {shlex.quote(str(lake))} --replace"
    error = OtherJobError(
        f"{path}: recorded in another job than the one in the lake: {reason}. In the lake: {in_lake.describe()}. "
        f"Left out: {job.describe()}",
        f"{size}a lake holds one job: use another lake (`ingest -o LAKE`, `report -L LAKE`), `{replace}` to replace "
        f"the job in the lake, or {_SAME_JOB}",
    )
    error.job = job.describe()
    return error


def _not_taken_error(path: Path, reason: str, taken: GivenJob, job: GivenJob) -> OtherJobError:
    error = OtherJobError(
        f"{path}: recorded in another job than most of these traces: {reason}. Taken: "
        f"{taken.describe()}. Left out: {job.describe()}",
        f"a lake holds one job: ingest the other one alone into another lake (`ingest -o LAKE`), or {_SAME_JOB}",
    )
    error.job = job.describe()
    return error


def _undecided_errors(choice: JobChoice) -> list[tuple[GivenRecording, OtherJobError]]:
    """Return one error for all recordings."""
    first, second = choice.jobs[:2]
    (example, reason), *_ = _reasons(first, second, "in the first")
    described = "; ".join(f"{number}) {job.describe()}" for number, job in enumerate(choice.jobs, 1))
    folders = [shlex.quote(str(_folder(job))) for job in choice.jobs]
    way = "move the files of one job into a folder of its own, and ingest that"
    if len(set(folders)) == len(folders):
        way = f"ingest one of them: `jitter ingest {folders[0]}` or `jitter ingest {folders[1]}`"
    error = UndecidedJobError(
        f"{format_count(len(choice.jobs), 'job')} stand here, none of them clearly the largest, and a lake holds one: "
        f"{described}. Of {example.path.name} in the second, {reason}. Nothing was written",
        f"{way}; or give {_SAME_JOB}",
    )
    return [(recording, error) for job in choice.jobs for recording in job.recordings]


def _reasons(taken: GivenJob, job: GivenJob, place: str) -> Iterator[tuple[GivenRecording, str]]:
    """Yield each recording of a job with the reason why it is not of the job that is taken."""
    recordings = sorted(job.recordings, key=lambda recording: recording.path)
    found = [(recording, taken.find_mismatch(recording, place)) for recording in recordings]
    example = next(((one.path.name, mismatch.reason) for one, mismatch in found if mismatch is not None), None)
    for recording, mismatch in found:
        if mismatch is not None:
            yield recording, mismatch.reason
        elif example is not None:
            yield recording, f"it goes with {example[0]}, of which: {example[1]}"
        else:
            yield recording, "its kernels are those of another job"


def _folder(job: GivenJob) -> Path:
    """Return the folder that holds all recordings of a job."""
    return Path(os.path.commonpath([one.path.parent for one in job.recordings]))
