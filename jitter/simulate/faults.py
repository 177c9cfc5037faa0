"""Faults of a simulated job: kind, ranks, steps, and the cause that an analysis should find."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from jitter.core.errors import UsageError

FAULT_CAUSES: Final = {
    "cpu_stall": "cpu_launch",
    "slow_cpu": "cpu_launch",
    "slow_gpu": "gpu_compute",
    "late_start": "late_start",
    "late_end": "cpu_after",
    "unequal_work": "workload_imbalance",
    "extra_kernel": "workload_imbalance",
    "missing_kernel": "workload_imbalance",
    "slow_collective": "communication",
    "slow_link": "communication",
    "pause": "cpu_launch",
}
"""The cause of each kind of fault, with the identifiers of the report."""

REQUIRED_OPTIONS: Final = {
    "cpu_stall": ("ranks", "kernel", "ms"),
    "slow_cpu": ("ranks", "factor"),
    "slow_gpu": ("ranks", "factor"),
    "late_start": ("ranks", "ms"),
    "late_end": ("ranks", "ms"),
    "unequal_work": ("ranks", "factor"),
    "extra_kernel": ("ranks", "kernel"),
    "missing_kernel": ("ranks", "kernel"),
    "slow_collective": ("factor",),
    "slow_link": ("ranks", "factor"),
    "pause": ("every", "ms"),
}
_TAKES: Final = {
    "slow_cpu": ("kernels", "drift"),
    "slow_gpu": ("kernels", "drift"),
    "unequal_work": ("kernels", "drift"),
    "slow_collective": ("drift",),
    "slow_link": ("drift",),
    "late_start": ("loading",),
    "extra_kernel": ("ms",),
}
_EVERYWHERE: Final = ("ranks", "steps", "every")


@dataclass(frozen=True)
class Fault:
    """One fault, on some ranks and steps.

    `cpu_stall`: the CPU pauses `ms` before launching kernel `kernel`. `slow_cpu`: CPU times x `factor` over
    `kernels`. `slow_gpu`: compute durations x `factor` over `kernels`. `late_start`: the step's first launch comes
    `ms` late, inside the data-loading range unless `loading` is false. `unequal_work`: launch shape and duration
    x `factor` over `kernels`. `extra_kernel`: an additional kernel (of `ms`) before index `kernel`.
    `late_end`: the CPU pauses `ms` after the step's last call, before the step's end.
    `missing_kernel`: no kernel `kernel`. `slow_collective`: transfers x `factor`, for all ranks. `slow_link`:
    transfers x `factor` in every collective whose group has one of the ranks. `pause`: each rank's CPU pauses `ms` in
    every `every`-th step, as garbage collection does; neighbours pause in different steps.
    """

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
        if self.kind not in FAULT_CAUSES:
            raise UsageError(f"no fault is called {self.kind!r}", f"there are {', '.join(FAULT_CAUSES)}")
        for need in REQUIRED_OPTIONS[self.kind]:
            if getattr(self, need) in (None, frozenset()):
                wanted = "rank" if need == "ranks" else need
                raise UsageError(f"the fault {self.kind} needs {wanted}=", f"for example {FAULT_EXAMPLES[self.kind]}")
        if self.ms is not None and self.ms <= 0:
            raise UsageError(f"the fault {self.kind} needs ms > 0, not {self.ms:g}")
        if self.factor is not None and self.factor <= 0:
            raise UsageError(f"the fault {self.kind} needs factor > 0, not {self.factor:g}")
        if self.every is not None and self.every < 1:
            raise UsageError(f"the fault {self.kind} needs every >= 1, not {self.every}")

    @property
    def cause(self) -> str:
        """The cause that an analysis should find."""
        return FAULT_CAUSES[self.kind]

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
        if kind not in FAULT_CAUSES:
            raise UsageError(f"no fault is called {kind!r} (in {text!r})", f"there are {', '.join(FAULT_CAUSES)}")
        known = {*REQUIRED_OPTIONS[kind], *_TAKES.get(kind, ()), *_EVERYWHERE}
        values: dict[str, object] = {}
        for part in filter(None, (p.strip() for p in rest.split(","))):
            word, equals, value = (p.strip() for p in part.partition("="))
            name = {"rank": "ranks", "step": "steps"}.get(word, word)
            if not equals or name not in known:
                raise UsageError(
                    f"the fault {kind} has no {word!r} (in {text!r})",
                    f"it takes {', '.join(sorted(known))}; for example {FAULT_EXAMPLES[kind]}",
                )
            if name in values:
                raise UsageError(f"the fault {text!r} says {word} twice")
            try:
                values[name] = _VALUES[name](value)
            except ValueError:
                raise UsageError(
                    f"{word}={value} is not {_EXPECTED[name]} (in {text!r})", FAULT_EXAMPLES[kind]
                ) from None
        return cls(kind, **values)  # type: ignore[arg-type]


FAULT_EXAMPLES: Final = {
    "cpu_stall": "cpu_stall:rank=3,step=2,kernel=17,ms=2.5",
    "slow_cpu": "slow_cpu:rank=3,factor=4,kernels=100-400",
    "slow_gpu": "slow_gpu:rank=3,factor=1.2",
    "late_start": "late_start:rank=3,every=10,ms=8",
    "late_end": "late_end:rank=3,every=10,ms=8",
    "unequal_work": "unequal_work:rank=3,factor=1.5,kernels=20-40",
    "extra_kernel": "extra_kernel:rank=3,kernel=17",
    "missing_kernel": "missing_kernel:rank=3,kernel=17",
    "slow_collective": "slow_collective:steps=2-3,factor=5",
    "slow_link": "slow_link:rank=3,factor=4",
    "pause": "pause:every=10,ms=30",
}


def _numbers(text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split("+"):
        first, dash, last = part.partition("-")
        one = range(int(first), (int(last) if dash else int(first)) + 1)
        if not one or one[0] < 0:
            raise ValueError
        found.update(one)
    return frozenset(found)


def _index(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError
    return value


def _yes_no(text: str) -> bool:
    return {"yes": True, "no": False}[text] if text in ("yes", "no") else bool(int(text))


_VALUES: Final[dict[str, Callable[[str], object]]] = {
    "ranks": _numbers,
    "steps": _numbers,
    "kernels": _numbers,
    "kernel": _index,
    "every": int,
    "ms": float,
    "factor": float,
    "loading": _yes_no,
    "drift": _yes_no,
}
_EXPECTED: Final = {
    "ranks": "a number, a range A-B or several joined by +",
    "steps": "a number, a range A-B or several joined by +",
    "kernels": "a number, a range A-B or several joined by +",
    "kernel": "a kernel index",
    "every": "a whole number",
    "ms": "a number of milliseconds",
    "factor": "a factor",
    "loading": "yes or no",
    "drift": "yes or no",
}
