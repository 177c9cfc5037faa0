"""Where tests find Chromium."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from in_chromium import browser

__all__ = ["browser"]
