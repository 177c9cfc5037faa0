"""The guide: jitter's definitions and how-tos, one markdown file per topic, packaged with the program.

`jitter explain TOPIC` prints a topic, the report's page takes "How to read this" from the topic `reading`, and
docstrings refer to topics by name ("see `jitter explain metrics`").
"""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Final

from jitter.core.errors import UsageError

TOPICS: Final = (
    "reading",
    "recording",
    "metrics",
    "alignment",
    "dependencies",
    "replay",
    "account",
    "causes",
    "evidence",
    "hang",
    "confidence",
    "efficiency",
    "compare",
    "history",
    "lake",
    "python",
    "verify",
    "json",
    "exit-codes",
)
"""Topic names in reading order; topic `NAME` is the file `NAME.md` of this package."""


@dataclass(frozen=True)
class Topic:
    """One topic of the guide."""

    name: str
    title: str
    summary: str
    """The paragraph after the title: one sentence, without line breaks."""


@cache
def topics() -> tuple[Topic, ...]:
    """Return all topics in reading order."""
    return tuple(_topic(name) for name in TOPICS)


@cache
def text(topic: str) -> str:
    """Return a topic's markdown, its title line included.

    Raises `UsageError` if there is no topic of this name; its hint names the nearest topic.
    """
    if topic not in TOPICS:
        raise UsageError(f"no topic {topic!r}", _hint(topic))
    return files(__name__).joinpath(f"{topic}.md").read_text(encoding="utf-8")


def body(topic: str) -> str:
    """Return a topic's markdown without title and summary; raises as `text` does."""
    return text(topic).split("\n\n", 2)[2]


def _topic(name: str) -> Topic:
    title, summary, _ = text(name).split("\n\n", 2)
    return Topic(name, title.removeprefix("# "), " ".join(summary.split()))


def _hint(word: str) -> str:
    """Name the topic that is spelled nearly so; else the one that defines the word or mentions it most; else all."""
    near = get_close_matches(word.lower(), TOPICS, n=1)
    if near:
        return f"did you mean {near[0]}? All topics: jitter explain"
    mention = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE)
    defined = re.compile(rf"\*\*{re.escape(word)}\*\*", re.IGNORECASE)
    counts = {name: (len(defined.findall(text(name))), len(mention.findall(text(name)))) for name in TOPICS}
    most = max(TOPICS, key=counts.__getitem__)
    return f"it is explained in: jitter explain {most}" if any(counts[most]) else f"topics: {', '.join(TOPICS)}"
