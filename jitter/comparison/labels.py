"""Names of compared runs: where two would have the same one, the shortest ends of their paths that differ."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from jitter.comparison.document import Document


def tell_apart(documents: Sequence[Document], paths: Sequence[Path | None]) -> list[Document]:
    """Return the documents, labelled by the ends of their paths where labels are equal; None: it has no path."""
    times = Counter(document.label for document in documents)
    ends = shortest_ends([None if path is None else path.resolve() for path in paths])
    return [
        document if end is None or times[document.label] == 1 else msgspec.structs.replace(document, label=end)
        for document, end in zip(documents, ends, strict=True)
    ]


def shortest_ends(paths: Sequence[Path | None]) -> list[str | None]:
    """Return the shortest end of each path that is no end of another one of the paths.

    >>> shortest_ends([Path("/a/run1/lake"), Path("/b/run2/lake"), None])
    ['run1/lake', 'run2/lake', None]
    """
    found: list[str | None] = []
    for path in paths:
        others = {other.parts for other in paths if other is not None and other != path}
        size = 1
        while path is not None and size < len(path.parts) and any(one[-size:] == path.parts[-size:] for one in others):
            size += 1
        found.append(None if path is None else Path(*path.parts[-size:]).as_posix())
    return found
