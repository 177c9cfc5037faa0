"""A baseline as version 1 wrote it."""

import msgspec

from jitter.comparison.document import Document

KEYS = ("scope", "rank", "ranks", "host", "device", "cause", "confidence", "excess_ns", "gain_ns", "steps")
"""Of a finding."""
NEW = ("usual", "jitter", "slow_steps", "waterfall")
"""What version 3 added."""


def written_by_version_1(document: Document) -> bytes:
    """Return the document as version 1 wrote it: its findings lack what version 2 added."""
    data = msgspec.to_builtins(document) | {"schema_version": 1}
    data["culprits"] = [{name: one[name] for name in KEYS} for one in data["culprits"]]
    return msgspec.json.encode({name: value for name, value in data.items() if name not in NEW})
