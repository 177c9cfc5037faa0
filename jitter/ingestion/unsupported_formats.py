"""Profile formats that jitter does not read, with the command that records or exports a supported one."""

import re
from pathlib import Path
from typing import Final, NamedTuple

_HEAD_BYTES: Final = 1 << 16
_CHAKRA_HEAD: Final = re.compile(rb'"schema"\s*:\s*"[^"]*chakra')


class UnsupportedFormat(NamedTuple):
    """A profile format that jitter does not read."""

    pattern: re.Pattern[str]
    files: str
    """Name of the kind of files, in the plural."""
    instead: str
    """Advice on recording or exporting a format that jitter reads."""


_FORMATS: Final = (
    UnsupportedFormat(
        re.compile(r"\.xplane\.pb$"),
        "XProf profiles of JAX or TensorFlow",
        "record with `nsys profile -t cuda,nvtx` or `rocprofv3 --sys-trace`",
    ),
    UnsupportedFormat(
        re.compile(r"\.pb$"), "protobuf files", "export PyTorch profiles with `prof.export_chrome_trace(...)`"
    ),
    UnsupportedFormat(
        re.compile(r"\.qdstrm$"), "unfinished Nsight Systems reports", "convert with `QdstrmImporter -i FILE`"
    ),
    UnsupportedFormat(re.compile(r"\.ncu-rep$"), "Nsight Compute reports", "record with `nsys profile -t cuda,nvtx`"),
    UnsupportedFormat(
        re.compile(r"\.(?:pftrace|perfetto-trace)$"),
        "Perfetto traces",
        "record with `rocprofv3 --sys-trace -f rocpd` or `-f csv`",
    ),
    UnsupportedFormat(
        re.compile(r"\.otf2$"), "OTF2 traces", "record with `rocprofv3 --sys-trace -f rocpd` or `-f csv`"
    ),
    _CHAKRA := UnsupportedFormat(
        re.compile(r"\.et$"), "Chakra execution traces", "export PyTorch profiles with `prof.export_chrome_trace(...)`"
    ),
)


def unsupported_format(path: Path) -> UnsupportedFormat | None:
    """Return the format of a file by its name (JSON: by its beginning); None if it is none of these or unreadable."""
    if path.suffix != ".json":
        return next((one for one in _FORMATS if one.pattern.search(path.name)), None)
    try:
        with path.open("rb") as file:
            return _CHAKRA if _CHAKRA_HEAD.search(file.read(_HEAD_BYTES)) else None
    except OSError:
        return None
