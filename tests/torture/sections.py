"""The sections of the torture, with the number of cases of a whole and of a quick run."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tests.torture.answers import ask_partial_jobs
from tests.torture.figures import Figures
from tests.torture.flips import flip_bits
from tests.torture.hostile_lakes import attack
from tests.torture.kills import kill_changes
from tests.torture.mutations import damage_kineto, damage_logs, mutate_sources
from tests.torture.signals import send_signals
from tests.torture.simultaneous import work_at_once


class Section(NamedTuple):
    """One kind of torture: (cases, seed) -> figures."""

    run: Callable[[int, int], Figures]
    cases: int
    quick_cases: int


SECTIONS = {
    "kills": Section(kill_changes, 600, 1),
    "signals": Section(send_signals, 500, 1),
    "together": Section(work_at_once, 200, 1),
    "sources": Section(mutate_sources, 12_000, 4),
    "answers": Section(ask_partial_jobs, 2_000, 1),
    "kineto": Section(damage_kineto, 5_000, 15),
    "logs": Section(damage_logs, 10_000, 20),
    "hostile": Section(attack, 10_000, 8),
    "flips": Section(flip_bits, 1_000, 2),
}


def torture(names: Sequence[str], quick: bool, seed: int, cases: int | None = None) -> Iterator[Figures]:
    """Run sections and yield the figures of each."""
    for name in names:
        section = SECTIONS[name]
        yield section.run(cases or (section.quick_cases if quick else section.cases), seed)
