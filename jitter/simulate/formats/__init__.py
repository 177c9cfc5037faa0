"""The trace formats of simulated runs. A new one is a module here and an entry in `FORMATS`."""

from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final, get_type_hints

from jitter.core.errors import UsageError
from jitter.simulate.recording import RankRecording
from jitter.simulate.run import Run

FORMATS: Final = {
    "nsys": "NVIDIA Nsight Systems, as `nsys export` writes them: SQLite or a folder of Parquet files",
    "kineto": "PyTorch's profiler: Chrome-trace JSON, plain or gzip, one file a rank",
    "rocprof-csv": "AMD's rocprofv3: CSV files, one set per rank",
    "rocpd": "AMD's rocprofv3: SQLite databases, its default since ROCm 7",
    "rocprof-v1": "AMD's first rocprof: a database and a Chrome trace",
}
"""Description of each format. Its module (`_` for `-`) has `Options`, a frozen dataclass, and
`write(ranks, number, folder, options, job)`, which writes the recording of some ranks and returns its path."""


def write(
    run: Run, folder: Path, name: str, advance: Callable[[int], None] = lambda _ranks: None, **options: object
) -> list[Path]:
    """Write the traces of all ranks into a folder, created if missing, and return their paths.

    `advance` is called with the number of ranks written since the last call. Option values may be text.
    Raises `UsageError` for an unknown format or option.
    """
    module = _module(name)
    chosen = _options(module, name, options)
    folder.mkdir(parents=True, exist_ok=True)
    most = getattr(chosen, "ranks_per_report", 1)
    paths: list[Path] = []
    together: list[RankRecording] = []
    for recording in run.ranks():
        together.append(recording)
        # a recording never spans nodes
        is_last = recording.rank == run.job.ranks - 1 or (recording.rank + 1) % run.job.gpus_per_node == 0
        if len(together) == most or is_last:
            paths.append(module.write(together, len(paths) + 1, folder, chosen, run.job))
            advance(len(together))
            together = []
    return paths


def format_options(name: str) -> list[str]:
    """Return the options of a format with their defaults, one line each."""
    words = {True: "yes", False: "no"}
    return [
        f"{f.name}={words[f.default] if isinstance(f.default, bool) else f.default}"
        for f in fields(_module(name).Options)
    ]


def _module(name: str) -> ModuleType:
    if name not in FORMATS:
        raise UsageError(f"traces cannot be written as {name!r}", f"there are {', '.join(FORMATS)}")
    return import_module(f"jitter.simulate.formats.{name.replace('-', '_')}")


def _options(module: ModuleType, name: str, given: dict[str, object]) -> Any:
    hints = {field.name: get_type_hints(module.Options)[field.name] for field in fields(module.Options)}
    for word in given:
        if word not in hints:
            raise UsageError(f"{name} has no option {word!r}", f"it has {', '.join(format_options(name))}")
    return module.Options(**{word: _value(word, value, hints[word]) for word, value in given.items()})


def _value(word: str, value: object, hint: object) -> object:
    if not isinstance(value, str):
        return value
    if hint is bool:
        if value not in ("yes", "no"):
            raise UsageError(f"{word}={value} is not yes or no")
        return value == "yes"
    if hint is int:
        try:
            return int(value)
        except ValueError:
            raise UsageError(f"{word}={value} is not a whole number") from None
    return value
