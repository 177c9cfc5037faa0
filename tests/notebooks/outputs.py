"""Outputs of a notebook as they are committed: small, static, and the same on each run and machine."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parents[2] / "notebooks"
NAMES: Final = sorted(path.name for path in FOLDER.glob("*.ipynb"))
FIGURE: Final = "application/vnd.bokehjs_exec.v0+json"
"""Type of the output of `bokeh.plotting.show`; committed as a PNG."""
_LIBRARY: Final = "application/vnd.bokehjs_load.v0+json"
TIMED: Final = "timed"
"""Tag of a cell that prints times of this machine: its numbers are not compared."""
_PLACE: Final = "data-root-id="
"""In the element that a figure is drawn into, an output of its own."""
_TEXTS: Final = ("text/plain", "text/html")
_TEMPORARY: Final = re.compile(r"[^\s'\"(<>]*/(jitter-[a-z]+)-\w{1,8}")  # a table may cut the name
_STYLE: Final = re.compile(r"\bT_[0-9a-f]{5}|\b0x[0-9a-f]{6,}")
_NUMBER: Final = re.compile(r"[-−]?\d[\d,]*\.?\d*(?:e[+-]?\d+)?")
_SAME: Final = 1e-6
"""Relative difference up to which numbers are equal: processors add in another order."""


def stable_text(text: str) -> str:
    """Return a text without what differs from run to run: temporary folders, random identifiers."""
    return _STYLE.sub("ID", _TEMPORARY.sub(r"/tmp/\1", text))


def stable_outputs(cell: Any) -> Iterator[Any]:
    """Yield the outputs of a cell that readers see, figures as they are; no messages, no libraries."""
    for output in cell.outputs:
        if output.output_type == "stream":
            if output.name == "stdout":
                yield {"output_type": "stream", "name": "stdout", "text": stable_text(output.text)}
        elif output.output_type in ("display_data", "execute_result") and _LIBRARY not in output.data:
            if FIGURE in output.data or "image/png" in output.data:
                yield output
                continue
            data = {kind: stable_text(output.data[kind]) for kind in _TEXTS if kind in output.data}
            if data and _PLACE not in data.get("text/html", ""):
                yield {"output_type": "display_data", "data": data, "metadata": {}}


def describe_outputs(cell: Any) -> list[str]:
    """Return the outputs of a cell as texts to compare; a figure is a word."""
    found: list[str] = []
    follows_text = False
    for output in stable_outputs(cell):
        data = output.get("data")
        if data is None and follows_text:
            found[-1] += output["text"]  # the kernel sends what a cell prints in one piece or in several
        elif data is None:
            found.append(output["text"])
        elif FIGURE in data or "image/png" in data:
            found.append("figure")
        else:
            found += [data[kind] for kind in _TEXTS if kind in data]
        follows_text = data is None
    return found


def agree(committed: list[str], fresh: list[str], *, timed: bool) -> bool:
    """Return whether outputs agree: words exactly, numbers nearly, or not at all where they are times."""
    if len(committed) != len(fresh):
        return False
    for one, other in zip(committed, fresh, strict=True):
        if _words(one) != _words(other):
            return False
        pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
        if not timed and not all(a == b or math.isclose(_value(a), _value(b), rel_tol=_SAME) for a, b in pairs):
            return False
    return True


def _words(text: str) -> list[str]:
    return _NUMBER.sub("#", re.sub(r"-{3,}", "", text)).split()


def _value(number: str) -> float:
    return float(number.replace(",", "").replace("−", "-"))
