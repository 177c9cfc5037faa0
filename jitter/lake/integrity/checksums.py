"""Checksums of a lake's files: xxh3 of their content, which tells damage from sound content at memory speed.

Page checksums of parquet cover pages only. A checksum of the whole file also covers its header and footer, and it is
the file's identity: a file in the place of another is noticed. xxh3 is not cryptographic: it protects against damage,
not against a person who changes a file and its checksum.
"""

import hashlib
import re
from pathlib import Path
from typing import Final

import xxhash

from jitter.lake.integrity.containment import open_lake_file

_SEAL: Final = re.compile(rb',\n "checksum": "([0-9a-f]{16})"\n}\Z')
_SEAL_BYTES: Final = 64
"""The seal is not longer."""


def checksum(*parts: bytes | memoryview) -> str:
    """Return the checksum of a content, in parts that follow each other, 16 hexadecimal digits."""
    digest = xxhash.xxh3_64()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def file_checksum(path: Path) -> str:
    """Return the checksum of a file's content; raise `OSError` if it cannot be read."""
    with open_lake_file(path) as file:
        return hashlib.file_digest(file, xxhash.xxh3_64).hexdigest()


def seal_json(content: bytes) -> bytes:
    """Return a JSON object with its own checksum as the last member."""
    return b"".join(seal_parts(content))


def seal_parts(content: bytes) -> tuple[memoryview, bytes]:
    """Return the two parts of what `seal_json` returns, without a copy of the content."""
    body = memoryview(content)[: -2 if content.endswith(b"\n}") else -1]
    return body, f',\n "checksum": "{checksum(body)}"\n}}'.encode()


def is_sealed(content: bytes) -> bool:
    """Return whether `seal_json` made this content and it has not changed since.

    Raises `ValueError` if the content has a checksum that is not its own. A content without a checksum is not sealed.
    """
    seal = _SEAL.search(content, max(len(content) - _SEAL_BYTES, 0))
    if seal is None:
        return False
    if checksum(memoryview(content)[: seal.start()]) != seal[1].decode():
        raise ValueError("its checksum does not match its content")
    return True
