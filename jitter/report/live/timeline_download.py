"""The timeline of a finding for Perfetto as a download from the live page: `perfetto/finding-1.json.gz`."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tornado.ioloop import IOLoop
from tornado.web import HTTPError, RequestHandler

from jitter.core.errors import JitterError
from jitter.core.step_key import StepKey
from jitter.report.text.finding_cards import costliest_step, exported_ranks

if TYPE_CHECKING:
    from jitter.report.views.run_report import RunReport

TimelineWriter = Callable[[Path, StepKey, Sequence[int]], None]
"""Writes the timeline of a step's ranks to a file whose name ends in `.json.gz`."""
TIMELINE_ROUTE = r"/perfetto/finding-([0-9]{1,4})\.json\.gz"


def write_finding(page: "RunReport", number: int, write: TimelineWriter) -> bytes | None:
    """Return the compressed timeline of a finding, numbered from 1; None if there is no such finding or step."""
    culprits = page.diagnosis.culprits
    culprit = culprits[number - 1] if 0 < number <= len(culprits) else None
    step = None if culprit is None else costliest_step(culprit, page.diagnosis)
    if culprit is None or step is None:
        return None
    ranks = exported_ranks(culprit, step, page.lake.cohorts)
    with tempfile.TemporaryDirectory(prefix="jitter-") as folder:
        path = Path(folder) / "finding.json.gz"
        write(path, step.key, ranks)
        return path.read_bytes()


class TimelineHandler(RequestHandler):
    """Sends the timeline of a finding."""

    def initialize(self, page: "RunReport", write: TimelineWriter) -> None:
        """Take what all requests share."""
        self._page, self._write = page, write

    async def get(self, number: str) -> None:
        """Answer a request; the timeline is written on a thread."""
        try:
            found = await IOLoop.current().run_in_executor(None, write_finding, self._page, int(number), self._write)
        except JitterError as error:
            self.set_status(422)
            self.set_header("Content-Type", "text/plain; charset=utf-8")
            self.finish(f"{error.message}; {error.hint}\n")
            return
        if found is None:
            raise HTTPError(404)
        self.set_header("Content-Type", "application/gzip")
        self.set_header("Content-Disposition", f'attachment; filename="finding-{int(number)}.json.gz"')
        self.set_header("X-Content-Type-Options", "nosniff")
        self.finish(found)
