"""Files on their way from the disk before anybody opens them: who reads many small ones waits half as long."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

_MOST_BYTES: Final = 1 << 20
"""Of each: whoever reads a larger one in order is served ahead by the system itself."""


def expect(paths: Iterable[Path]) -> None:
    """Have the system begin to read these files, or their first part, if it can; one that is not there is no matter."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in paths:
        with suppress(OSError):
            file = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(file, 0, _MOST_BYTES, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(file)
