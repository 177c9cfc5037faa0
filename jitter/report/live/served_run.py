"""The run that all sessions of a server show: prepared once on a thread, with the step that was read last."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from threading import Thread
from typing import ParamSpec, TypeVar

from bokeh.models import LayoutDOM

from jitter.core.errors import UsageError
from jitter.core.step_key import StepKey
from jitter.report.live.loading import Loading
from jitter.report.live.timeline_download import TimelineWriter
from jitter.report.page import render_page_body, step_choice
from jitter.report.views.run_report import RunReport, StepSection
from jitter.report.views.step_grid import StepGrid
from jitter.report.views.step_view import KernelNames

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class ServedRun:
    """The state that all sessions share: the run, and the step that was read last."""

    def __init__(self, page: RunReport, write_timeline: TimelineWriter | None = None) -> None:
        """Serve this run. Nothing is computed yet. `write_timeline` writes the timelines of findings."""
        self.page = page
        self.write_timeline = write_timeline
        self.loading = Loading()
        self.sessions = 0
        self.release_is_due = False
        """Whether the memory of closed sessions will be given back soon."""
        self.names = KernelNames()
        self._last: tuple[StepGrid, StepSection] | None = None
        self._first: StepKey | None = None
        self._body: str | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jitter-draw")

    async def on_thread(
        self, function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Call `function` on the one thread that reads steps and draws, while the event loop answers other requests."""
        return await asyncio.wrap_future(self._thread.submit(function, *args, **kwargs))

    @cached_property
    def keys(self) -> list[StepKey]:
        """The steps, in order."""
        return [step.key for step in self.page.diagnosis.steps]

    def prepare(self) -> None:
        """Compute the data that every page shows, in stages; once."""
        page, loading = self.page, self.loading
        if loading.ready:
            return
        if page.steps == page.lake.step_keys:
            page.lake.prepare(forms=["answers"])  # which makes later starts faster
        page.diagnosis, page.facts  # noqa: B018
        loading.enter("reading the costliest step")
        self._first = self._costliest_whole()
        page.excess  # noqa: B018
        loading.enter("ready")

    def prepare_on_thread(self, failed: Callable[[], None]) -> Thread:
        """Run `prepare` on a thread and return it; on an error keep that in `loading.failure` and call `failed`."""

        def work() -> None:
            try:
                self.prepare()
            except Exception as error:  # raised again by the thread that serves
                self.loading.failure = error
                failed()

        thread = Thread(target=work, name="jitter-prepare", daemon=True)
        thread.start()
        return thread

    @property
    def first(self) -> StepKey | None:
        """The step that a page shows first: the costliest that a rank recorded completely; None if there is none."""
        return self._first

    def body(self, sections: Sequence[StepSection], items: Mapping[str, LayoutDOM]) -> str:
        """Return the page with its first step as HTML, rendered once."""
        if self._body is None:
            choices = [step_choice(self.page, key) for key in self.keys]
            self._body = str(render_page_body(self.page, sections, choices, items, live=True))
        return self._body

    def read(self, key: StepKey) -> tuple[StepGrid, StepSection]:
        """Read a step; the last one is cached. Raise `UsageError` if no rank recorded it completely."""
        if self._last is None or self._last[1].step.key != key:
            self._last = self.page.read(key, self.names)
        return self._last

    def _costliest_whole(self) -> StepKey | None:
        by_cost = sorted(self.page.diagnosis.steps, key=lambda step: (step.loss_ns is None, -(step.loss_ns or 0)))
        for step in by_cost:
            try:
                self.read(step.key)
            except UsageError:
                continue
            return step.key
        return None
