"""One browser's page of a live report: requests for steps and ranks come in, figures and text go out.

The browser chooses among existing steps and ranks; it cannot name a file or a query.
"""

import gc
import re
from typing import Final

from bokeh.document import Document
from bokeh.models import ColumnDataSource, LayoutDOM
from tornado.ioloop import IOLoop

from jitter.core.errors import JitterError, UsageError
from jitter.core.formatting import parse_numbers
from jitter.core.memory import release_freed_memory
from jitter.core.step_key import StepKey
from jitter.report.figures import kernel_axis
from jitter.report.figures.kernel_axis import KernelAxis
from jitter.report.figures.rank_lines import draw_ranks, style_ranks
from jitter.report.live.served_run import ServedRun
from jitter.report.page import render_findings, render_step
from jitter.report.page_figures import draw_page_figures
from jitter.report.views.run_report import StepSection

_MAX_RANKS_TEXT = 200
_RELEASE_AFTER_S = 1.0
_PROGRESS_MS = 400
MAX_SESSIONS: Final = 40
"""Most pages at a time; each keeps the data of its figures in memory."""


class ReportSession:
    """The page of one browser: requests come in the source `wanted`, replies go to the source `told`."""

    def __init__(self, run: ServedRun, document: Document) -> None:
        """Show the run in a document."""
        self._run, self._document = run, document
        self._wanted = ColumnDataSource({"number": [], "place": [], "ranks": []}, name="wanted")
        self._told = ColumnDataSource({}, name="told")
        self._axis: KernelAxis | None = None
        self._shown: StepKey | None = None
        self._waiting = False
        self._findings_shown = False

    def open(self) -> None:
        """Build the page with its first step; while the run is being prepared, a page that shows the progress."""
        run, document = self._run, self._document
        document.title = f"jitter: {run.page.lake.root}"
        run.sessions += 1
        document.on_session_destroyed(lambda _context: self._close())
        if run.sessions > MAX_SESSIONS or not run.loading.ready:
            self._wait()
            return
        sections: list[StepSection] = []
        items: dict[str, LayoutDOM] = {}
        if run.first is not None:
            sections = [run.read(run.first)[1]]
            items, self._axis = draw_page_figures(run.page, sections, run.names.names, range(len(run.keys)))
            self._shown = run.first
        self._tell(body=run.body(sections, items))
        with document.models.freeze():  # otherwise each root traverses all models
            for name, item in items.items():
                item.name = name
                document.add_root(item)
            for source in (self._wanted, self._told):
                document.add_root(source)
        self._wanted.on_change("data", lambda _name, _old, _new: self._want())
        # else each collection, as Bokeh makes one whenever a page closes, goes through the models of all open pages
        gc.freeze()

    def _close(self) -> None:
        self._run.sessions -= 1
        if not self._run.release_is_due:  # one release serves all sessions that close meanwhile
            self._run.release_is_due = True
            IOLoop.current().call_later(_RELEASE_AFTER_S, _collect, self._run)

    def _wait(self) -> None:
        """Show the progress of the preparation, and the findings once they are known; the page then loads again."""
        self._document.add_root(self._told)
        if self._run.sessions > MAX_SESSIONS:
            self._tell(body=f"<p class='warning'>{MAX_SESSIONS} pages are open, which is the limit: close one.</p>")
            return
        self._tell(body="", loading=self._run.loading.words, fraction=0.0, ready=False)
        self._document.add_periodic_callback(self._report_progress, _PROGRESS_MS)
        self._report_progress()

    def _report_progress(self) -> None:
        loading = self._run.loading
        body = str(render_findings(self._run.page)) if loading.has_findings and not self._findings_shown else ""
        self._findings_shown = self._findings_shown or loading.has_findings
        self._tell(body=body, loading=loading.words, fraction=loading.fraction, ready=loading.ready)

    def _want(self) -> None:
        """Schedule a reply to the latest request."""
        if not self._waiting:
            self._waiting = True
            self._document.add_next_tick_callback(self._answer)  # type: ignore[arg-type]  # it may be a coroutine

    async def _answer(self) -> None:
        self._waiting = False
        number, place, ranks = (self._asked(name) for name in ("number", "place", "ranks"))
        try:
            at = self._place(place)
            if at is None or self._axis is None:
                raise UsageError("there is no such step", "choose a step of the list")
            chosen, key = self._chosen(str(ranks or "")), self._run.keys[at]
            grid, section = await self._run.on_thread(self._run.read, key)
            # lines first: an error changes nothing
            draw_ranks(self._axis, grid, chosen)
            if key != self._shown:
                kernel_axis.show_view(self._axis, section.view, self._run.names.names)
                self._shown = key
            shown, words = render_step(section, style_ranks(chosen))
            self._tell(number=number, place=at, key=shown, section=words, problem="")
        except JitterError as error:
            self._tell(number=number, problem=f"{error.message}; {error.hint}")

    def _tell(self, **told: object) -> None:
        self._told.data = {name: [str(value) if isinstance(value, str) else value] for name, value in told.items()}

    def _asked(self, name: str) -> object:
        """Return one value of the browser's message, which may be anything."""
        values = self._wanted.data.get(name)
        return values[0] if isinstance(values, list) and len(values) == 1 else None

    def _place(self, given: object) -> int | None:
        """Return the step position that the browser sent; None for anything else."""
        if isinstance(given, str) and re.fullmatch(r"[0-9]{1,9}", given):
            return int(given) if int(given) < len(self._run.keys) else None
        return None

    def _chosen(self, text: str) -> list[int]:
        """Return the ranks to draw; raise `UsageError` for anything else."""
        if not text.strip():
            return []
        known = self._run.page.lake.ranks
        longest = max((len(digits) for digits in re.findall(r"\d+", text)), default=0)
        if len(text) > _MAX_RANKS_TEXT or longest > len(str(known[-1])):  # parse_numbers would expand an endless range
            raise UsageError("not ranks of this run", f"it has {known[0]} to {known[-1]}")
        return parse_numbers(text.strip(), "ranks")


def _collect(run: ServedRun) -> None:
    """Give the memory of closed sessions back to the system: their documents are full of cycles."""
    run.release_is_due = False
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    release_freed_memory()
