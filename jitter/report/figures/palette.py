"""Colours that colour-blind readers tell apart (Okabe and Ito); lines differ in width and dash for print as well.

The page's script knows these colours by value and exchanges them on a dark ground: see `templates/page.js`.
"""

from typing import Final

MAX_RANK: Final = "#d55e00"
MIN_RANK: Final = "#0072b2"
OTHERS: Final = "#999999"
COLLECTIVE: Final = "#009e73"
MARK: Final = "#cc79a7"
MARK_TEXT: Final = "#a0457a"  # the same hue, dark enough to read
INK: Final = "#1c2128"
GRID: Final = "#e6e8eb"
GROUND: Final = "#fefefe"  # not quite white: Bokeh leaves out of the page what is its default
