"""Faults of a simulated job: kind, ranks, steps, and the cause that an analysis should find."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from jitter.core.errors import UsageError


class FaultKind(NamedTuple):
    """What a kind of fault does, what it takes, and the cause that an analysis should find."""

    cause: str
    """With the identifiers of the report."""
    needs: tuple[str, ...]
    """Options that it cannot do without."""
    takes: tuple[str, ...]
    """Other options of its own."""
    example: str


FAULT_KINDS: Final[Mapping[str, FaultKind]] = {
    # the CPU pauses `ms` before launching kernel `kernel`
    "cpu_stall": FaultKind("cpu_launch", ("ranks", "kernel", "ms"), (), "rank=3,step=2,kernel=17,ms=2.5"),
    # CPU times x `factor` over `kernels`
    "slow_cpu": FaultKind("cpu_launch", ("ranks", "factor"), ("kernels", "drift"), "rank=3,factor=4,kernels=100-400"),
    # compute durations x `factor` over `kernels`
    "slow_gpu": FaultKind("gpu_compute", ("ranks", "factor"), ("kernels", "drift"), "rank=3,factor=1.2"),
    # the GPU pauses `ms` before it begins kernel `kernel`
    "gpu_pause": FaultKind("gpu_pause", ("ranks", "kernel", "ms"), (), "rank=3,step=2,kernel=17,ms=2.5"),
    # durations of copies between host and GPU x `factor`
    "slow_copies": FaultKind("slow_copies", ("ranks", "factor"), ("drift",), "rank=3,factor=20"),
    # the step's first launch comes `ms` late, inside the data-loading range unless `loading` is false
    "late_start": FaultKind("late_start", ("ranks", "ms"), ("loading",), "rank=3,every=10,ms=8"),
    # the CPU pauses `ms` after the step's last call, before the step's end
    "late_end": FaultKind("cpu_after", ("ranks", "ms"), (), "rank=3,every=10,ms=8"),
    # launch shape and duration x `factor` over `kernels`
    "unequal_work": FaultKind(
        "workload_imbalance", ("ranks", "factor"), ("kernels", "drift"), "rank=3,factor=1.5,kernels=20-40"
    ),
    # an additional kernel, of `ms`, before index `kernel`
    "extra_kernel": FaultKind("workload_imbalance", ("ranks", "kernel"), ("ms",), "rank=3,kernel=17"),
    # no kernel `kernel`
    "missing_kernel": FaultKind("workload_imbalance", ("ranks", "kernel"), (), "rank=3,kernel=17"),
    # transfers x `factor`, for all ranks
    "slow_collective": FaultKind("communication", ("factor",), ("drift",), "steps=2-3,factor=5"),
    # transfers x `factor` in every collective whose group has one of the ranks
    "slow_link": FaultKind("communication", ("ranks", "factor"), ("drift",), "rank=3,factor=4"),
    # each rank's CPU pauses `ms` in every `every`-th step, neighbours in different steps: garbage collection
    "pause": FaultKind("cpu_launch", ("every", "ms"), (), "every=10,ms=30"),
}
"""The kinds of faults; `durations` applies them."""
_EVERYWHERE: Final = ("ranks", "steps", "every")


@dataclass(frozen=True)
class Fault:
    """One fault, on some ranks and steps."""

    kind: str
    ranks: frozenset[int] = frozenset()
    steps: frozenset[int] | None = None
    """None means all."""
    every: int | None = None
    """Only steps whose number is a multiple of this."""
    kernel: int | None = None
    kernels: frozenset[int] | None = None
    """None means all."""
    ms: float | None = None
    factor: float | None = None
    loading: bool = True
    drift: bool = False
    """Whether the factor grows from 1 in the first step to its full value in the last."""

    def __post_init__(self) -> None:
        if self.kind not in FAULT_KINDS:
            raise UsageError(f"no fault is called {self.kind!r}", f"there are {', '.join(FAULT_KINDS)}")
        for need in FAULT_KINDS[self.kind].needs:
            if getattr(self, need) in (None, frozenset()):
                wanted = "rank" if need == "ranks" else need
                raise UsageError(f"the fault {self.kind} needs {wanted}=", f"for example {_example(self.kind)}")
        if self.ms is not None and self.ms <= 0:
            raise UsageError(f"the fault {self.kind} needs ms > 0, not {self.ms:g}")
        if self.factor is not None and self.factor <= 0:
            raise UsageError(f"the fault {self.kind} needs factor > 0, not {self.factor:g}")
        if self.every is not None and self.every < 1:
            raise UsageError(f"the fault {self.kind} needs every >= 1, not {self.every}")

    @property
    def cause(self) -> str:
        """The cause that an analysis should find."""
        return FAULT_KINDS[self.kind].cause

    @property
    def delay_ns(self) -> int:
        """`ms` in nanoseconds; 0 for a fault without it."""
        return round((self.ms or 0) * 1e6)

    def at_step(self, step: int) -> bool:
        """Return whether the fault happens in this step; a pause: on any rank."""
        if self.steps is not None and step not in self.steps:
            return False
        return self.kind == "pause" or self.every is None or step % self.every == 0

    def pauses(self, rank: int, step: int) -> bool:
        """Return whether this rank pauses in this step."""
        mine = self.kind == "pause" and (not self.ranks or rank in self.ranks)
        return mine and self.at_step(step) and (step + rank) % (self.every or 1) == 0

    def on_ranks(self, step: int, ranks: int) -> frozenset[int]:
        """Return the affected ranks in this step of a job of `ranks` ranks; empty for a fault without ranks."""
        if self.kind == "pause":
            return frozenset(rank for rank in range(ranks) if self.pauses(rank, step))
        return self.ranks if self.at_step(step) else frozenset()

    def in_step(self, step: int, steps: range) -> "Fault":
        """Return the fault with its strength in this step of the job's `steps`."""
        if not self.drift or self.factor is None:
            return self
        return replace(self, factor=1 + (self.factor - 1) * (step - steps[0]) / max(1, len(steps) - 1))

    def on_kernel(self, kernel: int | None) -> bool:
        """Return whether the fault affects the kernel with this index."""
        return self.kernels is None or (kernel is not None and kernel in self.kernels)

    @classmethod
    def parse(cls, text: str) -> "Fault":
        """Parse `KIND:rank=3,step=2,kernel=17,ms=2.5`; several ranks or steps as `ranks=0-7+12`, `steps=2-5`.

        Raises `UsageError` for unknown or missing options and for values that cannot be parsed.
        """
        kind, _, rest = text.partition(":")
        kind = kind.strip()
        if kind not in FAULT_KINDS:
            raise UsageError(f"no fault is called {kind!r} (in {text!r})", f"there are {', '.join(FAULT_KINDS)}")
        known_words = {*FAULT_KINDS[kind].needs, *FAULT_KINDS[kind].takes, *_EVERYWHERE}
        values: dict[str, object] = {}
        for part in filter(None, (p.strip() for p in rest.split(","))):
            word, equals, value = (p.strip() for p in part.partition("="))
            name = {"rank": "ranks", "step": "steps"}.get(word, word)
            if not equals or name not in known_words:
                raise UsageError(
                    f"the fault {kind} has no {word!r} (in {text!r})",
                    f"it takes {', '.join(sorted(known_words))}; for example {_example(kind)}",
                )
            if name in values:
                raise UsageError(f"the fault {text!r} says {word} twice")
            parse, expected = _VALUES[name]
            try:
                values[name] = parse(value)
            except ValueError:
                raise UsageError(f"{word}={value} is not {expected} (in {text!r})", _example(kind)) from None
        return cls(kind, **values)  # type: ignore[arg-type]


def _example(kind: str) -> str:
    return f"{kind}:{FAULT_KINDS[kind].example}"


def _numbers(text: str) -> frozenset[int]:
    numbers: set[int] = set()
    for part in text.split("+"):
        first, dash, last = part.partition("-")
        part_range = range(int(first), (int(last) if dash else int(first)) + 1)
        if not part_range or part_range[0] < 0:
            raise ValueError
        numbers.update(part_range)
    return frozenset(numbers)


def _index(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError
    return value


def _yes_no(text: str) -> bool:
    return {"yes": True, "no": False}[text] if text in ("yes", "no") else bool(int(text))


_NUMBERS: Final = (_numbers, "a number, a range A-B or several joined by +")
_VALUES: Final[dict[str, tuple[Callable[[str], object], str]]] = {
    **dict.fromkeys(("ranks", "steps", "kernels"), _NUMBERS),
    "kernel": (_index, "a kernel index"),
    "every": (int, "a whole number"),
    "ms": (float, "a number of milliseconds"),
    "factor": (float, "a factor"),
    **dict.fromkeys(("loading", "drift"), (_yes_no, "yes or no")),
}
"""How the values of options are parsed, and what they are, for people."""
