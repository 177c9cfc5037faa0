"""The kinds of GPU activities, and the codes that stand for them in arrays and derived files."""

from typing import Final

KINDS: Final = ("compute", "collective", "memory")
COMPUTE, COLLECTIVE, MEMORY, SYNC = range(len(KINDS) + 1)
"""By position in `KINDS`; after them a synchronising call, which a program's operations have among them."""
