"""The colours of the figures."""

from typing import Final

import numpy as np

# Colours that colour-blind readers can distinguish (Okabe and Ito); lines also differ in width and dash, for print.
# The page's script knows them by value and replaces them in dark mode: see `templates/appearance.js`.
MAX_RANK: Final = "#d55e00"
MIN_RANK: Final = "#0072b2"
OTHERS: Final = "#999999"
CALM: Final = "#57606a"
"""Of the max rank in a step in which no rank stands out."""
COLLECTIVE: Final = "#009e73"
MARK: Final = "#cc79a7"
TEXT: Final = "#1c2128"
GRID: Final = "#e6e8eb"
LATE_START: Final = "#0072b2"
CPU: Final = "#e69f00"
AFTER_LAUNCH: Final = "#8c5a00"
GPU: Final = "#d55e00"
TRANSFER: Final = "#009e73"
RANKS: Final = ("#2e8b3d", "#a8479c", "#00939e", "#8a6d00", "#7b5fd6", "#c8396b", "#5f7f1c", "#a0522d")
"""Of other ranks; of medium lightness, legible on a light and on a dark ground."""
BACKGROUND: Final = "#fefefe"  # not quite white: Bokeh omits default values from the page
TRANSPARENT: Final = "rgba(0, 0, 0, 0)"
_SHADES: Final = 64


def _between(stops: tuple[str, ...]) -> list[str]:
    """Interpolate colours evenly between the stops."""
    channels = np.array([[int(stop[at : at + 2], 16) for stop in stops] for at in (1, 3, 5)])
    places, shown = np.arange(len(stops)), np.linspace(0, len(stops) - 1, _SHADES)
    shades = np.rint([np.interp(shown, places, channel) for channel in channels]).astype(int)
    return [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in shades.T.tolist()]


# one hue that darkens (in dark mode: lightens), so that print in grey and all kinds of colour vision keep the order
LIGHT_HEAT_PALETTE: Final = _between(("#f4efe9", "#fdbe85", "#d45e02", "#4a1c00"))
DARK_HEAT_PALETTE: Final = _between(("#22262c", "#7a3a08", "#ff8a33", "#fff3e6"))
# for cells without a share of the loss, and for runs without a finding: grey of growing opacity, on either ground
GREY_PALETTE: Final = [f"#808080{alpha:02x}" for alpha in range(0x08, 0xC8, 6)]
