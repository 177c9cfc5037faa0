"""What tells a page that jitter wrote; apart, so that the command need not load the figures to look for it."""

from typing import Final

MARK: Final = b'<meta name="generator" content="jitter '
"""Near the top of every page."""
