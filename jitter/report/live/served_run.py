"""The run that a server shows: prepared once on a thread, with the steps that were read last."""

import asyncio
import json
import re
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from threading import Thread
from typing import Any, Final, ParamSpec, TypeVar

from jitter.core.errors import UsageError
from jitter.core.formatting import parse_numbers
from jitter.core.step_key import StepKey
from jitter.report.page import durations_payload, render_page, render_tables, step_payload
from jitter.report.text.fix_list import costliest_step, exported_ranks
from jitter.report.views.run_report import RunReport, StepSection, build_step_tables
from jitter.report.views.step_view import StepGrid

STAGES: Final = ("diagnosing the run", "reading the first step", "ready")
"""In order."""
MAX_CACHED_STEPS: Final = 24
MAX_RANKS_TEXT: Final = 200
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
TimelineWriter = Callable[[Path, StepKey, Sequence[int]], None]
"""Writes the timeline of a step's ranks to a file whose name ends in `.json.gz`."""


class ServedRun:
    """One run with its page. What reads steps or draws runs on one thread."""

    def __init__(self, report: RunReport, write_timeline: TimelineWriter | None = None) -> None:
        """Serve this run. Nothing is computed yet. `write_timeline` writes the timelines of findings."""
        self.report = report
        self.write_timeline = write_timeline
        self.stage = 0
        """How far the preparation is, as a position in `STAGES`. One thread writes it, all others read it."""
        self.failure: Exception | None = None
        """Why the preparation ended."""
        self.page = ""
        """The page as HTML; empty until the run is prepared."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jitter-draw")
        self.step = lru_cache(MAX_CACHED_STEPS)(self._step)
        self._read = lru_cache(2)(self._read_step)

    @property
    def is_ready(self) -> bool:
        """Whether the run can be drawn."""
        return self.stage == len(STAGES) - 1

    @property
    def progress(self) -> dict[str, object]:
        """What a waiting page reads: the stage, how much is done (each stage counts the same), whether that is all."""
        return {"words": STAGES[self.stage], "fraction": self.stage / (len(STAGES) - 1), "ready": self.is_ready}

    async def on_thread(
        self, function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Call `function` on the one thread that reads steps and draws, while the event loop answers other requests."""
        return await asyncio.wrap_future(self._thread.submit(function, *args, **kwargs))

    def prepare(self) -> None:
        """Compute the data that every page shows, and the page, in stages; once."""
        report = self.report
        if self.is_ready:
            return
        if report.steps == report.lake.step_keys:
            report.lake.prepare(forms=["answers"])  # which makes later starts faster
        report.diagnosis, report.facts  # noqa: B018
        self.stage = STAGES.index("reading the first step")
        self.page = self._render()
        self.stage = STAGES.index("ready")

    def prepare_on_thread(self, failed: Callable[[], None]) -> Thread:
        """Run `prepare` on a thread and return it; on an error keep that in `failure` and call `failed`."""

        def work() -> None:
            try:
                self.prepare()
            except Exception as error:  # raised again by the thread that serves
                self.failure = error
                failed()

        thread = Thread(target=work, name="jitter-prepare", daemon=True)
        thread.start()
        return thread

    def tables(self, place: int) -> bytes:
        """Return the tables of a step as JSON; raise `UsageError` for a position without a step."""
        return _json({"tables": render_tables(build_step_tables(self.report.lake, self._key(place)))})

    def kernel(self, place: int, index: int) -> bytes:
        """Return the durations of one kernel of a step over all steps as JSON; raise `UsageError` if it has none."""
        grid, _ = self._read(self._key(place))
        if index not in grid.kernel_index:
            raise UsageError(f"{grid.key} has no kernel {index}", "choose a kernel of the figures")
        return _json(durations_payload(self.report.durations(grid, [index])))

    def timeline(self, number: int) -> bytes | None:
        """Return the compressed timeline of a finding, numbered from 1; None if there is no such finding or step."""
        findings = self.report.diagnosis.findings
        culprit = findings[number - 1] if 0 < number <= len(findings) else None
        step = None if culprit is None else costliest_step(culprit, self.report.diagnosis)
        if culprit is None or step is None or self.write_timeline is None:
            return None
        ranks = exported_ranks(culprit, step, self.report.lake.cohorts)
        with tempfile.TemporaryDirectory(prefix="jitter-") as folder:
            path = Path(folder) / "finding.json.gz"
            self.write_timeline(path, step.key, ranks)
            return path.read_bytes()

    def _render(self) -> str:
        for key in self.report.by_cost:
            with suppress(UsageError):
                return render_page(self.report, [(*self._read(key), None)], live=True)
        return render_page(self.report, [], live=True)

    def _step(self, place: int, ranks: str) -> bytes:
        """Return what the page needs to show a step, with lines of these ranks, as JSON.

        Raises `UsageError` for a position without a step and for ranks that are none of the step's.
        """
        key, lines = self._key(place), self._parse_ranks(ranks)
        grid, section = self._read(key)
        return _json(step_payload(self.report, grid, section, ranks=lines))

    def _read_step(self, key: StepKey) -> tuple[StepGrid, StepSection]:
        grid = self.report.grid(key)
        return grid, self.report.section(grid)

    def _key(self, place: int) -> StepKey:
        steps = self.report.diagnosis.steps
        if place >= len(steps):
            raise UsageError("there is no such step", "choose a step of the list")
        return steps[place].key

    def _parse_ranks(self, text: str) -> list[int]:
        if not text.strip():
            return []
        ranks = self.report.lake.ranks
        longest = max((len(digits) for digits in re.findall(r"\d+", text)), default=0)
        if len(text) > MAX_RANKS_TEXT or longest > len(str(ranks[-1])):  # parse_numbers would expand an endless range
            raise UsageError("not ranks of this run", f"it has {ranks[0]} to {ranks[-1]}")
        return parse_numbers(text.strip(), "ranks")


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def describe_metrics(runs: Sequence[ServedRun]) -> str:
    """Return loss, step time and findings of runs in the text format of Prometheus; runs that are not ready say so."""
    values: dict[str, list[str]] = {}

    def add(name: str, sentence: str, value: float | None, **labels: object) -> None:
        if value is not None:
            texts = {key: str(label).translate(_ESCAPES) for key, label in labels.items() if label is not None}
            pairs = ",".join(f'{key}="{text}"' for key, text in texts.items())
            head = f"# HELP jitter_{name} {sentence}\n# TYPE jitter_{name} gauge\n"
            values.setdefault(head, []).append(f"jitter_{name}{{{pairs}}} {value!r}\n")

    for run in runs:
        of_lake = partial(add, lake=run.report.lake.root)
        of_lake("ready", "Whether the run is analyzed.", int(run.is_ready))
        if not run.is_ready:
            continue
        diagnosis, facts = run.report.diagnosis, run.report.facts
        of_lake("ranks", "Ranks with a recording.", facts.ranks)
        of_lake("steps", "Recorded steps.", facts.steps)
        step_s = _seconds(diagnosis.waterfall[0].step_time_ns)
        of_lake("step_time_seconds", "Mean time of the steps that have a loss.", step_s)
        of_lake("loss_seconds", "What jitter costs over the recorded steps.", _seconds(diagnosis.loss.ns))
        of_lake("loss_ratio", "The loss as a part of the run's time.", diagnosis.loss.fraction)
        of_lake("findings", "Findings of the run.", len(diagnosis.findings))
        for number, finding in enumerate(diagnosis.findings, 1):
            labels = {label: getattr(finding, label) for label in _LABELS}
            if finding.scope == "job":
                labels["rank"] = None
            share_s = _seconds(finding.loss_ns)
            of_lake("finding_loss_seconds", "Share of the loss of one finding.", share_s, number=number, **labels)
    return "".join(head + "".join(lines) for head, lines in values.items())


def _seconds(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e9


_LABELS: Final = ("rung", "scope", "rank", "host", "cause", "confidence")
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
